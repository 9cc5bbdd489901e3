"""The tests of the gate that count: updates that did not come well, common causes, events per node-day. Pure.

What each is allowed to stop falsely stands here and in `levels`: for up to two models all stay below one in five
hundred together (`power.false_stop_bound`).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ops_pipelines.core.release import Claims
from ops_pipelines.rollouts.engine import words_of
from ops_pipelines.rollouts.gate.evidence import EventCounts, GateEvidence, TestLine, UpdateTry, VerdictKind
from ops_pipelines.rollouts.gate.standard import (
    AGAINST_AT,
    LEAST_POWER,
    NAMES,
    SUSPICIOUS_AT,
    Rate,
    Standard,
    chance_of_at_least,
    count_that_stops,
    events_ratio,
    evidence_said,
    failures_ratio,
    known_rate,
    mean_ratio,
    nothing_known,
)

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

    What strikes treated and untouched alike is in the control, and the past yields to it. Nodes that were worse than
    the others before they were touched are expected to be so again: where their own past is surely above the others',
    it counts.
    """
    before = Rate(count=counts.past_count + _PRIOR.count, exposure=counts.past_node_days + _PRIOR.exposure)
    worth = min(before.count, _PAST_WORTH)
    usual = Rate(count=counts.control_count + worth, exposure=counts.control_node_days + worth / before.mean)
    # Their own past is compared with the same past of others where that is known, else with the control.
    like = before if counts.past_node_days > 0 else usual
    expected = like.mean * counts.own_node_days
    if counts.own_count <= expected or chance_of_at_least(counts.own_count, counts.own_node_days, usual=like) > _SURELY:
        return usual
    # One event of each more: who is picked for having had many will have fewer.
    return usual.times((counts.own_count + 1) / (expected + 1))


def bad_per_node_day(usual: float, *, before: float, claims: Claims) -> float:
    """Return the rate that is looked for: what is claimed comes on top of what happens anyway.

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
    bad = known_rate(bad_per_node_day(usual.mean, before=before, claims=standard.claims))
    times = bad.mean / usual.mean
    claimed = standard.claims.event_rate_ratio
    ratio = mean_ratio([events_ratio(seen, exposure, usual=usual, bad=usual.times(each)) for each in (claimed, times)])
    stops_at = math.log(kind_count / EVENTS_FALSE_STOP)
    # Whether it is good is asked of that rate itself, which is known also where nobody knows well what is usual.
    against = events_ratio(seen, exposure, usual=usual, bad=bad)
    state = VerdictKind.UNDECIDED
    if ratio >= stops_at:
        state = VerdictKind.STOP
    elif against <= standard.good_at and ratio <= max(standard.good_at, SUSPICIOUS_AT):
        state = VerdictKind.GOOD
    if state is VerdictKind.UNDECIDED and standard.is_last_look:
        limit = count_that_stops(exposure, usual=usual, false_stop=EVENTS_LAST_LOOK / kind_count)
        if seen >= limit:
            state = VerdictKind.STOP
        elif ratio <= AGAINST_AT and chance_of_at_least(limit, exposure, usual=bad) >= LEAST_POWER:
            state = VerdictKind.GOOD
    return TestLine(
        name=NAMES[counts.kind],
        state=state,
        said=f"{seen} in {exposure:.1f} node-days; untouched nodes would have had {usual.mean * exposure:.2g}, bad is "
        f"{bad.mean * exposure:.2g} ({times:.3g}x); {evidence_said(ratio, standard, stops_at=stops_at)}",
        evidence_ratio=ratio,
    )
