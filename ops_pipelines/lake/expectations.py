"""What a closed hour of a table must be, as data: an expectation is of a column's values, or of a measure of the hour.

What the lake itself promises (types, keys, possible values, order, cycles) is generated from `schema`. All else is
declared in suites of Great Expectations' own format: the shipped ones in `catalogue/expectations`, and those of a site,
which add to them or replace one by its name. Nothing is judged here, and nothing heavy imported; reading the files of a
site is `resources.config.suite_files`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SuiteFile
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES, Column, ColumnType, Table


class Severity(Enum):
    ERROR = "error"
    """The partition must not be built upon."""
    WARNING = "warning"
    """People should know; what is downstream continues."""


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
    """Texts look as they should."""
    REFERENCE = "reference"
    """Names are those that cluster.yaml knows."""
    SITE = "site"
    """Declared by the site, without a kind."""


class Measure(Enum):
    """What `profile` counts of an hour. A share is of rows, 0 to 1."""

    ROW_COUNT = "row_count"
    NULL_COUNT = "null_count"
    MIN = "min"
    MAX = "max"
    TYPE_DIFFERS = "type_differs"
    """1: missing, or of another type than the schema says."""
    STRANGE_COLUMNS = "strange_columns"
    """Columns that the schema does not know."""
    NOT_WHOLE = "not_whole"
    FALLS = "falls"
    """A counter went down, and not to a restart: to more than half of what it was, on a node that did not boot."""
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
    """Rows (groups) that break a rule across columns."""


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
    """A column, or the name of a rule across columns; empty for the table as a whole."""
    measure: Measure | None = None
    """None: `type` and `kwargs` are judged over the rows themselves."""
    at_least: float | None = None
    at_most: float | None = None
    type: str = ""
    """The expectation in Great Expectations' words, as `expect_column_values_to_be_between`."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    broken_if: str = ""
    """For BROKEN_SHARE: SQL over the table's columns, true for a row that breaks the rule; null is no contradiction.
    With `per`, over aggregates of the group."""
    per: str = ""
    """Column that groups the rows; empty: each row is judged alone."""
    source: str = ""
    """The site's file that declares it; empty: it is shipped."""

    @property
    def expected(self) -> str:
        """Return the bound in words."""
        if self.measure is None:
            said = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items() if key not in _NOT_A_BOUND)
            return f"{self.type.removeprefix('expect_')}{': ' if said else ''}{said}"
        if self.at_most == 0:
            return "none"
        least = "" if self.at_least is None else f"at least {self.at_least:g}"
        most = "" if self.at_most is None else f"at most {self.at_most:g}"
        return " and ".join(part for part in (least, most) if part)


_NOT_A_BOUND = frozenset({"column", "row_condition", "condition_parser"})
FRESH_WITHIN_SECONDS = 300.0
"""Twenty cycles of 15 s: shorter gaps are a restart of the collector."""
_WHOLE_RATIO = 1.000001
"""A mean of ratios may round above 1."""
_LARGEST = 1.7976931348623157e308
"""Where a number has no bound, it is bounded by this: infinities and NaN are beyond."""
_RECORD_BOUNDS: Mapping[str, tuple[float, float]] = {
    "exit_code": (0, 65535),
    "exit_signal": (0, 255),
    "gpu_index": (0, 1023),
    "rank": (0, 10_000_000),
}
"""Columns of no quantity that have bounds of their own; other numbers of records are never negative."""
_ANY_NUMBER = {("job_logs", "loss")}
"""A loss may be negative, and NaN is the very news."""
_MAY_FALL = {"cpu_iowait_seconds"}
"""Linux itself lets it go down (proc(5): `iowait` is not reliable)."""


def possible_bounds(table: str, column: Column) -> tuple[float, float]:
    """Return the least and the greatest value that can be; infinite where there is no bound."""
    if column.quantity is not None:
        return column.quantity.low, column.quantity.high
    if column.type not in (ColumnType.NUMBER, ColumnType.WHOLE) or (table, column.name) in _ANY_NUMBER:
        return -math.inf, math.inf
    return _RECORD_BOUNDS.get(column.name, (0.0, _WHOLE_RATIO if column.unit == "ratio" else math.inf))


