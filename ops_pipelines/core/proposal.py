"""One morning's proposal of quotas, and the terms agreed with a team.

Numbers are GPUs of one type; a team has one `Terms` for each type. Organisations and projects are teams, too: each
names what it belongs to.

Who computes them is `rebalance`, who writes them down and applies them `quotas`. A proposal is known by what it would
change: the same lines on the same day are the same proposal, whenever they are made.
"""

import math
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import NewType

from ops_pipelines.core.identity import digest_of

# -- what was agreed with a team --


_LEAST_WEIGHT = 0.001
"""Smaller ones are slips of units, and lose what is shared out in rounding."""

TeamName = NewType("TeamName", str)
"""The account that pays, as the scheduler names it."""
GpuType = NewType("GpuType", str)
"""As the scheduler names it in `gres/gpu:<type>`; empty where the cluster has one type, or distinguishes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one team for one type of GPU."""

    team: TeamName
    guarantee: float
    """It has these whenever it asks for them."""
    weight: float = 1.0
    """How what is left is shared out among those who ask for more."""
    borrow_limit: float = math.inf
    """It gets at most so many beyond its guarantee."""
    lend_limit: float = math.inf
    """Of a guarantee that it does not use, others get at most so many."""
    reserved: float = 0.0
    """So many of its guarantee are never lent, used or not."""
    cap: float = math.inf
    """It never gets more, whatever is free."""
    priority: int = 0
    """Who has more of it is served first: with what is left, and where not even the guarantees can be kept."""
    parent: TeamName | None = None
    """What it belongs to; None: to the cluster itself."""
    unit: float = 1.0
    """Its quotas are whole multiples of so many: a node, or the gang that its jobs take."""

    def __post_init__(self) -> None:
        for name in ("guarantee", "weight", "borrow_limit", "lend_limit", "reserved", "cap"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{self.team}: {name} is {getattr(self, name)}; expected 0 or more")
        if not 1 <= self.unit < math.inf or self.unit % 1:
            raise ValueError(f"{self.team}: unit is {self.unit:g}; expected a whole number of GPUs, 1 or more")
        if math.isinf(self.guarantee) or math.isinf(self.weight):
            raise ValueError(f"{self.team}: guarantee and weight must be numbers, not infinite")
        if 0 < self.weight < _LEAST_WEIGHT:
            raise ValueError(f"{self.team}: weight is {self.weight:g}; expected 0, or at least {_LEAST_WEIGHT:g}")
        for name, amount in (("guarantee", self.guarantee), ("cap", self.cap)):
            if self.unit > 1 and not math.isinf(amount) and amount % self.unit:
                raise ValueError(f"{self.team}: {name} is {amount:g}; expected a whole multiple of unit, {self.unit:g}")
        if self.reserved > self.guarantee or self.guarantee > self.cap:
            raise ValueError(
                f"{self.team}: reserved {self.reserved:g}, guarantee {self.guarantee:g}, cap {self.cap:g}; "
                "expected none larger than the next"
            )

    @property
    def most(self) -> float:
        """The most that it can get."""
        return min(self.cap, self.guarantee + self.borrow_limit)


# -- one morning's proposal of quotas --


ProposalId = NewType("ProposalId", str)
"""`QUOTA-20261122-1a2b3c4d`: the day that it is for, and the beginning of a digest of its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedQuota:
    """One team's quota of one type of GPU: what holds, what is proposed, and why. Numbers in GPUs."""

    team: TeamName
    gpu_type: GpuType
    limit: int | None
    """What the scheduler holds the team to now; None: to nothing."""
    before: float
    """What the change is counted from: the limit, or without one what was agreed."""
    after: int
    guarantee: float
    most: float
    """What was agreed that it gets at most; may be infinite."""
    floor: float
    """What is not taken for another's sake: the guarantee, and what ran in the last full hour."""
    ran_last: float
    wanted_mean: float
    """What it requested on average on the last full day, queue included."""
    debt: float
    """What it had beyond its fair share of what others left, on average of the window; below 0: others had of its."""
    reason: str
    counterfactual: str
    """What it is expected to miss with this quota, and what it would with the one before."""
    fairshare_before: int | None = None
    fairshare_after: int | None = None
    """None: the shares are left as they are."""

    @property
    def changes_anything(self) -> bool:
        """Whether applying it would set anything."""
        changes_share = self.fairshare_after is not None and self.fairshare_after != self.fairshare_before
        return self.limit != self.after or changes_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLine:
    """How many GPUs of one type may be given out, and where the others are."""

    gpu_type: GpuType
    installed: float
    broken: float
    """On nodes that are drained, down, in repair or on probation by an incident, and GPUs that fell off the bus."""
    in_rollouts: float
    """On nodes that rollouts have, or take before the next proposal."""
    slack: float
    """Kept back from quotas, so that so many may break before a team is cut."""
    supply: float
    """What quotas may add up to: the smaller of what is healthy and what is installed less the slack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaProposal:
    """What is proposed for one day."""

    day: date
    """In the cluster's zone: from its morning to the next."""
    made_at: datetime
    lines: tuple[ProposedQuota, ...]
    """By type, then team."""
    supplies: tuple[SupplyLine, ...]
    step_caps: tuple[tuple[GpuType, float], ...]
    """How many GPUs of each type might have moved, all teams together."""
    headline: str
    frozen_because: str = ""
    """Why no quota moves today; empty: they may."""
    notes: tuple[str, ...] = ()
    """What could not be reported, was carried or left out, in words."""
    demand_until: datetime | None = None
    """The end of the newest hour of demand that was seen."""
    known_hour_ratio: float = 1.0
    """Share of the hours of the window of which demand is known."""

    @property
    def proposal(self) -> ProposalId:
        """Its name."""
        parts = [
            f"{each.team} {each.gpu_type} {each.limit} {each.after} {each.fairshare_before} {each.fairshare_after}"
            for each in self.lines
        ]
        return ProposalId(f"QUOTA-{self.day:%Y%m%d}-{digest_of(self.day.isoformat(), *parts)[:8]}")

    @property
    def changes_anything(self) -> bool:
        """Whether applying it would set anything."""
        return any(each.changes_anything for each in self.lines)


class ProposalState(Enum):
    """How far a proposal is."""

    PROPOSED = "proposed"
    REFUSED = "refused"
    """A check found it wrong; it is never applied."""
    APPLYING = "applying"
    """The before-entry is written: what is in, only the scheduler knows."""
    APPLIED = "applied"
    """Read back, and as proposed."""
    HALF_APPLIED = "half_applied"
    """The scheduler stopped answering, or says something else: some of it is in."""
    UNDOING = "undoing"
    HALF_UNDONE = "half_undone"
    UNDONE = "undone"
    SUPERSEDED = "superseded"
    """A newer one took its place before it was applied."""


class ProposalEvent(Enum):
    """What happens to a proposal."""

    REFUSE = "refuse"
    BEGIN = "begin"
    READ_BACK = "read_back"
    STOP_HALF_WAY = "stop_half_way"
    NOTHING_DONE = "nothing_done"
    """The scheduler refused before anything was in: it is as it stood."""
    UNDO = "undo"
    UNDO_READ_BACK = "undo_read_back"
    UNDO_STOPPED = "undo_stopped"
    UNDO_NOTHING_DONE = "undo_nothing_done"
    SUPERSEDE = "supersede"
    RENEW = "renew"
    """The same lines are proposed again: after others were, or by a person after they were undone."""


PROPOSAL_TABLE = {
    (ProposalState.PROPOSED, ProposalEvent.REFUSE): ProposalState.REFUSED,
    (ProposalState.PROPOSED, ProposalEvent.BEGIN): ProposalState.APPLYING,
    (ProposalState.PROPOSED, ProposalEvent.SUPERSEDE): ProposalState.SUPERSEDED,
    (ProposalState.SUPERSEDED, ProposalEvent.RENEW): ProposalState.PROPOSED,
    (ProposalState.UNDONE, ProposalEvent.RENEW): ProposalState.PROPOSED,
    (ProposalState.APPLYING, ProposalEvent.READ_BACK): ProposalState.APPLIED,
    (ProposalState.APPLYING, ProposalEvent.STOP_HALF_WAY): ProposalState.HALF_APPLIED,
    (ProposalState.APPLYING, ProposalEvent.NOTHING_DONE): ProposalState.PROPOSED,
    (ProposalState.HALF_APPLIED, ProposalEvent.BEGIN): ProposalState.APPLYING,
    (ProposalState.HALF_APPLIED, ProposalEvent.UNDO): ProposalState.UNDOING,
    (ProposalState.APPLIED, ProposalEvent.UNDO): ProposalState.UNDOING,
    (ProposalState.UNDOING, ProposalEvent.UNDO_READ_BACK): ProposalState.UNDONE,
    (ProposalState.UNDOING, ProposalEvent.UNDO_STOPPED): ProposalState.HALF_UNDONE,
    (ProposalState.UNDOING, ProposalEvent.UNDO_NOTHING_DONE): ProposalState.APPLIED,
    (ProposalState.HALF_UNDONE, ProposalEvent.UNDO): ProposalState.UNDOING,
}
"""Where each event leads; a missing key is the error, and changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentChange:
    """One thing that is set in the scheduler when a proposal is applied, with what stood there before."""

    account: TeamName
    gpu_type: GpuType = GpuType("")
    """Empty: GPUs of every type together."""
    is_fairshare: bool = False
    """Its shares among its siblings, and no limit."""
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRecord:
    """A proposal with what became of it, as the ledger keeps it."""

    proposal: QuotaProposal
    state: ProposalState
    since: datetime
    actor: str
    """Who brought it into this state."""
    reason: str = ""
    sent: tuple[SentChange, ...] = ()
    """What was to be set when it was started first; nothing: it never was. By this it is completed, judged and
    undone."""

    @property
    def name(self) -> ProposalId:
        """Its name."""
        return self.proposal.proposal
