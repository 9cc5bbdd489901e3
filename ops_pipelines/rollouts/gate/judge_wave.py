"""The gate: evidence of updated nodes in, one verdict out.

Every test may be looked at in every pass, before and after a wave was decided. What each finds is `measures`'; here it
is decided what that means for the present wave, and how long it is waited for.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Claims
from ops_pipelines.rollouts.gate.evidence import (
    GateEvidence,
    GateVerdict,
    Standard,
    TestLine,
    VerdictKind,
)
from ops_pipelines.rollouts.gate.measures import (
    cause_lines,
    event_lines,
    level_lines,
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
    limits: RolloutLimits
    is_deciding: bool
    """Whether everything that is claimed must have been looked for before the wave is good."""
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
        return GateVerdict(kind=VerdictKind.ASK, reason=f"not decided in {limit}: {why}", tests=tests)
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
