"""How likely and by how much the peak of a week exceeds what is usable; sums of independent amounts as points.

Up to `EXACT_POINTS` different sums all is exact. Beyond, amounts are laid on a lattice of as many steps: each is split
between its two neighbours so that its mean stays, which can only widen the sum: what is expected above any line never
becomes less. What is handed out is at most `KEPT_POINTS`; of those that share a cell all weight moves to the highest.
Both ways it is never made too small; the mean rises by less than one cell, a sixtieth of the range.

A peak is its quantiles at `LEVELS`: between two of them evenly spread, at both ends a lump of what lies beyond.

GPU-hours follow a profile of the week: hours near each day's peak, and how high each day's peak is beside the week's.
Hours near a peak count as at the peak; the others count with `rest_ratio`, or not at all where it is not known: then
hours short are told too small where a shortage is deep.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ops_pipelines.capacity.model import LEVELS, SupplyPoint, SupplyWeek, WeekPeak
from ops_pipelines.capacity.plan import ShortWeek

# -- sums of independent yes-or-no amounts as points --


EXACT_POINTS = 512
KEPT_POINTS = 64
_LOWER_TAIL = 1e-4
_UPPER_TAIL = 1e-6

Point = tuple[float, float]
"""An amount and its probability."""


def sum_of_chances(chances: Iterable[Point]) -> tuple[Point, ...]:
    """Return the sum of amounts, each with its probability or else 0, as rising points; the order does not matter.

    Amounts below 0 are allowed: what is taken off.
    """
    known = sorted((amount, chance) for amount, chance in chances if amount != 0 and chance > 0)
    certain = math.fsum(amount for amount, chance in known if chance >= 1)
    open_ones = [(amount, chance) for amount, chance in known if chance < 1]
    exact = _exact(open_ones)
    points = sorted(exact.items()) if exact is not None else _on_a_lattice(open_ones)
    return tuple((amount + certain, weight) for amount, weight in make_fewer(points))


def make_fewer(points: Sequence[Point], *, most: int = KEPT_POINTS) -> tuple[Point, ...]:
    """Return at most so many (4 or more) of the rising points; weight only moves up, and never beyond the highest.

    The tails are one cell each, so that what hardly ever happens makes no cell in between wide.
    """
    if most < 4:
        raise ValueError(f"{most} points were asked for; expected 4 or more")
    if len(points) <= most:
        return tuple(points)
    bottom = _first_beyond(points, _LOWER_TAIL)
    top = len(points) - 1 - _first_beyond(points[::-1], _UPPER_TAIL)
    low, high = points[bottom][0], points[max(top, bottom)][0]
    inner = most - 2
    step = (high - low) / inner
    # Edges are told once, so that a point never falls on both sides of one by rounding.
    edges = [low, *(low + step * number for number in range(1, inner)), high]
    cells: dict[int, list[Point]] = {}
    for amount, weight in points:
        cells.setdefault(bisect_left(edges, amount), []).append((amount, weight))
    return tuple((cell[-1][0], math.fsum(weight for _, weight in cell)) for cell in cells.values())


def _first_beyond(points: Sequence[Point], tail: float) -> int:
    gone = 0.0
    for place, (_, weight) in enumerate(points):
        gone += weight
        if gone > tail:
            return place
    return len(points) - 1


def _exact(chances: Sequence[Point]) -> dict[float, float] | None:
    """Return each possible sum and its probability; None where they are too many."""
    sums = {0.0: 1.0}
    for amount, chance in chances:
        more: dict[float, float] = {total: weight * (1 - chance) for total, weight in sums.items()}
        for total, weight in sums.items():
            more[total + amount] = more.get(total + amount, 0.0) + weight * chance
        if len(more) > EXACT_POINTS:
            return None
        sums = more
    return sums


def _on_a_lattice(chances: Sequence[Point]) -> list[Point]:
    # What is taken off counts from the other end: all of it is gone, and with 1 - chance it is there after all.
    lowest = math.fsum(amount for amount, _ in chances if amount < 0)
    risen = sorted((abs(amount), chance if amount > 0 else 1 - chance) for amount, chance in chances)
    step = math.fsum(amount for amount, _ in risen) / EXACT_POINTS
    weights = [1.0]
    for amount, chance in risen:
        whole = int(amount / step)
        part = min(1.0, max(0.0, amount / step - whole))
        stays, lower, upper = 1 - chance, chance * (1 - part), chance * part
        pad = [0.0] * (whole + 1)
        weights = [
            stays * here + lower * below + upper * further
            for here, below, further in zip(weights + pad, pad[1:] + weights + [0.0], pad + weights, strict=True)
        ]
        while len(weights) > 1 and weights[-1] == 0:
            weights.pop()
    return [(lowest + step * number, weight) for number, weight in enumerate(weights) if weight > 0]


# -- what of a week's peak lies above a line --


class Tail:
    """One week's peak, made ready for being asked many times."""

    __slots__ = ("_beyond", "_knots")

    def __init__(self, peak: WeekPeak) -> None:
        knots = peak.quantiles
        if len(knots) != len(LEVELS) or not all(-math.inf < low <= high < math.inf for low, high in pairwise(knots)):
            raise ValueError(
                f"the peak of the week of {peak.first_day} has {len(knots)} quantiles, or some that fall or "
                f"are no numbers; expected {len(LEVELS)} that never fall"
            )
        self._knots = knots
        beyond = [0.0] * len(knots)
        for place in range(len(knots) - 2, -1, -1):
            width = knots[place + 1] - knots[place]
            chance = 1 - (LEVELS[place] + LEVELS[place + 1]) / 2
            beyond[place] = beyond[place + 1] + width * chance
        self._beyond = beyond

    def share_at_most(self, line: float) -> float:
        """Return the probability that the peak is not above the line."""
        place = bisect_right(self._knots, line)
        if place == 0:
            return 0.0
        if place == len(self._knots):
            return 1.0
        return self._between(place, line)

    def share_of_sum_at_most(self, added: Sequence[tuple[float, float]]) -> Callable[[float], float]:
        """Return `share_at_most` of the peak and an independent amount, given as amounts and their probabilities."""
        knots = self._knots
        # Within each stretch the share is a straight line: told once, because it is asked for very often.
        starts = [(0.0, knots[0], 0.0)]
        for (low, high), (below, above) in zip(pairwise(knots), pairwise(LEVELS), strict=True):
            starts.append((below, low, (above - below) / (high - low) if high > low else 0.0))
        starts.append((1.0, knots[-1], 0.0))

        def share(line: float) -> float:
            total = 0.0
            for amount, weight in added:
                rest = line - amount
                level, knot, rise = starts[bisect_right(knots, rest)]
                total += weight * (level + (rest - knot) * rise)
            return total

        return share

    @property
    def mean(self) -> float:
        """The mean peak."""
        return self._knots[0] + self._beyond[0]

    def chance_above(self, line: float) -> float:
        return 1 - self.share_at_most(line)

    def mean_above(self, line: float) -> float:
        """Return by how much the peak is above the line in the mean, 0 where it is not."""
        knots = self._knots
        place = bisect_right(knots, line)
        if place == len(knots):
            return 0.0
        if place == 0:
            return knots[0] - line + self._beyond[0]
        # From the line to the next knot the probability of being above falls in a straight line.
        chance = 1 - (self._between(place, line) + LEVELS[place]) / 2
        return self._beyond[place] + (knots[place] - line) * chance

    def _between(self, place: int, line: float) -> float:
        low, high = self._knots[place - 1], self._knots[place]
        return LEVELS[place - 1] + (LEVELS[place] - LEVELS[place - 1]) * ((line - low) / (high - low))


