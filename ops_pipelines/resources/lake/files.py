"""The files of the lake: which ones an hour has, how they are named, who may change them now; and one file of it,
written whole or not at all, always the same bytes for the same rows, read with its schema.

What is done with the files of an hour is `parquet_lake`'s, with old ones `retention`'s.

Local files are written under a name that readers pass over, flushed to the disk, and renamed. An object store takes a
file in one PUT, which is as atomic as that store makes it.

`<root>/<table>/date=YYYY-MM-DD/hour=HH/` holds `hour.parquet` once the hour is closed, and until an hour after that the
cycles: `cycle=<time>[-<part>].parquet`, and `cycle=added.parquet` with what was added while the hour was open. Cycles
of a part that are some minutes old are folded into one, of the part `<part>~folded` (`folded`), at the last one's time.
Aggregates have one file a day: `<root>/<table>_5m/date=YYYY-MM-DD/day.parquet`. Other names are passed over.
"""

import errno
import fcntl
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from ops_pipelines.core.sources import SO_FAR, LakeError
from ops_pipelines.lake.hours import (
    AGGREGATES,
    ROWS_PER_SLICE,
    SchemaChanged,
    given_columns,
    layout_of,
    unknown_columns,
)
from ops_pipelines.lake.schema import TELEMETRY_TABLES

# -- one file --


TEMPORARY_PREFIX = ".tmp-"
_ZSTD_LEVEL = 3
_ADVICE = {
    errno.ENOSPC: "the disk is full: free space, or let `retain` remove old hours",
    errno.EDQUOT: "the quota is used up: free space, or raise it",
    errno.EFBIG: "the file would be larger than the process may write: raise its limit",
    errno.EACCES: "no right: give the lake's directory to the user that runs this",
    errno.EPERM: "no right: give the lake's directory to the user that runs this",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOTDIR: "a file is where a directory must be",
    errno.EEXIST: "a file is where a directory must be",
}


def is_local(path: UPath) -> bool:
    """Return whether the path is on a file system of this machine, with rename and locks."""
    return path.protocol in ("", "file", "local")


@contextmanager
def told_as_lake_error(deed: str, path: UPath | Path) -> Iterator[None]:
    """Turn what the operating system says of a file into LakeError."""
    try:
        yield
    except OSError as exc:
        raise LakeError(_complaint(deed, path, exc)) from exc


def _complaint(deed: str, path: UPath | Path, exc: OSError) -> str:
    advice = _ADVICE.get(exc.errno or 0, "")
    return f"cannot {deed} {path}: {exc.strerror or exc}{'; ' if advice else ''}{advice}"


def encode(rows: pa.Table) -> bytes:
    """Return rows as the bytes of a lake file: Parquet, zstd 3, fixed row groups, no time of writing.

    The rows must be as `lake.hours.normalise` returns them, else equal rows may give other bytes.
    """
    out = BytesIO()
    _encode_into(out, rows.schema, _sliced(rows))
    return out.getvalue()


def write_table_atomically(path: UPath, rows: pa.Table) -> None:
    """Write what `encode` returns. Afterwards the old or the new file is there whole, also if the process is killed.

    Raises LakeError (disk full, no right, ...); then the old file is as it was.
    """
    write_slices_atomically(path, rows.schema, _sliced(rows))


def write_slices_atomically(path: UPath, schema: pa.Schema, slices: Iterable[pa.Table]) -> None:
    """Write tables of ROWS_PER_SLICE rows (the last may be shorter) as `write_table_atomically` would their whole."""
    _write(path, lambda out: _encode_into(out, schema, slices))


def write_atomically(path: UPath, body: bytes) -> None:
    """Write a small file of another kind as `write_table_atomically` does."""
    _write(path, lambda out: _put(out, body))


def read_rows(path: UPath, table_name: str, *, columns: Sequence[str] | None = None, refuse_unknown: bool) -> pa.Table:
    """Return the columns of a file that hold a value (`lake.hours.given_columns`).

    Texts of telemetry stay dictionary-encoded: an hour of a large cluster fits in memory so.
    `columns`: only these, and those of the key. `refuse_unknown`: raise LakeError where the file has columns that this
    program does not know, as who writes the rows back must. Raises LakeError naming a file that is damaged or has a
    column of another type; FileNotFoundError where there is none.
    """
    layout = layout_of(table_name)
    with _named_if_damaged(path), _opened(path, table_name) as file:
        there = file.schema_arrow
        unknown = unknown_columns(table_name, there)
        if unknown and refuse_unknown:
            raise LakeError(
                f"{path} has columns that this version does not know ({', '.join(unknown)}) and would lose: "
                "run the version that wrote it"
            )
        wanted = layout.schema.names if columns is None else [*layout.key, "time", *columns]
        table = file.read([name for name in layout.schema.names if name in wanted and name in there.names])
        return given_columns(table_name, table)


