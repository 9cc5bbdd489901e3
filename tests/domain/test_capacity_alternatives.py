from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.capacity.chances import DayProfile
from ops_pipelines.capacity.model import Alternative, Way
from ops_pipelines.capacity.need import ADVICE_DAYS, Means, TypeWeek, compare_ways, find_need
from ops_pipelines.core.money import Cents
from ops_pipelines.teams.projects import CapacityPolicy, Sku
from tests.domain.capacity_examples import AS_OF, H100, day, even, sku, weeks_of

POLICY = CapacityPolicy()
PROFILE = DayProfile(near_peak_hours=10.0)
"""70 hours of a week."""


def ways_of(
    weeks: Sequence[TypeWeek],
    *,
    skus: Sequence[Sku] = (),
    movable: float | None = None,
    idle: float | None = None,
    followed: float | None = None,
    cloud: int | None = None,
) -> dict[Way, Alternative]:
    means = Means(
        profile=PROFILE,
        movable_ratio=movable,
        idle_ratio=idle,
        followed_ratio=followed,
        cloud_cents_per_gpu_hour=None if cloud is None else Cents(cloud),
    )
    need = find_need(weeks, skus, policy=POLICY, as_of=AS_OF)
    return {each.way: each for each in compare_ways(H100, weeks, need, means, policy=POLICY, as_of=AS_OF)}


SHORT = weeks_of([90.0] * 5 + [108.0] * 5)
"""Short by 8 GPUs from day 35 on: 5 x 8 x 70 GPU-hours."""


def test_doing_nothing_leaves_the_shortage_and_costs_nothing() -> None:
    nothing = ways_of(SHORT)[Way.NOTHING]

    assert (nothing.worst_shortage_probability, nothing.cents, nothing.takes_effect_on) == (1.0, 0, None)
    assert nothing.short_gpu_hours == pytest.approx(2800)


def test_buying_ends_it_from_the_day_of_service_and_costs_its_months() -> None:
    # One node of 8, in service from day 28: 42 days of the horizon, 1 / 48 of the price and support a month.
    bought = ways_of(SHORT, skus=[sku(price=4_800_000, support=10_000)])[Way.BUY]

    assert (bought.gpus, bought.worst_shortage_probability, bought.short_gpu_hours) == (8, 0.0, 0.0)
    assert bought.takes_effect_on == day(28)
    assert bought.cents == round((100_000 + 10_000) * 42 / (365 / 12))


def test_buying_leaves_the_weeks_before_it_serves_short() -> None:
    # In service from day 48: the weeks of days 35 and 42 stay short.
    bought = ways_of(SHORT, skus=[sku(days=40.0)])[Way.BUY]

    assert bought.takes_effect_on == day(48)
    assert bought.worst_shortage_probability == 0.0
    assert bought.short_gpu_hours == pytest.approx(2 * 8 * 70)


def test_renting_takes_effect_at_once_and_costs_the_hours_that_are_used() -> None:
    rented = ways_of(SHORT, cloud=300)[Way.CLOUD]

    assert (rented.gpus, rented.takes_effect_on) == (8, AS_OF)
    assert rented.short_gpu_hours == pytest.approx(0)
    assert rented.cents == 2800 * 300


def test_what_is_bought_too_late_is_rented_until_then() -> None:
    # In service from day 48: in the weeks of days 35 and 42, 8 GPUs are rented for 70 hours each.
    ways = ways_of(SHORT, skus=[sku(days=40.0)], cloud=300)
    bought, bridged = ways[Way.BUY], ways[Way.BRIDGE]

    assert (bridged.gpus, bridged.worst_shortage_probability, bridged.takes_effect_on) == (8, 0.0, AS_OF)
    assert bridged.short_gpu_hours == pytest.approx(0)
    assert bought.cents is not None
    assert bridged.cents == bought.cents + 2 * 8 * 70 * 300
    assert (
        f"serves from {day(48)}; until then at most 8 GPUs rented at a time, 1,120 GPU-hours expected" in bridged.said
    )


@pytest.mark.parametrize(
    ("days", "is_offered"),
    [
        # To the delivery; 8 more until service. The first short week begins on day 35, the last one on day 63.
        (27.0, False),
        (28.0, True),
        (55.0, True),
        (56.0, False),
    ],
)
def test_renting_until_nodes_serve_is_offered_where_weeks_before_and_after_that_day_are_short(
    days: float, is_offered: bool
) -> None:
    assert (Way.BRIDGE in ways_of(SHORT, skus=[sku(days=days)], cloud=300)) is is_offered


