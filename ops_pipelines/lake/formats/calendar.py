"""Weekly windows and iCalendar files (RFC 5545) -> spans of absolute time in which work may be done.

The libraries take what makes no sense (an end before the begin, a zone that nobody knows) as something else, and look
for what never comes until the year 9999. What is refused here is stated in words.

Rules of repetition are carried out by recurring-ical-events. Here it is stated what is believed, whose zone a time has
that names none, and how much one file may hold. What windows and freezes make together is `maintenance_calendar`'s.

Reading one file is `calendar_entries`'. Here they are put together, and what could not be read is taken for the worst:
what may be a freeze holds always, and a calendar whose windows nobody can read opens none.
"""

from calendar import monthrange
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import Interval, WorkCalendar, instant_of
from ops_pipelines.core.policy import PolicyError, WeeklyWindow
from ops_pipelines.lake.quantities import readable

# -- times of a place -> instants, where clocks are put forward and back --


# -- what an entry of an iCalendar file must be before it is repeated --


if TYPE_CHECKING:
    from icalendar import Component

_ONCE = ("DTSTART", "DTEND", "DURATION", "RECURRENCE-ID", "STATUS", "X-OPS-KIND", "UID")
_EARLIEST_YEAR = 1970
_LEAP_YEAR = 2024
_MOST_A_DAY = 24
_ALWAYS = frozenset({"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYMONTH", "BYDAY", "BYHOUR", "BYMINUTE"})
_PARTS = {
    "DAILY": _ALWAYS | {"BYMONTHDAY"},
    "WEEKLY": _ALWAYS,
    "MONTHLY": _ALWAYS | {"BYMONTHDAY", "BYSETPOS"},
    "YEARLY": _ALWAYS | {"BYMONTHDAY", "BYSETPOS", "BYWEEKNO", "BYYEARDAY"},
}


class EntryError(ValueError):
    """The message: what was found, what was expected."""


def check_entry(event: "Component") -> None:
    """Return if an entry can be repeated safely. Raises EntryError, or what the library does of a broken property."""
    if event.errors:
        said = (f"{name or 'a line'} is unreadable: {readable(str(problem))[:120]}" for name, problem in event.errors)
        raise EntryError("; ".join(said))
    for name in _ONCE:
        if isinstance(event.get(name), list):
            raise EntryError(f"{name} is there more than once")
    for name, at, params in _times(event):
        if isinstance(at, datetime) and at.tzinfo is None and "TZID" in params:
            raise EntryError(f"{name} has the zone {readable(str(params['TZID']))[:60]!r}, which nobody knows")
        if at.year < _EARLIEST_YEAR:
            raise EntryError(f"{name} is of the year {at.year}; expected {_EARLIEST_YEAR} or later")
    _check_length(event)
    for rule in all_of(event, "RRULE"):
        if not isinstance(rule, Mapping):
            raise EntryError("its RRULE is none")
        _check_rule(rule)


def time_of(event: "Component", name: str) -> date:
    """Return a day or a time of an entry."""
    at: object = getattr(event[name], "dt", None)
    if not isinstance(at, date):
        raise EntryError(f"{name} is neither a day nor a time")
    return at


def length_of(event: "Component") -> timedelta | None:
    """Return the DURATION of an entry; None: it has none."""
    if "DURATION" not in event:
        return None
    length: object = getattr(event["DURATION"], "dt", None)
    if not isinstance(length, timedelta):
        raise EntryError("its DURATION is none")
    return length


def all_of(event: "Component", name: str) -> Sequence[object]:
    """Return the properties of one name, however many there are."""
    found: object = event.get(name, [])
    return found if isinstance(found, list) else [found]


def _times(event: "Component") -> Iterator[tuple[str, date, Mapping[str, object]]]:
    for name in ("DTSTART", "DTEND", "RECURRENCE-ID"):
        if name in event:
            yield name, time_of(event, name), _parameters(event[name])
    for name in ("RDATE", "EXDATE"):
        for many in all_of(event, name):
            for each in getattr(many, "dts", ()):
                at = each.dt[0] if isinstance(each.dt, tuple) else each.dt
                yield name, at, {**_parameters(many), **_parameters(each)}


def _parameters(found: object) -> Mapping[str, object]:
    said: object = getattr(found, "params", None)
    return said if isinstance(said, Mapping) else {}


