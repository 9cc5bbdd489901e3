"""All that one morning's quotas are made from, read once: demand, agreements, limits, supply, debts, earlier proposals.

Reads, decides nothing; what is proposed of it is `proposing`'s. Strictly causal: of demand only what was over before
the moment that it is looked at, and for a day that is over, only what was known on its morning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from ops_pipelines.core.cluster import hour_of
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.proposal import GpuType, ProposalRecord, SupplyLine, TeamName
from ops_pipelines.core.quota_limits import QuotasInForce
from ops_pipelines.domain.quota.fair_debt import Served
from ops_pipelines.flow.quota.demand import TABLE, DemandPast, demand_days_of
from ops_pipelines.flow.quota.standstill import returns_to_contract, standstill
from ops_pipelines.flow.quota.supply import MORNING, Supplies, count_supply
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.settings import QuotaPolicy

RECORDS = 60
"""Proposals that are looked back at: more than a month of mornings."""
_UNTOLD = GpuType("")
_NAMED = 5
_HAS_SIZE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})


class NoProposal(ByHandRefused):
    """Nothing can be proposed for this day: says what is missing, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePast:
    """What is known of the past of one type of GPU."""

    past: DemandPast
    served: Mapping[date, Served]
    """What each team ran, by local day, in the hours that are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Morning:
    """What one day's quotas are made from."""

    day: date
    as_of: datetime
    """What is later is not looked at."""
    agreements: Agreements
    policy: QuotaPolicy
    supplies: tuple[SupplyLine, ...]
    past: Mapping[GpuType, TypePast]
    """Of every type in `supplies`."""
    untold: DemandPast | None
    """Demand whose type cannot be told, where the cluster tells types apart; None: it does not."""
    in_force: QuotasInForce | None
    """None: the scheduler keeps no limits."""
    records: tuple[ProposalRecord, ...]
    """Up to this day, newest first."""
    gangs: Mapping[tuple[TeamName, GpuType], int]
    frozen_because: str = ""
    returns_to_contract: str = ""
    notes: tuple[str, ...] = ()

    @property
    def demand_until(self) -> datetime | None:
        """The end of the newest hour that is known of every type; None: of one none is."""
        ends = [each.past.until for each in self.past.values()]
        known = [each for each in ends if each is not None]
        return min(known) if known and len(known) == len(ends) else None


def look(day: date, desk: TeamsDesk, *, now: datetime) -> Morning:
    """Return what the quotas of a local day are made from.

    Raises NoTeams, NoProposal, LakeError, LedgerError, and SourceError if the scheduler does not answer.
    """
    agreements = desk.agreed()
    today = now.astimezone(desk.zone).date()
    if day > today:
        raise NoProposal(f"{day} has not begun in {desk.zone.key}; quotas are proposed for {today}, from its demand")
    as_of = now if day == today else datetime.combine(day, MORNING, desk.zone).astimezone(UTC)
    supplies = count_supply(desk, now=now)
    if not any(line.installed for line in supplies.lines):
        raise NoProposal("no node stands in the cluster; name racks in cluster.yaml, and since when they stand there")
    records = tuple(each for each in desk.cluster.ledger.proposals(limit=RECORDS) if each.proposal.day <= day)
    incidents = desk.cluster.ledger.read_state(now).incidents
    kinds = [line.gpu_type for line in supplies.lines]
    return Morning(
        day=day,
        as_of=as_of,
        agreements=agreements,
        policy=desk.policy,
        supplies=supplies.lines,
        past={kind: _past_of(kind, desk, as_of=as_of) for kind in kinds},
        untold=None if _UNTOLD in kinds else _demand_of(_UNTOLD, desk, as_of=as_of),
        in_force=None if desk.quotas is None else desk.quotas.read(),
        records=records,
        gangs=_gangs(desk, as_of=as_of, with_present=day == today),
        frozen_because=standstill(incidents, topology=desk.cluster.rules.topology, policy=desk.policy, now=as_of),
        returns_to_contract=returns_to_contract(records, policy=desk.policy, now=as_of),
        notes=(*filter(None, (desk.agreements_trouble,)), *_notes_on_supply(supplies), *_notes_on_past(day, today)),
    )


