"""Reads catalogue/health_gates.csv and verification_suites.csv strictly, and refuses them if the linter complains.

A site's own table is read by the same function (`ops-pipelines gates`). What makes a gate worthless is `gate_lint`.
"""

import csv
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TypeVar

from ops_pipelines.core.fault import Family
from ops_pipelines.core.node_tests import HealthGate, Suite, parse_suite_name, parse_test_name
from ops_pipelines.remediate.guardrails.floors_lint import lint_gates, lint_suites

Value = TypeVar("Value")
GATES_TABLE, SUITES_TABLE = "health_gates.csv", "verification_suites.csv"
BY_NAME = "by_name"
"""Stands in place of families for suites that no fault chooses."""
_GATE_COLUMNS = ("test", "measurement", "unit", "gpu_model", "gpu_count", "low", "high", "typical", "physical",
                 "baseline_ratio", "source", "checked_on")  # fmt: skip
_SUITE_COLUMNS = ("name", "families", "tests", "required", "says", "source", "checked_on")


def read_gates() -> tuple[HealthGate, ...]:
    """Return the shipped gates; raise ValueError naming what is wrong with the table."""
    gates = parse_gates(shipped_table(GATES_TABLE), table=f"catalogue/{GATES_TABLE}")
    _refuse(GATES_TABLE, lint_gates(gates))
    return gates


def read_suites() -> tuple[Suite, ...]:
    """Return the shipped suites; raise ValueError naming what is wrong with the table."""
    suites = parse_table(shipped_table(SUITES_TABLE), f"catalogue/{SUITES_TABLE}", _SUITE_COLUMNS, _suite)
    _refuse(SUITES_TABLE, lint_suites(suites))
    return suites


def parse_gates(text: str, *, table: str) -> tuple[HealthGate, ...]:
    """Return the gates of a table as they stand there; raise ValueError naming the row that cannot be read.

    Whether they are worth anything is `lint_gates`' to say.
    """
    return parse_table(text, table, _GATE_COLUMNS, lambda row: _gate(row, table))


def shipped_table(name: str) -> str:
    """Return the text of a table of the catalogue."""
    return (files("ops_pipelines.catalogue") / name).read_text(encoding="utf-8")


def _refuse(name: str, faults: tuple[str, ...]) -> None:
    if faults:
        raise ValueError(f"catalogue/{name}: {'; '.join(faults)}")


def parse_table(
    text: str, table: str, columns: tuple[str, ...], build: Callable[[Mapping[str, str]], Value]
) -> tuple[Value, ...]:
    """Return the rows of a table, built one by one; raise ValueError naming the table and the row that is wrong."""
    # Spreadsheets put a byte order mark before the first column.
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(), strict=True)
    values = []
    try:
        found = tuple(reader.fieldnames or ())
        if found != columns:
            raise ValueError(f"its columns are {', '.join(found)[:200] or 'none'}; expected {', '.join(columns)}")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"expected {len(columns)} fields; is a comma unquoted?")
            values.append(build(row))
    except csv.Error as problem:
        raise ValueError(f"{table}, about line {reader.line_num}: {problem}; is a quote left open?") from problem
    except ValueError as problem:
        where = f"{table}, line {reader.line_num}" if reader.line_num > 1 else table
        raise ValueError(f"{where}: {problem}") from problem
    if not values:
        raise ValueError(f"{table}: it has no rows; empty never means that all is well")
    return tuple(values)


def _gate(row: Mapping[str, str], table: str) -> HealthGate:
    for column in ("measurement", "unit", "source"):
        if not row[column].strip():
            raise ValueError(f"{column} is empty")
    count = row["gpu_count"]
    if count and not count.isdecimal():
        raise ValueError(f"gpu_count is {count!r}; expected a whole number or nothing")
    checked = f", checked {row['checked_on']}" if row["checked_on"] else ""
    return HealthGate(
        test=parse_test_name(row["test"]),
        measurement=row["measurement"],
        unit=row["unit"],
        gpu_model=row["gpu_model"],
        low=_number(row, "low"),
        high=_number(row, "high"),
        typical=_number(row, "typical"),
        physical=_number(row, "physical"),
        baseline_ratio=_number(row, "baseline_ratio"),
        source=f"{row['source']} ({table}{checked})",
        gpu_count=int(count) if count else None,
    )


def _number(row: Mapping[str, str], column: str) -> float | None:
    text = row[column]
    if not text:
        return None
    try:
        return float(text)
    except ValueError as problem:
        raise ValueError(f"{column} is {text!r}; expected a number or nothing") from problem


def _suite(row: Mapping[str, str]) -> Suite:
    is_by_name = row["families"] == BY_NAME
    return Suite(
        name=parse_suite_name(row["name"]),
        families=frozenset(Family(word) for word in row["families"].split("|") if word and not is_by_name),
        tests=tuple(parse_test_name(word) for word in row["tests"].split("|")),
        required=frozenset(parse_test_name(word) for word in row["required"].split("|") if word),
        is_by_name=is_by_name,
    )
