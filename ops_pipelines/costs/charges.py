"""A charge as rows for people, who pays for a job, and what was lost by our own incidents.

An account that was agreed on pays for itself. One that has the name of a project of a team is that team's, with the
project. Every other account is a team of its own, and named.

Of an attempt that a broken part ended, or that we moved, the time since its last checkpoint, as far as the team held
GPUs in the part that is billed. What is not known is no credit, and counted in a note.

The same rows stand in Dagster's pages and in the terminal. Every line of a statement is in exactly one row, so that
their totals are the cost of the assets.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ops_pipelines.core.fault import AtFault
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.money import Cents
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.statement import Line, LostHours, Service, Statement
from ops_pipelines.costs.usage import NO_TEAM, Bearer, Fate, Owner, PartUsage, Used
from ops_pipelines.review.week_incidents import at_fault_of
from ops_pipelines.review.week_work import MARGIN, read_job_history
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk

# -- who pays for a job --


@dataclass(slots=True, kw_only=True)
class OwnerReader:
    """Reads who pays from a row of job_allocations, and remembers the accounts that no agreement names."""

    agreements: Agreements | None
    strangers: set[str] = field(default_factory=set)
    _project_of: Mapping[str, Owner] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        projects = () if self.agreements is None else self.agreements.projects
        teams: dict[str, set[TeamName]] = {}
        for each in projects:
            teams.setdefault(each.name, set()).add(each.team)
        # A name that two teams use reports nothing.
        self._project_of = {name: Owner(team=min(of), project=name) for name, of in teams.items() if len(of) == 1}

    def __call__(self, row: Mapping[str, object]) -> Owner:
        return self.owner_of(row.get("account"))

    def owner_of(self, account: object) -> Owner:
        """Return who pays for jobs of this account; without one, `NO_TEAM`."""
        if not account or account == NO_TEAM:
            return Owner(team=NO_TEAM)
        name = str(account)
        if self.agreements is None or name in self.agreements.parents:
            return Owner(team=TeamName(name))
        if name in self._project_of:
            return self._project_of[name]
        self.strangers.add(name)
        return Owner(team=TeamName(name))


# -- GPU-hours that our own incidents made worthless --


if TYPE_CHECKING:
    from ops_pipelines.review.job_runs import Break

_NOT_OURS = frozenset({AtFault.APPLICATION, AtFault.USER})


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAt:
    """Hours that were lost, and when the work ended."""

    at: datetime
    lost: LostHours


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What was lost in a part of a month."""

    losses: tuple[LossAt, ...] = ()
    notes: tuple[str, ...] = ()


def find_losses(part: BilledPart, desk: TeamsDesk) -> Losses:
    """Return what jobs lost to incidents of ours in this part. Raises LakeError and LedgerError."""
    ledger, now = desk.cluster.ledger, desk.clock.now()
    incidents = ledger.incidents_since(part.since - MARGIN)
    if not incidents:
        return Losses()
    history = read_job_history(
        desk.lake,
        since=part.since,
        until=part.until,
        now=now,
        jobs=(),
        read_comment=desk.observatory.read_comment,
        incidents=incidents,
        records={each.incident: ledger.records(each.incident) for each in incidents},
        facts_since=part.since,
    )
    by_name = {each.incident: each for each in incidents}
    ours = [each for each in history.breaks if _is_ours(each, by_name) and part.since <= each.ended_at]
    owners, types = OwnerReader(agreements=desk.agreements), _types(desk)
    unknown = [each for each in ours if not each.is_loss_known]
    notes = []
    if unknown:
        notes.append(
            f"{len(unknown)} attempts ended by incidents of ours have no known checkpoint: no credit for these"
        )
    losses = [loss for each in ours if each.is_loss_known for loss in _losses(each, part, owners=owners, types=types)]
    return Losses(losses=tuple(losses), notes=tuple(notes))


def _is_ours(each: "Break", incidents: Mapping[IncidentId, Incident]) -> bool:
    """Return whether the cluster owes the hours: a part broke, or we moved the job."""
    from ops_pipelines.review.job_runs import Cause

    incident = incidents.get(IncidentId(each.incident))
    if incident is None or at_fault_of(incident) in _NOT_OURS:
        return False
    return each.cause in (Cause.HARDWARE, Cause.OURS)


def _types(desk: TeamsDesk) -> Mapping[NodeName, GpuType]:
    return {each.node: each.gpu_type for each in desk.installed}