def _demand_of(kind: GpuType, desk: TeamsDesk, *, as_of: datetime) -> DemandPast:
    try:
        return demand_days_of(desk, days=desk.policy.rebalance.window_days, gpu_type=kind, until=as_of)
    except ValueError as problem:
        raise _unbelievable(problem) from problem


def _past_of(kind: GpuType, desk: TeamsDesk, *, as_of: datetime) -> TypePast:
    from ops_pipelines.frames.demand.served import COLUMNS, served_days
    from ops_pipelines.lake.rates import first_hour

    past = _demand_of(kind, desk, as_of=as_of)
    start, end = first_hour(_first_day(desk, as_of), zone=desk.zone), hour_of(as_of)
    rows = desk.lake.read(TABLE, start=start, end=end, columns=COLUMNS)
    try:
        served = served_days(rows, start=start, end=end, zone=desk.zone, gpu_type=kind)
    except ValueError as problem:
        raise _unbelievable(problem) from problem
    return TypePast(past=past, served=served)


def _unbelievable(problem: ValueError) -> NoProposal:
    """Return what to say where the lake holds what is no amount of GPUs."""
    return NoProposal(f"demand cannot be believed: {problem}; materialise gpu_demand of that day anew")


def _first_day(desk: TeamsDesk, as_of: datetime) -> date:
    return as_of.astimezone(desk.zone).date() - timedelta(days=desk.policy.rebalance.window_days)


def _gangs(desk: TeamsDesk, *, as_of: datetime, with_present: bool) -> Mapping[tuple[TeamName, GpuType], int]:
    from ops_pipelines.frames.demand.gpu_types import GpuTypes
    from ops_pipelines.frames.demand.job_sizes import COLUMNS, JobSize, regular_sizes

    types = GpuTypes(by_node={node: kind for node, kind in desk.gpu_type_of.items() if kind})
    start = as_of - timedelta(days=desk.policy.rebalance.window_days)
    ended = desk.lake.read("job_accounting", start=start, end=as_of, columns=COLUMNS)
    jobs = desk.cluster.scheduler.read_jobs() if with_present else ()
    return regular_sizes(
        ended,
        now=[
            JobSize(team=TeamName(job.account), gpu_type=kind, gpu_count=job.gpu_count, day=as_of.date())
            for job in jobs
            if job.state in _HAS_SIZE and (kind := _type_of(job, desk, only=types.only)) is not None
        ],
        types=types,
    )


def _type_of(job: JobStatus, desk: TeamsDesk, *, only: GpuType | None) -> GpuType | None:
    """Return the type of a job's GPUs; None while nobody can tell, for it waits and the cluster has several."""
    if only is not None:
        return only
    kinds = {desk.gpu_type_of.get(node, _UNTOLD) for node in job.nodes}
    return kinds.pop() if len(kinds) == 1 else None


def _notes_on_supply(supplies: Supplies) -> tuple[str, ...]:
    nodes_by_reason: dict[str, list[NodeName]] = {}
    for node, why in sorted(supplies.out.items()):
        nodes_by_reason.setdefault(why, []).append(node)
    return tuple(
        f"counted out, {why}: {', '.join(nodes[:_NAMED])}"
        + (f" and {len(nodes) - _NAMED} more" if nodes[_NAMED:] else "")
        for why, nodes in sorted(nodes_by_reason.items())
    )


def _notes_on_past(day: date, today: date) -> tuple[str, ...]:
    if day == today:
        return ()
    return (f"the demand is that of the morning of {day}; nodes, limits and incidents are those of now",)
