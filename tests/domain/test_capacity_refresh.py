"""Hardware against its replacement: age, failures compared exactly, and what an hour's work costs on either."""

from dataclasses import replace
from datetime import date
from fractions import Fraction
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.capacity.model import RefreshLine
from ops_pipelines.capacity.planning import Batch, chance_of_as_many, judge_batches
from ops_pipelines.core.money import Cents
from ops_pipelines.teams.price import AssetPrice, PricedBy, PriceModel
from ops_pipelines.teams.projects import CapacityPolicy, Sku
from tests.domain.capacity_examples import H100

AS_OF = date(2026, 10, 1)
OLD = Batch(
    asset="hgx-a100", racks=("r1", "r2"), gpu_type=H100, gpus=128, gpus_per_node=8, installed_since=date(2023, 10, 1),
    failures=4, node_years=16.0, hours_lost_ratio=0.0, watts_per_gpu=1000.0,
)  # fmt: skip
NEW = Sku(
    sku="hgx-b200", gpu_type=H100, gpus_per_node=8, node_cents=Cents(730 * 48 * 800), watts_per_node=8_000.0,
    nodes_per_rack=4, lead_time=None, amortized_months=48, work_ratio=2.0,
)  # fmt: skip
PRICES = PriceModel(
    currency="EUR",
    assets=(
        AssetPrice(
            asset="hgx-a100", priced_by=PricedBy.NODE, capex_cents=Cents(730 * 48 * 400), amortized_months=48,
            support_cents_per_month=730 * 80, paid_since=(2023, 10),
        ),
    ),
    cents_per_kwh=Fraction(20),
    pue=Fraction(3, 2),
)  # fmt: skip


def judge(
    *batches: Batch, skus: tuple[Sku, ...] = (NEW,), prices: PriceModel | None = PRICES, as_of: date = AS_OF
) -> tuple[RefreshLine, ...]:
    return judge_batches(batches, skus=skus, prices=prices, policy=CapacityPolicy(), as_of=as_of)


def test_an_hours_work_costs_energy_support_and_what_is_still_to_be_paid() -> None:
    (line,) = judge(OLD)

    # Of the batch: 400 / 8 + 80 / 8 a GPU-hour, and 1 kW at 20 cents with a PUE of 1.5. Of the replacement, for
    # twice the work: (800 / 8 + 30) / 2.
    assert line.cents_per_work_hour == pytest.approx(50 + 10 + 30)
    assert line.replacement_cents_per_work_hour == pytest.approx(65)
    assert (line.replacement, line.is_due) == ("hgx-b200", False)
    assert (
        "an hour's work costs 90.0 cents, 50.0 of them capital that is paid either way; on hgx-b200 65.0" in line.said
    )
    assert "due where 40.0, which ends if it goes, is 1.25 times that or more" in line.said


@pytest.mark.parametrize(("work_ratio", "is_due"), [(4.06, False), (4.07, True)])
def test_a_batch_is_due_once_its_work_is_dearer_by_the_margin(work_ratio: float, is_due: bool) -> None:
    # Without capital 40 cents, against 130 / 4.06 = 32.02 and 130 / 4.07 = 31.94; due from 1.25 times that on.
    (line,) = judge(OLD, skus=(replace(NEW, work_ratio=work_ratio),))

    assert line.is_due is is_due
    assert "due where 40.0, which ends if it goes, is 1.25 times that or more" in line.said


def test_what_is_paid_off_costs_no_capex_any_more() -> None:
    (before,) = judge(OLD, as_of=date(2027, 9, 30))
    (after,) = judge(OLD, as_of=date(2027, 10, 1))

    assert before.cents_per_work_hour == pytest.approx(90)
    assert after.cents_per_work_hour == pytest.approx(40)
    assert (before.is_due, after.is_due) == (False, False)
    assert "capital" not in after.said


def test_hours_lost_to_failures_make_the_others_dearer() -> None:
    (line,) = judge(replace(OLD, hours_lost_ratio=0.1))

    assert line.cents_per_work_hour == pytest.approx(90 / 0.9)
    assert line.replacement_cents_per_work_hour == pytest.approx(65 / 0.9)
    assert "10.0 % of its hours are lost" in line.said


def test_a_price_by_gpu_is_not_shared_out_among_the_gpus_of_a_node() -> None:
    by_gpu = replace(PRICES, assets=(replace(PRICES.assets[0], priced_by=PricedBy.GPU),))

    assert judge(OLD, prices=by_gpu)[0].cents_per_work_hour == pytest.approx(400 + 80 + 30)


@pytest.mark.parametrize(
    ("since", "months", "is_due"),
    [
        (date(2021, 10, 2), 59, False),
        (date(2021, 10, 1), 60, True),
        (date(2021, 9, 30), 60, True),
        (date(2026, 10, 1), 0, False),
        (date(2027, 1, 1), 0, False),
    ],
)
def test_what_is_older_than_the_policy_says_is_due(since: date, months: int, is_due: bool) -> None:
    (line,) = judge(replace(OLD, installed_since=since), prices=None)

    assert line.age_months is not None
    assert (int(line.age_months), line.is_due) == (months, is_due)


