"""What the gate is given and what it answers; by how much levels moved, each node against its own past.

Whether a shift is too large is `levels`' to say.

How it is judged is `judge_wave`'s. Whoever gathers the evidence counts treated and untouched nodes by the same rules:
from a node's return on, an event that the same node repeats within a day once, what one cause did to many nodes once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from operator import mul
from statistics import median

from ops_pipelines.core.identity import NodeName

# -- by how much levels moved, each node against its own past --


USUAL_SPREAD_RATIO = 0.03
"""# Assumption: runs of the same work repeat to three percent."""
_WORTH_RUN_COUNT = 10
"""So many runs that assumption is worth beside those that were seen: ten of one node say little of their spread."""
_LEAST_SPREAD_RATIO = 0.005
"""# Assumption: no clock and no program repeats itself better than to half a percent."""
_MOST_TIMES_USUAL = 9.0
"""A node whose runs vary more than this (in variance) against the middle node is broken in its own way."""
_FAR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShift:
    """One node's runs, as the sums that everything is made of."""

    freedom: int
    """Runs before, less the one that their mean takes."""
    squares: float
    """Of what the runs before differ from their mean, as shares of it."""
    after_count: int
    weight: float
    """How many runs against a known past it is worth: 1 / (1 / before + 1 / after)."""
    shift: float
    """Mean after against mean before; 0.0: not moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """By how much levels moved against their own past, and how well that is known."""

    mean: float
    variance: float
    run_count: int
    """Runs since, of all nodes."""
    node_count: int
    weight: float
    """How many runs against a known past it is worth."""


def node_shift(before: Sequence[float], after: Sequence[float]) -> NodeShift | None:
    """Return one node against itself; None where nothing is comparable."""
    before_count, after_count = len(before), len(after)
    if before_count < 2 or not after_count:
        return None
    usual = sum(before) / before_count
    if usual <= 0:
        return None
    return NodeShift(
        freedom=before_count - 1,
        squares=max(0.0, sum(map(mul, before, before)) / usual**2 - before_count),
        after_count=after_count,
        weight=before_count * after_count / (before_count + after_count),
        shift=sum(after) / after_count / usual - 1,
    )


def spread_squared(nodes: Sequence[NodeShift]) -> float:
    """Return the variance from run to run, over all nodes, from the runs before they were touched."""
    if not nodes:
        return USUAL_SPREAD_RATIO**2
    usual = median([each.squares / each.freedom for each in nodes])
    most = _MOST_TIMES_USUAL * max(usual, USUAL_SPREAD_RATIO**2)
    squares = math.fsum(min(each.squares, most * each.freedom) for each in nodes)
    freedom = sum(each.freedom for each in nodes)
    seen = (squares + _WORTH_RUN_COUNT * USUAL_SPREAD_RATIO**2) / (freedom + _WORTH_RUN_COUNT)
    return max(seen, _LEAST_SPREAD_RATIO**2)


def common_shift(nodes: Sequence[NodeShift], *, spread: float, bad_shift: float, usual: float = 0.0) -> Shift | None:
    """Return the shift of all nodes together against `usual`, given the variance from run to run; None of no nodes.

    A node counts at most as one that is clearly bad, so that a single broken one cannot speak for the others.
    """
    if not nodes:
        return None
    most = bad_shift + _FAR * math.sqrt(spread)
    # Exact sums: the order of the nodes must not matter, not even in the last digit.
    weight = math.fsum([each.weight for each in nodes])
    moved = math.fsum([each.weight * _at_most((1 + each.shift) / (1 + usual) - 1, most) for each in nodes])
    return Shift(
        mean=moved / weight,
        variance=spread / weight,
        run_count=sum([each.after_count for each in nodes]),
        node_count=len(nodes),
        weight=weight,
    )


def untouched_shift(nodes: Sequence[NodeShift]) -> Shift | None:
    """Return by how much untouched nodes moved, however far all of them did together; None of no nodes."""
    if not nodes:
        return None
    middle = median([each.shift for each in nodes])
    around = common_shift(nodes, spread=spread_squared(nodes), bad_shift=0.0, usual=middle)
    return around and replace(around, mean=(1 + middle) * (1 + around.mean) - 1)


def _at_most(shift: float, most: float) -> float:
    if -most <= shift <= most:
        return shift
    return math.copysign(most, shift)


# -- what the gate is told and what it answers --


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
