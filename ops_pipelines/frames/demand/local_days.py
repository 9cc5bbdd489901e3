"""Hours -> the local days in which they begin: 23 or 25 where the clock is changed. What the hours hold, others say."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDay:
    """The hours of one local day among others."""

    day: date
    first: int
    """Place of its first hour."""
    after: int
    """Place after its last."""
    whole: int
    """How many hours begin in the whole day."""

    @property
    def hour_count(self) -> int:
        return self.after - self.first


def days_of(hours: range, *, zone: ZoneInfo) -> Sequence[LocalDay]:
    """Return the local days of consecutive hours, which begin at these seconds since 1970."""
    begins: list[tuple[date, int]] = []
    for place, hour in enumerate(hours):
        day = datetime.fromtimestamp(hour, zone).date()
        if not begins or begins[-1][0] != day:
            begins.append((day, place))
    ends = [place for _, place in begins[1:]] + [len(hours)]
    return [
        LocalDay(day=day, first=first, after=after, whole=_hour_count(day, zone=zone, phase=hours.start % _HOUR))
        for (day, first), after in zip(begins, ends, strict=True)
    ]


def _hour_count(day: date, *, zone: ZoneInfo, phase: int) -> int:
    """Return how many hours begin in a local day, if hours begin `phase` seconds after those of UTC."""
    begin, end = (datetime.combine(each, datetime.min.time(), zone) for each in (day, day + timedelta(days=1)))
    first, after = (-(-(int(each.timestamp()) - phase) // _HOUR) for each in (begin, end))
    return after - first
