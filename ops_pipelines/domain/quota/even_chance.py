"""Quotas at which all teams are equally likely to queue, within what each must and may have. Pure.

That is where the fewest GPUs are expected to be wanted in vain: could any move gain, the chances would differ.
"""

import math
from collections.abc import Sequence

from ops_pipelines.domain.quota.queue_chance import QueueChance

_HALVINGS = 52
"""As many as a share of the time has binary digits: what lies between two levels then is one level."""


def even_out(
    chances: Sequence[QueueChance], *, lows: Sequence[float], highs: Sequence[float], total: float
) -> list[float]:
    """Return quotas between `lows` and `highs` that add up to `total`, or to what is wanted if that is less.

    Where several teams want a GPU equally often, each gets of it in proportion. `lows` that add up to more than `total`
    are returned as they are.
    """
    full = _at(0.0, chances, lows=lows, highs=highs)
    if math.fsum(full) <= total:
        return full
    low, high = 0.0, 1.0
    more, fewer = full, _at(1.0, chances, lows=lows, highs=highs)
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        found = _at(level, chances, lows=lows, highs=highs)
        if math.fsum(found) > total:
            low, more = level, found
        else:
            high, fewer = level, found
    missing, between = total - math.fsum(fewer), math.fsum(more) - math.fsum(fewer)
    share = min(1.0, max(0.0, missing / between)) if between > 0 else 0.0
    return [few + share * (many - few) for few, many in zip(fewer, more, strict=True)]


def _at(level: float, chances: Sequence[QueueChance], *, lows: Sequence[float], highs: Sequence[float]) -> list[float]:
    return [
        max(low, min(high, chance.quota_for(level))) for chance, low, high in zip(chances, lows, highs, strict=True)
    ]
