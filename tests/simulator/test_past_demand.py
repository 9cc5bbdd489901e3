"""A simulated past of demand: the same each time, plausible in every row, and with something in it to find."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import fmean

import pytest

from ops_pipelines.lake.expectations import expectations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines_lab.drills.recorded_past import pretend_past
from ops_pipelines_lab.simulator.past_demand import DEMO_PLAN, PastPlan, Row, past_demand
from tests.ports.lake_samples import cells

END = datetime(2026, 11, 20, 9, tzinfo=UTC)
"""A Friday. The launch was on Sunday, the holiday on the Tuesday of the week before."""
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def rows() -> Sequence[Row]:
    return list(past_demand(DEMO_PLAN, end=END, weeks=3, seed=7))


def of(rows: Sequence[Row], team: str, name: str, *, day: int | None = None, hour: int | None = None) -> list[float]:
    found = []
    for row in rows:
        time, value = row["time"], row[name]
        assert isinstance(time, datetime)
        assert isinstance(value, int | float)
        if row["team"] == team and day in (None, time.day) and hour in (None, time.hour):
            found.append(float(value))
    return found


def test_every_team_has_a_row_in_every_hour_of_the_weeks(rows: Sequence[Row]) -> None:
    hours = defaultdict(set)
    for row in rows:
        hours[row["team"]].add(row["time"])

    expected = {END - number * HOUR for number in range(1, 3 * 7 * 24 + 1)}
    assert dict(hours) == dict.fromkeys(("platform", "product", "research", "science"), expected)


def test_the_same_seed_is_the_same_past_and_another_is_another(rows: Sequence[Row]) -> None:
    assert list(past_demand(DEMO_PLAN, end=END, weeks=3, seed=7)) == rows
    assert list(past_demand(DEMO_PLAN, end=END, weeks=3, seed=8)) != rows


def test_an_hour_is_the_same_whenever_one_looks_back_to_it(rows: Sequence[Row]) -> None:
    days = replace(DEMO_PLAN, launch_days_before=6, holiday_days_before=11)
    later = list(past_demand(days, end=END + 24 * HOUR, weeks=3, seed=7))

    # What it looks back to no more is the first day.
    assert [row for row in later if row in rows] == rows[4 * 24 :]


def test_no_row_contradicts_itself_and_all_that_runs_fits(rows: Sequence[Row]) -> None:
    assert any(each.broken_if for each in expectations_of("gpu_demand"))
    ran: dict[object, float] = defaultdict(float)
    for row in rows:
        running, pending, most, wanted, idle = (
            row[name]
            for name in (
                "gpus_running_avg", "gpus_pending_avg", "gpus_pending_max", "gpus_demand_avg", "gpus_wasted_avg",
            )
        )  # fmt: skip
        assert isinstance(running, float)
        assert running + pending == wanted  # type: ignore[operator]  # all of them are floats
        assert 0 <= pending <= most  # type: ignore[operator]
        assert 0 <= idle <= running  # type: ignore[operator]
        ran[row["time"]] += running
    assert max(ran.values()) <= 512


def test_nights_weekends_and_the_holiday_are_calmer_than_working_days(rows: Sequence[Row]) -> None:
    working, night = (
        of(rows, "research", "gpus_demand_avg", day=18, hour=15),
        of(rows, "research", "gpus_demand_avg", day=18, hour=3),
    )
    weekend = of(rows, "research", "gpus_demand_avg", day=14, hour=15)
    holiday = of(rows, "platform", "gpus_demand_avg", day=10, hour=15)

    assert working[0] > night[0]
    assert working[0] > weekend[0]
    assert of(rows, "platform", "gpus_demand_avg", day=11, hour=15)[0] > 2 * holiday[0]


def test_one_team_starves_from_its_launch_on_while_another_holds_what_it_does_not_use(rows: Sequence[Row]) -> None:
    before, after = (fmean(of(rows, "science", "gpus_pending_avg", day=day)) for day in (14, 16))

    assert before < 5
    assert after > 30
    assert set(of(rows, "product", "gpus_running_avg")) == {144.0}
    assert fmean(of(rows, "product", "gpus_wasted_avg")) > 40
    assert fmean(of(rows, "research", "gpus_wasted_avg")) == 0


@pytest.mark.parametrize(("end", "weeks"), [(END + timedelta(minutes=1), 1), (END, 0)])
def test_no_whole_hour_and_no_week_are_refused(end: datetime, weeks: int) -> None:
    with pytest.raises(ValueError, match="whole hour"):
        list(past_demand(DEMO_PLAN, end=end, weeks=weeks, seed=7))


def test_a_past_without_teams_is_refused() -> None:
    with pytest.raises(ValueError, match="no teams"):
        PastPlan(habits=())


def test_what_is_pretended_never_takes_the_place_of_what_was_computed(tmp_path: object) -> None:
    lake = ParquetLake(str(tmp_path))
    hour = END - 5 * HOUR
    real = next(past_demand(DEMO_PLAN, end=hour + HOUR, weeks=1, seed=1)) | {"team": "real", "time": hour}
    lake.replace_hour("gpu_demand", hour, TABLES["gpu_demand"].from_rows([real]))

    written = pretend_past(lake, now=END + timedelta(minutes=20), weeks=1)

    assert written == 7 * 24 - 1
    assert cells(lake.read_hour("gpu_demand", hour), "team") == [("real",)]
    assert [team for (team,) in cells(lake.read_hour("gpu_demand", END - HOUR), "team")] == [
        "platform",
        "product",
        "research",
        "science",
    ]
    assert lake.read_hour("gpu_demand", END).num_rows == 0
    assert pretend_past(lake, now=END + timedelta(minutes=20), weeks=1) == 0
