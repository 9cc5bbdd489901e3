"""The tests of the gate: those that count events, and those that measure step time and bandwidth.

What each may stop falsely is stated here: for up to two models all stay below one in five hundred together. What all
nodes share, updated or not, is taken off first.

Programs differ far more than versions do. So each run is a ratio to what the same program took on nodes that were not
touched; a program without such a run is compared with nothing. All ranks of a run wait for the slowest, so that its
nodes say one thing together: a run counts for one of its nodes.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Claims
from ops_pipelines.core.rollout import RolloutNode, Wave
from ops_pipelines.rollouts.engine import words_of
from ops_pipelines.rollouts.gate.evidence import (
    AGAINST_AT,
    LEAST_POWER,
    NAMES,
    ControlShift,
    EventCounts,
    GateEvidence,
    LevelKind,
    LevelSamples,
    NodeShift,
    Rate,
    Standard,
    TestLine,
    UpdateTry,
    VerdictKind,
    chance_of_at_least,
    chance_of_shift,
    common_shift,
    count_that_stops,
    events_ratio,
    evidence_said,
    failures_ratio,
    known_rate,
    mean_ratio,
    nothing_known,
    power_of_shift,
    shift_ratio,
    spread_squared,
    state_of,
    untouched_shift,
)
from ops_pipelines.rollouts.gate.seen_events import PAST, ComparedTimes, Times

ANY_FAILURE, ALIKE_FAILURE = (0.01, 0.5), (0.002, 0.2)
"""# Assumption: of a hundred updates one fails for reasons of its own node, of five hundred one in one particular way;
a bad release fails every second, or every fifth alike."""
ANY_STOPS_AT = math.log(2_400)
"""Of one model, two failures of the first two (2,500 times likelier); one never."""
ALIKE_STOPS_AT = math.log(20_000)
"""Of one reason, or of several models together, three of the first few."""

CAUSE_STOPS_AT = math.log(20_000)
CAUSE_TIMES = (10.0, 100.0, 1_000.0)
"""Nobody knows how often a cause comes that a release brings: as often as one of these, against before."""
FEW_NODES = 2
"""So many updated nodes with the same cause are no chance."""

EVENTS_FALSE_STOP, EVENTS_LAST_LOOK = 5e-5, 1.45e-3
"""Of all kinds of events together, in every look but the last, and in the last."""

USUAL_PER_NODE_DAY = 0.0065
"""6.5 failures per 1,000 node-days (Meta, revisiting reliability, 2025). Of any rate so much is known before anything
was counted, worth one event. What happens less often is looked for at the claimed multiple of this: thirty nodes cannot
show ten times almost nothing in a week."""
_PRIOR = Rate(count=1.0, exposure=1 / USUAL_PER_NODE_DAY)
_PAST_WORTH = 20.0
"""# Assumption: weeks differ by a fifth: however much was counted before, it says no more of this week than 20 events
would."""
CAUSE_PRIOR = Rate(count=1.0, exposure=20 / USUAL_PER_NODE_DAY)
"""# Assumption: of twenty failures one has a particular cause."""
_SURELY = 0.003
"""So seldom may chance explain that updated nodes were worse than others all along: a few nodes have a few bad weeks,
and taken for their nature these would hide a bad release."""


def update_lines(tries: Sequence[UpdateTry]) -> Iterator[TestLine]:
    """Judge updates that did not come well: over all and by model, whatever their reasons, and by each reason."""
    of_model: dict[str, list[UpdateTry]] = defaultdict(list)
    for each in tries:
        of_model[each.model].append(each)
    for model in sorted(of_model):
        name = f"updates of {model}" if len(of_model) > 1 else "updates"
        yield _line_of_all(name, of_model[model], stops_at=ANY_STOPS_AT)
    if len(of_model) > 1:
        yield _line_of_all("updates", tries, stops_at=ALIKE_STOPS_AT)
    alike: dict[str, int] = defaultdict(int)
    for each in tries:
        if not each.is_good and each.signature:
            alike[each.signature] += 1
    for signature in sorted(alike):
        if alike[signature] >= FEW_NODES:
            said = f"{alike[signature]} of {len(tries)} failed alike: {words_of(signature)}"
            yield _line_of_tries(
                "updates", said, alike[signature], len(tries), of=ALIKE_FAILURE, stops_at=ALIKE_STOPS_AT
            )


