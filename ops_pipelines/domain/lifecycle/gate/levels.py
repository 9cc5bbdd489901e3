"""The tests of the gate that measure: step time and bandwidth of updated nodes against their own past. Pure.

The sums are `level_shift`'s; here it is said what they mean. What all nodes share, updated or not, is taken off first.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ops_pipelines.core.identity import NodeName
from ops_pipelines.domain.lifecycle.gate.evidence import (
    ControlShift,
    GateEvidence,
    LevelKind,
    LevelSamples,
    TestLine,
    VerdictKind,
)
from ops_pipelines.domain.lifecycle.gate.level_shift import NodeShift, common_shift, spread_squared, untouched_shift
from ops_pipelines.domain.lifecycle.gate.sequential import chance_of_shift, power_of_shift, shift_ratio
from ops_pipelines.domain.lifecycle.gate.standard import (
    AGAINST_AT,
    LEAST_POWER,
    NAMES,
    Standard,
    evidence_said,
    nothing_known,
    state_of,
)

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
