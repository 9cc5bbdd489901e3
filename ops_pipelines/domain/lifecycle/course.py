"""What comes next for a rollout as a whole: which event it takes, and why. Pure.

Which nodes start for it is `beginnings`', one node's own way is `engine`'s, whether a wave was good is `gate`'s. What
people say comes from them (`flow.lifecycle.orders`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import (
    IN_HAND,
    OF_PEOPLE,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
    Wave,
)
from ops_pipelines.domain.lifecycle.beginnings import UPDATED, is_to_go_back, pulled_out
from ops_pipelines.domain.lifecycle.gate.evidence import Verdict, VerdictKind

_ONE_WAY = "a part of it cannot go back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One event for the rollout, and why."""

    event: RolloutEvent
    reason: str


def present_wave(rollout: Rollout) -> Wave:
    return rollout.waves[rollout.wave - 1]


def is_wave_updated(rollout: Rollout, nodes: Collection[RolloutNode]) -> bool:
    """Return whether every node of the present wave that can be updated is, and works."""
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    return all(each.stage not in IN_HAND and each.stage is not NodeStage.PENDING for each in of_wave)


def next_turn(
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    *,
    release: Release,
    verdict: Verdict | None,
    limits: RolloutLimits,
) -> Turn | None:
    """Return what happens to the rollout now; None if it stays as it is. What people say comes from them."""
    match rollout.state:
        case RolloutState.PAUSED if rollout.paused_from is RolloutState.GOING_BACK:
            return None  # It has its verdict: the gate must not end a person's pause.
        case RolloutState.RUNNING | RolloutState.SOAKING | RolloutState.PAUSED | RolloutState.ASKING:
            return _judged(rollout, nodes, release=release, verdict=verdict, limits=limits)
        case RolloutState.GOING_BACK:
            return _gone_back(rollout, nodes)
        case RolloutState.ENDING if not _is_under_way(nodes, release=release):
            return Turn(event=RolloutEvent.AT_REST, reason="ended by a person; no node is in hand any more")
        case _:
            return None


def is_stopped_for_good(rollout: Rollout) -> bool:
    """Return whether a rollout asks because the gate stopped what cannot go back: who resumes it is asked again."""
    return rollout.state is RolloutState.ASKING and rollout.reason.endswith(_ONE_WAY)


def _judged(
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    *,
    release: Release,
    verdict: Verdict | None,
    limits: RolloutLimits,
) -> Turn | None:
    is_ours = rollout.state not in OF_PEOPLE
    is_stopped = verdict is not None and verdict.kind is VerdictKind.STOP
    if verdict is not None and is_stopped and not release.is_one_way:
        return Turn(event=RolloutEvent.GATE_STOPPED, reason=verdict.reason)
    if not is_ours:
        return None
    if verdict is not None and is_stopped:
        # Sent back, every node would be drained and none could be mended: nothing else is begun, and people say.
        return Turn(event=RolloutEvent.GATE_UNDECIDED, reason=f"{verdict.reason}; {_ONE_WAY}")
    pulled = [each for each in nodes if each.failure]
    if len(pulled) - rollout.excused_count > limits.max_pulled_count:
        names = ", ".join(sorted(each.node for each in pulled))
        return Turn(
            event=RolloutEvent.GATE_UNDECIDED,
            reason=f"{len(pulled)} nodes failed, each in its own way ({names}); "
            f"max_pulled_count is {limits.max_pulled_count}",
        )
    if rollout.state is RolloutState.RUNNING:
        if is_wave_updated(rollout, nodes):
            return Turn(event=RolloutEvent.WAVE_UPDATED, reason=f"wave {rollout.wave} is updated and works")
        return None
    is_under_way = _is_under_way(nodes, release=release)
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    if not any(each.stage in UPDATED or each.stage in IN_HAND for each in of_wave):
        return None if is_under_way else _empty_wave(rollout, nodes, release=release)
    if verdict is None or verdict.kind is VerdictKind.UNDECIDED:
        return None
    if verdict.kind is VerdictKind.GOOD and is_under_way:
        return None  # Whoever was pulled out is on its way back: it is brought to its end before the wave is.
    if verdict.kind is VerdictKind.ASK:
        return Turn(event=RolloutEvent.GATE_UNDECIDED, reason=verdict.reason)
    if rollout.wave == len(rollout.waves):
        return Turn(event=RolloutEvent.LAST_WAVE_GOOD, reason=verdict.reason)
    return Turn(
        event=RolloutEvent.ONE_WAY_NEXT if release.is_one_way else RolloutEvent.WAVE_GOOD, reason=verdict.reason
    )


def _is_under_way(nodes: Collection[RolloutNode], *, release: Release) -> bool:
    """Return whether a node is in hand, or about to be: pulled out, and not on its way back yet."""
    return any(each.stage in IN_HAND for each in nodes) or bool(pulled_out(nodes, release=release))


def _empty_wave(rollout: Rollout, nodes: Collection[RolloutNode], *, release: Release) -> Turn:
    """Return what follows on a wave of which no node could be updated: the next one takes its place, but for canaries'.

    Nobody else is touched before canaries have shown that the release is good.
    """
    said = f"no node of wave {rollout.wave} could be updated"
    is_last = rollout.wave == len(rollout.waves)
    if is_last and any(each.stage is NodeStage.UPDATED for each in nodes):
        return Turn(event=RolloutEvent.LAST_WAVE_GOOD, reason=f"{said}; those before it are good")
    if is_last or present_wave(rollout).is_deciding:
        return Turn(event=RolloutEvent.GATE_UNDECIDED, reason=f"{said}, so that nothing has been shown")
    return Turn(event=RolloutEvent.ONE_WAY_NEXT if release.is_one_way else RolloutEvent.WAVE_GOOD, reason=said)


def _gone_back(rollout: Rollout, nodes: Collection[RolloutNode]) -> Turn | None:
    if any(each.stage in IN_HAND or each.stage is NodeStage.PULLED or is_to_go_back(each, rollout) for each in nodes):
        return None
    lost = sorted(each.node for each in nodes if each.stage is NodeStage.LOST)
    if lost:
        return Turn(event=RolloutEvent.BACK_FAILED, reason=f"{', '.join(lost)} could not be brought back")
    return Turn(event=RolloutEvent.ALL_BACK, reason="every touched node runs its old version, verified")
