"""What a check within a quarter warns of, against the quarter's first report: dates that moved, late orders."""

from collections.abc import Iterable
from datetime import date, timedelta

from ops_pipelines.domain.capacity.plan import CapacityReport, OrderLine

MOVED = timedelta(days=14)
"""Dates that move by no more are within what a forecast may change its mind by."""


def warn_of_changes(first: CapacityReport, check: CapacityReport) -> tuple[str, ...]:
    """Return what a person must look at again before the next quarter; nothing where all is as it was."""
    was = {each.series: each for each in first.plan.orders}
    return tuple(
        words for line in check.plan.orders for words in _warnings(was.get(line.series), line, as_of=first.plan.as_of)
    )


def _warnings(old: OrderLine | None, new: OrderLine, *, as_of: date) -> Iterable[str]:
    if new.short_from is None:
        if old is not None and old.short_from is not None:
            yield f"{old.what} is no longer short within the horizon; on {as_of} it was, from {old.short_from} on"
        return
    if new.is_overdue and (old is None or not old.is_overdue):
        relief = "" if new.earliest_relief is None else f"; ordered today it helps from {new.earliest_relief} on"
        yield f"{new.what} is overdue: it had to be ordered by {new.order_by}{relief}"
        return
    if old is None or old.short_from is None:
        yield f"{new.what} runs short from {new.short_from} on; on {as_of} it did not within the horizon"
        return
    if new.order_by is None or old.order_by is None:
        if new.order_by != old.order_by:
            yield f"{new.what}: order by {new.order_by or 'no date'}; on {as_of} it was {old.order_by or 'no date'}"
        return
    days = (new.order_by - old.order_by).days
    if abs(days) > MOVED.days:
        way = "later" if days > 0 else "earlier"
        yield f"{new.what}: order by {new.order_by}, {abs(days)} days {way} than said on {as_of}"
