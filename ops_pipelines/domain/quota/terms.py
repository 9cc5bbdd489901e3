"""What was agreed with a team: guarantee, weight, how much it may borrow and must lend, its cap. Values only.

Numbers are GPUs of one type; a team has one `Terms` for each type. Organisations and projects are teams, too: each
names what it belongs to.
"""

import math
from dataclasses import dataclass
from typing import NewType

_LEAST_WEIGHT = 0.001
"""Smaller ones are slips of units, and lose what is shared out in rounding."""

TeamName = NewType("TeamName", str)
"""The account that pays, as the scheduler names it."""
GpuType = NewType("GpuType", str)
"""As the scheduler names it in `gres/gpu:<type>`; empty where the cluster has one type, or tells none apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one team for one type of GPU."""

    team: TeamName
    guarantee: float
    """It has these whenever it asks for them."""
    weight: float = 1.0
    """How what is left is shared out among those who ask for more."""
    borrow_limit: float = math.inf
    """It gets at most so many beyond its guarantee."""
    lend_limit: float = math.inf
    """Of a guarantee that it does not use, others get at most so many."""
    reserved: float = 0.0
    """So many of its guarantee are never lent, used or not."""
    cap: float = math.inf
    """It never gets more, whatever is free."""
    priority: int = 0
    """Who has more of it is served first: with what is left, and where not even the guarantees can be kept."""
    parent: TeamName | None = None
    """What it belongs to; None: to the cluster itself."""
    unit: float = 1.0
    """Its quotas are whole multiples of so many: a node, or the gang that its jobs take."""

    def __post_init__(self) -> None:
        for name in ("guarantee", "weight", "borrow_limit", "lend_limit", "reserved", "cap"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{self.team}: {name} is {getattr(self, name)}; expected 0 or more")
        if not 1 <= self.unit < math.inf or self.unit % 1:
            raise ValueError(f"{self.team}: unit is {self.unit:g}; expected a whole number of GPUs, 1 or more")
        if math.isinf(self.guarantee) or math.isinf(self.weight):
            raise ValueError(f"{self.team}: guarantee and weight must be numbers, not infinite")
        if 0 < self.weight < _LEAST_WEIGHT:
            raise ValueError(f"{self.team}: weight is {self.weight:g}; expected 0, or at least {_LEAST_WEIGHT:g}")
        for name, amount in (("guarantee", self.guarantee), ("cap", self.cap)):
            if self.unit > 1 and not math.isinf(amount) and amount % self.unit:
                raise ValueError(f"{self.team}: {name} is {amount:g}; expected a whole multiple of unit, {self.unit:g}")
        if self.reserved > self.guarantee or self.guarantee > self.cap:
            raise ValueError(
                f"{self.team}: reserved {self.reserved:g}, guarantee {self.guarantee:g}, cap {self.cap:g}; "
                "expected none larger than the next"
            )

    @property
    def most(self) -> float:
        """The most that it can get."""
        return min(self.cap, self.guarantee + self.borrow_limit)
