"""Lead times: a curve through two points, or past deliveries themselves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.teams.projects import LeadTime


def test_a_curve_goes_through_the_points_that_were_stated() -> None:
    quoted = LeadTime(median_days=112.0, p90_days=168.0)

    assert quoted.days_at(0.5) == pytest.approx(112.0)
    assert quoted.days_at(0.9) == pytest.approx(168.0)
    assert 112.0 < quoted.days_at(0.75) < 168.0 < quoted.days_at(0.95)


def test_a_lead_time_that_never_varies_is_the_same_at_every_quantile() -> None:
    assert LeadTime(median_days=30.0, p90_days=30.0).days_at(0.99) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("deliveries", "days"),
    [
        ((90.0, 100.0, 110.0, 120.0), 168.0),
        ((90.0, 100.0, 110.0, 120.0, 130.0), 130.0),
        ((130.0, 90.0, 120.0, 100.0, 110.0, 80.0), 130.0),
        (tuple(float(number) for number in range(1, 20)), 18.0),
    ],
)
def test_five_deliveries_take_the_place_of_the_curve(deliveries: tuple[float, ...], days: float) -> None:
    seen = LeadTime(median_days=112.0, p90_days=168.0, seen_days=deliveries)

    assert seen.days_at(0.9) == pytest.approx(days)


@pytest.mark.parametrize(
    ("median_days", "p90_days", "fault"),
    [
        (0.0, 10.0, "more than 0"),
        (-1.0, 10.0, "more than 0"),
        (10.0, 9.99, "the second no smaller"),
        (10.0, math.inf, "the second no smaller"),
        (math.nan, 10.0, "expected"),
        (10.0, math.nan, "expected"),
    ],
)
def test_a_lead_time_that_cannot_be_is_refused(median_days: float, p90_days: float, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        LeadTime(median_days=median_days, p90_days=p90_days)


@pytest.mark.parametrize("days", [0.0, -3.0, math.nan, math.inf])
def test_a_delivery_that_took_no_time_is_refused(days: float) -> None:
    with pytest.raises(ValueError, match="a delivery took 0 days or less"):
        LeadTime(median_days=10.0, p90_days=20.0, seen_days=(days,))


@pytest.mark.parametrize("quantile", [0.0, 1.0, -0.1, math.nan])
def test_a_certainty_is_refused(quantile: float) -> None:
    with pytest.raises(ValueError, match="more than 0, less than 1"):
        LeadTime(median_days=10.0, p90_days=20.0).days_at(quantile)


@given(
    median_days=st.floats(1, 400),
    over=st.floats(0, 400),
    seen=st.lists(st.floats(1, 400), max_size=9),
    low=st.floats(0.01, 0.99),
    high=st.floats(0.01, 0.99),
)
def test_to_be_surer_never_takes_less_time(
    median_days: float, over: float, seen: list[float], low: float, high: float
) -> None:
    time = LeadTime(median_days=median_days, p90_days=median_days + over, seen_days=tuple(seen))
    low, high = sorted((low, high))

    assert time.days_at(low) <= time.days_at(high)
