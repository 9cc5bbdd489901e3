"""How policies of quotas would have served recorded demand; each day's quotas know the days before and no more. Pure.

Four policies: `static` (the quotas that were), `rebalanced` (ours), `daily_optimum` (each day's best quotas, its demand
known: what no policy of constant daily quotas can beat) and `pooled` (no quotas, each hour shared out fairly above the
guarantees). Served in an hour is the smaller of demand and quota; what is not served is not asked for again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.proposal import Terms
from ops_pipelines.domain.quota.demand import DemandDay
from ops_pipelines.domain.quota.fair_debt import Served, debts_against
from ops_pipelines.domain.quota.memory import fair_demand, remember
from ops_pipelines.domain.quota.queue_chance import queue_chance
from ops_pipelines.domain.quota.rebalance import rebalance, wished_quotas
from ops_pipelines.domain.quota.replay_score import Quotas, Score, ServedDay, score
from ops_pipelines.domain.quota.today import Today
from ops_pipelines.teams.settings import RebalanceSettings

POLICIES = ("static", "rebalanced", "daily_optimum", "pooled")
_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The scores of all policies over the same demand."""

    policies: Mapping[str, Score]
    gain_ratio: float | None
    """(static - rebalanced) / (static - daily_optimum) of unserved GPU-hours; None where nothing could be gained."""


def replay(
    days: Sequence[DemandDay], *, terms: Sequence[Terms], capacity: Quotas, settings: RebalanceSettings
) -> Replay:
    """Return how each policy serves `days`. `capacity`: the quotas of the first day, which add up to the supply.

    Raises ValueError if there is no day, or a guarantee is above the team's capacity.
    """
    if not days:
        raise ValueError("there is no day to replay; expected hours of at least one local day")
    supply = math.fsum(capacity.values())
    fair = [fair_demand(day, terms=terms, supply=supply) for day in days]
    by_policy: Mapping[str, Sequence[ServedDay]] = {
        "static": [_held(day, capacity) for day in days],
        "rebalanced": [
            _held(day, quotas)
            for day, quotas in zip(days, _rebalanced(days, fair, terms, capacity, settings=settings), strict=True)
        ],
        "daily_optimum": [_held(day, _best(day, terms, supply=supply)) for day in days],
        "pooled": [
            ServedDay(demand=day, quotas=None, served=shared.hours) for day, shared in zip(days, fair, strict=True)
        ],
    }
    scores = {name: score(played, terms=terms, supply=supply) for name, played in by_policy.items()}
    static, ours, best = (scores[name].unserved_gpu_hours for name in POLICIES[:3])
    gain = (static - ours) / (static - best) if static - best > _NOTHING else None
    return Replay(policies=scores, gain_ratio=gain)


def _rebalanced(
    days: Sequence[DemandDay],
    fair: Sequence[DemandDay],
    terms: Sequence[Terms],
    first: Quotas,
    *,
    settings: RebalanceSettings,
) -> Iterator[Quotas]:
    """Yield the quotas of each day, made from the days before it; the first is what was."""
    supply = math.fsum(first.values())
    teams = [each.team for each in terms]
    quotas = {team: first.get(team, 0.0) for team in teams}
    known: list[DemandDay] = []
    wished: list[Quotas] = []
    lately: list[Quotas] = []
    ran_by_day: list[Served] = []
    ran: Quotas = {}
    for day, shared in zip(days, fair, strict=True):
        if known:
            chances = remember(known, teams=teams, settings=settings)
            debts = debts_against(known, served=ran_by_day)
            wished.append(wished_quotas(terms, chances, supply=supply, debts=debts))
            today = Today(
                terms=terms,
                quotas=quotas,
                chances=chances,
                too_large=wished,
                ran_last=ran,
                supply=supply,
                debts=debts,
                lately=lately,
            )
            lately.append(quotas)
            quotas = dict(rebalance(today, settings=settings).quotas)
        yield quotas
        ran = {team: min(hours[-1], quotas.get(team, 0.0)) for team, hours in day.hours.items()}
        known.append(shared)
        ran_by_day.append(_held(day, quotas).served)
        del known[: -settings.window_days], ran_by_day[: -settings.window_days]
        del wished[: -settings.looked_at_days], lately[: -settings.window_days]


def _best(day: DemandDay, terms: Sequence[Terms], *, supply: float) -> Quotas:
    even = {team: queue_chance(hours, weights=[1.0] * len(hours)) for team, hours in day.hours.items()}
    return wished_quotas(terms, even, supply=supply)


def _held(day: DemandDay, quotas: Quotas) -> ServedDay:
    served = {team: [min(amount, quotas.get(team, 0.0)) for amount in hours] for team, hours in day.hours.items()}
    return ServedDay(demand=day, quotas=quotas, served=served)
