"""What is remembered of demand: each past hour, clipped to what was fair in it, the newer the heavier. Pure.

Clipping keeps a queue of a thousand GPUs from pulling quota: in an hour a team counts with no more than it would have
got of all GPUs had they been shared out fairly (`allocation`), however much it asked for.
"""

from collections.abc import Mapping, Sequence

from ops_pipelines.domain.quota.allocation import allocate
from ops_pipelines.domain.quota.demand import DemandDay
from ops_pipelines.domain.quota.queue_chance import QueueChance, queue_chance
from ops_pipelines.domain.quota.settings import RebalanceSettings
from ops_pipelines.domain.quota.terms import TeamName, Terms

_NEGLIGIBLE = 1e-4
"""An hour that weighs less than this is left out: it could move no GPU."""


def fair_demand(day: DemandDay, *, terms: Sequence[Terms], supply: float) -> DemandDay:
    """Return the day with each team's hours clipped to its fair share of `supply` in that hour."""
    teams = [each.team for each in terms if each.team in day.hours]
    fair: dict[TeamName, list[float]] = {team: [] for team in teams}
    for hour in range(day.hour_count):
        granted = allocate(terms, asked={team: day.hours[team][hour] for team in teams}, supply=supply)
        for team in teams:
            fair[team].append(granted[team].total)
    return DemandDay(day=day.day, hours=fair, ran_last=day.ran_last)


def remember(
    days: Sequence[DemandDay], *, teams: Sequence[TeamName], settings: RebalanceSettings
) -> Mapping[TeamName, QueueChance]:
    """Return for each team how likely it wants more than a number of GPUs; of `days` the newest is the last."""
    weights: list[float] = []
    amounts: dict[TeamName, list[float]] = {team: [] for team in teams}
    age = 0
    for day in reversed(days[-settings.window_days :]):
        for hour in range(day.hour_count - 1, -1, -1):
            weight = 0.5 ** (age / settings.half_life_hours)
            age += 1
            if weight < _NEGLIGIBLE:
                break
            weights.append(weight)
            for team in teams:
                amounts[team].append(day.hours[team][hour] if team in day.hours else 0.0)
    return {team: _spread(amounts[team], weights, ratio=settings.spread_ratio) for team in teams}


def _spread(amounts: Sequence[float], weights: Sequence[float], *, ratio: float) -> QueueChance:
    if not ratio:
        return queue_chance(amounts, weights=weights)
    factors = (1.0 - ratio, 1.0, 1.0 + ratio)
    return queue_chance(
        [amount * factor for factor in factors for amount in amounts], weights=[*weights, *weights, *weights]
    )
