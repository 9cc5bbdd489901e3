"""The gate: evidence of updated nodes in, one verdict out.

Every test may be looked at in every pass, before and after a wave was decided. What each finds is `measures`'; here it
is decided what that means for the present wave, and how long it is waited for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import accumulate

from ops_pipelines.core.policy import EvidenceBound, RolloutLimits
from ops_pipelines.core.release import Claims
from ops_pipelines.core.rollout import Wave
from ops_pipelines.rollouts.gate.evidence import (
    LEAST_POWER,
    USUAL_SPREAD_RATIO,
    EventKind,
    GateEvidence,
    GateVerdict,
    Standard,
    TestLine,
    VerdictKind,
    count_that_stops,
    known_rate,
    shift_that_is_found,
)
from ops_pipelines.rollouts.gate.measures import (
    EVENTS_LAST_LOOK,
    LEVELS_LAST_LOOK,
    USUAL_PER_NODE_DAY,
    cause_lines,
    event_lines,
    level_lines,
    rate_that_is_found,
    update_lines,
)

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
    """What the release claims to be found."""
    limits: RolloutLimits
    sought: Claims | None
    """What must have been looked for before the wave is good (`sought_in`); None: nothing must speak against it."""
    is_updated: bool
    """Whether every node of the wave is updated; before that a wave can be stopped, and not be good."""
    is_canary: bool = True
    """Whether every single node must have worked through the soak. A later wave waits for the time only: what it could
    still find shows on those that do work."""
    resumed_at: datetime | None = None
    """When a person let a rollout continue that had asked. Of a wave whose time was over they answer for what was
    not decided; the time of any other counts again from there."""

    @property
    def soak(self) -> timedelta:
        """How long a wave works before it is judged, at least."""
        return soak_of(self.claims, self.limits)


def sought_in(present: Wave, waves: Sequence[Wave], *, claims: Claims, limits: RolloutLimits) -> Claims | None:
    """Return what must have been looked for before the wave after `present` begins: the more, the more it touches.

    None: only that there is no evidence against it, as of the first canaries, and of the last wave.
    """
    if present.is_canary and not present.is_deciding:
        return None
    after = next((len(each.nodes) for each in waves if each.number == present.number + 1), 0)
    touched = after + sum(len(each.nodes) for each in waves if each.number <= present.number)
    total = sum(len(each.nodes) for each in waves)
    bounds = [each for each in limits.bounds if after and touched > each.node_share * total]
    return reduce(_tightened, bounds, claims) if bounds or present.is_deciding else None


def stopped_for(claims: Claims, limits: RolloutLimits) -> tuple[Claims, ...]:
    """Return everything that a release is stopped for, in whichever wave."""
    return tuple(dict.fromkeys(accumulate(limits.bounds, _tightened, initial=claims)))


def _last_look_share(limits: RolloutLimits, *, is_canary: bool) -> float:
    """Return which part of what last looks may stop falsely is a wave's: canaries' is half, for they are the fewest."""
    if not limits.bounds:
        return 1.0
    return 0.5 if is_canary else 0.5 / len(limits.bounds)


def _tightened(claims: Claims, bound: EvidenceBound) -> Claims:
    return replace(
        claims,
        event_rate_ratio=min(claims.event_rate_ratio, bound.event_rate_ratio),
        slowdown_ratio=min(claims.slowdown_ratio, bound.slowdown_ratio),
    )


_RUNS_BEFORE, _RUNS_SINCE = 8, 2
"""# Assumption: so many runs of each node are compared within a soak; they repeat to three percent."""


def foreseen_sight(waves: Sequence[Wave], *, claims: Claims, limits: RolloutLimits) -> Iterator[str]:
    """Yield for each wave that must look for something what it can find and what not, before anything begins."""
    usual = known_rate(USUAL_PER_NODE_DAY)
    for wave in waves:
        sought = sought_in(wave, waves, claims=claims, limits=limits)
        if sought is None:
            continue
        share = _last_look_share(limits, is_canary=wave.is_canary)
        count = sum(len(each.nodes) for each in waves if each.number <= wave.number)
        node_days = count * (limits.soak_limit / timedelta(days=1))
        stops_at = count_that_stops(node_days, usual=usual, false_stop=EVENTS_LAST_LOOK * share / len(EventKind))
        times = rate_that_is_found(node_days, usual=usual, limit=stops_at)
        variance = USUAL_SPREAD_RATIO**2 / count * (1 / _RUNS_BEFORE + 1 / _RUNS_SINCE)
        slower = shift_that_is_found(variance, false_stop=LEVELS_LAST_LOOK * share, power=LEAST_POWER)
        is_short = times > sought.event_rate_ratio or slower > sought.slowdown_ratio
        usually = f"at {1_000 * USUAL_PER_NODE_DAY:g} failures per 1,000 node-days"
        ask = ": it will probably ask; more canaries or a longer soak_limit would see more" if is_short else ""
        yield (
            f"wave {wave.number} looks for failures {sought.event_rate_ratio:g} times as often, and for steps "
            f"{sought.slowdown_ratio:.1%} slower; nine times of ten {count} nodes in {_words(limits.soak_limit)} find "
            f"{times:.2g} times ({usually}) and {slower:.1%}; what is less is not seen{ask}"
        )


