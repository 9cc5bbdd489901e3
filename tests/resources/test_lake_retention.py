"""Old telemetry: aggregated, then deleted, and never the other way round."""

from datetime import date, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from ops_pipelines.core.sources import LakeError
from ops_pipelines.lake.hours import aggregate, merge
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.files import day_file, list_days, read_rows
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.query import query
from ops_pipelines.resources.lake.retention import RetentionSettings, preview_retention, retain
from tests.ports.lake_samples import HOUR, TABLE, cells, gpu, many, table

DAY = HOUR.date()
END = datetime.fromisoformat("2026-11-22T00:00:00+00:00")
SETTLED = END + timedelta(hours=6)
NEXT_HOUR = HOUR + timedelta(hours=1)
KEEP_ALL = RetentionSettings()
WEEK = RetentionSettings(raw_days=7)


@pytest.fixture(params=["path", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ParquetLake:
    made = ParquetLake(tmp_path / "lake" if request.param == "path" else f"memory://{uuid4().hex}/deep")
    made.close_hour(TABLE, HOUR, filled=many("ab", range(0, 3600, 150)))
    made.write_cycle(TABLE, many("ab", [3600]), at=NEXT_HOUR)
    made.close_hour(TABLE, NEXT_HOUR)
    return made


def aggregated(lake: ParquetLake, suffix: str, *columns: str, day: date = DAY) -> list[tuple[object, ...]]:
    name = f"{TABLE}_{suffix}"
    rows = merge(name, (read_rows(day_file(lake.root, name, day), name, refuse_unknown=True),))
    return cells(rows, *columns)


def week_later() -> datetime:
    return END + timedelta(days=7)


def test_a_settled_day_is_aggregated_and_its_rows_stay(lake: ParquetLake) -> None:
    report = retain(lake, now=SETTLED, settings=KEEP_ALL)

    assert report.aggregated == [f"{TABLE}_{suffix}/date=2026-11-21/day.parquet" for suffix in ("5m", "1h")]
    assert (report.deleted, lake.hours(TABLE), lake.open_hours(TABLE)) == ([], [HOUR, NEXT_HOUR], [])
    expected = aggregate(TABLE, lake.read(TABLE, start=HOUR, end=END), every=timedelta(hours=1))
    assert aggregated(lake, "1h", *expected.schema.names) == cells(expected, *expected.schema.names)
    found = query(lake.root, "SELECT count(*) FROM gpu_telemetry_5m UNION ALL SELECT count(*) FROM gpu_telemetry_1h")
    assert found.rows == ((26,), (4,))


@pytest.mark.parametrize(("seconds", "is_settled"), [(-1, False), (0, True), (1, True)])
def test_a_day_settles_six_hours_after_its_end(lake: ParquetLake, seconds: int, is_settled: bool) -> None:
    report = retain(lake, now=SETTLED + timedelta(seconds=seconds), settings=KEEP_ALL)

    assert bool(report.aggregated) is is_settled
    assert bool(list_days(lake.root, f"{TABLE}_5m")) is is_settled


def test_doing_it_again_does_nothing(lake: ParquetLake) -> None:
    retain(lake, now=SETTLED, settings=KEEP_ALL)
    again = retain(lake, now=SETTLED, settings=KEEP_ALL)
    retain(lake, now=week_later(), settings=WEEK)
    after = retain(lake, now=week_later(), settings=WEEK)

    assert (again.aggregated, again.deleted, after.aggregated, after.deleted) == ([], [], [], [])


def test_late_rows_of_a_day_that_is_kept_make_its_aggregates_anew(lake: ParquetLake) -> None:
    retain(lake, now=SETTLED, settings=KEEP_ALL)
    lake.add(TABLE, table(gpu("a", 1, power_watts=1e6)))

    retain(lake, now=SETTLED, settings=KEEP_ALL)

    assert aggregated(lake, "1h", "node", "sample_count", "power_watts_max")[0] == ("a", 25, 1e6)


@pytest.mark.parametrize(("seconds", "is_deleted"), [(-1, False), (0, True), (1, True)])
def test_raw_rows_go_when_their_days_are_over(lake: ParquetLake, seconds: int, is_deleted: bool) -> None:
    report = retain(lake, now=week_later() + timedelta(seconds=seconds), settings=WEEK)

    assert lake.hours(TABLE) == ([] if is_deleted else [HOUR, NEXT_HOUR])
    assert bool(report.deleted) is is_deleted
    assert bool(report.deleted_bytes) is is_deleted
    assert len(aggregated(lake, "5m", "node")) == 26


def test_without_settings_nothing_is_ever_deleted(lake: ParquetLake) -> None:
    report = retain(lake, now=END + timedelta(days=3650), settings=KEEP_ALL)

    assert report.deleted == []
    assert lake.hours(TABLE) == [HOUR, NEXT_HOUR]


def test_aggregates_go_in_their_turn(lake: ParquetLake) -> None:
    settings = RetentionSettings(raw_days=1, five_minute_days=2, hourly_days=3)

    kept = []
    for days in (1, 2, 3):
        retain(lake, now=END + timedelta(days=days), settings=settings)
        kept.append(
            (len(lake.hours(TABLE)), *(len(list_days(lake.root, f"{TABLE}_{suffix}")) for suffix in ("5m", "1h")))
        )

    assert kept == [(0, 1, 1), (0, 0, 1), (0, 0, 0)]


def test_rows_that_come_after_a_day_was_let_go_are_added_and_change_nothing_else(lake: ParquetLake) -> None:
    retain(lake, now=week_later(), settings=WEEK)
    before = aggregated(lake, "1h", "node", "time", "sample_count", "power_watts")

    for _ in range(2):
        lake.add(TABLE, table(gpu("a", 0, power_watts=1e6), gpu("new", 0, power_watts=5.0), gpu("a", 7200)))
        retain(lake, now=week_later(), settings=WEEK)

        after = aggregated(lake, "1h", "node", "time", "sample_count", "power_watts")
        assert set(after) - set(before) == {("a", HOUR + timedelta(hours=2), 1, None), ("new", HOUR, 1, 5.0)}
        assert set(before) <= set(after)
        assert lake.hours(TABLE) == []


def test_hours_that_somebody_else_removed_stay_in_the_aggregates(lake: ParquetLake) -> None:
    retain(lake, now=SETTLED, settings=KEEP_ALL)
    lake.path_of_hour(TABLE, HOUR).unlink()
    lake.add(TABLE, table(gpu("new", 3700)))

    retain(lake, now=SETTLED, settings=KEEP_ALL)

    assert [node for node, _ in aggregated(lake, "1h", "node", "time")] == ["a", "a", "b", "b", "new"]


def test_a_lost_aggregate_is_made_again_while_the_rows_are_there(lake: ParquetLake) -> None:
    retain(lake, now=SETTLED, settings=KEEP_ALL)
    path = day_file(lake.root, f"{TABLE}_5m", DAY)
    before = path.read_bytes()
    path.unlink()

    retain(lake, now=SETTLED, settings=KEEP_ALL)

    assert path.read_bytes() == before


def test_a_damaged_hour_stops_its_deletion(lake: ParquetLake) -> None:
    lake.path_of_hour(TABLE, HOUR).write_bytes(b"damaged")

    with pytest.raises(LakeError, match=r"hour=07/hour\.parquet is damaged"):
        retain(lake, now=week_later(), settings=WEEK)

    assert lake.hours(TABLE) == [HOUR, NEXT_HOUR]


def test_a_damaged_note_of_what_was_counted_stops_everything(lake: ParquetLake) -> None:
    retain(lake, now=SETTLED, settings=KEEP_ALL)
    note = day_file(lake.root, f"{TABLE}_1h", DAY).parent / "counted.json"

    for body in (b"{", b"[]", b"{}", b'{"hours": 1, "is_sealed": true}'):
        note.write_bytes(body)
        with pytest.raises(LakeError, match=r"counted\.json is damaged"):
            retain(lake, now=week_later(), settings=WEEK)

    assert lake.hours(TABLE) == [HOUR, NEXT_HOUR]


def test_a_preview_says_what_would_be_done_and_does_nothing(lake: ParquetLake) -> None:
    settings = RetentionSettings(raw_days=1, five_minute_days=1, hourly_days=9)
    preview = preview_retention(lake, now=END + timedelta(days=1), settings=settings)
    untouched = (lake.hours(TABLE), lake.open_hours(TABLE), list_days(lake.root, f"{TABLE}_1h"))

    done = retain(lake, now=END + timedelta(days=1), settings=settings)

    assert untouched == ([HOUR, NEXT_HOUR], [], ())
    assert preview.aggregated == done.aggregated
    assert f"{TABLE}/date=2026-11-21/hour=07/hour.parquet" in preview.deleted
    assert {Path(path).parent for path in preview.deleted} <= {Path(path).parent for path in done.deleted}


# -- hours that were never filled --


def open_hour(lake: ParquetLake) -> datetime:
    hour = HOUR + timedelta(hours=2)
    lake.write_cycle(TABLE, many("ab", [7200]), at=hour)
    return hour


def test_a_day_with_an_hour_that_was_never_filled_is_aggregated_and_kept(lake: ParquetLake) -> None:
    hour = open_hour(lake)

    settings = RetentionSettings(raw_days=7, five_minute_days=7, hourly_days=7)
    preview = preview_retention(lake, now=week_later(), settings=settings)
    done = retain(lake, now=week_later(), settings=settings)
    again = retain(lake, now=week_later(), settings=settings)

    assert preview == done
    assert (done.deleted, done.kept_open, len(done.aggregated)) == ([], [f"{TABLE} 2026-11-21"], 2)
    assert (again.aggregated, again.deleted, again.kept_open) == ([], [], done.kept_open)
    assert (lake.hours(TABLE), lake.open_hours(TABLE)) == ([HOUR, NEXT_HOUR, hour], [hour])
    assert aggregated(lake, "1h", "node", "time", "sample_count")[2] == ("a", hour, 1)


def test_a_later_fill_of_an_hour_is_counted_whole_and_then_the_day_goes(lake: ParquetLake) -> None:
    hour = open_hour(lake)
    retain(lake, now=week_later(), settings=WEEK)

    lake.close_hour(TABLE, hour, filled=many("ab", range(7200, 10800, 15)))
    done = retain(lake, now=week_later(), settings=WEEK)

    assert aggregated(lake, "1h", "node", "time", "sample_count")[2] == ("a", hour, 240)
    assert (lake.hours(TABLE), done.kept_open, done.late_row_count) == ([], [], 0)


def test_a_cycle_that_comes_to_an_open_hour_is_counted(lake: ParquetLake) -> None:
    hour = open_hour(lake)
    retain(lake, now=SETTLED, settings=KEEP_ALL)

    lake.write_cycle(TABLE, many("ab", [7215]), at=hour + timedelta(seconds=15))
    retain(lake, now=SETTLED, settings=KEEP_ALL)

    assert aggregated(lake, "1h", "node", "time", "sample_count")[2] == ("a", hour, 2)


def test_a_fill_after_a_day_was_let_go_is_told(lake: ParquetLake) -> None:
    retain(lake, now=week_later(), settings=WEEK)

    lake.close_hour(TABLE, HOUR, filled=many("ab", range(0, 3600, 15)))
    preview = preview_retention(lake, now=week_later(), settings=WEEK)
    done = retain(lake, now=week_later(), settings=WEEK)
    after = retain(lake, now=week_later(), settings=WEEK)

    assert (preview.late_row_count, done.late_row_count, after.late_row_count) == (480, 480, 0)


def test_a_new_hour_of_a_day_that_was_let_go_waits_for_its_fill(lake: ParquetLake) -> None:
    retain(lake, now=week_later(), settings=WEEK)
    hour = open_hour(lake)

    waiting = retain(lake, now=week_later(), settings=WEEK)
    lake.close_hour(TABLE, hour, filled=many("ab", range(7200, 10800, 15)))
    done = retain(lake, now=week_later(), settings=WEEK)

    assert (waiting.aggregated, waiting.kept_open) == ([], [f"{TABLE} 2026-11-21"])
    assert ("a", hour, 240) in aggregated(lake, "1h", "node", "time", "sample_count")
    assert (done.late_row_count, lake.hours(TABLE)) == (0, [])


@pytest.mark.parametrize(("seconds", "is_deleted"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize("name", ["rejected_rows", "job_logs", "kernel_events"])
def test_records_go_when_their_own_days_are_over(lake: ParquetLake, name: str, seconds: int, is_deleted: bool) -> None:
    lake.close_hour(name, HOUR)
    lake.write_page(name, HOUR, "<p>checked</p>")
    lake.write_cycle(name, TABLES[name].from_rows([]), at=NEXT_HOUR)
    now, settings = week_later() + timedelta(seconds=seconds), RetentionSettings(record_days=7)

    preview = preview_retention(lake, now=now, settings=settings)
    done = retain(lake, now=now, settings=settings)

    assert preview.deleted == done.deleted
    assert (len(done.deleted), lake.hours(name)) == ((2, []) if is_deleted else (0, [HOUR, NEXT_HOUR]))
    assert any(path.is_file() for path in (lake.root / name).rglob("*")) is not is_deleted
    assert lake.hours(TABLE) == [HOUR, NEXT_HOUR]


def test_records_are_kept_for_at_least_a_day() -> None:
    with pytest.raises(ValueError, match="at least 1 day"):
        RetentionSettings(record_days=0)


def test_records_without_a_setting_are_never_let_go(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    rows = TABLES["rejected_rows"].from_rows([{"source": "f", "record": "line 1", "time": HOUR, "reason": "no_time"}])
    lake.add("rejected_rows", rows)

    retain(
        lake, now=END + timedelta(days=3650), settings=RetentionSettings(raw_days=1, five_minute_days=1, hourly_days=1)
    )

    assert lake.read_hour("rejected_rows", HOUR).num_rows == 1


@pytest.mark.parametrize(
    ("raw", "five", "hourly"),
    [(0, None, None), (None, 5, None), (None, None, 5), (5, 4, None), (5, None, 9), (5, 9, 8)],
)
def test_settings_that_would_delete_in_another_order_are_refused(
    raw: int | None, five: int | None, hourly: int | None
) -> None:
    with pytest.raises(ValueError, match=r"at least"):
        RetentionSettings(raw_days=raw, five_minute_days=five, hourly_days=hourly)


@pytest.mark.parametrize(("raw", "five", "hourly"), [(1, None, None), (5, 5, 5), (5, 6, None), (None, None, None)])
def test_settings_that_keep_the_coarser_rows_longer_are_taken(
    raw: int | None, five: int | None, hourly: int | None
) -> None:
    assert RetentionSettings(raw_days=raw, five_minute_days=five, hourly_days=hourly).raw_days == raw
