"""Rates and means with their intervals, against published tables."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.review.week_incidents import count_bounds, mean_time_of, rate_of

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        # Garwood 1936, as in the tables of exact Poisson limits; of none the one-sided rule of three.
        (0, 0.0, 2.9957),
        (1, 0.0253, 5.5716),
        (5, 1.6235, 11.6683),
        (10, 4.7954, 18.3904),
        (100, 81.3640, 121.6268),
    ],
)
def test_counts_have_the_exact_poisson_interval(count: int, low: float, high: float) -> None:
    assert count_bounds(count) == pytest.approx((low, high), rel=1e-4, abs=1e-3)


def test_no_failure_bounds_the_rate_and_is_no_infinity() -> None:
    rate = rate_of(0, exposure_hours=3000)

    assert rate.mean_hours_between is None
    assert rate.mean_hours_at_least == pytest.approx(3000 / 2.9957, rel=1e-4)
    assert rate.mean_hours_at_most is None


def test_without_exposure_nothing_is_known() -> None:
    rate = rate_of(3, exposure_hours=0)

    assert (rate.mean_hours_between, rate.mean_hours_at_least, rate.mean_hours_at_most) == (None, None, None)


@pytest.mark.parametrize(("count", "hours"), [(-1, 1.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_what_cannot_be_is_refused(count: int, hours: float) -> None:
    with pytest.raises(ValueError, match="expected neither below 0"):
        rate_of(count, exposure_hours=hours)


@given(st.integers(1, 3000), st.floats(1, 1e9))
def test_the_mean_lies_in_its_interval(count: int, hours: float) -> None:
    rate = rate_of(count, exposure_hours=hours)

    assert rate.mean_hours_between is not None
    assert rate.mean_hours_at_least is not None
    assert rate.mean_hours_at_most is not None
    assert rate.mean_hours_at_least < rate.mean_hours_between < rate.mean_hours_at_most


def test_a_mean_of_times_has_an_interval_that_narrows() -> None:
    few, many = mean_time_of([HOUR] * 2), mean_time_of([HOUR] * 50)

    assert mean_time_of([]) is None
    assert few is not None
    assert many is not None
    assert few.low < many.low < many.mean == HOUR < many.high < few.high
    assert mean_time_of([HOUR, 2 * HOUR, 6 * HOUR]) is not None
    odd = mean_time_of([6 * HOUR, HOUR, 2 * HOUR])
    assert odd is not None
    assert (odd.median, odd.longest, odd.mean) == (2 * HOUR, 6 * HOUR, 3 * HOUR)
