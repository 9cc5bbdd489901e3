"""A time axis on which a quiet day takes no more room than the busy minute before it: long gaps are cut, and say so.

Between two cuts the axis is even, so that lengths that stand together may be compared. Knows times and pixels only.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

_LARGEST_SHARE = 0.22
"""No quiet stretch takes more of the width than this; of so few that one must, no more than a fifth above its part."""
_ROUNDS = 80
_SHRINK = 0.85
_SHORTEST_SECONDS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A quiet stretch that is drawn shorter than it was."""

    x: float
    """Its middle."""
    lasted: timedelta


class StoryAxis:
    """Places moments between `left` and `left + width`, in their order."""

    def __init__(self, times: Collection[datetime], *, left: float, width: float) -> None:
        """Raises ValueError without a time."""
        self._times = sorted(set(times))
        if not self._times:
            raise ValueError("an axis needs a time; empty never means all")
        self._left, self._width = left, width
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(self._times)]
        longest = _longest_drawn(gaps)
        drawn = [min(gap, longest) for gap in gaps]
        whole = sum(drawn) or 1.0
        self._places = [left]
        for gap in drawn:
            self._places.append(self._places[-1] + gap / whole * width)
        self.cuts = tuple(
            Cut(x=(before + after) / 2, lasted=timedelta(seconds=gap))
            for gap, short, (before, after) in zip(gaps, drawn, pairwise(self._places), strict=True)
            if short < gap
        )

    def across(self, at: datetime) -> float:
        """Return where a moment is; one before the first or after the last time stands at the edge."""
        if at <= self._times[0]:
            return self._left
        if at >= self._times[-1]:
            return self._places[-1]
        place = bisect_right(self._times, at) - 1
        earlier, later = self._times[place], self._times[place + 1]
        share = (at - earlier) / (later - earlier)
        return self._places[place] + share * (self._places[place + 1] - self._places[place])


def _longest_drawn(gaps: Collection[float]) -> float:
    """Return the longest gap that is drawn whole, in seconds."""
    longest = max(gaps, default=0.0)
    busy = sum(gap > _SHORTEST_SECONDS for gap in gaps)
    share = max(_LARGEST_SHARE, 1.2 / busy if busy else 1.0)
    for _ in range(_ROUNDS):
        whole = sum(min(gap, longest) for gap in gaps)
        if longest <= share * whole or longest <= _SHORTEST_SECONDS:
            break
        longest *= _SHRINK
    return longest
