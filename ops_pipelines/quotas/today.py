"""What one day's quotas are moved from: debt, turns, and the GPUs there are.

A quota turns when it rises after it fell, or the other way round; what is no more than the dead band is no change. In
`looked_at_days` it may turn twice; then it keeps its direction, or stays.

In each hour a team's fair share is what it would have got of all GPUs had they been shared out by guarantee and weight
(`allocation`). Debt makes two things easier for who lent: it gets more of what no team is expected to request, and of
two that request a GPU nearly as often it is the one who gets it. It takes nothing of a guarantee. How quotas are moved
is `rebalance`'s.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise

from ops_pipelines.core.proposal import GpuType, QuotaProposal, TeamName, Terms
from ops_pipelines.quotas.demand import DemandDay, QueueChance
from ops_pipelines.teams.desk import RebalanceSettings

# -- how many GPUs of one type there are --


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """GPUs of one type."""

    installed: float
    healthy: float
    """Of these, in service: without nodes in repair and in tomorrow's rollouts."""

    def __post_init__(self) -> None:
        if not 0 <= self.healthy <= self.installed < math.inf:
            raise ValueError(
                f"{self.healthy:g} of {self.installed:g} GPUs are healthy; expected neither below 0, and no more "
                "healthy than installed"
            )


# -- who turned too often of late --


_MOST_TURNS = 2


def direction_of(before: float, after: float, *, unit: float, settings: RebalanceSettings) -> int:
    """Return 1 where a quota rises, -1 where it falls, 0 within the dead band: a unit, or the least gain's share."""
    band = max(unit, settings.least_gain_ratio * before) + 1e-9
    return (after - before > band) - (before - after > band)


def last_direction(directions: Sequence[int]) -> int:
    """Return the newest direction that is none of 0; 0 where there is none."""
    return next((each for each in reversed(directions) if each), 0)


def turn_count(directions: Sequence[int]) -> int:
    """Return how often it turned; days without a change are passed over."""
    return sum(one != two for one, two in pairwise([each for each in directions if each]))


def quotas_lately(
    day: date,
    earlier: Sequence[QuotaProposal],
    *,
    gpu_type: GpuType,
    now: Mapping[TeamName, float],
    settings: RebalanceSettings,
) -> tuple[Mapping[TeamName, float], ...]:
    """Return the quotas before the change of each of the last days, the newest last; `now` is what holds today.

    `earlier`: what was applied, at most one proposal a day. A day without one changed nothing: most days set nothing.
    """
    by_day = {each.day: each for each in earlier}
    held = dict(now)
    found: list[Mapping[TeamName, float]] = []
    for back in range(1, settings.looked_at_days + 1):
        applied = by_day.get(day - timedelta(days=back))
        lines = () if applied is None else applied.lines
        held |= {line.team: line.before for line in lines if line.gpu_type == gpu_type and line.team in held}
        found.append(dict(held))
    return tuple(reversed(found))


def held_direction(
    team: TeamName, quotas: Sequence[Mapping[TeamName, float]], *, unit: float, settings: RebalanceSettings
) -> int:
    """Return the one direction in which a team may still go; 0: it may go either way.

    `quotas` are those before each of the last days (`quotas_lately`), and last of all what holds now.
    """
    known = [each[team] for each in quotas if team in each]
    directions = [direction_of(before, after, unit=unit, settings=settings) for before, after in pairwise(known)][
        -settings.looked_at_days :
    ]
    return last_direction(directions) if turn_count(directions) >= _MOST_TURNS else 0


# -- what a team had beyond its fair share of late, or lent to others --


_LEAN_RATIO = 0.02
"""Chances that differ by no more than this share of themselves count as equal: of two such teams the one that lent gets
the GPU. # Assumption: less than the dead band, so that debt alone moves no quota."""
_LEAST = 1.0
"""GPUs: who is due less is measured by this much."""

Served = Mapping[TeamName, Sequence[float]]
"""What each team ran, in each hour of a day."""


