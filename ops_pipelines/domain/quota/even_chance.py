"""Quotas at which all teams are equally likely to queue, within what each must and may have. Pure.

That is where the fewest GPUs are expected to be wanted in vain: could any move gain, the chances would differ. Where an
organisation is at a bound of its own, the chances are equal within it.
"""

import math
from collections.abc import Callable, Sequence

from ops_pipelines.domain.quota.organisations import NO_LIMITS, Group, Limits
from ops_pipelines.domain.quota.queue_chance import QueueChance

_HALVINGS = 53
"""As many as a share of the time has binary digits: what lies between two levels then is one level."""

AtLevel = Callable[[float, Sequence[int]], list[float]]
"""What the teams at these places have at a level; none has more the higher the level is."""


def even_out(
    chances: Sequence[QueueChance],
    *,
    lows: Sequence[float],
    highs: Sequence[float],
    total: float,
    within: Group | None = None,
    limits: Limits = NO_LIMITS,
) -> list[float]:
    """Return quotas between `lows` and `highs` that add up to `total`, or to what is wanted if that is less.

    Where several teams want a GPU equally often, each gets of it in proportion. `lows` that add up to more than `total`
    are returned as they are. `within`: the organisations whose sums stay within `limits`; who is not below it keeps
    his low.
    """

    def at(level: float, places: Sequence[int]) -> list[float]:
        return [max(lows[place], min(highs[place], chances[place].quota_for(level))) for place in places]

    everybody = tuple(range(len(chances)))
    group = within or Group(terms=None, own=everybody, inner=(), below=everybody)
    found = level_out(group, at, total=total, limits=limits)
    return [found.get(place, low) for place, low in enumerate(lows)]


def level_out(
    group: Group, at: AtLevel, *, total: float, limits: Limits = NO_LIMITS, lowest: float = 0.0
) -> dict[int, float]:
    """Return what each team of a group has when all stand at one level, and have `total` together.

    Teams that lie between two levels get of it in proportion. If all have less than `total` at the lowest level, that
    is what they have. A limit of an organisation below is met by a level of its own.
    """
    own_count = len(group.own)

    def parts(level: float, wanted: Sequence[int]) -> list[float]:
        """Return what the parts have at a level: the teams first, then the organisations."""
        own = at(level, [group.own[number] for number in wanted if number < own_count])
        inner = (group.inner[number - own_count] for number in wanted if number >= own_count)
        return [*own, *(_bounded(each, at, level, limits) for each in inner)]

    everyone = range(own_count + len(group.inner))
    more = parts(lowest, everyone)
    found = more
    if math.fsum(more) > total:
        found = _between(parts, more, parts(1.0, everyone), total=total, lowest=lowest)
    quotas = dict(zip(group.own, found[:own_count], strict=True))
    for inner, share in zip(group.inner, found[own_count:], strict=True):
        quotas.update(level_out(inner, at, total=share, limits=limits, lowest=lowest))
    return quotas


def _between(parts: AtLevel, more: list[float], fewer: list[float], *, total: float, lowest: float) -> list[float]:
    """Return what the parts have where they have `total` together; `more` is at the lowest level, `fewer` at 1."""
    low, high = lowest, 1.0
    moving = [number for number, (many, few) in enumerate(zip(more, fewer, strict=True)) if many != few]
    settled = math.fsum(few for many, few in zip(more, fewer, strict=True) if many == few)
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        found = parts(level, moving)
        if settled + math.fsum(found) > total:
            low = level
            for number, amount in zip(moving, found, strict=True):
                more[number] = amount
        else:
            high = level
            for number, amount in zip(moving, found, strict=True):
                fewer[number] = amount
        # Between two levels at which a team has the same, it has the same.
        still = [number for number in moving if more[number] != fewer[number]]
        if len(still) < len(moving):
            settled = math.fsum([settled, *(fewer[number] for number in moving if more[number] == fewer[number])])
            moving = still
        if not moving:
            break
    missing, between = total - math.fsum(fewer), math.fsum(more) - math.fsum(fewer)
    share = min(1.0, max(0.0, missing / between)) if between > 0 else 0.0
    return [few + share * (many - few) for few, many in zip(fewer, more, strict=True)]


def _bounded(group: Group, at: AtLevel, level: float, limits: Limits) -> float:
    own = at(level, group.own)
    inner = (_bounded(each, at, level, limits) for each in group.inner)
    return limits.bound(group, math.fsum([*own, *inner]))
