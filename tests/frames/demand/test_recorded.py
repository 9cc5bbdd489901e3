"""Recorded demand from a file: days of the cluster's zone, and every fault by its name."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.quotas.recorded import MissingHours, RecordedDemand, RefusedDemand, read_recorded

HELIOS = Path(__file__).parents[3].parent / "shared" / "data" / "helios_earth" / "hourly_gpu_by_team.parquet"
Cells = dict[str, object]


def seconds(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp())  # type: ignore[misc,arg-type]  # year, month, day, hour


def row(hour_ts: int, team: str = "a", **others: object) -> Cells:
    return {
        "hour_ts": hour_ts,
        "team": team,
        "capacity_gpus": 8.0,
        "gpus_running_avg": 3.0,
        "gpus_pending_avg": 1.0,
        "gpus_pending_max": 2,
        "gpus_idle_avg": 5.0,
        "jobs_running_avg": 1.0,
        "gpus_demand_avg": 4.0,
        **others,
    }


def rows(begin: int, count: int, *teams: str) -> list[Cells]:
    return [row(begin + 3600 * hour, team) for hour in range(count) for team in teams or ("a", "b")]


def written(path: Path, cells: Sequence[Cells], *, without: str | None = None) -> Path:
    table = pa.Table.from_pylist(list(cells))
    pq.write_table(table if without is None else table.drop_columns([without]), path / "demand.parquet")
    return path / "demand.parquet"


def read(
    path: Path, cells: Sequence[Cells], *, timezone: str = "UTC", missing: MissingHours = MissingHours.REFUSE
) -> RecordedDemand:
    return read_recorded(written(path, cells), timezone=timezone, missing=missing)


def faults_of(path: Path, cells: Sequence[Cells]) -> tuple[str, ...]:
    with pytest.raises(RefusedDemand) as refused:
        read(path, cells)
    return refused.value.faults


def test_an_hour_is_of_the_local_day_in_which_it_begins(tmp_path: Path) -> None:
    found = read(tmp_path, rows(seconds(2026, 3, 1, 16), 48), timezone="Asia/Shanghai")

    assert [day.day for day in found.days] == [date(2026, 3, 2), date(2026, 3, 3)]
    assert [day.hour_count for day in found.days] == [24, 24]
    assert found.notes == ()


def test_hours_stand_in_their_order_whatever_the_order_of_rows(tmp_path: Path) -> None:
    begin = seconds(2026, 3, 1)
    cells = [row(begin + 3600 * hour, gpus_demand_avg=float(hour), gpus_running_avg=hour / 2) for hour in range(24)]

    found = read(tmp_path, cells[::-1])

    (day,) = found.days
    assert day.hours == {"a": tuple(map(float, range(24)))}
    assert day.ran_last == {"a": 11.5}
    assert found.capacity == {"a": 8.0}


@pytest.mark.parametrize(
    ("begin", "counts"),
    [
        # Berlin: 2026-03-28, the 23-hour day, and the day after it.
        (seconds(2026, 3, 27, 23), [24, 23, 24]),
        # 2026-10-24, the 25-hour day, and the day after it.
        (seconds(2026, 10, 23, 22), [24, 25, 24]),
    ],
)
def test_a_day_of_a_changed_clock_has_23_or_25_hours(tmp_path: Path, begin: int, counts: list[int]) -> None:
    found = read(tmp_path, rows(begin, sum(counts)), timezone="Europe/Berlin")

    assert [day.hour_count for day in found.days] == counts
    assert found.notes == ()


def test_parts_of_days_at_the_edges_are_kept_and_told(tmp_path: Path) -> None:
    found = read(tmp_path, rows(seconds(2026, 3, 1, 20), 4 + 24 + 1))

    assert [day.hour_count for day in found.days] == [4, 24, 1]
    assert found.notes == ("2026-03-01 has 4 of its 24 hours", "2026-03-03 has 1 of its 24 hours")


def test_a_zone_of_half_hours_has_whole_days_as_well(tmp_path: Path) -> None:
    local = read(tmp_path, rows(seconds(2026, 3, 1) - 1800 * 11, 48), timezone="Asia/Kolkata")
    by_utc = read(tmp_path, rows(seconds(2026, 3, 1, 19), 24), timezone="Asia/Kolkata")

    assert [day.hour_count for day in local.days] == [24, 24]
    assert [day.hour_count for day in by_utc.days] == [24]
    assert local.notes == by_utc.notes == ()


@pytest.mark.parametrize("column", ["hour_ts", "team", "capacity_gpus", "gpus_running_avg", "gpus_demand_avg"])
def test_a_column_that_is_needed_is_named_where_it_is_missing(tmp_path: Path, column: str) -> None:
    with pytest.raises(RefusedDemand, match=f"the column {column} is missing; found "):
        read_recorded(written(tmp_path, rows(0, 1), without=column), timezone="UTC")


def test_a_column_that_nothing_depends_on_may_be_missing_and_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, rows(seconds(2026, 3, 1), 24), without="gpus_idle_avg")

    assert read_recorded(path, timezone="UTC").notes == ("the column gpus_idle_avg is missing; nothing depends on it",)


@pytest.mark.parametrize("column", ["capacity_gpus", "gpus_running_avg", "gpus_demand_avg", "gpus_pending_avg"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, -1e-9])
def test_numbers_that_cannot_be_are_refused_with_their_row(tmp_path: Path, column: str, value: float | None) -> None:
    cells = rows(seconds(2026, 3, 1), 2)
    cells[2][column] = value

    (fault,) = faults_of(tmp_path, cells)

    assert fault.startswith(f"{column}: 1 row cannot be believed, the first is row 3 with ")


def test_nothing_and_no_gpu_idle_are_believed(tmp_path: Path) -> None:
    begin = seconds(2026, 3, 1)

    found = read(tmp_path, [row(begin, gpus_demand_avg=0.0, gpus_running_avg=0.0, gpus_idle_avg=-2.0)])

    assert found.days[0].hours == {"a": (0.0,)}


@pytest.mark.parametrize(
    ("hour_ts", "fault"),
    [
        (1_588_262_400_000, "expected seconds since 1970, from 2000 to 2099"),
        (0, "expected seconds since 1970, from 2000 to 2099"),
        (1_588_262_400 + 1800, "expected whole hours from"),
        (None, "with 1 empty cells; expected whole seconds since 1970"),
        (datetime(2026, 3, 1, tzinfo=UTC), "expected whole seconds since 1970"),
        ("2026-03-01", "expected whole seconds since 1970"),
    ],
)
def test_hours_that_are_none_are_refused(tmp_path: Path, hour_ts: object, fault: str) -> None:
    whole = row(1_588_262_400)
    other = whole if isinstance(hour_ts, int | None) else {**whole, "hour_ts": hour_ts}

    assert any(fault in each for each in faults_of(tmp_path, [other, {**whole, "team": "b", "hour_ts": hour_ts}]))


@pytest.mark.parametrize("team", ["", "  ", None])
def test_a_row_without_a_team_is_refused(tmp_path: Path, team: str | None) -> None:
    cells = [row(seconds(2026, 3, 1)), row(seconds(2026, 3, 1), team=team)]  # type: ignore[arg-type]  # the fault

    assert any("expected the name of a team" in each for each in faults_of(tmp_path, cells))


def test_an_hour_told_twice_is_refused_with_both_rows(tmp_path: Path) -> None:
    cells = [*rows(seconds(2026, 3, 1), 2), row(seconds(2026, 3, 1), "b")]

    (fault,) = faults_of(tmp_path, cells)

    assert fault.startswith("hours of teams reported again in 1 row, the first is row 5: b at 1772323200 as in row 2")


def test_a_capacity_that_changes_is_refused_for_each_team(tmp_path: Path) -> None:
    cells = rows(seconds(2026, 3, 1), 3)
    for each in cells[4:]:
        each["capacity_gpus"] = 9.0

    assert faults_of(tmp_path, cells) == tuple(
        f"capacity_gpus of {team} changes from 8 to 9 at 1772330400; expected one capacity for each team: "
        "cut the file there"
        for team in "ab"
    )


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    cells = rows(seconds(2026, 3, 1), 2)
    cells[0]["gpus_demand_avg"] = -1.0
    cells[1]["gpus_running_avg"] = float("nan")
    cells[2]["hour_ts"] = 5
    cells[3]["team"] = ""

    assert len(faults_of(tmp_path, cells)) == 4


def test_a_missing_day_and_a_missing_hour_of_a_team_are_refused_by_name(tmp_path: Path) -> None:
    begin = seconds(2026, 3, 1)
    cells = rows(begin, 24) + rows(begin + 48 * 3600, 24)
    del cells[5]  # team b, third hour

    assert faults_of(tmp_path, cells) == (
        "no team has 24 hours from 2026-03-02T00:00Z",
        "b lacks 1 hour from 2026-03-01T02:00Z on, up to 2026-03-01T02:00Z",
        "give the missing hours, or ask for them to be carried from the hour before",
    )


def test_missing_hours_are_carried_only_if_asked_and_told(tmp_path: Path) -> None:
    begin = seconds(2026, 3, 1)
    cells = [row(begin + 3600 * hour, gpus_demand_avg=float(hour + 1)) for hour in range(24) if hour not in (3, 4)]
    cells += [row(begin + 3600 * hour, "b", gpus_demand_avg=9.0) for hour in range(1, 24)]

    found = read(tmp_path, cells, missing=MissingHours.CARRY)

    assert found.days[0].hours[TeamName("a")][:6] == (1.0, 2.0, 3.0, 3.0, 3.0, 6.0)
    assert found.days[0].hours[TeamName("b")][:2] == (0.0, 9.0)
    assert len(found.notes) == 2
    assert all(each.startswith("carried from the hour before: ") for each in found.notes)


def test_a_file_that_is_mostly_hole_is_not_carried(tmp_path: Path) -> None:
    begin = seconds(2026, 3, 1)

    with pytest.raises(RefusedDemand, match="more hours are missing than there are"):
        read(tmp_path, [row(begin), row(begin + 4 * 3600)], missing=MissingHours.CARRY)


def test_what_is_no_file_of_demand_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "demand.parquet").write_bytes(b"hour_ts,team\n1,a\n")

    with pytest.raises(RefusedDemand, match=r"demand\.parquet is refused:\n  no Parquet file that can be read"):
        read_recorded(tmp_path / "demand.parquet", timezone="UTC")
    with pytest.raises(RefusedDemand, match="no Parquet file that can be read"):
        read_recorded(tmp_path / "absent.parquet", timezone="UTC")
    with pytest.raises(RefusedDemand, match="'Mars/Base' is no time zone"):
        read_recorded(tmp_path / "demand.parquet", timezone="Mars/Base")


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "demand.parquet"
    pq.write_table(pa.Table.from_pylist(rows(0, 1)).slice(0, 0), path)

    with pytest.raises(RefusedDemand, match="it has no rows"):
        read_recorded(path, timezone="UTC")


@pytest.mark.skipif(not HELIOS.exists(), reason="the recorded month of helios is not beside this checkout")
def test_a_recorded_month_is_31_whole_local_days() -> None:
    found = read_recorded(HELIOS, timezone="Asia/Shanghai")

    assert [day.hour_count for day in found.days] == [24] * 31
    assert sum(found.capacity.values()) == 376
    assert found.notes == ()
