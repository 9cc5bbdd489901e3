"""The shape of answers about quotas: what `quota propose`, `diff`, `apply`, `explain` and `history` say, and in JSON.

Field names are JSON keys: renaming one breaks the scripts of operators. Amounts are GPUs; null: without limit, or not
known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.proposal import GpuType, ProposalRecord, ProposedQuota, QuotaProposal, TeamName
from ops_pipelines.quotas.reclaim import Reclaim

Used = Mapping[tuple[TeamName, GpuType], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineView:
    team: str
    gpu_type: str
    limit: int | None
    """What the scheduler held the team to when it was proposed."""
    before: float
    after: int
    guarantee: float
    most: float | None
    used_mean: float | None
    wanted_mean: float
    ran_last: float
    debt: float
    reason: str
    counterfactual: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyView:
    gpu_type: str
    installed: float
    broken: float
    in_rollouts: float
    kept_back: float
    supply: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalView:
    """One proposal. `state` is `computed` where it is not kept."""

    cluster: str
    day: str
    proposal: str
    state: str
    since: datetime
    actor: str
    reason: str
    made_at: datetime
    headline: str
    stands_still: str
    lines: tuple[LineView, ...]
    supplies: tuple[SupplyView, ...]
    notes: tuple[str, ...]
    contradictions: tuple[str, ...]
    demand_until: datetime | None
    known_hour_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    team: str
    gpu_type: str
    in_force: int | None
    proposed: int
    guarantee: float
    most: float | None
    is_as_read: bool
    """Whether what is in force is what the proposal was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffView:
    cluster: str
    proposal: str
    state: str
    read_at: datetime | None
    rows: tuple[DiffRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewView:
    cluster: str
    proposal: str
    state: str
    changes: tuple[str, ...]
    hindrances: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedView:
    """What was agreed with one team for one type; null: no limit."""

    gpu_type: str
    contract: str
    guarantee: float
    weight: float
    borrow_limit: float | None
    lend_limit: float | None
    reserved: float
    cap: float | None
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLine:
    day: str
    proposal: str
    state: str
    gpu_type: str
    before: float
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimedJob:
    job: str
    team: str
    gpus: int
    ran_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimView:
    """Whose jobs preemption would end, wanted the team all of its guarantee now. Nothing is sent."""

    gpu_type: str
    guarantee: float
    runs: int
    free: int
    wanted: float
    """What neither runs nor stands free."""
    jobs: tuple[ReclaimedJob, ...]
    """In the order in which they would be taken."""
    missing: float
    """What no such job could give."""
    rule: str
    """Which jobs are never taken."""
    scheduler: str
    """Whether the scheduler would do so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamView:
    """All that is known of one team's quota on a day."""

    cluster: str
    team: str
    day: str
    belongs_to: str | None
    proposal: str
    state: str
    agreed: tuple[AgreedView, ...]
    projects: tuple[str, ...]
    lines: tuple[LineView, ...]
    history: tuple[PastLine, ...]
    reclaim: tuple[ReclaimView, ...]
    """As of now; empty for another day than today, for an organisation, and where a note says why."""
    notes: tuple[str, ...]
    """Those of the proposal that name the team, and what is not known of `reclaim`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastProposal:
    proposal: str
    day: str
    state: str
    since: datetime
    actor: str
    changed_count: int
    headline: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    cluster: str
    proposals: tuple[PastProposal, ...]


def view_line(line: ProposedQuota, *, used: Used) -> LineView:
    return LineView(
        team=line.team,
        gpu_type=line.gpu_type,
        limit=line.limit,
        before=line.before,
        after=line.after,
        guarantee=line.guarantee,
        most=finite(line.most),
        used_mean=used.get((line.team, line.gpu_type)),
        wanted_mean=line.wanted_mean,
        ran_last=line.ran_last,
        debt=line.debt,
        reason=line.reason,
        counterfactual=line.counterfactual,
    )


def view_reclaim(found: Reclaim) -> ReclaimView:
    report = found.report
    return ReclaimView(
        gpu_type=found.gpu_type,
        guarantee=found.guarantee,
        runs=found.runs,
        free=found.free,
        wanted=report.wanted_gpus,
        jobs=tuple(
            ReclaimedJob(job=each.job, team=each.team, gpus=each.gpu_count, ran_seconds=each.ran.total_seconds())
            for each in report.jobs
        ),
        missing=report.missing_gpus,
        rule=report.rule,
        scheduler=report.scheduler,
    )


def view_proposal(
    proposal: QuotaProposal,
    record: ProposalRecord | None,
    *,
    cluster: str,
    used: Used,
    contradictions: Sequence[str] = (),
) -> ProposalView:
    """Return a proposal, kept or only computed, as an answer."""
    return ProposalView(
        cluster=cluster,
        day=proposal.day.isoformat(),
        proposal=proposal.proposal,
        state="computed" if record is None else record.state.value,
        since=proposal.made_at if record is None else record.since,
        actor="" if record is None else record.actor,
        reason="" if record is None else record.reason,
        made_at=proposal.made_at,
        headline=proposal.headline,
        stands_still=proposal.frozen_because,
        lines=tuple(view_line(each, used=used) for each in proposal.lines),
        supplies=tuple(
            SupplyView(
                gpu_type=each.gpu_type,
                installed=each.installed,
                broken=each.broken,
                in_rollouts=each.in_rollouts,
                kept_back=each.slack,
                supply=each.supply,
            )
            for each in proposal.supplies
        ),
        notes=proposal.notes,
        contradictions=tuple(contradictions),
        demand_until=proposal.demand_until,
        known_hour_ratio=proposal.known_hour_ratio,
    )


def view_history(records: Sequence[ProposalRecord], *, cluster: str) -> HistoryView:
    return HistoryView(
        cluster=cluster,
        proposals=tuple(
            PastProposal(
                proposal=each.name,
                day=each.proposal.day.isoformat(),
                state=each.state.value,
                since=each.since,
                actor=each.actor,
                changed_count=sum(line.changes_anything for line in each.proposal.lines),
                headline=each.proposal.headline,
                reason=each.reason,
            )
            for each in records
        ),
    )


def finite(amount: float) -> float | None:
    """Return an amount as JSON can say it; None: without limit."""
    return None if math.isinf(amount) else amount
