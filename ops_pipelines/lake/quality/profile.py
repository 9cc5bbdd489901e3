"""One closed hour of one table in few numbers, and the SQL that asks DuckDB for them.

Only names and conditions of our own catalogues stand in the SQL, never a text from data.

Counted by DuckDB over the Arrow columns (`profile_sql`); what looks from row to row, in numpy. A column that is missing
or of another type is counted as such, else taken as null or cast. Judges nothing, never raises on data.
"""

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.lake.hours import RowOrder, microseconds, numbers, order_rows
from ops_pipelines.lake.quality.expectations import Measure, expectations_of, filled_rows, possible_bounds
from ops_pipelines.lake.quality.rules import rules_of
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES, Column, ColumnType, Table

# -- what `profile` asks of DuckDB --


if TYPE_CHECKING:
    import duckdb

Counted = dict[tuple[str, Measure], float | None]
"""By column (empty for the table; or the name of a rule) and measure; None: does not apply."""
EXAMPLE_ROWS = 3
_BUNDLE = 48
_SMALL = 100_000
_NUMERIC = (ColumnType.NUMBER, ColumnType.WHOLE)


@contextmanager
def open_rows(rows: pa.Table) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Hold a connection in which `given` is the rows, their times without a zone (DuckDB has none built in)."""
    import duckdb

    plain = pa.schema(
        [field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    )
    # starting threads takes longer than counting a small table does
    settings: dict[str, str | bool | int | float | list[str]] = {"threads": 1} if rows.num_rows < _SMALL else {}
    with duckdb.connect(config=settings) as connection:
        connection.register("given", rows.cast(plain))
        yield connection


def count_rows(connection: "duckdb.DuckDBPyConnection", rows: pa.Table, *, table: Table) -> Counted:
    """Return every measure of single columns, and of rules that look at single rows."""
    empty = {name for name in rows.column_names if rows.column(name).null_count == rows.num_rows}
    known: Counted = {
        (column.name, Measure.NULL_COUNT): float(rows.column(column.name).null_count) for column in table.columns
    }
    asked = _aggregates(table, empty)
    for rule in rules_of(table.name):
        if not rule.per:
            asked[rule.name, Measure.BROKEN_SHARE] = f"avg(coalesce({rule.broken_if}, false)::DOUBLE)"
    known.update(_ask(connection, asked))
    outside: dict[tuple[str, Measure], str] = {}
    for column in table.columns:
        low, high = possible_bounds(table.name, column)
        least, most = known.get((column.name, Measure.MIN)), known.get((column.name, Measure.MAX))
        for measure, is_outside in (
            (Measure.BELOW_POSSIBLE, least is not None and least < low),
            (Measure.ABOVE_POSSIBLE, most is not None and most > high),
        ):
            if is_outside:
                outside[column.name, measure] = f"count(*) FILTER ({_condition(table, column, measure)})"
    known.update(_ask(connection, outside))
    within: Counted = {
        (each.column, each.measure): None if each.column in empty else 0.0
        for each in expectations_of(table.name)
        if each.measure is not None and each.measure in _ROW_MEASURES
    }
    return {**within, **known}


def _ask(connection: "duckdb.DuckDBPyConnection", asked: Mapping[tuple[str, Measure], str]) -> Counted:
    """Return the aggregates, asked for in bundles: the time to plan a query grows faster than its length."""
    found: Counted = {}
    listed = list(asked.items())
    for first in range(0, len(listed), _BUNDLE):
        bundle = listed[first : first + _BUNDLE]
        query = f"SELECT {', '.join(aggregate for _, aggregate in bundle)} FROM given"  # noqa: S608 our own names
        answer = connection.execute(query).fetchone()
        assert answer is not None
        for (what, _), value in zip(bundle, answer, strict=True):
            found[what] = None if value is None else float(value)
    return found


def count_groups(connection: "duckdb.DuckDBPyConnection", *, table: Table) -> Counted:
    """Return the measures of rules that look at groups of rows."""
    found: Counted = {}
    for rule in rules_of(table.name):
        if rule.per:
            answer = connection.execute(
                f"SELECT avg(broken::DOUBLE) FROM (SELECT coalesce({rule.broken_if}, false) AS broken FROM given"  # noqa: S608 our own names
                f" WHERE {_quoted(rule.per)} IS NOT NULL GROUP BY {_quoted(rule.per)})"
            ).fetchone()
            found[rule.name, Measure.BROKEN_SHARE] = None if answer is None else answer[0]
    return found


def find_examples(
    connection: "duckdb.DuckDBPyConnection", found: Counted, *, table: Table, hour: datetime, step_seconds: int
) -> Mapping[tuple[str, Measure], tuple[str, ...]]:
    """Return the first rows of what was counted of single rows and should be none, as `key @ time: value`."""
    key = " || '/' || ".join(f"coalesce({_quoted(name)}, 'null')" for name in table.key)
    expected = {(each.column, each.measure) for each in expectations_of(table.name)}
    broken = {rule.name: rule.broken_if for rule in rules_of(table.name) if not rule.per}
    start = hour.astimezone(UTC).replace(tzinfo=None)
    conditions: dict[tuple[str, Measure], tuple[str, str]] = {}
    for (name, measure), value in found.items():
        if not value or (name, measure) not in expected:
            continue
        condition = broken.get(name)
        shown = "''"
        if name in table.by_name:
            condition = _condition(table, table.by_name[name], measure)
            shown = f"coalesce(': ' || {_quoted(name)}::VARCHAR, '')"
        elif measure is Measure.OUT_OF_HOUR:
            condition = f"time < '{start}' OR time >= '{start + timedelta(hours=1)}'"
        elif measure is Measure.OFF_GRID:
            condition = f"epoch_us(time) % {step_seconds * 1_000_000} <> 0"
        if condition is not None:
            conditions[name, measure] = (condition, shown)
    return {
        what: tuple(
            text
            for (text,) in connection.execute(
                f"SELECT {key} || ' @ ' || coalesce(strftime(time, '%H:%M:%S'), 'null') || {shown} FROM given"  # noqa: S608 our own names
                f" WHERE {condition} LIMIT {EXAMPLE_ROWS}"
            ).fetchall()
        )
        for what, (condition, shown) in conditions.items()
    }


def _aggregates(table: Table, empty: Collection[str]) -> dict[tuple[str, Measure], str]:
    """Return the aggregates of single columns. `empty` columns have no value, and are not looked at."""
    wanted: dict[tuple[str, Measure], str] = {}
    expected = {(each.column, each.measure) for each in expectations_of(table.name)}
    for column in table.columns:
        where = filled_rows(table.name, column.name)
        if where is not None:
            wanted[column.name, Measure.FILLED_SHARE] = (
                f"avg(({_quoted(column.name)} IS NOT NULL)::DOUBLE) FILTER ({where})"
            )
        if column.name in empty:
            continue
        name = _quoted(column.name)
        if column.type in _NUMERIC:
            finite = f" FILTER (isfinite({name}))" if column.type is ColumnType.NUMBER else ""
            for measure in (Measure.MIN, Measure.MAX):
                wanted[column.name, measure] = f"{measure.value}({name}){finite}"
        if (column.name, Measure.TRUE_SHARE) in expected:
            wanted[column.name, Measure.TRUE_SHARE] = f"avg({name}::DOUBLE)"
        for measure in (Measure.NOT_FINITE, Measure.NOT_WHOLE):
            if (column.name, measure) in expected:
                wanted[column.name, measure] = f"count(*) FILTER ({_condition(table, column, measure)})"
    return wanted


_ROW_MEASURES = (Measure.BELOW_POSSIBLE, Measure.ABOVE_POSSIBLE, Measure.NOT_FINITE, Measure.NOT_WHOLE)


def _condition(table: Table, column: Column, measure: Measure) -> str | None:
    """Return the SQL condition of the rows that a measure counts; None if it counts no single rows of one column."""
    name = _quoted(column.name)
    low, high = possible_bounds(table.name, column)
    finite = f"isfinite({name}) AND " if column.type is ColumnType.NUMBER else ""
    conditions = {
        Measure.NULL_COUNT: f"{name} IS NULL",
        Measure.TRUE_SHARE: name,
        Measure.BELOW_POSSIBLE: f"{finite}{name} < {low!r}",
        Measure.ABOVE_POSSIBLE: f"{finite}{name} > {high!r}",
        Measure.NOT_FINITE: f"NOT isfinite({name})",
        Measure.NOT_WHOLE: f"{finite}{name} <> floor({name})",
    }
    return conditions.get(measure)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- one closed hour of one table in few numbers --


SAMPLE_ROWS = 2_000
FALL_IS_RESTART_BELOW = 0.5
"""A counter that falls to at most this share of what it was has started again."""
_SECOND = 1_000_000
_MEASURES = pa.schema(
    [pa.field("column", pa.string()), pa.field("measure", pa.string()), pa.field("value", pa.float64())]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """What was counted of one hour of one table."""

    table: str
    hour: datetime
    row_count: int
    measures: pa.Table
    """Columns `column` (empty for the table; a rule's name), `measure`, `value` (null: does not apply)."""
    sample: pa.Table
    """At most SAMPLE_ROWS rows, chosen by table and hour alone, in the order of the table."""
    examples: Mapping[tuple[str, Measure], tuple[str, ...]]
    """First rows that broke a measure, as `key @ time: value`."""

    def values(self) -> Counted:
        """Return all numbers by column and measure."""
        names, measures, values = (self.measures.column(name).to_pylist() for name in _MEASURES.names)
        return {(name, Measure(measure)): value for name, measure, value in zip(names, measures, values, strict=True)}


def profile_hour(
    rows: pa.Table,
    *,
    table: str,
    hour: datetime,
    step_seconds: int,
    expected_devices: int | None = None,
    booted_nodes: frozenset[str] = frozenset(),
) -> Profile:
    """Return the profile of one hour of a table.

    `expected_devices`: how many devices the inventory leads us to expect; None: nobody knows; 0: none, and an empty
    hour is then nothing to tell. Counters of `booted_nodes` may start again. Raises KeyError on an unknown table.
    """
    schema = TABLES[table]
    given = _conform(rows, schema)
    order = order_rows(given, key=schema.key)
    found: Counted = {
        **_types(rows, schema),
        ("", Measure.ROW_COUNT): float(given.num_rows),
        ("", Measure.DUPLICATES): float(np.count_nonzero(order.repeats)),
        ("", Measure.UNSORTED): float(order.unsorted_count),
        **_falls(given, schema, order, booted_nodes),
        **_cycles(given, schema, hour, step_seconds, expected_devices),
    }
    with open_rows(given) as connection:
        found.update(count_rows(connection, given, table=schema))
        found.update(count_groups(connection, table=schema))
        examples = find_examples(connection, found, table=schema, hour=hour, step_seconds=step_seconds)
    for each in expectations_of(table):
        if each.measure is not None:
            found.setdefault((each.column, each.measure), None)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1].value))
    columns = [
        [name for (name, _), _ in ordered],
        [measure.value for (_, measure), _ in ordered],
        [value for _, value in ordered],
    ]
    return Profile(
        table=table,
        hour=hour,
        row_count=given.num_rows,
        measures=pa.table(columns, schema=_MEASURES),
        sample=_sample(given, table=table, hour=hour),
        examples=examples,
    )


