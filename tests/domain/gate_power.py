"""What the gate can find, and how often it stops what is good: computed from its own tests, for tests and documents."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.core.release import Claims
from ops_pipelines.rollouts.gate.evidence import (
    LEAST_POWER,
    SUSPICIOUS_AT,
    EventCounts,
    EventKind,
    Rate,
    Standard,
    VerdictKind,
    chance_of_at_least,
    chance_that_failures_stop,
    known_rate,
    power_of_shift_ratio,
)
from ops_pipelines.rollouts.gate.measures import (
    ALIKE_FAILURE,
    ALIKE_STOPS_AT,
    ANY_FAILURE,
    ANY_STOPS_AT,
    CAUSE_PRIOR,
    CAUSE_STOPS_AT,
    EVENTS_FALSE_STOP,
    EVENTS_LAST_LOOK,
    FEW_NODES,
    LEVELS_FALSE_STOP,
    LEVELS_LAST_LOOK,
    USUAL_PER_NODE_DAY,
    bad_per_node_day,
    cause_ratio,
    event_line,
)

_DAY = timedelta(days=1)
_WELL_KNOWN_NODE_DAYS = 1e7
"""Of the control, where it is asked what the test can do and not how badly the usual rate is known."""
_MOST_TRIES = 1_000
_FAR = 60
"""No count above this much beyond what is expected is followed: nothing of that size is undecided."""
_FAILURE_WAYS = round(ANY_FAILURE[0] / ALIKE_FAILURE[0])
_CAUSE_COUNT = round(USUAL_PER_NODE_DAY / CAUSE_PRIOR.mean)
_NEGLIGIBLE = 1e-15
_EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCourse:
    """What comes of the test of one kind of event on one wave: chances that sum up to 1."""

    stopped: float
    passed: float
    asked: float
    mean_days: float
    """Until it is decided, or asked."""


def power_of_events(
    rate_per_node_day: float,
    *,
    usual_per_node_day: float,
    node_count: int,
    claims: Claims,
    soak: timedelta,
    soak_limit: timedelta,
    look_every: timedelta = timedelta(hours=6),
    kind_count: int = 1,
    stops_for: tuple[Claims, ...] = (),
    last_look_share: float = 1.0,
) -> EventCourse:
    """Return what the deciding wave's test of one kind of event comes to, where events truly come at this rate.

    Exact: the chance of each count is followed from look to look, and the test itself says which of them decide.
    """
    chances, days = {0: 1.0}, 0.0
    found = dict.fromkeys(VerdictKind, 0.0)
    waited = 0.0
    while chances:
        span = min(look_every, soak_limit - days * _DAY)
        days += span / _DAY
        waited += span / _DAY * sum(chances.values())
        is_last = days * _DAY >= soak_limit
        standard = Standard(
            claims=claims, is_deciding=True, is_last_look=is_last, stops_for=stops_for, last_look_share=last_look_share
        )
        step = rate_per_node_day * node_count * (span / _DAY)
        expected = rate_per_node_day * node_count * days
        chances = _later(chances, step, at_most=math.ceil(expected) + _FAR)
        for count in sorted(chances):
            state = _state_of(count, node_count * days, usual_per_node_day, standard, kind_count=kind_count)
            if state is VerdictKind.GOOD and days * _DAY < soak:
                continue
            if state is VerdictKind.UNDECIDED and is_last:
                state = VerdictKind.ASK
            if state is not VerdictKind.UNDECIDED:
                found[state] += chances.pop(count)
    return EventCourse(
        stopped=found[VerdictKind.STOP],
        passed=found[VerdictKind.GOOD],
        asked=found[VerdictKind.ASK],
        mean_days=waited,
    )


def node_days_needed(
    *, usual_per_node_day: float, claims: Claims, power: float = LEAST_POWER, kind_count: int = 1
) -> float:
    """Return from how many node-days on the last look finds what is claimed with this chance.

    Counts are whole, so that the chance falls back a little with each event more that a stop takes: the node-days are
    those from which on it never falls below.
    """
    usual, false_stop = known_rate(usual_per_node_day), EVENTS_LAST_LOOK / kind_count
    bad = known_rate(bad_per_node_day(usual_per_node_day, before=usual_per_node_day, claims=claims))
    count, begins, needed = 1, 0.0, 0.0
    while True:
        # From `begins` on so many events stop; that finds enough from `reached` on.
        reached = _where(count, usual=bad, chance=power)
        if reached <= begins:
            return needed
        needed, begins = reached, _where(count, usual=usual, chance=false_stop)
        count += 1


def power_of_slowdown(
    *,
    node_count: int,
    before_count: int,
    after_count: int,
    run_spread_ratio: float,
    claims: Claims,
    at_least: float = SUSPICIOUS_AT,
) -> float:
    """Return the chance that a wave is held after so many runs of each node, where all are as slow as claimed.

    `at_least` is the evidence that is asked for: `SUSPICIOUS_AT` holds a wave that need not decide.
    """
    variance = run_spread_ratio**2 / node_count * (1 / before_count + 1 / after_count)
    return power_of_shift_ratio(variance, bad_shift=claims.slowdown_ratio, at_least=at_least)


def false_stop_bound(*, model_count: int, node_days: int = 400) -> float:
    """Return a bound of the chance that a good release is stopped, by any test in any look up to so many node-days.

    By the assumptions that the tests rest on: one update of a hundred fails alone, each of five ways takes a fifth of
    them, each of twenty causes a twentieth of the failures.
    """
    usual, bad = ANY_FAILURE
    of_model, of_several = (
        chance_that_failures_stop(_MOST_TRIES, truth=usual, usual=usual, bad=bad, stop_at=each)
        for each in (ANY_STOPS_AT, ALIKE_STOPS_AT)
    )
    usual, bad = ALIKE_FAILURE
    alike = chance_that_failures_stop(_MOST_TRIES, truth=usual, usual=usual, bad=bad, stop_at=ALIKE_STOPS_AT)
    return (
        model_count * of_model
        + (of_several if model_count > 1 else 0.0)
        + _FAILURE_WAYS * alike
        + _CAUSE_COUNT * _cause_false_stop(node_days)
        + EVENTS_FALSE_STOP
        + EVENTS_LAST_LOOK
        + LEVELS_FALSE_STOP
        + LEVELS_LAST_LOOK
    )


def _cause_false_stop(node_days: int) -> float:
    """Return the chance that one cause stops that comes as often as ever, where nobody else was there to compare."""
    chances, stopped = {0: 1.0}, 0.0
    for day in range(node_days):
        chances = _later(chances, CAUSE_PRIOR.mean, at_most=_FAR)
        # As if all of the day had happened at its beginning, when it is most telling.
        for count in [each for each in chances if each >= FEW_NODES]:
            if cause_ratio(count, float(day), usual=CAUSE_PRIOR) >= CAUSE_STOPS_AT:
                stopped += chances.pop(count)
    return stopped


def _state_of(count: int, node_days: float, usual: float, standard: Standard, *, kind_count: int) -> VerdictKind:
    counts = EventCounts(
        kind=EventKind.NODE_FAILURE,
        treated_count=count,
        treated_node_days=node_days,
        control_count=round(usual * _WELL_KNOWN_NODE_DAYS),
        control_node_days=_WELL_KNOWN_NODE_DAYS,
        own_count=0,
        own_node_days=0.0,
    )
    return event_line(counts, standard, kind_count=kind_count).state


def _later(chances: Mapping[int, float], expected: float, *, at_most: int) -> dict[int, float]:
    """Return the chances of each count after a step in which `expected` events come on average."""
    steps = [math.exp(-expected)]
    while steps[-1] > _NEGLIGIBLE or len(steps) <= expected:
        steps.append(steps[-1] * expected / len(steps))
    after: dict[int, float] = {}
    for count, chance in chances.items():
        for more, share in enumerate(steps):
            if count + more <= at_most:
                after[count + more] = after.get(count + more, 0.0) + chance * share
    return after


def _where(count: int, *, usual: Rate, chance: float) -> float:
    """Return at how many node-days so many events come with this chance; with more they come with more."""
    low, high = 0.0, 1.0
    while chance_of_at_least(count, high, usual=usual) < chance:
        low, high = high, 2 * high
    while high - low > _EXACT * high:
        middle = (low + high) / 2
        if chance_of_at_least(count, middle, usual=usual) < chance:
            low = middle
        else:
            high = middle
    return high
