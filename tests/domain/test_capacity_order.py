from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.model import OrderLine, SeriesKey, SeriesOutlook
from ops_pipelines.capacity.need import MOST_ORDERED, TypeWeek, days_to_serve, fewest, find_need
from ops_pipelines.capacity.order import Bound, Places, expansion_line, expansion_of, order_line, usable_limit
from ops_pipelines.core.money import Cents
from ops_pipelines.teams.projects import CapacityPolicy, LeadTime, Sku, StoreExpansion
from tests.domain.capacity_examples import AS_OF, H100, certain, day, even, sku, usable, weeks_of

POLICY = CapacityPolicy()
ANY_WEEK = CapacityPolicy(least_short_weeks=1)
SERIES = SeriesKey(resource="gpus", gpu_type=H100)


def line_of(
    weeks: Sequence[TypeWeek],
    skus: Sequence[Sku],
    *,
    policy: CapacityPolicy = POLICY,
    room: Mapping[str, Places] | None = None,
) -> OrderLine:
    need = find_need(weeks, skus, policy=policy, as_of=AS_OF)
    return order_line(need, weeks, series=SERIES, policy=policy, as_of=AS_OF, room=room or {})


def test_the_date_is_the_first_short_day_less_all_that_it_takes() -> None:
    # Short from day 70: 20 days to deliver, 5 to put up, 3 of burn-in.
    line = line_of(weeks_of([90.0] * 10 + [117.0] * 5), [sku()])

    assert line.short_from == day(70)
    assert line.order_by == day(70 - 28)
    assert line.earliest_relief == day(28)
    assert not line.is_overdue
    # 17 more GPUs are needed: three nodes of 8.
    assert line.count == 3
    assert line.cents == 300_000


@pytest.mark.parametrize(("total_days", "is_overdue"), [(27, False), (28, False), (29, True)])
def test_an_order_of_the_very_day_is_in_time_and_a_day_later_is_not(total_days: int, is_overdue: bool) -> None:
    # Short from day 28.
    line = line_of(weeks_of([90.0] * 4 + [108.0] * 8), [sku(days=total_days, rack_days=0, burn_in_days=0)])

    assert line.order_by == day(28 - total_days)
    assert line.is_overdue is is_overdue
    assert line.earliest_relief == day(total_days)
    assert ("before anything can arrive" in line.why) is is_overdue


@pytest.mark.parametrize(("needed", "nodes"), [(108.0, 1), (108.1, 2), (116.0, 2), (107.9, 1)])
def test_nodes_are_the_smallest_whole_number_that_keeps_every_week(needed: float, nodes: int) -> None:
    assert line_of(weeks_of([90.0] * 6 + [101.0, needed, 101.0]), [sku()]).count == nodes


def test_weeks_before_the_earliest_service_need_no_nodes_and_are_named() -> None:
    # Serves from day 28: weeks 0 to 3 cannot be helped, and the largest peak is among them.
    line = line_of(weeks_of([180.0] * 4 + [108.0] * 4), [sku()])

    assert line.count == 1
    assert line.is_overdue
    assert f"4 weeks from {day(0)} to {day(21)} are short before anything can arrive on {day(28)}" in line.why


def test_a_shortage_that_is_over_before_anything_arrives_needs_no_nodes() -> None:
    line = line_of(weeks_of([180.0] * 2 + [90.0] * 8), [sku()])

    assert (line.count, line.is_overdue) == (0, True)
    assert "nothing that is ordered now helps" in line.why


def test_where_the_lead_time_is_longer_than_the_horizon_the_last_week_is_held_and_that_is_said() -> None:
    line = line_of(weeks_of([90.0] * 2 + [108.0] * 2), [sku(days=100.0)])

    assert line.count == 1
    assert "after the horizon" in line.why


def test_nodes_that_are_bought_are_out_like_the_others() -> None:
    # Of 100 installed 80 are usable; 8 more usable need 10 installed: two nodes.
    tail = weeks_of([88.0])[0].tail
    weeks = [
        TypeWeek(first_day=day(7 * number), tail=tail, supply=usable((80.0, 1.0), week=number, installed=100.0))
        for number in range(8)
    ]

    assert line_of(weeks, [sku()]).count == 2


def test_a_type_that_is_not_short_has_a_line_without_an_order() -> None:
    line = line_of(weeks_of([90.0] * 8), [sku()])

    assert (line.short_from, line.order_by, line.count, line.cents) == (None, None, 0, None)
    assert "not short within 8 weeks" in line.why


def test_single_weeks_above_the_limit_are_told_though_they_are_no_order() -> None:
    line = line_of(weeks_of([90.0, 90.0, 120.0, *[90.0] * 8]), [sku()])

    assert line.short_from is None
    assert "1 single week is above the limit" in line.why


