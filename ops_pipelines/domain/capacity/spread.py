"""Sums of independent yes-or-no amounts as points, and how many points are made fewer. Numbers alone.

Up to `EXACT_POINTS` different sums all is exact. Beyond, amounts are laid on a lattice of as many steps: each is split
between its two neighbours so that its mean stays, which can only widen the sum: what is expected above any line never
becomes less. What is handed out is at most `KEPT_POINTS`; of those that share a cell all weight moves to the highest.
Both ways it is never made too small; the mean rises by less than one cell, a sixtieth of the range.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

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