def _check_length(event: "Component") -> None:
    if "DTSTART" not in event:
        raise EntryError("it has no DTSTART")
    begins, length = time_of(event, "DTSTART"), length_of(event)
    if length is not None:
        if "DTEND" in event:
            raise EntryError("it has both DTEND and DURATION; expected one of them")
        if length <= timedelta(0):
            raise EntryError("its DURATION is not above 0")
        return
    if "DTEND" not in event:
        if isinstance(begins, datetime):
            raise EntryError("it has neither DTEND nor DURATION, and so no length")
        return
    ends = time_of(event, "DTEND")
    if isinstance(ends, datetime) != isinstance(begins, datetime):
        raise EntryError("one of DTSTART and DTEND is a day, the other a time")
    if isinstance(begins, datetime) and isinstance(ends, datetime) and (begins.tzinfo is None) != (ends.tzinfo is None):
        raise EntryError("one of DTSTART and DTEND has a zone, the other has none")
    if ends <= begins:
        raise EntryError("it ends when it begins or before")


def _check_rule(rule: Mapping[str, list[object]]) -> None:
    parts = {name.upper(): values for name, values in rule.items()}
    often = str(parts.get("FREQ", ["nothing"])[0]).upper()
    if often not in _PARTS:
        raise EntryError(f"it repeats {readable(often)[:20]}; expected DAILY, WEEKLY, MONTHLY or YEARLY")
    odd = sorted(set(parts) - _PARTS[often])
    if odd:
        raise EntryError(f"its {often} rule has {readable(', '.join(odd))[:60]}, which does not go with it")
    hours, minutes = len(parts.get("BYHOUR", [0])), len(parts.get("BYMINUTE", [0]))
    if hours * minutes > _MOST_A_DAY:
        raise EntryError(f"it comes {hours * minutes} times a day; at most {_MOST_A_DAY} are believed")
    if "BYMONTH" in parts and "BYMONTHDAY" in parts and not _exists(parts["BYMONTH"], parts["BYMONTHDAY"]):
        raise EntryError("it never comes: none of its months has any of its days")


def _exists(months: Iterable[object], days: Iterable[object]) -> bool:
    longest = max(monthrange(_LEAP_YEAR, int(str(month)))[1] for month in months)
    return any(abs(int(str(day))) <= longest for day in days)


# -- iCalendar files (RFC 5545) -> entries with a kind and intervals of absolute time --


if TYPE_CHECKING:
    from icalendar import Calendar, Component, Event

MOST_BYTES = 10_000_000
MOST_ENTRIES = 5_000
MOST_OCCURRENCES = 5_000
_KIND = "X-OPS-KIND"
_PLACE = "X-OPS-PLACE"
"""Ours: copies that repetition makes carry it, so that each occurrence knows the entry that it comes from."""
_FREEZE_WORD = "FREEZE"
_DAY = timedelta(days=1)


class EntryKind(Enum):
    WINDOW = "window"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCalendar:
    """What one file says of an interval of time."""

    windows: tuple[Interval, ...]
    freezes: tuple[Interval, ...]
    declares_windows: bool
    """Whether it means to say when work may be done, with whatever comes of it: entries of other times, cancelled and
    unreadable ones count."""
    rejected: tuple[Rejected, ...]
    may_lack_freeze: bool
    """Whether anything that could not be read may be a freeze."""


class _Unbelievable(ValueError):
    """One entry, or one file. The message: what was found, what was expected."""


