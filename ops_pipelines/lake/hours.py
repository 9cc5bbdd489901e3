"""Rows of one table: whose row is whose, hours laid over each other, and the aggregates of 5 minutes and an hour.

One row per key and interval; `time` is the interval's start (intervals are half-open). Per column of the table:

- gauge: the mean under its own name, and `_min` and `_max`, over the values that are there (NaN is none);
- state: the last value under its own name, and `_min` and `_max`, so that a state that came and went still shows;
- counter: the last value: the difference of two intervals is what was counted between their ends, if nothing restarted;
- label or flag: the last that was given;
- `sample_count`: the rows of the interval.

Records (jobs, lines, inventory) are not aggregated. Nothing heavy is imported before a schema is asked for.

For what must look from one row to the next of the same series: duplicates, counters that fall, rates.

A row is known by its key and time. Where parts hold the same row, each cell takes the last part's value that is not
null: a source that says nothing takes nothing away. The order of parts matters only where two parts differ in a cell.

Sums run in the order of rows and not in parallel, so that the same rows give the same bits.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.lake.quantities import Kind
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES

# -- which columns the 5-minute and hourly aggregates of the telemetry tables have --


if TYPE_CHECKING:
    import pyarrow as pa

EVERY: Mapping[str, timedelta] = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1)}
"""Suffix of the aggregate -> its interval. Each divides an hour."""
SAMPLE_COUNT = "sample_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One aggregate of one table."""

    name: str
    table: str
    every: timedelta


AGGREGATES: Mapping[str, Aggregate] = {
    f"{table}_{suffix}": Aggregate(name=f"{table}_{suffix}", table=table, every=every)
    for table in TELEMETRY_TABLES
    for suffix, every in EVERY.items()
}


@cache
def aggregate_schema(table_name: str) -> "pa.Schema":
    """Return the Arrow schema of a telemetry table's aggregates; ValueError for a table of records."""
    import pyarrow as pa

    if table_name not in TELEMETRY_TABLES:
        raise ValueError(f"{table_name} holds records, not samples; only {', '.join(TELEMETRY_TABLES)} are aggregated")
    table = TABLES[table_name]
    fields = [table.arrow().field(name) for name in table.sort_order]
    fields.append(pa.field(SAMPLE_COUNT, pa.int64()))
    for column in table.columns:
        if column.name in table.sort_order:
            continue
        fields.append(table.arrow().field(column.name))
        if has_bounds(table_name, column.name):
            fields.extend(pa.field(f"{column.name}_{end}", pa.float64()) for end in ("min", "max"))
    return pa.schema(fields)


def has_bounds(table_name: str, column: str) -> bool:
    """Return whether the aggregates keep the least and the greatest value: of gauges and states."""
    quantity = TABLES[table_name].by_name[column].quantity
    return quantity is not None and quantity.kind is not Kind.COUNTER


def is_averaged(table_name: str, column: str) -> bool:
    """Return whether the aggregates give the mean under the column's name: of gauges."""
    quantity = TABLES[table_name].by_name[column].quantity
    return quantity is not None and quantity.kind is Kind.GAUGE