def chance_short(tail: Tail, points: Sequence[SupplyPoint], *, demand_ratio: float = 1.0) -> float:
    """Return the probability that so much of the peak exceeds what is usable; both are taken as independent."""
    if demand_ratio <= 0:
        return 0.0
    found = sum(each.probability * tail.chance_above(each.gpus / demand_ratio) for each in points)
    return min(1.0, max(0.0, found))


def mean_short(tail: Tail, points: Sequence[SupplyPoint], *, demand_ratio: float = 1.0) -> float:
    """Return by how much so much of the peak exceeds what is usable, in the mean."""
    if demand_ratio <= 0:
        return 0.0
    return demand_ratio * sum(each.probability * tail.mean_above(each.gpus / demand_ratio) for each in points)


# -- how likely and by how much the peak of a week exceeds what is usable --


_DAYS = 7
_HOURS = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DayProfile:
    """How demand runs within a week, over its peak."""

    near_peak_hours: float
    """Of a day: hours within 10 % of the day's peak."""
    day_ratios: tuple[float, ...] = (1.0,) * _DAYS
    """Each day's peak over the week's; the highest is 1."""
    rest_ratio: float | None = None
    """Demand of the day's other hours over its peak; None: not known, they are counted neither short nor idle."""

    def __post_init__(self) -> None:
        if not 0 < self.near_peak_hours <= _HOURS:
            raise ValueError(f"{self.near_peak_hours:g} hours near the peak of a day; expected more than 0, at most 24")
        if len(self.day_ratios) != _DAYS or max(self.day_ratios) != 1 or min(self.day_ratios) < 0:
            raise ValueError(f"ratios of days are {self.day_ratios}; expected seven of 0 to 1, the highest 1")
        if self.rest_ratio is not None and not 0 <= self.rest_ratio <= 1:
            raise ValueError(f"other hours want {self.rest_ratio:g} of the peak; expected 0 to 1, or nothing")

    @property
    def parts(self) -> tuple[tuple[float, float], ...]:
        """Return hours of the week and their demand over the week's peak; equal ones together, rising."""
        hours: dict[float, float] = {}
        for ratio in self.day_ratios:
            hours[ratio] = hours.get(ratio, 0.0) + self.near_peak_hours
            if self.rest_ratio is not None and self.near_peak_hours < _HOURS:
                rest = ratio * self.rest_ratio
                hours[rest] = hours.get(rest, 0.0) + _HOURS - self.near_peak_hours
        return tuple((hours[ratio], ratio) for ratio in sorted(hours))

    @property
    def counted_hours(self) -> float:
        """Return how many hours of a week are counted at all."""
        return math.fsum(hours for hours, _ in self.parts)