@lru_cache(maxsize=8)  # Asked in every pass for files that change once a month.
def read_calendar(text: bytes, *, name: str, zone: ZoneInfo, since: datetime, until: datetime) -> ReadCalendar:
    """Return what a file says of [since, until). Times without a zone are of the calendar's own, else of `zone`."""
    try:
        calendars = _parse(text)
        entries = [entry for calendar in calendars for entry in _entries(calendar, zone)]
        if len(entries) > MOST_ENTRIES:
            raise _Unbelievable(f"it has {len(entries)} entries; at most {MOST_ENTRIES} are read")
    except _Unbelievable as problem:
        whole = Rejected(source=name, position="file", reason=str(problem), text="")
        return ReadCalendar(windows=(), freezes=(), declares_windows=True, rejected=(whole,), may_lack_freeze=True)
    return _expand(entries, name=name, since=since, until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    event: "Event"
    place: int
    zone: tzinfo
    """Of its times without a zone."""

    @property
    def uid(self) -> str:
        return str(self.event.get("UID") or f"#{self.place}")


def _parse(text: bytes) -> Sequence["Calendar"]:
    from icalendar import Calendar
    from icalendar.timezone import tzp

    if len(text) > MOST_BYTES:
        raise _Unbelievable(f"it has {len(text)} bytes; at most {MOST_BYTES} are read")
    tzp.use_default()  # It remembers zones that files define: one must not define those of another.
    try:
        found = Calendar.from_ical(text, multiple=True)
    except Exception as problem:  # Whatever a parser of untrusted text raises.
        raise _Unbelievable(f"it is no iCalendar file: {readable(str(problem))[:200]}") from None
    calendars = [each for each in found if isinstance(each, Calendar)]
    if not calendars:
        raise _Unbelievable("it is no iCalendar file: no VCALENDAR is in it")
    return calendars


def _entries(calendar: "Calendar", zone: ZoneInfo) -> Iterator[_Entry]:
    from icalendar import Event
    from icalendar.timezone import tzp

    said = calendar.get("X-WR-TIMEZONE")
    own = tzp.timezone(str(said)) if said else zone
    if own is None:
        raise _Unbelievable(f"X-WR-TIMEZONE is {readable(str(said))[:60]!r}, which nobody knows; use Europe/Berlin")
    for place, event in enumerate(calendar.walk("VEVENT"), start=1):
        if any(isinstance(each, Event) for each in event.subcomponents):
            raise _Unbelievable(f"entry {place} holds another entry; each means itself")
        if isinstance(event, Event):
            yield _Entry(event=event, place=place, zone=own)


def _expand(entries: Sequence[_Entry], *, name: str, since: datetime, until: datetime) -> ReadCalendar:
    """Return the entries of one file, each series read apart, so that a bad one takes no other with it."""
    series: dict[tuple[str, tzinfo], list[_Entry]] = {}
    for each in entries:
        series.setdefault((each.uid, each.zone), []).append(each)
    found: dict[EntryKind, list[Interval]] = {kind: [] for kind in EntryKind}
    rejected: list[Rejected] = []
    declares_windows = may_lack_freeze = False
    for alike in series.values():
        kinds: set[EntryKind | None] = {None}
        try:
            kinds = {_kind_of(each.event) for each in alike}
            room = MOST_OCCURRENCES - sum(map(len, found.values()))
            for kind, interval in _occurrences(alike, since=since, until=until, room=room):
                found[kind].append(interval)
        except Exception as problem:  # The libraries raise whatever comes of a text that makes no sense.
            rejected.append(_rejected(alike[0], name, problem))
            may_lack_freeze = may_lack_freeze or kinds != {EntryKind.WINDOW}
        declares_windows = declares_windows or kinds != {EntryKind.FREEZE}
    return ReadCalendar(
        windows=tuple(sorted(found[EntryKind.WINDOW])),
        freezes=tuple(sorted(found[EntryKind.FREEZE])),
        declares_windows=declares_windows,
        rejected=tuple(rejected),
        may_lack_freeze=may_lack_freeze,
    )


def _rejected(entry: _Entry, name: str, problem: Exception) -> Rejected:
    said = str(problem) if isinstance(problem, ValueError) else f"{type(problem).__name__}: {problem}"
    return Rejected(
        source=name,
        position=f"entry {entry.place}",
        reason=readable(said)[:300],
        text=readable(entry.event.to_ical().decode(errors="replace")),
    )


def _kind_of(event: "Component") -> EntryKind | None:
    """Return what an entry declares; None: nothing is stated. Raises _Unbelievable where it says something else."""
    said = event.get(_KIND)
    if said is not None:
        try:
            return EntryKind(str(said).strip().lower())
        except ValueError:
            raise _Unbelievable(f"{_KIND} is {readable(str(said))[:40]!r}; expected window or freeze") from None
    words = [word for each in all_of(event, "CATEGORIES") for word in getattr(each, "cats", ())]
    return EntryKind.FREEZE if any(str(word).strip().upper() == _FREEZE_WORD for word in words) else EntryKind.WINDOW


def _occurrences(
    series: Sequence[_Entry], *, since: datetime, until: datetime, room: int
) -> Sequence[tuple[EntryKind, Interval]]:
    """Return the intervals of one entry and of what was changed of it. Raises _Unbelievable, and what libraries do."""
    from icalendar import Calendar
    from recurring_ical_events import CalendarQuery  # type: ignore[import-untyped]  # It says no types.

    alone = Calendar()
    for number, each in enumerate(series):
        check_entry(each.event)
        each.event.pop(_PLACE, None)
        each.event.add(_PLACE, str(number))
        alone.add_component(each.event)
    # Asked in times without a zone, its answer may be a day off; and it compares only what has one with what has one.
    query = CalendarQuery(alone)
    spans = (occurrence for each in query.series for occurrence in each.between(since - 2 * _DAY, until + 2 * _DAY))
    taken = [each.as_component(keep_recurrence_attributes=False) for each in islice(spans, room + 1)]
    if len(taken) > room:
        raise _Unbelievable(f"it comes too often; at most {MOST_OCCURRENCES} occurrences of a file are read")
    found = []
    for each in taken:
        entry = series[int(str(each[_PLACE]))]
        if str(each.get("STATUS", "")).upper() == "CANCELLED":
            continue
        interval = _interval(each, entry)
        if interval is not None and interval.begins_at < until and interval.ends_at > since:
            kind = _kind_of(each) or EntryKind.WINDOW
            found.append((kind, interval))
    return found


def _interval(occurrence: "Component", entry: _Entry) -> Interval | None:
    """Return one occurrence in absolute time; None where nothing of it exists: it lies in an hour that is skipped."""
    starts, ends = time_of(occurrence, "DTSTART"), time_of(occurrence, "DTEND")
    begins_at = _instant(starts, entry.zone)
    length = length_of(entry.event)
    if length is not None and ends - starts == length:
        # Hours of a DURATION are hours; its days are days of the calendar (RFC 5545, 3.3.6).
        ends_at = _instant(starts + timedelta(days=length.days), entry.zone) + timedelta(seconds=length.seconds)
    else:
        ends_at = _instant(ends, entry.zone)
    if ends_at <= begins_at:
        return None
    return Interval(begins_at=begins_at, ends_at=ends_at, name=readable(str(occurrence.get("SUMMARY", "")))[:100])


def _instant(at: date | datetime, zone: tzinfo) -> datetime:
    if not isinstance(at, datetime):
        return instant_of(datetime.combine(at, time()), zone)
    return instant_of(at.replace(tzinfo=None), at.tzinfo or zone)


# -- weekly windows and iCalendar files -> when planned work may be done --


def work_calendar(
    windows: Collection[WeeklyWindow] | None,
    calendars: Mapping[str, bytes],
    *,
    freezes: Sequence[Interval],
    since: datetime,
    until: datetime,
    zone: str = "UTC",
) -> tuple[WorkCalendar, tuple[Rejected, ...]]:
    """Return when work may be started within [since, until), and which entries nobody could read.

    `zone` is that of times in files which name none. Where neither policy nor files declare a window, every time will
    do. Raises PolicyError for a zone that nobody knows.
    """
    own = _zone(zone, of="calendars")
    read = {
        name: read_calendar(text, name=name, zone=own, since=since, until=until) for name, text in calendars.items()
    }
    is_declared = windows is not None or any(each.declares_windows for each in read.values())
    unread = (
        Interval(begins_at=since, ends_at=until, name=f"{name}: an entry that may be a freeze cannot be read")
        for name, each in read.items()
        if each.may_lack_freeze
    )
    calendar = WorkCalendar(
        windows=(
            (
                *(interval for each in windows or () for interval in weekly_intervals(each, since=since, until=until)),
                *(interval for each in read.values() for interval in each.windows),
            )
            if is_declared
            else None
        ),
        freezes=(*freezes, *(interval for each in read.values() for interval in each.freezes), *unread),
        known_until=until,
    )
    return calendar, tuple(entry for each in read.values() for entry in each.rejected)


def weekly_intervals(window: WeeklyWindow, *, since: datetime, until: datetime) -> Iterator[Interval]:
    """Yield when a weekly window is open, each interval whole that has a part in [since, until)."""
    zone = _zone(window.timezone, of=f"maintenance window {window.name!r}")
    length = timedelta(0) if window.ends > window.begins else _DAY
    day = since.astimezone(zone).date() - 2 * _DAY
    last = until.astimezone(zone).date() + _DAY
    while day <= last:
        if day.weekday() in window.days:
            begins_at = instant_of(datetime.combine(day, window.begins), zone)
            ends_at = instant_of(datetime.combine(day + length, window.ends), zone)
            if begins_at < min(ends_at, until) and ends_at > since:
                yield Interval(begins_at=begins_at, ends_at=ends_at, name=window.name)
        day += _DAY


def _zone(name: str, *, of: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise PolicyError(
            f"{of}: the time zone is {name[:60]!r}; use one of the IANA database: Europe/Berlin"
        ) from None
