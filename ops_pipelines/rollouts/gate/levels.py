"""The tests of the gate that measure: step time and bandwidth of updated nodes, like runs with like.

Programs differ far more than versions do. So each run is told as a ratio to what the same program took on nodes that
were not touched; what no such run is known of is compared with nothing. All ranks of a run wait for the slowest, so
that its nodes say one thing together: a run counts for one of its nodes.

The sums are `evidence`'s; here it is said what they mean. What all nodes share, updated or not, is taken off first.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import RolloutNode, Wave
from ops_pipelines.rollouts.gate.evidence import (
    ControlShift,
    GateEvidence,
    LevelKind,
    LevelSamples,
    NodeShift,
    TestLine,
    VerdictKind,
    common_shift,
    spread_squared,
    untouched_shift,
)
from ops_pipelines.rollouts.gate.seen_events import PAST, ComparedTimes, Times
from ops_pipelines.rollouts.gate.standard import (
    AGAINST_AT,
    LEAST_POWER,
    NAMES,
    Standard,
    chance_of_shift,
    evidence_said,
    nothing_known,
    power_of_shift,
    shift_ratio,
    state_of,
)

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
    """Seconds of a step, over all nodes that told."""
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
    held = Standard(claims=standard.claims, is_deciding=False, is_last_look=standard.is_last_look)
    judged = held if is_part and standard.is_deciding else standard
    control = next((each for each in evidence.shifts if each.kind is kind), None)
    usual = 0.0 if control is None else control.shift_ratio
    shift = common_shift(nodes, spread=spread, bad_shift=claimed, usual=usual)
    if shift is None:
        if judged.is_deciding:
            return nothing_known(name, "no node has runs before and since")
        return TestLine(name=name, state=VerdictKind.GOOD, said="no node has runs before and since", evidence_ratio=0.0)
    worse = shift.mean if kind is LevelKind.STEP_TIME else -shift.mean
    variance = shift.variance + _unsure(control, spread)
    ratio = shift_ratio(worse, variance, bad_shift=claimed)
    stops_at = math.log(line_count / LEVELS_FALSE_STOP)
    state = state_of(ratio, judged, stops_at=stops_at)
    if state is VerdictKind.UNDECIDED and judged.is_last_look:
        false_stop = LEVELS_LAST_LOOK / line_count
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
    """Return the variance that the others' shift adds: what few of them say is said badly."""
    if control is None or not control.node_count:
        return 0.0
    weight = control.node_count if control.weight is None else control.weight
    return spread / weight
