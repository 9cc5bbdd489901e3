"""All that one morning's quotas are made from, read once; what is known of the past; why quotas stand still.

What stops quotas is trouble of the whole cluster: then nobody can tell what teams would have requested. A broken node,
rack or switch, and whatever a rollout breaks, is lost supply (`supply`), and quotas continue.

Pure. What was never kept is no hole; what was kept and is missing now is, and so is what cannot be a number.

Reads, decides nothing; what is proposed of it is `proposing`'s. Strictly causal: of demand only what was over before
the moment that it is looked at, and for a day that is over, only what was known on its morning.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.proposal import GpuType, ProposalRecord, ProposalState, QuotaProposal, SupplyLine, TeamName
from ops_pipelines.core.scheduler import QuotasInForce
from ops_pipelines.diagnose.shared_cause import nodes_at
from ops_pipelines.quotas.demand import DemandDay
from ops_pipelines.quotas.gather_demand import TABLE, DemandPast, demand_days_of
from ops_pipelines.quotas.today import MORNING, Served, Supplies, count_supply
from ops_pipelines.remediate.by_hand import ByHandRefused
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import QuotaFreeze, QuotaPolicy, TeamsDesk

# -- why quotas stand still --


OF_ALL = frozenset({ComponentKind.STORAGE, ComponentKind.FABRIC})
"""Parts that every node shares, whatever their number is."""
_MOST_OF_ALL = 0.5
"""# Assumption: a power feed, or a mass event, that has so large a share of the nodes is no part of the cluster. The
scheduler and accounting have no component of their own in incidents: when they fail, nodes look broken at once."""
_LONGEST_CAUSE = 160


def standstill(incidents: Iterable[Incident], *, topology: Topology, policy: QuotaPolicy, now: datetime) -> str:
    """Return why no quota moves now, in words; empty if quotas move."""
    freeze = policy.freeze_at(now)
    if freeze is not None:
        until = "until it is taken back" if freeze.ends_at is None else f"until {freeze.ends_at:%Y-%m-%d %H:%M} UTC"
        return f"the freeze {freeze.name} holds {until}"
    stopping = sorted(
        (each for each in incidents if is_of_whole_cluster(each, topology)), key=lambda each: each.opened_at
    )
    if not stopping:
        return ""
    first = stopping[0]
    cause = first.cause if len(first.cause) <= _LONGEST_CAUSE else f"{first.cause[:_LONGEST_CAUSE]}..."
    more = f", and {len(stopping) - 1} more" if len(stopping) > 1 else ""
    return f"{first.incident} is about the whole cluster: {cause}{more}"


def is_of_whole_cluster(incident: Incident, topology: Topology) -> bool:
    """Return whether an incident is of what all nodes share, or of most nodes at once.

    Counted are: shared storage, the fabric, a power feed of half the nodes or more, and as many nodes that look broken
    at once without a place in common. What is only watched, or the owner's own doing, never counts.
    """
    if not incident.is_open or incident.response < Response.PAGE:
        return False
    if incident.suspect is None:
        known = sum(topology.knows(node) for node in incident.nodes)
        return incident.is_mass_event and _is_most(known, topology)
    if incident.suspect.kind in OF_ALL:
        return True
    is_feed = incident.suspect.kind is ComponentKind.POWER_FEED
    return is_feed and _is_most(len(nodes_at(incident.suspect, topology)), topology)


def returns_to_contract(records: Sequence[ProposalRecord], *, policy: QuotaPolicy, now: datetime) -> str:
    """Return why quotas roll back toward what was agreed: the freeze that ended; empty once they are there.

    They are there when a proposal made since then had steps to spare, and is applied or had nothing to set. A full way
    takes as many days as the step cap allows; after that, whatever is missing is left to demand.
    `records`: the newest proposals.
    """
    ended = _newest_ended(policy.freezes, now=now)
    if ended is None or ended.ends_at is None:
        return ""
    days = math.ceil(1 / policy.rebalance.step_cap_ratio - 1e-9)
    if now - ended.ends_at >= timedelta(days=days):
        return ""
    since = [each for each in records if each.proposal.made_at >= ended.ends_at]
    if any(_is_in(each) and _has_arrived(each.proposal) for each in since):
        return ""
    return f"the freeze {ended.name} ended on {ended.ends_at:%Y-%m-%d}"


def _newest_ended(freezes: Iterable[QuotaFreeze], *, now: datetime) -> QuotaFreeze | None:
    ended = [each for each in freezes if each.ends_at is not None and each.ends_at <= now]
    return max(ended, key=lambda each: each.ends_at or now, default=None)


def _is_in(record: ProposalRecord) -> bool:
    """Return whether limits are as proposed: what would set nothing is never applied, and soon overtaken."""
    waits = record.state in (ProposalState.PROPOSED, ProposalState.SUPERSEDED)
    return record.state is ProposalState.APPLIED or (waits and not record.proposal.changes_anything)


def _has_arrived(proposal: QuotaProposal) -> bool:
    """Return whether no type used up its step: rounded to whole GPUs, each that rises may lack part of one."""
    if proposal.frozen_because:
        return False
    for gpu_type, cap in proposal.step_caps:
        changes = [line.after - line.before for line in proposal.lines if line.gpu_type == gpu_type]
        rising_count = sum(change > 0 for change in changes)
        if any(changes) and sum(map(abs, changes)) / 2 > cap - max(1, rising_count):
            return False
    return True


def _is_most(count: int, topology: Topology) -> bool:
    return bool(topology.places) and count >= _MOST_OF_ALL * len(topology.places)


# -- all that one morning's quotas are made from, read once --


RECORDS = 60
"""Proposals that are looked back at: more than a month of mornings."""
_UNTOLD = GpuType("")
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
    """Demand whose type is not known, where the cluster separates types; None: it does not."""
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
        raise NoProposal(f"{day} has not started in {desk.zone.key}; quotas are proposed for {today}, from its demand")
    as_of = now if day == today else datetime.combine(day, MORNING, desk.zone).astimezone(UTC)
    supplies = count_supply(desk, now=now)
    if not any(line.installed for line in supplies.lines):
        raise NoProposal("no node is in the cluster; name racks in cluster.yaml, and since when they are there")
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
    from ops_pipelines.core.periods import first_hour
    from ops_pipelines.quotas.daily import DAILY_COLUMNS, served_days

    past = _demand_of(kind, desk, as_of=as_of)
    start, end = first_hour(_first_day(desk, as_of), zone=desk.zone), hour_of(as_of)
    rows = desk.lake.read(TABLE, start=start, end=end, columns=DAILY_COLUMNS)
    try:
        served = served_days(rows, start=start, end=end, zone=desk.zone, gpu_type=kind)
    except ValueError as problem:
        raise _unbelievable(problem) from problem
    return TypePast(past=past, served=served)


def _unbelievable(problem: ValueError) -> NoProposal:
    """Return what to say where the lake holds what is no amount of GPUs."""
    return NoProposal(f"demand cannot be believed: {problem}; materialise gpu_demand of that day again")


def _first_day(desk: TeamsDesk, as_of: datetime) -> date:
    return as_of.astimezone(desk.zone).date() - timedelta(days=desk.policy.rebalance.window_days)


def _gangs(desk: TeamsDesk, *, as_of: datetime, with_present: bool) -> Mapping[tuple[TeamName, GpuType], int]:
    from ops_pipelines.quotas.daily import ATTEMPT_COLUMNS, JobSize, regular_sizes
    from ops_pipelines.quotas.spans import GpuTypes

    types = GpuTypes(by_node={node: kind for node, kind in desk.gpu_type_of.items() if kind})
    start = as_of - timedelta(days=desk.policy.rebalance.window_days)
    ended = desk.lake.read("job_accounting", start=start, end=as_of, columns=ATTEMPT_COLUMNS)
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


# -- what is known of the past of each type of GPU --


_NAMED = 5


def days_of(known: TypePast) -> tuple[DemandDay, ...]:
    past = known.past
    return (*past.days, *([] if past.today is None else [past.today]))


def refuse_unknown(morning: Morning) -> None:
    """Raise NoProposal where demand is missing, too old, or full of holes."""
    until = morning.demand_until
    for kind, known in sorted(morning.past.items()):
        if known.past.until is None:
            raise NoProposal(
                f"no demand is known{of_type(kind)} in the last {morning.policy.rebalance.window_days} days before "
                f"{morning.as_of:%Y-%m-%d %H:%M} UTC; materialise gpu_demand for them"
            )
        if not known.past.days:
            raise NoProposal(
                f"no demand is known{of_type(kind)} of any day before {morning.day}; quotas are proposed from the day "
                "after the first of which gpu_demand is filled"
            )
        _refuse_holes(kind, known, morning)
    if until is not None and morning.as_of - until > morning.policy.demand_max_age:
        hours = morning.policy.demand_max_age / timedelta(hours=1)
        raise NoProposal(
            f"the newest demand is of {until:%Y-%m-%d %H:%M} UTC, older than {hours:g} h at "
            f"{morning.as_of:%Y-%m-%d %H:%M} UTC (quotas.demand_max_age_hours); materialise gpu_demand since then"
        )


def _refuse_holes(kind: GpuType, known: TypePast, morning: Morning) -> None:
    ratio, missing = known_hours(known, as_of=morning.as_of)
    least = morning.policy.known_hour_min_ratio
    if ratio < least:
        days = sorted({each.date() for each in missing})
        named = ", ".join(map(str, days[:_NAMED])) + (f" and {len(days) - _NAMED} more" if len(days) > _NAMED else "")
        raise NoProposal(
            f"{ratio:.0%} of the hours of demand{of_type(kind)} are known, and {least:.0%} are needed "
            f"(quotas.known_hour_min_ratio); missing are hours of {named} (UTC): materialise gpu_demand there"
        )
    for day in (*known.past.days, *([] if known.past.today is None else [known.past.today])):
        for team, amounts in day.hours.items():
            bad = next((each for each in amounts if not 0 <= each < math.inf), None)
            if bad is not None:
                raise NoProposal(
                    f"on {day.day} {team} is reported to want {bad} GPUs; expected a number, 0 or more: materialise "
                    "gpu_demand of that day again"
                )
    for served_on, served in known.served.items():
        for team, amounts in served.items():
            if not all(0 <= each < math.inf for each in amounts):
                raise NoProposal(
                    f"on {served_on} {team} is reported to run no number of GPUs; expected one, 0 or more: materialise "
                    "gpu_demand of that day again"
                )


def known_hours(known: TypePast, *, as_of: datetime) -> tuple[float, tuple[datetime, ...]]:
    """Return the share of hours that are known since the first that is, and the missing ones.

    What lies before the first known hour is before anybody kept demand: no hole in it.
    """
    past = known.past
    first = hour_of(as_of) - past.hour_count * HOUR
    before = 0
    while before < len(past.missing) and past.missing[before] == first + before * HOUR:
        before += 1
    missing = past.missing[before:]
    count = past.hour_count - before
    return (1 - len(missing) / count if count else 0.0), missing


def of_type(kind: GpuType) -> str:
    return f" for {kind}" if kind else ""
