"""Who is a lemon: a node or GPU that is in trouble more often than the fleet's own rate would give, with the reasons.

Each signal is compared with what the rest of the fleet sees in the same time: a Poisson tail says how surprising the
count is, a gamma-Poisson mean how much more often it is, pulled towards the fleet where little was seen. The signals
are those that Meta found to tell its lemons (arXiv 2410.21680). Counting them is the caller's business; that the same
fault repeats on one part is `history`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.observe.repeated import PartKey

SOURCE = "Meta RSC-1 and RSC-2, arXiv 2410.21680: signals of lemon nodes"
PRIOR_EVENTS = 2.0
"""# Assumption: the fleet's rate weighs as much as this many expected events of the part's own."""
FALSE_DISCOVERY_RATE = 0.01
"""Of the parts called lemons, at most this share in the mean are not (Benjamini-Hochberg over the fleet)."""
MIN_COUNT = 3
"""# Assumption: fewer events of one signal are bad luck, however rare they are elsewhere."""
_MIN_FLEET = 3
"""Fewer parts are no fleet to be compared with."""


class LemonSignal(Enum):
    """What is counted; each word is Meta's name of it."""

    EXCLUDED_BY_JOBS = "excl_jobid_count"
    """Jobs whose owners asked not to run there."""
    XIDS = "xid_cnt"
    """Xids that are no program's fault, bursts counted once."""
    TICKETS = "tickets"
    """Incidents with the part as their culprit."""
    OUT_OF_SERVICE = "out_count"
    """Times it was taken out of service."""
    MULTI_NODE_FAILURES = "multi_node_node_fails"
    """Jobs of several nodes that it ended."""
    SINGLE_NODE_FAILURES = "single_node_node_fails"
    """Jobs of one node that it ended."""
    FAILURE_RATE = "single_node_node_failure_rate"
    """The same, for each single-node job that ran there."""


