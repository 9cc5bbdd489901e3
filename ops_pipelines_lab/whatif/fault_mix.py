"""What breaks, how often and how it behaves: catalogue/fault_mix.csv as values, with the scenario around each mix.

Counts are published; the share that hangs, the share that comes again and the evidence that each class shows are
assumptions, marked so in the table and swept by `sensitivity`.
"""

import csv
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files

TABLE = "fault_mix.csv"
_SUM_TOLERANCE = 1e-9


class Group(Enum):
    """What kind of part fails: peers find and remove each kind with another probability."""

    GPU = "gpu"
    NETWORK = "network"
    HOST = "host"
    SOFTWARE = "software"
    PLANNED = "planned"
    """Maintenance and the operators' own restarts: the job is asked to stop, and loses no work."""


class Silent(Enum):
    """A fault that ends nothing."""

    CORRUPTS = "corrupts"
    """The job runs on and computes garbage."""
    SLOWS = "slows"
    """One part holds up all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One row: what breaks and how that shows."""

    name: str
    count: int
    """Within the scenario's days."""
    group: Group
    hang_ratio: float
    """The share of them that ends in a stall without any message, 0..1."""
    silent: Silent | None
    ends_node: bool
    """Whether the node goes down, so that a scheduler sees it by itself."""
    persist_ratio: float
    """The share of them that comes again if the part stays in the job, 0..1."""
    shows_as: tuple[tuple[str, float], ...]
    """Fault classes of the diagnosis with their shares; the rest shows nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One long synchronous job and the cluster that it runs on. Each number with its source below."""

    name: str
    kinds: tuple[FaultKind, ...]
    gpu_count: int
    gpus_per_node: int = 8
    days: float
    published_days: float
    """The days that the counts belong to."""
    published_gpu_count: int
    published_running_ratio: float
    """The share of those days in which the job ran and could be hit, 0..1."""
    rate_scale: float = 1.0
    spare_count: int = 64
    repair_hours: float = 24.0
    slow_ratio: float = 0.10
    repeat_seconds: float = 600.0
    wide_network_ratio: float = 0.01

    @property
    def node_count(self) -> int:
        return self.gpu_count // self.gpus_per_node

    @property
    def mean_gap_seconds(self) -> float:
        """Running time between two interruptions of any kind."""
        return self._exposure_seconds / self._scaled(sum(kind.count for kind in self.kinds))

    @property
    def mtbf_seconds(self) -> float:
        """Running time between two failures, planned stops not counted."""
        failures = sum(kind.count for kind in self.kinds if kind.group is not Group.PLANNED)
        return self._exposure_seconds / self._scaled(failures)

    @property
    def _exposure_seconds(self) -> float:
        return self.published_days * 86_400 * self.published_running_ratio

    def _scaled(self, count: int) -> float:
        return count * self.rate_scale * self.gpu_count / self.published_gpu_count


def read_scenario(name: str) -> Scenario:
    """Return a scenario of the table; raise ValueError for an unknown name or a table that says nonsense.

    Sources of `llama3`: 54 days on 16,384 GPUs (arXiv 2407.21783). It ran for more than 90 % of them; assumption: it
    was exposed for 92.5 %. Assumptions besides: 64 spare nodes, 24 h of repair, ten minutes until what was not removed
    strikes again. Slow hosts cost 10 % (MegaScale, arXiv 2402.15627); 1 % of network faults reach beyond the standby
    pool (ByteRobust, arXiv 2509.16293).
    """
    text = (files("ops_pipelines.catalogue") / TABLE).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    kinds = tuple(_kind_of(row) for row in rows if row["scenario"] == name)
    if not kinds:
        known = sorted({row["scenario"] for row in rows})
        raise ValueError(f"there is no scenario {name!r}; catalogue/{TABLE} holds {', '.join(known)}")
    return Scenario(
        name=name,
        kinds=kinds,
        gpu_count=16_384,
        days=54.0,
        published_days=54.0,
        published_gpu_count=16_384,
        published_running_ratio=0.925,
    )


def _kind_of(row: dict[str, str]) -> FaultKind:
    name = row["fault"]
    shows_as = tuple((each.partition(":")[0], float(each.partition(":")[2])) for each in row["shows_as"].split())
    kind = FaultKind(
        name=name,
        count=int(row["count"]),
        group=Group(row["group"]),
        hang_ratio=float(row["hang_ratio"]),
        silent=Silent(row["silent"]) if row["silent"] else None,
        ends_node=row["ends_node"] == "1",
        persist_ratio=float(row["persist_ratio"]),
        shows_as=shows_as,
    )
    shares = (kind.hang_ratio, kind.persist_ratio, *(share for _, share in shows_as))
    if kind.count < 1 or any(not 0.0 <= share <= 1.0 for share in shares):
        raise ValueError(f"catalogue/{TABLE}: {name} has a count below 1 or a share outside 0..1")
    if shows_as and abs(sum(share for _, share in shows_as) - 1.0) > _SUM_TOLERANCE:
        raise ValueError(f"catalogue/{TABLE}: what {name} shows as adds up to something else than 1")
    return kind
