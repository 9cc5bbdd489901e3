"""Stretches of time with a weight -> means and maxima by hour, exact. Numbers only: what is weighed, others say.

Stretches are half-open, in microseconds. Sums of whole GPUs and microseconds stay below 2**53, where floats are exact.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.demand.recorded_rows import Floats, Whole

HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """The hours of a stretch of time: `count` of them from `begin`, in microseconds since 1970."""

    begin: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.count * HOUR


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretches:
    """A row each: in `group` something weighs `weight` within [begin, end)."""

    group: Whole
    weight: Floats
    begin: Whole
    end: Whole

    def within(self, hours: Hours) -> "Stretches":
        """Return the parts that lie in the hours, from their begin on."""
        begin, end = np.maximum(self.begin, hours.begin), np.minimum(self.end, hours.end)
        keep = begin < end
        return Stretches(
            group=self.group[keep],
            weight=self.weight[keep],
            begin=begin[keep] - hours.begin,
            end=end[keep] - hours.begin,
        )

    def take(self, places: NDArray[np.bool_]) -> "Stretches":
        """Return these rows."""
        return Stretches(
            group=self.group[places], weight=self.weight[places], begin=self.begin[places], end=self.end[places]
        )

    def counted(self) -> "Stretches":
        """Return the same stretches, each with a weight of 1."""
        return replace(self, weight=np.ones(len(self.weight)))

    def amounts(self, hours: Hours) -> Floats:
        """Return weight times hours of each row, as far as it lies within."""
        lasted = np.minimum(self.end, hours.end) - np.maximum(self.begin, hours.begin)
        found: Floats = np.where(lasted > 0, lasted, 0) * self.weight / HOUR
        return found


def means(stretches: Stretches, *, hours: Hours, group_count: int) -> Floats:
    """Return the time-weighted mean by group and hour."""
    inside = stretches.within(hours)
    first, last = inside.begin // HOUR, inside.end // HOUR
    # From its first hour on a stretch weighs whole hours, up to that in which it ends; what is too much is taken off.
    whole = _levels(inside, first=first, last=last, hours=hours, group_count=group_count) * HOUR
    ends = _summed(inside.group, first, -inside.weight * (inside.begin - first * HOUR), hours, group_count)
    ends += _summed(inside.group, last, inside.weight * (inside.end - last * HOUR), hours, group_count)
    found: Floats = np.maximum((whole + ends)[:, : hours.count], 0.0) / HOUR
    return found


def at_the_end(stretches: Stretches, *, hours: Hours, group_count: int) -> Floats:
    """Return by group and hour what weighs in the hour's last moment."""
    inside = stretches.within(hours)
    levels = _levels(inside, first=inside.begin // HOUR, last=inside.end // HOUR, hours=hours, group_count=group_count)
    return np.maximum(levels[:, : hours.count], 0.0)


def maxima(stretches: Stretches, *, hours: Hours, group_count: int) -> Floats:
    """Return by group and hour the most that weighs at one time."""
    inside = stretches.within(hours)
    boundaries = np.arange(hours.count) * HOUR
    group = np.concatenate((inside.group, inside.group, np.repeat(np.arange(group_count), hours.count)))
    time = np.concatenate((inside.begin, inside.end, np.tile(boundaries, group_count)))
    weight = np.concatenate((inside.weight, -inside.weight, np.zeros(group_count * hours.count)))
    order = np.lexsort((time, group))
    group, time, weight = group[order], time[order], weight[order]
    level = np.round(np.cumsum(weight), 9)
    # What begins and ends at one moment is never there together: only the level after all of a moment counts.
    is_last = np.append((np.diff(group) != 0) | (np.diff(time) != 0), True)
    counts = is_last & (time < hours.count * HOUR)
    cell = group[counts] * hours.count + time[counts] // HOUR
    # Each cell has the event of its beginning, so that none is empty.
    starts = np.flatnonzero(np.append(True, np.diff(cell) != 0)) if len(cell) else np.zeros(0, np.int64)
    highest = np.maximum.reduceat(level[counts], starts) if len(cell) else np.zeros(0)
    return np.maximum(highest, 0.0).reshape(group_count, hours.count)


def _levels(inside: Stretches, *, first: Whole, last: Whole, hours: Hours, group_count: int) -> Floats:
    steps = _summed(inside.group, first, inside.weight, hours, group_count)
    steps -= _summed(inside.group, last, inside.weight, hours, group_count)
    return np.round(np.cumsum(steps, axis=1), 9).astype(np.float64)


def _summed(group: Whole, hour: Whole, weight: Floats, hours: Hours, group_count: int) -> Floats:
    """Return sums of weights by group and hour, with one hour more for what ends with the last."""
    width = hours.count + 1
    sums = np.bincount(group * width + hour, weights=weight, minlength=group_count * width)
    return sums.astype(np.float64).reshape(group_count, width)