def _line_of_all(name: str, tries: Sequence[UpdateTry], *, stops_at: float) -> TestLine:
    failed_count = sum(not each.is_good for each in tries)
    said = f"{failed_count} of {len(tries)} did not come well"
    return _line_of_tries(name, said, failed_count, len(tries), of=ANY_FAILURE, stops_at=stops_at)


def _line_of_tries(
    name: str, said: str, failed: int, count: int, *, of: tuple[float, float], stops_at: float
) -> TestLine:
    ratio = failures_ratio(failed, count, usual=of[0], bad=of[1])
    return TestLine(
        name=name,
        state=VerdictKind.STOP if ratio >= stops_at else VerdictKind.GOOD,
        said=f"{said}; evidence {ratio:+.1f}, stops at {stops_at:.1f}",
        evidence_ratio=ratio,
    )


def cause_lines(evidence: GateEvidence) -> Iterator[TestLine]:
    """Judge what diagnosis found on updated nodes: one cause on several, and not on the others, stops by itself."""
    for each in sorted(evidence.causes, key=lambda found: found.cause):
        if len(each.treated_nodes) < FEW_NODES:
            continue
        usual = Rate(
            count=each.control_count + CAUSE_PRIOR.count, exposure=each.control_node_days + CAUSE_PRIOR.exposure
        )
        ratio = cause_ratio(len(each.treated_nodes), each.treated_node_days, usual=usual)
        names = ", ".join(sorted(each.treated_nodes)[:6])
        yield TestLine(
            name="common cause",
            state=VerdictKind.STOP if ratio >= CAUSE_STOPS_AT else VerdictKind.GOOD,
            said=f"{each.cause} on {len(each.treated_nodes)} updated nodes ({names}) in {each.treated_node_days:.1f} "
            f"node-days, {each.control_count} times in {each.control_node_days:.0f} on others; evidence {ratio:+.1f}, "
            f"stops at {CAUSE_STOPS_AT:.1f}",
            evidence_ratio=ratio,
        )


def cause_ratio(node_count: int, node_days: float, *, usual: Rate) -> float:
    """Return the ratio for a cause that comes much more often than usual, nobody knows by how much."""
    return mean_ratio([events_ratio(node_count, node_days, usual=usual, bad=usual.times(each)) for each in CAUSE_TIMES])


def usual_rate(counts: EventCounts) -> Rate:
    """Return how often it happens where nothing was changed: on other nodes in the same time, helped by the past.

    What strikes treated and untouched alike is in the control, and the past yields to it: wholly, where this time is
    surely worse than before. Nodes that were worse than
    the others before they were touched are expected to be so again: where their own past is surely above the others',
    it counts.
    """
    before = Rate(count=counts.past_count + _PRIOR.count, exposure=counts.past_node_days + _PRIOR.exposure)
    is_bad_time = counts.past_node_days > 0 and _is_surely_above(counts.control_count, counts.control_node_days, before)
    worth = min(before.count, _PRIOR.count if is_bad_time else _PAST_WORTH)
    usual = Rate(count=counts.control_count + worth, exposure=counts.control_node_days + worth / before.mean)
    # Their own past is compared with the same past of others where that is known, else with the control.
    like = before if counts.past_node_days > 0 else usual
    expected = like.mean * counts.own_node_days
    if not _is_surely_above(counts.own_count, counts.own_node_days, like):
        return usual
    # One event of each more: who is picked for having had many will have fewer.
    return usual.times((counts.own_count + 1) / (expected + 1))


def _is_surely_above(count: int, node_days: float, usual: Rate) -> bool:
    return count > usual.mean * node_days and chance_of_at_least(count, node_days, usual=usual) <= _SURELY


def bad_per_node_day(usual: float, *, before: float, claims: Claims) -> float:
    """Return the rate that is looked for: what is claimed, on top of what happens anyway.

    That is measured by the quieter of now and before, so that a bad week does not hide a bad release; and by no rate
    that is rarer than can be seen.
    """
    return usual + (claims.event_rate_ratio - 1) * max(min(usual, before), USUAL_PER_NODE_DAY)


def event_lines(counts: Sequence[EventCounts], standard: Standard) -> Iterator[TestLine]:
    """Judge each kind of event on updated nodes against the others."""
    if not counts and standard.is_deciding:
        yield nothing_known("events", "nobody counts what happens to the updated nodes")
    for each in counts:
        yield event_line(each, standard, kind_count=len(counts))


