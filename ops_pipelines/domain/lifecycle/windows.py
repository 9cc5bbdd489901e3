"""When planned work may be done: absolute stretches of maintenance windows, less freezes.

Stretches only. Weekly rules, time zones, daylight saving and iCalendar are turned into them by
`frames.formats.maintenance_calendar`; half-open, in UTC.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stretch:
    """One stretch of time, half-open."""

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
    """When work may be begun. Without windows: always, but in freezes."""

    windows: tuple[Stretch, ...] | None
    """None: no window is declared, so that every time will do. Empty: declared, and there is none."""
    freezes: tuple[Stretch, ...] = ()
    known_until: datetime | None = None
    """Beyond this nobody has expanded the windows; None: they are all."""
    _frozen: tuple[Stretch, ...] = field(init=False, repr=False, compare=False)
    _open: tuple[Stretch, ...] | None = field(init=False, repr=False, compare=False)
    """Windows less freezes; None where no window is declared."""

    def __post_init__(self) -> None:
        frozen = merged(self.freezes)
        object.__setattr__(self, "_frozen", frozen)
        windows = None if self.windows is None else tuple(less(merged(self.windows), frozen))
        object.__setattr__(self, "_open", windows)

    def open_stretches(self, since: datetime, until: datetime) -> tuple[Stretch, ...]:
        """Return when work may be begun within [since, until), in order, without overlaps."""
        if until <= since:
            return ()
        asked = Stretch(begins_at=since, ends_at=until)
        if self._open is None:
            return tuple(less([asked], self._frozen))
        cut = (_cut(each, asked) for each in self._open)
        return tuple(each for each in cut if each is not None)

    def is_open(self, at: datetime) -> bool:
        """Return whether work may be begun at this time."""
        if self._open is None:
            return _holding(self._frozen, at) is None
        return _holding(self._open, at) is not None

    def opens_at(self, at: datetime) -> datetime | None:
        """Return when work may be begun from this time on, at the earliest; None if no window is known to come."""
        if self.is_open(at):
            return at
        if self._open is None:
            frozen = _holding(self._frozen, at)
            return at if frozen is None else frozen.ends_at
        following = _next(self._open, at)
        return None if following is None else following.begins_at

    def closes_at(self, at: datetime) -> datetime | None:
        """Return when the stretch that holds `at` ends; None if it does not end, or none holds."""
        if self._open is None:
            freeze = _next(self._frozen, at) if self.is_open(at) else None
            return None if freeze is None else freeze.begins_at
        holding = _holding(self._open, at)
        return None if holding is None else holding.ends_at

    def why_closed(self, at: datetime) -> str | None:
        """Return in words why no work is begun at this time; None if it is."""
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


def merged(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """Return stretches in order, those that touch or overlap as one under the name of the first."""
    found: list[Stretch] = []
    for each in sorted(stretches):
        if found and each.begins_at <= found[-1].ends_at:
            last = found[-1]
            found[-1] = Stretch(
                begins_at=last.begins_at, ends_at=max(last.ends_at, each.ends_at), name=last.name or each.name
            )
        else:
            found.append(each)
    return tuple(found)


def less(stretches: Iterable[Stretch], taken: Iterable[Stretch]) -> Iterable[Stretch]:
    """Yield what is left of stretches when others are taken away; both in order and without overlaps."""
    away = tuple(taken)
    first = 0
    for each in stretches:
        begins_at = each.begins_at
        while first < len(away) and away[first].ends_at <= begins_at:
            first += 1
        for gap in islice(away, first, None):
            if gap.begins_at >= each.ends_at:
                break
            if gap.begins_at > begins_at:
                yield Stretch(begins_at=begins_at, ends_at=gap.begins_at, name=each.name)
            begins_at = gap.ends_at
        if begins_at < each.ends_at:
            yield Stretch(begins_at=begins_at, ends_at=each.ends_at, name=each.name)


def _cut(stretch: Stretch, to: Stretch) -> Stretch | None:
    begins_at, ends_at = max(stretch.begins_at, to.begins_at), min(stretch.ends_at, to.ends_at)
    return None if ends_at <= begins_at else Stretch(begins_at=begins_at, ends_at=ends_at, name=stretch.name)


def _holding(stretches: tuple[Stretch, ...], at: datetime) -> Stretch | None:
    place = bisect_right(stretches, at, key=lambda each: each.begins_at) - 1
    return stretches[place] if place >= 0 and stretches[place].holds(at) else None


def _next(stretches: tuple[Stretch, ...], at: datetime) -> Stretch | None:
    """Return the first that begins after this time."""
    place = bisect_right(stretches, at, key=lambda each: each.begins_at)
    return stretches[place] if place < len(stretches) else None