def _conform(rows: pa.Table, schema: Table) -> pa.Table:
    """Return the columns of the schema: cast where that loses nothing, null where missing or of another kind."""
    columns = []
    for field in schema.arrow():
        column = rows.column(field.name) if rows.column_names.count(field.name) == 1 else None
        if column is not None and column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                column = None
        columns.append(pa.nulls(rows.num_rows, field.type) if column is None else column)
    nullable = pa.schema([field.with_nullable(True) for field in schema.arrow()])
    return pa.table(columns, schema=nullable)


def _types(rows: pa.Table, schema: Table) -> Counted:
    given = {
        name: rows.schema.field(name).type for name in set(rows.column_names) if rows.column_names.count(name) == 1
    }
    strange = sum(name not in schema.by_name for name in rows.column_names)
    differs = {
        (field.name, Measure.TYPE_DIFFERS): float(given.get(field.name) != field.type) for field in schema.arrow()
    }
    return {("", Measure.STRANGE_COLUMNS): float(strange), **differs}


def _falls(rows: pa.Table, schema: Table, order: RowOrder, booted_nodes: frozenset[str]) -> Counted:
    if not schema.counters:
        return {}
    exempt = None
    if booted_nodes and "node" in schema.by_name:
        booted = pc.is_in(rows.column("node"), value_set=pa.array(sorted(booted_nodes), pa.string()))
        exempt = order.in_order(numbers(booted.cast(pa.int8())))
    falls: Counted = {}
    for name in schema.counters:
        column = rows.column(name)
        if column.null_count == len(column):
            falls[name, Measure.FALLS] = None
            continue
        values = order.in_order(numbers(column))
        kept = np.isfinite(values)
        values, series = values[kept], order.series[kept]
        fell = (
            (series[1:] == series[:-1])
            & (values[1:] < values[:-1])
            & (values[1:] > FALL_IS_RESTART_BELOW * values[:-1])
        )
        if exempt is not None:
            fell &= exempt[kept][1:] == 0
        falls[name, Measure.FALLS] = float(np.count_nonzero(fell))
    return falls