def soak_of(claims: Claims, limits: RolloutLimits) -> timedelta:
    """Return how long a wave works before it is judged, at least."""
    slowest = claims.slowest_failure
    return max(limits.soak, slowest + min(MARGIN, slowest))


def judge_wave(evidence: GateEvidence, looking: Looking) -> GateVerdict:
    """Return what the evidence says of the present wave and of all before it.

    STOP comes at any time. A canary that stood idle holds its wave: at the limit people are asked, never is it good
    before one of them did.
    """
    decides_by = _decides_by(evidence, looking)
    is_last_look = decides_by is not None and evidence.at >= decides_by
    standard = Standard(
        claims=looking.sought or looking.claims,
        is_deciding=looking.sought is not None,
        stops_for=stopped_for(looking.claims, looking.limits),
        is_held=not looking.is_canary or _soaked(evidence) < _HELD_SOAKS * looking.soak,
        is_last_look=is_last_look,
        last_look_share=_last_look_share(looking.limits, is_canary=looking.is_canary),
    )
    tests = (
        *update_lines(evidence.tries),
        *cause_lines(evidence),
        *event_lines(evidence.counts, standard),
        *level_lines(evidence, standard),
    )
    stopping = [each for each in tests if each.state is VerdictKind.STOP]
    if stopping:
        return GateVerdict(kind=VerdictKind.STOP, reason=_said(stopping), tests=tests)
    missing = _still_missing(evidence, looking)
    undecided = [each for each in tests if each.state is not VerdictKind.GOOD]
    if missing is None and not undecided:
        return GateVerdict(kind=VerdictKind.GOOD, reason=_why_good(evidence, looking), tests=tests)
    why = "; ".join(part for part in (missing, _said(undecided)) if part)
    if looking.is_updated and _is_answered_for(evidence, looking):
        return GateVerdict(kind=VerdictKind.GOOD, reason=_why_answered_for(missing, undecided), tests=tests)
    if is_last_look:
        limit = _words(looking.limits.soak_limit)
        reason = f"not decided in {limit}: {why}"
        if looking.sought is not None:
            reason += "; to look longer, raise rollouts.soak_limit_seconds before you resume"
        return GateVerdict(kind=VerdictKind.ASK, reason=reason, tests=tests)
    return GateVerdict(kind=VerdictKind.UNDECIDED, reason=why, tests=tests, decides_by=decides_by)


def _decides_by(evidence: GateEvidence, looking: Looking) -> datetime | None:
    began = evidence.soak_began_at
    if began is None:
        return None
    if looking.resumed_at is not None:
        began = max(began, looking.resumed_at)
    return began + looking.limits.soak_limit


def _is_answered_for(evidence: GateEvidence, looking: Looking) -> bool:
    """Return whether a person let this very wave continue after the gate had not decided in time."""
    began, resumed_at = evidence.soak_began_at, looking.resumed_at
    return began is not None and resumed_at is not None and resumed_at >= began + looking.limits.soak_limit


def _soaked(evidence: GateEvidence) -> timedelta:
    return timedelta(0) if evidence.soak_began_at is None else evidence.at - evidence.soak_began_at


def _still_missing(evidence: GateEvidence, looking: Looking) -> str | None:
    """Return what the wave lacks before anything that is found counts as good; None: nothing."""
    if not looking.is_updated:
        return "nodes of the wave are still being updated"
    if evidence.soak_began_at is None:
        return "the soak has not started"
    if not evidence.soaks:
        # Anyone who was updated failed, and was pulled out. The next wave is the second opinion, and has it all to
        # find; the deciding one has no next.
        return "no node of the wave works with the new version" if looking.sought is not None else None
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
    if looking.sought is not None:
        return "nothing that the release claims to find is there"
    if not evidence.soaks:
        return "no node of the wave works with the new version; the next wave shows whether it is the version or they"
    return "nothing speaks clearly against it; it is watched on"


def _why_answered_for(missing: str | None, undecided: list[TestLine]) -> str:
    """Return what a person let pass, by name: they have read what each test stated when it asked."""
    names = ", ".join(dict.fromkeys(each.name for each in undecided))
    parts = (missing, f"not decided: {names}" if names else None)
    return "a person let it continue: " + "; ".join(part for part in parts if part)


def _said(tests: list[TestLine]) -> str:
    return "; ".join(f"{each.name}: {each.said}" for each in tests)


def _words(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    if 0 < hours < 0.1:
        return f"{span.total_seconds():.0f} s"
    return f"{hours / 24:.1f} d" if hours >= 48 else f"{hours:.1f} h"
