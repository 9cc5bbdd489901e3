"""A simulated year: the same each time, ending in the weeks that quotas see, and with something in it to find."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from statistics import fmean
from zoneinfo import ZoneInfo

import pytest

from ops_pipelines.capacity.believed_rows import believe_rows
from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines_lab.drills.demo_quotas import PAST
from ops_pipelines_lab.drills.recorded_past import pretend_past, pretend_year
from ops_pipelines_lab.simulator.past_demand import (
    DEMO_YEAR,
    Row,
    TeamYear,
    YearPlan,
    past_demand,
    site_in,
    year_of_demand,
)
from tests.ports.lake_samples import cells

END = datetime(2026, 11, 20, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
UTC_ZONE = ZoneInfo("UTC")
TWO_MONTHS = replace(DEMO_YEAR, day_count=60)
ALL_TEAMS = SeriesKey(resource=Resource.GPUS.value)


@pytest.fixture(scope="module")
def year() -> Sequence[Row]:
    return list(year_of_demand(PAST, DEMO_YEAR, end=END, weeks=2, seed=7))


def wanted(rows: Sequence[Row], team: str, *, since: date, until: date) -> float:
    """Mean of what a team requested in the hours of these days, of `until` no more; no row is nothing requested."""
    found = []
    for row in rows:
        at, gpus = row["time"], row["gpus_demand_avg"]
        assert isinstance(at, datetime)
        assert isinstance(gpus, float)
        if row["team"] == team and since <= at.date() < until:
            found.append(gpus)
    return sum(found) / ((until - since).days * 24)


def back(days: int) -> date:
    return END.date() - timedelta(days=days)


# -- hours of demand --


def test_the_last_weeks_are_those_that_quotas_look_back_at(year: Sequence[Row]) -> None:
    weeks = list(past_demand(PAST, end=END, weeks=2, seed=7))

    assert year[-len(weeks) :] == weeks


def test_the_same_seed_is_the_same_year_and_another_is_another(year: Sequence[Row]) -> None:
    assert list(year_of_demand(PAST, DEMO_YEAR, end=END, weeks=2, seed=7)) == year
    assert list(year_of_demand(PAST, DEMO_YEAR, end=END, weeks=2, seed=8)) != year


def test_hours_follow_each_other_and_none_contradicts_itself(year: Sequence[Row]) -> None:
    times: list[datetime] = []
    for row in year:
        at, running, pending, all_of_it = (
            row[name] for name in ("time", "gpus_running_avg", "gpus_pending_avg", "gpus_demand_avg")
        )
        assert isinstance(at, datetime)
        assert isinstance(running, float)
        assert isinstance(pending, float)
        assert running >= 0
        assert pending >= 0
        assert running + pending == all_of_it
        if not times or times[-1] != at:
            times.append(at)
    assert times == [END - number * HOUR for number in range(400 * 24, 0, -1)]


def test_research_grew_over_the_year(year: Sequence[Row]) -> None:
    then = wanted(year, "research", since=back(300), until=back(270))
    now = wanted(year, "research", since=back(30), until=back(15))

    assert now > 1.1 * then


def test_a_team_that_began_in_spring_was_not_there_before(year: Sequence[Row]) -> None:
    first = min(row["time"] for row in year if row["team"] == "science")  # type: ignore[type-var]  # times, all of them
    assert isinstance(first, datetime)
    assert first.date() == (END - HOUR).date() - timedelta(days=245)


def test_a_launch_is_a_step(year: Sequence[Row]) -> None:
    before = wanted(year, "science", since=back(139), until=back(119))
    after = wanted(year, "science", since=back(117), until=back(97))

    assert after > 1.25 * before


def test_the_end_of_the_year_is_calm(year: Sequence[Row]) -> None:
    calm = wanted(year, "research", since=date(2025, 12, 20), until=date(2026, 1, 3))
    after = wanted(year, "research", since=date(2026, 1, 5), until=date(2026, 1, 19))

    assert calm < 0.9 * after


def test_jobs_wait_in_autumn(year: Sequence[Row]) -> None:
    def waited(month: int) -> float:
        return fmean(
            float(row["gpus_pending_avg"])  # type: ignore[arg-type]  # floats, all of them
            for row in year
            if row["team"] == "research" and isinstance(row["time"], datetime) and row["time"].month == month
        )

    assert waited(10) > 2 * waited(8)


def test_guests_hardly_come(year: Sequence[Row]) -> None:
    days = {row["time"].date() for row in year if row["team"] == "visitors" and isinstance(row["time"], datetime)}

    assert 1 <= len(days) <= 30
    assert max(days) < back(13)


def test_teams_of_one_plan_alone_are_refused() -> None:
    other = replace(DEMO_YEAR, teams=(*DEMO_YEAR.teams, TeamYear(team="nobody")))

    with pytest.raises(ValueError, match="nobody: named in one of both plans"):
        next(year_of_demand(PAST, other, end=END, weeks=2, seed=7))


def test_a_year_without_days_is_refused() -> None:
    with pytest.raises(ValueError, match="0 days"):
        replace(DEMO_YEAR, day_count=0)


# -- everything else of an hour --


@pytest.mark.parametrize("running_gpus", [0.0, 304.0, 608.0, 900.0])
def test_no_rack_draws_more_than_it_may_and_the_room_draws_their_sum(running_gpus: float) -> None:
    site = site_in(END, year=DEMO_YEAR, running_gpus=running_gpus, end=END, seed=7)

    racks = site.values[Resource.RACK_WATTS]
    assert max(racks.values()) <= DEMO_YEAR.rack_limit_watts
    assert site.values[Resource.COOLING_WATTS] == {"": sum(racks.values())}
    assert all(0 <= each <= 1 for each in site.values[Resource.NETWORK_RATIO].values())


def test_what_is_out_is_what_is_broken_and_what_is_in_maintenance() -> None:
    for number in range(0, 9_600, 97):
        site = site_in(END - number * HOUR, year=DEMO_YEAR, running_gpus=500.0, end=END, seed=7)
        out = site.values[Resource.GPUS_OUT]

        assert out[""] == out["broken"] + out["maintenance"]
        assert min(out.values()) >= 0
        assert min(site.values[Resource.GPUS_STRANDED].values()) >= 0


def test_the_file_system_fills_week_by_week() -> None:
    held = [
        site_in(END - timedelta(weeks=back), year=DEMO_YEAR, running_gpus=500.0, end=END, seed=7)
        .values[Resource.STORAGE_BYTES]["scratch"]
        for back in (40, 20, 0)
    ]  # fmt: skip

    assert held[0] < held[1] < held[2] < 0.6 * 4 * 2.0**50


# -- days in the lake --


def days_of(lake: ParquetLake) -> Sequence[date]:
    found = lake.read("daily_peaks", start=END - timedelta(days=500), end=END + timedelta(days=1), columns=("time",))
    return sorted({each.date() for each in found["time"].to_pylist()})


def test_whole_days_are_written_and_not_the_running_one(tmp_path: Path) -> None:
    lake = ParquetLake(str(tmp_path))

    written = pretend_year(lake, now=END, weeks=2, plan=PAST, year=TWO_MONTHS)

    assert days_of(lake) == [back(number) for number in range(59, 0, -1)]
    assert written == 59


def test_the_last_days_are_counted_from_the_hours_that_quotas_see(tmp_path: Path) -> None:
    lake = ParquetLake(str(tmp_path))
    pretend_past(lake, now=END, weeks=2, plan=PAST)
    pretend_year(lake, now=END, weeks=2, plan=PAST, year=TWO_MONTHS)
    day = datetime(2026, 11, 18, tzinfo=UTC)

    hours = lake.read("gpu_demand", start=day, end=day + timedelta(days=1))
    told = cells(lake.read_hour("daily_peaks", day), "resource", "name", "peak")

    by_hour: dict[object, float] = defaultdict(float)
    by_team: dict[object, float] = defaultdict(float)
    for team, at, gpus in cells(hours, "team", "time", "gpus_demand_avg"):
        assert isinstance(gpus, float)
        by_hour[at] += gpus
        by_team[team] = max(by_team[team], gpus)
    peaks = {name: peak for resource, name, peak in told if resource == "gpus"}
    assert peaks.pop("") == pytest.approx(max(by_hour.values()))
    assert peaks == pytest.approx(by_team)


def test_every_row_is_believed_and_every_resource_is_told(tmp_path: Path) -> None:
    lake = ParquetLake(str(tmp_path))
    pretend_year(lake, now=END, weeks=2, plan=PAST, year=TWO_MONTHS)

    rows = lake.read("daily_peaks", start=END - timedelta(days=61), end=END)
    believed = believe_rows(rows, until=END.date(), zone=UTC_ZONE)

    assert believed.faults == ()
    assert {each.kind for each in believed.keys} == set(Resource)
    assert ALL_TEAMS in believed.keys
    assert sum(each.kind is Resource.RACK_WATTS for each in believed.keys) == 8


def test_a_day_that_was_computed_is_left_as_it_is(tmp_path: Path) -> None:
    lake = ParquetLake(str(tmp_path))
    day = datetime(2026, 11, 10, tzinfo=UTC)
    real: dict[str, object] = {
        "resource": "gpus", "gpu_type": "", "name": "real", "time": day, "zone": "UTC", "peak": 1.0, "mean": 1.0,
        "hour_count": 24, "near_peak_hours": 24.0, "unit": "1",
    }  # fmt: skip
    lake.replace_hour("daily_peaks", day, TABLES["daily_peaks"].from_rows([real]))

    assert pretend_year(lake, now=END, weeks=2, plan=PAST, year=TWO_MONTHS) == 58
    assert cells(lake.read_hour("daily_peaks", day), "name") == [("real",)]
    assert pretend_year(lake, now=END, weeks=2, plan=PAST, year=TWO_MONTHS) == 0


def test_the_same_year_is_the_same_bytes(tmp_path: Path) -> None:
    for place in ("one", "other"):
        pretend_year(ParquetLake(str(tmp_path / place)), now=END, weeks=2, plan=PAST, year=TWO_MONTHS)

    one, other = (
        {file.relative_to(tmp_path / place): file.read_bytes() for file in (tmp_path / place).rglob("*.parquet")}
        for place in ("one", "other")
    )
    assert len(one) == 59
    assert one == other


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "America/St_Johns"])
def test_days_are_those_of_the_zone(tmp_path: Path, zone: str) -> None:
    lake = ParquetLake(str(tmp_path))
    plan = replace(PAST, zone=ZoneInfo(zone))
    month: YearPlan = replace(DEMO_YEAR, day_count=30)

    assert pretend_year(lake, now=END, weeks=2, plan=plan, year=month) == 29

    rows = lake.read("daily_peaks", start=END - timedelta(days=40), end=END)
    believed = believe_rows(rows, until=END.date(), zone=ZoneInfo(zone))
    assert believed.faults == ()
    assert believed.other_zones == {}
