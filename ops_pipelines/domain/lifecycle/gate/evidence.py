"""What the gate is told and what it answers: evidence of updated nodes in, one verdict out. Values only.

How it is judged is `judge_wave`'s. Whoever gathers the evidence counts treated and untouched nodes by the same rules:
from a node's return on, an event that the same node repeats within a day once, what one cause did to many nodes once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.domain.lifecycle.gate.level_shift import NodeShift, node_shift


class EventKind(Enum):
    """What is counted on nodes at work; each has a rate per node-day."""

    NODE_FAILURE = "node_failure"
    """What ended a job, or took the node out."""
    XID = "xid"
    ECC = "ecc"
    LINK = "link"
    JOB_FAILURE = "job_failure"


class LevelKind(Enum):
    """What is measured of nodes at work, each against its own past."""

    STEP_TIME = "step_time"
    """Seconds of a training step; more is worse."""
    BANDWIDTH = "bandwidth"
    """Bytes per second; less is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounts:
    """How often something happened, on updated nodes since their return, and where nothing was changed."""

    kind: EventKind
    treated_count: int
    treated_node_days: float
    """Node-days at work since the return, of all updated nodes."""
    control_count: int
    control_node_days: float
    """Nodes that were not touched, in the same time."""
    own_count: int
    own_node_days: float
    """The treated nodes before they were touched."""
    treated_nodes: frozenset[NodeName] = frozenset()
    """The nodes that `treated_count` was seen on."""
    past_count: int = 0
    past_node_days: float = 0.0
    """All nodes of the release before the rollout began."""

    def __post_init__(self) -> None:
        counts = (self.treated_count, self.control_count, self.own_count, self.past_count)
        spans = (self.treated_node_days, self.control_node_days, self.own_node_days, self.past_node_days)
        if min(*counts, *spans) < 0:
            raise ValueError(f"{self.kind.value}: counts {counts} in {spans} node-days; none may be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseCounts:
    """How often diagnosis found one and the same cause, on updated nodes since their return and on untouched ones.

    Of a node's own part only: what a program does wrong shows on all nodes of its job, whatever they run.
    """

    cause: str
    """In words that are the same on every node."""
    treated_nodes: frozenset[NodeName]
    treated_node_days: float
    control_count: int
    control_node_days: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSamples:
    """What one updated node measured, a value a run, before it was touched and since; like runs only.

    Each node of which it is measured at all stands here, with nothing under `after` as long as it has not run.
    """

    kind: LevelKind
    node: NodeName
    before: tuple[float, ...]
    after: tuple[float, ...]
    moved: NodeShift | None = field(init=False, repr=False, compare=False)
    """The sums of both, made once: the gate is asked far more often than a run ends. None: nothing is comparable."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "moved", node_shift(self.before, self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlShift:
    """By which ratio untouched nodes moved against their own past in the same time; 0.0: not at all."""

    kind: LevelKind
    shift_ratio: float
    node_count: int
    """How many of them were measured."""
    weight: float | None = None
    """How many runs against a known past it is worth: the fewer, the less it is believed. None: one of each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTry:
    """What came of the update of one node itself: install, activation, running version, tests."""

    node: NodeName
    model: str
    is_good: bool
    signature: str = ""
    """Of a failure: the stage and what was said, without what differs from node to node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEvidence:
    """Everything that the gate judges on, at one instant."""

    at: datetime
    tries: tuple[UpdateTry, ...]
    counts: tuple[EventCounts, ...]
    levels: tuple[LevelSamples, ...]
    shifts: tuple[ControlShift, ...] = ()
    causes: tuple[CauseCounts, ...] = ()
    soaks: Mapping[NodeName, timedelta]
    """How long each node of the present wave that runs the new version has worked since its return, under jobs: one
    that stood idle has zero. Empty: no node of the wave came well."""
    soak_began_at: datetime | None = None
    """When the last node of the wave was updated; None: not yet."""


class VerdictKind(Enum):
    GOOD = "good"
    """Everything that the release claims to find was looked for, and is not there."""
    UNDECIDED = "undecided"
    """Go on looking; the wave may not end yet."""
    STOP = "stop"
    """Something is there: go back."""
    ASK = "ask"
    """The time is over and nothing is decided: people must say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestLine:
    """One test as a person reads it in the table of the gate."""

    __test__ = False

    name: str
    state: VerdictKind
    said: str
    """Counts or levels, the likelihood ratio, and what would decide it."""
    evidence_ratio: float
    """How many times likelier the evidence is if the release is bad, in natural logarithm; 0.0: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate says of a wave, and why."""

    kind: VerdictKind
    reason: str
    tests: tuple[TestLine, ...]
    decides_by: datetime | None = None
    """When it must have decided; then it asks."""
