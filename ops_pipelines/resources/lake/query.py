"""SQL over the lake: an in-memory DuckDB with one view a table, which can read the lake and nothing else; and how much
the lake holds, per table.

The views are Arrow datasets that know the hour of each file, so that a query on `time` opens only its hours, and DuckDB
itself needs no way to files and is given none: no path, no extension, no setting can be reached from a query. One
statement at a time, and only one that reads.

A closed hour is one file. The cycles of an open hour are read as they are where no two can hold the same row, and are
merged in memory otherwise. Columns that files lack are null. Every dataset has `date` and `hour` besides. For sizes
footers are read, never rows; of many files only some, and the rest is estimated.
"""

import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import cast

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from upath import UPath

from ops_pipelines.core.sources import LakeError
from ops_pipelines.lake.hours import AGGREGATES, layout_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.files import (
    HOUR,
    HourFiles,
    day_file,
    is_local,
    list_days,
    list_hours,
    read_row_count,
    read_time_span,
)
from ops_pipelines.resources.lake.parquet_lake import ParquetLake

# -- how much the lake holds --


_COUNTED_FILES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """One table or aggregate."""

    name: str
    row_count: int
    """Rows in files; those of an open hour before they are merged."""
    is_row_count_estimated: bool
    hour_count: int
    open_hour_count: int
    oldest: datetime
    """Start of the oldest hour (or day, of an aggregate)."""
    newest: datetime
    """Time of the newest row; the end of the newest day, of an aggregate."""
    size_bytes: int


def describe_lake(lake: ParquetLake) -> tuple[TableDescription, ...]:
    """Return the tables that have files, then the aggregates. Raises LakeError."""
    tables = [_table(lake, name) for name in TABLES]
    aggregates = [_aggregate(lake, name) for name in AGGREGATES]
    return tuple(each for each in (*tables, *aggregates) if each is not None)


def _table(lake: ParquetLake, name: str) -> TableDescription | None:
    hours = list_hours(lake.root, name)
    if not hours:
        return None
    rows, is_estimated, size = _count([path for files in hours for path in files.read_from])
    return TableDescription(
        name=name,
        row_count=rows,
        is_row_count_estimated=is_estimated,
        hour_count=len(hours),
        open_hour_count=sum(not files.is_closed for files in hours),
        oldest=hours[0].hour,
        newest=lake.newest_time(name) or hours[-1].hour,
        size_bytes=size,
    )


def _aggregate(lake: ParquetLake, name: str) -> TableDescription | None:
    days = list_days(lake.root, name)
    if not days:
        return None
    rows, is_estimated, size = _count([day_file(lake.root, name, day) for day in days])
    return TableDescription(
        name=name,
        row_count=rows,
        is_row_count_estimated=is_estimated,
        hour_count=24 * len(days),
        open_hour_count=0,
        oldest=datetime.combine(days[0], time(), UTC),
        newest=datetime.combine(days[-1], time(), UTC) + timedelta(days=1),
        size_bytes=size,
    )


