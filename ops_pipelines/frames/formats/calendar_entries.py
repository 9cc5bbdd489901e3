"""iCalendar files (RFC 5545) -> entries with a kind and stretches of absolute time, and what could not be believed.

Rules of repetition are carried out by recurring-ical-events. Here it is said what is believed, whose zone a time has
that names none, and how much one file may hold. What windows and freezes make together is `maintenance_calendar`'s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.periods import Stretch
from ops_pipelines.frames.formats.calendar_rules import all_of, check_entry, length_of, time_of
from ops_pipelines.frames.formats.local_time import instant_of
from ops_pipelines.frames.parsed import readable

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
    """What one file says of a stretch of time."""

    windows: tuple[Stretch, ...]
    freezes: tuple[Stretch, ...]
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
            raise _Unbelievable(f"entry {place} holds another entry; each stands for itself")
        if isinstance(event, Event):
            yield _Entry(event=event, place=place, zone=own)


def _expand(entries: Sequence[_Entry], *, name: str, since: datetime, until: datetime) -> ReadCalendar:
    """Return the entries of one file, each series read apart, so that a bad one takes no other with it."""
    series: dict[tuple[str, tzinfo], list[_Entry]] = {}
    for each in entries:
        series.setdefault((each.uid, each.zone), []).append(each)
    found: dict[EntryKind, list[Stretch]] = {kind: [] for kind in EntryKind}
    rejected: list[Rejected] = []
    declares_windows = may_lack_freeze = False
    for alike in series.values():
        kinds: set[EntryKind | None] = {None}
        try:
            kinds = {_kind_of(each.event) for each in alike}
            room = MOST_OCCURRENCES - sum(map(len, found.values()))
            for kind, stretch in _occurrences(alike, since=since, until=until, room=room):
                found[kind].append(stretch)
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
    """Return what an entry declares; None: nothing is said. Raises _Unbelievable where it says something else."""
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
) -> Sequence[tuple[EntryKind, Stretch]]:
    """Return the stretches of one entry and of what was changed of it. Raises _Unbelievable, and what libraries do."""
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
        stretch = _stretch(each, entry)
        if stretch is not None and stretch.begins_at < until and stretch.ends_at > since:
            kind = _kind_of(each) or EntryKind.WINDOW
            found.append((kind, stretch))
    return found


def _stretch(occurrence: "Component", entry: _Entry) -> Stretch | None:
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
    return Stretch(begins_at=begins_at, ends_at=ends_at, name=readable(str(occurrence.get("SUMMARY", "")))[:100])


def _instant(at: date | datetime, zone: tzinfo) -> datetime:
    if not isinstance(at, datetime):
        return instant_of(datetime.combine(at, time()), zone)
    return instant_of(at.replace(tzinfo=None), at.tzinfo or zone)
