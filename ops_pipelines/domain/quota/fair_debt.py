"""What a team had beyond its fair share of late, or lent to others: fair-share debt. Pure.

In each hour a team's fair share is what it would have got of all GPUs had they been shared out by guarantee and weight
(`allocation`). Debt makes two things easier for who lent: of what no team is expected to want it gets more, and of two
that want a GPU nearly as often it is the one who gets it. It takes nothing of a guarantee.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.domain.quota.demand import DemandDay
from ops_pipelines.domain.quota.memory import fair_demand

_LEAN_RATIO = 0.02
"""Chances that differ by no more than this share of themselves count as equal: of two such teams the one that lent gets
the GPU. # Assumption: less than the dead band, so that debt alone moves no quota."""
_LEAST = 1.0
"""GPUs: who is due less is measured by this much."""

Served = Mapping[TeamName, Sequence[float]]
"""What each team ran, in each hour of a day."""


def debts_of(
    days: Sequence[DemandDay], *, served: Sequence[Served], terms: Sequence[Terms], supply: float
) -> Mapping[TeamName, float]:
    """Return each team's debt in GPUs, on average of all hours of `days`; below 0: it lent.

    `served` has an entry a day: what each team ran in each hour. `terms` are of all, organisations, too.
    """
    return debts_against([fair_demand(day, terms=terms, supply=supply) for day in days], served=served)


def debts_against(fair: Sequence[DemandDay], *, served: Sequence[Served]) -> Mapping[TeamName, float]:
    """Return the debts where the fair shares of each day (`memory.fair_demand`) are known already."""
    hours = sum(day.hour_count for day in fair)
    beyond: dict[TeamName, list[float]] = defaultdict(list)
    for day, ran in zip(fair, served, strict=True):
        for team, shares in day.hours.items():
            got = ran.get(team)
            beyond[team].append((math.fsum(got) if got is not None else 0.0) - math.fsum(shares))
    return {team: math.fsum(amounts) / hours for team, amounts in beyond.items()} if hours else {}


def standings_of(debts: Mapping[TeamName, float], teams: Sequence[Terms], *, supply: float) -> Mapping[TeamName, float]:
    """Return where each team stands, from -1 (it lent as much as its share by weight) to 1 (it had as much beyond)."""
    weights = math.fsum(each.weight for each in teams)
    found: dict[TeamName, float] = {}
    for each in teams:
        share = supply * each.weight / weights if weights else 0.0
        found[each.team] = max(-1.0, min(1.0, debts.get(each.team, 0.0) / max(_LEAST, share)))
    return found


def weight_factor(standing: float) -> float:
    """Return by what a weight is multiplied where the rest is shared out: from 1.41, who lent, to 0.71.

    So no team comes before one that has twice its weight, or more.
    """
    return math.exp2(-standing / 2.0)


def chance_factor(standing: float) -> float:
    """Return by what chances are multiplied before they are compared: 1 for who lent, a little less for who had."""
    return 1.0 - _LEAN_RATIO * (1.0 + standing) / 2.0
