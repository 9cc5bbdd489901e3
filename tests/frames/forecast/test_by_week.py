"""Peaks week by week: measured as far ahead as weeks are over, never falling with the level, from the past alone."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bench.forecast_series import hierarchy
from ops_pipelines.capacity.forecast.by_week import forecast_weeks, pass_over, past_weeks, peaks_at, told_at, vouched_at
from ops_pipelines.capacity.forecast.windows import Floats, Treatment, with_sums
from ops_pipelines.capacity.model import LEVELS as CAPACITY_LEVELS
from tests.frames.forecast.made_up import FIRST_DAY, named, steady

LEVELS = (0.1, 0.5, 0.9)


def test_weeks_begin_on_the_day_after_the_last_and_no_quantile_falls() -> None:
    found = forecast_weeks(named(steady(day_count=300, series_count=6)), weeks=52, levels=LEVELS)

    assert found.first_day == FIRST_DAY + timedelta(days=300)
    assert found.peaks.shape == (3, 52, 6)
    assert (np.diff(found.peaks, axis=0) >= 0).all()
    assert (found.peaks >= 0).all()


def test_bounds_of_weeks_hold_as_often_as_they_say_at_every_distance() -> None:
    gpus = steady(day_count=700, series_count=40)
    passed = pass_over(named(gpus), weeks=26)
    held: dict[int, list[bool]] = {1: [], 8: [], 26: []}
    for number, place in enumerate(passed.origins.places):
        if not 350 <= place <= 700 - 26 * 7 or number % 4:
            continue
        vouched = vouched_at(passed, number=number, weeks=26)
        bound = peaks_at(passed, number=number, weeks=26, levels=(0.9,), vouched=vouched)[0]
        for ahead, flags in held.items():
            came = gpus[place + 7 * (ahead - 1) : place + 7 * ahead].max(axis=0)
            flags += (came <= bound[ahead - 1]).tolist()

    assert {ahead: len(flags) for ahead, flags in held.items()} == dict.fromkeys((1, 8, 26), 240)
    for flags in held.values():
        assert 0.84 <= float(np.mean(flags)) <= 0.96


def test_nothing_of_the_days_after_an_origin_is_used() -> None:
    gpus = steady(day_count=300, series_count=5)
    other = gpus.copy()
    other[200:] *= 10
    number = next(place for place, day in enumerate(pass_over(named(gpus), weeks=8).origins.places) if day >= 193)

    def at(days: Floats) -> Floats:
        passed = pass_over(named(days), weeks=8)
        assert passed.origins.places[number] <= 200
        return peaks_at(passed, number=number, weeks=8, levels=LEVELS, vouched=5)

    assert at(gpus).tobytes() == at(other).tobytes()


@pytest.mark.parametrize(("days", "is_told"), [(27, False), (28, True), (29, True)])
def test_four_weeks_are_the_least_that_anything_is_told_from(days: int, is_told: bool) -> None:
    found = forecast_weeks(named(steady(day_count=days, series_count=5)), weeks=4, levels=LEVELS)

    assert (not np.isnan(found.peaks).any()) is is_told
    assert found.vouched_weeks == 0


@pytest.mark.parametrize(("weeks_known", "vouched"), [(13, 0), (14, 1), (15, 2)])
def test_a_distance_is_vouched_for_once_a_quarter_of_weeks_is_over(weeks_known: int, vouched: int) -> None:
    # The first origin has a week before it.
    passed = pass_over(named(steady(day_count=7 * weeks_known, series_count=5)), weeks=20)
    number = len(passed.origins.places) - 1

    assert past_weeks(passed, number=number, week=0) == weeks_known - 1
    assert vouched_at(passed, number=number, weeks=20) == vouched


def test_one_series_alone_needs_more_weeks_than_many() -> None:
    few, many = (
        forecast_weeks(named(steady(day_count=200, series_count=count)), weeks=30, levels=LEVELS) for count in (1, 8)
    )

    assert few.vouched_weeks < many.vouched_weeks


def test_width_that_nothing_measures_is_never_narrower_than_the_last_that_is_measured() -> None:
    found = forecast_weeks(named(steady(day_count=200, series_count=5)), weeks=52, levels=LEVELS)
    roots = np.sqrt(found.peaks)
    width = roots[2] - roots[1]

    assert 0 < found.vouched_weeks < 52
    assert (np.diff(width[found.vouched_weeks - 1 :], axis=0) >= -1e-6).all()


def test_a_cap_that_was_never_passed_holds_every_week() -> None:
    gpus = np.minimum(steady(day_count=300, series_count=5), 60.0)
    series = replace(named(gpus), cap_gpus=np.full(5, 60.0))

    assert (forecast_weeks(series, weeks=26, levels=LEVELS).peaks <= 60.0).all()


def test_a_sum_lies_between_its_largest_member_and_all_of_them() -> None:
    gpus = steady(day_count=300, series_count=4)
    names = [f"team-{number}" for number in range(4)]
    tree = hierarchy(names, {"all": names})
    found = forecast_weeks(named(gpus), weeks=26, levels=LEVELS, tree=tree, summed_gpus=gpus.sum(axis=1, keepdims=True))
    members, whole = found.peaks[:, :, :4], found.peaks[:, :, 4]

    assert found.names[-1] == "all"
    assert (whole >= members.max(axis=2) - 1e-6).all()
    assert (whole[1:] <= members[1:].sum(axis=2) + 1e-6).all()
    assert (whole[0] <= members[1].sum(axis=1) + 1e-6).all()


def test_a_sum_is_told_as_often_right_as_its_members() -> None:
    """Added up, members' medians would be too low and their lows far too low: not all are low in one week."""
    gpus = steady(day_count=700, series_count=40)
    names = [f"team-{number}" for number in range(40)]
    tree = hierarchy(names, {f"sum-{first}": names[first : first + 5] for first in range(0, 40, 5)})
    whole = with_sums(named(gpus), tree)
    passed = pass_over(whole, weeks=13)
    held: list[Floats] = []
    for number, place in enumerate(passed.origins.places):
        if not 350 <= place <= 700 - 13 * 7 or number % 4:
            continue
        vouched = vouched_at(passed, number=number, weeks=13)
        told = told_at(passed, whole, number=number, weeks=13, levels=LEVELS, vouched=vouched, tree=tree)
        for week in range(13):
            came = whole.gpus[place + 7 * week : place + 7 * week + 7, 40:].max(axis=0)
            held += [np.asarray(came <= told[:, week, 40:], dtype=np.float64)]

    low, middle, high = np.concatenate(held, axis=1).mean(axis=1).tolist()
    assert 0.04 <= low <= 0.16
    assert 0.42 <= middle <= 0.58
    assert 0.84 <= high <= 0.96


