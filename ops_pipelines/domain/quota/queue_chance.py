"""How likely a team queues at a quota: the share of its remembered demand that lies above. Pure.

A curve that falls from 1 to 0 in steps; between two steps each further GPU is worth the same: the share of the time in
which it would be used. Moving GPUs from where that is small to where it is large is all that rebalancing does.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

_NOTHING = 1e-9
"""A stretch of no more is none: a quota that lies on an amount but for its last bits."""


Stretch = tuple[float, float]
"""The share of the time in which each of some GPUs is wanted, and how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChance:
    """What is remembered of one team."""

    amounts: tuple[float, ...] = ()
    """GPUs that were wanted, rising, none twice."""
    less: tuple[float, ...] = ()
    """For each amount: the share of the time in which less was wanted; rises from 0."""
    lean: float = 1.0
    """Its chances are times this where they are compared; more than 0, at most 1."""

    def at(self, quota: float) -> float:
        """Return the share of the time in which more than `quota` was wanted."""
        return self._wanted(bisect_right(self.amounts, quota))

    def quota_for(self, ratio: float) -> float:
        """Return the smallest quota at which more is wanted in no more than `ratio` of the time."""
        place = bisect_left(self.less, 1.0 - ratio / self.lean)
        return self.amounts[place - 1] if place else 0.0

    def rising(self, quota: float, *, most: float) -> Iterator[Stretch]:
        """Yield the stretches from `quota` up to `most`, the likeliest wanted first; the last is never wanted."""
        at = quota
        for place in range(bisect_right(self.amounts, quota), len(self.amounts) + 1):
            if at >= most:
                return
            ends = min(self.amounts[place], most) if place < len(self.amounts) else most
            if ends - at > _NOTHING:
                yield self._wanted(place), ends - at
            at = ends

    def falling(self, quota: float, *, least: float) -> Iterator[Stretch]:
        """Yield the stretches from `quota` down to `least`, the least wanted first."""
        at = quota
        for place in range(bisect_left(self.amounts, quota), -1, -1):
            if at <= least:
                return
            begins = max(self.amounts[place - 1] if place else 0.0, least)
            if at - begins > _NOTHING:
                yield self._wanted(place), at - begins
            at = begins

    def unserved(self, quota: float) -> float:
        """Return the GPUs that were wanted beyond `quota`, on average."""
        missing, at = 0.0, quota
        for place in range(bisect_right(self.amounts, quota), len(self.amounts)):
            missing += (self.amounts[place] - at) * self._wanted(place)
            at = self.amounts[place]
        return missing

    def leaned(self, factor: float) -> "QueueChance":
        """Return the curve with each chance times `factor`, which is more than 0 and at most 1."""
        return replace(self, lean=self.lean * factor)

    def _wanted(self, place: int) -> float:
        return (1.0 - self.less[place]) * self.lean if place < len(self.less) else 0.0


def queue_chance(amounts: Sequence[float], *, weights: Sequence[float]) -> QueueChance:
    """Return the curve of amounts with a weight each; none remembered is never wanted."""
    if len(amounts) != len(weights):
        raise ValueError(f"{len(amounts)} amounts and {len(weights)} weights; expected one weight for each amount")
    # A year of days sorts each team's hours each morning: places by a list of floats is what sorts fastest.
    order = sorted(range(len(amounts)), key=amounts.__getitem__)
    ordered = [amounts[place] for place in order]
    sums = [0.0, *accumulate([weights[place] for place in order])]
    together = sums.pop()
    if len(set(ordered)) < len(ordered):
        firsts = [place for place, amount in enumerate(ordered) if not place or amount > ordered[place - 1]]
        ordered, sums = [ordered[place] for place in firsts], [sums[place] for place in firsts]
    return QueueChance(amounts=tuple(ordered), less=tuple([each / together for each in sums] if ordered else ()))
