"""One week of a review: ISO 8601, from Monday 00:00 UTC to the next; no zone and no change of clocks matters."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

WEEK = timedelta(days=7)
_NAME = re.compile(r"(\d{4})-W(\d{2})", re.ASCII)
_FIRST_YEAR = 1970


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Week:
    """One week, by its Monday; `start` <= t < `end`."""

    start: datetime

    @property
    def end(self) -> datetime:
        return self.start + WEEK

    @property
    def name(self) -> str:
        """Return it as `2026-W47`; the year is that of its Thursday."""
        year, number, _ = self.start.isocalendar()
        return f"{year:04d}-W{number:02d}"

    @property
    def page_name(self) -> str:
        """Return under which name its review is kept for people."""
        return f"weekly-{self.name}"

    @property
    def before(self) -> "Week":
        return Week(start=self.start - WEEK)


def week_of(at: datetime) -> Week:
    """Return the week that a time lies in."""
    day = at.astimezone(UTC).date()
    return Week(start=datetime.combine(day - timedelta(days=day.weekday()), time(), UTC))


def parse_week(text: str) -> Week:
    """Return the week that `2026-W47` names.

    Raises ValueError for all else: week 53 of a year without one, and years in which no cluster stood.
    """
    match = _NAME.fullmatch(text)
    try:
        if match is None or int(match[1]) < _FIRST_YEAR:
            raise ValueError
        monday = date.fromisocalendar(int(match[1]), int(match[2]), 1)
        week = Week(start=datetime.combine(monday, time(), UTC))
        _ = week.end
    except (ValueError, OverflowError):
        raise ValueError(f"found {text[:40]!r}; expected a week of ISO 8601 such as 2026-W47") from None
    return week
