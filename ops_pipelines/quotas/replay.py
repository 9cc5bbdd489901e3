"""How policies of quotas would have served recorded demand, and the figures by which they are compared.

Four policies: `static` (the quotas that were), `rebalanced` (ours), `daily_optimum` (each day's best quotas, its demand
known: what no policy of constant daily quotas can beat) and `pooled` (no quotas, each hour shared out fairly above the
guarantees). Served in an hour is the smaller of demand and quota; what is not served is not asked for again.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.quotas.demand import DemandDay, fair_demand, queue_chance, remember
from ops_pipelines.quotas.rebalance import rebalance, wished_quotas
from ops_pipelines.quotas.today import Served, Today, debts_against
from ops_pipelines.teams.desk import RebalanceSettings

# -- what a policy of quotas did to recorded demand --


_NOTHING = 1e-9

Quotas = Mapping[TeamName, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstTeam:
    team: TeamName
    unserved_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one policy did over all days."""

    unserved_gpu_hours: float
    guarantee_violation_gpu_hours: float
    """Demand within the guarantee that was not served."""
    churn_ratio_per_day: float
    """GPUs moved, each counted once, over capacity: mean over all days but the first."""
    churn_ratio_max: float
    reversals: int
    """Changes of direction of a team's quota on two consecutive days."""
    jain: float
    """Fairness of served over requested, over the teams that requested anything: 1 is the same share for each."""
    worst_team: WorstTeam | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDay:
    """What a policy served on one day."""

    demand: DemandDay
    quotas: Quotas | None
    """None: it has none."""
    served: Mapping[TeamName, Sequence[float]]


def score(played: Sequence[ServedDay], *, terms: Sequence[Terms], supply: float) -> Score:
    """Return what a policy did over days in their order; `supply` is what its quotas may add up to."""
    guarantees = {each.team: each.guarantee for each in terms}
    wanted, unserved, broken = _sums(played, guarantees)
    ratios = {team: unserved[team] / amount for team, amount in wanted.items() if amount > _NOTHING}
    worst = max(ratios, key=lambda team: (ratios[team], team), default=None)
    churn = [_moved(before, after) / supply for before, after in _pairs(played)]
    return Score(
        unserved_gpu_hours=math.fsum(unserved.values()),
        guarantee_violation_gpu_hours=_small_is_none(math.fsum(broken.values())),
        churn_ratio_per_day=math.fsum(churn) / len(churn) if churn else 0.0,
        churn_ratio_max=max(churn, default=0.0),
        reversals=_reversals(played),
        jain=_jain([1.0 - ratio for ratio in ratios.values()]),
        worst_team=None if worst is None else WorstTeam(team=worst, unserved_ratio=ratios[worst]),
    )


def _sums(
    played: Sequence[ServedDay], guarantees: Mapping[TeamName, float]
) -> tuple[dict[TeamName, float], dict[TeamName, float], dict[TeamName, float]]:
    """Return for each team the GPU-hours that it requested, that were not served, and that were owed and not served."""
    wanted: dict[TeamName, float] = defaultdict(float)
    unserved: dict[TeamName, float] = defaultdict(float)
    broken: dict[TeamName, float] = defaultdict(float)
    for day in played:
        for team, hours in day.demand.hours.items():
            served, owed = day.served[team], guarantees.get(team, 0.0)
            wanted[team] += math.fsum(hours)
            unserved[team] += math.fsum(map(sub, hours, served))
            broken[team] += math.fsum(
                [max(0.0, min(amount, owed) - got) for amount, got in zip(hours, served, strict=True)]
            )
    return wanted, unserved, broken


def _pairs(played: Sequence[ServedDay]) -> list[tuple[Quotas, Quotas]]:
    quotas = [day.quotas for day in played if day.quotas is not None]
    return list(pairwise(quotas))


def _moved(before: Quotas, after: Quotas) -> float:
    return math.fsum(abs(after[team] - before.get(team, 0.0)) for team in after) / 2


def _reversals(played: Sequence[ServedDay]) -> int:
    changes = [{team: after[team] - before.get(team, 0.0) for team in after} for before, after in _pairs(played)]
    return sum(
        earlier[team] * later[team] < 0 and min(abs(earlier[team]), abs(later[team])) > _NOTHING
        for earlier, later in pairwise(changes)
        for team in later
    )


def _jain(shares: Sequence[float]) -> float:
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _small_is_none(amount: float) -> float:
    """Return 0 for what is only rounding: a quota may be the guarantee less its last bit."""
    return amount if amount > 1e-6 else 0.0


# -- how policies of quotas would have served recorded demand --


POLICIES = ("static", "rebalanced", "daily_optimum", "pooled")


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
