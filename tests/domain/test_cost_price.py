"""What the assets cost: exact, rounded once, for the share of the month in which they stood."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.money import Cents, read_amount, share_cents, show_cents, to_cents
from ops_pipelines.core.periods import BilledPart, CostMonth, month_to_date, whole_month
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.price import Installed, InstalledAsset, Item, asset_cost
from tests.domain.cost_facts import H100, JUNE, PRICES, first, one_node

NAMES = st.text(alphabet="abcd", min_size=1, max_size=3)
WEIGHTS = st.dictionaries(NAMES, st.integers(0, 10**6), min_size=1, max_size=8).filter(lambda each: any(each.values()))


@given(total=st.integers(-(10**9), 10**9), weights=WEIGHTS)
def test_shares_add_up_and_are_within_one_cent_of_exact(total: int, weights: dict[str, int]) -> None:
    shares = share_cents(Cents(total), weights)

    assert sum(shares.values()) == total
    for name, share in shares.items():
        assert abs(share - Fraction(total * weights[name], sum(weights.values()))) < 1


@given(total=st.integers(0, 10**6), weights=WEIGHTS, data=st.data())
def test_the_order_of_names_changes_no_share(total: int, weights: dict[str, int], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(weights.items()))))

    assert share_cents(Cents(total), shuffled) == share_cents(Cents(total), weights)


def test_a_tie_goes_to_the_smaller_name() -> None:
    assert share_cents(Cents(4), {"b": 1, "a": 1, "c": 1}) == {"a": 2, "b": 1, "c": 1}
    assert share_cents(Cents(5), {"b": 1, "a": 1, "c": 1}) == {"a": 2, "b": 2, "c": 1}
    assert share_cents(Cents(-5), {"b": 1, "a": 1, "c": 1}) == {"a": -2, "b": -2, "c": -1}


def test_who_has_no_weight_pays_nothing() -> None:
    assert share_cents(Cents(7), {"a": 0, "b": 3, "c": 0}) == {"a": 0, "b": 7, "c": 0}


def test_cents_that_nobody_can_bear_are_refused() -> None:
    with pytest.raises(ValueError, match="nobody to bear them"):
        share_cents(Cents(1), {"a": 0})
    assert share_cents(Cents(0), {"a": 0}) == {"a": 0}


@pytest.mark.parametrize(
    ("amount", "cents"),
    [("0.49", 0), ("0.5", 1), ("0.51", 1), ("1.5", 2), ("2.5", 3), ("-0.5", -1), ("-0.49", 0)],
)
def test_a_half_cent_goes_away_from_zero(amount: str, cents: int) -> None:
    assert to_cents(Fraction(amount)) == cents


@pytest.mark.parametrize(("cents", "text"), [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (-1205, "-12.05"), (100, "1.00")])
def test_cents_are_shown_with_two_places(cents: int, text: str) -> None:
    assert show_cents(Cents(cents)) == text


def test_prices_are_read_exactly() -> None:
    assert read_amount("0.1", what="price") * 3 == Fraction(3, 10)
    for wrong in ("-1", "nan", "inf", "1e9", "1/3", "ten", "", " 1", "1.", "٣"):
        with pytest.raises(ValueError, match="expected a number of 0 or more"):
            read_amount(wrong, what="price")


def test_a_node_that_stands_all_month_costs_its_monthly_price_whatever_the_clock_does() -> None:
    paris_march = CostMonth(  # 743 hours: the clock is put forward on the 29th
        year=2026,
        month=3,
        begins_at=datetime(2026, 2, 28, 23, tzinfo=UTC),
        ends_at=datetime(2026, 3, 31, 22, tzinfo=UTC),
    )
    cents = {
        month.name: asset_cost(whole_month(month), Installed(assets=[one_node(whole_month(month))]), PRICES).cents_of(
            Item.CAPEX, gpu_type=H100
        )
        for month in (JUNE, paris_march)
    }

    assert paris_march.seconds == 743 * 3600
    assert cents == {"2026-06": 625_000, "2026-03": 625_000}


def test_a_node_that_stands_half_the_month_costs_half() -> None:
    part = first(360)

    cost = asset_cost(part, Installed(assets=[one_node(part)]), PRICES)

    assert cost.cents_of(Item.CAPEX, gpu_type=H100) == 312_500
    assert abs(cost.cents_of(Item.SPACE) - Fraction(33_333, 2)) < 1


@pytest.mark.parametrize(
    ("paid_since", "is_paid"),
    [((2026, 7), False), ((2026, 6), True), ((2022, 7), True), ((2022, 6), False), (None, True)],
)
def test_capex_is_paid_from_its_first_month_to_its_last(paid_since: tuple[int, int] | None, is_paid: bool) -> None:
    price = replace(PRICES.assets[0], paid_since=paid_since)

    assert (price.capex_of(JUNE) > 0) is is_paid


def test_energy_is_measured_joules_times_pue_and_price() -> None:
    part = whole_month(JUNE)
    prices = replace(PRICES, assets=(), space_cents_per_month=0, support_cents_per_month=0, network_cents_per_month=0)

    cost = asset_cost(part, Installed(assets=[], joules=1_000 * 3_600_000), prices)

    assert [(each.item, each.cents) for each in cost.items] == [(Item.ENERGY, 14_950)]  # 1000 kWh * 1.3 * 11.5 cents


def test_energy_that_nobody_measured_is_estimated_and_told_or_refused() -> None:
    part = whole_month(JUNE)
    installed = Installed(assets=[], unmeasured_gpu_seconds=3600)

    assert asset_cost(part, installed, PRICES).estimated_joules == 700 * 3600
    with pytest.raises(ValueError, match=r"1\.0 GPU-hours was not measured"):
        asset_cost(part, installed, replace(PRICES, unmeasured_watts_per_gpu=None))


def test_all_assets_without_a_price_are_named() -> None:
    part = whole_month(JUNE)
    unknown = [
        InstalledAsset(asset=name, gpu_type=GpuType(""), node_seconds=1, gpu_seconds=8)
        for name in ("gb200", "dgx-a100")
    ]

    with pytest.raises(ValueError, match="no price for dgx-a100, gb200"):
        asset_cost(part, Installed(assets=unknown), PRICES)


def test_machines_without_gpus_are_borne_by_all_types() -> None:
    part = whole_month(JUNE)
    login = InstalledAsset(asset="hgx-h100", gpu_type=GpuType(""), node_seconds=part.seconds, gpu_seconds=0)

    cost = asset_cost(part, Installed(assets=[login]), PRICES)

    assert cost.cents_of(Item.CAPEX) == 625_000


@given(node_seconds=st.integers(0, JUNE.seconds), joules=st.integers(0, 10**12), stored=st.integers(0, 2**62))
def test_items_add_up_to_the_rounded_exact_total(node_seconds: int, joules: int, stored: int) -> None:
    part = whole_month(JUNE)
    node = InstalledAsset(asset="hgx-h100", gpu_type=H100, node_seconds=node_seconds, gpu_seconds=8 * node_seconds)

    cost = asset_cost(part, Installed(assets=[node], joules=joules, storage_byte_seconds=stored), PRICES)

    exact = (
        Fraction(node_seconds * 30_000_001, 48 * JUNE.seconds)
        + 33_333 + 100_001 + 77_777
        + Fraction(joules, 3_600_000) * Fraction("1.3") * Fraction("11.5")
        + Fraction(stored, 2**40 * JUNE.seconds) * Fraction(1_999, 2)
    )  # fmt: skip
    assert cost.cents == to_cents(exact)


@pytest.mark.parametrize(("minutes", "hours"), [(0, None), (59, None), (60, 1), (61, 1), (119, 1), (120, 2)])
def test_month_to_date_counts_whole_hours(minutes: int, hours: int | None) -> None:
    part = month_to_date(JUNE, now=JUNE.begins_at + timedelta(minutes=minutes))

    assert (None if part is None else part.seconds // 3600) == hours


def test_month_to_date_after_the_month_is_the_month() -> None:
    assert month_to_date(JUNE, now=datetime(2027, 1, 1, tzinfo=UTC)) == whole_month(JUNE)


def test_a_part_that_reaches_beyond_its_month_is_refused() -> None:
    with pytest.raises(ValueError, match="is not within 2026-06"):
        BilledPart(month=JUNE, since=JUNE.begins_at, until=JUNE.ends_at + timedelta(seconds=1))
    with pytest.raises(ValueError, match="expected it to end after it begins"):
        BilledPart(month=JUNE, since=JUNE.begins_at, until=JUNE.begins_at)
    with pytest.raises(ValueError, match="whole seconds"):
        BilledPart(month=JUNE, since=JUNE.begins_at, until=JUNE.begins_at + timedelta(seconds=1.5))
