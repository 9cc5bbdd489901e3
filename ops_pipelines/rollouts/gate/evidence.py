"""What the gate is given and returns, and by what its tests are judged. Pure mathematics.

Evidence counts treated and untouched nodes by the same rules: from a node's return on, an event that the same node
repeats within a day once, what one cause did to many nodes once. The tests are `measures`', the verdict `judge_wave`'s.

Each ratio is ln(P(evidence | bad) / P(evidence | as ever)). It is a martingale where nothing is wrong, so that the
chance that it ever reaches ln(1/a) is at most a (Ville): looking again costs nothing.

Longer than most: values and the mathematics that they are judged by are read together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from operator import mul
from statistics import NormalDist, median

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Claims

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


# -- what the gate is given and what it returns --


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

    Each node of which it is measured at all is here, with nothing under `after` as long as it has not run.
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
    """Of a failure: the stage and what was reported, without what differs from node to node."""


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
    """Continue looking; the wave may not end yet."""
    STOP = "stop"
    """Something is there: roll back."""
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
class GateVerdict:
    """What the gate says of a wave, and why."""

    kind: VerdictKind
    reason: str
    tests: tuple[TestLine, ...]
    decides_by: datetime | None = None
    """When it must have decided; then it asks."""


# -- likelihood ratios that may be looked at after every observation --


_STANDARD = NormalDist()
_KNOWN_WELL = 1e6
_NEGLIGIBLE = 1e-18


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What is known of a rate: as if `count` events (a share of one may do) had been seen in `exposure`."""

    count: float
    exposure: float

    def __post_init__(self) -> None:
        if self.count <= 0 or self.exposure <= 0:
            raise ValueError(f"a rate of {self.count:g} events in {self.exposure:g} is not known; both must be above 0")

    @property
    def mean(self) -> float:
        return self.count / self.exposure

    def times(self, factor: float) -> "Rate":
        """Return a rate that is `factor` times as high, and known as well."""
        return Rate(count=self.count, exposure=self.exposure / factor)


def known_rate(mean: float) -> Rate:
    """Return a rate that is known as if a million events had been seen."""
    return Rate(count=_KNOWN_WELL, exposure=_KNOWN_WELL / mean)


def failures_ratio(failed_count: int, try_count: int, *, usual: float, bad: float) -> float:
    """Return the ratio for tries that fail with the probability `bad` against `usual`."""
    good_count = try_count - failed_count
    return failed_count * math.log(bad / usual) + good_count * math.log((1 - bad) / (1 - usual))


def chance_that_failures_stop(try_count: int, *, truth: float, usual: float, bad: float, stop_at: float) -> float:
    """Return the chance that `failures_ratio` reaches `stop_at` within so many tries that fail with the chance `truth`.

    Exact, and below Ville's bound: failures are whole, and mostly overshoot.
    """
    chances, stopped = {0: 1.0}, 0.0
    for number in range(1, try_count + 1):
        after: dict[int, float] = {}
        for failed, chance in chances.items():
            after[failed] = after.get(failed, 0.0) + chance * (1 - truth)
            after[failed + 1] = after.get(failed + 1, 0.0) + chance * truth
        chances = {}
        for failed, chance in after.items():
            if failures_ratio(failed, number, usual=usual, bad=bad) >= stop_at:
                stopped += chance
            elif chance > _NEGLIGIBLE:
                chances[failed] = chance
    return stopped


def events_ratio(count: int, exposure: float, *, usual: Rate, bad: Rate) -> float:
    """Return the ratio for events that come at the rate `bad`, against `usual`.

    Each rate is itself only known from what was counted: the likelihoods are means over the gamma distribution that
    this count leaves. With much counted it is the ratio of two Poisson distributions. Where all of it was counted on
    others in the same time and `bad` is a multiple of it, it is that of the share of events that fell on the treated,
    whatever the rate was; it then grows with each event.
    """
    if exposure <= 0:
        return 0.0
    return _log_chance(count, exposure, bad) - _log_chance(count, exposure, usual)


def mean_ratio(ratios: Sequence[float]) -> float:
    """Return the ratio for "one of several, each as likely": as good a martingale as each of them."""
    highest = max(ratios)
    return highest + math.log(sum(math.exp(each - highest) for each in ratios) / len(ratios))


def chance_of_at_least(count: int, exposure: float, *, usual: Rate) -> float:
    """Return the chance of so many events in `exposure`, the rate known as well as `usual` says."""
    if count <= 0:
        return 1.0
    if exposure <= 0:
        return 0.0
    expected = usual.mean * exposure
    if count > expected:
        return _sum_from(count, exposure, usual, upwards=True)
    return max(0.0, 1.0 - _sum_from(count - 1, exposure, usual, upwards=False))


def count_that_stops(exposure: float, *, usual: Rate, false_stop: float) -> int:
    """Return the smallest count that comes with a chance of at most `false_stop` where nothing is wrong."""
    low, high = 0, max(8, 2 * math.ceil(usual.mean * exposure))
    while chance_of_at_least(high, exposure, usual=usual) > false_stop:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if chance_of_at_least(middle, exposure, usual=usual) > false_stop:
            low = middle
        else:
            high = middle
    return high


def shift_ratio(shift: float, variance: float, *, bad_shift: float) -> float:
    """Return the ratio for a mean that is shifted by `bad_shift` against one that is not; both in the same unit."""
    return (shift * bad_shift - bad_shift**2 / 2) / variance


