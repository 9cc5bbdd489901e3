"""How many nodes fit: places, racks' watts, the room's watts, and what is reported where nobody stated one."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.capacity.model import LEVELS, Resource, SeriesKey, SeriesOutlook, WeekPeak
from ops_pipelines.capacity.order import Bound, drawn_watts, find_room
from ops_pipelines.core.money import Cents
from ops_pipelines.teams.projects import RackRoom, Sku
from tests.domain.capacity_examples import AS_OF, H100

NODE = Sku(
    sku="hgx", gpu_type=H100, gpus_per_node=8, node_cents=Cents(1), watts_per_node=10_000.0, nodes_per_rack=4,
    lead_time=None,
)  # fmt: skip


def rack(name: str, free: int, limit: float | None = None) -> RackRoom:
    return RackRoom(rack=name, free_nodes=free, limit_watts=limit)


def watts(name: str, *peaks: float, resource: Resource = Resource.RACK_WATTS) -> SeriesOutlook:
    return SeriesOutlook(
        key=SeriesKey(resource=resource.value, name=name),
        treatment="ordinary",
        weeks=tuple(
            WeekPeak(
                first_day=AS_OF + timedelta(days=7 * number),
                quantiles=tuple(peak * level for level in LEVELS),
                is_vouched=True,
            )
            for number, peak in enumerate(peaks)
        ),
    )


@pytest.mark.parametrize(
    ("drawn", "nodes", "binds"),
    [
        (59_999.0, 3, Bound.PLACES),
        (60_000.0, 3, Bound.PLACES),
        (60_001.0, 2, Bound.RACK_WATTS),
        (80_001.0, 0, Bound.RACK_WATTS),
        (99_000.0, 0, Bound.RACK_WATTS),
    ],
)
def test_a_rack_takes_what_its_watts_feed(drawn: float, nodes: int, binds: Bound) -> None:
    found = find_room(NODE, racks=[rack("r1", 3, 90_000.0)], drawn={"r1": drawn})

    assert (found.nodes, found.binds, found.by_rack) == (nodes, binds, {"r1": nodes})


def test_no_more_go_into_a_rack_than_the_sku_says_however_many_places_there_are() -> None:
    assert find_room(NODE, racks=[rack("r1", 9)], drawn={}).nodes == 4


@pytest.mark.parametrize(
    ("limit", "nodes", "binds"),
    [(69_999.0, 1, Bound.ROOM_WATTS), (70_000.0, 2, Bound.PLACES), (70_001.0, 2, Bound.PLACES)],
)
def test_the_room_feeds_no_more_than_its_limit(limit: float, nodes: int, binds: Bound) -> None:
    found = find_room(
        NODE,
        racks=[rack("r1", 1, 90_000.0), rack("r2", 1, 90_000.0)],
        drawn={"r1": 20_000.0, "r2": 30_000.0},
        room_limit_watts=limit,
    )

    assert (found.nodes, found.binds) == (nodes, binds)
    assert found.doubts == ("the room's draw is taken for the sum of the 2 racks that are measured, 50 kW",)
    assert found.nodes_in_room == (limit - 50_000) // 10_000


def test_a_series_of_the_whole_room_goes_before_the_sum_of_its_racks() -> None:
    found = find_room(NODE, racks=[rack("r1", 4)], drawn={"": 10_000.0, "r1": 99_000.0}, room_limit_watts=35_000.0)

    assert (found.nodes, found.binds) == (2, Bound.ROOM_WATTS)


def test_what_nobody_stated_or_measured_limits_nothing_and_is_said() -> None:
    found = find_room(NODE, racks=[rack("r1", 2), rack("r2", 4, 35_000.0)], drawn={}, room_limit_watts=1_000.0)

    assert (found.nodes, found.by_rack) == (5, {"r1": 2, "r2": 3})
    assert found.doubts == (
        "what r2 draw is not known and counted as 0",
        "what r1 may draw nobody stated, so only places limit there",
        "what the room draws is not known, so its limit is not held against them",
    )


@pytest.mark.parametrize(
    ("count", "named"), [(1, "r0"), (3, "r0, r1, r2"), (4, "r0 and 3 more racks"), (50, "r0 and 49 more racks")]
)
def test_many_racks_of_which_nothing_is_known_are_counted(count: int, named: str) -> None:
    found = find_room(NODE, racks=[rack(f"r{number}", 1) for number in range(count)], drawn={})

    assert found.doubts[0] == f"what {named} may draw nobody stated, so only places limit there"


def test_without_any_statement_nobody_knows_how_many_fit() -> None:
    found = find_room(NODE, racks=[], drawn={"r1": 5.0})

    assert (found.nodes, found.binds) == (None, Bound.UNKNOWN)


def test_without_racks_the_rooms_power_is_told_alone() -> None:
    found = find_room(NODE, racks=[], drawn={"": 5_000.0}, room_limit_watts=30_000.0)

    assert (found.nodes, found.binds) == (2, Bound.ROOM_WATTS)
    assert found.doubts == ("free places nobody stated",)


def test_a_node_without_watts_is_refused() -> None:
    free = Sku(
        sku="x", gpu_type=H100, gpus_per_node=8, node_cents=Cents(1), watts_per_node=0.0, nodes_per_rack=1,
        lead_time=None,
    )  # fmt: skip

    with pytest.raises(ValueError, match="x draws 0 W a node; expected more than 0"):
        find_room(free, racks=[rack("r1", 1)], drawn={})


def test_a_racks_draw_is_the_highest_peak_at_95_percent_of_the_weeks_asked_for() -> None:
    outlooks = [
        watts("r1", 100.0, 200.0, 900.0), watts("r2"), watts("x", 9.0, resource=Resource.COOLING_WATTS),
        watts("", 50.0),
    ]  # fmt: skip

    assert drawn_watts(outlooks, weeks=2) == pytest.approx({"r1": 190.0, "": 47.5})
    assert drawn_watts(outlooks, weeks=0) == {}


@given(
    free=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    drawn=st.lists(st.floats(0, 120_000), min_size=5, max_size=5),
    limit=st.floats(1, 500_000),
)
def test_whatever_fits_is_within_every_limit(free: list[int], drawn: list[float], limit: float) -> None:
    racks = [rack(f"r{number}", count, 90_000.0) for number, count in enumerate(free)]
    draws = {each.rack: watts for each, watts in zip(racks, drawn, strict=False)}

    found = find_room(NODE, racks=racks, drawn=draws, room_limit_watts=limit)

    assert found.nodes is not None
    assert 0 <= found.nodes <= sum(free)
    for each in racks:
        count = found.by_rack[each.rack]
        assert 0 <= count <= min(each.free_nodes, NODE.nodes_per_rack)
        assert count == 0 or draws[each.rack] + count * NODE.watts_per_node <= 90_000.0
    assert found.nodes == 0 or sum(draws.values()) + found.nodes * NODE.watts_per_node <= limit * (1 + 1e-12)
