"""The two tables of a rollout: what is over stays over, nobody stays in hand, and what is missing is reported."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ops_pipelines.core.rollout import (
    AT_REST,
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeEvent,
    NodeStage,
    RolloutEvent,
    RolloutState,
    Wave,
    is_canary,
)
from ops_pipelines.rollouts.course import (
    NODE_TABLE,
    ROLLOUT_TABLE,
    IllegalRolloutTransitionError,
    next_direction,
    next_rollout_state,
    next_stage,
)
from tests.ports.rollout_samples import node, rollout

FORWARD, BACK = Direction.FORWARD, Direction.BACK


def after(state: RolloutState) -> set[RolloutState]:
    return {to for (known, _), to in ROLLOUT_TABLE.items() if known is state}


def reached_from(states: Iterable[RolloutState]) -> set[RolloutState]:
    """Return every state that events lead to from these, themselves included."""
    found: set[RolloutState] = set(states)
    while further := {to for state in found for to in after(state)} - found:
        found |= further
    return found


def stages_after(stage: NodeStage, direction: Direction) -> set[NodeStage]:
    """Return where events lead from a stage; those that no table has lead nowhere."""
    found = set()
    for event in NodeEvent:
        try:
            found.add(next_stage(stage, event, direction=direction))
        except IllegalRolloutTransitionError:
            continue
    return found


@pytest.mark.parametrize("state", RolloutState)
@pytest.mark.parametrize("event", RolloutEvent)
def test_a_rollout_takes_the_events_of_its_table_and_no_other(state: RolloutState, event: RolloutEvent) -> None:
    if (state, event) in ROLLOUT_TABLE:
        assert next_rollout_state(state, event) is ROLLOUT_TABLE[state, event]
        return
    with pytest.raises(IllegalRolloutTransitionError, match=f"{state.value} cannot take {event.value}"):
        next_rollout_state(state, event)


@pytest.mark.parametrize("state", [each for each in RolloutState if each in FINAL])
def test_what_is_over_takes_no_event(state: RolloutState) -> None:
    assert after(state) == set()


@pytest.mark.parametrize("state", [each for each in RolloutState if each not in FINAL])
def test_every_other_state_can_be_ended_and_is_reached(state: RolloutState) -> None:
    assert RolloutState.ABORTED in reached_from([state])
    assert FINAL & reached_from([state])
    assert state in reached_from([RolloutState.AWAITING_YES])


@pytest.mark.parametrize("state", [each for each in RolloutState if each in OF_PEOPLE])
def test_what_waits_for_people_is_ended_at_their_word(state: RolloutState) -> None:
    assert ROLLOUT_TABLE[state, RolloutEvent.ABORT] is RolloutState.ENDING


def test_done_comes_only_from_a_soak() -> None:
    assert {state for (state, _), to in ROLLOUT_TABLE.items() if to is RolloutState.DONE} == {RolloutState.SOAKING}


def test_a_pause_of_a_way_back_goes_on_with_it() -> None:
    paused = next_rollout_state(RolloutState.GOING_BACK, RolloutEvent.PAUSE)

    assert next_rollout_state(paused, RolloutEvent.RESUME_GOING_BACK) is RolloutState.GOING_BACK


@pytest.mark.parametrize(
    ("stage", "event", "direction", "to"),
    [
        (NodeStage.PENDING, NodeEvent.BEGIN, FORWARD, NodeStage.DRAINING),
        (NodeStage.DRAINING, NodeEvent.NOT_NOW, FORWARD, NodeStage.PENDING),
        (NodeStage.DRAINING, NodeEvent.NOT_NOW, BACK, NodeStage.SOAKING),
        (NodeStage.DRAINING, NodeEvent.SKIP, FORWARD, NodeStage.SKIPPED),
        (NodeStage.VERIFYING, NodeEvent.NEXT_STEP, FORWARD, NodeStage.INSTALLING),
        (NodeStage.RETURNING, NodeEvent.RETURNED, FORWARD, NodeStage.SOAKING),
        (NodeStage.RETURNING, NodeEvent.IS_BACK, BACK, NodeStage.BACK),
        (NodeStage.SOAKING, NodeEvent.WAVE_GOOD, FORWARD, NodeStage.UPDATED),
        (NodeStage.PULLED, NodeEvent.GO_BACK, FORWARD, NodeStage.DRAINING),
        (NodeStage.LOST, NodeEvent.GO_BACK, BACK, NodeStage.DRAINING),
        (NodeStage.UPDATED, NodeEvent.GO_BACK, FORWARD, NodeStage.DRAINING),
    ],
)
def test_a_node_goes_where_its_table_says(
    stage: NodeStage, event: NodeEvent, direction: Direction, to: NodeStage
) -> None:
    assert next_stage(stage, event, direction=direction) is to


@pytest.mark.parametrize(
    ("stage", "event"),
    [
        (NodeStage.PENDING, NodeEvent.GO_BACK),
        (NodeStage.PENDING, NodeEvent.FAILED),
        (NodeStage.SKIPPED, NodeEvent.GO_BACK),
        (NodeStage.SKIPPED, NodeEvent.BEGIN),
        (NodeStage.DRAINING, NodeEvent.GO_BACK),
        (NodeStage.SOAKING, NodeEvent.FAILED),
        (NodeStage.BACK, NodeEvent.BEGIN),
        (NodeStage.BACK, NodeEvent.GO_BACK),
        (NodeStage.UPDATED, NodeEvent.BEGIN),
        (NodeStage.INSTALLING, NodeEvent.NOT_NOW),
        (NodeStage.INSTALLING, NodeEvent.SKIP),
    ],
)
def test_what_was_never_touched_has_no_way_back_and_what_was_touched_is_not_left(
    stage: NodeStage, event: NodeEvent
) -> None:
    with pytest.raises(IllegalRolloutTransitionError, match=f"{stage.value} cannot take {event.value}"):
        next_stage(stage, event, direction=FORWARD)


@pytest.mark.parametrize("stage", sorted(IN_HAND, key=lambda each: each.value))
def test_a_node_in_hand_may_fail_or_turn_round_wherever_it_stands(stage: NodeStage) -> None:
    assert next_stage(stage, NodeEvent.FAILED, direction=FORWARD) is NodeStage.PULLED
    assert next_stage(stage, NodeEvent.FAILED, direction=BACK) is NodeStage.LOST
    if stage is not NodeStage.DRAINING:  # Who only drains is put back as it was.
        assert next_stage(stage, NodeEvent.GO_BACK, direction=FORWARD) is NodeStage.DRAINING


@pytest.mark.parametrize("direction", Direction)
def test_nobody_stays_in_hand_for_good(direction: Direction) -> None:
    reached: set[NodeStage] = {NodeStage.DRAINING}
    while further := {to for stage in reached for to in stages_after(stage, direction)} - reached:
        reached |= further

    assert reached & AT_REST
    assert all(stages_after(stage, direction) - {stage} for stage in IN_HAND)


@pytest.mark.parametrize(
    ("event", "before", "then"),
    [
        (NodeEvent.GO_BACK, FORWARD, BACK),
        (NodeEvent.BEGIN, BACK, FORWARD),
        (NodeEvent.NOT_NOW, BACK, FORWARD),
        (NodeEvent.FREE, BACK, BACK),
        (NodeEvent.IS_BACK, BACK, BACK),
        (NodeEvent.FAILED, BACK, BACK),
        (NodeEvent.FREE, FORWARD, FORWARD),
    ],
)
def test_a_node_that_went_back_keeps_its_direction_until_it_begins_anew(
    event: NodeEvent, before: Direction, then: Direction
) -> None:
    assert next_direction(event, before) is then


def test_only_a_node_of_a_canary_wave_is_a_canary() -> None:
    canary, later = Wave(number=1, nodes=(), is_canary=True), Wave(number=2, nodes=(), is_canary=False)
    present = replace(rollout(1), waves=(canary, later))

    found = {wave: is_canary(replace(node(1, "gpu001"), wave=wave), present) for wave in (None, 1, 2)}

    assert found == {None: False, 1: True, 2: False}


def test_every_stage_but_what_is_lost_is_in_hand_at_work_or_at_rest() -> None:
    assert not IN_HAND & AT_REST
    assert set(NodeStage) - IN_HAND - AT_REST == {NodeStage.SOAKING, NodeStage.LOST}
    assert set(NodeStage) - {stage for stage, _ in NODE_TABLE} == {NodeStage.BACK, NodeStage.SKIPPED}
