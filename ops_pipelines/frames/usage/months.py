"""Local months and days as stretches of UTC, where clocks are put forward and back. Nothing about money or GPUs."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from ops_pipelines.domain.cost.months import BilledPart, CostMonth
from ops_pipelines.frames.formats.local_time import instant_of

_DAY = timedelta(days=1)


def cost_month(year: int, month: int, *, zone: tzinfo) -> CostMonth:
    """Return one month of the zone's clock; ValueError for a month that is none."""
    following = (year + month // 12, month % 12 + 1)
    return CostMonth(
        year=year,
        month=month,
        begins_at=_midnight(date(year, month, 1), zone),
        ends_at=_midnight(date(*following, 1), zone),
    )


def month_at(at: datetime, *, zone: tzinfo) -> CostMonth:
    """Return the month that holds this time."""
    local = at.astimezone(zone)
    return cost_month(local.year, local.month, zone=zone)


def days_of(part: BilledPart, *, zone: tzinfo) -> Iterator[tuple[date, BilledPart]]:
    """Yield the local days of a part of a month, 23 to 25 hours each; the first and last as far as they are in it."""
    day = part.since.astimezone(zone).date()
    while (begins_at := _midnight(day, zone)) < part.until:
        since, until = max(begins_at, part.since), min(_midnight(day + _DAY, zone), part.until)
        if since < until:
            yield day, BilledPart(month=part.month, since=since, until=until)
        day += _DAY


def _midnight(day: date, zone: tzinfo) -> datetime:
    """Return when the day begins; where the clock skips midnight, when it goes on."""
    return instant_of(datetime(day.year, day.month, day.day, tzinfo=zone), zone).astimezone(UTC)
