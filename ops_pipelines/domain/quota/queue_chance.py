"""How likely a team queues at a quota: the share of its remembered demand that lies above. Pure.

A curve that falls from 1 to 0 in steps; between two steps each further GPU is worth the same: the share of the time in
which it would be used. Moving GPUs from where that is small to where it is large is all that rebalancing does.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """GPUs of a quota from `begins` to `ends`, each wanted in the same share of the time."""

    begins: float
    ends: float
    wanted_ratio: float

    @property
    def length(self) -> float:
        return self.ends - self.begins


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChance:
    """What is remembered of one team."""

    amounts: tuple[float, ...] = ()
    """GPUs that were wanted, rising, none twice."""
    less: tuple[float, ...] = ()
    """For each amount: the share of the time in which less was wanted; rises from 0."""

    def at(self, quota: float) -> float:
        """Return the share of the time in which more than `quota` was wanted."""
        return self._wanted(bisect_right(self.amounts, quota))

    def quota_for(self, ratio: float) -> float:
        """Return the smallest quota at which more is wanted in no more than `ratio` of the time."""
        place = bisect_left(self.less, 1.0 - ratio)
        return self.amounts[place - 1] if place else 0.0

    def above(self, quota: float) -> Stretch:
        """Return the stretch that begins at `quota`; the last ends nowhere and is never wanted."""
        place = bisect_right(self.amounts, quota)
        ends = self.amounts[place] if place < len(self.amounts) else math.inf
        return Stretch(begins=quota, ends=ends, wanted_ratio=self._wanted(place))

    def below(self, quota: float) -> Stretch:
        """Return the stretch that ends at `quota`; the first begins at 0."""
        place = bisect_left(self.amounts, quota)
        return Stretch(begins=self.amounts[place - 1] if place else 0.0, ends=quota, wanted_ratio=self._wanted(place))

    def unserved(self, quota: float) -> float:
        """Return the GPUs that were wanted beyond `quota`, on average."""
        missing, at = 0.0, quota
        for place in range(bisect_right(self.amounts, quota), len(self.amounts)):
            missing += (self.amounts[place] - at) * self._wanted(place)
            at = self.amounts[place]
        return missing

    def _wanted(self, place: int) -> float:
        return 1.0 - self.less[place] if place < len(self.less) else 0.0


def queue_chance(amounts: Sequence[float], *, weights: Sequence[float]) -> QueueChance:
    """Return the curve of amounts with a weight each; none remembered is never wanted."""
    ordered = sorted(zip(amounts, weights, strict=True))
    sums = [0.0, *accumulate(weight for _, weight in ordered)]
    firsts = [place for place, (amount, _) in enumerate(ordered) if not place or amount > ordered[place - 1][0]]
    return QueueChance(
        amounts=tuple(ordered[place][0] for place in firsts), less=tuple(sums[place] / sums[-1] for place in firsts)
    )
