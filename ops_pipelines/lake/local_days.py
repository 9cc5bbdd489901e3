"""Local days as stretches of UTC, and which hours begin in them: 23 or 25 where the clock is changed.

The one place that knows where a day of a zone begins. Months are `costs.usage`; what the days hold, others say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

from ops_pipelines.lake.formats.calendar import instant_of

HOUR = timedelta(hours=1)


_HOUR_SECONDS = 3600


_DAY = timedelta(days=1)


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


def day_begins(day: date, *, zone: tzinfo) -> datetime:
    """Return when a local day begins; where the clock skips midnight, when it goes on."""
    return instant_of(datetime(day.year, day.month, day.day, tzinfo=zone), zone).astimezone(UTC)


def first_hour(day: date, *, zone: tzinfo) -> datetime:
    """Return the first hour of UTC that begins in a local day: not midnight where the zone is off by half an hour."""
    begins_at = day_begins(day, zone=zone)
    hour = begins_at.replace(minute=0, second=0, microsecond=0)
    return hour if hour == begins_at else hour + HOUR


def days_between(since: datetime, until: datetime, *, zone: tzinfo) -> Iterator[tuple[date, datetime, datetime]]:
    """Yield the local days of [since, until), each with its part of it: the first and the last may be parts."""
    day = since.astimezone(zone).date()
    while (begins_at := day_begins(day, zone=zone)) < until:
        first, last = max(begins_at, since), min(day_begins(day + _DAY, zone=zone), until)
        if first < last:
            yield day, first, last
        day += _DAY


def days_of(hours: range, *, zone: tzinfo) -> Sequence[LocalDay]:
    """Return the local days of consecutive hours, which begin at these seconds since 1970."""
    if not hours:
        return []
    since, until = (datetime.fromtimestamp(each, UTC) for each in (hours[0], hours[-1] + _HOUR_SECONDS))
    found = []
    for day, first, last in days_between(since, until, zone=zone):
        places = [_hours_before(each, after=hours[0]) for each in (first, last)]
        if places[0] < places[1]:
            whole = [
                _hours_before(day_begins(each, zone=zone), after=hours[0] % _HOUR_SECONDS) for each in (day, day + _DAY)
            ]
            found.append(LocalDay(day=day, first=places[0], after=places[1], whole=whole[1] - whole[0]))
    return found


def _hours_before(moment: datetime, *, after: int) -> int:
    """Return how many hours begin before a moment, counted from one that begins so many seconds after 1970."""
    return -(-(int(moment.timestamp()) - after) // _HOUR_SECONDS)