# -- whose row is whose --


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowOrder:
    """Rows by series and time. All arrays have one entry a row, in that order."""

    order: NDArray[np.int64] | None
    """Position in the table of each row; None: the table is in this order already."""
    series: NDArray[np.int64]
    """Number of the series: equal keys, equal numbers, ascending as the keys do."""
    times: NDArray[np.int64]
    """Microseconds since 1970, UTC; the least number there is for a null."""
    unsorted_count: int
    """Rows of the table that stand before one they should follow."""

    def in_order(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a column of the table in this order."""
        return values if self.order is None else values[self.order]

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """Return where a row has the key and time of the one before it."""
        found = np.zeros(len(self.series), dtype=np.bool_)
        found[1:] = (self.series[1:] == self.series[:-1]) & (self.times[1:] == self.times[:-1])
        return found


def order_rows(rows: pa.Table, *, key: Sequence[str]) -> RowOrder:
    """Return the order of rows by `key` and `time`; texts by their bytes, nulls first."""
    series = np.zeros(rows.num_rows, dtype=np.int64)
    for name in key:
        rank, size = text_ranks(rows.column(name))
        series = series * (size + 1) + rank
        if series.size and (size + 1) * int(series.max()) > 2**62:
            series = np.unique(series, return_inverse=True)[1].astype(np.int64)
    times = microseconds(rows.column("time"))
    before = (series[:-1] > series[1:]) | ((series[:-1] == series[1:]) & (times[:-1] > times[1:]))
    unsorted = int(np.count_nonzero(before))
    order = np.lexsort((times, series)) if unsorted else None
    return RowOrder(
        order=order,
        series=series if order is None else series[order],
        times=times if order is None else times[order],
        unsorted_count=unsorted,
    )


def text_ranks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each text among the column's distinct ones, from 1, 0 for null; and how many there are."""
    codes, words = text_codes(column)
    by_bytes = pc.array_sort_indices(words).to_numpy()
    rank_of_code = np.zeros(len(words) + 1, dtype=np.int64)
    rank_of_code[by_bytes] = np.arange(1, len(words) + 1)
    return rank_of_code[codes], len(words)


def text_codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the place of each text among the column's distinct ones, -1 for null; and these, as they first appear."""
    encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    return codes, encoded.dictionary


def microseconds(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return times as microseconds since 1970, the least number there is for null."""
    least = np.iinfo(np.int64).min
    whole = pc.fill_null(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), least)
    return np.asarray(whole.to_numpy(), dtype=np.int64)


def numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return numbers, NaN for null."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def natural_order(words: Iterable[str]) -> list[str]:
    """Return words in the order of people: node9 before node10."""

    def parts(word: str) -> list[tuple[int, int, str]]:
        return [
            (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part)
            for part in re.split(r"([0-9]+)", word)
            if part
        ]

    return sorted(words, key=lambda word: (parts(word), word))


# -- rows of one lake table as sets of cells --


ROWS_PER_SLICE = 131_072
"""Rows of a row group in the lake's files. Changing it changes the bytes of files that are written again."""
_PACKED_LIMIT = 2**62
"""A key and its time are packed into one integer below this, so that rows are sorted by one column."""
_HOUR_MICROSECONDS = 3_600_000_000
_NAN = pa.scalar(float("nan"), pa.float64())

Codes = NDArray[np.int64]


class SchemaChanged(ValueError):
    """Rows whose columns are not those of the table: another type, or a name that this program does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns, types and order of one table or aggregate of the lake."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]


@cache
def layout_of(table_name: str) -> Layout:
    """Return the layout of a table (`gpu_telemetry`) or of an aggregate (`gpu_telemetry_5m`); KeyError for others."""
    if table_name in TABLES:
        return Layout(name=table_name, schema=TABLES[table_name].arrow(), key=TABLES[table_name].key)
    base = AGGREGATES[table_name].table
    return Layout(name=table_name, schema=aggregate_schema(base), key=TABLES[base].key)


def given_columns(table_name: str, rows: pa.Table) -> pa.Table:
    """Return the columns of the table that hold a value (and those of the key), in their order.

    Texts may stay dictionary-encoded. Columns that the table does not have are dropped (see `unknown_columns`). Raises
    SchemaChanged where a type is another, a key column is missing, or a key is null.
    """
    given: dict[str, pa.ChunkedArray] = {}
    for field in layout_of(table_name).schema:
        where = rows.schema.get_field_index(field.name)
        if where < 0:
            if not field.nullable:
                raise SchemaChanged(f"{table_name}: the key column {field.name} is missing")
            continue
        column = rows.column(where)
        if not _is_same_type(column.type, field.type):
            raise SchemaChanged(f"{table_name}.{field.name} is {column.type} there, expected {field.type}")
        if not field.nullable and column.null_count:
            raise SchemaChanged(f"{table_name}.{field.name} is part of the key, and null in {column.null_count} row(s)")
        if not field.nullable or column.null_count < rows.num_rows:
            given[field.name] = column
    return pa.table(given)


def unknown_columns(table_name: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that the table does not have: written by a newer version of this program."""
    return tuple(name for name in schema.names if name not in layout_of(table_name).schema.names)


def normalise(table_name: str, rows: pa.Table) -> pa.Table:
    """Return the rows in the table's schema, sorted by key and time, one row per key and time."""
    return merge(table_name, (rows,))


def merge(table_name: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all parts, in the table's schema and order; per cell the last part's value that is not null.

    In the same part, later rows stand for later parts. Raises SchemaChanged as `given_columns` does.
    """
    return pa.concat_tables(merged_slices(table_name, parts))


def merged_slices(table_name: str, parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """Yield what `merge` returns in slices of ROWS_PER_SLICE rows (the last one is shorter), at least one.

    Holds the parts, their order and one slice: for large hours hand in parts whose texts are dictionary-encoded.
    """
    layout = layout_of(table_name)
    given = [each for each in (given_columns(table_name, part) for part in parts) if each.num_rows]
    if not given:
        yield layout.schema.empty_table()
        return
    whole = pa.concat_tables(_alike(given), promote_options="default").unify_dictionaries()
    del given
    codes = row_codes(layout, whole)
    is_sorted = bool(np.all(codes[1:] > codes[:-1]))
    order = np.arange(len(codes)) if is_sorted else np.argsort(codes, kind="stable")
    codes = codes[order]
    ends = np.flatnonzero(np.append(codes[1:] != codes[:-1], True)) + 1
    for first in range(0, len(ends), ROWS_PER_SLICE):
        these = ends[first : first + ROWS_PER_SLICE]
        begin = int(ends[first - 1]) if first else 0
        span = (
            whole.slice(begin, int(these[-1]) - begin) if is_sorted else whole.take(pa.array(order[begin : these[-1]]))
        )
        yield _one_row_each(layout, span, ends=these - begin)


def row_codes(layout: Layout, rows: pa.Table) -> Codes:
    """Return a number per row: equal for equal key and time, and in their order."""
    keys, count = key_codes(layout, rows)
    times = rows.column("time").cast(pa.int64()).to_numpy()
    base, spread = int(times.min()), int(times.max()) - int(times.min()) + 1
    if count * spread >= _PACKED_LIMIT:
        distinct, places = np.unique(times, return_inverse=True)
        return keys * len(distinct) + places
    packed: Codes = keys * spread + (times - base)
    return packed


def key_codes(layout: Layout, rows: pa.Table) -> tuple[Codes, int]:
    """Return a number per row, equal for equal keys and in their order, and a bound that all are below."""
    packed, count = np.zeros(rows.num_rows, np.int64), 1
    for name in layout.key:
        codes, distinct = _text_codes(rows.column(name))
        packed, count = packed * distinct + codes, count * distinct
        if count >= rows.num_rows:
            present, packed = np.unique(packed, return_inverse=True)
            count = len(present)
    return packed, max(count, 1)


def last_values(valid: NDArray[np.bool_], *, starts: Codes) -> Codes:
    """Return per group (it begins at `starts`) the place of its last valid value, or -1."""
    places: Codes = np.maximum.reduceat(np.where(valid, np.arange(len(valid)), -1), starts)
    return places


def take_or_null(column: pa.ChunkedArray, places: Codes) -> pa.ChunkedArray:
    """Return the values at `places`; null for -1."""
    return column.take(pa.array(places, mask=places < 0))


def split_by_hour(rows: pa.Table) -> dict[datetime, pa.Table]:
    """Return the hours that rows belong to by their `time`, oldest first, each with its rows in their order."""
    if rows.num_rows == 0:
        return {}
    numbers = rows.column("time").cast(pa.int64()).to_numpy() // _HOUR_MICROSECONDS
    order = np.argsort(numbers, kind="stable")
    found, begins = np.unique(numbers[order], return_index=True)
    ends = np.append(begins[1:], len(order))
    return {
        datetime.fromtimestamp(number * 3600, UTC): rows.take(pa.array(order[begin:end]))
        for number, begin, end in zip(found.tolist(), begins.tolist(), ends.tolist(), strict=True)
    }


def _is_same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    return bool(found == expected or (pa.types.is_dictionary(found) and found.value_type == expected))


def _alike(parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Return the parts with each text column dictionary-encoded in all of them or in none."""
    encoded = {field.name for part in parts for field in part.schema if pa.types.is_dictionary(field.type)}
    return [_encoded(part, encoded) for part in parts] if encoded else list(parts)


def _encoded(part: pa.Table, names: Collection[str]) -> pa.Table:
    for where, field in enumerate(part.schema):
        if field.name in names and not pa.types.is_dictionary(field.type):
            part = part.set_column(where, field.name, part.column(where).dictionary_encode())
    return part


def _text_codes(column: pa.ChunkedArray) -> tuple[Codes, int]:
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    array = encoded.combine_chunks()
    words = array.dictionary
    ranks = np.empty(len(words), np.int64)
    ranks[pc.sort_indices(words).to_numpy()] = np.arange(len(words))
    return ranks[array.indices.to_numpy()], max(len(words), 1)


def _one_row_each(layout: Layout, span: pa.Table, *, ends: Codes) -> pa.Table:
    """Return one row per group of equal rows; the groups stand together and end before `ends`."""
    has_repeats = len(ends) != span.num_rows
    columns = []
    for field in layout.schema:
        if field.name not in span.schema.names:
            columns.append(pa.nulls(len(ends), field.type))
            continue
        column = span.column(field.name)
        if has_repeats and column.null_count == 0:
            column = column.take(pa.array(ends - 1))
        elif has_repeats:
            valid = pc.is_valid(column).to_numpy()
            column = take_or_null(column, last_values(valid, starts=np.append(0, ends[:-1])))
        columns.append(_plain(column, field.type))
    return pa.table(columns, schema=layout.schema)


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return the column in one piece, decoded, and with one bit pattern for NaN: equal rows must give equal bytes."""
    array = column.combine_chunks()
    if array.type != kind:
        array = array.cast(kind)
    if pa.types.is_floating(kind):
        is_nan = pc.is_nan(array)
        if pc.any(is_nan).as_py():
            array = pc.if_else(is_nan, _NAN, array)
    return array


# -- telemetry rows -> one row per key and interval --


_MICROSECOND = timedelta(microseconds=1)


def aggregate(table_name: str, rows: pa.Table, *, every: timedelta) -> pa.Table:
    """Return one row per key and interval of `every` (counted from 1970), sorted by key and time.

    Raises ValueError for a table of records.
    """
    schema = aggregate_schema(table_name)
    sorted_rows = normalise(table_name, rows)
    if sorted_rows.num_rows == 0:
        return schema.empty_table()
    intervals = sorted_rows.column("time").cast(pa.int64()).to_numpy() // (every // _MICROSECOND)
    keys, _ = key_codes(layout_of(table_name), sorted_rows)
    is_first = np.append(True, (keys[1:] != keys[:-1]) | (intervals[1:] != intervals[:-1]))
    starts = np.flatnonzero(is_first)
    columns: dict[str, object] = {
        "time": pa.array(intervals[starts] * (every // _MICROSECOND)).cast(schema.field("time").type),
        SAMPLE_COUNT: pa.array(np.diff(np.append(starts, len(keys)))),
    }
    for name in sorted_rows.schema.names:
        if name != "time":
            columns |= _column(table_name, name, sorted_rows.column(name), starts=starts)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _column(table_name: str, name: str, column: pa.ChunkedArray, *, starts: Codes) -> dict[str, object]:
    valid = pc.is_valid(column).to_numpy()
    if not has_bounds(table_name, name):
        return {name: take_or_null(column, last_values(valid, starts=starts))}
    values = column.cast(pa.float64()).to_numpy()  # null becomes NaN
    valid = ~np.isnan(values)
    counts = np.add.reduceat(valid.astype(np.int64), starts)
    found = {
        f"{name}_min": _or_null(np.minimum.reduceat(np.where(valid, values, np.inf), starts), counts),
        f"{name}_max": _or_null(np.maximum.reduceat(np.where(valid, values, -np.inf), starts), counts),
    }
    if not is_averaged(table_name, name):
        return {name: take_or_null(column, last_values(valid, starts=starts)), **found}
    with np.errstate(invalid="ignore", over="ignore"):  # the mean of +Inf and -Inf is NaN
        means = np.add.reduceat(np.where(valid, values, 0.0), starts) / np.maximum(counts, 1)
    return {name: _or_null(means, counts), **found}


def _or_null(values: NDArray[np.float64], counts: Codes) -> pa.Array:
    return pa.array(values, mask=counts == 0)
