"""What a closed hour of a table must be, as data: each expectation bounds a measure of `profile`, or a text's form.

Generated from `schema` (types, keys, bounds, counters), the facts of `column_facts` and the rules of `cross_rules`.
Errors are what our own gates let nobody write; warnings are what sources owe us. No judging here, and nothing heavy.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from ops_pipelines.lake.quality.rules import (
    ANY_NUMBER,
    FILLED,
    FORMS,
    FORMS_ELSEWHERE,
    FRESH_WITHIN_SECONDS,
    MAY_FALL,
    RECORD_BOUNDS,
    CrossRule,
    Severity,
    rules_of,
)
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES, Column, ColumnType, Table


class Kind(Enum):
    TYPES = "types"
    NULL = "null"
    RANGE = "range"
    UNIQUENESS = "uniqueness"
    COMPLETENESS = "completeness"
    FRESHNESS = "freshness"
    MONOTONE = "monotone"
    CROSS_COLUMN = "cross_column"
    FORM = "form"
    """Texts look as they should; judged on the sample."""
    REFERENCE = "reference"
    """Names are those that cluster.yaml knows."""


class Measure(Enum):
    """What `profile` counts. A share is of rows, 0 to 1."""

    ROW_COUNT = "row_count"
    NULL_COUNT = "null_count"
    MIN = "min"
    MAX = "max"
    TYPE_DIFFERS = "type_differs"
    """1: missing, or of another type than the schema says."""
    STRANGE_COLUMNS = "strange_columns"
    """Columns that the schema does not know."""
    BELOW_POSSIBLE = "below_possible"
    ABOVE_POSSIBLE = "above_possible"
    NOT_FINITE = "not_finite"
    """NaN and infinities, which count neither as below nor as above."""
    NOT_WHOLE = "not_whole"
    FALLS = "falls"
    """A counter went down, and not to a restart: to more than half of what it was, on a node that did not boot."""
    TRUE_SHARE = "true_share"
    FILLED_SHARE = "filled_share"
    """Of the rows that should have the column."""
    DUPLICATES = "duplicates"
    """Rows whose key and time another row has before them."""
    UNSORTED = "unsorted"
    """Rows that stand before one they should follow."""
    OUT_OF_HOUR = "out_of_hour"
    OFF_GRID = "off_grid"
    DEVICE_COUNT = "device_count"
    DEVICE_SHARE = "device_share"
    """Devices with a row, of those that the inventory leads us to expect."""
    CYCLE_SHARE = "cycle_share"
    """Grid times with a row, of those in the hour."""
    CELL_SHARE = "cell_share"
    """Rows, of devices seen x grid times seen: what single devices left out."""
    NEWEST_AGE = "newest_age"
    """Seconds from the newest row to the end of the hour."""
    BROKEN_SHARE = "broken_share"
    """Rows (groups) that break a cross-column rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One thing that is expected of an hour of a table. Bounds are inclusive."""

    table: str
    name: str
    """Unique in its table; where it belongs to a column, starts with it."""
    kind: Kind
    severity: Severity
    meaning: str
    column: str = ""
    """A column, or the name of a cross-column rule; empty for the table as a whole."""
    measure: Measure | None = None
    """None: `pattern` is judged on the sample."""
    at_least: float | None = None
    at_most: float | None = None
    pattern: str = ""
    """A regular expression that each text of the sample meets whole."""

    @property
    def expected(self) -> str:
        """Return the bound in words."""
        if self.measure is None:
            return f"/{self.pattern}/"
        if self.at_most == 0:
            return "none"
        least = "" if self.at_least is None else f"at least {self.at_least:g}"
        most = "" if self.at_most is None else f"at most {self.at_most:g}"
        return " and ".join(part for part in (least, most) if part)


_WHOLE_RATIO = 1.000001
"""A mean of ratios may round above 1."""


def possible_bounds(table: str, column: Column) -> tuple[float, float]:
    """Return the least and the greatest value that can be; infinite where there is no bound."""
    if column.quantity is not None:
        return column.quantity.low, column.quantity.high
    if column.type not in (ColumnType.NUMBER, ColumnType.WHOLE) or (table, column.name) in ANY_NUMBER:
        return -math.inf, math.inf
    return RECORD_BOUNDS.get(column.name, (0.0, _WHOLE_RATIO if column.unit == "ratio" else math.inf))


def filled_rows(table: str, column: str) -> str | None:
    """Return the SQL condition of the rows that should have the column; None where nobody expects it."""
    found = FILLED.get((table, column))
    return None if found is None else found[0]


@cache
def expectations_of(table: str) -> tuple[Expectation, ...]:
    """Return what is expected of every hour of a table. Raises KeyError on an unknown table."""
    return tuple(_generate(TABLES[table]))


def _generate(table: Table) -> Iterator[Expectation]:
    yield _none(table, Measure.STRANGE_COLUMNS, Kind.TYPES, "the file has no column that the schema does not know")
    yield _none(table, Measure.DUPLICATES, Kind.UNIQUENESS, f"one row per {', '.join(table.sort_order)}")
    yield _none(table, Measure.UNSORTED, Kind.UNIQUENESS, f"rows are sorted by {', '.join(table.sort_order)}")
    yield _none(table, Measure.OUT_OF_HOUR, Kind.RANGE, "every time lies in the hour of the partition")
    if table.name in TELEMETRY_TABLES:
        yield from _of_cycles(table)
    for column in table.columns:
        yield from _of_column(table, column)
    for rule in rules_of(table.name):
        yield _of_rule(rule)


def _none(
    table: Table,
    measure: Measure,
    kind: Kind,
    meaning: str,
    *,
    column: str = "",
    severity: Severity = Severity.ERROR,
) -> Expectation:
    return Expectation(
        table=table.name,
        name=f"{column}.{measure.value}" if column else measure.value,
        kind=kind,
        severity=severity,
        column=column,
        measure=measure,
        at_most=0.0,
        meaning=meaning,
    )


def _of_cycles(table: Table) -> Iterator[Expectation]:
    yield _none(
        table,
        Measure.OFF_GRID,
        Kind.RANGE,
        "times are those of cycles, whole multiples of the step",
        severity=Severity.WARNING,
    )
    shares = (
        (Measure.DEVICE_SHARE, 0.98, "devices that the inventory leads us to expect have rows"),
        (Measure.CYCLE_SHARE, 0.95, "hardly a cycle of the hour is missing"),
        (Measure.CELL_SHARE, 0.9, "devices that report do so in every cycle"),
    )
    for measure, least, meaning in shares:
        yield Expectation(
            table=table.name,
            name=measure.value,
            kind=Kind.COMPLETENESS,
            severity=Severity.WARNING,
            measure=measure,
            at_least=least,
            meaning=meaning,
        )
    yield Expectation(
        table=table.name,
        name=Measure.NEWEST_AGE.value,
        kind=Kind.FRESHNESS,
        severity=Severity.WARNING,
        measure=Measure.NEWEST_AGE,
        at_most=FRESH_WITHIN_SECONDS,
        meaning="the hour was collected to its end",
    )


def _of_column(table: Table, column: Column) -> Iterator[Expectation]:
    name, quantity = column.name, column.quantity
    yield _none(table, Measure.TYPE_DIFFERS, Kind.TYPES, f"a column of type {column.type.value}", column=name)
    if name in table.sort_order:
        yield _none(table, Measure.NULL_COUNT, Kind.NULL, "part of the key, never null", column=name)
    low, high = possible_bounds(table.name, column)
    if low > -math.inf:
        yield _none(table, Measure.BELOW_POSSIBLE, Kind.RANGE, f"never below {low:g} {column.unit}", column=name)
    if high < math.inf:
        yield _none(table, Measure.ABOVE_POSSIBLE, Kind.RANGE, f"never above {high:g} {column.unit}", column=name)
    if column.type is ColumnType.NUMBER and (table.name, name) not in ANY_NUMBER:
        yield _none(table, Measure.NOT_FINITE, Kind.RANGE, "neither NaN nor infinite", column=name)
    if quantity is not None and quantity.is_whole:
        yield _none(table, Measure.NOT_WHOLE, Kind.TYPES, "counts whole things", column=name)
    if name in table.counters and name not in MAY_FALL:
        meaning = "only grows, or starts again near zero"
        yield _none(table, Measure.FALLS, Kind.MONOTONE, meaning, column=name, severity=Severity.WARNING)
    if (table.name, name) in FILLED:
        where, share = FILLED[table.name, name]
        yield Expectation(
            table=table.name,
            name=f"{name}.{Measure.FILLED_SHARE.value}",
            kind=Kind.COMPLETENESS,
            severity=Severity.WARNING,
            column=name,
            measure=Measure.FILLED_SHARE,
            at_least=share,
            meaning="given by every row" if where == "true" else f"given by every row with {where}",
        )
    if name == "unknown_node":
        meaning = "cluster.yaml names every node that reports"
        yield _none(table, Measure.TRUE_SHARE, Kind.REFERENCE, meaning, column=name, severity=Severity.WARNING)
    form = FORMS_ELSEWHERE.get((table.name, name), FORMS.get(name))
    if form is not None and column.type is ColumnType.TEXT:
        pattern, severity, meaning = form
        yield Expectation(
            table=table.name,
            name=f"{name}.form",
            kind=Kind.FORM,
            severity=severity,
            column=name,
            pattern=pattern,
            meaning=meaning,
        )


def _of_rule(rule: CrossRule) -> Expectation:
    return Expectation(
        table=rule.table,
        name=rule.name,
        kind=Kind.CROSS_COLUMN,
        severity=rule.severity,
        column=rule.name,
        measure=Measure.BROKEN_SHARE,
        at_most=rule.share_at_most,
        meaning=rule.meaning,
    )