def event_line(counts: EventCounts, standard: Standard, *, kind_count: int) -> TestLine:
    """Judge one kind of event, of `kind_count` that share what they may stop falsely."""
    usual, exposure, seen = usual_rate(counts), counts.treated_node_days, counts.treated_count
    before = counts.past_count / counts.past_node_days if counts.past_node_days > 0 else math.inf

    def bad_rate(claims: Claims) -> Rate:
        return known_rate(bad_per_node_day(usual.mean, before=before, claims=claims))

    def ratio_for(*claimed: Claims) -> float:
        times = [factor for each in claimed for factor in (each.event_rate_ratio, bad_rate(each).mean / usual.mean)]
        return mean_ratio([events_ratio(seen, exposure, usual=usual, bad=usual.times(each)) for each in times])

    bad, ratio = bad_rate(standard.claims), ratio_for(*standard.alternatives)
    stops_at = math.log(kind_count / EVENTS_FALSE_STOP)
    # Whether it is good is asked of that rate itself, which is known also where nobody knows well what is usual.
    against = events_ratio(seen, exposure, usual=usual, bad=bad)
    state = state_of(ratio, standard, against=against, now=ratio_for(standard.claims), stops_at=stops_at)
    found = ""
    if state is VerdictKind.UNDECIDED and standard.is_last_look:
        false_stop = EVENTS_LAST_LOOK * standard.last_look_share / kind_count
        limit = count_that_stops(exposure, usual=usual, false_stop=false_stop)
        if seen >= limit:
            state = VerdictKind.STOP
        elif ratio <= AGAINST_AT and chance_of_at_least(limit, exposure, usual=bad) >= LEAST_POWER:
            state = VerdictKind.GOOD
        elif standard.is_deciding:
            times = rate_that_is_found(exposure, usual=usual, limit=limit)
            found = f"; so far {'nothing' if math.isinf(times) else f'{times:.2g}x'} is found nine times of ten"
    return TestLine(
        name=NAMES[counts.kind],
        state=state,
        said=f"{seen} in {exposure:.1f} node-days; untouched nodes would have had {usual.mean * exposure:.2g}, bad is "
        f"{bad.mean * exposure:.2g} ({bad.mean / usual.mean:.3g}x); "
        f"{evidence_said(ratio, standard, stops_at=stops_at)}{found}",
        evidence_ratio=ratio,
    )


_BEYOND_SIGHT = 1e6


def rate_that_is_found(exposure: float, *, usual: Rate, limit: int) -> float:
    """Return how many times the usual rate comes to `limit` events with LEAST_POWER; infinite where none would."""

    def is_found(times: float) -> bool:
        return chance_of_at_least(limit, exposure, usual=usual.times(times)) >= LEAST_POWER

    low, high = 1.0, 2.0
    while not is_found(high):
        low, high = high, 2 * high
        if high > _BEYOND_SIGHT:
            return math.inf
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


# -- runs of jobs, compared like with like --


MOST_NODES = 64
"""# Assumption: of so many updated nodes, and so many others, more runs say nothing new, and cost a pass its time."""
_ENOUGH_RUNS = 8
"""A node's own past of so many runs is known well: then other nodes get the next ones."""
_FEWEST_RUNS = 2
"""Of a program, and of a node's past, before anything is compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One attempt of one job, and how long its steps took."""

    program: tuple[str, ...]
    """What makes runs alike: who, what, on how many nodes."""
    job: str
    started_at: datetime
    nodes: frozenset[NodeName]
    value: float
    """Seconds of a step, over all nodes that reported."""
    of_nodes: Mapping[NodeName, float] = field(default_factory=dict)
    """The same of single nodes, where they tell it themselves."""

    def of(self, node: NodeName) -> float:
        """Return what a node measured; what the whole job did where the node says nothing itself."""
        return self.of_nodes.get(node, self.value)


@dataclass(slots=True, kw_only=True)
class _Past:
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)


