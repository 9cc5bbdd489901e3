"""Intervals of time: maintenance windows less freezes, local days, calendar weeks, and months that are paid for.

Half-open, in UTC. Weekly rules, time zones and iCalendar are turned into them by `lake.formats.calendar`; where a day
of a zone begins, with 23 or 25 hours where the clock is changed, only this module knows. A month is as long as its
clock reports, and what is paid by the month is shared out over these seconds, so that it is paid once.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import islice

# -- when planned work may be done --


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Interval:
    """One interval of time, half-open."""

    begins_at: datetime
    ends_at: datetime
    name: str = ""

    def __post_init__(self) -> None:
        if self.begins_at.tzinfo is None or self.ends_at.tzinfo is None:
            raise ValueError(f"{self.name!r} has a time without a zone")
        if self.ends_at <= self.begins_at:
            raise ValueError(f"{self.name!r} ends before it begins")

    def holds(self, at: datetime) -> bool:
        return self.begins_at <= at < self.ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCalendar:
    """When work may be started. Without windows: always, but in freezes."""

    windows: tuple[Interval, ...] | None
    """None: no window is declared, so that every time will do. Empty: declared, and there is none."""
    freezes: tuple[Interval, ...] = ()
    known_until: datetime | None = None
    """Beyond this nobody has expanded the windows; None: they are all."""
    _frozen: tuple[Interval, ...] = field(init=False, repr=False, compare=False)
    _open: tuple[Interval, ...] | None = field(init=False, repr=False, compare=False)
    """Windows less freezes; None where no window is declared."""

    def __post_init__(self) -> None:
        frozen = merged(self.freezes)
        object.__setattr__(self, "_frozen", frozen)
        windows = None if self.windows is None else tuple(less(merged(self.windows), frozen))
        object.__setattr__(self, "_open", windows)

    def open_intervals(self, since: datetime, until: datetime) -> tuple[Interval, ...]:
        """Return when work may be started within [since, until), in order, without overlaps."""
        if until <= since:
            return ()
        asked = Interval(begins_at=since, ends_at=until)
        if self._open is None:
            return tuple(less([asked], self._frozen))
        cut = (_cut(each, asked) for each in self._open)
        return tuple(each for each in cut if each is not None)

    def is_open(self, at: datetime) -> bool:
        """Return whether work may be started at this time."""
        if self._open is None:
            return _holding(self._frozen, at) is None
        return _holding(self._open, at) is not None

    def opens_at(self, at: datetime) -> datetime | None:
        """Return when work may be started from this time on, at the earliest; None if no window is known to come."""
        if self.is_open(at):
            return at
        if self._open is None:
            frozen = _holding(self._frozen, at)
            return at if frozen is None else frozen.ends_at
        following = _next(self._open, at)
        return None if following is None else following.begins_at

    def closes_at(self, at: datetime) -> datetime | None:
        """Return when the interval that holds `at` ends; None if it does not end, or none holds."""
        if self._open is None:
            freeze = _next(self._frozen, at) if self.is_open(at) else None
            return None if freeze is None else freeze.begins_at
        holding = _holding(self._open, at)
        return None if holding is None else holding.ends_at

    def why_closed(self, at: datetime) -> str | None:
        """Return in words why no work is started at this time; None if it is."""
        if self.is_open(at):
            return None
        frozen = _holding(self._frozen, at)
        if frozen is not None:
            names = dict.fromkeys(each.name for each in sorted(self.freezes) if each.holds(at))
            said = ", ".join(repr(name) for name in names)
            return f"freeze {said} holds until {frozen.ends_at:%Y-%m-%d %H:%M} UTC"
        following = _next(self._open or (), at)
        if following is None:
            until = "" if self.known_until is None else f" until {self.known_until:%Y-%m-%d}"
            return f"no maintenance window is known to come{until}; declare one in policy.yaml"
        return (
            f"outside the maintenance windows; the next, {following.name!r}, "
            f"opens at {following.begins_at:%Y-%m-%d %H:%M} UTC"
        )


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return intervals in order, those that touch or overlap as one under the name of the first."""
    found: list[Interval] = []
    for each in sorted(intervals):
        if found and each.begins_at <= found[-1].ends_at:
            last = found[-1]
            found[-1] = Interval(
                begins_at=last.begins_at, ends_at=max(last.ends_at, each.ends_at), name=last.name or each.name
            )
        else:
            found.append(each)
    return tuple(found)


def less(intervals: Iterable[Interval], taken: Iterable[Interval]) -> Iterable[Interval]:
    """Yield what is left of intervals when others are taken away; both in order and without overlaps."""
    away = tuple(taken)
    first = 0
    for each in intervals:
        begins_at = each.begins_at
        while first < len(away) and away[first].ends_at <= begins_at:
            first += 1
        for gap in islice(away, first, None):
            if gap.begins_at >= each.ends_at:
                break
            if gap.begins_at > begins_at:
                yield Interval(begins_at=begins_at, ends_at=gap.begins_at, name=each.name)
            begins_at = gap.ends_at
        if begins_at < each.ends_at:
            yield Interval(begins_at=begins_at, ends_at=each.ends_at, name=each.name)


def _cut(interval: Interval, to: Interval) -> Interval | None:
    begins_at, ends_at = max(interval.begins_at, to.begins_at), min(interval.ends_at, to.ends_at)
    return None if ends_at <= begins_at else Interval(begins_at=begins_at, ends_at=ends_at, name=interval.name)


