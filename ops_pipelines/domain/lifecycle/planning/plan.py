"""What the planner returns: waves, when each is foreseen, what it costs, whom it touches; or why there is none.

Values only. Making one is `planner`'s; it is stored with the rollout, shown as `rollout_plan`, and approved by its id.
"""

from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.domain.identity import NodeName, PlanId
from ops_pipelines.domain.lifecycle.release import Change, Component, ReleaseName
from ops_pipelines.domain.lifecycle.rollout import Wave


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVisit:
    """When one node is foreseen to be out."""

    node: NodeName
    wave: int
    drained_at: datetime
    begins_at: datetime
    """When it is foreseen to be free of jobs, and is installed."""
    ends_at: datetime
    """When it is foreseen to work again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTouched:
    """When one team is touched, and by how much."""

    team: str
    nodes: tuple[NodeName, ...]
    gpu_count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedNode:
    node: NodeName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A rule that a release breaks: as such, which refuses it, or on some nodes, which are left out."""

    rule: str
    said: str
    """What was found, what the rule expects, what to do."""
    source: str
    component: Component | None = None
    nodes: tuple[NodeName, ...] = ()
    """The nodes concerned; empty: the release itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Everything that would be done, and what it is foreseen to cost."""

    plan: PlanId
    release: ReleaseName
    made_at: datetime
    waves: tuple[Wave, ...]
    visits: tuple[PlannedVisit, ...]
    skipped: tuple[SkippedNode, ...]
    starts_at: datetime
    finishes_at: datetime | None
    """None: the windows that are known do not suffice."""
    lost_gpu_hours: float
    """GPUs that do no work: from the last job's end to the return, and canary tests."""
    teams: tuple[TeamTouched, ...]
    one_way: tuple[Change, ...] = ()
    """What cannot go back: each alone in its wave, each needs a yes."""
    left_out: tuple[NodeName, ...] = ()
    """Planned, and yet not foreseen to be updated: their jobs outlast the limit each time that they are tried."""
    warnings: tuple[str, ...] = ()
