"""What `profile` asks of DuckDB: aggregates of columns and rules, and examples of what was found.

Only names and conditions of our own catalogues stand in the SQL, never a text from data.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from ops_pipelines.frames.quality.cross_rules import rules_of
from ops_pipelines.frames.quality.expectations import Measure, expectations_of, filled_rows, possible_bounds
from ops_pipelines.frames.schema import Column, ColumnType, Table

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
