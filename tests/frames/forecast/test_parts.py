"""The parts of a forecast: quantiles, windows, smoothing, weights, sums, measures."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.forecast_series import hierarchy
from ops_pipelines.capacity.forecast.backtest import Judged, clustered_interval, measure, weekly_change
from ops_pipelines.capacity.forecast.methods import DAMPED, METHODS, WEEKLY, fit, states, theta_path, weigh_methods
from ops_pipelines.capacity.forecast.outlook import weighted_quantiles
from ops_pipelines.capacity.forecast.windows import (
    DailyPeaks,
    Treatment,
    add_up,
    judged_origins,
    lay_origins,
    window_maxima,
    with_sums,
    without_caps,
)
from tests.frames.forecast.made_up import FIRST_DAY, named, steady

# --- quantiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "place"), [(8, 8), (9, 9), (10, 10), (19, 18), (20, 19)])
def test_bound_is_the_score_that_a_finite_pool_needs(count: int, place: int) -> None:
    scores = np.arange(1.0, count + 1)

    found = weighted_quantiles(scores, np.ones(count), quantiles=[0.9])

    assert found.tolist() == [place]


def test_low_quantiles_mirror_high_ones() -> None:
    scores = np.random.default_rng(1).normal(size=37)

    low, high = (weighted_quantiles(each, np.ones(37), quantiles=[q])[0] for each, q in ((scores, 0.1), (-scores, 0.9)))

    assert low == -high


def test_empty_pool_moves_nothing() -> None:
    assert weighted_quantiles(np.zeros(0), np.zeros(0), quantiles=[0.1, 0.9]).tolist() == [0.0, 0.0]


@given(
    st.lists(st.tuples(st.floats(-100, 100), st.floats(0.01, 1)), min_size=1, max_size=40),
    st.lists(st.floats(0.01, 0.99), min_size=2, max_size=5),
)
def test_quantiles_rise_and_are_scores(pool: list[tuple[float, float]], quantiles: list[float]) -> None:
    scores, weights = map(np.array, zip(*pool, strict=True))

    found = weighted_quantiles(scores, weights, quantiles=sorted(quantiles))

    assert (np.diff(found) >= 0).all()
    assert set(found.tolist()) <= set(scores.tolist())


def test_bounds_hold_as_often_as_they_say() -> None:
    draw = np.random.default_rng(5)

    held = [
        float(past[-1] <= weighted_quantiles(past[:-1], np.ones(30), quantiles=[0.9])[0])
        for past in draw.exponential(size=(4_000, 31))
    ]

    assert 0.89 <= np.mean(held) <= 0.94


# --- windows ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(1, 60))
def test_windows_that_are_judged_are_apart_and_among_the_origins(days: int, horizon: int) -> None:
    origins = lay_origins(days, horizon_days=horizon)

    judged = judged_origins(days, horizon_days=horizon)

    assert set(judged) <= set(origins.places)
    assert all(later - one == horizon for one, later in pairwise(judged))
    assert not judged or judged[-1] + horizon == days
    assert all(origins.over_at(origins.places.index(each)) > 0 for each in judged)


@given(st.integers(20, 400), st.integers(1, 60))
def test_no_window_counts_before_it_is_over(days: int, horizon: int) -> None:
    origins = lay_origins(days, horizon_days=horizon)

    for number, place in enumerate(origins.places):
        over = origins.places[: origins.over_at(number)]
        assert all(each + horizon <= place for each in over)
        assert len(over) == sum(each + horizon <= place for each in origins.places)


@pytest.mark.parametrize(("days", "count"), [(20, 0), (21, 1), (27, 1), (28, 2)])
def test_first_window_that_is_judged_has_two_weeks_before_it(days: int, count: int) -> None:
    assert len(judged_origins(days, horizon_days=7)) == count


def test_peak_of_a_window_with_an_unknown_day_is_unknown() -> None:
    values = np.arange(30.0).reshape(30, 1)
    values[:10] = np.nan
    origins = lay_origins(30, horizon_days=7)

    peaks = window_maxima(values, origins=origins)[:, 0]

    assert np.isnan(peaks[origins.places.index(9)])
    assert peaks[origins.places.index(10)] == 16
    assert np.isnan(peaks[origins.places.index(24)])


def test_window_of_no_days_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        lay_origins(30, horizon_days=0)


# --- methods ------------------------------------------------------------------------------------------------------


def test_every_method_repeats_a_week_that_never_changes() -> None:
    values = np.tile(np.array([[4.0], [5.0], [6.0], [5.0], [4.0], [2.0], [2.0]]), (40, 1))

    paths = fit(values, origins=[280]).paths(280, day_count=14)

    for name in ("seasonal_naive", "exponential_smoothing", "theta", "recent_median"):
        assert paths[METHODS.index(name), :, 0] == pytest.approx(values[:14, 0], abs=0.2), name
    assert (paths[METHODS.index("last_value")] == 2.0).all()


def test_straight_line_is_followed() -> None:
    line = np.linspace(5, 20, 300)[:, None]
    weekly = states(line, settings=WEEKLY, origins=[300])[300]
    damped = states(line, settings=DAMPED, origins=[300])[300]

    assert damped.path(7)[-1, 0] > 20.1
    assert theta_path(line, state=weekly, day_count=30)[-1, 0] > 20.5


def test_days_after_an_origin_change_nothing_of_it() -> None:
    values = steady(day_count=90, series_count=4)
    other = values.copy()
    other[60:] *= 9

    one, two = (fit(each, origins=[60]).paths(60, day_count=7) for each in (values, other))

    assert np.array_equal(one, two)


def test_series_that_is_not_there_yet_has_no_path() -> None:
    values = steady(day_count=60, series_count=2)
    values[:40, 1] = np.nan

    paths = fit(values, origins=[30, 42])

    assert np.isnan(paths.paths(30, day_count=7)[:, :, 1]).all()
    assert not np.isnan(paths.paths(42, day_count=7)).any()


def test_weights_favour_the_method_that_erred_least_and_sum_to_one() -> None:
    errors = np.ones((20, 3, 2))
    errors[:, 1, 0] = 0.5

    weights = weigh_methods(errors)

    assert weights.sum(axis=0) == pytest.approx([1, 1])
    assert weights[1, 0] > 0.99


def test_method_that_never_erred_takes_all() -> None:
    errors = np.ones((20, 3, 2))
    errors[:, 1] = 0.0

    assert weigh_methods(errors)[1].tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("errors", [np.zeros((0, 4, 3)), np.zeros((5, 4, 3)), np.full((5, 4, 3), np.nan)])
def test_without_errors_methods_weigh_alike(errors: np.ndarray) -> None:  # type: ignore[type-arg]  # any shape
    assert weigh_methods(errors).tolist() == [[0.25] * 3] * 4


# --- series and sums ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "treatment"),
    [
        ([np.nan] * 30, Treatment.NO_DAYS),
        ([0.0] * 30, Treatment.ZERO),
        ([np.nan] * 17 + [20.0] * 13, Treatment.SHORT),
        ([np.nan] * 16 + [20.0] * 14, Treatment.NEW),
        ([0.0] * 3 + [20.0] * 27, Treatment.NEW),
        ([0.0] * 2 + [20.0] * 28, Treatment.ORDINARY),
        ([20.0] * 2 + [7.9] * 28, Treatment.NEAR_IDLE),
        ([20.0] * 2 + [8.0] * 28, Treatment.ORDINARY),
        ([20.0] * 3 + [7.9] * 27, Treatment.ORDINARY),
    ],
)
def test_each_series_has_its_treatment(gpus: list[float], treatment: Treatment) -> None:
    assert named(np.array(gpus)[:, None]).treatments() == (treatment,)


@pytest.mark.parametrize(
    ("gpus", "said"),
    [([[1.0], [-1.0]], "below 0"), ([[1.0], [np.inf]], "without end"), ([[1.0], [np.nan], [1.0]], "a gap")],
)
def test_days_that_cannot_be_are_refused(gpus: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        named(np.array(gpus))


def test_series_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        without_caps(["a", "a"], FIRST_DAY, np.ones((3, 2)))


def test_cap_that_a_series_was_above_is_no_cap() -> None:
    series = DailyPeaks(
        names=("under", "over"), first_day=FIRST_DAY, gpus=np.array([[8.0, 9.0], [8.0, 8.0]]), cap_gpus=np.full(2, 8.0)
    )

    assert series.caps_at(2).tolist() == [8.0, np.inf]
    assert series.caps_at(0).tolist() == [8.0, 8.0]


def test_sum_is_of_those_who_are_there() -> None:
    tree = hierarchy(["a", "b", "c"], {"ab": ["a", "b"], "bc": ["b", "c"]})

    assert add_up(np.array([1.0, np.nan, np.nan]), tree).tolist()[0] == 1.0
    assert np.isnan(add_up(np.array([1.0, np.nan, np.nan]), tree)[1])


def test_sum_is_capped_by_its_members_caps() -> None:
    series = DailyPeaks(names=("a", "b"), first_day=FIRST_DAY, gpus=np.ones((3, 2)), cap_gpus=np.array([4.0, 5.0]))

    found = with_sums(series, hierarchy(series.names, {"all": ["a", "b"]}))

    assert found.cap_gpus.tolist() == [4.0, 5.0, 9.0]


# --- measures -----------------------------------------------------------------------------------------------------


def test_measures_are_what_their_names_say() -> None:
    came = np.array([[10.0, 0.0], [20.0, 0.0]])
    told = np.stack([came, np.array([[8.0, 0.0], [20.0, 0.0]]), came])
    window = Judged(origin=0, came=came, told=told, bound=np.array([30.0, 0.0]), weekly_change=np.array([2.0, np.nan]))

    found = measure([window], columns=np.arange(2))

    assert found.mase == pytest.approx(0.5)
    assert found.wql == pytest.approx(2 * 0.5 * 2 / 3 / 30)
    assert found.peak_coverage_90 == 1.0
    assert found.bound_to_peak_ratio == pytest.approx(1.5)
    assert found.origins == 2


def test_nothing_to_divide_by_is_no_number() -> None:
    nothing = np.zeros((2, 1))
    window = Judged(
        origin=0, came=nothing, told=np.zeros((3, 2, 1)), bound=np.zeros(1), weekly_change=np.full(1, np.nan)
    )

    found = measure([window], columns=np.arange(1))

    assert (found.mase, found.wql, found.bound_to_peak_ratio) == (None, None, None)
    assert found.peak_coverage_90 == 1.0


def test_weekly_change_is_from_the_same_weekday() -> None:
    assert weekly_change(np.array([[1.0]] * 7 + [[3.0]]))[0] == 2.0
    assert np.isnan(weekly_change(np.ones((7, 1)))[0])


def test_interval_is_wider_where_a_date_holds_or_fails_as_one() -> None:
    apart = [np.array([1.0, 0.0])] * 8
    together = [np.ones(2), np.zeros(2)] * 4

    narrow, wide = clustered_interval(apart), clustered_interval(together)

    assert narrow == (0.5, 0.5)
    assert wide is not None
    assert wide[0] < 0.2
    assert wide[1] > 0.8
    assert clustered_interval(apart[:1]) is None