def _holding(intervals: tuple[Interval, ...], at: datetime) -> Interval | None:
    place = bisect_right(intervals, at, key=lambda each: each.begins_at) - 1
    return intervals[place] if place >= 0 and intervals[place].holds(at) else None


def _next(intervals: tuple[Interval, ...], at: datetime) -> Interval | None:
    """Return the first that begins after this time."""
    place = bisect_right(intervals, at, key=lambda each: each.begins_at)
    return intervals[place] if place < len(intervals) else None


# -- one week of a review --


WEEK = timedelta(days=7)
_NAME = re.compile(r"(\d{4})-W(\d{2})", re.ASCII)
_FIRST_YEAR = 1970


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Week:
    """One week, by its Monday; `start` <= t < `end`."""

    start: datetime

    @property
    def end(self) -> datetime:
        return self.start + WEEK

    @property
    def name(self) -> str:
        """Return it as `2026-W47`; the year is that of its Thursday."""
        year, number, _ = self.start.isocalendar()
        return f"{year:04d}-W{number:02d}"

    @property
    def page_name(self) -> str:
        """Return under which name its review is kept for people."""
        return f"weekly-{self.name}"

    @property
    def before(self) -> "Week":
        return Week(start=self.start - WEEK)


def week_of(at: datetime) -> Week:
    """Return the week that a time lies in."""
    day = at.astimezone(UTC).date()
    return Week(start=datetime.combine(day - timedelta(days=day.weekday()), time(), UTC))


def parse_week(text: str) -> Week:
    """Return the week that `2026-W47` names.

    Raises ValueError for all else: week 53 of a year without one, and years in which no cluster stood.
    """
    match = _NAME.fullmatch(text)
    try:
        if match is None or int(match[1]) < _FIRST_YEAR:
            raise ValueError
        monday = date.fromisocalendar(int(match[1]), int(match[2]), 1)
        week = Week(start=datetime.combine(monday, time(), UTC))
        _ = week.end
    except (ValueError, OverflowError):
        raise ValueError(f"found {text[:40]!r}; expected a week of ISO 8601 such as 2026-W47") from None
    return week


# -- the month that is paid for --


_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CostMonth:
    """One local month. Half-open, UTC, whole seconds."""

    year: int
    month: int
    begins_at: datetime
    ends_at: datetime

    def __post_init__(self) -> None:
        _check_span(self.name, self.begins_at, self.ends_at)

    @property
    def name(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"

    @property
    def seconds(self) -> int:
        return (self.ends_at - self.begins_at) // _SECOND

    @property
    def number(self) -> int:
        """Months since year 0, to count months by."""
        return self.year * 12 + self.month - 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BilledPart:
    """What is paid for: a month, the part of it that is over, or one of its days. Half-open, whole seconds."""

    month: CostMonth
    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        _check_span(self.month.name, self.since, self.until)
        if self.since < self.month.begins_at or self.until > self.month.ends_at:
            raise ValueError(
                f"{self.since:%Y-%m-%d %H:%M:%S} to {self.until:%Y-%m-%d %H:%M:%S} is not within {self.month.name} "
                f"({self.month.begins_at:%Y-%m-%d %H:%M:%S} to {self.month.ends_at:%Y-%m-%d %H:%M:%S} UTC)"
            )

    @property
    def seconds(self) -> int:
        return (self.until - self.since) // _SECOND


def whole_month(month: CostMonth) -> BilledPart:
    """Return the month as what is paid for."""
    return BilledPart(month=month, since=month.begins_at, until=month.ends_at)


def month_to_date(month: CostMonth, *, now: datetime) -> BilledPart | None:
    """Return the part of the month that is over, in whole hours since its begin; None before its first hour is."""
    over = min(now, month.ends_at) - month.begins_at
    hours = over // timedelta(hours=1)
    if hours < 1:
        return None
    until = month.ends_at if now >= month.ends_at else month.begins_at + timedelta(hours=hours)
    return BilledPart(month=month, since=month.begins_at, until=until)


def _check_span(name: str, since: datetime, until: datetime) -> None:
    if since.utcoffset() != timedelta(0) or until.utcoffset() != timedelta(0):
        raise ValueError(f"{name}: from {since} to {until}; expected times in UTC")
    if since.microsecond or until.microsecond:
        raise ValueError(f"{name}: from {since} to {until}; expected whole seconds")
    if until <= since:
        raise ValueError(f"{name}: from {since} to {until}; expected it to end after it begins")


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


def instant_of(local: datetime, zone: tzinfo) -> datetime:
    """Return when a clock in `zone` shows `local`: of two times the first, of none the next time that it does show."""
    plain = local.replace(tzinfo=None)
    before = plain.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if before.astimezone(zone).replace(tzinfo=None) == plain:
        return before
    # The clock skips it. With fold 0 it is read by the offset before the change, and so lies behind it; with 1 before.
    early, late = plain.replace(tzinfo=zone, fold=1).astimezone(UTC), before
    offset = late.astimezone(zone).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == offset:
            late = middle
        else:
            early = middle
    return late.replace(microsecond=0)


def day_begins(day: date, *, zone: tzinfo) -> datetime:
    """Return when a local day begins; where the clock skips midnight, when it continues."""
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
