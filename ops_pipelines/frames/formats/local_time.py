"""Times of a place -> instants, where clocks are put forward and back."""

from datetime import UTC, datetime, timedelta, tzinfo

_SECOND = timedelta(seconds=1)


def instant_of(local: datetime, zone: tzinfo) -> datetime:
    """Return when a clock in `zone` shows `local`: of two times the first, of none the next time that it does show."""
    plain = local.replace(tzinfo=None)
    before = plain.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None) == plain:
        return before
    # The clock skips it. With fold 0 it is read by the offset before the change, and so lies behind it; with 1 before.
    early, late = plain.replace(tzinfo=zone, fold=1).astimezone(UTC), before
    offset = late.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            late = middle
        else:
            early = middle
    return late.replace(microsecond=0)