WEIGHTS: Mapping[LemonSignal, float] = {
    LemonSignal.EXCLUDED_BY_JOBS: 0.5,
    LemonSignal.XIDS: 1.0,
    LemonSignal.TICKETS: 1.0,
    LemonSignal.OUT_OF_SERVICE: 1.0,
    LemonSignal.MULTI_NODE_FAILURES: 1.0,
    LemonSignal.SINGLE_NODE_FAILURES: 0.5,
    LemonSignal.FAILURE_RATE: 0.5,
}
"""# Assumption: a job's wish is hearsay; the two counts of single-node failures are one fact reported twice."""
_WORDS = {
    LemonSignal.EXCLUDED_BY_JOBS: "excluded by {count} job(s)",
    LemonSignal.XIDS: "{count} Xid event(s)",
    LemonSignal.TICKETS: "culprit of {count} incident(s)",
    LemonSignal.OUT_OF_SERVICE: "{count} time(s) out of service",
    LemonSignal.MULTI_NODE_FAILURES: "ended {count} job(s) of several nodes",
    LemonSignal.SINGLE_NODE_FAILURES: "ended {count} job(s) of one node",
    LemonSignal.FAILURE_RATE: "{count} of its {exposure:.0f} single-node jobs ended by it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleCounts:
    """What happened to one part in a window, and for how long it was there to be hit."""

    part: PartKey
    days: float
    """Days in service within the window: since it was installed, where that is later than the window's beginning."""
    counts: Mapping[LemonSignal, int] = field(default_factory=dict)
    """A signal that is missing was not measured; one that was measured and did not occur is 0."""
    single_node_job_count: int = 0
    """Single-node jobs that ran there: the exposure of FAILURE_RATE."""
    node: NodeName | None = None
    """Where a GPU is now."""

    def exposure(self, signal: LemonSignal) -> float:
        return float(self.single_node_job_count) if signal is LemonSignal.FAILURE_RATE else self.days


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalExcess:
    """One signal of one part against the rest of its fleet."""

    signal: LemonSignal
    count: int
    expected: float
    """What the rate of the others would have given."""
    ratio: float
    """How much more often, pulled towards 1 where little was seen."""
    p_value: float
    """How likely so many or more are, if the part is like the others."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonScore:
    """How much of a lemon one part is."""

    part: PartKey
    node: NodeName | None
    score: float
    """Weighted doublings over the fleet: 0 for a part like the others; signals are added."""
    confidence: float
    """1 - the share of false calls that come with calling it, and all that look worse, a lemon; 0: nothing known."""
    is_lemon: bool
    reasons: tuple[str, ...]
    """Strongest first; empty where nothing is out."""
    excesses: tuple[SignalExcess, ...]


def score_lemons(
    fleet: Iterable[TroubleCounts], *, false_discovery_rate: float = FALSE_DISCOVERY_RATE, min_count: int = MIN_COUNT
) -> tuple[LemonScore, ...]:
    """Return the score of every part, worst first. Compare like with like: nodes with nodes, GPUs with GPUs.

    Raises ValueError if a part is counted twice. A fleet of fewer than three parts has no lemons.
    """
    parts = sorted(fleet, key=lambda each: each.part)
    if len({each.part for each in parts}) != len(parts):
        raise ValueError("a part is counted twice; expected one TroubleCounts a part")
    totals = {signal: _Total.of(parts, signal) for signal in LemonSignal}
    excesses = [tuple(_excesses(each, totals)) for each in parts]
    p_values = [_smallest(each) for each in excesses]
    q_values = benjamini_hochberg(p_values)
    scores = [
        _score(part, found, q_value=q, false_discovery_rate=false_discovery_rate, min_count=min_count)
        for part, found, q in zip(parts, excesses, q_values, strict=True)
    ]
    return tuple(sorted(scores, key=lambda each: (not each.is_lemon, -each.score, each.part)))


@dataclass(frozen=True, slots=True)
class _Total:
    """A signal over all parts that measure it."""

    count: int
    exposure: float
    part_count: int

    @classmethod
    def of(cls, parts: Sequence[TroubleCounts], signal: LemonSignal) -> "_Total":
        measured = [each for each in parts if signal in each.counts and each.exposure(signal) > 0]
        count = sum(each.counts[signal] for each in measured)
        return cls(count, math.fsum(each.exposure(signal) for each in measured), len(measured))


def _excesses(part: TroubleCounts, totals: Mapping[LemonSignal, _Total]) -> Iterable[SignalExcess]:
    for signal, count in part.counts.items():
        total, exposure = totals[signal], part.exposure(signal)
        others = total.exposure - exposure
        if exposure <= 0 or others <= 0 or total.part_count < _MIN_FLEET:
            continue
        # The others' rate, not everybody's: a lemon must not raise the bar that it is measured by. Half an event more,
        # since a fleet that has not seen it yet is no proof that it cannot happen.
        expected = (total.count - count + 0.5) / others * exposure
        p_value = poisson_tail(count, expected)
        yield SignalExcess(
            signal=signal,
            count=count,
            expected=expected,
            ratio=(count + PRIOR_EVENTS) / (expected + PRIOR_EVENTS),
            p_value=p_value,
            reason=_reason(signal, part, count=count, expected=expected, p_value=p_value),
        )


def _reason(signal: LemonSignal, part: TroubleCounts, *, count: int, expected: float, p_value: float) -> str:
    happened = _WORDS[signal].format(count=count, exposure=part.exposure(signal))
    return f"{happened} in {part.days:.0f} days; the others' rate gives {expected:.2g} (p {p_value:.1g})"


def _smallest(excesses: Collection[SignalExcess]) -> float:
    """Return the smallest p-value times how many were looked at: holds however the signals depend on each other."""
    return min((min(1.0, each.p_value * len(excesses)) for each in excesses), default=1.0)


def _score(
    part: TroubleCounts,
    excesses: Sequence[SignalExcess],
    *,
    q_value: float,
    false_discovery_rate: float,
    min_count: int,
) -> LemonScore:
    raised = sorted((each for each in excesses if each.ratio > 1), key=lambda each: (each.p_value, each.signal.value))
    telling = [each for each in raised if each.count >= min_count]
    return LemonScore(
        part=part.part,
        node=part.node,
        score=sum(WEIGHTS[each.signal] * math.log2(each.ratio) for each in raised),
        confidence=1.0 - q_value,
        is_lemon=q_value <= false_discovery_rate and _smallest_is_telling(telling, raised),
        reasons=tuple(each.reason for each in raised if each.p_value <= 0.05),
        excesses=tuple(excesses),
    )


def _smallest_is_telling(telling: Sequence[SignalExcess], raised: Sequence[SignalExcess]) -> bool:
    return bool(telling) and telling[0] is raised[0]


# -- counting -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One event that counts against a node, and against the GPU that it was on."""

    signal: LemonSignal
    node: NodeName
    at: datetime
    gpu: PartKey | None = None
    """None where it is the node's as a whole, or nobody knows which GPU it was."""
    job: JobId | None = None
    """The job that reported so, where several may say it at once; None elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A part in service at a node; a node stays at itself."""

    part: PartKey
    node: NodeName
    since: datetime
    until: datetime | None
    """Half-open; None: it is there still."""


def count_troubles(
    troubles: Iterable[Trouble],
    stays: Iterable[Stay],
    *,
    measured: Collection[LemonSignal],
    since: datetime,
    until: datetime,
    single_node_jobs: Mapping[NodeName, int] | None = None,
) -> tuple[TroubleCounts, ...]:
    """Return the counts of every part that is in service at `until`, over [since, until), each event counted once.

    A GPU's troubles go with the GPU. A node answers for its own and for those of the GPUs that stand in it now: what a
    GPU did that was taken out since is no longer in the node.
    """
    listed = list(stays)
    days: dict[PartKey, float] = {}
    seat: dict[PartKey, NodeName] = {}
    for stay in listed:
        begin, end = max(stay.since, since), min(stay.until or until, until)
        days[stay.part] = days.get(stay.part, 0.0) + max(0.0, (end - begin).total_seconds() / 86_400)
        if stay.since <= until and (stay.until is None or stay.until >= until):
            seat[stay.part] = stay.node
    nodes = {node: part for part, node in seat.items() if part.name == node}
    counts = {part: dict.fromkeys(measured, 0) for part in seat}
    for trouble in sorted(
        {each for each in troubles if since <= each.at < until and each.signal in measured}, key=_trouble_order
    ):
        own = [trouble.gpu] if trouble.gpu is not None and trouble.gpu in seat else []
        is_gone = trouble.gpu is not None and seat.get(trouble.gpu) != trouble.node
        own += [nodes[trouble.node]] if trouble.node in nodes and not is_gone else []
        for part in own:
            counts[part][trouble.signal] += 1
    jobs = single_node_jobs or {}
    return tuple(
        TroubleCounts(
            part=part,
            days=days[part],
            counts=counts[part],
            single_node_job_count=jobs.get(seat[part], 0) if nodes.get(seat[part]) == part else 0,
            node=seat[part],
        )
        for part in sorted(seat)
    )


def _trouble_order(trouble: Trouble) -> tuple[datetime, str, str]:
    return trouble.at, trouble.node, trouble.signal.value


# -- how surprising -------------------------------------------------------------------------------------------------


def poisson_tail(count: int, expected: float) -> float:
    """Return the probability of `count` or more events where `expected` are expected."""
    from scipy.special import gammainc

    if count <= 0:
        return 1.0
    return float(gammainc(count, expected)) if expected > 0 else 0.0


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the q-value of each test: the least false discovery rate at which it still counts as found."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place], reverse=True)
    q_values = [1.0] * len(p_values)
    smallest = 1.0
    for rank, place in zip(range(len(order), 0, -1), order, strict=True):
        smallest = min(smallest, p_values[place] * len(order) / rank)
        q_values[place] = smallest
    return tuple(q_values)
