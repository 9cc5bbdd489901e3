"""One resource's believed rows -> its series: days without holes, holidays, sums of GPUs, caps, notes.

`peak_history` asks this for each resource. Days are consecutive from the first that any series has to `until`, or to
the last that is known where the resource is silent for longer than a gap is carried.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from ops_pipelines.capacity.believed_rows import BelievedRows, SeriesOfResource, measure
from ops_pipelines.capacity.forecast.windows import (
    LONGEST_CARRIED_DAYS,
    DailyPeaks,
    Flags,
    Floats,
    Places,
    edges,
    fill,
    look_renamed,
)
from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.core.proposal import GpuType

_WEEK = 7
_RECENT_DAYS = 28
_ROUNDING = 1e-6
_LEVELS = frozenset({Resource.STORAGE_BYTES, Resource.GPUS_OUT, Resource.GPUS_STRANDED})
"""What a holiday changes nothing of: bytes stay where they are, and what is broken is so on any day."""


class SumsAlone(ValueError):
    """All teams together are reported, and no team: says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is the same for all resources."""

    until: date
    """The first day that is not known."""
    holidays: frozenset[date]


def read_series(resource: Resource, rows: BelievedRows, asked: Asked) -> SeriesOfResource | None:
    """Return the series of one resource; None where no row of it is believed."""
    places = [place for place, key in enumerate(rows.keys) if key.resource == resource.value]
    if not places:
        return None
    return _Reading(resource, rows, places, asked).close()


class _Reading:
    """Columns of one resource while they are treated."""

    def __init__(self, resource: Resource, rows: BelievedRows, places: Sequence[int], asked: Asked) -> None:
        self._resource = resource
        self._asked = asked
        is_own = np.isin(rows.series, places)
        column = np.full(len(rows.keys), -1, dtype=np.int64)
        column[list(places)] = np.arange(len(places))
        self._keys = [rows.keys[place] for place in places]
        self._first = int(rows.day[is_own].min())
        day_count = asked.until.toordinal() - self._first
        self._at: tuple[Places, Places] = (rows.day[is_own] - self._first, column[rows.series[is_own]])
        self._tables = {name: self._table(values[is_own], day_count) for name, values in rows.columns.items()}
        self._notes: dict[SeriesKey, list[str]] = defaultdict(list)

    def _table(self, values: Floats, day_count: int) -> Floats:
        table = np.full((day_count, len(self._keys)), np.nan)
        table[self._at] = values
        return table

    def close(self) -> SeriesOfResource:
        is_sum = np.array([self._resource is Resource.GPUS and not key.name for key in self._keys], dtype=bool)
        peaks = self._tables["peak"]
        told_until = int(np.flatnonzero(~np.isnan(peaks).all(axis=1)).max()) + 1
        silent = len(peaks) - told_until
        own = [place for place in range(len(self._keys)) if not is_sum[place]]
        if not own:
            raise SumsAlone(
                "daily_peaks has rows of all teams together and of no team; expected rows of teams beside them: "
                "materialise daily_peaks again"
            )
        keys = tuple(self._keys[place] for place in own)
        days = [date.fromordinal(self._first + number) for number in range(len(peaks))]
        if silent > LONGEST_CARRIED_DAYS:
            self._say(keys, f"nothing is known from {days[told_until]} on; the series ends there")
            peaks, days = peaks[:told_until], days[:told_until]
        filled, done = fill(
            peaks[:, own], days, no_day="no day is known", carries_last=self._resource is not Resource.GPUS
        )
        for each in done:
            self._notes[keys[each.column]].append(each.words)
        if 0 < silent <= LONGEST_CARRIED_DAYS:
            last = int(np.flatnonzero(~np.isnan(filled).all(axis=1)).max()) + 1
            filled[last:] = filled[last - 1]
            some = _days(np.arange(len(peaks)) >= told_until)
            self._say(keys, f"{some} from {days[told_until]} on carried: nothing is known of them")
        first, after = edges(filled)
        filled, days = filled[first:after], days[first:after]
        sums, members, summed = self._sums(keys, filled, is_sum=is_sum, first=first, days=days)
        filled = self._without_holidays(filled, keys, days)
        if summed is not None:
            summed = self._without_holidays(summed, sums, days)
        self._hint_renamed(filled, keys)
        found = SeriesOfResource(
            keys=keys,
            series=DailyPeaks(
                names=tuple(f"{key.gpu_type}/{key.name}" for key in keys),
                first_day=days[0],
                gpus=filled,
                cap_gpus=self._caps(own),
            ),
            sums=sums,
            members=members,
            summed=summed,
        )
        measure(found, self._resource, self._keys, self._tables, notes=self._notes)
        for key, words in self._notes.items():
            found.notes[key] += words
        return found

    def _say(self, keys: Iterable[SeriesKey], words: str) -> None:
        for key in keys:
            self._notes[key].append(words)

    # -- sums --

    def _sums(
        self, keys: Sequence[SeriesKey], filled: Floats, *, is_sum: Flags, first: int, days: Sequence[date]
    ) -> tuple[tuple[SeriesKey, ...], tuple[tuple[int, ...], ...], Floats | None]:
        """Return the sums of GPUs by type, as recorded; days without are taken from their members, with a note."""
        if self._resource is not Resource.GPUS:
            return (), (), None
        types: dict[GpuType, list[int]] = {}
        for place, key in enumerate(keys):
            types.setdefault(key.gpu_type, []).append(place)
        for key, it_is in zip(self._keys, is_sum.tolist(), strict=True):
            if it_is and key.gpu_type not in types:
                self._notes[key].append("no team of this type is known; its sum is not forecast")
        sums = tuple(SeriesKey(resource=self._resource.value, gpu_type=each) for each in types)
        columns = []
        for key, members in zip(sums, types.values(), strict=True):
            own = filled[:, members]
            nobody: Flags = np.asarray(np.isnan(own).all(axis=1))
            recorded = np.full(len(filled), np.nan)
            if key in self._keys:
                recorded[:] = self._tables["peak"][first : first + len(filled), self._keys.index(key)]
            columns.append(self._with_members(key, recorded, own, nobody=nobody, days=days))
        return sums, tuple(tuple(each) for each in types.values()), np.stack(columns, axis=1)

    def _with_members(
        self, key: SeriesKey, recorded: Floats, own: Floats, *, nobody: Flags, days: Sequence[date]
    ) -> Floats:
        """Return a sum's days. One that its members were carried over is carried, too: a sum of peaks is too high."""
        told = ~np.isnan(recorded)
        added = np.where(np.isnan(own), 0.0, own).sum(axis=1)
        found = np.where(told, recorded, added)
        # Of one team that wants anything the sum is exact.
        is_open = ~told & ((own > 0).sum(axis=1) > 1)
        is_carried = np.zeros(len(found), dtype=bool)
        for place in np.flatnonzero(is_open).tolist():
            if place and np.array_equal(own[place], own[place - 1], equal_nan=True):
                found[place], is_carried[place] = found[place - 1], True
        is_added = is_open & ~is_carried
        # A sum of peaks is never below the peak of the sum. Less than a week may be days that were carried.
        is_above = told & ~nobody & (recorded > added * (1 + _ROUNDING) + _ROUNDING)
        if is_above[-_RECENT_DAYS:].sum() >= _WEEK:
            when = days[len(days) - min(len(days), _RECENT_DAYS) + int(np.argmax(is_above[-_RECENT_DAYS:]))]
            self._notes[key].append(
                f"{_days(is_above[-_RECENT_DAYS:])} from {when} on all teams together requested more than the known "
                "teams' peaks add up to: rows of teams are missing, and the forecast is held to the known ones, "
                "which is too low"
            )
        if is_added.any():
            when = days[int(np.argmax(is_added))]
            self._notes[key].append(
                f"{_days(is_added)} from {when} on taken as the sum of the teams' peaks, which is too high rather than "
                "too low: no row of all teams together reports them"
            )
        if is_carried.any():
            when = days[int(np.argmax(is_carried))]
            self._notes[key].append(f"{_days(is_carried)} from {when} on carried from the day before")
        found[nobody] = np.nan
        return found

    # -- treatments --

    def _without_holidays(self, peaks: Floats, keys: Sequence[SeriesKey], days: Sequence[date]) -> Floats:
        """Return days with each holiday as the same weekday of the week before; one that was higher stays as it was."""
        if self._resource in _LEVELS:
            return peaks
        found = peaks.copy()
        replaced: dict[SeriesKey, list[date]] = defaultdict(list)
        for place, day in enumerate(days):
            if day not in self._asked.holidays or place < _WEEK:
                continue
            # A holiday never hides a peak: anyone who stood at the limit on it needs the room on other days, too.
            is_lower = found[place] < found[place - _WEEK]
            for column in np.flatnonzero(is_lower).tolist():
                replaced[keys[column]].append(day)
            found[place] = np.where(is_lower, found[place - _WEEK], found[place])
        for key, lowered in replaced.items():
            named = ", ".join(map(str, lowered))
            some = "holiday" if len(lowered) == 1 else "holidays"
            self._notes[key].append(f"{some} {named} taken as the same weekday a week before")
        return found

    def _hint_renamed(self, filled: Floats, keys: Sequence[SeriesKey]) -> None:
        if self._resource is not Resource.GPUS:
            return
        for pair in look_renamed(filled):
            old, new = keys[pair.old], keys[pair.new]
            if old.gpu_type == new.gpu_type:
                self._notes[new].append(
                    f"begins where {old.name} ends, and is of its size: if it is the same team, its demand continues"
                )

    # -- what is beside the days --

    def _caps(self, own: Sequence[int]) -> Floats:
        """Return what holds each team by its newest row; other resources have room to be bought, and no cap."""
        if self._resource is not Resource.GPUS:
            return np.full(len(own), np.inf)
        limit, peak = self._tables["limit"], self._tables["peak"]
        newest = [int(np.flatnonzero(~np.isnan(peak[:, place])).max()) for place in own]
        caps = np.array([limit[day, place] for day, place in zip(newest, own, strict=True)])
        return np.where(np.isnan(caps), np.inf, caps)


def _days(is_it: Flags) -> str:
    count = int(is_it.sum())
    return "1 day" if count == 1 else f"{count} days"
