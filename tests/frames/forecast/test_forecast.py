"""Forecast and backtest as wholes: bounds that hold, nothing from the future, the same bytes, series of every kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.forecast_series import make_up
from ops_pipelines.capacity.forecast.ahead import PeakForecast, SeriesPeaks, TooShort, backtest, forecast_peaks
from ops_pipelines.capacity.forecast.methods import COMBINED, METHODS
from ops_pipelines.capacity.forecast.windows import DailyPeaks, Floats, Treatment, hierarchy
from tests.frames.forecast.made_up import FIRST_DAY, named, steady


def peaks(found: PeakForecast, name: str) -> SeriesPeaks:
    return next(each for each in found.series if each.name == name)


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


def test_same_days_give_the_same_forecast() -> None:
    gpus = steady(day_count=120, series_count=8)

    one, two = (forecast_peaks(named(gpus.copy())) for _ in range(2))

    assert repr(one) == repr(two)


def test_forecast_of_a_quarter_names_the_day_on_which_it_begins() -> None:
    found = forecast_peaks(named(steady(day_count=120, series_count=3)))

    assert (found.first_day - FIRST_DAY).days == 120
    assert list(found.series[0].peak_gpus) == [7, 30, 91]
    assert found.series[0].weights.keys() == set(METHODS)
    assert sum(found.series[0].weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(("days", "is_said"), [(36, False), (37, True), (38, True)])
def test_window_of_which_none_is_over_is_refused_by_name(days: int, is_said: bool) -> None:
    found = forecast_peaks(named(steady(day_count=days, series_count=3)), horizon_days=(7, 30))

    assert (30 in found.series[0].peak_gpus) is is_said
    assert found.refused == (
        ()
        if is_said
        else (
            "no peak of 30 days: 36 days are known, and no window of that length after a first week is over; "
            "expected 37 days or more",
        )
    )


@pytest.mark.parametrize("quantiles", [[], [0.0], [0.5, 1.0], [0.9, 0.5], [0.5, 0.5]])
def test_quantiles_that_are_none_are_refused(quantiles: list[float]) -> None:
    with pytest.raises(ValueError, match="expected rising ones"):
        forecast_peaks(named(steady(day_count=60, series_count=2)), quantiles=quantiles)


def test_every_kind_of_series_is_treated_and_named() -> None:
    gpus = steady(day_count=120, series_count=12)
    gpus[:, 0] = 0.0
    gpus[:, 1] = np.where(np.arange(120) % 11, 0.0, 3.0)
    gpus[:110, 2] = np.nan
    gpus[:100, 3] = np.nan
    gpus[:, 4] = np.nan

    found = forecast_peaks(named(gpus), horizon_days=(7,))

    assert [each.treatment for each in found.series[:6]] == [
        Treatment.ZERO,
        Treatment.NEAR_IDLE,
        Treatment.SHORT,
        Treatment.NEW,
        Treatment.NO_DAYS,
        Treatment.ORDINARY,
    ]
    assert found.series[4].peak_gpus == {}
    assert found.series[0].peak_gpus[7][-1] <= 8
    assert found.series[1].peak_gpus[7][-1] <= 8
    assert found.series[2].peak_gpus[7][-1] >= gpus[110:, 2].max() * 0.7


def test_one_series_that_shot_up_does_not_widen_the_idle_ones() -> None:
    gpus = np.concatenate([steady(day_count=90, series_count=6), np.zeros((90, 6))], axis=1)
    gpus[60:, 6] = 300.0

    found = forecast_peaks(named(gpus), horizon_days=(7,), quantiles=(0.8,))

    assert max(each.peak_gpus[7][0] for each in found.series[7:]) < 8


def test_cap_holds_the_peak() -> None:
    gpus = np.minimum(steady(day_count=120, series_count=5), 90.0)
    capped = DailyPeaks(names=tuple("abcde"), first_day=FIRST_DAY, gpus=gpus, cap_gpus=np.full(5, 90.0))

    found = forecast_peaks(capped, quantiles=(0.99,))

    assert all(each <= 90 for one in found.series for each in one.peak_gpus[30])


def test_sums_lie_between_their_members_and_have_no_weights() -> None:
    gpus = steady(day_count=120, series_count=6)
    series = named(gpus)
    tree = hierarchy(series.names, {"one": series.names[:3], "whole": series.names})

    found = forecast_peaks(series, horizon_days=(7, 30), tree=tree)

    for days in (7, 30):
        members = [peaks(found, name).peak_gpus[days] for name in series.names]
        for name, own in (("one", members[:3]), ("whole", members)):
            for said, each in zip(peaks(found, name).peak_gpus[days], zip(*own, strict=True), strict=True):
                assert max(each) <= said <= sum(each) + 1e-6
    assert peaks(found, "whole").weights == {}


@st.composite
def any_demand(draw: st.DrawFn) -> Floats:
    days, count = draw(st.integers(8, 80)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 999))
    random = np.random.default_rng(seed)
    gpus = random.exponential(10, (days, count)) ** random.integers(0, 3, count) * (random.random((days, count)) < 0.8)
    begins = random.integers(0, days, count)
    return np.where(np.arange(days)[:, None] < begins * random.integers(0, 2, count), np.nan, gpus)


@settings(max_examples=40)
@given(any_demand())
def test_quantiles_and_longer_windows_never_go_down(gpus: Floats) -> None:
    found = forecast_peaks(named(gpus), horizon_days=(3, 7, 14))

    for each in found.series:
        if not each.peak_gpus:
            continue
        table = np.array(list(each.peak_gpus.values()))
        assert np.isfinite(table).all()
        assert (table >= 0).all()
        assert (np.diff(table, axis=0) >= 0).all()
        assert (np.diff(table, axis=1) >= 0).all()


@settings(max_examples=15)
@given(any_demand())
def test_order_of_the_series_does_not_matter(gpus: Floats) -> None:
    ahead = forecast_peaks(named(gpus), horizon_days=(7,))
    back = forecast_peaks(named(gpus[:, ::-1]), horizon_days=(7,))

    for one, other in zip(ahead.series, back.series[::-1], strict=True):
        assert one.peak_gpus.get(7, ()) == pytest.approx(other.peak_gpus.get(7, ()), rel=1e-6, abs=1e-6)
