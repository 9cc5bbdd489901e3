"""Which columns the 5-minute and hourly aggregates of the telemetry tables have, and what each means.

One row per key and interval; `time` is the interval's start (intervals are half-open). Per column of the table:

- gauge: the mean under its own name, and `_min` and `_max`, over the values that are there (NaN is none);
- state: the last value under its own name, and `_min` and `_max`, so that a state that came and went still shows;
- counter: the last value: the difference of two intervals is what was counted between their ends, if nothing restarted;
- label or flag: the last that was given;
- `sample_count`: the rows of the interval.

Records (jobs, lines, inventory) are not aggregated. Nothing heavy is imported before a schema is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from ops_pipelines.frames.quantities import Kind
from ops_pipelines.frames.schema import TABLES, TELEMETRY_TABLES

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
