"""Whether a rollout, or a node in it, may become what a writer says: by one event of its table, and never backwards.

Who reads, works and writes may be overtaken meanwhile by another process or a person; here it is told from the stored
value that this has happened. Pure; storing is `rollouts`' business.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, IllegalRolloutTransitionError, next_direction, next_stage

_Standing: TypeAlias = tuple[NodeStage, Direction]

_TO_NEXT_WAVE = frozenset({RolloutEvent.WAVE_GOOD, RolloutEvent.ONE_WAY_NEXT})
_UNTOUCHED = frozenset({NodeStage.PENDING, NodeStage.SKIPPED})


def rollout_conflict(before: Rollout, after: Rollout, *, actor: str) -> str | None:
    """Return why the stored rollout does not lead to the new one by the word of `actor`; None if it does."""
    if _origin(before) != _origin(after):
        return f"{before.rollout} is another rollout: release, plan and waves of a rollout never change"
    if actor == AUTOPILOT and _is_peoples(before, after):
        return (
            f"{before.rollout} is {before.state.value} by now, and only people let it go on; read it again and decide "
            "again"
        )
    if _rollout_stays(before, after) or _rollout_moves(before, after):
        return None
    return (
        f"{before.rollout} is {before.state.value} in wave {before.wave} by now, which does not lead to "
        f"{after.state.value} in wave {after.wave}; read it again and decide again"
    )


def node_conflict(before: RolloutNode, after: RolloutNode, *, state: RolloutState) -> str | None:
    """Return why the stored node does not lead to the new one in a rollout of this state; None if it does."""
    if not (_node_stays(before, after) or _node_moves(before, after) or _is_put_off(before, after)):
        return (
            f"{before.node} is {_words(before)} in {before.rollout} by now, which does not lead to {_words(after)}; "
            "read it again and decide again"
        )
    is_begun = before.stage in _UNTOUCHED and after.stage in IN_HAND
    is_taken = before.stage not in IN_HAND and after.stage in IN_HAND
    if (is_begun and state is not RolloutState.RUNNING) or (is_taken and state in FINAL):
        return f"{before.rollout} is {state.value} by now: {before.node} is not begun; read it again and decide again"
    return None


def _is_peoples(before: Rollout, after: Rollout) -> bool:
    """Return whether only a person may change this: a pass that was under way when they spoke would undo their word.

    What the gate found meanwhile stops a rollout all the same.
    """
    if before.state not in OF_PEOPLE or _rollout_stays(before, after):
        return False
    return after.state is not RolloutState.GOING_BACK or after.since < before.since


def _origin(rollout: Rollout) -> tuple[object, ...]:
    return (
        rollout.rollout,
        rollout.release,
        rollout.release_digest,
        rollout.plan,
        rollout.waves,
        rollout.created_by,
        rollout.created_at,
    )


def _rollout_stays(before: Rollout, after: Rollout) -> bool:
    """Return whether this is the same stay in the same state, told in other words; when it is over, what it owes."""
    if before.state in FINAL:
        return after == replace(before, kept_off=after.kept_off, booking=after.booking)
    return (before.state, before.wave, before.since) == (after.state, after.wave, after.since)


def _rollout_moves(before: Rollout, after: Rollout) -> bool:
    return any(
        ROLLOUT_TABLE.get((before.state, event)) is after.state
        and after.wave == before.wave + (1 if event in _TO_NEXT_WAVE else 0)
        for event in RolloutEvent
    )


def _node_stays(before: RolloutNode, after: RolloutNode) -> bool:
    """Return whether this is the same stay in the same stage, told in other words or with other reads."""
    is_same = (before.wave, before.since) == (after.wave, after.since)
    return is_same and _standing(before) == _standing(after) and _progress(before) == _progress(after)


def _node_moves(before: RolloutNode, after: RolloutNode) -> bool:
    is_later = after.wave == before.wave and _progress(after) >= _progress(before)
    return is_later and _standing(after) in _LEADS_TO[_standing(before)]


def _is_put_off(before: RolloutNode, after: RolloutNode) -> bool:
    """Return whether a node that waits goes on waiting, for a later wave."""
    is_same = _standing(before) == _standing(after) and _progress(before) == _progress(after)
    if before.wave is None or after.wave is None:
        return False
    return is_same and before.stage is NodeStage.PENDING and after.wave > before.wave


def _standing(node: RolloutNode) -> _Standing:
    return node.stage, node.direction


def _progress(node: RolloutNode) -> tuple[int, int]:
    """Return what only grows: a writer who was overtaken by a whole pass shows by the older number."""
    return node.try_number, node.step


def _words(node: RolloutNode) -> str:
    wave = "no wave" if node.wave is None else f"wave {node.wave}"
    where = f"{wave}, {node.direction.value}, try {node.try_number}, step {node.step}"
    return f"{node.stage.value} ({where})"


def _next_standing(standing: _Standing, event: NodeEvent) -> _Standing | None:
    stage, direction = standing
    try:
        after = next_stage(stage, event, direction=direction)
    except IllegalRolloutTransitionError:
        return None
    return after, next_direction(event, direction)


_LEADS_TO: Mapping[_Standing, frozenset[_Standing]] = {
    standing: frozenset(after for event in NodeEvent if (after := _next_standing(standing, event)) is not None)
    for standing in ((stage, direction) for stage in NodeStage for direction in Direction)
}
