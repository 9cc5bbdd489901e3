"""Recorded demand to daily maxima: what is left out, carried, joined, noted and refused."""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from ops_pipelines.capacity.forecast.recorded_peaks import RecordedPeaks, peaks_of
from ops_pipelines.quotas.recorded import RefusedDemand

BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
Row = tuple[int, str, float]


def hours(team: str, gpus: Mapping[int, float], *, without: Iterable[int] = ()) -> list[Row]:
    """A row for each hour of the given days; at noon the day's number of GPUs, half of it in other hours."""
    left_out = set(without)
    return [
        (hour, team, value if hour % 24 == 12 else value / 2)
        for day, value in gpus.items()
        for hour in range(24 * day, 24 * day + 24)
        if hour not in left_out
    ]


def read(rows: list[Row], *, zone: str = "UTC", renamed: Mapping[str, str] | None = None) -> RecordedPeaks:
    table = pa.table(
        {
            "hour_ts": [BEGIN + 3600 * hour for hour, _, _ in rows],
            "team": [team for _, team, _ in rows],
            "gpus_demand_avg": [value for _, _, value in rows],
        }
    )
    return peaks_of(table, zone=ZoneInfo(zone), name="demand.parquet", renamed=renamed or {})


def every(days: Iterable[int], value: float = 16.0) -> dict[int, float]:
    return dict.fromkeys(days, value)


def test_day_is_its_highest_hour_and_needs_no_capacity() -> None:
    found = read(hours("a", {0: 4.0, 1: 9.0, 2: 2.0}))

    assert found.series.names == ("a",)
    assert found.series.first_day == date(2026, 1, 1)
    assert found.series.gpus[:, 0].tolist() == [4.0, 9.0, 2.0]
    assert found.notes == ()


@pytest.mark.parametrize(("missing", "is_day"), [(5, True), (6, True), (7, False)])
def test_day_counts_with_three_quarters_of_its_hours(missing: int, is_day: bool) -> None:
    found = read(hours("a", every(range(3)), without=range(72 - missing, 72)))

    assert found.series.day_count == (3 if is_day else 2)
    assert found.notes == (() if is_day else ("a: 1 day with less than three quarters of the hours left out",))


@pytest.mark.parametrize(("gap", "is_carried"), [(13, True), (14, True), (15, False)])
def test_short_gap_is_carried_and_a_team_begins_anew_after_a_long_one(gap: int, is_carried: bool) -> None:
    rows = hours("a", every(range(5), 8.0)) + hours("a", every(range(5 + gap, 30), 16.0)) + hours("b", every(range(30)))

    found = read(rows)

    column = found.series.gpus[:, 0]
    if is_carried:
        assert column[4 : 5 + gap].tolist() == [8.0] * (gap + 1)
        assert f"a: {gap} days from 2026-01-06 on carried from the day before" in found.notes
    else:
        assert np.isnan(column[: 5 + gap]).all()
        assert f"a: {gap} days are missing from 2026-01-06 on; it begins after them" in found.notes
    assert column[-1] == 16.0


def test_team_without_hours_at_the_end_wants_nothing_and_that_is_said() -> None:
    found = read(hours("a", every(range(10))) + hours("b", every(range(30))))

    assert found.series.gpus[9:12, 0].tolist() == [16.0, 0.0, 0.0]
    assert "a: no hours from 2026-01-11 on; taken as no demand" in found.notes


def test_days_are_those_of_the_zone_also_when_clocks_change() -> None:
    march = range(80, 95)
    found = read(hours("a", every(march)), zone="America/New_York")

    # In New York the file begins in the evening of the day before, and its last day ends in the evening.
    assert found.series.first_day == date(2026, 3, 22)
    utc = read(hours("a", every(range(60, 75))), zone="Europe/Berlin")
    assert utc.series.day_count == 14 + 1


def test_team_that_begins_where_another_of_its_size_ends_is_pointed_out() -> None:
    rows = hours("old", every(range(30))) + hours("new", every(range(30, 60), 20.0)) + hours("other", every(range(60)))

    found = read(rows)

    assert any("--renamed old=new" in note for note in found.notes)
    joined = read(rows, renamed={"new": "old"})
    assert joined.series.names == ("new", "other")
    assert joined.series.gpus[[0, 29, 30], 0].tolist() == [16.0, 16.0, 20.0]
    assert joined.notes == ("old is new: their hours are one series",)


def test_team_of_another_size_is_no_rename() -> None:
    found = read(hours("old", every(range(30))) + hours("new", every(range(30, 60), 64.0)))

    assert not any("--renamed" in note for note in found.notes)


@pytest.mark.parametrize(
    ("renamed", "said"),
    [
        ({"x": "a"}, "'x' was renamed, but is no team"),
        ({"a": "b", "b": "c"}, "'b' is an old and a new name"),
        ({"a": "c", "b": "c"}, "'c' is the old name of two teams"),
    ],
)
def test_rename_that_cannot_be_is_refused(renamed: dict[str, str], said: str) -> None:
    rows = [row for team in "abc" for row in hours(team, every(range(3)))]

    with pytest.raises(RefusedDemand, match=said):
        read(rows, renamed=renamed)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, "a", 4.0), (0, "a", 4.0)], "reported again"),
        ([(0, "a", -1.0)], "expected 0 or more"),
        ([(0, "a", float("nan"))], "expected a number"),
        ([(0, " ", 1.0)], "expected the name of a team"),
        ([(0, "a", 1.0)], "no day has three quarters of its hours"),
    ],
)
def test_rows_that_cannot_be_believed_refuse_the_file(rows: list[Row], said: str) -> None:
    with pytest.raises(RefusedDemand, match=said):
        read(rows)


def test_missing_column_is_named() -> None:
    with pytest.raises(RefusedDemand, match="the column gpus_demand_avg is missing"):
        peaks_of(pa.table({"hour_ts": [BEGIN], "team": ["a"]}), zone=ZoneInfo("UTC"), name="f", renamed={})


def test_demand_beyond_any_cluster_is_refused() -> None:
    for good in (1e9 - 1, 1e9):
        assert read(hours("a", {0: 4.0, 1: good})).series.day_count == 2

    with pytest.raises(RefusedDemand, match=r"gpus_demand_avg is 1e\+300 in one row; expected at most 1e\+09 GPUs"):
        read(hours("a", {0: 4.0, 1: 1e300}))


def test_columns_that_are_missing_are_told_beside_those_of_the_file_alone() -> None:
    table = pa.table({"hour_ts": [BEGIN], "demand": [1.0]})

    with pytest.raises(RefusedDemand) as refused:
        peaks_of(table, zone=ZoneInfo("UTC"), name="demand.parquet", renamed={})

    assert refused.value.faults == (
        "the column team is missing; found hour_ts, demand",
        "the column gpus_demand_avg is missing; found hour_ts, demand",
    )
