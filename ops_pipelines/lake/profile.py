"""One closed hour of one table in few numbers, and the SQL that asks DuckDB for them.

Counted here is what looks from row to row or across columns: order, keys, cycles, falls of counters (numpy), rules
(DuckDB over the Arrow columns); what a column's values must be is judged over the column itself (`checks.suites`).
Only names and conditions of our own catalogues and of the site's suites stand in the SQL, never a text from data. A
column that is missing or of another type is counted as such, else taken as null or cast. Judges nothing, never raises
on data.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.lake.expectations import Expectation, Measure, expectations_of
from ops_pipelines.lake.hours import RowOrder, microseconds, numbers, order_rows
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES, ColumnType, Table

if TYPE_CHECKING:
    import duckdb

# -- what `profile` asks of DuckDB --


Counted = dict[tuple[str, Measure], float | None]
"""By column (empty for the table; or the name of a rule) and measure; None: does not apply."""
EXAMPLE_ROWS = 3
_BUNDLE = 48
_SMALL = 100_000
_NUMERIC = (ColumnType.NUMBER, ColumnType.WHOLE)


@contextmanager
def open_rows(rows: pa.Table) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Hold a connection in which `given` is the rows, their times without a zone (DuckDB has none built in).

    A site's rule reads these rows and nothing else: no file, no network, no setting.
    """
    import duckdb

    plain = pa.schema(
        [field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    )
    # starting threads takes longer than counting a small table does
    settings: dict[str, str | bool | int | float | list[str]] = {"threads": 1} if rows.num_rows < _SMALL else {}
    with duckdb.connect(config=settings) as connection:
        connection.register("given", rows.cast(plain))
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        yield connection


def count_rows(
    connection: "duckdb.DuckDBPyConnection", rows: pa.Table, *, table: Table, expectations: Sequence[Expectation]
) -> Counted:
    """Return every measure of single columns."""
    empty = {name for name in rows.column_names if rows.column(name).null_count == rows.num_rows}
    known: Counted = {
        (column.name, Measure.NULL_COUNT): float(rows.column(column.name).null_count) for column in table.columns
    }
    known.update(_ask(connection, _aggregates(table, expectations, empty)))
    return known


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


def count_rules(
    connection: "duckdb.DuckDBPyConnection", *, expectations: Sequence[Expectation]
) -> tuple[Counted, Mapping[str, str]]:
    """Return the share of rows, or groups, that break each rule, and by its name what is wrong with a site's rule."""
    import duckdb

    shipped = {
        (each.column, Measure.BROKEN_SHARE): f"avg(coalesce({each.broken_if}, false)::DOUBLE)"
        for each in expectations
        if each.measure is Measure.BROKEN_SHARE and not each.per and not each.source
    }
    found, troubles = _ask(connection, shipped), dict[str, str]()
    for each in expectations:
        if each.measure is not Measure.BROKEN_SHARE or (each.column, each.measure) in found:
            continue
        grouped = f" WHERE {_quoted(each.per)} IS NOT NULL GROUP BY {_quoted(each.per)}" if each.per else ""
        query = (
            f"SELECT avg(broken::DOUBLE) FROM (SELECT coalesce({each.broken_if}, false) AS broken FROM given{grouped})"  # noqa: S608 of our own catalogue or the site's suite
        )
        try:
            answer = connection.execute(query).fetchone()
        except duckdb.Error as error:
            if not each.source:
                raise
            troubles[each.name] = f"{each.source}: {each.name}: meta.broken_if: {error}; correct the SQL condition"
            continue
        found[each.column, Measure.BROKEN_SHARE] = None if answer is None else answer[0]
    return found, troubles


def find_examples(
    connection: "duckdb.DuckDBPyConnection",
    found: Counted,
    *,
    table: Table,
    expectations: Sequence[Expectation],
    hour: datetime,
    step_seconds: int,
) -> Mapping[tuple[str, Measure], tuple[str, ...]]:
    """Return the first rows of what was counted of single rows and should be none, as `key @ time: value`."""
    key = " || '/' || ".join(f"coalesce({_quoted(name)}, 'null')" for name in table.key)
    start = hour.astimezone(UTC).replace(tzinfo=None)
    conditions: dict[tuple[str, Measure], tuple[str, str]] = {}
    for each in expectations:
        if each.measure is None or not found.get((each.column, each.measure)):
            continue
        condition, shown = None, "''"
        if each.measure is Measure.BROKEN_SHARE and not each.per:
            condition = each.broken_if
        elif each.measure is Measure.NOT_WHOLE:
            condition = _not_whole(each.column)
            shown = f"coalesce(': ' || {_quoted(each.column)}::VARCHAR, '')"
        elif each.measure is Measure.OUT_OF_HOUR:
            condition = f"time < '{start}' OR time >= '{start + timedelta(hours=1)}'"
        elif each.measure is Measure.OFF_GRID:
            condition = f"epoch_us(time) % {step_seconds * 1_000_000} <> 0"
        if condition is not None:
            conditions[each.column, each.measure] = (condition, shown)
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


def _aggregates(
    table: Table, expectations: Sequence[Expectation], empty: Collection[str]
) -> dict[tuple[str, Measure], str]:
    """Return the aggregates of single columns. `empty` columns have no value, and are not looked at."""
    wanted: dict[tuple[str, Measure], str] = {}
    for column in table.columns:
        if column.name not in empty and column.type in _NUMERIC:
            name = _quoted(column.name)
            finite = f" FILTER (isfinite({name}))" if column.type is ColumnType.NUMBER else ""
            for measure in (Measure.MIN, Measure.MAX):
                wanted[column.name, measure] = f"{measure.value}({name}){finite}"
    for each in expectations:
        if each.measure is Measure.NOT_WHOLE and each.column not in empty:
            wanted[each.column, each.measure] = f"count(*) FILTER ({_not_whole(each.column)})"
    return wanted


def _not_whole(column: str) -> str:
    return f"isfinite({_quoted(column)}) AND {_quoted(column)} <> floor({_quoted(column)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- one closed hour of one table in few numbers --


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
    examples: Mapping[tuple[str, Measure], tuple[str, ...]]
    """First rows that broke a measure, as `key @ time: value`."""
    troubles: Mapping[str, str] = field(default_factory=dict)
    """By the name of a site's rule: why it could not be counted."""

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
    expectations: Sequence[Expectation] | None = None,
) -> Profile:
    """Return the profile of one hour of a table, with what `expectations` need; None: those that we ship.

    `expected_devices`: how many devices the inventory leads us to expect; None: nobody knows; 0: none, and an empty
    hour is then nothing to tell. Counters of `booted_nodes` may start again. Raises KeyError on an unknown table.
    """
    schema = TABLES[table]
    expectations = expectations_of(table) if expectations is None else expectations
    given = conform_rows(rows, table)
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
        found.update(count_rows(connection, given, table=schema, expectations=expectations))
        shares, troubles = count_rules(connection, expectations=expectations)
        found.update(shares)
        examples = find_examples(
            connection, found, table=schema, expectations=expectations, hour=hour, step_seconds=step_seconds
        )
    for each in expectations:
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
        examples=examples,
        troubles=troubles,
    )