@pytest.mark.parametrize(
    ("short", "said"),
    [
        (1, f"the week from {day(0)} on is short before anything can arrive on {day(28)}"),
        (2, f"2 weeks from {day(0)} to {day(7)} are short before anything can arrive on {day(28)}"),
    ],
)
def test_weeks_before_relief_are_counted_as_people_count(short: int, said: str) -> None:
    line = line_of(weeks_of([180.0] * short + [90.0] * (4 - short) + [108.0] * 4), [sku()], policy=ANY_WEEK)

    assert said in line.why
    assert f"1 node of 8 GPUs keeps every week from {day(28)} on within it" in line.why


def test_without_a_sku_there_is_a_line_that_says_so() -> None:
    line = line_of(weeks_of([120.0] * 8), [])

    assert (line.what, line.count, line.order_by, line.cents) == ("h100", 0, None, None)
    assert "no SKU is stated for h100" in line.why


def test_without_a_lead_time_there_is_a_number_and_no_date() -> None:
    line = line_of(weeks_of([90.0] * 4 + [108.0] * 4), [sku(days=None)])

    assert (line.count, line.order_by, line.earliest_relief, line.is_overdue) == (1, None, None, False)
    assert "no lead time of hgx is known" in line.why


def test_bought_is_the_cheapest_that_is_in_time_and_else_the_fastest() -> None:
    cheap, fast = sku("cheap", days=60.0, price=50_000), sku("fast", days=10.0, price=200_000)
    unknown = sku("unknown", days=None, price=1)

    assert line_of(weeks_of([90.0] * 20 + [120.0] * 4), [unknown, fast, cheap]).what == "cheap"
    assert line_of(weeks_of([90.0] * 4 + [120.0] * 20), [unknown, fast, cheap]).what == "fast"
    assert line_of(weeks_of([120.0] * 24), [unknown, fast, cheap]).what == "fast"


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (2, "fits 2 of 3 nodes; the rest needs power of rack r1 by"),
        (3, "there is room for all of them (3)"),
        (4, "there is room for all of them (4)"),
        (None, "whether there is room is not known"),
    ],
)
def test_room_is_held_against_what_is_needed(places: int | None, words: str) -> None:
    room = {} if places is None else {"hgx": Places(nodes=places, bound_by="power of rack r1")}

    assert words in line_of(weeks_of([90.0] * 10 + [117.0] * 5), [sku()], room=room).why


@pytest.mark.parametrize("nodes", [2, 3])
def test_what_is_not_known_of_the_room_is_told_beside_it(nodes: int) -> None:
    room = {"hgx": Places(nodes=nodes, bound_by="free places", doubts=("what r3 draw is not known and counted as 0",))}

    line = line_of(weeks_of([90.0] * 10 + [117.0] * 5), [sku()], room=room)

    assert line.why.endswith("; what r3 draw is not known and counted as 0")


@pytest.mark.parametrize(
    ("in_room", "bound_by", "is_told"),
    [
        (None, "free places", False),
        (1, "free places", True),
        (2, "free places", True),
        (3, "free places", False),
        (1, Bound.ROOM_WATTS.value, False),
    ],
)
def test_new_places_are_not_told_as_enough_where_the_room_s_power_is_not(
    in_room: int | None, bound_by: str, is_told: bool
) -> None:
    # Three nodes are needed, one fits.
    room = {"hgx": Places(nodes=1, bound_by=bound_by, nodes_in_room=in_room)}

    line = line_of(weeks_of([90.0] * 10 + [117.0] * 5), [sku()], room=room)

    assert f"fits 1 of 3 nodes; the rest needs {bound_by} by" in line.why
    assert (f"the room's power feeds no more than {in_room} of them, wherever they are" in line.why) is is_told
    assert ("wherever" in line.why) is is_told


def test_the_day_for_room_is_the_day_on_which_nodes_are_put_up() -> None:
    line = line_of(weeks_of([90.0] * 10 + [117.0] * 5), [sku()], room={"hgx": Places(nodes=0, bound_by="places")})

    assert f"the rest needs places by {day(70 - 8)}" in line.why


@pytest.mark.parametrize(("delivery", "days"), [(20.0, 20), (20.1, 21), (19.9, 20)])
def test_days_are_rounded_up(delivery: float, days: int) -> None:
    assert days_to_serve(LeadTime(median_days=delivery, p90_days=delivery), quantile=0.9) == days


@pytest.mark.parametrize("needed", [0, 1, 2, 3, 7, 8, 9, 99_999, MOST_ORDERED])
def test_the_fewest_are_found_exactly(needed: int) -> None:
    assert fewest(lambda count: count >= needed) == needed


def test_where_no_number_is_enough_none_is_told() -> None:
    assert fewest(lambda count: count < 0) is None


