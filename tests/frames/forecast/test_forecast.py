"""A backtest as a whole: bounds that hold, nothing from the future, what it needs."""

import numpy as np
import pytest

from bench.forecast_series import make_up
from ops_pipelines.capacity.forecast.backtest import Judged, TooShort, backtest, rule_of_thumb
from ops_pipelines.capacity.forecast.methods import COMBINED, METHODS
from tests.frames.forecast.made_up import named, steady


def test_bound_holds_about_as_often_as_it_says() -> None:
    found = backtest(named(make_up(series_count=60, day_count=700, seed=11).gpus), horizon_days=28)

    assert found.pooled.origins > 1_000
    assert 0.86 <= (found.pooled.peak_coverage_90 or 0) <= 0.94
    naive = found.methods["seasonal_naive"]
    assert (found.pooled.wql or 1) < 0.9 * (naive.wql or 0)
    assert (found.pooled.bound_to_peak_ratio or 9) < 1.02 * (naive.bound_to_peak_ratio or 0)


def test_pooled_is_the_combination_and_every_method_stands_beside_it() -> None:
    found = backtest(named(steady(day_count=60, series_count=5)), horizon_days=7)

    assert list(found.methods) == [*METHODS, COMBINED]
    assert found.pooled == found.methods[COMBINED]
    assert [each.team for each in found.series] == [f"team-{number}" for number in range(5)]
    assert sum(each.measured.origins for each in found.series) == found.pooled.origins


def test_rule_of_thumb_is_the_least_multiple_of_four_weeks_that_would_have_held_as_often() -> None:
    series = named(steady(day_count=84, series_count=6))

    found = backtest(series, horizon_days=7)

    pairs = [
        (series.gpus[day : day + 7, column].max(), series.gpus[max(0, day - 28) : day, column].max())
        for day in found.window_days
        for column in range(6)
    ]
    times, held = found.rule.times, round((found.pooled.peak_coverage_90 or 0) * len(pairs))
    assert times is not None
    assert sum(peak <= times * 1.000001 * highest for peak, highest in pairs) >= held
    assert sum(peak <= times * 0.999999 * highest for peak, highest in pairs) < held


@pytest.mark.parametrize(("bound", "times"), [(9.0, None), (4.0, 0.0)])
def test_no_multiple_of_nothing_holds_a_demand_that_is_new(bound: float, times: float | None) -> None:
    gpus = np.concatenate([np.zeros((28, 2)), np.tile([5.0, 0.0], (7, 1))])
    window = Judged(
        origin=28, came=gpus[28:], told=np.zeros((3, 7, 2)), bound=np.array([bound, bound]), weekly_change=np.ones(2)
    )

    assert rule_of_thumb(named(gpus), [window]).times == times


def test_what_came_later_changes_no_earlier_window() -> None:
    gpus = steady(day_count=84, series_count=6)
    later = gpus.copy()
    later[70:] *= 5

    one, two = (backtest(named(each[:70]), horizon_days=7) for each in (gpus, later))
    whole = backtest(named(later), horizon_days=7)

    assert one == two
    assert whole.window_days[: len(one.window_days)] == one.window_days


@pytest.mark.parametrize(("days", "is_judged"), [(20, False), (21, True), (22, True)])
def test_three_weeks_are_what_a_backtest_of_weeks_needs(days: int, is_judged: bool) -> None:
    series = named(steady(day_count=days, series_count=3))

    if is_judged:
        assert backtest(series, horizon_days=7).pooled.origins == 3
    else:
        with pytest.raises(TooShort, match="20 days of 3 series are there; expected one series and 21 days"):
            backtest(series, horizon_days=7)