def conform_rows(rows: pa.Table, table: str) -> pa.Table:
    """Return the columns of the schema: cast where that loses nothing, null where missing or of another kind.

    Raises KeyError on an unknown table.
    """
    schema, columns = TABLES[table], []
    for wanted in schema.arrow():
        column = rows.column(wanted.name) if rows.column_names.count(wanted.name) == 1 else None
        if column is not None and column.type != wanted.type:
            try:
                column = column.cast(wanted.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                column = None
        columns.append(pa.nulls(rows.num_rows, wanted.type) if column is None else column)
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


def rows_with(rows: pa.Table, *, table: str, column: str, values: Sequence[object]) -> tuple[str, ...]:
    """Return the first rows whose column has the first of `values` (null where there are none), as `key @ time: value`.

    The rows are those of `conform_rows`.
    """
    given = rows.column(column)
    if not values or values[0] is None:
        chosen = pc.is_null(given)
    elif isinstance(values[0], float) and values[0] != values[0]:
        chosen = pc.is_nan(given)
    else:
        chosen = pc.equal(given, pa.scalar(values[0], given.type))
    key = TABLES[table].key
    names = list(dict.fromkeys((*key, "time", column)))
    found = rows.select(names).take(pc.indices_nonzero(chosen).slice(0, EXAMPLE_ROWS)).to_pylist()
    return tuple(
        "/".join("null" if row[name] is None else str(row[name]) for name in key)
        + (f" @ {row['time']:%H:%M:%S}" if row["time"] is not None else " @ null")
        + ("" if row[column] is None else f": {row[column]}")
        for row in found
    )


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
    """Return how many devices of a telemetry table the inventory names; None where it reports nothing of them."""
    kinds = _INVENTORY_KINDS.get(table)
    if kinds is None or not inventory.num_rows:
        return None
    chosen = inventory.filter(pc.is_in(inventory.column("kind"), value_set=pa.array(kinds, pa.string())))
    found = chosen.select(["node", "device"]).group_by(["node", "device"], use_threads=False).aggregate([]).num_rows
    return found or None