def power_of_shift(variance: float, *, bad_shift: float, false_stop: float) -> float:
    """Return the chance that a shift is found by one look at a mean of this variance."""
    limit = _STANDARD.inv_cdf(1 - false_stop)
    return 1 - _STANDARD.cdf(limit - bad_shift / math.sqrt(variance))


def power_of_shift_ratio(variance: float, *, bad_shift: float, at_least: float) -> float:
    """Return the chance that `shift_ratio` is `at_least` so high when everything is shifted by `bad_shift`."""
    away = bad_shift / math.sqrt(variance)
    return _STANDARD.cdf(away / 2 - at_least / away)


def shift_that_is_found(variance: float, *, false_stop: float, power: float) -> float:
    """Return which shift one look at a mean of this variance finds with this power."""
    return math.sqrt(variance) * (_STANDARD.inv_cdf(1 - false_stop) + _STANDARD.inv_cdf(power))


def chance_of_shift(shift: float, variance: float) -> float:
    """Return the chance of a shift at least as large where there is none."""
    return 1 - _STANDARD.cdf(shift / math.sqrt(variance))


def _sum_from(count: int, exposure: float, usual: Rate, *, upwards: bool) -> float:
    """Return the chances of `count` and of all above or below it, until they no longer matter.

    From the far side of the mean, so that the terms fall from the first on and none of them is too small to write.
    """
    seen, share = usual.count, exposure / (usual.exposure + exposure)
    term = math.exp(_log_chance(count, exposure, usual))
    total, number = 0.0, count
    while term > _NEGLIGIBLE * total or total == 0.0:
        total += term
        if term == 0.0 or (number == 0 and not upwards):
            break
        if upwards:
            term *= share * (seen + number) / (number + 1)
            number += 1
        else:
            term *= number / (share * (seen + number - 1))
            number -= 1
    return min(1.0, total)


def _log_chance(count: int, exposure: float, rate: Rate) -> float:
    """Return the logarithm of the chance of just so many events: negative binomial."""
    seen = rate.count
    return (
        math.lgamma(seen + count)
        - math.lgamma(seen)
        - math.lgamma(count + 1)
        - seen * math.log1p(exposure / rate.exposure)
        + count * (math.log(exposure) - math.log(rate.exposure + exposure))
    )


# -- by what the tests of the gate are judged --


MISS = 0.003
"""The chance that a test clears a release early that is as bad as claimed."""
LEAST_POWER = 0.9
"""At the last look a test that would have found less often what is looked for has decided nothing."""
SUSPICIOUS_AT = math.log(5)
"""A wave that need not decide waits where the evidence speaks so loudly against it: four nodes with two runs each are
as loud when steps are 5 % slower, 19 times of 20."""
AGAINST_AT = math.log(200)
"""At the last look nothing passes against which the evidence speaks louder. What passes below it is carried on: the
next wave begins with it, and little more stops that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """By what the lines of one look are judged."""

    claims: Claims
    """What is looked for now."""
    is_deciding: bool
    """Whether it must have been looked for; else nothing must speak against the wave."""
    stops_for: tuple[Claims, ...] = ()
    """What a release is stopped for in any look, from the first node to the last: one mixture, so that what is looked
    for in one wave and no longer in the next adds no false stop. Empty: what is looked for now."""
    is_held: bool = True
    """Whether a suspicion holds the wave."""
    is_last_look: bool = False
    last_look_share: float = 1.0
    """Of what last looks may stop falsely: several waves of a rollout may come to one."""

    @property
    def alternatives(self) -> tuple[Claims, ...]:
        """What the evidence for a stop is spread over."""
        return self.stops_for or (self.claims,)

    @property
    def good_at(self) -> float:
        """The ratio below which a line is good."""
        if self.is_deciding:
            return math.log(MISS)
        return SUSPICIOUS_AT if self.is_held else math.inf


NAMES: Mapping[EventKind | LevelKind, str] = {
    EventKind.NODE_FAILURE: "node failures",
    EventKind.XID: "Xids",
    EventKind.ECC: "memory errors",
    EventKind.LINK: "link errors",
    EventKind.JOB_FAILURE: "failed jobs",
    LevelKind.STEP_TIME: "step time",
    LevelKind.BANDWIDTH: "bandwidth",
}


def state_of(ratio: float, standard: Standard, *, against: float, now: float, stops_at: float) -> VerdictKind:
    """Return what the evidence says before the last look.

    `ratio` is for all that is stopped for together, `now` for what is looked for now. `against` is for the rate or the
    shift that is looked for, however badly it is known what is usual: that says whether it is good.
    """
    if ratio >= stops_at:
        return VerdictKind.STOP
    is_good = against <= standard.good_at and now <= max(standard.good_at, SUSPICIOUS_AT)
    return VerdictKind.GOOD if is_good else VerdictKind.UNDECIDED


def evidence_said(ratio: float, standard: Standard, *, stops_at: float) -> str:
    """Return a ratio in words, and what would decide it."""
    good = "" if math.isinf(standard.good_at) else f", good at {standard.good_at:.1f}"
    return f"evidence {ratio:+.1f}, stops at {stops_at:.1f}{good}"


def nothing_known(name: str, said: str) -> TestLine:
    """Return the line of what was not looked for: never good."""
    return TestLine(name=name, state=VerdictKind.UNDECIDED, said=said, evidence_ratio=0.0)
