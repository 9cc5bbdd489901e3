"""Reads catalogue/fault_hazards.csv: what faults do to jobs that go on, as domain values.

Choosing the row for a fault is `remediate.timing`'s. A table that says nonsense is a fault of this program: the
error names the row and the word.
"""

import csv
import math
from collections.abc import Mapping
from enum import Enum
from importlib.resources import files
from typing import TypeVar

from ops_pipelines.core.fault import Family, FirstAction
from ops_pipelines.core.finding import AT_ONCE, Hazard

Word = TypeVar("Word", bound=Enum)
TABLE = "fault_hazards.csv"


def read_hazards() -> tuple[Hazard, ...]:
    """Return the shipped table. Raises ValueError naming the row that cannot be read, and what it should say."""
    text = (files("ops_pipelines.catalogue") / TABLE).read_text(encoding="utf-8")
    return parse_hazards(text)


def parse_hazards(text: str) -> tuple[Hazard, ...]:
    """Return the rows of a table; raises ValueError on an unknown word, a number out of range, a row without a source,
    two rows for the same fault, and a table without a row for any fault."""
    hazards = tuple(_hazard(row) for row in csv.DictReader(text.splitlines()))
    named = [(each.family, each.first_action) for each in hazards]
    twice = {_name(*each) for each in named if named.count(each) > 1}
    if twice:
        raise ValueError(f"catalogue/{TABLE} has more than one row for {', '.join(sorted(twice))}; keep one")
    if (None, None) not in named:
        raise ValueError(f"catalogue/{TABLE} has no row with empty family and first action; add one for any fault")
    return hazards


def _hazard(row: Mapping[str, str]) -> Hazard:
    family, action = _word(Family, row, "family"), _word(FirstAction, row, "first_action")
    where = f"catalogue/{TABLE}, {_name(family, action)}"
    rate = _number(row, "ends_job_per_hour", where)
    slowdown = _number(row, "slowdown_ratio", where)
    if rate < 0:
        raise ValueError(f"{where}: ends_job_per_hour is {rate}; expected 0 or more, or inf")
    if not 0 <= slowdown <= 1:
        raise ValueError(f"{where}: slowdown_ratio is {slowdown}; expected 0 to 1")
    if not row["source"]:
        raise ValueError(f"{where}: no source; name it, or write 'Assumption: ...'")
    return Hazard(
        family=family,
        first_action=action,
        ends_job_per_hour=min(rate, AT_ONCE),
        slowdown_ratio=slowdown,
        source=f"{row['source']} (catalogue/{TABLE})",
    )


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        number = float(row[column])
    except ValueError as problem:
        raise ValueError(f"{where}: {column} is {row[column]!r}; expected a number") from problem
    if math.isnan(number):
        raise ValueError(f"{where}: {column} is {row[column]!r}; expected a number")
    return number


def _word(kind: type[Word], row: Mapping[str, str], column: str) -> Word | None:
    if not row[column]:
        return None
    try:
        return kind(row[column])
    except ValueError as problem:
        raise ValueError(f"catalogue/{TABLE}: {row[column]!r} is no {kind.__name__}") from problem


def _name(family: Family | None, action: FirstAction | None) -> str:
    return f"{family.value if family else 'any family'} and {action.value if action else 'any first action'}"
