"""The rows of catalogue/scheduler_policy.csv: which settings of a scheduler are unwanted, and what to set."""

import csv
from collections.abc import Mapping
from datetime import date
from functools import cache
from importlib.resources import files

from ops_pipelines.domain.placement.scheduler_policy import PolicyRow, Scope, Unwanted

_NEEDED = ("name", "scope", "setting", "unwanted", "why", "set", "source", "checked_on")
_WITH_VALUE = frozenset({Unwanted.IS, Unwanted.LACKS, Unwanted.BELOW})


@cache
def read_scheduler_policy() -> tuple[PolicyRow, ...]:
    """Return the rows in their order. Raises ValueError with the line that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("scheduler_policy.csv").read_text(encoding="utf-8")
    found = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_row(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/scheduler_policy.csv, line {number}: {exc}") from exc
    return tuple(found)


def _row(row: Mapping[str, str]) -> PolicyRow:
    if not all(row[name] for name in _NEEDED):
        raise ValueError(f"expected all of {', '.join(_NEEDED)}")
    unwanted = Unwanted(row["unwanted"])
    if (unwanted in _WITH_VALUE) is not bool(row["value"]):
        raise ValueError(f"{unwanted.value} with the value {row['value']!r}; expected one with is, lacks, below alone")
    return PolicyRow(
        name=row["name"],
        scope=Scope(row["scope"]),
        setting=row["setting"],
        unwanted=unwanted,
        value=row["value"],
        default=row["default"],
        when=tuple(condition.strip() for condition in row["when"].split(";") if condition.strip()),
        why=row["why"],
        set_to=row["set"],
        source=row["source"],
        checked_on=date.fromisoformat(row["checked_on"]),
    )