def read_row_count(path: UPath) -> int:
    """Return how many rows a file has. Raises as `read_rows` does."""
    with _named_if_damaged(path), _opened(path, "") as file:
        return int(file.metadata.num_rows)


def read_time_span(path: UPath) -> tuple[datetime, datetime] | None:
    """Return the least and the greatest time in a file, by its footer; None without rows. Raises as `read_rows`."""
    with _named_if_damaged(path), _opened(path, "") as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        where = file.schema_arrow.get_field_index("time")
        spans = [group.column(where).statistics for group in groups if group.num_rows]
        return (min(each.min for each in spans), max(each.max for each in spans)) if spans else None


@contextmanager
def _named_if_damaged(path: UPath) -> Iterator[None]:
    advice = "restore it from a copy, or move it away and fill the hour again"
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        if exc.errno is None:  # it is Arrow that complains, of what it read
            raise LakeError(f"{path} is damaged ({exc}); {advice}") from exc
        raise LakeError(_complaint("read", path, exc)) from exc
    except SchemaChanged as exc:
        raise LakeError(f"{path} does not fit this version: {exc}; run the version that wrote it") from exc
    except (pa.ArrowException, ValueError, KeyError, AttributeError) as exc:
        raise LakeError(f"{path} is damaged ({exc}); {advice}") from exc


@contextmanager
def _opened(path: UPath, table_name: str) -> Iterator[pq.ParquetFile]:
    encoded = _encoded_texts(table_name)
    with nullcontext(path.path) if is_local(path) else path.open("rb") as source:
        try:
            file = pq.ParquetFile(source, read_dictionary=encoded)
        except KeyError:  # the file lacks one of them, as it is older
            names = pq.ParquetFile(source).schema_arrow.names
            file = pq.ParquetFile(source, read_dictionary=[name for name in encoded if name in names])
        with file:
            yield file


def _encoded_texts(table_name: str) -> list[str]:
    base = AGGREGATES[table_name].table if table_name in AGGREGATES else table_name
    if base not in TELEMETRY_TABLES:
        return []
    return [field.name for field in layout_of(table_name).schema if field.type == pa.string()]


def _sliced(rows: pa.Table) -> Iterator[pa.Table]:
    for first in range(0, max(rows.num_rows, 1), ROWS_PER_SLICE):
        yield rows.slice(first, ROWS_PER_SLICE).combine_chunks()


