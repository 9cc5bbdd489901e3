"""The gate: evidence of updated nodes in, one verdict out; and what it can find, computed from its own tests.

Every test may be looked at in every pass (`standard`), before and after a wave was decided. What each finds is
`counts`' and `levels`'; here it is decided what that means for the present wave, and how long it is waited for. What
all of it can find, and how often it stops what is good, is computed by `power`.

For plans and for documents. Nothing here decides; it asks the tests of `counts` and the formulas of `standard` what
they would say.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Claims
from ops_pipelines.rollouts.gate.evidence import (
    LEAST_POWER,
    SUSPICIOUS_AT,
    EventCounts,
    EventKind,
    GateEvidence,
    Rate,
    Standard,
    TestLine,
    Verdict,
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
    cause_lines,
    cause_ratio,
    event_line,
    event_lines,
    level_lines,
    update_lines,
)

# -- the gate --


MARGIN = timedelta(hours=1)
"""Added to the slowest failure that is claimed: it must also have been noticed. Never more than that failure takes."""
_HELD_SOAKS = 2
"""A canary wave that need not decide is held on a suspicion for so many soaks; then the next canaries are asked, for
one node alone may never be sure."""
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """What a wave is judged by."""

    claims: Claims
    limits: RolloutLimits
    is_deciding: bool
    """Whether everything that is claimed must have been looked for before the wave is good."""
    is_updated: bool
    """Whether every node of the wave is updated; before that a wave can be stopped, and not be good."""
    is_canary: bool = True
    """Whether every single node must have worked through the soak. A later wave waits for the time only: what it could
    still find shows on those that do work."""
    resumed_at: datetime | None = None
    """When a person let a rollout go on that had asked. Of a wave whose time was over by then they answer for what was
    not decided; the time of any other counts anew from there."""

    @property
    def soak(self) -> timedelta:
        """How long a wave works before it is judged, at least."""
        return soak_of(self.claims, self.limits)


def soak_of(claims: Claims, limits: RolloutLimits) -> timedelta:
    """Return how long a wave works before it is judged, at least."""
    slowest = claims.slowest_failure
    return max(limits.soak, slowest + min(MARGIN, slowest))


def judge_wave(evidence: GateEvidence, looking: Looking) -> Verdict:
    """Return what the evidence says of the present wave and of all before it.

    STOP comes at any time. A canary that stood idle holds its wave: at the limit people are asked, never is it good
    before one of them said so.
    """
    decides_by = _decides_by(evidence, looking)
    is_last_look = decides_by is not None and evidence.at >= decides_by
    standard = Standard(
        claims=looking.claims,
        is_deciding=looking.is_deciding,
        is_held=not looking.is_canary or _soaked(evidence) < _HELD_SOAKS * looking.soak,
        is_last_look=is_last_look,
    )
    tests = (
        *update_lines(evidence.tries),
        *cause_lines(evidence),
        *event_lines(evidence.counts, standard),
        *level_lines(evidence, standard),
    )
    stopping = [each for each in tests if each.state is VerdictKind.STOP]
    if stopping:
        return Verdict(kind=VerdictKind.STOP, reason=_said(stopping), tests=tests)
    missing = _still_missing(evidence, looking)
    undecided = [each for each in tests if each.state is not VerdictKind.GOOD]
    if missing is None and not undecided:
        return Verdict(kind=VerdictKind.GOOD, reason=_why_good(evidence, looking), tests=tests)
    why = "; ".join(part for part in (missing, _said(undecided)) if part)
    if looking.is_updated and _is_answered_for(evidence, looking):
        return Verdict(kind=VerdictKind.GOOD, reason=_why_answered_for(missing, undecided), tests=tests)
    if is_last_look:
        limit = _words(looking.limits.soak_limit)
        return Verdict(kind=VerdictKind.ASK, reason=f"not decided in {limit}: {why}", tests=tests)
    return Verdict(kind=VerdictKind.UNDECIDED, reason=why, tests=tests, decides_by=decides_by)


def _decides_by(evidence: GateEvidence, looking: Looking) -> datetime | None:
    began = evidence.soak_began_at
    if began is None:
        return None
    if looking.resumed_at is not None:
        began = max(began, looking.resumed_at)
    return began + looking.limits.soak_limit


def _is_answered_for(evidence: GateEvidence, looking: Looking) -> bool:
    """Return whether a person let this very wave go on after the gate had not decided in time."""
    began, resumed_at = evidence.soak_began_at, looking.resumed_at
    return began is not None and resumed_at is not None and resumed_at >= began + looking.limits.soak_limit


def _soaked(evidence: GateEvidence) -> timedelta:
    return timedelta(0) if evidence.soak_began_at is None else evidence.at - evidence.soak_began_at


def _still_missing(evidence: GateEvidence, looking: Looking) -> str | None:
    """Return what the wave lacks before anything that is found counts as good; None: nothing."""
    if not looking.is_updated:
        return "nodes of the wave are still being updated"
    if evidence.soak_began_at is None:
        return "the soak has not begun"
    if not evidence.soaks:
        # Whoever was updated failed, and was pulled out. The next wave is the second opinion, and has it all to find;
        # the deciding one has no next.
        return "no node of the wave works with the new version" if looking.is_deciding else None
    left = looking.soak - _soaked(evidence)
    if left > timedelta(0):
        return f"soaks for {_words(looking.soak)}; {_words(left)} are left"
    short = sorted(node for node, soak in evidence.soaks.items() if soak < looking.soak) if looking.is_canary else []
    if not short:
        return None
    names = ", ".join(f"{node} ({_words(evidence.soaks[node])})" for node in short[:_MOST_NAMES])
    more = f" and {len(short) - _MOST_NAMES} more" if len(short) > _MOST_NAMES else ""
    return f"not worked for {_words(looking.soak)} since their return: {names}{more}"


def _why_good(evidence: GateEvidence, looking: Looking) -> str:
    if looking.is_deciding:
        return "nothing that the release claims to find is there"
    if not evidence.soaks:
        return "no node of the wave works with the new version; the next wave tells whether it is the version or they"
    return "nothing speaks clearly against it; it is watched on"


def _why_answered_for(missing: str | None, undecided: list[TestLine]) -> str:
    """Return what a person let pass, by name: they have read what each test said when it asked."""
    names = ", ".join(dict.fromkeys(each.name for each in undecided))
    parts = (missing, f"not decided: {names}" if names else None)
    return "a person let it go on: " + "; ".join(part for part in parts if part)


def _said(tests: list[TestLine]) -> str:
    return "; ".join(f"{each.name}: {each.said}" for each in tests)


def _words(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    if 0 < hours < 0.1:
        return f"{span.total_seconds():.0f} s"
    return f"{hours / 24:.1f} d" if hours >= 48 else f"{hours:.1f} h"


# -- what the gate can find --


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
        standard = Standard(claims=claims, is_deciding=True, is_last_look=is_last)
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