def _losses(
    each: "Break", part: BilledPart, *, owners: OwnerReader, types: Mapping[NodeName, GpuType]
) -> Iterator[LossAt]:
    stint = each.stint
    begins_at = (
        stint.started_at if each.saved_nothing else max(stint.started_at, each.checkpointed_at or stint.started_at)
    )
    since, until = max(begins_at, part.since), min(each.ended_at, part.until)
    seconds = int((until - since).total_seconds()) * stint.gpu_count if since < until else 0
    if seconds <= 0:
        return
    owner = owners.owner_of(stint.team)
    for gpu_type, share in _by_type(seconds, _nodes(stint.nodes), types):
        lost = LostHours(owner=owner, gpu_type=gpu_type, incident=each.incident, gpu_seconds=share)
        yield LossAt(at=min(each.ended_at, part.until), lost=lost)


def _nodes(listed: str) -> list[NodeName]:
    from ops_pipelines.lake.node_names import expand_host_list

    try:
        return list(expand_host_list(listed)) if listed else []
    except ValueError:
        return []


def _by_type(
    seconds: int, nodes: Collection[NodeName], types: Mapping[NodeName, GpuType]
) -> Iterator[tuple[GpuType, int]]:
    """Yield the seconds by type of GPU, as many for each node; of unknown nodes they are of the only type, if one."""
    known = sorted(types[node] for node in nodes if node in types) or sorted(set(types.values()))[:1]
    given = 0
    for place, gpu_type in enumerate(known, start=1):
        upto = seconds * place // len(known)
        yield gpu_type, upto - given
        given = upto


# -- a charge as rows for people --


_HOUR_SECONDS = 3_600
_OPERATOR_ROWS = (Fate.IDLE, Fate.BROKEN, Fate.MAINTENANCE, Fate.OVERHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursRow:
    """GPU-hours of one owner, or of one of the fates that are nobody's work."""

    fate: Fate
    team: str
    project: str
    gpu_hours: float
    used_gpu_hours: float
    wasted_gpu_hours: float
    """Held, measured, and without work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """What one owner pays, or what stays with the operator under one name."""

    fate: Fate
    team: str
    project: str
    gpu_hours: float
    cents: Mapping[Service, Cents] = field(default_factory=dict)

    @property
    def total_cents(self) -> Cents:
        return Cents(sum(self.cents.values()))

    def of(self, *services: Service) -> Cents:
        return Cents(sum(self.cents.get(each, 0) for each in services))


def hours_rows(usage: PartUsage) -> tuple[HoursRow, ...]:
    """Return the hours by bearer, all types of GPUs together: teams first, then what is nobody's."""
    sums: dict[Bearer, Used] = {}
    for (bearer, _), used in usage.by_bearer.items():
        before = sums.get(bearer, Used(gpu_seconds=0))
        sums[bearer] = Used(
            gpu_seconds=before.gpu_seconds + used.gpu_seconds,
            used_gpu_seconds=before.used_gpu_seconds + used.used_gpu_seconds,
            wasted_gpu_seconds=before.wasted_gpu_seconds + used.wasted_gpu_seconds,
        )
    return tuple(
        HoursRow(
            fate=bearer.fate,
            team="" if bearer.owner is None else bearer.owner.team,
            project="" if bearer.owner is None else bearer.owner.project,
            gpu_hours=sums[bearer].gpu_seconds / _HOUR_SECONDS,
            used_gpu_hours=sums[bearer].used_gpu_seconds / _HOUR_SECONDS,
            wasted_gpu_hours=sums[bearer].wasted_gpu_seconds / _HOUR_SECONDS,
        )
        for bearer in _in_order(sums)
    )


def hours_by_fate(usage: PartUsage) -> dict[Fate, float]:
    """Return the GPU-hours of each fate; together they are all that was installed."""
    found = dict.fromkeys(Fate, 0.0)
    for row in hours_rows(usage):
        found[row.fate] += row.gpu_hours
    return found


def cost_rows(statement: Statement) -> tuple[CostRow, ...]:
    """Return who bears what: teams first, then the lines of the operator, each of these whether it is 0 or not."""
    lines: dict[Bearer, list[Line]] = {Bearer(fate=fate): [] for fate in _OPERATOR_ROWS}
    for line in statement.lines:
        lines.setdefault(line.bearer, []).append(line)
    return tuple(_cost_row(bearer, lines[bearer]) for bearer in _in_order(lines))


def _cost_row(bearer: Bearer, lines: Iterable[Line]) -> CostRow:
    cents: dict[Service, Cents] = {}
    gpu_seconds = 0
    for line in lines:
        cents[line.service] = Cents(cents.get(line.service, 0) + line.cents)
        if line.service is Service.GPU:
            gpu_seconds += int(line.quantity)
    return CostRow(
        fate=bearer.fate,
        team="" if bearer.owner is None else bearer.owner.team,
        project="" if bearer.owner is None else bearer.owner.project,
        gpu_hours=gpu_seconds / _HOUR_SECONDS,
        cents=cents,
    )


def _in_order(bearers: Iterable[Bearer]) -> list[Bearer]:
    places = {fate: place for place, fate in enumerate(Fate)}
    return sorted(bearers, key=lambda each: (places[each.fate], each.names))
