"""GPUs that could be given or taken next, in order of how often they are wanted; equally wanted ones together. Pure."""

import heapq
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ops_pipelines.domain.quota.queue_chance import QueueChance

_NOTHING = 1e-9

_Next = tuple[float, int, float]
"""How early a stretch comes, whose it is, and how long it is."""


class _InOrder(ABC):
    """One group after the other: the GPUs of several teams that are wanted in the same share of the time."""

    def __init__(self, chances: Sequence[QueueChance], quotas: Sequence[float], limits: Sequence[float]) -> None:
        """Begin at `quotas`, never beyond `limits`; all have an entry a team."""
        teams = enumerate(zip(chances, quotas, limits, strict=True))
        # Each team's stretches come in their order; merged, they are looked at no further than GPUs move.
        self._waiting = heapq.merge(*(self._stretches(place, *each) for place, each in teams))
        self._first = next(self._waiting, None)
        """Of the group after this one."""
        self._moved: defaultdict[int, float] = defaultdict(float)
        """Of the groups before this one, by the team's place."""
        self._group: defaultdict[int, float] = defaultdict(float)
        """The lengths of this one's stretches."""
        self.wanted_ratio = 0.0
        self.left = 0.0
        """GPUs that are left of the group; 0 when nothing can be moved any more."""
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
            self._moved[place] += length
        self._group.clear()
        following = self._first
        if following is None:
            return
        order = following[0]
        while following is not None and following[0] == order:
            self._group[following[1]] += following[2]
            following = next(self._waiting, None)
        self._first = following
        self.wanted_ratio = abs(order)
        self.left = math.fsum(self._group.values())

    @abstractmethod
    def _stretches(self, place: int, chance: QueueChance, quota: float, limit: float) -> Iterator[_Next]:
        """Yield a team's stretches, the earliest first."""


class Rising(_InOrder):
    """What could be given, the likeliest wanted first."""

    def _stretches(self, place: int, chance: QueueChance, quota: float, limit: float) -> Iterator[_Next]:
        return ((-ratio, place, length) for ratio, length in chance.rising(quota, most=limit))


class Falling(_InOrder):
    """What could be taken, the least wanted first."""

    def _stretches(self, place: int, chance: QueueChance, quota: float, limit: float) -> Iterator[_Next]:
        return ((ratio, place, length) for ratio, length in chance.falling(quota, least=limit))
