"""What a policy of quotas did to recorded demand, in the figures by which policies are compared. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import sub

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.domain.quota.demand import DemandDay

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
    """Fairness of served over wanted, over the teams that wanted anything: 1 is the same share for each."""
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
    """Return for each team the GPU-hours that it wanted, that were not served, and that were owed and not served."""
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
