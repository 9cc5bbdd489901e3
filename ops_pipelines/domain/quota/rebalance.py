"""Tomorrow's quotas of one type of GPU from today's: which GPUs move, from whom to whom. Pure.

A GPU moves from where it is least likely to be wanted to where it is most likely, until no move gains enough or the
day's step is used up. What was agreed comes first: nobody is left below a guarantee, above a cap, or below what ran in
the last full hour; nobody gives before enough days agree. What is lost by broken nodes is taken before anything moves.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ops_pipelines.domain.quota.even_chance import even_out
from ops_pipelines.domain.quota.moves import Falling, Rising
from ops_pipelines.domain.quota.queue_chance import QueueChance
from ops_pipelines.domain.quota.settings import RebalanceSettings
from ops_pipelines.domain.quota.terms import TeamName, Terms
from ops_pipelines.domain.quota.water_filling import pour

_NOTHING = 1e-9


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

    @property
    def team(self) -> TeamName:
        return self.terms.team


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """What came of one day for one type of GPU."""

    lines: tuple[QuotaLine, ...]
    supply: float
    moved: float
    """GPUs, each counted once."""
    step_cap: float
    """How many might have moved."""

    @property
    def quotas(self) -> Mapping[TeamName, float]:
        return {line.team: line.after for line in self.lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """What quotas are moved from. All numbers in GPUs of one type."""

    terms: Sequence[Terms]
    """Of those who get quotas: teams without teams of their own."""
    quotas: Mapping[TeamName, float]
    """In force now; who is not named has none."""
    chances: Mapping[TeamName, QueueChance]
    """What is remembered of demand, up to now."""
    too_large: Sequence[Mapping[TeamName, float]]
    """For each of the last days, the newest last, what demand up to then would have had quotas be (`wished_quotas`)."""
    ran_last: Mapping[TeamName, float] = field(default_factory=dict)
    """In the last full hour."""
    supply: float
    """Healthy capacity that quotas may add up to."""


def rebalance(today: Today, *, settings: RebalanceSettings) -> Rebalanced:
    """Return the quotas that hold next. Raises ValueError if the guarantees do not fit into the supply."""
    quotas = _Quotas(today)
    agreed = {each.team: _is_too_large(each.team, today, settings) for each in today.terms}
    cap = settings.step_cap_ratio * today.supply
    quotas.give_what_is_owed()
    quotas.take_what_is_lost()
    quotas.give_what_is_free()
    quotas.exchange(
        givers={team for team, is_agreed in agreed.items() if is_agreed}, most=cap, least_gain=settings.least_gain_ratio
    )
    return quotas.result(agreed=agreed, step_cap=cap)


def wished_quotas(
    terms: Sequence[Terms], chances: Mapping[TeamName, QueueChance], *, supply: float
) -> Mapping[TeamName, float]:
    """Return the quotas under which the fewest GPUs are expected to be wanted in vain, whatever holds today.

    Guarantees and caps are kept; what nobody is expected to want is shared out by weight.
    """
    quotas = _Quotas(
        Today(
            terms=terms,
            quotas={each.team: each.guarantee for each in terms},
            chances=chances,
            too_large=(),
            supply=supply,
        )
    )
    quotas.give_what_is_free()
    return {each.team: quota for each, quota in zip(terms, quotas.now, strict=True)}


def _is_too_large(team: TeamName, today: Today, settings: RebalanceSettings) -> bool:
    looked_at = today.too_large[-settings.looked_at_days :]
    found = sum(wished.get(team, 0.0) < today.quotas.get(team, 0.0) - _NOTHING for wished in looked_at)
    return found >= min(settings.agreeing_days, max(1, len(looked_at)))


class _Quotas:
    """Quotas while they are moved; lists have an entry a team, in the order of the terms."""

    def __init__(self, today: Today) -> None:
        self._today = today
        self._terms = today.terms
        self._chances = [today.chances.get(each.team, _NEVER) for each in today.terms]
        self._most = [min(each.most, today.supply) for each in today.terms]
        self._floors = [self._floor(each) for each in today.terms]
        self.now = [today.quotas.get(each.team, 0.0) for each in today.terms]
        guaranteed = math.fsum(each.guarantee for each in today.terms)
        if guaranteed > today.supply * (1 + _NOTHING) + _NOTHING:
            raise ValueError(
                f"guarantees add up to {guaranteed:g} GPUs, and {today.supply:g} are healthy; lower guarantees in "
                "teams.yaml, or declare how many of them hold when nodes are lost"
            )

    def give_what_is_owed(self) -> None:
        self.now = [max(quota, each.guarantee) for quota, each in zip(self.now, self._terms, strict=True)]

    def take_what_is_lost(self) -> None:
        """Bring the quotas down to the supply: what is least wanted first, what runs and is not guaranteed last."""
        for floors in (self._floors, [each.guarantee for each in self._terms]):
            if math.fsum(self.now) > self._today.supply + _NOTHING:
                lows = [min(floor, quota) for floor, quota in zip(floors, self.now, strict=True)]
                self.now = even_out(self._chances, lows=lows, highs=self.now, total=self._today.supply)

    def give_what_is_free(self) -> None:
        """Give what no quota holds to where it is most likely wanted, and the rest by weight."""
        if math.fsum(self.now) >= self._today.supply - _NOTHING:
            return
        highs = [max(most, quota) for most, quota in zip(self._most, self.now, strict=True)]
        self.now = even_out(self._chances, lows=self.now, highs=highs, total=self._today.supply)
        poured = pour(
            [high - quota for high, quota in zip(highs, self.now, strict=True)],
            weights=[each.weight for each in self._terms],
            supply=max(0.0, self._today.supply - math.fsum(self.now)),
        )
        self.now = [quota + share for quota, share in zip(self.now, poured.shares, strict=True)]

    def exchange(self, *, givers: Collection[TeamName], most: float, least_gain: float) -> None:
        """Move GPUs from givers to whoever is likelier to want them, while each gains enough, `most` at the most."""
        lows = [
            floor if each.team in givers else math.inf for floor, each in zip(self._floors, self._terms, strict=True)
        ]
        source, target = Falling(self._chances, self.now, lows), Rising(self._chances, self.now, self._most)
        moved = 0.0
        while moved < most - _NOTHING and source.left and target.left:
            if target.wanted_ratio - source.wanted_ratio <= least_gain:
                break
            amount = min(source.left, target.left, most - moved)
            source.move(amount)
            target.move(amount)
            moved += amount
        given, taken = target.changes(), source.changes()
        self.now = [quota + given.get(place, 0.0) - taken.get(place, 0.0) for place, quota in enumerate(self.now)]

    def result(self, *, agreed: Mapping[TeamName, bool], step_cap: float) -> Rebalanced:
        lines = tuple(
            QuotaLine(
                terms=each,
                before=self._today.quotas.get(each.team, 0.0),
                after=after,
                floor=floor,
                is_agreed_too_large=agreed[each.team],
                wanted_before=chance.at(self._today.quotas.get(each.team, 0.0)),
                wanted_after=chance.at(after),
            )
            for each, after, floor, chance in zip(self._terms, self.now, self._floors, self._chances, strict=True)
        )
        changes = math.fsum(abs(line.after - line.before) for line in lines)
        return Rebalanced(lines=lines, supply=self._today.supply, moved=changes / 2, step_cap=step_cap)

    def _floor(self, terms: Terms) -> float:
        """Return what is not taken for another's sake: the guarantee, and what ran, as far as the quota allowed it."""
        ran = min(self._today.ran_last.get(terms.team, 0.0), self._today.quotas.get(terms.team, 0.0))
        return max(terms.guarantee, ran)


_NEVER = QueueChance()
