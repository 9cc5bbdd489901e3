"""The month that is paid for, and a part of it. Values only; where local months begin in UTC is `frames.usage.months`.

A month is as long as its clock says: with daylight saving it has 743 or 745 hours where it otherwise has 744. What is
paid by the month is shared out over these seconds, so that a month is paid once however long it is.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CostMonth:
    """One local month. Half-open, UTC, whole seconds."""

    year: int
    month: int
    begins_at: datetime
    ends_at: datetime

    def __post_init__(self) -> None:
        _check_span(self.name, self.begins_at, self.ends_at)

    @property
    def name(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"

    @property
    def seconds(self) -> int:
        return (self.ends_at - self.begins_at) // _SECOND

    @property
    def number(self) -> int:
        """Months since year 0, to count months by."""
        return self.year * 12 + self.month - 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BilledPart:
    """What is paid for: a month, the part of it that is over, or one of its days. Half-open, whole seconds."""

    month: CostMonth
    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        _check_span(self.month.name, self.since, self.until)
        if self.since < self.month.begins_at or self.until > self.month.ends_at:
            raise ValueError(
                f"{self.since:%Y-%m-%d %H:%M:%S} to {self.until:%Y-%m-%d %H:%M:%S} is not within {self.month.name} "
                f"({self.month.begins_at:%Y-%m-%d %H:%M:%S} to {self.month.ends_at:%Y-%m-%d %H:%M:%S} UTC)"
            )

    @property
    def seconds(self) -> int:
        return (self.until - self.since) // _SECOND


def whole_month(month: CostMonth) -> BilledPart:
    """Return the month as what is paid for."""
    return BilledPart(month=month, since=month.begins_at, until=month.ends_at)


def month_to_date(month: CostMonth, *, now: datetime) -> BilledPart | None:
    """Return the part of the month that is over, in whole hours since its begin; None before its first hour is."""
    over = min(now, month.ends_at) - month.begins_at
    hours = over // timedelta(hours=1)
    if hours < 1:
        return None
    until = month.ends_at if now >= month.ends_at else month.begins_at + timedelta(hours=hours)
    return BilledPart(month=month, since=month.begins_at, until=until)


def _check_span(name: str, since: datetime, until: datetime) -> None:
    if since.utcoffset() != timedelta(0) or until.utcoffset() != timedelta(0):
        raise ValueError(f"{name}: from {since} to {until}; expected times in UTC")
    if since.microsecond or until.microsecond:
        raise ValueError(f"{name}: from {since} to {until}; expected whole seconds")
    if until <= since:
        raise ValueError(f"{name}: from {since} to {until}; expected it to end after it begins")
