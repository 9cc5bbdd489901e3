"""Rows of one lake table as sets of cells: put in order, laid over each other, counted. Files are `resources.lake`'s.

A row is known by its key and time. Where parts hold the same row, each cell takes the last part's value that is not
null: a source that says nothing takes nothing away. The order of parts matters only where two parts differ in a cell.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.frames.aggregate_schema import AGGREGATES, aggregate_schema
from ops_pipelines.frames.schema import TABLES

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