def _cycles(rows: pa.Table, schema: Table, hour: datetime, step_seconds: int, expected_devices: int | None) -> Counted:
    start = int(hour.timestamp()) * _SECOND
    times = microseconds(rows.column("time"))
    inside = times[(times >= start) & (times < start + 3600 * _SECOND)]
    stated = rows.num_rows - rows.column("time").null_count
    found: Counted = {("", Measure.OUT_OF_HOUR): float(stated - len(inside))}
    if schema.name not in TELEMETRY_TABLES:
        return found
    devices = _device_count(rows, schema)
    found["", Measure.DEVICE_COUNT] = float(devices)
    found["", Measure.DEVICE_SHARE] = min(devices / expected_devices, 1.0) if expected_devices else None
    found["", Measure.OFF_GRID] = float(np.count_nonzero(inside % (step_seconds * _SECOND)))
    if not len(inside) and expected_devices == 0:
        return {
            **found,
            **dict.fromkeys([("", Measure.CYCLE_SHARE), ("", Measure.CELL_SHARE), ("", Measure.NEWEST_AGE)]),
        }
    grid = np.unique(inside // (step_seconds * _SECOND))
    series = rows.group_by(list(schema.key), use_threads=False).aggregate([]).num_rows
    found["", Measure.CYCLE_SHARE] = min(len(grid) * step_seconds / 3600, 1.0)
    found["", Measure.CELL_SHARE] = min(len(inside) / (series * len(grid)), 1.0) if len(grid) else None
    newest = (start + 3600 * _SECOND - int(inside.max())) / _SECOND if len(inside) else 3600.0
    found["", Measure.NEWEST_AGE] = newest
    return found


def _device_count(rows: pa.Table, schema: Table) -> int:
    """Count what an inventory counts: nodes of node_telemetry, whole GPUs of gpu_telemetry, else devices."""
    if schema.name == "node_telemetry":
        return len(pc.unique(rows.column("node").drop_null()))
    names = ["node", "device"]
    if schema.name == "gpu_telemetry":
        device = pc.coalesce(rows.column("gpu_uuid"), rows.column("device"))
        rows = rows.select(["node"]).append_column("device", device)
    return int(rows.select(names).group_by(names, use_threads=False).aggregate([]).num_rows)


def _sample(rows: pa.Table, *, table: str, hour: datetime) -> pa.Table:
    if rows.num_rows <= SAMPLE_ROWS:
        return rows
    seed = zlib.crc32(f"{table} {hour.astimezone(UTC).isoformat()}".encode())
    chosen = np.random.default_rng(seed).choice(rows.num_rows, SAMPLE_ROWS, replace=False)
    return rows.take(pa.array(np.sort(chosen)))


def booted_nodes_of(node_telemetry: pa.Table) -> frozenset[str]:
    """Return the nodes whose boot time changed within these rows of node_telemetry."""
    boots = node_telemetry.select(["node", "boot_time_seconds"]).drop_null()
    spans = boots.group_by("node").aggregate([("boot_time_seconds", "min"), ("boot_time_seconds", "max")])
    # node_exporter computes the boot time from the clock; a second up or down is the clock's.
    moved = pc.greater(pc.subtract(spans["boot_time_seconds_max"], spans["boot_time_seconds_min"]), 60.0)
    return frozenset(spans.filter(moved).column("node").to_pylist())


_INVENTORY_KINDS: Mapping[str, Sequence[str]] = {
    "gpu_telemetry": ("gpu",),
    "node_telemetry": ("node",),
    "fabric_telemetry": ("port",),
    "storage_telemetry": ("disk",),
}


def expected_devices_of(inventory: pa.Table, *, table: str) -> int | None:
    """Return how many devices of a telemetry table the inventory names; None where it tells nothing of them."""
    kinds = _INVENTORY_KINDS.get(table)
    if kinds is None or not inventory.num_rows:
        return None
    chosen = inventory.filter(pc.is_in(inventory.column("kind"), value_set=pa.array(kinds, pa.string())))
    found = chosen.select(["node", "device"]).group_by(["node", "device"], use_threads=False).aggregate([]).num_rows
    return found or None
