"""Weekly windows and iCalendar files -> when planned work may be done, in absolute time (`core.periods`).

Reading one file is `calendar_entries`'. Here they are put together, and what could not be read is taken for the worst:
what may be a freeze holds always, and a calendar whose windows nobody can read opens none.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import Stretch, WorkCalendar
from ops_pipelines.core.policy import PolicyError, WeeklyWindow
from ops_pipelines.frames.formats.calendar_entries import read_calendar
from ops_pipelines.frames.formats.local_time import instant_of

_DAY = timedelta(days=1)


def work_calendar(
    windows: Collection[WeeklyWindow] | None,
    calendars: Mapping[str, bytes],
    *,
    freezes: Sequence[Stretch],
    since: datetime,
    until: datetime,
    zone: str = "UTC",
) -> tuple[WorkCalendar, tuple[Rejected, ...]]:
    """Return when work may be begun within [since, until), and which entries nobody could read.

    `zone` is that of times in files which name none. Where neither policy nor files declare a window, every time will
    do. Raises PolicyError for a zone that nobody knows.
    """
    own = _zone(zone, of="calendars")
    read = {
        name: read_calendar(text, name=name, zone=own, since=since, until=until) for name, text in calendars.items()
    }
    is_declared = windows is not None or any(each.declares_windows for each in read.values())
    unread = (
        Stretch(begins_at=since, ends_at=until, name=f"{name}: an entry that may be a freeze cannot be read")
        for name, each in read.items()
        if each.may_lack_freeze
    )
    calendar = WorkCalendar(
        windows=(
            (
                *(stretch for each in windows or () for stretch in weekly_stretches(each, since=since, until=until)),
                *(stretch for each in read.values() for stretch in each.windows),
            )
            if is_declared
            else None
        ),
        freezes=(*freezes, *(stretch for each in read.values() for stretch in each.freezes), *unread),
        known_until=until,
    )
    return calendar, tuple(entry for each in read.values() for entry in each.rejected)


def weekly_stretches(window: WeeklyWindow, *, since: datetime, until: datetime) -> Iterator[Stretch]:
    """Yield when a weekly window is open, each stretch whole that has a part in [since, until)."""
    zone = _zone(window.timezone, of=f"maintenance window {window.name!r}")
    length = timedelta(0) if window.ends > window.begins else _DAY
    day = since.astimezone(zone).date() - 2 * _DAY
    last = until.astimezone(zone).date() + _DAY
    while day <= last:
        if day.weekday() in window.days:
            begins_at = instant_of(datetime.combine(day, window.begins), zone)
            ends_at = instant_of(datetime.combine(day + length, window.ends), zone)
            if begins_at < min(ends_at, until) and ends_at > since:
                yield Stretch(begins_at=begins_at, ends_at=ends_at, name=window.name)
        day += _DAY


def _zone(name: str, *, of: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise PolicyError(
            f"{of}: the time zone is {name[:60]!r}; use one of the IANA database: Europe/Berlin"
        ) from None
