"""Days as they were notified: which are known, peaks of weeks by any first day, and how demand runs within a week."""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.capacity.peak_history import RecordedDays
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.schema import TABLES

H100 = GpuType("h100")
ALL = SeriesKey(resource="gpus", gpu_type=H100)
BEGIN = date(2026, 6, 1)


def row(number: int, peak: float, **changed: object) -> Mapping[str, object]:
    day = BEGIN + timedelta(days=number)
    return {
        "resource": "gpus", "gpu_type": "h100", "name": "", "zone": "UTC", "unit": "1", "hour_count": 24,
        "time": datetime(day.year, day.month, day.day, tzinfo=UTC), "peak": peak, "mean": peak / 2,
        "near_peak_hours": 6.0, "waiting_mean": peak / 10, **changed,
    }  # fmt: skip


def recorded(rows: Iterable[Mapping[str, object]], *, days: int) -> RecordedDays:
    return RecordedDays(TABLES["daily_peaks"].from_rows(rows), until=BEGIN + timedelta(days=days), zone=ZoneInfo("UTC"))


def test_known_days_are_those_on_which_anything_was_wanted_or_not() -> None:
    found = recorded([row(0, 0.0), row(3, 5.0), row(4, 9.0, resource="rack_watts", gpu_type="", name="r1")], days=9)

    assert found.known_days() == {BEGIN, BEGIN + timedelta(days=3)}


def test_weeks_begin_where_asked_and_only_whole_ones_count() -> None:
    days = recorded([row(number, float(number)) for number in range(20)], days=20)

    found = days.weekly_peaks(anchor=BEGIN + timedelta(days=9), resources=[Resource.GPUS], least_days=7)

    assert found == {ALL: ((BEGIN + timedelta(days=2), 8.0), (BEGIN + timedelta(days=9), 15.0))}


def test_a_week_ends_with_the_day_before_the_last_known_one() -> None:
    for days, weeks in ((13, 1), (14, 2), (15, 2)):
        found = recorded([row(number, 1.0) for number in range(days)], days=days)
        assert len(found.weekly_peaks(anchor=BEGIN, resources=[Resource.GPUS], least_days=1)[ALL]) == weeks


def test_weeks_with_too_few_days_and_other_resources_are_left_out() -> None:
    rows = [row(number, 1.0) for number in (*range(6), *range(7, 14))]
    rows += [row(number, 1.0, resource="gpus_out") for number in range(14)]

    found = recorded(rows, days=14)

    assert len(found.weekly_peaks(anchor=BEGIN, resources=[Resource.GPUS], least_days=6)[ALL]) == 2
    assert len(found.weekly_peaks(anchor=BEGIN, resources=[Resource.GPUS], least_days=7)[ALL]) == 1
    assert found.weekly_peaks(anchor=BEGIN, resources=[], least_days=1) == {}
    assert recorded([], days=14).weekly_peaks(anchor=BEGIN, resources=[Resource.GPUS], least_days=1) == {}


def test_the_shape_of_a_week_is_the_mean_of_whole_weeks() -> None:
    weekly = (100.0, 100.0, 100.0, 100.0, 50.0, 20.0, 20.0)
    days = recorded([row(number, weekly[number % 7]) for number in range(91)], days=91)

    (shape,) = days.week_shapes().values()

    assert shape.profile is not None
    assert shape.profile.near_peak_hours == 6.0
    assert shape.profile.day_ratios == pytest.approx((1, 1, 1, 1, 0.5, 0.2, 0.2))
    # Half of the peak in the mean: 12 hours at the peak are 6 near it, and 18 others with a third of it.
    assert shape.profile.rest_ratio == pytest.approx(1 / 3)
    assert shape.waited_ratio == pytest.approx(0.2)


def test_a_shape_of_no_whole_week_or_of_no_demand_is_not_known() -> None:
    for rows in ([row(number, 1.0) for number in range(6)], [row(number, 0.0) for number in range(91)]):
        (shape,) = recorded(rows, days=91).week_shapes().values()
        assert shape.profile is None
    assert recorded([row(0, 1.0, name="research")], days=91).week_shapes() == {}


def test_demand_that_never_rests_has_no_other_hours() -> None:
    rows = [row(number, 8.0, mean=8.0, near_peak_hours=24.0, waiting_mean=None) for number in range(91)]

    (shape,) = recorded(rows, days=91).week_shapes().values()

    assert shape.profile is not None
    assert shape.profile.rest_ratio is None
    assert shape.profile.day_ratios == (1.0,) * 7
    assert shape.waited_ratio is None
