"""Quarters of the calendar year, by name: 2026Q4 begins on the first of October. Local days; no zone is known here."""

import re
from datetime import date, timedelta

QUARTER_MONTHS = (1, 4, 7, 10)
"""The months that begin a quarter."""
_NAME = re.compile(r"([0-9]{4})Q([1-4])", re.ASCII)


def quarter_of(day: date) -> str:
    """Return the quarter in which a day lies."""
    return f"{day.year:04}Q{(day.month - 1) // 3 + 1}"


def first_day_of(quarter: str) -> date:
    """Return the first day of a quarter; raise ValueError where the name is none."""
    named = _NAME.fullmatch(quarter)
    if named is None or named[1] == "0000":
        raise ValueError(f"{quarter[:40]!r} names no quarter; expected a year and a quarter, as 2026Q4")
    return date(int(named[1]), 3 * int(named[2]) - 2, 1)


def quarter_before(quarter: str) -> str:
    """Return the quarter before; raise ValueError where the name is none, or before the first year."""
    first = first_day_of(quarter)
    if first == date.min:
        raise ValueError(f"there is no quarter before {quarter}")
    return quarter_of(first - timedelta(days=1))
