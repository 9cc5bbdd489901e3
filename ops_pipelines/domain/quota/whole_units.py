"""Quotas in whole nodes, or whole gangs: nobody can use the half of what his jobs ask for. Pure.

Rounded by the largest remainder, so that nothing is lost on the way but what makes no unit.
"""

import math
from collections.abc import Mapping

from ops_pipelines.domain.quota.terms import TeamName

_NEARLY = 1e-9


def in_whole_units(
    quotas: Mapping[TeamName, float], *, unit: float, least: Mapping[TeamName, float], supply: float
) -> Mapping[TeamName, float]:
    """Return each quota as a multiple of `unit` GPUs, none below `least`, which is met in whole units, too.

    What the rounding down leaves goes to the largest remainders, as long as whole units are left of `supply`; ties go
    by name. Raises ValueError if the least of all, rounded up, does not fit.
    """
    if not unit > 0:
        raise ValueError(f"the unit is {unit} GPUs; expected more than 0")
    units = {
        team: max(math.floor(quota / unit + _NEARLY), math.ceil(least.get(team, 0.0) / unit - _NEARLY))
        for team, quota in quotas.items()
    }
    left = math.floor(supply / unit + _NEARLY) - sum(units.values())
    units = _reduced(units, quotas, unit=unit, least=least, excess=-left) if left < 0 else units
    wanting = sorted(
        (team for team, quota in quotas.items() if quota / unit > units[team] + _NEARLY),
        key=lambda team: (units[team] - quotas[team] / unit, team),
    )
    for team in wanting[: max(0, left)]:
        units[team] += 1
    return {team: count * unit for team, count in units.items()}


def _reduced(
    units: Mapping[TeamName, int],
    quotas: Mapping[TeamName, float],
    *,
    unit: float,
    least: Mapping[TeamName, float],
    excess: int,
) -> dict[TeamName, int]:
    """Return the units without the excess that rounding up made: from who lies highest above his quota."""
    found = dict(units)
    for _ in range(excess):
        givers = [team for team in found if found[team] > math.ceil(least.get(team, 0.0) / unit - _NEARLY)]
        if not givers:
            needed = sum(found.values()) * unit
            raise ValueError(
                f"guarantees in whole units of {unit:g} GPUs need {needed:g}, {excess * unit:g} more than there are; "
                "lower a guarantee, or round to smaller units"
            )
        giver = max(givers, key=lambda team: (found[team] - quotas[team] / unit, found[team], team))
        found[giver] -= 1
    return found