def test_what_nobody_stated_is_said_and_judged_by_nothing() -> None:
    (line,) = judge(replace(OLD, installed_since=None, failures=None, node_years=0.0), skus=(), prices=None)

    assert (line.age_months, line.failures_per_node_year, line.cents_per_work_hour) == (None, None, None)
    assert (line.replacement, line.is_due) == ("", False)
    for words in ("nobody stated", "no failures were recorded", "no SKU of its type is stated"):
        assert words in line.said


@pytest.mark.parametrize(
    ("batch", "prices", "words"),
    [
        (replace(OLD, asset="other"), PRICES, "what other cost is not stated under `prices`"),
        (replace(OLD, watts_per_gpu=None), PRICES, "what it draws was not measured, so keeping it has no price"),
        (
            replace(OLD, watts_per_gpu=None),
            replace(PRICES, unmeasured_watts_per_gpu=500),
            "draws 500 W a GPU (assumed: not measured)",
        ),
        (replace(OLD, hours_lost_ratio=None), PRICES, "hours lost to failures were not measured and count as 0"),
    ],
)
def test_what_is_missing_for_a_price_is_said(batch: Batch, prices: PriceModel, words: str) -> None:
    assert words in judge(batch, prices=prices)[0].said


def test_a_sku_of_another_type_replaces_nothing_and_the_cheapest_work_goes_first() -> None:
    dear = replace(NEW, sku="a-dear", work_ratio=1.0)
    other = replace(NEW, sku="other", gpu_type=type(H100)("a100"), node_cents=Cents(0))

    assert judge(OLD, skus=(dear, other, NEW))[0].replacement == "hgx-b200"
    assert judge(OLD, skus=(dear, other, NEW), prices=None)[0].replacement == "hgx-b200"


@pytest.mark.parametrize(("years", "is_told"), [(0.99, False), (1.0, True), (1.01, True)])
def test_a_rate_of_failures_is_told_only_where_enough_was_seen(years: float, is_told: bool) -> None:
    other = replace(OLD, asset="rest", failures=0, node_years=50.0)

    line = next(each for each in judge(replace(OLD, node_years=years), other) if each.asset == "hgx-a100")

    assert (line.failures_per_node_year is not None) is is_told
    assert ("too short a time for a rate" in line.said) is not is_told
    assert line.fleet_failures_per_node_year == 0.0


@pytest.mark.parametrize(
    ("failures", "words"), [(40, "more often than chance alone explains"), (6, "chance alone may explain it")]
)
def test_failures_are_compared_with_the_rest_of_the_fleet(failures: int, words: str) -> None:
    rest = replace(OLD, asset="rest", failures=20, node_years=64.0)

    line = next(each for each in judge(replace(OLD, failures=failures), rest) if each.asset == "hgx-a100")

    assert line.failures_per_node_year == failures / 16
    assert line.fleet_failures_per_node_year == 20 / 64
    assert words in line.said


def test_the_chance_is_that_of_a_binomial_and_exact() -> None:
    # 3 of 4 or more in a fifth of the time: 4 * 0.2^3 * 0.8 + 0.2^4.
    assert chance_of_as_many(3, 1.0, others=1, other_years=4.0) == pytest.approx(0.0272)
    assert chance_of_as_many(0, 1.0, others=9, other_years=1.0) == 1.0
    assert 0 < chance_of_as_many(4000, 1.0, others=3000, other_years=1.0) < exp(-60)
    assert chance_of_as_many(50_000, 1.0, others=50_000, other_years=1.0) == pytest.approx(0.5, abs=0.01)


@given(failures=st.integers(1, 60), others=st.integers(0, 60), years=st.floats(0.5, 50), rest=st.floats(0.5, 50))
def test_more_failures_are_never_more_likely(failures: int, others: int, years: float, rest: float) -> None:
    few = chance_of_as_many(failures, years, others=others, other_years=rest)
    more = chance_of_as_many(failures + 1, years, others=max(0, others - 1), other_years=rest)

    assert 0 <= few <= 1
    if others:
        assert more <= few + 1e-12


def test_what_is_due_comes_first_and_then_by_name() -> None:
    young = replace(OLD, asset="a", racks=("r9",), installed_since=date(2026, 1, 1))
    old = replace(OLD, asset="z", installed_since=date(2020, 1, 1))

    assert [line.asset for line in judge(young, old, replace(young, asset="b"), prices=None)] == ["z", "a", "b"]
    assert judge() == ()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"gpus": 0}, "0 GPUs"),
        ({"failures": -1}, "-1 failures"),
        ({"failures": 1, "node_years": 0.0}, "in no time"),
        ({"node_years": float("nan")}, "nan node-years"),
        ({"hours_lost_ratio": 1.0}, "1 of its hours are lost"),
        ({"watts_per_gpu": -1.0}, "-1 W a GPU"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(change: dict[str, float], fault: str) -> None:
    values = {name: getattr(OLD, name) for name in Batch.__slots__} | change

    with pytest.raises(ValueError, match=fault):
        Batch(**values)