def compared_nodes(
    nodes: Iterable[RolloutNode], times: ComparedTimes, *, present: Wave, waves: Sequence[Wave]
) -> tuple[frozenset[NodeName], frozenset[NodeName]]:
    """Return the updated and the untouched nodes whose runs are compared: canaries and the present wave first.

    Untouched ones are taken evenly over their names; no choice depends on what was measured.
    """
    canary = {wave.number for wave in waves if wave.is_canary}
    treated = sorted(
        (each for each in nodes if each.node in times.treated),
        key=lambda each: (each.wave not in canary, each.wave != present.number, each.wave, each.node),
    )
    others = sorted(times.control.keys() - times.treated.keys())
    every = max(1, -(-len(others) // MOST_NODES))
    return frozenset(each.node for each in treated[:MOST_NODES]), frozenset(others[::every])


def compare_runs(
    runs: Iterable[MeasuredRun],
    times: ComparedTimes,
    *,
    treated: Collection[NodeName],
    controls: Collection[NodeName],
) -> tuple[tuple[LevelSamples, ...], tuple[LevelSamples, ...]]:
    """Return the samples of updated nodes, and those of untouched ones."""
    began_at = min((each.begins_at for each in times.treated.values()), default=None)
    ordered = sorted(runs, key=lambda each: (each.started_at, each.job))
    usual = _usual(each for each in ordered if not _nodes_in(each, times.treated))
    pasts: defaultdict[NodeName, _Past] = defaultdict(_Past)
    others: defaultdict[NodeName, _Past] = defaultdict(_Past)
    for run in ordered:
        if run.program not in usual or _nodes_in(run, times.treated):
            continue
        own = _nodes_in(run, times.own).intersection(treated)
        if own:
            _count_before(run, own, pasts, usual[run.program])
        elif began_at is not None and began_at - PAST <= run.started_at < began_at:
            _count_before(run, run.nodes.intersection(controls), others, usual[run.program])
    for run in ordered:
        if run.program not in usual:
            continue
        updated = _nodes_in(run, times.treated)
        if updated:
            _count_after(run, updated.intersection(treated), pasts, usual[run.program])
        else:
            _count_after(run, _nodes_in(run, times.control).intersection(controls), others, usual[run.program])
    return _samples(pasts), _samples(others)


def _nodes_in(run: MeasuredRun, times: Times) -> frozenset[NodeName]:
    """Return the nodes of a run whose time holds its beginning."""
    return frozenset(node for node in run.nodes if node in times and times[node].holds(run.started_at))


def _usual(untouched: Iterable[MeasuredRun]) -> Mapping[tuple[str, ...], float]:
    """Return what the steps of each program took on nodes that were not touched, where enough runs tell."""
    values: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for run in untouched:
        values[run.program].append(run.value)
    return {
        program: median(found) for program, found in values.items() if len(found) >= _FEWEST_RUNS and median(found) > 0
    }


def _count_before(
    run: MeasuredRun, nodes: Collection[NodeName], pasts: defaultdict[NodeName, _Past], usual: float
) -> None:
    """Count a run for one of its nodes: a few pasts that are known well say more than many of one run."""
    if not nodes:
        return

    def rank(node: NodeName) -> tuple[bool, int, NodeName]:
        count = len(pasts[node].before)
        return count >= _ENOUGH_RUNS, count if count >= _ENOUGH_RUNS else -count, node

    node = min(nodes, key=rank)
    pasts[node].before.append(run.of(node) / usual)


def _count_after(
    run: MeasuredRun, nodes: Collection[NodeName], pasts: defaultdict[NodeName, _Past], usual: float
) -> None:
    """Count a run for one of its nodes: of those whose past is known the one with the fewest runs since."""
    if not nodes:
        return
    node = min(nodes, key=lambda each: (len(pasts[each].before) < _FEWEST_RUNS, len(pasts[each].after), each))
    pasts[node].after.append(run.of(node) / usual)


def _samples(pasts: Mapping[NodeName, _Past]) -> tuple[LevelSamples, ...]:
    return tuple(
        LevelSamples(
            kind=LevelKind.STEP_TIME, node=node, before=tuple(pasts[node].before), after=tuple(pasts[node].after)
        )
        for node in sorted(pasts)
        if pasts[node].before or pasts[node].after
    )


# -- the tests of the gate that measure --


LEVELS_FALSE_STOP, LEVELS_LAST_LOOK = 2e-5, 2e-5
"""Of all lines of levels together, in every look but the last, and in the last."""


def control_shift(kind: LevelKind, untouched: Sequence[LevelSamples]) -> ControlShift:
    """Return what untouched nodes say of this kind, measured as the updated ones are: their past, and the same time."""
    shift = untouched_shift(_comparable([each for each in untouched if each.kind is kind]))
    if shift is None:
        return ControlShift(kind=kind, shift_ratio=0.0, node_count=0)
    return ControlShift(kind=kind, shift_ratio=shift.mean, node_count=shift.node_count, weight=shift.weight)


def level_lines(evidence: GateEvidence, standard: Standard) -> Iterator[TestLine]:
    """Judge what updated nodes measure against their own past and the others: over all, and by model."""
    measured: dict[LevelKind, list[LevelSamples]] = defaultdict(list)
    for each in evidence.levels:
        measured[each.kind].append(each)
    if not measured and standard.is_deciding:
        yield nothing_known("levels", "nobody measures step time or bandwidth of the updated nodes")
    models = {each.node: each.model for each in evidence.tries}
    groups = [
        (kind, name, nodes)
        for kind in LevelKind
        if kind in measured
        for name, nodes in _by_model(NAMES[kind], measured[kind], models)
    ]
    for kind in LevelKind:
        spread = spread_squared(_comparable(measured[kind]))
        for of_kind, name, nodes in groups:
            if of_kind is kind:
                part = name != NAMES[kind]
                yield _level_line(name, kind, nodes, spread, evidence, standard, line_count=len(groups), is_part=part)


def _by_model(
    name: str, nodes: Sequence[LevelSamples], models: Mapping[NodeName, str]
) -> Iterator[tuple[str, Sequence[NodeShift]]]:
    """Yield all comparable nodes, and those of each model where there are several: a release may slow only one."""
    yield name, _comparable(nodes)
    of_model: dict[str, list[NodeShift]] = defaultdict(list)
    for each in nodes:
        if each.moved is not None and each.node in models:
            of_model[models[each.node]].append(each.moved)
    if len(of_model) > 1:
        yield from ((f"{name} of {model}", of_model[model]) for model in sorted(of_model))


def _comparable(nodes: Sequence[LevelSamples]) -> list[NodeShift]:
    return [each.moved for each in nodes if each.moved is not None]


def _level_line(
    name: str,
    kind: LevelKind,
    nodes: Sequence[NodeShift],
    spread: float,
    evidence: GateEvidence,
    standard: Standard,
    *,
    line_count: int,
    is_part: bool,
) -> TestLine:
    claimed = standard.claims.slowdown_ratio
    # A part need not decide: with few nodes of a model it would hold every wave. The whole does.
    held = replace(standard, is_deciding=False, is_held=True)
    judged = held if is_part and standard.is_deciding else standard
    control = next((each for each in evidence.shifts if each.kind is kind), None)
    usual = 0.0 if control is None else control.shift_ratio
    worst = max(each.slowdown_ratio for each in standard.alternatives)
    shift = common_shift(nodes, spread=spread, bad_shift=worst, usual=usual)
    if shift is None:
        if judged.is_deciding:
            return nothing_known(name, "no node has runs before and since")
        return TestLine(name=name, state=VerdictKind.GOOD, said="no node has runs before and since", evidence_ratio=0.0)
    worse = shift.mean if kind is LevelKind.STEP_TIME else -shift.mean
    variance = shift.variance + _unsure(control, spread)
    ratio = mean_ratio([shift_ratio(worse, variance, bad_shift=each.slowdown_ratio) for each in standard.alternatives])
    against = shift_ratio(worse, variance, bad_shift=claimed)
    stops_at = math.log(line_count / LEVELS_FALSE_STOP)
    state = state_of(ratio, judged, against=against, now=against, stops_at=stops_at)
    if state is VerdictKind.UNDECIDED and judged.is_last_look:
        false_stop = LEVELS_LAST_LOOK * standard.last_look_share / line_count
        if chance_of_shift(worse, variance) <= false_stop:
            state = VerdictKind.STOP
        elif ratio <= AGAINST_AT and power_of_shift(variance, bad_shift=claimed, false_stop=false_stop) >= LEAST_POWER:
            state = VerdictKind.GOOD
    return TestLine(
        name=name,
        state=state,
        said=f"{worse:+.1%} worse (+/- {1.96 * math.sqrt(variance):.1%}) in {shift.run_count} runs of "
        f"{shift.node_count} nodes, against their own past and the others; bad is {claimed:.0%}; "
        f"{evidence_said(ratio, judged, stops_at=stops_at)}",
        evidence_ratio=ratio,
    )


def _unsure(control: ControlShift | None, spread: float) -> float:
    """Return the variance that the others' shift adds: what few of them say is reported badly."""
    if control is None or not control.node_count:
        return 0.0
    weight = control.node_count if control.weight is None else control.weight
    return spread / weight
