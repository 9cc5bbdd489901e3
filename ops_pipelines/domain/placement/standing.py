"""What placement is judged by: nodes and where they stand, who held them from when until when, what took them away.

Values only. How rows of the lake become these is `frames.placement`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.proposal import TeamName

_SLACK = 1e-6
"""GPUs: accounting shares them out among nodes by division."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node that may be given to jobs."""

    node: NodeName
    place: Place
    gpu_count: int
    cpu_count: int | None = None
    """None: nobody tells."""
    memory_bytes: float | None = None
    partitions: frozenset[str] | None = None
    """None: nobody tells; empty: it is in none, so that no job can ask for it."""

    def __post_init__(self) -> None:
        if self.gpu_count < 0:
            raise ValueError(f"{self.node} has {self.gpu_count} GPUs; expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One attempt of a job, and what it held of which node. Name and user are the user's text."""

    job: str
    name: str
    user: str
    team: TeamName
    partition: str
    began_at: datetime
    ended_at: datetime | None
    """None: it runs still, as far as is known."""
    gpus: Mapping[NodeName, float]
    """Node -> GPUs that it held there; nodes that cluster.yaml does not name are not among them."""
    cpus_per_node: float | None = None
    memory_bytes_per_node: float | None = None
    time_limit_seconds: float | None = None
    """None: no limit, or nobody tells."""

    @property
    def gpu_count(self) -> float:
        return sum(self.gpus.values())

    @property
    def key(self) -> tuple[str, datetime]:
        return self.job, self.began_at


class Away(Enum):
    """Why a node takes no new job. Of several that hold, the first here counts."""

    DOWN = "down"
    DRAINED = "drained"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A node takes no new job for a while; whoever runs there goes on."""

    node: NodeName
    why: Away
    since: datetime
    until: datetime | None
    """None: it lasts."""
    cause: str = ""
    """As the source says it: the reservation's name, the drain's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One job waited, or waits, for its start. Name and user are the user's text."""

    job: str
    name: str
    user: str
    team: TeamName
    partition: str
    gpu_count: float
    node_count: int
    since: datetime
    """When it could first have started."""
    until: datetime | None
    """When it started; None: it waits still."""
    reason: str = ""
    """As the scheduler last said it; empty: not told."""
    is_for_room: bool = True
    """Whether it waits for GPUs, and not for a limit of its own, another job or its hour."""
    time_limit_seconds: float | None = None

    def seconds(self, now: datetime) -> float:
        """Return how long it waited, up to `now` if it waits still."""
        return max(0.0, ((self.until or now) - self.since).total_seconds())


def whole(gpus: float) -> int:
    """Return how many whole GPUs that is."""
    return int(gpus + _SLACK)


def needed(gpus: float) -> int:
    """Return how many whole GPUs hold that much: at least one."""
    return max(1, -int(-(gpus - _SLACK) // 1))
