"""Old telemetry becomes 5-minute and hourly rows, and only then goes: `<table>_5m` and `<table>_1h`, a file a day.

A day is aggregated once it has ended and settled, and again if its hours change. Raw hours are deleted when a setting
says so, only as the aggregates counted them, and only of days whose every hour is closed: an hour that was never filled
may still be. Of records, only RECORD_TABLES go, whole hours at a time; the others are never deleted here.
Every step may be cut short: who repeats it ends with the same rows.

`counted.json` beside the hourly file names the files that were counted. Before the first raw hour of a day goes, it
says that the day is sealed: rows that come later are added where the aggregates have no value, and change none.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
from upath import UPath

from ops_pipelines.clock import Clock
from ops_pipelines.core.sources import Kept, LakeError
from ops_pipelines.lake.hours import EVERY, aggregate, layout_of, merged_slices
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.resources.lake.files import (
    HOUR_FILE,
    LOCK_FILE,
    PAGE_FILE,
    HourFiles,
    day_file,
    files_of_hour,
    is_local,
    list_days,
    list_hours,
    read_row_count,
    read_rows,
    told_as_lake_error,
    write_atomically,
    write_slices_atomically,
)
from ops_pipelines.resources.lake.parquet_lake import ParquetLake

RECORD_TABLES = ("rejected_rows", "job_logs", "kernel_events")
"""Records that pile up without end and have no aggregates."""
_SETTLES_AFTER = timedelta(hours=6)
"""# Assumption: back-fills and late data of a day have mostly come six hours after its end; more costs another go."""
_COUNTED_FILE = "counted.json"
_FOR_EVER = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How many days after its end a day is kept; None keeps it for ever."""

    raw_days: int | None = None
    five_minute_days: int | None = None
    hourly_days: int | None = None
    record_days: int | None = None
    """Of RECORD_TABLES; independent of the others."""

    def __post_init__(self) -> None:
        days = [_FOR_EVER if each is None else each for each in (self.raw_days, *self.by_suffix.values())]
        if min(*days, _FOR_EVER if self.record_days is None else self.record_days) < 1:
            raise ValueError("a table is kept for at least 1 day; leave the setting out to keep everything")
        if days != sorted(days):
            raise ValueError(
                f"raw rows are kept {self.raw_days}, 5-minute rows {self.five_minute_days} and hourly rows "
                f"{self.hourly_days} day(s) (None: for ever); expected each at least as long as the one before"
            )

    @property
    def by_suffix(self) -> Mapping[str, int | None]:
        """Return the days of each aggregate."""
        return {"5m": self.five_minute_days, "1h": self.hourly_days}


@dataclass(slots=True, kw_only=True)
class Retained:
    """What was done, or would be: paths below the root."""

    aggregated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    deleted_bytes: int = 0
    kept_open: list[str] = field(default_factory=list)
    """Table and day of what has served its time and stays, because an hour of it was never filled."""
    late_row_count: int = 0
    """Rows of hours that were counted before and are gone: only what the aggregates lack is taken from them."""


def preview_retention(lake: ParquetLake, *, now: datetime, settings: RetentionSettings) -> Retained:
    """Return what `retain` would write and delete now; changes nothing."""
    report = Retained()
    for table in TELEMETRY_TABLES:
        for day, hours in _settled_days(lake, table, now=now).items():
            found = _Day(lake, table, day)
            report.late_row_count += found.late_row_count(hours)
            if found.lacks(hours):
                report.aggregated += [_name(lake, day_file(lake.root, f"{table}_{suffix}", day)) for suffix in EVERY]
            if not _is_over(day, settings.raw_days, now=now):
                continue
            if _has_open_hour(hours):
                report.kept_open.append(f"{table} {day}")
            else:
                for path in (path for files in hours for path in _all_files(files)):
                    _note(report, lake, path)
        for path in _aggregates_to_delete(lake, table, now=now, settings=settings, kept_open=report.kept_open):
            _note(report, lake, path)
    for _, files in _records_to_delete(lake, now=now, settings=settings):
        for path in _all_files(files):
            _note(report, lake, path)
    return report


def retain(lake: ParquetLake, *, now: datetime, settings: RetentionSettings) -> Retained:
    """Aggregate the days that have settled, then delete what the settings no longer keep; return what was done.

    Idempotent; one process at a time, others may write the lake meanwhile. Raises LakeError: what was not aggregated by
    then is not deleted.
    """
    report = Retained()
    for table in TELEMETRY_TABLES:
        for each in _settled_days(lake, table, now=now):
            day = _Day(lake, table, each)
            day.aggregate(report)
            if _is_over(each, settings.raw_days, now=now):
                day.delete_raw(report)
        for path in _aggregates_to_delete(lake, table, now=now, settings=settings, kept_open=report.kept_open):
            _delete(path, report, lake)
            _remove_if_empty(path.parent)
    for table, files in _records_to_delete(lake, now=now, settings=settings):
        _delete_hour(lake, table, files, report)
        _remove_if_empty(files.directory.parent)
    return report


class Housekeeper:
    """Keeps one lake by one set of settings; see `core.sources.LakeKeeper`."""

    def __init__(self, lake: ParquetLake, *, settings: RetentionSettings, clock: Clock) -> None:
        self._lake = lake
        self._settings = settings
        self._clock = clock

    def keep(self) -> Kept:
        now = self._clock.now()
        done = retain(self._lake, now=now, settings=self._settings)
        self._lake.clean(now)
        return Kept(
            aggregated=tuple(done.aggregated),
            deleted=tuple(done.deleted),
            deleted_bytes=done.deleted_bytes,
            kept_open=tuple(done.kept_open),
            late_row_count=done.late_row_count,
        )


class _Day:
    """One day of one table: its hours, its aggregates, and which hours they counted."""

    def __init__(self, lake: ParquetLake, table: str, day: date) -> None:
        self._lake, self._table, self._day = lake, table, day
        self._paths = {suffix: day_file(lake.root, f"{table}_{suffix}", day) for suffix in EVERY}
        self._counted_path = self._paths["1h"].parent / _COUNTED_FILE
        self._counted, self._is_sealed = _read_counted(self._counted_path)

    def lacks(self, hours: tuple[HourFiles, ...]) -> bool:
        """Return whether an hour is not counted as it is now, or an aggregate is gone that can still be made."""
        if not self._is_sealed and not all(path.exists() for path in self._paths.values()):
            return True
        return bool(self._uncounted(hours))

    def late_row_count(self, hours: tuple[HourFiles, ...]) -> int:
        """Return the rows of hours to count that were counted before, in a day that can only be added to."""
        if not self._is_partial([_label(files) for files in hours]):
            return 0
        return sum(
            read_row_count(files.directory / HOUR_FILE)
            for files in self._uncounted(hours)
            if not self._counted or _label(files) in self._counted
        )

    def _uncounted(self, hours: tuple[HourFiles, ...]) -> tuple[HourFiles, ...]:
        """Return the hours that are not counted as they are now.

        Where aggregates are only added to, an open hour waits for its close: what its cycles say would stand for good.
        """
        is_partial = self._is_partial([_label(files) for files in hours])
        return tuple(
            files
            for files in hours
            if self._counted.get(_label(files)) != _print_of(files) and (files.is_closed or not is_partial)
        )

    def aggregate(self, report: Retained) -> None:
        """Write the aggregates, then what they counted. Open hours count as they are, and stay open."""
        hours = self._hours()
        if not self.lacks(hours):
            return
        is_partial = self._is_partial([_label(files) for files in hours])
        if is_partial:
            report.late_row_count += self.late_row_count(hours)
            hours = self._uncounted(hours)
        prints = {_label(files): _print_of(files) for files in hours}  # before reading: what comes later shows
        parts: dict[str, list[pa.Table]] = {suffix: [] for suffix in EVERY}
        for files in hours:
            rows = self._lake.read_hour(self._table, files.hour)
            for suffix, every in EVERY.items():
                parts[suffix].append(aggregate(self._table, rows, every=every))
        for suffix, path in self._paths.items():
            name = f"{self._table}_{suffix}"
            if is_partial and path.exists():
                parts[suffix].append(read_rows(path, name, refuse_unknown=True))
            write_slices_atomically(path, layout_of(name).schema, merged_slices(name, parts[suffix]))
            report.aggregated.append(_name(self._lake, path))
        self._say({**self._counted, **prints} if is_partial else prints, is_sealed=self._is_sealed)

    def _is_partial(self, hours: Collection[str]) -> bool:
        """Return whether the aggregates may hold what no raw hour holds any more: then they are only added to."""
        are_hours_missing = not set(self._counted) <= set(hours)
        is_origin_unknown = not self._counted and any(path.exists() for path in self._paths.values())
        return self._is_sealed or are_hours_missing or is_origin_unknown

    def delete_raw(self, report: Retained) -> None:
        """Delete the hours that are counted as they are now; one that changed since waits for the next run.

        A day with an open hour is kept whole: a fill of that hour would find its aggregates sealed.
        """
        there = self._hours()
        if _has_open_hour(there):
            report.kept_open.append(f"{self._table} {self._day}")
            return
        hours = [files for files in there if self._counted.get(_label(files)) == _print_of(files)]
        if hours and not self._is_sealed:
            self._say(self._counted, is_sealed=True)
        for listed in hours:
            with self._lake.hold(self._table, listed.hour):
                files = files_of_hour(self._lake.root, self._table, listed.hour)
                if not files.is_closed or self._counted.get(_label(files)) != _print_of(files):
                    continue
                _delete_files(self._lake, files, report)
            _remove_if_empty(listed.directory)
        _remove_if_empty(self._lake.root / self._table / f"date={self._day:%Y-%m-%d}")

    def _hours(self) -> tuple[HourFiles, ...]:
        return tuple(files for files in list_hours(self._lake.root, self._table, day=self._day))

    def _say(self, counted: Mapping[str, str], *, is_sealed: bool) -> None:
        document = {"hours": counted, "is_sealed": is_sealed}
        write_atomically(self._counted_path, json.dumps(document, sort_keys=True, indent=1).encode())
        self._counted, self._is_sealed = counted, is_sealed


def _read_counted(path: UPath) -> tuple[Mapping[str, str], bool]:
    try:
        document = json.loads(path.read_bytes())
        hours, is_sealed = document["hours"], document["is_sealed"]
        if not isinstance(hours, dict) or not isinstance(is_sealed, bool):
            raise TypeError("another shape")
    except FileNotFoundError:
        return {}, False
    except (ValueError, KeyError, TypeError) as exc:
        # Guessing would let a late row replace a day: nothing of it is written or deleted before a person looked.
        raise LakeError(f"{path} is damaged ({exc}); restore it, or say {{'hours': {{}}, 'is_sealed': true}}") from exc
    return hours, is_sealed


def _settled_days(lake: ParquetLake, table: str, *, now: datetime) -> Mapping[date, tuple[HourFiles, ...]]:
    days: dict[date, tuple[HourFiles, ...]] = {}
    for files in list_hours(lake.root, table):
        day = files.hour.date()
        if _end_of(day) + _SETTLES_AFTER <= now:
            days[day] = (*days.get(day, ()), files)
    return days


def _aggregates_to_delete(
    lake: ParquetLake, table: str, *, now: datetime, settings: RetentionSettings, kept_open: Collection[str]
) -> Iterator[UPath]:
    """Return the aggregates that have served their time, without those that would be made again from open days."""
    for suffix, days in settings.by_suffix.items():
        for day in list_days(lake.root, f"{table}_{suffix}"):
            if _is_over(day, days, now=now) and f"{table} {day}" not in kept_open:
                path = day_file(lake.root, f"{table}_{suffix}", day)
                if suffix == "1h":
                    yield path.parent / _COUNTED_FILE
                yield path


def _records_to_delete(
    lake: ParquetLake, *, now: datetime, settings: RetentionSettings
) -> Iterator[tuple[str, HourFiles]]:
    """Return table and hour of the records that have served their time."""
    for table in RECORD_TABLES:
        for files in list_hours(lake.root, table) if settings.record_days is not None else ():
            if _is_over(files.hour.date(), settings.record_days, now=now):
                yield table, files


def _delete_hour(lake: ParquetLake, table: str, listed: HourFiles, report: Retained) -> None:
    with lake.hold(table, listed.hour):
        _delete_files(lake, files_of_hour(lake.root, table, listed.hour), report)
    _remove_if_empty(listed.directory)


def _delete_files(lake: ParquetLake, files: HourFiles, report: Retained) -> None:
    """Delete what an hour holds; the caller holds it."""
    for path in _all_files(files):
        _delete(path, report, lake)
    with told_as_lake_error("delete", files.directory / PAGE_FILE):
        (files.directory / PAGE_FILE).unlink(missing_ok=True)
    if is_local(files.directory):
        _delete(files.directory / LOCK_FILE, Retained(), lake)


def _end_of(day: date) -> datetime:
    return datetime.combine(day, time(), UTC) + timedelta(days=1)


def _is_over(day: date, days: int | None, *, now: datetime) -> bool:
    return days is not None and _end_of(day) + timedelta(days=days) <= now


def _label(files: HourFiles) -> str:
    return f"{files.hour:%H}"


def _print_of(files: HourFiles) -> str:
    """Return what changes whenever a file of the hour is written again; empty for a closed hour that is gone."""
    if files.is_closed:
        return _file_print(files.directory / HOUR_FILE)
    digest = sha256()
    for path in files.read_from:
        digest.update(f"{path.name} {_file_print(path)}\n".encode())
    return f"open {digest.hexdigest()}"


def _has_open_hour(hours: Iterable[HourFiles]) -> bool:
    return any(not files.is_closed for files in hours)


def _file_print(path: UPath) -> str:
    with suppress(FileNotFoundError):
        if is_local(path):
            found = Path(path.path).stat()
            return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
        facts = path.fs.info(path.path)
        return f"{facts.get('size')} {facts.get('ETag')} {facts.get('LastModified', facts.get('created'))}"
    return ""


def _all_files(files: HourFiles) -> tuple[UPath, ...]:
    """Return the files of an hour; cycles first: without `hour.parquet` beside them they would count again."""
    names = (*files.cycles, *((HOUR_FILE,) if files.is_closed else ()))
    return tuple(files.directory / name for name in names)


def _note(report: Retained, lake: ParquetLake, path: UPath) -> None:
    with suppress(FileNotFoundError):
        report.deleted_bytes += path.stat().st_size
        report.deleted.append(_name(lake, path))


def _delete(path: UPath, report: Retained, lake: ParquetLake) -> None:
    with told_as_lake_error("delete", path):
        _note(report, lake, path)
        path.unlink(missing_ok=True)


def _remove_if_empty(directory: UPath) -> None:
    if is_local(directory):
        with suppress(OSError):  # not empty, or gone already
            Path(directory.path).rmdir()


def _name(lake: ParquetLake, path: UPath) -> str:
    return path.path.removeprefix(lake.root.path).lstrip("/")
