"""Telemetry rows -> one row per key and interval, as `aggregate_schema` says.

Sums run in the order of rows and not in parallel, so that the same rows give the same bits.
"""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.frames.aggregate_schema import SAMPLE_COUNT, aggregate_schema, has_bounds, is_averaged
from ops_pipelines.frames.hours import Codes, key_codes, last_values, layout_of, normalise, take_or_null

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
