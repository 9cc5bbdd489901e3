"""Where each event leads: one table for a rollout, one for a node in it. A missing key is the error; nothing changes.

A row stands here only if something brings it about: the autopilot by `course` and `engine`, a person by
`flow.lifecycle.orders`.
"""

from collections.abc import Mapping

from ops_pipelines.core.rollout import IN_HAND, Direction, NodeEvent, NodeStage, RolloutEvent, RolloutState

ROLLOUT_TABLE: Mapping[tuple[RolloutState, RolloutEvent], RolloutState] = {
    (RolloutState.AWAITING_YES, RolloutEvent.YES): RolloutState.RUNNING,
    (RolloutState.AWAITING_YES, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.RUNNING, RolloutEvent.WAVE_UPDATED): RolloutState.SOAKING,
    (RolloutState.RUNNING, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.RUNNING, RolloutEvent.GATE_UNDECIDED): RolloutState.ASKING,
    (RolloutState.RUNNING, RolloutEvent.PAUSE): RolloutState.PAUSED,
    (RolloutState.RUNNING, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.RUNNING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.SOAKING, RolloutEvent.WAVE_GOOD): RolloutState.RUNNING,
    (RolloutState.SOAKING, RolloutEvent.LAST_WAVE_GOOD): RolloutState.DONE,
    (RolloutState.SOAKING, RolloutEvent.ONE_WAY_NEXT): RolloutState.AWAITING_YES,
    (RolloutState.SOAKING, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.SOAKING, RolloutEvent.GATE_UNDECIDED): RolloutState.ASKING,
    (RolloutState.SOAKING, RolloutEvent.PAUSE): RolloutState.PAUSED,
    (RolloutState.SOAKING, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.SOAKING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.PAUSED, RolloutEvent.RESUME_UPDATING): RolloutState.RUNNING,
    (RolloutState.PAUSED, RolloutEvent.RESUME_SOAKING): RolloutState.SOAKING,
    (RolloutState.PAUSED, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.PAUSED, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.PAUSED, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.ASKING, RolloutEvent.RESUME_UPDATING): RolloutState.RUNNING,
    (RolloutState.ASKING, RolloutEvent.RESUME_SOAKING): RolloutState.SOAKING,
    (RolloutState.ASKING, RolloutEvent.GATE_STOPPED): RolloutState.GOING_BACK,
    (RolloutState.ASKING, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.ASKING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.GOING_BACK, RolloutEvent.ALL_BACK): RolloutState.WENT_BACK,
    (RolloutState.GOING_BACK, RolloutEvent.BACK_FAILED): RolloutState.STUCK,
    (RolloutState.STUCK, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.STUCK, RolloutEvent.ABORT): RolloutState.ENDING,
    (RolloutState.GOING_BACK, RolloutEvent.PAUSE): RolloutState.PAUSED,
    (RolloutState.PAUSED, RolloutEvent.RESUME_GOING_BACK): RolloutState.GOING_BACK,
    (RolloutState.ENDING, RolloutEvent.GO_BACK): RolloutState.GOING_BACK,
    (RolloutState.ENDING, RolloutEvent.AT_REST): RolloutState.ABORTED,
}

_HANDLED = tuple(sorted(IN_HAND, key=lambda each: each.value))

NODE_TABLE: Mapping[tuple[NodeStage, NodeEvent], NodeStage] = {
    (NodeStage.PENDING, NodeEvent.BEGIN): NodeStage.DRAINING,
    (NodeStage.PENDING, NodeEvent.SKIP): NodeStage.SKIPPED,
    (NodeStage.DRAINING, NodeEvent.FREE): NodeStage.INSTALLING,
    (NodeStage.DRAINING, NodeEvent.NOT_NOW): NodeStage.PENDING,
    (NodeStage.DRAINING, NodeEvent.SKIP): NodeStage.SKIPPED,
    (NodeStage.INSTALLING, NodeEvent.INSTALLED): NodeStage.ACTIVATING,
    (NodeStage.ACTIVATING, NodeEvent.ACTIVATED): NodeStage.VERIFYING,
    (NodeStage.VERIFYING, NodeEvent.VERIFIED): NodeStage.TESTING,
    (NodeStage.VERIFYING, NodeEvent.NEXT_STEP): NodeStage.INSTALLING,
    (NodeStage.TESTING, NodeEvent.PASSED): NodeStage.RETURNING,
    (NodeStage.RETURNING, NodeEvent.RETURNED): NodeStage.SOAKING,
    (NodeStage.RETURNING, NodeEvent.IS_BACK): NodeStage.BACK,
    (NodeStage.SOAKING, NodeEvent.WAVE_GOOD): NodeStage.UPDATED,
    # The way back begins with the drain again, wherever the node stands; what is drained already passes through it. Who
    # only drains on its way there was not touched: it is put back as it was.
    **{
        (stage, NodeEvent.GO_BACK): NodeStage.DRAINING
        for stage in (
            *(each for each in _HANDLED if each is not NodeStage.DRAINING),
            NodeStage.SOAKING,
            NodeStage.UPDATED,
            NodeStage.PULLED,
            NodeStage.LOST,
        )
    },
    **{(stage, NodeEvent.FAILED): NodeStage.PULLED for stage in _HANDLED},
}
"""Of the way forward. On the way back FAILED leads to LOST, and NOT_NOW to work with the new version (`next_stage`)."""


class IllegalRolloutTransitionError(RuntimeError):
    """Our own fault: a rollout was asked to do what its state does not allow. Nothing was changed."""


def next_rollout_state(state: RolloutState, event: RolloutEvent) -> RolloutState:
    """Return the state after `event`; raise where the table has no entry."""
    try:
        return ROLLOUT_TABLE[state, event]
    except KeyError:
        raise IllegalRolloutTransitionError(f"a rollout that is {state.value} cannot take {event.value}") from None


def next_stage(stage: NodeStage, event: NodeEvent, *, direction: Direction) -> NodeStage:
    """Return the stage after `event`; raise where the table has no entry."""
    if event is NodeEvent.FAILED and direction is Direction.BACK and stage in IN_HAND:
        return NodeStage.LOST
    if event is NodeEvent.NOT_NOW and direction is Direction.BACK and stage is NodeStage.DRAINING:
        return NodeStage.SOAKING
    try:
        return NODE_TABLE[stage, event]
    except KeyError:
        raise IllegalRolloutTransitionError(f"a node that is {stage.value} cannot take {event.value}") from None


def next_direction(event: NodeEvent, direction: Direction) -> Direction:
    """Return which way a node goes after `event`: there, until it goes back."""
    if event is NodeEvent.GO_BACK:
        return Direction.BACK
    return Direction.FORWARD if event in (NodeEvent.BEGIN, NodeEvent.NOT_NOW) else direction