@cache
def expectations_of(table: str) -> tuple[Expectation, ...]:
    """Return what we ship of every hour of a table. Raises KeyError on an unknown table."""
    return (*promised_of(table), *_declared_of(table))


@cache
def promised_of(table: str) -> tuple[Expectation, ...]:
    """Return what the lake itself promises of a table, which no site changes. Raises KeyError on an unknown table."""
    return tuple(_generate(TABLES[table]))


@cache
def _declared_of(table: str) -> tuple[Expectation, ...]:
    file = files("ops_pipelines.catalogue").joinpath("expectations", f"{table}.json")
    return read_suite(json.loads(file.read_text(encoding="utf-8")), table=table) if file.is_file() else ()


def with_site(table: str, site: Sequence[Expectation]) -> tuple[Expectation, ...]:
    """Return what is expected of a table where the site declares `site`: it adds, or replaces one by its name.

    Raises PolicyError if it names one that the lake itself promises.
    """
    promised = {each.name for each in promised_of(table)}
    for each in site:
        if each.name in promised:
            raise PolicyError(
                f"{each.source}: meta.name {each.name!r} is what the lake itself promises, and is not replaced;"
                " give yours another name"
            )
    replaced = {each.name for each in site}
    return (*(each for each in expectations_of(table) if each.name not in replaced), *site)


def _generate(table: Table) -> Iterator[Expectation]:
    yield _none(table, Measure.STRANGE_COLUMNS, Kind.TYPES, "the file has no column that the schema does not know")
    yield _none(table, Measure.DUPLICATES, Kind.UNIQUENESS, f"one row per {', '.join(table.sort_order)}")
    yield _none(table, Measure.UNSORTED, Kind.UNIQUENESS, f"rows are sorted by {', '.join(table.sort_order)}")
    yield _none(table, Measure.OUT_OF_HOUR, Kind.RANGE, "every time lies in the hour of the partition")
    if table.name in TELEMETRY_TABLES:
        yield from _of_cycles(table)
    for column in table.columns:
        yield from _of_column(table, column)


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
    name = column.name
    yield _none(table, Measure.TYPE_DIFFERS, Kind.TYPES, f"a column of type {column.type.value}", column=name)
    if name in table.sort_order:
        yield Expectation(
            table=table.name,
            name=f"{name}.null_count",
            kind=Kind.NULL,
            severity=Severity.ERROR,
            column=name,
            type="expect_column_values_to_not_be_null",
            kwargs={"column": name},
            meaning="part of the key, never null",
        )
    low, high = possible_bounds(table.name, column)
    is_number = column.type is ColumnType.NUMBER and (table.name, name) not in _ANY_NUMBER
    if is_number or low > -math.inf or high < math.inf:
        least = f"never below {low:g} {column.unit}".strip() if low > -math.inf else ""
        most = f"never above {high:g} {column.unit}".strip() if high < math.inf else ""
        yield Expectation(
            table=table.name,
            name=f"{name}.possible",
            kind=Kind.RANGE,
            severity=Severity.ERROR,
            column=name,
            type="expect_column_values_to_be_between",
            kwargs={"column": name, **_bounds(low, high, column)},
            meaning=", ".join(part for part in (least, most, "a finite number" if is_number else "") if part),
        )
    if column.quantity is not None and column.quantity.is_whole:
        yield _none(table, Measure.NOT_WHOLE, Kind.TYPES, "counts whole things", column=name)
    if name in table.counters and name not in _MAY_FALL:
        meaning = "only grows, or starts again near zero"
        yield _none(table, Measure.FALLS, Kind.MONOTONE, meaning, column=name, severity=Severity.WARNING)


def _bounds(low: float, high: float, column: Column) -> Mapping[str, object]:
    """Return the bounds as the column's own numbers; of numbers with a fraction both, so that they are finite."""
    if column.type is ColumnType.WHOLE:
        given = {"min_value": low, "max_value": high}
        return {key: int(bound) for key, bound in given.items() if math.isfinite(bound)}
    return {"min_value": max(low, -_LARGEST), "max_value": min(high, _LARGEST)}


