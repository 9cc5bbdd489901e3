"""Local months, and the days of a part of one, as stretches of UTC. Nothing about money or GPUs."""

from collections.abc import Iterator
from datetime import date, datetime, tzinfo

from ops_pipelines.core.periods import BilledPart, CostMonth
from ops_pipelines.lake.rates import day_begins, days_between


def cost_month(year: int, month: int, *, zone: tzinfo) -> CostMonth:
    """Return one month of the zone's clock; ValueError for a month that is none."""
    following = (year + month // 12, month % 12 + 1)
    return CostMonth(
        year=year,
        month=month,
        begins_at=day_begins(date(year, month, 1), zone=zone),
        ends_at=day_begins(date(*following, 1), zone=zone),
    )


def month_at(at: datetime, *, zone: tzinfo) -> CostMonth:
    """Return the month that holds this time."""
    local = at.astimezone(zone)
    return cost_month(local.year, local.month, zone=zone)


def days_of(part: BilledPart, *, zone: tzinfo) -> Iterator[tuple[date, BilledPart]]:
    """Yield the local days of a part of a month, 23 to 25 hours each; the first and last as far as they are in it."""
    for day, since, until in days_between(part.since, part.until, zone=zone):
        yield day, BilledPart(month=part.month, since=since, until=until)
