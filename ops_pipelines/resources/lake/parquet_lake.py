"""The lake as Parquet files, on a local path or in an object store by URL: implements `core.sources.Lake`.

Every change of an hour is made under the hour's lock, by one file that appears whole. While an hour is open, cycles are
files of their own; once it is closed, whatever comes is merged into `hour.parquet`. Names of files: `files`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from upath import UPath

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.sources import LakeError, Rows
from ops_pipelines.lake.hours import given_columns, layout_of, merge, merged_slices, normalise, split_by_hour
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.files import (
    ADDED_FILE,
    HOUR,
    HOUR_FILE,
    LOCK_FILE,
    PAGE_FILE,
    TEMPORARY_PREFIX,
    HourFiles,
    check_hour,
    cycle_name,
    files_of_hour,
    foldable,
    hold_hour,
    hour_directory,
    hour_of,
    is_local,
    is_of_live_cycle,
    list_dates,
    list_hours,
    names_in,
    read_row_count,
    read_rows,
    read_time_span,
    told_as_lake_error,
    write_atomically,
    write_slices_atomically,
    write_table_atomically,
)

_WALL_CLOCK = SystemClock()
_SUPERSEDED_FOR = timedelta(hours=1)
"""How long cycle files stay after their hour was closed: a reader that listed them before may still open them."""
_FOLDED_AFTER = timedelta(minutes=10)
"""Longer than any cycle is late: what is folded is not written again."""
_WRITERS = 8
"""Hours that are added to at once. A year of accounting is 8,760 files, and each waits for the disk three times."""
_READ_TRIES = 3
"""A file that was listed may be gone when it is opened, because the hour was closed and cleaned in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What `clean` removed."""

    cycle_file_count: int
    temporary_count: int


class ParquetLake:
    """Tables of `schema.TABLES` by hour under a root: a path, or a URL that fsspec knows (`s3://...`, `memory://...`).

    Locally any number of processes may read and write. In an object store any number may read, and one process at a
    time may write an hour: there is no lock there. `clock` shows which hours are over.
    """

    def __init__(
        self, root: str | Path | UPath, *, clock: Clock = _WALL_CLOCK, lock_wait_seconds: float = 120.0
    ) -> None:
        path = UPath(root)
        self.root = UPath(Path(path.path).absolute()) if is_local(path) else path
        self._clock = clock
        self._lock_wait_seconds = lock_wait_seconds

    # -- writing --

    def write_cycle(self, table: str, rows: Rows, *, at: datetime, part: str = "") -> None:
        """Keep the rows of one cycle under its name; rows of a closed hour are merged into it.

        Rows of another hour than that of `at` go, under the same name, to the hour of their own time.
        """
        name = cycle_name(at, part)
        by_hour = split_by_hour(normalise(_known(table), _arrow(rows)))
        for hour in {hour_of(at), *by_hour}:
            self._write_cycle(table, by_hour.get(hour, layout_of(table).schema.empty_table()), hour=hour, name=name)

    def add(self, table: str, rows: Rows) -> Mapping[datetime, int]:
        """Merge rows of any time into their hours; return the rows that were not there before, per hour.

        An hour that is closed, or is over and has no file yet, gets `hour.parquet`. In an hour that is open, still runs
        or lies ahead they wait, in `cycle=added.parquet`, for its close: a live hour is not rewritten at each cycle.
        """
        by_hour = split_by_hour(normalise(_known(table), _arrow(rows)))
        if len(by_hour) <= 1:
            return {hour: self._add(table, late, hour=hour) for hour, late in by_hour.items()}
        with ThreadPoolExecutor(_WRITERS) as pool:
            added = pool.map(lambda hour: self._add(table, by_hour[hour], hour=hour), by_hour)
            return dict(zip(by_hour, added, strict=True))

    def close_hour(
        self, table: str, hour: datetime, *, filled: Rows | None = None, retold: Collection[datetime] = ()
    ) -> Rows:
        """Compact an hour into `hour.parquet`, overlaid by `filled`, and return its rows; see `core.sources`.

        Rows of `filled` whose time is in another hour raise ValueError. For a large hour whose rows are not needed,
        `compact` holds less in memory.
        """
        self.compact(table, hour, filled=filled, retold=retold)
        return self.read_hour(table, hour)

    def compact(
        self, table: str, hour: datetime, *, filled: Rows | None = None, retold: Collection[datetime] = ()
    ) -> int:
        """Do what `close_hour` does, slice by slice, and return the number of rows."""
        start = check_hour(hour)
        overlay = () if filled is None else (_of_hour(_known(table), filled, start),)
        directory = hour_directory(self.root, _known(table), start)
        with self.hold(table, hour):
            files = files_of_hour(self.root, table, start)
            if files.is_closed and not overlay:
                return read_row_count(directory / HOUR_FILE)
            slices = _Counted(merged_slices(table, [*self._read_kept(table, files, retold=retold), *overlay]))
            write_slices_atomically(directory / HOUR_FILE, layout_of(table).schema, slices)
            return slices.row_count

    def write_page(self, table: str, hour: datetime, html: str) -> str:
        """Keep a page beside the files of an hour; return its path or URL."""
        directory = hour_directory(self.root, _known(table), hour)
        write_atomically(directory / PAGE_FILE, html.encode())
        return str(directory / PAGE_FILE)

    def tidy(self, now: datetime) -> None:
        """Do what `clean` does."""
        self.clean(now)

    def fold(self, now: datetime) -> None:
        """Put the cycles of open hours that are ten minutes old into one file a part; see `core.sources`.

        In an object store they stay as they are: there is no lock there.
        """
        if not is_local(self.root):
            return
        for table in names_in(self.root):
            for day in {now.date(), (now - HOUR).date()} if table in TABLES else ():
                for files in list_hours(self.root, table, day=day):
                    if not files.is_closed:
                        self._fold_hour(table, files.hour, before=now - _FOLDED_AFTER)

    def replace_hour(self, table: str, hour: datetime, rows: Rows | None) -> Rows:
        """Make `rows` all that an hour holds, close it, and return them in order."""
        start = check_hour(hour)
        parts = () if rows is None else (_of_hour(_known(table), rows, start),)
        with self.hold(table, hour):
            path = hour_directory(self.root, _known(table), start) / HOUR_FILE
            write_slices_atomically(path, layout_of(table).schema, merged_slices(table, parts))
        return self.read_hour(table, hour)

    def clean(self, now: datetime) -> Cleaned:
        """Remove cycle files an hour after their hour was closed, and temporaries an hour old; say how many."""
        cycles = temporaries = 0
        with told_as_lake_error("clean", self.root):
            for table in names_in(self.root):
                if table in TABLES:
                    cycles += sum(self._clean_hour(table, files, now=now) for files in list_hours(self.root, table))
                temporaries += self._remove_temporaries(self.root / table, now=now)
        return Cleaned(cycle_file_count=cycles, temporary_count=temporaries)

    # -- reading --

    def read_hour(self, table: str, hour: datetime) -> Rows:
        """Return the rows of an hour in the table's schema; none if the hour is not there. Raises LakeError."""
        rows: Rows = merge(_known(table), self._read(table, check_hour(hour), columns=None))
        return rows

    def read(self, table: str, *, start: datetime, end: datetime, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with start <= time < end, sorted by key and time; only `columns` if they are given.

        Raises KeyError for a column that the table does not have.
        """
        schema = layout_of(_known(table)).schema
        names = schema.names if columns is None else list(columns)
        for name in names:
            schema.field(name)
        parts: list[pa.Table] = []
        for files in list_hours(self.root, table):
            if files.hour + HOUR > start and files.hour < end:
                found = self._read(table, files.hour, columns=names)
                if not start <= files.hour <= end - HOUR:
                    found = [_between(rows, start, end) for rows in found]
                # All hours are merged below; here only what would have to be held twice until then.
                rows = found[0] if len(found) == 1 else merge(table, found)
                wanted = {*names, *_sort_order(table)} & {*rows.column_names}
                parts.append(rows.select([name for name in schema.names if name in wanted]))
        return merge(table, parts).select(names)

    def hours(self, table: str) -> list[datetime]:
        """Return the hours that hold a file, oldest first."""
        return [files.hour for files in list_hours(self.root, _known(table))]

    def open_hours(self, table: str) -> list[datetime]:
        """Return the hours that hold cycles and are not closed, oldest first."""
        return [files.hour for files in list_hours(self.root, _known(table)) if not files.is_closed]

    def newest_time(self, table: str) -> datetime | None:
        """Return the greatest time of a row; None if there is no row."""
        for day in reversed(list_dates(self.root, _known(table))):
            for files in reversed(list_hours(self.root, table, day=day)):
                spans = [span for path in files.read_from if (span := read_time_span(path)) is not None]
                if spans:
                    return max(end for _, end in spans).astimezone(UTC)
        return None

    def path_of_hour(self, table: str, hour: datetime) -> UPath:
        """Return where the file of a closed hour is, or will be."""
        return hour_directory(self.root, _known(table), hour) / HOUR_FILE

    # -- one hour --

    def hold(self, table: str, hour: datetime) -> AbstractContextManager[None]:
        """Return a context in which no one else changes the hour (`lake_listing.hold_hour`)."""
        directory = hour_directory(self.root, _known(table), hour)
        return hold_hour(directory, wait_seconds=self._lock_wait_seconds)

    def _write_cycle(self, table: str, rows: pa.Table, *, hour: datetime, name: str) -> None:
        directory = hour_directory(self.root, table, hour)
        with self.hold(table, hour):
            if files_of_hour(self.root, table, hour).is_closed:
                self._overlay(table, directory / HOUR_FILE, rows)
            else:
                write_table_atomically(directory / name, rows)

    def _add(self, table: str, rows: pa.Table, *, hour: datetime) -> int:
        directory = hour_directory(self.root, table, hour)
        with self.hold(table, hour):
            files = files_of_hour(self.root, table, hour)
            is_over = hour + HOUR <= self._clock.now()  # a node's clock may be ahead: its hour is still to come
            if files.is_closed or (is_over and not files.cycles):
                return self._overlay(table, directory / HOUR_FILE, rows)
            keys = [_keys(table, part) for part in self._read_parts(table, files.read_from, columns=())]
            before, after = merge(table, keys).num_rows, merge(table, [*keys, _keys(table, rows)]).num_rows
            self._overlay(table, directory / ADDED_FILE, rows)
            return int(after - before)

    def _overlay(self, table: str, path: UPath, rows: pa.Table) -> int:
        """Merge rows into a file; return how many were not in it. A file that would not change is not written."""
        there = merge(table, self._read_parts(table, (path,) if path.exists() else ()))
        merged = merge(table, (there, rows))
        if not path.exists() or not _is_same(merged, there):
            write_table_atomically(path, merged)
        return int(merged.num_rows - there.num_rows)

    def _read(self, table: str, hour: datetime, *, columns: Sequence[str] | None) -> list[pa.Table]:
        for _ in range(_READ_TRIES - 1):
            try:
                return self._read_files(table, hour, columns)
            except FileNotFoundError:
                continue
        try:
            return self._read_files(table, hour, columns)
        except FileNotFoundError as exc:
            raise LakeError(f"{exc.filename or exc} went away while it was read: {table}, {hour}; try again") from exc

    def _read_files(self, table: str, hour: datetime, columns: Sequence[str] | None) -> list[pa.Table]:
        paths = files_of_hour(self.root, table, hour).read_from
        return [read_rows(path, table, columns=columns, refuse_unknown=False) for path in paths]

    def _read_kept(self, table: str, files: HourFiles, *, retold: Collection[datetime]) -> list[pa.Table]:
        """Return the parts of an hour, without what live cycles kept of the times `retold`."""
        if files.is_closed or not retold:
            return self._read_parts(table, files.read_from)
        kept: list[pa.Table] = []
        for path in files.read_from:
            (part,) = self._read_parts(table, (path,))
            if is_of_live_cycle(path.name):
                times = pa.array(sorted(retold), part.schema.field("time").type)
                part = part.filter(pc.invert(pc.is_in(part.column("time"), value_set=times)))
            kept.append(part)
        return kept

    def _read_parts(
        self, table: str, paths: Sequence[UPath], *, columns: Sequence[str] | None = None
    ) -> list[pa.Table]:
        return [read_rows(path, table, columns=columns, refuse_unknown=True) for path in paths]

    # -- cleaning --

    def _fold_hour(self, table: str, hour: datetime, *, before: datetime) -> None:
        with self.hold(table, hour):
            files = files_of_hour(self.root, table, hour)
            for folded, names in foldable(files.cycles, before=before).items() if not files.is_closed else ():
                parts = self._read_parts(table, [files.directory / name for name in names])
                write_table_atomically(files.directory / folded, merge(table, parts))
                # Who dies here leaves rows twice, which count once.
                for name in set(names) - {folded}:
                    (files.directory / name).unlink(missing_ok=True)

    def _clean_hour(self, table: str, files: HourFiles, *, now: datetime) -> int:
        path, lock = files.directory / HOUR_FILE, files.directory / LOCK_FILE
        if not files.is_closed or not (files.cycles or lock.exists()) or now - _changed_at(path) < _SUPERSEDED_FOR:
            return 0
        with self.hold(table, files.hour):
            for name in files.cycles:
                cycle = files.directory / name
                if not is_local(cycle) and _changed_at(cycle) > _changed_at(path):
                    # Without a lock, a cycle may have come to an object store while its hour was being closed.
                    late = read_rows(cycle, table, refuse_unknown=True)
                    self._overlay(table, path, late)
                cycle.unlink(missing_ok=True)
            if is_local(files.directory):
                lock.unlink(missing_ok=True)
        return len(files.cycles)

    def _remove_temporaries(self, directory: UPath, *, now: datetime) -> int:
        if not is_local(directory):
            return 0  # an object store has none
        removed = 0
        for path in Path(directory.path).rglob(f"{TEMPORARY_PREFIX}*"):
            try:
                if now - datetime.fromtimestamp(path.stat().st_mtime, UTC) >= _SUPERSEDED_FOR:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:  # its writer has finished
                continue
        return removed


class _Counted:
    """Counts the rows of the slices that pass."""

    def __init__(self, slices: Iterator[pa.Table]) -> None:
        self._slices = slices
        self.row_count = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for rows in self._slices:
            self.row_count += rows.num_rows
            yield rows


def _known(table: str) -> str:
    """Return the name of a table; ValueError for any other text, which must never become a path."""
    if table not in TABLES:
        raise ValueError(f"{table!r} is no table of the lake; there are {', '.join(TABLES)}")
    return table


def _arrow(rows: Rows) -> pa.Table:
    if not isinstance(rows, pa.Table):
        raise TypeError(f"rows are a {type(rows).__name__}, expected a pyarrow.Table")
    return rows


def _between(rows: pa.Table, start: datetime, end: datetime) -> pa.Table:
    times = rows.column("time")
    return rows.filter(pc.and_(pc.greater_equal(times, start), pc.less(times, end)))


def _sort_order(table: str) -> tuple[str, ...]:
    return TABLES[table].sort_order


def _keys(table: str, rows: pa.Table) -> pa.Table:
    return rows.select(_sort_order(table))


def _of_hour(table: str, rows: Rows, hour: datetime) -> pa.Table:
    given = given_columns(table, _arrow(rows))
    if given.num_rows:
        bounds = pc.min_max(given.column("time")).as_py()
        if not hour <= bounds["min"] <= bounds["max"] < hour + HOUR:
            raise ValueError(f"{table}: rows from {bounds['min']} to {bounds['max']} do not belong to the hour {hour}")
    return given


def _is_same(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables of one schema hold the same cells; NaN is the same as NaN, and not as null."""
    if one.num_rows != other.num_rows:
        return False
    return all(_is_same_column(one.column(name), other.column(name)) for name in one.schema.names)


def _is_same_column(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if one.equals(other):
        return True
    if not pa.types.is_floating(one.type) or not pc.is_valid(one).equals(pc.is_valid(other)):
        return False
    return np.array_equal(one.to_numpy(), other.to_numpy(), equal_nan=True)


def _changed_at(path: UPath) -> datetime:
    try:
        if is_local(path):
            return datetime.fromtimestamp(path.stat().st_mtime, UTC)
        changed = path.fs.modified(path.path)
        return cast("datetime", changed if changed.tzinfo else changed.replace(tzinfo=UTC))
    except FileNotFoundError:
        return datetime.max.replace(tzinfo=UTC)
