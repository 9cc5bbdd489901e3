"""How many GPUs of one type there are, and how many of them can be shared out. A value; who counts them is outside."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """GPUs of one type."""

    installed: float
    healthy: float
    """Of these, in service: without nodes in repair and in tomorrow's rollouts."""

    def __post_init__(self) -> None:
        if not 0 <= self.healthy <= self.installed < math.inf:
            raise ValueError(
                f"{self.healthy:g} of {self.installed:g} GPUs are healthy; expected neither below 0, and no more "
                "healthy than installed"
            )