@given(
    days=some.integers(28, 150),
    begins=some.lists(some.integers(0, 27), min_size=4, max_size=4),
    sizes=some.lists(some.sampled_from([0.0, 0.02, 1.0, 500.0]), min_size=4, max_size=4),
    cap_gpus=some.sampled_from([5.0, 60.0, np.inf]),
    seed=some.integers(0, 50),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_whatever_the_days_no_level_falls_and_no_sum_is_below_a_member(
    days: int, begins: list[int], sizes: list[float], cap_gpus: float, seed: int
) -> None:
    gpus = steady(day_count=days, series_count=4, seed=seed) * np.array(sizes)
    for column, begin in enumerate(begins):
        gpus[:begin, column] = np.nan
    series = replace(named(gpus), cap_gpus=np.full(4, cap_gpus))
    tree = hierarchy(series.names, {"all": series.names, "two": series.names[:2]})
    found = forecast_weeks(series, weeks=9, tree=tree)
    peaks = found.peaks

    assert found.levels == CAPACITY_LEVELS
    assert np.isfinite(peaks).all()
    assert (peaks >= 0).all()
    assert (np.diff(peaks, axis=0) >= 0).all()
    assert (peaks[:, :, 4] >= peaks[:, :, :4].max(axis=2)).all()
    assert (peaks[:, :, 5] >= peaks[:, :, :2].max(axis=2)).all()
    upper = CAPACITY_LEVELS.index(0.5)
    assert (peaks[upper:, :, 4] <= peaks[upper:, :, :4].sum(axis=2) * (1 + 1e-9)).all()
    # A cap that was passed is none.
    kept = np.nan_to_num(gpus).max(axis=0) <= cap_gpus
    assert (peaks[:, :, :4][:, :, kept] <= cap_gpus).all()


def test_a_series_that_is_not_there_yet_is_not_foretold_and_the_others_are() -> None:
    gpus = steady(day_count=200, series_count=4)
    gpus[:, 1] = np.nan
    gpus[:190, 2] = np.nan
    gpus[:, 3] = 0.0
    found = forecast_weeks(named(gpus), weeks=8, levels=LEVELS)

    assert np.isnan(found.peaks[:, :, 1]).all()
    assert not np.isnan(found.peaks[:, :, [0, 2, 3]]).any()
    assert found.treatments[1:] == (Treatment.NO_DAYS, Treatment.SHORT, Treatment.ZERO)


def test_many_series_are_passed_over_in_longer_steps_and_told_as_far() -> None:
    found = forecast_weeks(named(steady(day_count=400, series_count=1_200)), weeks=4, levels=LEVELS)

    assert found.vouched_weeks == 4
    assert not np.isnan(found.peaks).any()


def test_the_same_days_give_the_same_bytes() -> None:
    one, other = (
        forecast_weeks(named(steady(day_count=250, series_count=5)), weeks=30, levels=LEVELS) for _ in range(2)
    )

    assert one.peaks.tobytes() == other.peaks.tobytes()


@pytest.mark.parametrize(
    ("weeks", "levels", "words"),
    [
        (0, LEVELS, "0 weeks"),
        (105, LEVELS, "105 weeks"),
        (4, (), "levels"),
        (4, (0.5, 0.4), "rising"),
        (4, (0.0, 0.5), "above 0"),
        (4, (0.5, 1.0), "below 1"),
    ],
)
def test_weeks_and_levels_that_are_none_are_refused(weeks: int, levels: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        forecast_weeks(named(steady(day_count=60, series_count=2)), weeks=weeks, levels=levels)
