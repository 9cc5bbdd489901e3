"""Several resources at once: teams that ask for GPUs, CPUs and memory in proportions of their own. Pure.

Dominant resource fairness (Ghodsi et al., NSDI 2011): a team's share is that of the resource of which it holds the
largest part. The smallest shares, by weight, are raised together until a team has all that it asks for, or a resource
that it needs is used up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.proposal import TeamName

_NOTHING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one team asks for, of each resource; it gets the same part of everything."""

    team: TeamName
    amounts: Mapping[str, float]
    weight: float = 1.0

    def __post_init__(self) -> None:
        for resource, amount in self.amounts.items():
            if not 0 <= amount < math.inf:
                raise ValueError(f"{self.team} asks for {amount} of {resource}; expected a number, 0 or more")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"{self.team} has the weight {self.weight}; expected more than 0")


def share_out(wishes: Sequence[Wish], *, supplies: Mapping[str, float]) -> Mapping[TeamName, float]:
    """Return which part of its wish each team gets, 0..1. Raises ValueError on a resource that nobody supplies."""
    for wish in wishes:
        unknown = sorted(set(wish.amounts) - set(supplies))
        if unknown:
            raise ValueError(f"{wish.team} asks for {', '.join(unknown)}; there are {', '.join(sorted(supplies))}")
    left = dict(supplies)
    parts = {wish.team: 0.0 for wish in wishes}
    paces = {wish.team: _pace(wish, supplies) for wish in wishes}
    rising = [wish for wish in wishes if paces[wish.team] > 0]
    for wish in wishes:
        if not any(wish.amounts.values()):
            parts[wish.team] = 1.0  # It asks for nothing, and has it.
    while rising:
        step = min(_until_full(rising, parts, paces), _until_used_up(rising, left, paces))
        for wish in rising:
            parts[wish.team] = min(1.0, parts[wish.team] + step * paces[wish.team])
            for resource, amount in wish.amounts.items():
                left[resource] -= step * paces[wish.team] * amount
        used_up = {resource for resource, amount in left.items() if amount <= _NOTHING * max(1.0, supplies[resource])}
        rising = [
            wish
            for wish in rising
            if parts[wish.team] < 1.0 - _NOTHING
            and not any(amount > 0 and resource in used_up for resource, amount in wish.amounts.items())
        ]
    return parts


def _pace(wish: Wish, supplies: Mapping[str, float]) -> float:
    """Return which part of its wish a team gets while the level of dominant shares, by weight, rises by 1."""
    if any(amount > 0 and not supplies[resource] for resource, amount in wish.amounts.items()):
        return 0.0
    dominant = max((amount / supplies[resource] for resource, amount in wish.amounts.items() if amount), default=0.0)
    return wish.weight / dominant if dominant else 0.0


def _until_full(rising: Sequence[Wish], parts: Mapping[TeamName, float], paces: Mapping[TeamName, float]) -> float:
    return min((1.0 - parts[wish.team]) / paces[wish.team] for wish in rising)


def _until_used_up(rising: Sequence[Wish], left: Mapping[str, float], paces: Mapping[TeamName, float]) -> float:
    drains = {
        resource: math.fsum(paces[wish.team] * wish.amounts.get(resource, 0.0) for wish in rising) for resource in left
    }
    return min((left[resource] / drain for resource, drain in drains.items() if drain > 0), default=math.inf)