def test_where_nothing_that_is_installed_is_usable_no_order_helps_and_that_is_said() -> None:
    tail = weeks_of([88.0])[0].tail
    weeks = [
        TypeWeek(first_day=day(7 * number), tail=tail, supply=usable((0.0, 1.0), week=number, installed=100.0))
        for number in range(8)
    ]

    line = line_of(weeks, [sku()])

    assert (line.count, line.cents) == (0, None)
    assert "too little of what is installed is usable" in line.why


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(50, 400), min_size=8, max_size=20), st.integers(1, 16), st.integers(1, 60))
def test_with_the_nodes_no_week_is_short_and_with_one_less_some_week_is(highs: list[int], gpus: int, lead: int) -> None:
    weeks = weeks_of([even(0.5 * high, high, week=number) for number, high in enumerate(highs)])
    need = find_need(weeks, [sku(days=float(lead), gpus_per_node=gpus)], policy=POLICY, as_of=AS_OF)

    judged = [each for each in weeks if need.in_service_on is not None and each.first_day >= need.in_service_on]
    judged = judged or [weeks[-1]]
    if need.short_from is not None:
        assert all(each.chance_with(need.nodes * gpus) <= 0.1 for each in judged)
        assert need.nodes == 0 or any(each.chance_with((need.nodes - 1) * gpus) > 0.1 for each in judged)


def storage(*peaks: float) -> SeriesOutlook:
    return SeriesOutlook(
        key=SeriesKey(resource="storage_bytes", name="/scratch"),
        treatment="ordinary",
        weeks=tuple(certain(peak, week=number) for number, peak in enumerate(peaks)),
    )


def more(*, lead: float | None = 14.0, step: float = 50.0, ratio: float = 0.85) -> StoreExpansion:
    return StoreExpansion(
        resource="storage_bytes",
        names=("/scratch",),
        step=step,
        step_cents=Cents(1000),
        lead_time=None if lead is None else LeadTime(median_days=lead, p90_days=lead),
        usable_ratio=ratio,
    )


def full_line(outlook: SeriesOutlook, expansion: StoreExpansion | None, *, limit: float = 100.0) -> OrderLine | None:
    held = usable_limit(outlook.key, limit, expansion=expansion, policy=POLICY)
    return expansion_line(outlook, limit=held, expansion=expansion, policy=POLICY, as_of=AS_OF)


def test_a_file_system_is_enlarged_before_it_passes_what_may_be_used_of_it() -> None:
    # 85 of 100 may be used; 120 at the end need 85 % of 150.
    line = full_line(storage(80, 84, 85, 85.1, 100, 120), more())

    assert line is not None
    assert (line.short_from, line.order_by, line.count, line.cents) == (day(21), day(7), 1, 1000)
    assert (line.gpu_type, line.is_overdue, line.earliest_relief) == (None, False, day(14))


@pytest.mark.parametrize(("last", "steps"), [(127.5, 1), (127.6, 2), (127.4, 1)])
def test_steps_are_as_many_as_the_last_week_needs(last: float, steps: int) -> None:
    line = full_line(storage(80, 84, 85, 90, 100, last), more())

    assert line is not None
    assert line.count == steps


def test_what_stays_below_its_limit_has_no_line() -> None:
    assert full_line(storage(80, 85, 85, 85), more()) is None


def test_what_nobody_said_how_to_enlarge_has_a_line_without_an_order() -> None:
    line = full_line(storage(101, 102), None)

    assert line is not None
    assert (line.count, line.order_by, line.cents) == (0, None, None)
    assert "nobody stated how it is enlarged" in line.why


def test_an_expansion_without_lead_time_has_steps_and_no_date() -> None:
    line = full_line(storage(101, 102), more(lead=None))

    assert line is not None
    assert (line.count, line.order_by) == (1, None)
    assert "no lead time" in line.why


def test_links_are_full_at_the_policy_s_share_of_their_rate() -> None:
    leaf = SeriesOutlook(
        key=SeriesKey(resource="network_ratio", name="leaf1"),
        treatment="ordinary",
        weeks=tuple(certain(peak, week=number) for number, peak in enumerate((0.7, 0.81, 0.82))),
    )

    line = full_line(leaf, None, limit=1.0)

    assert line is not None
    assert (line.short_from, line.what) == (day(7), "links of leaf1")


def test_an_expansion_is_for_the_series_that_it_names_and_for_none_if_it_names_none() -> None:
    key = SeriesKey(resource="storage_bytes", name="/scratch")
    for_none = StoreExpansion(resource="storage_bytes", names=(), step=1, step_cents=Cents(1), lead_time=None)

    assert expansion_of(key, [for_none, more()]) == more()
    assert expansion_of(key, [for_none]) is None


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit 0; expected more than 0"):
        full_line(storage(1), more(), limit=0.0)


def test_a_stated_ninety_percent_point_comes_back_without_a_day_more() -> None:
    assert days_to_serve(LeadTime(median_days=84, p90_days=112), quantile=0.9, more_days=10) == 122
    assert days_to_serve(LeadTime(median_days=84, p90_days=112.5), quantile=0.9) == 113