def test_a_cloud_without_a_price_and_a_node_without_a_sku_are_not_offered() -> None:
    assert set(ways_of(SHORT)) == {Way.NOTHING, Way.QUOTAS, Way.EFFICIENCY}


@pytest.mark.parametrize(("movable", "hours", "worst"), [(0.0, 2800, 1.0), (0.05, 910, 1.0), (0.08, 0, 0.0)])
def test_work_that_may_wait_lowers_every_peak(movable: float, hours: float, worst: float) -> None:
    # 108 less 5 % are 102.6: short by 2.6 for 70 hours of 5 weeks.
    moved = ways_of(SHORT, movable=movable)[Way.QUOTAS]

    assert moved.short_gpu_hours == pytest.approx(hours)
    assert moved.worst_shortage_probability == worst
    assert moved.gpus == pytest.approx(108 * movable)


def test_advice_is_followed_by_one_half_unless_it_was_measured() -> None:
    assumed = ways_of(SHORT, idle=0.1)[Way.EFFICIENCY]
    measured = ways_of(SHORT, idle=0.1, followed=0.8)[Way.EFFICIENCY]

    assert assumed.gpus == pytest.approx(5.4)
    assert "10.0 % of what runs is idle, and 50 % of advice is followed (assumed)" in assumed.said
    assert measured.gpus == pytest.approx(108 * 0.08)
    assert "80 % of advice is followed (measured)" in measured.said
    assert measured.short_gpu_hours == pytest.approx(0)
    assert measured.takes_effect_on == day(ADVICE_DAYS)


@pytest.mark.parametrize(
    ("idle", "share", "lower"), [(0.0434, "4.3 %", "2.2 %"), (0.044, "4.4 %", "2.2 %"), (0.04, "4.0 %", "2.0 %")]
)
def test_the_shares_that_are_told_of_advice_give_what_is_told_of_them(idle: float, share: str, lower: str) -> None:
    said = ways_of(SHORT, idle=idle)[Way.EFFICIENCY].said

    assert said.startswith(f"{share} of what runs is idle, and 50 % of advice is followed")
    assert f"every peak becomes lower by {lower};" in said


def test_what_nobody_measured_is_counted_as_nothing_and_said() -> None:
    found = ways_of(SHORT)

    assert found[Way.QUOTAS].gpus == found[Way.EFFICIENCY].gpus == 0
    assert "not measured" in found[Way.QUOTAS].said
    assert "not measured" in found[Way.EFFICIENCY].said


@pytest.mark.parametrize(("peak", "is_offered"), [(100_100.0, True), (100_101.0, False)])
def test_a_cloud_that_cannot_be_large_enough_is_not_offered(peak: float, is_offered: bool) -> None:
    assert (Way.CLOUD in ways_of(weeks_of([90.0, peak, peak]), cloud=300)) is is_offered


def test_a_cloud_that_is_large_enough_only_until_nodes_serve_is_offered_until_then() -> None:
    # By itself it cannot carry the last weeks; until day 48 it can, and the line reports by itself what it rests on.
    ways = ways_of(weeks_of([90.0] * 5 + [108.0] * 2 + [100_101.0] * 3), skus=[sku(days=40.0)], cloud=300)

    assert Way.CLOUD not in ways
    assert "until then at most 8 GPUs rented" in ways[Way.BRIDGE].said
    assert "assumes that the cloud has them" in ways[Way.BRIDGE].said


def test_without_weeks_there_is_nothing_to_compare() -> None:
    assert ways_of([]) == {}


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a share of 1.5 may wait"):
        Means(profile=PROFILE, movable_ratio=1.5)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.integers(60, 300), min_size=6, max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_no_way_is_worse_than_doing_nothing(highs: list[int], movable: float, idle: float) -> None:
    weeks = weeks_of([even(0.5 * high, high, week=number) for number, high in enumerate(highs)])

    found = ways_of(weeks, skus=[sku()], movable=movable, idle=idle, cloud=100)

    if Way.BRIDGE in found:
        assert found[Way.BRIDGE].short_gpu_hours <= found[Way.BUY].short_gpu_hours + 1e-6
    for each in found.values():
        assert each.short_gpu_hours <= found[Way.NOTHING].short_gpu_hours + 1e-6
        assert each.worst_shortage_probability <= found[Way.NOTHING].worst_shortage_probability + 1e-9
        assert each.cents is not None
        assert each.cents >= 0
