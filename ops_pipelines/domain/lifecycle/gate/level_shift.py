"""By how much levels moved, each node against its own past: the spread of runs, and one shift over all nodes. Pure.

Whether a shift is too large is `levels`' to say.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul
from statistics import median

USUAL_SPREAD_RATIO = 0.03
"""# Assumption: runs of the same work repeat to three percent."""
_WORTH_RUN_COUNT = 10
"""So many runs that assumption is worth beside those that were seen: ten of one node say little of their spread."""
_LEAST_SPREAD_RATIO = 0.005
"""# Assumption: no clock and no program repeats itself better than to half a percent."""
_MOST_TIMES_USUAL = 9.0
"""A node whose runs vary more than this (in variance) against the middle node is broken in its own way."""
_FAR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShift:
    """One node's runs, as the sums that everything is made of."""

    freedom: int
    """Runs before, less the one that their mean takes."""
    squares: float
    """Of what the runs before differ from their mean, as shares of it."""
    after_count: int
    weight: float
    """How many runs against a known past it is worth: 1 / (1 / before + 1 / after)."""
    shift: float
    """Mean after against mean before; 0.0: not moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """By how much levels moved against their own past, and how well that is known."""

    mean: float
    variance: float
    run_count: int
    """Runs since, of all nodes."""
    node_count: int
    weight: float
    """How many runs against a known past it is worth."""


def node_shift(before: Sequence[float], after: Sequence[float]) -> NodeShift | None:
    """Return one node against itself; None where nothing is comparable."""
    before_count, after_count = len(before), len(after)
    if before_count < 2 or not after_count:
        return None
    usual = sum(before) / before_count
    if usual <= 0:
        return None
    return NodeShift(
        freedom=before_count - 1,
        squares=max(0.0, sum(map(mul, before, before)) / usual**2 - before_count),
        after_count=after_count,
        weight=before_count * after_count / (before_count + after_count),
        shift=sum(after) / after_count / usual - 1,
    )


def spread_squared(nodes: Sequence[NodeShift]) -> float:
    """Return the variance from run to run, over all nodes, from the runs before they were touched."""
    if not nodes:
        return USUAL_SPREAD_RATIO**2
    usual = median([each.squares / each.freedom for each in nodes])
    most = _MOST_TIMES_USUAL * max(usual, USUAL_SPREAD_RATIO**2)
    squares = math.fsum(min(each.squares, most * each.freedom) for each in nodes)
    freedom = sum(each.freedom for each in nodes)
    seen = (squares + _WORTH_RUN_COUNT * USUAL_SPREAD_RATIO**2) / (freedom + _WORTH_RUN_COUNT)
    return max(seen, _LEAST_SPREAD_RATIO**2)


def common_shift(nodes: Sequence[NodeShift], *, spread: float, bad_shift: float, usual: float = 0.0) -> Shift | None:
    """Return the shift of all nodes together against `usual`, given the variance from run to run; None of no nodes.

    A node counts at most as one that is clearly bad, so that a single broken one cannot speak for the others.
    """
    if not nodes:
        return None
    most = bad_shift + _FAR * math.sqrt(spread)
    # Exact sums: the order of the nodes must not matter, not even in the last digit.
    weight = math.fsum([each.weight for each in nodes])
    moved = math.fsum([each.weight * _at_most((1 + each.shift) / (1 + usual) - 1, most) for each in nodes])
    return Shift(
        mean=moved / weight,
        variance=spread / weight,
        run_count=sum([each.after_count for each in nodes]),
        node_count=len(nodes),
        weight=weight,
    )


def untouched_shift(nodes: Sequence[NodeShift]) -> Shift | None:
    """Return by how much untouched nodes moved, however far all of them did together; None of no nodes."""
    if not nodes:
        return None
    middle = median([each.shift for each in nodes])
    around = common_shift(nodes, spread=spread_squared(nodes), bad_shift=0.0, usual=middle)
    return around and replace(around, mean=(1 + middle) * (1 + around.mean) - 1)


def _at_most(shift: float, most: float) -> float:
    if -most <= shift <= most:
        return shift
    return math.copysign(most, shift)