def debts_against(fair: Sequence[DemandDay], *, served: Sequence[Served]) -> Mapping[TeamName, float]:
    """Return the debts where the fair shares of each day (`fair_demand`) are known already."""
    hours = sum(day.hour_count for day in fair)
    beyond: dict[TeamName, list[float]] = defaultdict(list)
    for day, ran in zip(fair, served, strict=True):
        for team, shares in day.hours.items():
            got = ran.get(team)
            beyond[team].append((math.fsum(got) if got is not None else 0.0) - math.fsum(shares))
    return {team: math.fsum(amounts) / hours for team, amounts in beyond.items()} if hours else {}


def standings_of(debts: Mapping[TeamName, float], teams: Sequence[Terms], *, supply: float) -> Mapping[TeamName, float]:
    """Return where each team is, from -1 (it lent as much as its share by weight) to 1 (it had as much beyond)."""
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


# -- what quotas of one type of GPU are moved from on one day --


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """What quotas are moved from."""

    terms: Sequence[Terms]
    """Of all, organisations, too: a team with teams below it gets no quota itself, its terms bind their sum."""
    quotas: Mapping[TeamName, float]
    """In force now, of teams without teams of their own; who is not named has none."""
    chances: Mapping[TeamName, QueueChance]
    """What is remembered of demand, up to now."""
    too_large: Sequence[Mapping[TeamName, float]]
    """For each of the last days, the newest last, what demand up to then would have had quotas be (`wished_quotas`)."""
    ran_last: Mapping[TeamName, float] = field(default_factory=dict)
    """In the last full hour."""
    supply: float
    """Healthy capacity that quotas may add up to."""
    strangers: frozenset[TeamName] = frozenset()
    """Teams in demand with which nothing was agreed: they get what nobody else is expected to want, and no more."""
    debts: Mapping[TeamName, float] = field(default_factory=dict)
    """What each had beyond its fair share, on average of the window (`debts_against`); below 0: it lent."""
    gangs: Mapping[TeamName, int] = field(default_factory=dict)
    """GPUs of the largest job that a team runs, or waits with, regularly."""
    launches: Mapping[TeamName, str] = field(default_factory=dict)
    """Projects that begin or end, in words (`launches.launches_on`); the chances have them already."""
    lately: Sequence[Mapping[TeamName, float]] = ()
    """Quotas before the change of each of the last days, the newest last: who turned twice does not turn again."""
    frozen_because: str = ""
    """Why no quota moves; empty: they may. What was agreed is kept all the same."""
    returns_to_contract: str = ""
    """Why quotas roll back toward what was agreed, such as the freeze that ended; empty: they follow demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLine:
    """One team's quota before and after, with what decided it."""

    terms: Terms
    before: float
    after: float
    floor: float
    """What it keeps in any case: its guarantee, and what it ran in the last full hour."""
    is_agreed_too_large: bool
    """Whether enough of the last days found its quota too large."""
    wanted_before: float
    """The share of the time in which it is expected to want more than `before`."""
    wanted_after: float
    owed: float | None = None
    """What is kept of its guarantee where not all guarantees fit into the supply; None: all of it."""
    gang: int = 0
    """What its jobs take, where the quota was rounded up to it; 0: it was not."""
    agreed: float | None = None
    """Where quotas roll back toward what was agreed: that; None: they follow demand."""
    bound_by: TeamName | None = None
    """The organisation whose cap keeps it from more; None: there is none, or it is not at its cap."""
    is_held: bool = False
    """Whether it turned twice of late, and therefore does not turn again."""

    @property
    def team(self) -> TeamName:
        return self.terms.team


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """What came of one day for one type of GPU."""

    lines: tuple[QuotaLine, ...]
    """Of teams without teams of their own."""
    supply: float
    moved: float
    """GPUs, each counted once."""
    step_cap: float
    """How many might have moved."""
    frozen_because: str = ""
    returns_to_contract: str = ""

    @property
    def quotas(self) -> Mapping[TeamName, float]:
        return {line.team: line.after for line in self.lines}
