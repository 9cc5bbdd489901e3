"""GPUs that could be given or taken next, in order of how often they are wanted; equally wanted ones together. Pure."""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ops_pipelines.domain.quota.queue_chance import QueueChance, Stretch

_NOTHING = 1e-9


class _InOrder(ABC):
    """One group after the other: the GPUs of several teams that are wanted in the same share of the time."""

    def __init__(self, chances: Sequence[QueueChance], quotas: Sequence[float], limits: Sequence[float]) -> None:
        """Begin at `quotas`, never beyond `limits`; all have an entry a team."""
        self._chances = chances
        self._limits = limits
        self._waiting: list[tuple[float, int, float]] = []
        """How early each team's next stretch comes, whose it is, and how long it is."""
        self._at = list(quotas)
        self._moved: dict[int, float] = {}
        """Of the groups before this one, by the team's place."""
        self._group: dict[int, float] = {}
        """The lengths of this one's stretches."""
        self.wanted_ratio = 0.0
        self.left = 0.0
        """GPUs that are left of the group; 0 when nothing can be moved any more."""
        for place in range(len(quotas)):
            self._wait_for(place)
        self._next_group()

    def move(self, amount: float) -> None:
        """Move so many of the group's GPUs, of each team in proportion: nobody goes first for his name."""
        self.left -= amount
        if self.left <= _NOTHING:
            self.left = 0.0
            self._next_group()

    def changes(self) -> dict[int, float]:
        """Return what was moved so far, by the team's place."""
        whole = math.fsum(self._group.values())
        share = (whole - self.left) / whole if whole else 0.0
        return {
            place: self._moved.get(place, 0.0) + share * self._group.get(place, 0.0)
            for place in self._moved.keys() | self._group.keys()
        }

    def _next_group(self) -> None:
        for place, length in self._group.items():
            self._moved[place] = self._moved.get(place, 0.0) + length
            self._wait_for(place)
        self._group = {}
        while self._waiting and (not self._group or self._waiting[0][0] == self._order_of(self.wanted_ratio)):
            order, place, length = heapq.heappop(self._waiting)
            self.wanted_ratio = self._order_of(order)
            self._group[place] = length
        self.left = math.fsum(self._group.values())

    def _wait_for(self, place: int) -> None:
        stretch = self._stretch(self._chances[place], at=self._at[place], limit=self._limits[place])
        while 0 < stretch.length <= _NOTHING:  # A quota that lies on an amount but for its last bits.
            self._at[place] = self._end_of(stretch)
            stretch = self._stretch(self._chances[place], at=self._at[place], limit=self._limits[place])
        if stretch.length > 0:
            heapq.heappush(self._waiting, (self._order_of(stretch.wanted_ratio), place, stretch.length))
            self._at[place] = self._end_of(stretch)

    @abstractmethod
    def _stretch(self, chance: QueueChance, *, at: float, limit: float) -> Stretch: ...

    @abstractmethod
    def _end_of(self, stretch: Stretch) -> float: ...

    @abstractmethod
    def _order_of(self, ratio: float) -> float:
        """Return what is smaller the earlier it comes; its own inverse."""


class Rising(_InOrder):
    """What could be given, the likeliest wanted first."""

    def _stretch(self, chance: QueueChance, *, at: float, limit: float) -> Stretch:
        found = chance.above(at)
        return Stretch(begins=at, ends=max(at, min(found.ends, limit)), wanted_ratio=found.wanted_ratio)

    def _end_of(self, stretch: Stretch) -> float:
        return stretch.ends

    def _order_of(self, ratio: float) -> float:
        return -ratio


class Falling(_InOrder):
    """What could be taken, the least wanted first."""

    def _stretch(self, chance: QueueChance, *, at: float, limit: float) -> Stretch:
        found = chance.below(at)
        return Stretch(begins=min(at, max(found.begins, limit)), ends=at, wanted_ratio=found.wanted_ratio)

    def _end_of(self, stretch: Stretch) -> float:
        return stretch.begins

    def _order_of(self, ratio: float) -> float:
        return ratio