def short_hours(tail: Tail, points: Sequence[SupplyPoint], profile: DayProfile, *, demand_ratio: float = 1.0) -> float:
    """Return the GPU-hours of one week that are wanted and not there, in the mean."""
    return math.fsum(
        hours * mean_short(tail, points, demand_ratio=ratio * demand_ratio) for hours, ratio in profile.parts
    )


def judge_week(peak: WeekPeak, supply: SupplyWeek, profile: DayProfile) -> ShortWeek:
    """Return how short the week is. Raises ValueError if the two are not of the same week."""
    if peak.first_day != supply.first_day:
        raise ValueError(
            f"demand of the week of {peak.first_day} and supply of the week of {supply.first_day}; expected one week"
        )
    tail = Tail(peak)
    return ShortWeek(
        gpu_type=supply.gpu_type,
        first_day=peak.first_day,
        shortage_probability=chance_short(tail, supply.points),
        expected_short_gpus=mean_short(tail, supply.points),
        expected_short_gpu_hours=short_hours(tail, supply.points, profile),
    )


def first_short(is_short: Sequence[bool], *, least_short_weeks: int) -> int | None:
    """Return the first short week of which, with the three after it, so many are short; None: there is none.

    Near the end of the horizon fewer weeks are known: then all that are known must be, at most so many.
    """
    for place, short in enumerate(is_short):
        ahead = is_short[place : place + 4]
        if short and sum(ahead) >= min(least_short_weeks, len(ahead)):
            return place
    return None
