"""What of a week's peak lies above a line: how likely, and by how much in the mean. Exact for the points of a peak.

A peak is its quantiles at `LEVELS`: between two of them evenly spread, at both ends a lump of what lies beyond.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from ops_pipelines.domain.capacity.outlook import LEVELS, SupplyPoint, WeekPeak


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