# -- suites in the format of Great Expectations --


_SEVERITIES = {"critical": Severity.ERROR, "warning": Severity.WARNING, "info": Severity.WARNING}
_SUITE_KEYS = frozenset({"name", "id", "expectations", "meta", "notes"})
_KEYS = frozenset({"type", "kwargs", "severity", "description", "meta", "id", "notes"})
_META_KEYS = frozenset({"name", "kind", "broken_if", "per"})
_RULE_TYPE = "expect_column_max_to_be_between"


def read_suite(document: object, *, table: str, source: str = "") -> tuple[Expectation, ...]:
    """Return the expectations of a suite of Great Expectations, decoded from its JSON, on a table.

    Raises PolicyError, naming the file (`source`), the key and what to do. Whether Great Expectations knows a type and
    its kwargs, only it can say (`checks.suites`).
    """
    suite = _mapping(document, _SUITE_KEYS, f"{source}: the suite")
    listed = suite.get("expectations")
    if not isinstance(listed, list):
        raise PolicyError(f"{source}: expectations: a list is expected, with one mapping for each expectation")
    found = tuple(_declared(each, table, source, f"{source}: expectations[{at}]") for at, each in enumerate(listed))
    names = [each.name for each in found]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise PolicyError(
                f"{source}: expectations[{at}]: {name!r} is declared twice; give one of them another meta.name"
            )
    return found


def _declared(document: object, table: str, source: str, where: str) -> Expectation:
    given = _mapping(document, _KEYS, where)
    type_, severity = given.get("type"), given.get("severity", "critical")
    if not isinstance(type_, str) or not type_.startswith("expect_"):
        raise PolicyError(
            f"{where}.type: {type_!r} is no expectation; write one as `expect_column_values_to_be_between`"
        )
    if not isinstance(severity, str) or severity not in _SEVERITIES:
        raise PolicyError(f"{where}.severity: {severity!r}; write critical (blocks) or warning")
    kwargs = _mapping(given.get("kwargs", {}), None, f"{where}.kwargs")
    meta = _mapping(given.get("meta", {}), _META_KEYS, f"{where}.meta")
    column = kwargs.get("column", "")
    name = meta.get("name", f"{column}.{type_.removeprefix('expect_column_')}" if column else type_)
    kind = meta.get("kind", Kind.SITE.value)
    if not isinstance(name, str) or not name:
        raise PolicyError(f"{where}.meta.name: {name!r}; write a name that is unique in the table")
    if kind not in [each.value for each in Kind]:
        raise PolicyError(f"{where}.meta.kind: {kind!r}; write one of {', '.join(each.value for each in Kind)}")
    broken_if = meta.get("broken_if", "")
    made = Expectation(
        table=table,
        name=name,
        kind=Kind(kind),
        severity=_SEVERITIES[severity],
        meaning=str(given.get("description") or f"{type_.removeprefix('expect_').replace('_', ' ')}"),
        column=str(column),
        type=type_,
        kwargs=kwargs,
        broken_if=str(broken_if),
        per=str(meta.get("per", "")),
        source=source,
    )
    return _rule(made, where) if broken_if else _of_columns(made, where)


def _of_columns(made: Expectation, where: str) -> Expectation:
    """Return it if it names columns of the table alone."""
    known = TABLES[made.table].by_name
    given = {key: made.kwargs[key] for key in ("column", "column_A", "column_B") if key in made.kwargs}
    listed = made.kwargs.get("column_list", ())
    if isinstance(listed, list):
        given |= {f"column_list[{at}]": each for at, each in enumerate(listed)}
    for key, column in given.items():
        if column not in known:
            raise PolicyError(
                f"{where}.kwargs.{key}: {made.table} has no column {column!r}; `lake_columns` lists those it has"
            )
    return made


