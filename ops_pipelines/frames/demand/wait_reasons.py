"""Why a job waits, in the scheduler's word -> whether its wait is demand. The table is catalogue/wait_reasons.csv.

Demand is what more GPUs, or a higher quota, would have started: also what the team's own cap holds back. A reason that
the table does not have counts; whoever asks is told which.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files


class Counts(Enum):
    YES = "yes"
    NO = "no"
    FROM_ELIGIBLE = "from_eligible"
    """From the time at which the scheduler says that it could have started; where it says none, not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """One row of the catalogue."""

    reason: str
    """As the scheduler writes it; `*` stands for anything."""
    counts: Counts
    says: str
    source: str
    checked_on: date


_WORD = re.compile(r"[A-Za-z_ ]+")
_COLUMNS = ("reason", "counts", "says", "source", "checked_on")


@cache
def read_wait_reasons() -> tuple[WaitReason, ...]:
    """Return the rows; the first that fits counts. Raises ValueError with the line that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("wait_reasons.csv").read_text(encoding="utf-8")
    found = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_row(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/wait_reasons.csv, line {number}: {exc}") from exc
    return tuple(found)


def find_reason(text: str) -> WaitReason | None:
    """Return the row for a reason, also for `ReqNodeNotAvail, UnavailableNodes:gpu003`; None if there is none."""
    found = _WORD.match(text.strip().lstrip("("))
    word = found[0].strip().replace(" ", "_") if found else ""
    return next((row for row in read_wait_reasons() if fnmatchcase(word, row.reason)), None)


def _row(row: Mapping[str, str]) -> WaitReason:
    if not all(row[name] for name in _COLUMNS):
        raise ValueError(f"expected all of {', '.join(_COLUMNS)}")
    return WaitReason(
        reason=row["reason"],
        counts=Counts(row["counts"]),
        says=row["says"],
        source=row["source"],
        checked_on=date.fromisoformat(row["checked_on"]),
    )