def _count(paths: list[UPath]) -> tuple[int, bool, int]:
    """Return rows, whether they are estimated (from the sizes of files), and bytes. A file that goes is left out."""
    size = counted_rows = counted_size = 0
    step = -(-len(paths) // _COUNTED_FILES)
    for number, path in enumerate(paths):
        try:
            each = path.stat().st_size
            if number % step == 0:
                counted_rows += read_row_count(path)
                counted_size += each
        except FileNotFoundError:
            continue
        size += each
    rows = counted_rows if step <= 1 else round(counted_rows * size / max(counted_size, 1))
    return rows, step > 1, size


# -- tables as Arrow datasets --


_DAY = timedelta(days=1)
_FORMAT = ds.ParquetFileFormat()
_TIME = ds.field("time")


def scan_schema(table_name: str) -> pa.Schema:
    """Return the columns of a table or an aggregate as queries see them."""
    schema = layout_of(table_name).schema.append(pa.field("date", pa.date32()))
    return schema if table_name in AGGREGATES else schema.append(pa.field("hour", pa.int64()))


def scan(lake: ParquetLake, table_name: str) -> ds.Dataset:
    """Return a table, or an aggregate (`gpu_telemetry_5m`), as a dataset. Lists files; opens those of open hours only.

    Raises LakeError where the lake cannot be listed or an open hour is damaged.
    """
    schema, filesystem = scan_schema(table_name), _filesystem(lake.root)
    if table_name in AGGREGATES:
        fragments = [
            _fragment(day_file(lake.root, table_name, day), filesystem, start=_midnight(day.isoformat()), span=_DAY)
            for day in list_days(lake.root, table_name)
        ]
        return ds.FileSystemDataset(fragments, schema, _FORMAT, filesystem)
    fragments, merged = [], []
    for files in list_hours(lake.root, table_name):
        if files.is_closed or _are_apart(files):
            fragments += [_fragment(path, filesystem, start=files.hour, span=HOUR) for path in files.read_from]
        else:
            merged.append(_with_hour(lake.read_hour(table_name, files.hour), files.hour, schema))
    found = ds.FileSystemDataset(fragments, schema, _FORMAT, filesystem)
    return ds.UnionDataset(schema, [found, ds.InMemoryDataset(merged, schema)]) if merged else found


def _fragment(path: UPath, filesystem: pafs.FileSystem, *, start: datetime, span: timedelta) -> ds.Fragment:
    begin, end = (pa.scalar(each, pa.timestamp("us", tz="UTC")) for each in (start, start + span))
    known = (begin <= _TIME) & (end > _TIME) & (ds.field("date") == pa.scalar(start.date(), pa.date32()))
    if span == HOUR:
        known &= ds.field("hour") == pa.scalar(start.hour, pa.int64())
    return _FORMAT.make_fragment(path.path, filesystem, partition_expression=known)


def _are_apart(files: HourFiles) -> bool:
    """Return whether the times of the cycles do not overlap, so that no row can be in two of them."""
    try:
        spans = sorted(span for path in files.read_from if (span := read_time_span(path)) is not None)
    except FileNotFoundError:  # closed and cleaned since it was listed
        return False
    return all(before[1] < after[0] for before, after in pairwise(spans))


def _with_hour(rows: object, hour: datetime, schema: pa.Schema) -> pa.Table:
    table = cast("pa.Table", rows)
    table = table.append_column(schema.field("date"), pa.repeat(pa.scalar(hour.date(), pa.date32()), table.num_rows))
    return table.append_column(schema.field("hour"), pa.repeat(pa.scalar(hour.hour, pa.int64()), table.num_rows))


def _filesystem(root: UPath) -> pafs.FileSystem:
    return pafs.LocalFileSystem() if is_local(root) else pafs.PyFileSystem(pafs.FSSpecHandler(root.fs))


def _midnight(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)


# -- one query --


_LATEST: Mapping[str, str] = {"gpu_latest": "gpu_telemetry", "node_latest": "node_telemetry"}
"""View -> the table whose newest row per key it shows."""
_LATEST_SPAN = timedelta(minutes=15)
COLUMNS_VIEW = "lake_columns"
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_WORD = re.compile(r"\w+")
_STREAM_FAULT = re.compile(r"reading the stream registered as '\w+' failed: (?P<what>.*)", re.DOTALL)
_BATCH_ROWS = 10_000
_GONE = "No such file"
"""In what DuckDB passes on of a file that was folded or cleaned since it was listed: listed again, it is read."""


class QueryRefused(ValueError):
    """A query that is not run, is no SQL, or ran too long: the message says why, and what can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """What a query found."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    """Arrow's names, one a column."""
    rows: tuple[tuple[object, ...], ...]
    truncated: bool
    """There are more rows than were asked for."""


def query(
    lake_root: str | Path | UPath,
    sql: str,
    *,
    limit: int | None = 1000,
    timeout_seconds: float = 120.0,
    memory_bytes: int = 2 * 1024**3,
) -> QueryResult:
    """Run one reading statement and return at most `limit` rows (None: all of them).

    Times are UTC. Raises QueryRefused; LakeError where the lake cannot be read.
    """
    lake = ParquetLake(lake_root)
    try:
        return _query(lake, sql, limit=limit, timeout_seconds=timeout_seconds, memory_bytes=memory_bytes)
    except LakeError as problem:
        if _GONE not in str(problem):
            raise
        return _query(lake, sql, limit=limit, timeout_seconds=timeout_seconds, memory_bytes=memory_bytes)


def _query(lake: ParquetLake, sql: str, *, limit: int | None, timeout_seconds: float, memory_bytes: int) -> QueryResult:
    with closing(duckdb.connect(config=_locked_config(memory_bytes))) as connection:
        statement = _one_reading(connection, sql)
        mentioned = _mentioned(sql)
        _make_views(connection, lake, mentioned)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        with _explained(mentioned), _limited(connection, timeout_seconds):
            return _read(connection.sql(statement), limit)


def view_names() -> tuple[str, ...]:
    """Return everything that a query may name."""
    return (*TABLES, *AGGREGATES, *_LATEST, COLUMNS_VIEW)


def _locked_config(memory_bytes: int) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "memory_limit": f"{memory_bytes // 1024**2}MiB",
        "temp_directory": "",  # a query that needs more memory is refused; nothing is written
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


def _one_reading(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as exc:
        raise QueryRefused(_first_lines(exc)) from exc
    if len(statements) != 1:
        raise QueryRefused(f"found {len(statements)} statements, expected one")
    kind = statements[0].type
    if kind not in _READING:
        raise QueryRefused(f"a {kind.name} statement is not run here: the lake is read only; expected a SELECT")
    return str(statements[0].query)


def _mentioned(sql: str) -> frozenset[str]:
    """Return the views that the text may name: only those are listed, which costs for a year of hours."""
    words = {word.lower() for word in _WORD.findall(sql)}
    names = words.intersection(view_names())
    return frozenset(names | {_LATEST[name] for name in names if name in _LATEST})


def _make_views(connection: duckdb.DuckDBPyConnection, lake: ParquetLake, mentioned: Collection[str]) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET python_enable_replacements = false")
    for name in (*TABLES, *AGGREGATES):
        connection.register(name, scan(lake, name) if name in mentioned else scan_schema(name).empty_table())
    connection.register(COLUMNS_VIEW, _columns())
    for name, table in _LATEST.items():
        newest = lake.newest_time(table) if name in mentioned else None
        since = "false" if newest is None else f"time > TIMESTAMPTZ '{(newest - _LATEST_SPAN).isoformat()}'"
        keys = ", ".join(TABLES[table].key)
        connection.execute(
            f"CREATE VIEW {name} AS SELECT * FROM {table} WHERE {since} "  # noqa: S608  # all ours
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY time DESC) = 1"
        )


def _columns() -> pa.Table:
    """Return what each column means: the catalogue, to be asked in SQL."""
    rows = [
        {
            "table_name": table.name,
            "column_name": column.name,
            "type": column.type.value,
            "unit": column.unit,
            "meaning": column.meaning,
        }
        for table in TABLES.values()
        for column in table.columns
    ]
    return pa.Table.from_pylist(rows)


@contextmanager
def _limited(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except duckdb.InterruptException as exc:
        raise QueryRefused(f"it took longer than {seconds:g} s; ask for fewer hours: `WHERE time >= ...`") from exc
    finally:
        timer.cancel()


@contextmanager
def _explained(mentioned: Collection[str]) -> Iterator[None]:
    try:
        yield
    except duckdb.CatalogException as exc:
        raise QueryRefused(f"{_first_lines(exc)}\nthere are {', '.join(view_names())}") from exc
    except duckdb.BinderException as exc:
        raise QueryRefused(f"{_first_lines(exc)}{_hint(mentioned)}") from exc
    except duckdb.OutOfMemoryException as exc:
        raise QueryRefused("it needs more memory than it may have; ask for fewer hours or columns") from exc
    except duckdb.Error as exc:
        fault = _STREAM_FAULT.search(str(exc))
        if fault is not None:
            raise LakeError(f"cannot read the lake: {fault['what']}") from exc
        raise QueryRefused(_first_lines(exc)) from exc


def _hint(mentioned: Collection[str]) -> str:
    lines = [
        f"\n{name} has {', '.join(scan_schema(name).names)}"
        for name in sorted(mentioned)
        if name in TABLES or name in AGGREGATES
    ]
    return "".join(lines)


def _first_lines(exc: Exception) -> str:
    return str(exc).strip()


def _read(relation: duckdb.DuckDBPyRelation, limit: int | None) -> QueryResult:
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    schema: pa.Schema = reader.schema
    rows: list[tuple[object, ...]] = []
    for batch in reader:
        columns = [_values(batch.column(number)) for number in range(batch.num_columns)]
        rows.extend(zip(*columns, strict=True))
        if limit is not None and len(rows) > limit:
            break
    kept = rows if limit is None else rows[:limit]
    return QueryResult(
        columns=tuple(schema.names),
        types=tuple(str(field.type) for field in schema),
        rows=tuple(kept),
        truncated=len(kept) < len(rows),
    )


def _values(column: pa.Array) -> list[object]:
    values: list[object] = column.to_pylist()
    return [_duration(each) for each in values] if pa.types.is_interval(column.type) else values


def _duration(value: object) -> object:
    """Return an interval as a timedelta; one that counts months has no length, and stays a text."""
    if not isinstance(value, pa.MonthDayNano):
        return value
    span = timedelta(days=value.days, microseconds=value.nanoseconds // 1000)
    return f"{value.months} months {span}" if value.months else span
