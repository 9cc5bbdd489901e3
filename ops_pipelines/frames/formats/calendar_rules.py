"""What an entry of an iCalendar file must be before it is repeated: readable, with a length, and never without end.

The libraries take what makes no sense (an end before the begin, a zone that nobody knows) as something else, and look
for what never comes until the year 9999. What is refused here is said in words.
"""

from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.frames.parsed import readable

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
            raise EntryError(f"{name} stands there more than once")
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
