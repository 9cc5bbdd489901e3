"""What happens to a rollout: its events, who begins and in which order, who turns round, who is postponed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import Digest, NodeName, PlanId, RolloutId
from ops_pipelines.core.periods import Interval, WorkCalendar
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Component, Release, ReleaseName
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
    Wave,
)
from ops_pipelines.rollouts.course import (
    ROLLOUT_TABLE,
    Turn,
    is_stopped_for_good,
    is_wave_updated,
    next_rollout_state,
    next_stage,
    next_turn,
)
from ops_pipelines.rollouts.fleet import FleetNode, beginning, in_hand, pulled_out, put_off, ready, turning_round
from ops_pipelines.rollouts.gate.evidence import GateVerdict, VerdictKind
from tests.domain.builders import NOW, after, ago
from tests.domain.lifecycle_fleet import ALWAYS, HOUR, calendars, change, fleet_node, fleets, one_way, release

VISIT = 1200.0
LIMITS = RolloutLimits(max_out_count=2, max_pulled_count=1, job_end_limit=timedelta(hours=24))
TWO_WAY, ONE_WAY = release(change()), release(one_way(Component.DRIVER))
CLOSED = WorkCalendar(windows=())
STAGES = sorted(NodeStage, key=lambda each: each.value)
GOOD, STOP, ASK, UNDECIDED = VerdictKind.GOOD, VerdictKind.STOP, VerdictKind.ASK, VerdictKind.UNDECIDED


def said(kind: VerdictKind) -> GateVerdict:
    return GateVerdict(kind=kind, reason=f"the gate says {kind.value}", tests=())


def rollout(*waves: Sequence[str], state: RolloutState = RolloutState.RUNNING, **changes: Any) -> Rollout:
    """Return a rollout an hour in its state; its first two waves are canaries, the second one decides."""
    values: dict[str, Any] = {
        "rollout": RolloutId("ROLL-0001"),
        "release": ReleaseName("driver-2"),
        "release_digest": Digest("0" * 64),
        "plan": PlanId("PLAN-1"),
        "state": state,
        "waves": tuple(
            Wave(
                number=number,
                nodes=tuple(NodeName(each) for each in wave),
                is_canary=number <= 2,
                is_deciding=number == 2,
            )
            for number, wave in enumerate(waves or (["gpu000"], ["gpu001"], ["gpu002", "gpu003"]), start=1)
        ),
        "since": ago(HOUR),
        "owner": "autopilot",
        "reason": "started",
        "created_by": "ada",
        "created_at": ago(HOUR),
        **changes,
    }
    return Rollout(**values)


def node(number: int, stage: NodeStage = NodeStage.PENDING, *, wave: int = 1, **changes: Any) -> RolloutNode:
    values: dict[str, Any] = {"since": ago(HOUR), **changes}
    return RolloutNode(
        rollout=RolloutId("ROLL-0001"), node=NodeName(f"gpu{number:03d}"), wave=wave, stage=stage, **values
    )


def turn(
    present: Rollout, *nodes: RolloutNode, verdict: VerdictKind | None = None, is_one_way: bool = False
) -> RolloutEvent | None:
    found = next_turn(
        present,
        nodes,
        release=ONE_WAY if is_one_way else TWO_WAY,
        verdict=None if verdict is None else said(verdict),
        limits=LIMITS,
    )
    return None if found is None else found.event


def known(*nodes: FleetNode) -> Mapping[NodeName, FleetNode]:
    return {each.node: each for each in nodes}


def begun(
    present: Rollout,
    nodes: Sequence[RolloutNode],
    fleet: Mapping[NodeName, FleetNode],
    *,
    calendar: WorkCalendar = ALWAYS,
) -> tuple[str, ...]:
    found = ready(present, nodes, fleet=fleet, calendar=calendar, visit_seconds=VISIT, now=NOW)
    return tuple(each.node for each in found)


def off(
    present: Rollout,
    *nodes: RolloutNode,
    fleet: Mapping[NodeName, FleetNode],
    calendar: WorkCalendar = ALWAYS,
    full: str = "",
) -> dict[str, RolloutNode]:
    found = put_off(
        present,
        nodes,
        fleet=fleet,
        calendar=calendar,
        limits=LIMITS,
        visit_seconds=VISIT,
        now=NOW,
        why_full=(lambda _: full) if full else None,
    )
    return {each.node: each for each in found}


# -- which event --


@pytest.mark.parametrize(
    ("stage", "event"),
    [
        (NodeStage.PENDING, None),
        (NodeStage.RETURNING, None),
        (NodeStage.SOAKING, RolloutEvent.WAVE_UPDATED),
        (NodeStage.PULLED, RolloutEvent.WAVE_UPDATED),
        (NodeStage.SKIPPED, RolloutEvent.WAVE_UPDATED),
        (NodeStage.LOST, RolloutEvent.WAVE_UPDATED),
        (NodeStage.BACK, RolloutEvent.WAVE_UPDATED),
    ],
)
def test_a_wave_is_updated_when_none_of_it_is_to_come_or_in_hand(stage: NodeStage, event: RolloutEvent | None) -> None:
    of_wave = (node(0, stage), node(1, NodeStage.SOAKING))

    assert turn(rollout(), *of_wave, node(9, wave=2)) is event
    assert is_wave_updated(rollout(), of_wave) is (event is not None)


@pytest.mark.parametrize(
    ("wave", "is_one_way", "event"),
    [
        (1, False, RolloutEvent.WAVE_GOOD),
        (2, False, RolloutEvent.WAVE_GOOD),
        (3, False, RolloutEvent.LAST_WAVE_GOOD),
        (2, True, RolloutEvent.ONE_WAY_NEXT),
        (3, True, RolloutEvent.LAST_WAVE_GOOD),
    ],
)
def test_a_good_wave_is_followed_by_the_next_by_a_question_or_by_the_end(
    wave: int, is_one_way: bool, event: RolloutEvent
) -> None:
    soaking = rollout(state=RolloutState.SOAKING, wave=wave)

    assert turn(soaking, node(0, NodeStage.SOAKING, wave=wave), verdict=GOOD, is_one_way=is_one_way) is event


@pytest.mark.parametrize(
    ("verdict", "event"),
    [(None, None), (UNDECIDED, None), (ASK, RolloutEvent.GATE_UNDECIDED), (STOP, RolloutEvent.GATE_STOPPED)],
)
def test_a_wave_that_is_not_found_good_waits_asks_or_goes_back(
    verdict: VerdictKind | None, event: RolloutEvent | None
) -> None:
    assert turn(rollout(state=RolloutState.SOAKING), node(0, NodeStage.SOAKING), verdict=verdict) is event


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (RolloutState.RUNNING, RolloutEvent.GATE_STOPPED),
        (RolloutState.SOAKING, RolloutEvent.GATE_STOPPED),
        (RolloutState.PAUSED, RolloutEvent.GATE_STOPPED),
        (RolloutState.ASKING, RolloutEvent.GATE_STOPPED),
        (RolloutState.AWAITING_YES, None),
        (RolloutState.ENDING, None),
        (RolloutState.STUCK, None),
        (RolloutState.GOING_BACK, None),
    ],
)
def test_the_gate_stops_what_goes_on_or_would_after_a_pause(state: RolloutState, event: RolloutEvent | None) -> None:
    on_its_way = (node(0, NodeStage.SOAKING), node(1, NodeStage.INSTALLING))

    assert turn(rollout(state=state), *on_its_way, verdict=STOP) is event


def test_the_gate_does_not_end_the_pause_of_a_way_back() -> None:
    paused = rollout(state=RolloutState.PAUSED, paused_from=RolloutState.GOING_BACK)

    assert turn(paused, node(0, NodeStage.SOAKING), verdict=STOP) is None


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (RolloutState.RUNNING, RolloutEvent.GATE_UNDECIDED),
        (RolloutState.SOAKING, RolloutEvent.GATE_UNDECIDED),
        (RolloutState.PAUSED, None),
        (RolloutState.ASKING, None),
    ],
)
def test_what_cannot_go_back_is_not_sent_back_by_the_gate_but_asked_about(
    state: RolloutState, event: RolloutEvent | None
) -> None:
    assert turn(rollout(state=state), node(0, NodeStage.SOAKING), verdict=STOP, is_one_way=True) is event


@pytest.mark.parametrize(
    ("state", "kind", "is_for_good"),
    [
        (RolloutState.ASKING, ONE_WAY, True),
        (RolloutState.RUNNING, ONE_WAY, False),
        (RolloutState.ASKING, TWO_WAY, False),
    ],
)
def test_only_what_the_gate_stopped_and_cannot_go_back_is_stopped_for_good(
    state: RolloutState, kind: Release, is_for_good: bool
) -> None:
    found = next_turn(rollout(), (node(0, NodeStage.SOAKING),), release=kind, verdict=said(STOP), limits=LIMITS)
    assert found is not None

    assert is_stopped_for_good(replace(rollout(state=state), reason=found.reason)) is is_for_good


@pytest.mark.parametrize(("failed", "excused", "is_asked"), [(1, 0, False), (2, 0, True), (2, 1, False), (3, 1, True)])
def test_more_nodes_that_failed_than_allowed_and_excused_ask(failed: int, excused: int, is_asked: bool) -> None:
    nodes = [node(number, NodeStage.BACK, failure=f"{number}") for number in range(failed)]

    event = turn(rollout(excused_count=excused), *nodes, node(9))

    assert (event is RolloutEvent.GATE_UNDECIDED) is is_asked


@pytest.mark.parametrize("stage", [NodeStage.DRAINING, NodeStage.RETURNING, NodeStage.PULLED])
def test_no_wave_is_good_before_who_failed_alone_is_back(stage: NodeStage) -> None:
    soaking = rollout(state=RolloutState.SOAKING)

    assert turn(soaking, node(0, NodeStage.SOAKING), node(1, stage), verdict=GOOD) is None


def test_what_failed_and_cannot_go_back_holds_no_wave_up() -> None:
    soaking = rollout(state=RolloutState.SOAKING)

    event = turn(soaking, node(0, NodeStage.SOAKING), node(1, NodeStage.PULLED), verdict=GOOD, is_one_way=True)

    assert event is RolloutEvent.ONE_WAY_NEXT


@pytest.mark.parametrize(
    ("wave", "earlier", "event"),
    [
        (1, NodeStage.SKIPPED, RolloutEvent.WAVE_GOOD),
        (2, NodeStage.UPDATED, RolloutEvent.GATE_UNDECIDED),
        (3, NodeStage.UPDATED, RolloutEvent.LAST_WAVE_GOOD),
        (3, NodeStage.SKIPPED, RolloutEvent.GATE_UNDECIDED),
    ],
)
def test_an_empty_wave_passes_unless_nothing_would_have_been_shown(
    wave: int, earlier: NodeStage, event: RolloutEvent
) -> None:
    soaking = rollout(state=RolloutState.SOAKING, wave=wave)

    assert turn(soaking, node(0, NodeStage.SKIPPED, wave=wave), node(1, earlier, wave=0)) is event


@pytest.mark.parametrize("stage", [NodeStage.PULLED, NodeStage.DRAINING])
def test_an_empty_wave_waits_for_who_is_on_its_way_back(stage: NodeStage) -> None:
    soaking = rollout(state=RolloutState.SOAKING, wave=3)
    nodes = (node(0, NodeStage.UPDATED), node(1, stage, wave=2), node(2, NodeStage.SKIPPED, wave=3))

    assert turn(soaking, *nodes, verdict=GOOD) is None


@pytest.mark.parametrize(
    ("stage", "event"),
    [
        (NodeStage.BACK, RolloutEvent.ALL_BACK),
        (NodeStage.SKIPPED, RolloutEvent.ALL_BACK),
        (NodeStage.PENDING, RolloutEvent.ALL_BACK),
        (NodeStage.LOST, RolloutEvent.BACK_FAILED),
        (NodeStage.SOAKING, None),
        (NodeStage.UPDATED, None),
        (NodeStage.PULLED, None),
        (NodeStage.TESTING, None),
    ],
)
def test_a_way_back_is_over_when_every_touched_node_is_back_or_lost(
    stage: NodeStage, event: RolloutEvent | None
) -> None:
    back = rollout(state=RolloutState.GOING_BACK)

    assert turn(back, node(0, stage, since=NOW), node(1, NodeStage.BACK)) is event


@pytest.mark.parametrize(("seconds", "is_tried"), [(-1.0, True), (0.0, False), (1.0, False)])
def test_who_was_lost_before_somebody_sent_it_back_again_is_tried_once_more(seconds: float, is_tried: bool) -> None:
    back = rollout(state=RolloutState.GOING_BACK, since=NOW)
    lost = node(0, NodeStage.LOST, since=after(seconds))

    assert begun(back, [lost], known(fleet_node(0, is_in_service=False))) == (("gpu000",) if is_tried else ())
    assert (turn(back, lost) is None) is is_tried


@pytest.mark.parametrize("stage", STAGES)
def test_what_was_ended_is_over_when_nobody_is_in_hand_or_pulled_out(stage: NodeStage) -> None:
    is_waited_for = stage in IN_HAND or stage is NodeStage.PULLED

    event = turn(rollout(state=RolloutState.ENDING), node(0, stage), node(1))

    assert (event is None) is is_waited_for


# -- who begins --


@pytest.mark.parametrize(
    ("changes", "is_ready"),
    [
        ({}, True),
        ({"is_in_service": False}, False),
        ({"why_not": "drained by somebody else"}, False),
        ({"free_at": after(HOUR)}, True),
        ({"free_at": after(30 * HOUR)}, True),
        ({"is_idle": False}, True),
    ],
)
def test_a_pending_node_of_the_present_wave_begins_unless_it_is_out(changes: dict[str, Any], is_ready: bool) -> None:
    assert begun(rollout(), [node(0)], known(fleet_node(0, **changes))) == (("gpu000",) if is_ready else ())


@pytest.mark.parametrize("state", [each for each in RolloutState if each is not RolloutState.RUNNING])
def test_nobody_begins_while_a_rollout_does_not_run(state: RolloutState) -> None:
    assert begun(rollout(state=state), [node(0)], known(fleet_node(0))) == ()


def test_a_node_that_nobody_knows_any_more_does_not_begin() -> None:
    assert begun(rollout(), [node(0)], {}) == ()


def test_nodes_of_another_wave_wait_for_theirs() -> None:
    assert begun(rollout(), [node(0, wave=2), node(1, wave=3)], known(fleet_node(0), fleet_node(1))) == ()


def test_idle_nodes_begin_first_then_who_is_free_soonest_then_who_is_not_known() -> None:
    fleet = known(
        fleet_node(0, is_idle=False),
        fleet_node(1, free_at=after(5 * HOUR)),
        fleet_node(2, free_at=after(HOUR)),
        fleet_node(3),
    )

    assert begun(rollout(), [node(number) for number in range(4)], fleet) == ("gpu003", "gpu002", "gpu001", "gpu000")


@pytest.mark.parametrize(
    ("minutes", "free_minutes", "is_ready"),
    [(19, None, False), (20, None, True), (21, None, True), (79, 60, False), (80, 60, True), (81, 60, True)],
)
def test_a_visit_fits_into_what_is_left_of_the_window(minutes: int, free_minutes: int | None, is_ready: bool) -> None:
    window = WorkCalendar(windows=(Interval(begins_at=ago(HOUR), ends_at=after(minutes * 60)),))
    free_at = None if free_minutes is None else after(free_minutes * 60)

    found = begun(rollout(), [node(0)], known(fleet_node(0, free_at=free_at)), calendar=window)

    assert found == (("gpu000",) if is_ready else ())


def test_a_job_without_an_end_fits_into_no_window_and_begins_where_there_is_none() -> None:
    window = WorkCalendar(windows=(Interval(begins_at=ago(HOUR), ends_at=after(100 * HOUR)),))
    endless = known(fleet_node(0, is_idle=False))

    assert begun(rollout(), [node(0)], endless, calendar=window) == ()
    assert begun(rollout(), [node(0)], endless) == ("gpu000",)


@pytest.mark.parametrize("calendar", [CLOSED, ALWAYS])
def test_nodes_at_work_go_back_whether_a_window_is_open_or_not(calendar: WorkCalendar) -> None:
    back = rollout(state=RolloutState.GOING_BACK, stopped_because="Xid 79")
    nodes = [node(0, NodeStage.SOAKING), node(1, NodeStage.UPDATED), node(2), node(3, NodeStage.BACK)]
    fleet = known(*(fleet_node(number) for number in range(4)))

    assert begun(back, nodes, fleet, calendar=calendar) == ("gpu000", "gpu001")


def test_a_broken_node_goes_back_last_and_not_while_jobs_are_on_it() -> None:
    back = rollout(state=RolloutState.GOING_BACK)
    nodes = [node(number, NodeStage.UPDATED) for number in range(3)]
    fleet = known(
        fleet_node(0, trouble="INC-0001: Xid 79"),
        fleet_node(1, trouble="INC-0002: Xid 79", jobs=("42",), is_idle=False),
        fleet_node(2, free_at=after(HOUR)),
    )

    assert begun(back, nodes, fleet) == ("gpu002", "gpu000")


@pytest.mark.parametrize(("most", "count"), [(0, 0), (1, 0), (2, 1), (3, 2), (9, 3)])
def test_no_more_begin_than_places_are_left(most: int, count: int) -> None:
    nodes = [node(0, NodeStage.TESTING), *(node(number) for number in range(1, 4))]

    found = beginning(
        rollout(),
        nodes,
        fleet=known(*(fleet_node(number) for number in range(4))),
        calendar=ALWAYS,
        limits=RolloutLimits(max_out_count=most),
        visit_seconds=VISIT,
        now=NOW,
    )

    assert [each.node for each in found] == ["gpu001", "gpu002", "gpu003"][:count]


def test_a_node_that_waits_on_its_way_back_until_it_is_repaired_takes_no_place() -> None:
    nodes = (
        node(0, NodeStage.DRAINING, direction=Direction.BACK),
        node(1, NodeStage.DRAINING, direction=Direction.BACK),
        node(2, NodeStage.DRAINING),
        node(3, NodeStage.INSTALLING, direction=Direction.BACK),
        node(4, NodeStage.SOAKING),
    )
    broken = {"trouble": "INC-0001: Xid 79"}
    fleet = known(fleet_node(0), *(fleet_node(number, **broken) for number in range(1, 5)))

    assert in_hand(nodes, fleet) == {"gpu000", "gpu002", "gpu003"}


# -- who turns round --


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("direction", Direction)
def test_who_has_more_than_a_drain_behind_it_turns_round_where_it_stands(
    stage: NodeStage, direction: Direction
) -> None:
    turns = stage in IN_HAND and stage is not NodeStage.DRAINING and direction is Direction.FORWARD

    found = turning_round(rollout(state=RolloutState.GOING_BACK), [node(0, stage, direction=direction)])

    assert [each.event for each in found] == ([NodeEvent.GO_BACK] if turns else [])


@pytest.mark.parametrize("state", [each for each in RolloutState if each is not RolloutState.GOING_BACK])
def test_nobody_turns_round_in_any_other_state(state: RolloutState) -> None:
    assert turning_round(rollout(state=state), [node(0, NodeStage.INSTALLING)]) == ()


def test_who_failed_alone_goes_back_alone_if_its_release_can() -> None:
    nodes = [node(0, NodeStage.PULLED, reason="no image"), node(1, NodeStage.LOST), node(2, NodeStage.SOAKING)]

    (found,) = pulled_out(nodes, release=TWO_WAY)

    assert (found.node, found.event, found.reason) == ("gpu000", NodeEvent.GO_BACK, "failed alone: no image")
    assert pulled_out(nodes, release=ONE_WAY) == ()


# -- who is postponed --


@pytest.mark.parametrize(("is_in_hand", "is_put_off"), [(True, False), (False, True)])
def test_who_came_back_in_this_pass_still_fills_the_places_and_puts_nobody_off(
    is_in_hand: bool, is_put_off: bool
) -> None:
    since = ago(50 * HOUR)
    fleet = known(fleet_node(0), fleet_node(1, is_in_hand=is_in_hand))
    back = node(1, NodeStage.SOAKING, since=NOW)

    found = off(rollout(since=since), node(0, since=since), back, fleet=fleet, full="the budget")

    assert bool(found) is is_put_off


@pytest.mark.parametrize(
    ("changes", "hours", "wave"),
    [
        ({"why_not": "INC-0001 is about it"}, 0.99, None),
        ({"why_not": "INC-0001 is about it"}, 1.0, 3),
        ({"is_in_service": False}, 1.01, 3),
        ({"is_idle": False}, 23.99, None),
        ({"is_idle": False}, 24.0, 3),
    ],
)
def test_who_holds_its_wave_up_is_put_off_to_the_last_one_after_a_while(
    changes: dict[str, Any], hours: float, wave: int | None
) -> None:
    window = WorkCalendar(windows=(Interval(begins_at=ago(50 * HOUR), ends_at=after(2 * HOUR)),))
    since = ago(hours * HOUR)
    fleet = known(fleet_node(0, **changes))

    found = off(rollout(since=since), node(0, since=since), fleet=fleet, calendar=window)

    assert {each.wave for each in found.values()} == ({wave} if wave else set())
    assert all(each.stage is NodeStage.PENDING for each in found.values())


def test_the_while_begins_with_the_wave_or_with_the_node_whichever_is_later() -> None:
    broken = known(fleet_node(0, is_in_service=False))

    assert off(rollout(since=ago(60)), node(0, since=ago(9 * HOUR)), fleet=broken) == {}
    assert off(rollout(since=ago(9 * HOUR)), node(0, since=ago(60)), fleet=broken) == {}


def test_who_holds_the_last_wave_up_is_left_out_with_the_reason() -> None:
    last = rollout(wave=3, since=ago(2 * HOUR))

    found = off(last, node(0, wave=3, since=ago(2 * HOUR)), fleet={})

    assert (found["gpu000"].stage, found["gpu000"].reason) == (NodeStage.SKIPPED, "nobody knows it any more")


@pytest.mark.parametrize(
    ("other", "is_held"),
    [
        (node(1), False),
        (node(1, NodeStage.DRAINING), False),
        (node(1, wave=2), True),
        (node(1, NodeStage.SOAKING), True),
    ],
)
def test_nobody_is_put_off_while_the_wave_has_something_else_to_do(other: RolloutNode, is_held: bool) -> None:
    fleet = known(fleet_node(0, is_in_service=False), fleet_node(1))
    broken = node(0, since=ago(9 * HOUR))

    assert bool(off(rollout(since=ago(9 * HOUR)), broken, other, fleet=fleet)) is is_held


def test_nobody_is_put_off_while_no_window_is_open_or_the_rollout_is_paused() -> None:
    broken = node(0, since=ago(9 * HOUR))

    assert off(rollout(since=ago(9 * HOUR)), broken, fleet={}, calendar=CLOSED) == {}
    assert off(rollout(state=RolloutState.PAUSED, since=ago(9 * HOUR)), broken, fleet={}) == {}


@pytest.mark.parametrize(("hours", "is_put_off"), [(23.9, False), (24.0, True)])
def test_who_finds_no_room_for_a_day_is_put_off_with_the_budget_that_is_full(hours: float, is_put_off: bool) -> None:
    since = ago(hours * HOUR)

    found = off(rollout(since=since), node(0, since=since), fleet=known(fleet_node(0)), full="rack r00")

    reasons = ["postponed to wave 3: no room: rack r00"] if is_put_off else []
    assert [each.reason for each in found.values()] == reasons


@pytest.mark.parametrize(
    ("wave", "tries", "hours_ago", "is_put_off"),
    [(1, 2, 0.5, True), (1, 2, 1.0, True), (1, 2, 1.5, False), (1, 1, 0.5, False), (3, 2, 0.5, False)],
)
def test_who_was_put_back_in_this_wave_is_tried_again_in_the_last_one(
    wave: int, tries: int, hours_ago: float, is_put_off: bool
) -> None:
    put_back = node(0, wave=wave, try_number=tries, since=ago(hours_ago * HOUR), reason="job 42 did not end")
    fleet = known(fleet_node(0))
    present = rollout(wave=wave)

    assert bool(off(present, put_back, fleet=fleet)) is is_put_off
    assert begun(present, [put_back], fleet) == (() if is_put_off else ("gpu000",))


@st.composite
def situations(draw: st.DrawFn) -> tuple[Rollout, tuple[RolloutNode, ...], Mapping[NodeName, FleetNode]]:
    """Return a rollout in any state over any fleet, with every node in any stage."""
    fleet = draw(fleets(most=6))
    wave_count = draw(st.integers(min_value=1, max_value=4))
    nodes = []
    for number, each in enumerate(fleet):
        stage = draw(st.sampled_from([*STAGES, NodeStage.PENDING, NodeStage.PENDING]))
        nodes.append(
            replace(
                node(number, stage, wave=draw(st.integers(min_value=1, max_value=wave_count))),
                node=each.node,
                direction=draw(st.sampled_from(Direction)),
                since=ago(draw(st.sampled_from([0, 1, 30])) * HOUR),
                try_number=draw(st.sampled_from([1, 1, 2])),
                failure=draw(st.sampled_from(["", "", "", "install: no"])),
            )
        )
    state = draw(st.sampled_from([each for each in RolloutState if each not in FINAL]))
    present = rollout(
        *([each.node for each in nodes if each.wave == number] for number in range(1, wave_count + 1)),
        state=state,
        wave=draw(st.integers(min_value=1, max_value=wave_count)),
        since=ago(draw(st.sampled_from([0, 2, 30])) * HOUR),
        paused_from=draw(st.sampled_from([RolloutState.RUNNING, RolloutState.SOAKING, RolloutState.GOING_BACK]))
        if state is RolloutState.PAUSED
        else None,
    )
    drained = draw(st.sets(st.sampled_from([each.node for each in fleet])))
    shown = {
        each.node: replace(each, trouble="INC-0001: Xid 79", jobs=("42",)) if each.node in drained else each
        for each in fleet
    }
    forgotten = draw(st.sets(st.sampled_from([each.node for each in fleet]), max_size=2))
    return present, tuple(nodes), {name: each for name, each in shown.items() if name not in forgotten}


verdicts = st.one_of(st.none(), st.sampled_from([said(kind) for kind in VerdictKind]))
directions = st.sampled_from([TWO_WAY, ONE_WAY])


@settings(max_examples=60, deadline=None)
@given(situations(), verdicts, directions)
def test_every_turn_is_one_that_the_table_knows_and_says_why(situation, verdict, kind) -> None:
    present, nodes, _ = situation

    found = next_turn(present, nodes, release=kind, verdict=verdict, limits=LIMITS)

    if found is None:
        return
    assert found.reason
    to = next_rollout_state(present.state, found.event)
    assert (present.state, found.event) in ROLLOUT_TABLE
    assert present.state not in OF_PEOPLE or found.event is RolloutEvent.GATE_STOPPED
    assert to is not RolloutState.GOING_BACK or not kind.is_one_way


@settings(max_examples=60, deadline=None)
@given(situations(), verdicts, directions)
def test_no_wave_is_good_and_nothing_over_with_a_node_in_hand_or_on_the_way_out(situation, verdict, kind) -> None:
    present, nodes, _ = situation

    found = next_turn(present, nodes, release=kind, verdict=verdict, limits=LIMITS)

    if found is not None and next_rollout_state(present.state, found.event) in FINAL | {RolloutState.AWAITING_YES}:
        assert not any(each.stage in IN_HAND for each in nodes)
        assert not pulled_out(nodes, release=kind)
    if found is not None and found.event is RolloutEvent.WAVE_GOOD:
        assert not any(each.stage in IN_HAND for each in nodes)


@settings(max_examples=60, deadline=None)
@given(situations(), calendars(), st.integers(min_value=0, max_value=6), st.integers(min_value=-40, max_value=40))
def test_whoever_begins_has_a_place_a_window_and_a_legal_way(situation, calendar, most, hour) -> None:
    present, nodes, fleet = situation
    now: datetime = NOW + timedelta(hours=hour)
    limits = RolloutLimits(max_out_count=most)
    of = {each.node: each for each in nodes}
    asked = {"fleet": fleet, "calendar": calendar, "visit_seconds": VISIT, "now": now}

    found = beginning(present, nodes, limits=limits, **asked)

    assert found == ready(present, nodes, **asked)[: max(0, most - len(in_hand(nodes, fleet)))]
    assert len({each.node for each in found}) == len(found)
    for each in found:
        assert next_stage(of[each.node].stage, each.event, direction=of[each.node].direction) is NodeStage.DRAINING
        if each.event is NodeEvent.BEGIN:
            assert calendar.is_open(now)
            assert of[each.node].wave == present.wave
            assert fleet[each.node].is_in_service
            assert not fleet[each.node].why_not
    idle_first = [not fleet[each.node].is_idle for each in found if each.event is NodeEvent.BEGIN]
    assert idle_first == sorted(idle_first)


@settings(max_examples=60, deadline=None)
@given(situations(), calendars(), st.booleans())
def test_who_could_begin_is_never_put_off_and_who_is_keeps_a_place_in_the_rollout(situation, calendar, is_full) -> None:
    present, nodes, fleet = situation
    asked = {"fleet": fleet, "calendar": calendar, "visit_seconds": VISIT, "now": NOW}

    found = put_off(present, nodes, limits=LIMITS, why_full=(lambda _: "rack r00") if is_full else None, **asked)

    able = {each.node for each in ready(present, nodes, **asked)}
    assert is_full or not able or not found
    of = {each.node: each for each in nodes}
    for each in found:
        assert of[each.node].stage is NodeStage.PENDING
        assert of[each.node].wave == present.wave
        assert each.reason
        is_last = present.wave == len(present.waves)
        assert (each.stage, each.wave) == (
            NodeStage.SKIPPED if is_last else NodeStage.PENDING,
            len(present.waves),
        )


@settings(max_examples=60, deadline=None)
@given(situations(), directions)
def test_whoever_turns_round_or_is_pulled_out_may_and_only_once(situation, kind) -> None:
    present, nodes, fleet = situation
    of = {each.node: each for each in nodes}
    first = ready(present, nodes, fleet=fleet, calendar=ALWAYS, visit_seconds=VISIT, now=NOW)

    starting = (*turning_round(present, nodes), *pulled_out(nodes, release=kind), *first)

    assert len({each.node for each in starting}) == len(starting)
    for each in starting:
        next_stage(of[each.node].stage, each.event, direction=of[each.node].direction)


def test_a_turn_is_said_in_words_that_name_who_it_is_about() -> None:
    back = rollout(state=RolloutState.GOING_BACK)
    lost = (node(1, NodeStage.LOST, since=NOW), node(0, NodeStage.LOST, since=NOW))

    found = next_turn(back, lost, release=TWO_WAY, verdict=None, limits=LIMITS)

    assert found == Turn(event=RolloutEvent.BACK_FAILED, reason="gpu000, gpu001 could not be restored")
