"""What quotas of one type of GPU are moved from on one day, and what came of it. Values only; numbers in GPUs.

How they are moved is `rebalance`'s, how that is told `reasons`', what is proposed of it, in whole units, `proposing`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.domain.quota.queue_chance import QueueChance


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
    """What each had beyond its fair share, on average of the window (`fair_debt.debts_of`); below 0: it lent."""
    gangs: Mapping[TeamName, int] = field(default_factory=dict)
    """GPUs of the largest job that a team runs, or waits with, regularly."""
    launches: Mapping[TeamName, str] = field(default_factory=dict)
    """Projects that begin or end, in words (`launches.launches_on`); the chances have them already."""
    lately: Sequence[Mapping[TeamName, float]] = ()
    """Quotas before the change of each of the last days, the newest last: who turned twice does not turn again."""
    frozen_because: str = ""
    """Why no quota moves; empty: they may. What was agreed is kept all the same."""
    returns_to_contract: str = ""
    """Why quotas go back toward what was agreed, such as the freeze that ended; empty: they follow demand."""


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
    """Where quotas go back toward what was agreed: that; None: they follow demand."""
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