def _encode_into(out: BinaryIO, schema: pa.Schema, slices: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(out, schema.remove_metadata(), compression="zstd", compression_level=_ZSTD_LEVEL) as writer:
        for rows in slices:
            writer.write_table(rows.replace_schema_metadata(None), row_group_size=ROWS_PER_SLICE)


def _put(out: BinaryIO, body: bytes) -> None:
    out.write(body)


def _write(path: UPath, fill: Callable[[BinaryIO], None]) -> None:
    with told_as_lake_error("write", path):
        if is_local(path):
            _write_and_rename(Path(path.path), fill)
        else:
            out = BytesIO()
            fill(out)
            path.fs.pipe_file(path.path, out.getvalue())


def _write_and_rename(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    make_directory(path.parent)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{token_hex(4)}-{path.name}")
    try:
        with temporary.open("xb") as out:
            fill(out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _flush_directory(path.parent)


def make_directory(directory: Path) -> None:
    """Make a local directory and those above it so that they survive a loss of power."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _flush_directory(directory.parent)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- the files of an hour, and its lock --


HOUR = timedelta(hours=1)
HOUR_FILE, ADDED_FILE, DAY_FILE, LOCK_FILE = "hour.parquet", "cycle=added.parquet", "day.parquet", ".lock"
PAGE_FILE = "quality.html"
"""What the checks found, for people; no reader of rows opens it."""
_LONGEST_PART = 160
_FOLDED, _FOLDED_AFTER = "folded", "~"
_TIME_LENGTH = len("20261121T070000Z")
_CYCLE = re.compile(r"cycle=(\d{8}T\d{6}Z(-[A-Za-z0-9_.~%-]+)?|added)\.parquet", re.ASCII)
_DATE, _HOUR = re.compile(r"date=(\d{4}-\d\d-\d\d)", re.ASCII), re.compile(r"hour=(\d\d)", re.ASCII)
_POLL_SECONDS = 0.02
_OPEN_STORES: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourFiles:
    """The files of one hour that hold rows."""

    hour: datetime
    directory: UPath
    is_closed: bool
    cycles: tuple[str, ...]
    """In the order of their times; what was added is last."""

    @property
    def read_from(self) -> tuple[UPath, ...]:
        """The files to read: `hour.parquet` alone, or every cycle."""
        return tuple(self.directory / name for name in ((HOUR_FILE,) if self.is_closed else self.cycles))


def check_hour(hour: datetime) -> datetime:
    """Return the start of an hour in UTC; ValueError for a naive time or one within an hour."""
    if hour.tzinfo is None or hour.timestamp() % 3600:
        raise ValueError(f"{hour} is no start of an hour in UTC")
    return hour.astimezone(UTC)


def hour_of(at: datetime) -> datetime:
    """Return the start of the hour in UTC that `at` is in; ValueError for a naive time."""
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone; convert it to UTC at the border")
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def hour_directory(root: UPath, table: str, hour: datetime) -> UPath:
    """Return where the files of an hour are."""
    start = check_hour(hour)
    return root / table / f"date={start:%Y-%m-%d}" / f"hour={start:%H}"


def day_file(root: UPath, aggregate: str, day: date) -> UPath:
    """Return where the aggregate of a day is."""
    return root / aggregate / f"date={day:%Y-%m-%d}" / DAY_FILE


def cycle_name(at: datetime, part: str) -> str:
    """Return the name of a cycle's file; odd characters of the part are escaped, so that no part leaves its directory.

    Raises ValueError for a naive time or one within a second, and for a part that is too long.
    """
    if at.tzinfo is None or at.microsecond:
        raise ValueError(f"{at} is no cycle: expected an aware time at a whole second")
    written = quote(part, safe="")
    if len(written) > _LONGEST_PART:
        raise ValueError(f"the part {part!r} has {len(written)} characters, expected at most {_LONGEST_PART}")
    return f"cycle={at.astimezone(UTC):%Y%m%dT%H%M%SZ}{'-' if part else ''}{written}.parquet"


def is_of_live_cycle(name: str) -> bool:
    """Return whether a file holds what a store of metrics reported while the hour ran (`core.sources.SO_FAR`)."""
    match = _CYCLE.fullmatch(name)
    return match is not None and match[1] != "added" and match[2] in (None, f"-{SO_FAR}", f"-{_FOLDED}")


def foldable(names: Sequence[str], *, before: datetime) -> Mapping[str, tuple[str, ...]]:
    """Return the cycles up to `before` that may become one file, in their order, by the name of that file.

    Of each part by itself: in which order parts are laid over each other stays as it was.
    """
    by_part: defaultdict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for name in names:
        match = _CYCLE.fullmatch(name)
        if match is None or match[1] == "added" or match[2] == f"-{SO_FAR}":
            continue
        at = datetime.strptime(match[1][:_TIME_LENGTH], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        part = (match[2] or "-")[1:].removesuffix(_FOLDED).removesuffix(_FOLDED_AFTER)
        if at <= before:
            by_part[part].append((at, name))
    found = {}
    for part, cycles in by_part.items():
        last = max(at for at, _ in cycles)
        folded = f"{part}{_FOLDED_AFTER}{_FOLDED}" if part else _FOLDED
        if len(cycles) > 1:
            found[f"cycle={last:%Y%m%dT%H%M%SZ}-{folded}.parquet"] = tuple(name for _, name in cycles)
    return found


def files_of_hour(root: UPath, table: str, hour: datetime) -> HourFiles:
    """Return what an hour holds; nothing if it is not there."""
    directory = hour_directory(root, table, hour)
    return _hour_files(check_hour(hour), directory, names_in(directory))


def list_hours(root: UPath, table: str, *, day: date | None = None) -> tuple[HourFiles, ...]:
    """Return the hours of a table, or of one of its days, that hold a file with rows, oldest first."""
    base = root / table
    days = names_in(base) if day is None else (f"date={day:%Y-%m-%d}",)
    found = _walk_local(base, days) if is_local(root) else _walk_store(base if day is None else base / days[0])
    hours = []
    for (day_name, hour_name), names in sorted(found.items()):
        day_match, hour_match = _DATE.fullmatch(day_name), _HOUR.fullmatch(hour_name)
        if day_match is None or hour_match is None:
            continue
        try:
            start = datetime.fromisoformat(f"{day_match[1]}T{hour_match[1]}:00:00+00:00")
        except ValueError:
            continue
        files = _hour_files(start, base / day_name / hour_name, names)
        if files.is_closed or files.cycles:
            hours.append(files)
    return tuple(hours)


def list_days(root: UPath, aggregate: str) -> tuple[date, ...]:
    """Return the days that an aggregate has a file of, oldest first."""
    return tuple(
        day for day in list_dates(root, aggregate) if DAY_FILE in names_in(day_file(root, aggregate, day).parent)
    )


def list_dates(root: UPath, table: str) -> tuple[date, ...]:
    """Return the days that a table or an aggregate has a directory of, oldest first."""
    days = []
    for name in names_in(root / table):
        match = _DATE.fullmatch(name)
        with suppress(ValueError):
            days += [date.fromisoformat(match[1])] if match else []
    return tuple(sorted(days))


def names_in(directory: UPath) -> tuple[str, ...]:
    """Return the names in a directory, sorted; none if it is not there."""
    with told_as_lake_error("list", directory):
        try:
            if is_local(directory):
                return tuple(sorted(path.name for path in Path(directory.path).iterdir()))
            directory.fs.invalidate_cache(directory.path)  # some stores remember listings
            found = directory.fs.ls(directory.path, detail=False)
            return tuple(sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found))
        except FileNotFoundError:
            return ()


@contextmanager
def hold_hour(directory: UPath, *, wait_seconds: float) -> Iterator[None]:
    """Be the only one who changes the hour. Raises LakeError after `wait_seconds`.

    Locally among all processes (`flock`; a process that dies releases it). In an object store only among the threads of
    this process: there one process writes an hour at a time, or the last one wins.
    """
    if not is_local(directory):
        with _OPEN_STORES[str(directory)]:
            yield
        return
    path = Path(directory.path) / LOCK_FILE
    with told_as_lake_error("lock", path):
        descriptor = _lock(path, wait_seconds)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, wait_seconds: float) -> int:
    """Return a descriptor that holds the lock on the file that is at `path` now; who cleans up may unlink it."""
    give_up_at = time.monotonic() + wait_seconds
    while True:
        try:
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the empty hour was removed in between
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                os.close(descriptor)
                raise LakeError(
                    f"{path.parent} is being changed by another process for over {wait_seconds:g} s; try again later"
                ) from None
            time.sleep(_POLL_SECONDS)
        os.close(descriptor)


def _hour_files(hour: datetime, directory: UPath, names: tuple[str, ...]) -> HourFiles:
    cycles = sorted(name for name in names if _CYCLE.fullmatch(name))
    cycles.sort(key=lambda name: name.removesuffix(".parquet"))  # `-part` after none; `added` after every time
    return HourFiles(hour=hour, directory=directory, is_closed=HOUR_FILE in names, cycles=tuple(cycles))


def _walk_local(base: UPath, days: Sequence[str]) -> Mapping[tuple[str, str], tuple[str, ...]]:
    return {
        (day, hour): names_in(base / day / hour)
        for day in days
        if _DATE.fullmatch(day)
        for hour in names_in(base / day)
        if _HOUR.fullmatch(hour)
    }


def _walk_store(base: UPath) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return what `_walk_local` does, from one listing: each request to an object store costs milliseconds."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    with told_as_lake_error("list", base):
        try:
            base.fs.invalidate_cache(base.path)
            paths = base.fs.find(base.path)
        except FileNotFoundError:
            return {}
    for path in paths:
        parts = str(path).split("/")
        if len(parts) >= 3:
            found[parts[-3], parts[-2]].append(parts[-1])
    return {place: tuple(sorted(names)) for place, names in found.items()}