def _rule(made: Expectation, where: str) -> Expectation:
    """Return it as a bound on the share of rows, or groups, that break a rule across columns."""
    most = made.kwargs.get("max_value")
    if made.type != _RULE_TYPE or made.column != made.name or not re.fullmatch(r"[a-z][a-z0-9_]*", made.name):
        raise PolicyError(
            f"{where}: what has meta.broken_if is an {_RULE_TYPE} on the share of rows that break it: kwargs.column and"
            " meta.name are then both the rule's own name, in snake_case"
        )
    if made.name in TABLES[made.table].by_name:
        raise PolicyError(f"{where}.meta.name: {made.name} is a column of {made.table}; give the rule another name")
    if made.per and made.per not in TABLES[made.table].by_name:
        raise PolicyError(f"{where}.meta.per: {made.table} has no column {made.per!r}; name one that groups the rows")
    if isinstance(most, bool) or not isinstance(most, int | float) or not 0 <= most < 1:
        raise PolicyError(
            f"{where}.kwargs.max_value: {most!r}; write the share of rows that may break the rule, 0 for none"
        )
    return Expectation(
        table=made.table,
        name=made.name,
        kind=Kind.CROSS_COLUMN if made.kind is Kind.SITE else made.kind,
        severity=made.severity,
        meaning=made.meaning,
        column=made.name,
        measure=Measure.BROKEN_SHARE,
        at_most=float(most),
        broken_if=made.broken_if,
        per=made.per,
        source=made.source,
    )


def _mapping(document: object, keys: frozenset[str] | None, where: str) -> Mapping[str, object]:
    if not isinstance(document, Mapping) or not all(isinstance(key, str) for key in document):
        raise PolicyError(f"{where}: a mapping is expected, got {type(document).__name__}")
    unknown = sorted(document.keys() - keys) if keys is not None else []
    if unknown:
        assert keys is not None
        raise PolicyError(f"{where}.{unknown[0]}: no such key; write one of {', '.join(sorted(keys))}")
    return document


Trouble = tuple[Expectation, str]
"""What is for a file that cannot be used, and why: the file, the key, what to do."""


def expected_at_site(suites: Sequence[SuiteFile], *, table: str) -> tuple[tuple[Expectation, ...], tuple[Trouble, ...]]:
    """Return what is expected of a table with the site's suite, and what is wrong with the site's files.

    A suite of this table that cannot be used is an error, so that nothing is built upon what the site meant to refuse;
    a file that is named after no table is a warning, at each table. Raises KeyError on an unknown table.
    """
    expected, troubles = expectations_of(table), list[Trouble]()
    for suite in suites:
        if suite.table not in TABLES:
            said = f"{suite.path}: there is no table {suite.table!r}; name the file after one of {', '.join(TABLES)}"
            troubles.append((_file(suite, table, Severity.WARNING), said))
        elif suite.table == table:
            try:
                expected = with_site(table, read_site_suite(suite))
            except PolicyError as error:
                troubles.append((_file(suite, table, Severity.ERROR), str(error)))
    return expected, tuple(troubles)


def read_site_suite(suite: SuiteFile) -> tuple[Expectation, ...]:
    """Return what a file declares. Raises PolicyError, naming the file, the key and what to do."""
    if suite.problem:
        raise PolicyError(f"{suite.path}: {suite.problem}; make it readable to this program")
    try:
        document = json.loads(suite.text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{suite.path}: no JSON: {error}; correct it there") from None
    return read_suite(document, table=suite.table, source=suite.path)


def find_suite_faults(suites: Sequence[SuiteFile]) -> tuple[str, ...]:
    """Return what is wrong with a site's suites, the first of each file, in words for the operator."""
    faults: dict[str, None] = {}
    for table in (*(suite.table for suite in suites if suite.table in TABLES), next(iter(TABLES))):
        faults |= dict.fromkeys(said for _, said in expected_at_site(suites, table=table)[1])
    return tuple(faults)


def _file(suite: SuiteFile, table: str, severity: Severity) -> Expectation:
    return Expectation(
        table=table,
        name=suite.path.rsplit("/", maxsplit=1)[-1],
        kind=Kind.SITE,
        severity=severity,
        meaning="the site's suites can be used",
        source=suite.path,
    )
