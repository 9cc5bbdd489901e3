"""Old telemetry becomes 5-minute and hourly rows, and only then goes: `<table>_5m` and `<table>_1h`, a file a day.

A day is aggregated once it has ended and settled, and again if its hours change. Raw hours are deleted when a setting
says so, and only as the aggregates counted them. Records (jobs, lines, inventory) are never deleted here.
Every step may be cut short: who repeats it ends with the same rows.

`counted.json` beside the hourly file names the files that were counted. Before the first raw hour of a day goes, it
says that the day is sealed: rows that come later are added where the aggregates have no value, and change none.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pyarrow as pa
from upath import UPath

from ops_pipelines.clock import Clock
from ops_pipelines.frames.aggregate_schema import EVERY
from ops_pipelines.frames.aggregates import aggregate
from ops_pipelines.frames.hours import layout_of, merged_slices
from ops_pipelines.frames.schema import TELEMETRY_TABLES
from ops_pipelines.ports.lake import Kept, LakeError
from ops_pipelines.resources.lake import ParquetLake
from ops_pipelines.resources.lake_files import (
    is_local,
    read_rows,
    told_as_lake_error,
    write_atomically,
    write_slices_atomically,
)
from ops_pipelines.resources.lake_listing import (
    HOUR_FILE,
    LOCK_FILE,
    HourFiles,
    day_file,
    files_of_hour,
    list_days,
    list_hours,
)

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

    def __post_init__(self) -> None:
        days = [_FOR_EVER if each is None else each for each in (self.raw_days, *self.by_suffix.values())]
        if min(days) < 1:
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


def preview_retention(lake: ParquetLake, *, now: datetime, settings: RetentionSettings) -> Retained:
    """Return what `retain` would write and delete now; changes nothing."""
    report = Retained()
    for table in TELEMETRY_TABLES:
        for day, hours in _settled_days(lake, table, now=now).items():
            if _Day(lake, table, day).lacks(hours):
                report.aggregated += [_name(lake, day_file(lake.root, f"{table}_{suffix}", day)) for suffix in EVERY]
            if _is_over(day, settings.raw_days, now=now):
                for path in (path for files in hours for path in _all_files(files)):
                    _note(report, lake, path)
        for path in _aggregates_to_delete(lake, table, now=now, settings=settings):
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
        for path in _aggregates_to_delete(lake, table, now=now, settings=settings):
            _delete(path, report, lake)
            _remove_if_empty(path.parent)
    return report


class Housekeeper:
    """Keeps one lake by one set of settings; see `ports.lake.LakeKeeper`."""

    def __init__(self, lake: ParquetLake, *, settings: RetentionSettings, clock: Clock) -> None:
        self._lake = lake
        self._settings = settings
        self._clock = clock

    def keep(self) -> Kept:
        now = self._clock.now()
        done = retain(self._lake, now=now, settings=self._settings)
        self._lake.clean(now)
        return Kept(aggregated=tuple(done.aggregated), deleted=tuple(done.deleted), deleted_bytes=done.deleted_bytes)


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
        return any(self._counted.get(_label(files)) != _print_of(files) for files in hours)

    def aggregate(self, report: Retained) -> None:
        """Write the aggregates, then what they counted. An open hour of a settled day is closed first."""
        for files in self._hours():
            if not files.is_closed:
                self._lake.compact(self._table, files.hour)
        hours = self._hours()
        if not self.lacks(hours):
            return
        prints = {_label(files): _print_of(files) for files in hours}  # before reading: what comes later shows
        is_partial = self._is_partial(prints)
        parts: dict[str, list[pa.Table]] = {suffix: [] for suffix in EVERY}
        for files in hours:
            if not is_partial or self._counted.get(_label(files)) != prints[_label(files)]:
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
        """Delete the hours that are counted as they are now; one that changed since waits for the next run."""
        hours = [files for files in self._hours() if self._counted.get(_label(files)) == _print_of(files)]
        if hours and not self._is_sealed:
            self._say(self._counted, is_sealed=True)
        for listed in hours:
            with self._lake.hold(self._table, listed.hour):
                files = files_of_hour(self._lake.root, self._table, listed.hour)
                if not files.is_closed or self._counted.get(_label(files)) != _print_of(files):
                    continue
                for path in _all_files(files):
                    _delete(path, report, self._lake)
                if is_local(files.directory):
                    _delete(files.directory / LOCK_FILE, Retained(), self._lake)
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
    lake: ParquetLake, table: str, *, now: datetime, settings: RetentionSettings
) -> Iterator[UPath]:
    for suffix, days in settings.by_suffix.items():
        for day in list_days(lake.root, f"{table}_{suffix}"):
            if _is_over(day, days, now=now):
                path = day_file(lake.root, f"{table}_{suffix}", day)
                if suffix == "1h":
                    yield path.parent / _COUNTED_FILE
                yield path


def _end_of(day: date) -> datetime:
    return datetime.combine(day, time(), UTC) + timedelta(days=1)


def _is_over(day: date, days: int | None, *, now: datetime) -> bool:
    return days is not None and _end_of(day) + timedelta(days=days) <= now


def _label(files: HourFiles) -> str:
    return f"{files.hour:%H}"


def _print_of(files: HourFiles) -> str:
    """Return what changes whenever `hour.parquet` is written again; empty while the hour is open."""
    path = files.directory / HOUR_FILE
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
