"""Weighted max-min fairness: a supply poured over needs until each is full or all stand at one level. Pure, exact.

Nobody gets more than he needs, and nobody's share can grow without that of one who has less, by weight, becoming
smaller. The level is found between the breakpoints `need / weight` in their order, never by trying.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Poured:
    """What each need got, in the order asked."""

    shares: tuple[float, ...]
    level: float
    """GPUs by unit of weight: who needs more got `level * weight`. Infinite where the supply suffices for all."""


def pour(needs: Sequence[float], *, weights: Sequence[float], supply: float) -> Poured:
    """Return the shares: `min(need, level * weight)`, which add up to `min(supply, all needs)`.

    A need may be infinite. Who has weight 0 gets nothing unless the supply suffices for all. Raises ValueError on
    numbers below 0, NaN, and lists of two lengths.
    """
    _check(needs, weights=weights, supply=supply)
    if math.fsum(needs) <= supply:
        return Poured(shares=tuple(needs), level=math.inf)
    level = _level(needs, weights=weights, supply=supply)
    return Poured(
        shares=tuple(_share(need, weight=weight, level=level) for need, weight in zip(needs, weights, strict=True)),
        level=level,
    )


def _level(needs: Sequence[float], *, weights: Sequence[float], supply: float) -> float:
    """Return where the water stands: all who are full below it, all others at it."""
    thirsty = sorted(
        (need / weight, need, weight) for need, weight in zip(needs, weights, strict=True) if weight > 0 and need > 0
    )
    # Summed from the end, so that the weights left over never come from a difference of larger ones.
    tails = list(accumulate(weight for _, _, weight in reversed(thirsty)))[::-1]
    left = supply
    for (breakpoint_, need, _), weight_left in zip(thirsty, tails, strict=True):
        if breakpoint_ * weight_left >= left:
            return left / weight_left
        left -= need
    return math.inf


def _share(need: float, *, weight: float, level: float) -> float:
    return min(need, level * weight) if weight > 0 else 0.0


def _check(needs: Sequence[float], *, weights: Sequence[float], supply: float) -> None:
    if len(needs) != len(weights):
        raise ValueError(f"{len(needs)} needs and {len(weights)} weights; expected one weight for each need")
    for name, numbers in (("need", needs), ("weight", weights), ("supply", (supply,))):
        for number in numbers:
            if not number >= 0:
                raise ValueError(f"a {name} is {number}; expected 0 or more")
    if any(math.isinf(weight) for weight in weights) or math.isinf(supply):
        raise ValueError("a weight or the supply is infinite; expected a number")
