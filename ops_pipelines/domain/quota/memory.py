"""What is remembered of demand: each past hour, clipped to what was fair in it, the newer the heavier. Pure.

Clipping keeps a queue of a thousand GPUs from pulling quota: in an hour a team counts with no more than it would have
got of all GPUs had they been shared out fairly (`allocation`), however much it asked for.
"""

from collections.abc import Mapping, Sequence

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.domain.quota.allocation import Sharing
from ops_pipelines.domain.quota.demand import DemandDay
from ops_pipelines.domain.quota.launches import Launches
from ops_pipelines.domain.quota.queue_chance import QueueChance, queue_chance
from ops_pipelines.teams.settings import RebalanceSettings

_NEGLIGIBLE = 1e-4
"""An hour that weighs less than this is left out: it could move no GPU."""


def fair_demand(day: DemandDay, *, terms: Sequence[Terms], supply: float) -> DemandDay:
    """Return the day with each team's hours clipped to its fair share of `supply` in that hour."""
    sharing = Sharing(terms)
    teams = [each.team for each in terms if each.team in day.hours]
    hours = zip(*(day.hours[team] for team in teams), strict=True)
    shares = [sharing.totals(dict(zip(teams, asked, strict=True)), supply=supply) for asked in hours]
    fair = {team: [share[team] for share in shares] for team in teams}
    return DemandDay(day=day.day, hours=fair, ran_last=day.ran_last)


def remember(
    days: Sequence[DemandDay],
    *,
    teams: Sequence[TeamName],
    settings: RebalanceSettings,
    launches: Launches | None = None,
) -> Mapping[TeamName, QueueChance]:
    """Return for each team how likely it wants more than a number of GPUs; of `days` the newest is the last.

    `launches`: what a team's projects will want beyond the past is added to every hour, what they wanted and end is
    taken off.
    """
    newest_first = list(reversed(days[-settings.window_days :]))
    weights = _weights(sum(day.hour_count for day in newest_first), settings.half_life_hours)
    amounts = {team: _newest_first(newest_first, team, most=len(weights)) for team in teams}
    launches = launches or Launches()
    for team in launches.expected.keys() | launches.ended.keys():
        ended, expected = launches.ended.get(team, 0.0), launches.expected.get(team, 0.0)
        if team in amounts:
            amounts[team] = [max(0.0, amount - ended) + expected for amount in amounts[team]]
    return {team: _spread(amounts[team], weights, ratio=settings.spread_ratio) for team in teams}


def _weights(hour_count: int, half_life_hours: float) -> list[float]:
    """Return what each hour weighs, the newest first; negligible ones are left out."""
    found = []
    for age in range(hour_count):
        weight = 0.5 ** (age / half_life_hours)
        if weight < _NEGLIGIBLE:
            break
        found.append(weight)
    return found


def _newest_first(days: Sequence[DemandDay], team: TeamName, *, most: int) -> list[float]:
    """Return what a team wanted in each hour, the newest first; nothing on days of which it has none."""
    found: list[float] = []
    for day in days:
        if len(found) >= most:
            break
        found += reversed(day.hours[team]) if team in day.hours else [0.0] * day.hour_count
    return found[:most]


def _spread(amounts: Sequence[float], weights: Sequence[float], *, ratio: float) -> QueueChance:
    if not ratio:
        return queue_chance(amounts, weights=weights)
    # Sorted once: three runs that rise are merged, which is quicker than sorting thrice as many.
    order = sorted(range(len(amounts)), key=amounts.__getitem__)
    rising, beside = [amounts[place] for place in order], [weights[place] for place in order]
    spread = [amount * factor for factor in (1.0 - ratio, 1.0, 1.0 + ratio) for amount in rising]
    return queue_chance(spread, weights=beside * 3)
