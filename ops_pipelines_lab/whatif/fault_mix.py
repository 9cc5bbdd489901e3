"""What breaks, how often and how it behaves: catalogue/fault_mix.csv as values, with the scenario around each mix; the
faults that strike one job; and one fault that is somewhere in the job, with what happens when.

Counts are published; the share that hangs, the share that comes again and the evidence that each class shows are
assumptions, marked so in the table and swept by `sensitivity`. The faults of a job are the same for every policy under
one seed, so that differences are the policies'.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files

import numpy as np

from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines_lab.whatif.measured import Classification, Sign

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


_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault: how long the job runs before it, and how it behaves."""

    gap_seconds: float
    """Running time since the strike before, or since the begin."""
    kind: FaultKind
    is_hang: bool
    persists: bool
    """Comes again if the part stays in the job."""
    seat: float
    """Which node of the job it hits, 0..1."""


def strikes(scenario: Scenario, seed: int) -> Iterator[Strike]:
    """Yield strikes without end. A Poisson process over running time; classes by their counts."""
    random = np.random.default_rng([seed, 1])
    counts = np.array([kind.count for kind in scenario.kinds], dtype=np.float64)
    bounds = np.cumsum(counts / counts.sum())
    while True:
        gaps = random.exponential(scenario.mean_gap_seconds, _AT_ONCE)
        draws = random.random((_AT_ONCE, 4))
        for gap, (which, hang, persist, seat) in zip(gaps.tolist(), draws.tolist(), strict=True):
            place = min(int(np.searchsorted(bounds, which, side="right")), len(bounds) - 1)
            kind = scenario.kinds[place]
            yield Strike(
                gap_seconds=gap,
                kind=kind,
                is_hang=hang < kind.hang_ratio,
                persists=persist < kind.persist_ratio,
                seat=seat,
            )


class Event(Enum):
    """What happens at a time of day, whether the job works or not."""

    EVIDENCE = "evidence"
    """What a fault shows reaches the decision."""
    LOOK = "look"
    """An incident that waits is looked at again."""
    YES = "yes"
    """A person has approved a plan."""
    HOLD = "hold"
    """A plan is about to interrupt the job."""
    LAUNCH = "launch"
    """The job's own launcher puts it back into the queue, or leaves it to people."""
    PASSED = "passed"
    """A fault that does not come again is forgotten."""
    NOTICED = "noticed"
    """Somebody has seen for himself that the job is slow or computes garbage."""
    PERSON = "person"
    """Who was called has looked."""
    REPAIRED = "repaired"


@dataclass(slots=True, kw_only=True, eq=False)
class Trouble:
    """One fault, from its first strike until it is out of the job."""

    strike: Strike
    node: NodeName | None
    """None of a program's own: no node is at fault."""
    fault_class: str
    """As the diagnosis was measured on; `nothing` where it shows nothing."""
    verdict: Classification
    """What the diagnosis makes of it: drawn once, for what it misses today it misses again tomorrow."""
    is_wide: bool = False
    """Whether it reaches beyond the standby nodes."""
    failure_count: int = 1
    until_next: float = math.inf
    """Working time of the job until it strikes again."""
    is_person_called: bool = False
    is_over: bool = False

    @property
    def recurs(self) -> bool:
        """Whether it troubles the job again, or continues to, unless it is taken out."""
        return self.strike.persists or self.strike.kind.silent is not None

    @property
    def is_of_switch(self) -> bool:
        return self.fault_class == "leaf_switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that happens at a time of day."""

    at: float
    event: Event
    trouble: Trouble | None = None
    signs: tuple[Sign, ...] = ()
    plan: IncidentPlan | None = None
    incident: IncidentId | None = None
    stop: int = 0
    """Of a launch: the stop of the job that it follows."""
    nodes: tuple[NodeName, ...] = ()
    """Of evidence: where it is seen; of a repair: what comes back."""
