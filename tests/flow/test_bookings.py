"""Nodes that come next are kept free of long jobs: few, shortly before, and no longer than they are waited for."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId, NodeName, Place
from ops_pipelines.core.periods import Interval, WorkCalendar
from ops_pipelines.core.rollout import Booking, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.rollouts.cycle import LEAD, Prospect, wanted_booking
from ops_pipelines.rollouts.fleet import FleetNode
from tests.ports.ledger_samples import NOW
from tests.ports.rollout_samples import node, rollout, wave

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
VISIT = 20 * MINUTE
NAMES = tuple(f"gpu{number:03d}" for number in range(1, 7))
ALWAYS = WorkCalendar(windows=None)
TONIGHT = WorkCalendar(windows=(Interval(begins_at=NOW + 2 * HOUR, ends_at=NOW + 6 * HOUR),))
RUNNING = replace(rollout(1), waves=(wave(1, *NAMES),))


def seen(name: str, *, free_in: timedelta | None = None, is_idle: bool = False, **known: object) -> FleetNode:
    """Return a node that is idle, or whose jobs end at a time, or nobody knows when."""
    plain = FleetNode(
        node=NodeName(name),
        model="h100",
        place=Place(rack="r1", nvlink_domain=name, leaf_switch="l1"),
        gpu_count=8,
        versions={},
        is_in_service=True,
        free_at=None if free_in is None else NOW + free_in,
        is_idle=is_idle,
        jobs=() if is_idle else (JobId("1"),),
    )
    return replace(plain, **known)  # type: ignore[arg-type]  # names of its own fields


def prospect(
    *fleet: FleetNode, calendar: WorkCalendar = ALWAYS, max_out_count: int = 2, later: timedelta = timedelta(0)
) -> Prospect:
    return Prospect(
        fleet={each.node: each for each in fleet},
        calendar=calendar,
        max_out_count=max_out_count,
        visit=VISIT,
        now=NOW + later,
    )


def nodes(*in_hand: str, names: Sequence[str] = NAMES) -> tuple[RolloutNode, ...]:
    """Return nodes of which some are being installed since just now, and the others wait."""
    return tuple(
        replace(node(1, name, stage=NodeStage.INSTALLING if name in in_hand else NodeStage.PENDING), deadline=None)
        for name in names
    )


def booked(present: Rollout, of: Sequence[RolloutNode], ahead: Prospect) -> dict[str, object]:
    found = wanted_booking(present, of, ahead)
    return {} if found is None else {"nodes": found.nodes, "in": found.begins_at - ahead.now}


def test_those_that_are_free_soonest_are_booked_from_when_a_place_is_there() -> None:
    fleet = [seen(name, free_in=number * 30 * MINUTE) for number, name in enumerate(NAMES)]

    found = wanted_booking(RUNNING, nodes("gpu001", "gpu002"), prospect(*fleet))

    assert found == Booking(
        name="ops-ROLL-0001-w1",
        nodes=(NodeName("gpu003"), NodeName("gpu004")),
        begins_at=NOW + 60 * MINUTE,
        ends_at=NOW + 90 * MINUTE + VISIT + HOUR,
    )


def test_idle_node_is_booked_from_the_first_place_on() -> None:
    fleet = [seen(name, is_idle=True) for name in NAMES]

    assert booked(RUNNING, nodes("gpu001", "gpu002"), prospect(*fleet)) == {"nodes": ("gpu003", "gpu004"), "in": VISIT}


def test_node_that_begins_at_once_needs_no_booking() -> None:
    fleet = [seen(name, is_idle=True) for name in NAMES]

    assert booked(RUNNING, nodes(), prospect(*fleet)) == {}


def test_before_a_window_opens_its_first_nodes_are_booked_from_its_beginning() -> None:
    fleet = [seen(name, is_idle=True) for name in NAMES]

    found = booked(RUNNING, nodes(), prospect(*fleet, calendar=TONIGHT))

    assert found == {"nodes": ("gpu001", "gpu002"), "in": 2 * HOUR}


@pytest.mark.parametrize(
    ("free_in", "is_booked"), [(LEAD - timedelta(seconds=1), True), (LEAD, True), (LEAD + timedelta(seconds=1), False)]
)
def test_only_the_next_hours_are_booked(free_in: timedelta, is_booked: bool) -> None:
    found = booked(RUNNING, nodes("gpu001", "gpu002"), prospect(seen("gpu003", free_in=free_in)))

    assert bool(found) is is_booked


@pytest.mark.parametrize(
    ("window", "is_booked"),
    [(VISIT - timedelta(seconds=1), False), (VISIT, True), (VISIT + timedelta(seconds=1), True)],
)
def test_window_that_is_too_short_for_a_visit_books_nothing(window: timedelta, is_booked: bool) -> None:
    tonight = WorkCalendar(windows=(Interval(begins_at=NOW + HOUR, ends_at=NOW + HOUR + window),))

    found = booked(RUNNING, nodes(names=["gpu001"]), prospect(seen("gpu001", is_idle=True), calendar=tonight))

    assert bool(found) is is_booked


@pytest.mark.parametrize(
    "unfit",
    [
        {"free_in": None},
        {"free_in": HOUR, "why_not": "INC-0001 is about it"},
        {"free_in": HOUR, "is_in_service": False},
    ],
)
def test_node_of_which_nobody_knows_when_it_is_free_or_that_is_not_ours_to_take_is_not_booked(
    unfit: dict[str, object],
) -> None:
    fleet = [seen("gpu003", **unfit), seen("gpu004", free_in=2 * HOUR)]  # type: ignore[arg-type]  # its own fields

    assert booked(RUNNING, nodes("gpu001"), prospect(*fleet))["nodes"] == ("gpu004",)


@pytest.mark.parametrize("state", [each for each in RolloutState if each is not RolloutState.RUNNING])
def test_whatever_does_not_go_forward_books_nothing(state: RolloutState) -> None:
    fleet = [seen(name, free_in=HOUR) for name in NAMES]

    assert wanted_booking(replace(RUNNING, state=state), nodes("gpu001", "gpu002"), prospect(*fleet)) is None


def test_node_of_a_later_wave_is_not_booked() -> None:
    later = tuple(replace(each, wave=2) for each in nodes())

    assert wanted_booking(RUNNING, later, prospect(*(seen(name, free_in=HOUR) for name in NAMES))) is None


@pytest.mark.parametrize(
    ("moved", "is_kept"), [(timedelta(0), True), (10 * MINUTE, True), (11 * MINUTE, False), (-11 * MINUTE, False)]
)
def test_booking_is_changed_only_when_its_times_have_moved_far(moved: timedelta, is_kept: bool) -> None:
    first = wanted_booking(RUNNING, nodes("gpu001"), prospect(seen("gpu003", free_in=HOUR)))
    assert first is not None
    asked = replace(RUNNING, booking=replace(first, is_accepted=True))

    again = wanted_booking(asked, nodes("gpu001"), prospect(seen("gpu003", free_in=HOUR + moved)))

    assert (again == asked.booking) is is_kept


@pytest.mark.parametrize(
    ("later", "is_kept"),
    [(HOUR, True), (2 * HOUR + VISIT - timedelta(seconds=1), True), (2 * HOUR + VISIT, False), (9 * HOUR, False)],
)
def test_node_that_has_time_but_does_not_begin_is_waited_for_until_its_booking_ends_and_no_longer(
    later: timedelta, is_kept: bool
) -> None:
    """Another budget holds it up, perhaps for days: it works on meanwhile."""
    first = wanted_booking(RUNNING, nodes("gpu001"), prospect(seen("gpu003", free_in=HOUR)))
    asked = replace(RUNNING, booking=first)

    again = wanted_booking(asked, nodes(names=["gpu003"]), prospect(seen("gpu003", is_idle=True), later=later))

    assert again == (first if is_kept else None)


FLEETS = st.lists(
    st.builds(
        lambda free_in, is_idle, is_in_service: {
            "free_in": None if free_in is None else free_in * MINUTE,
            "is_idle": is_idle,
            "is_in_service": is_in_service,
        },
        st.none() | st.integers(0, 600),
        st.booleans(),
        st.booleans(),
    ),
    min_size=len(NAMES),
    max_size=len(NAMES),
)


@given(
    FLEETS, st.sets(st.sampled_from(NAMES)), st.integers(0, 4), st.sampled_from([ALWAYS, TONIGHT]), st.integers(0, 600)
)
def test_no_more_are_booked_than_may_be_out_and_each_within_hours_and_not_in_hand(
    fleet: list[dict[str, object]], in_hand: set[str], most: int, calendar: WorkCalendar, later: int
) -> None:
    known = [seen(name, **each) for name, each in zip(NAMES, fleet, strict=True)]  # type: ignore[arg-type]  # fields
    ahead = prospect(*known, calendar=calendar, max_out_count=most, later=later * MINUTE)
    of = nodes(*in_hand)

    found = wanted_booking(RUNNING, of, ahead)
    if found is None:
        return
    again = wanted_booking(replace(RUNNING, booking=found), of, ahead)

    assert 0 < len(found.nodes) <= most
    assert not set(found.nodes) & in_hand
    assert ahead.now < found.begins_at <= ahead.now + LEAD < found.ends_at + LEAD
    assert calendar.is_open(found.begins_at)
    assert again == found
