"""GPU-hours that our own incidents made worthless: what credits are for.

Of an attempt that a broken part ended, or that we moved, the time since its last checkpoint, as far as the team held
GPUs in the part that is billed. What is not known is no credit, and counted in a note.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ops_pipelines.core.fault import AtFault
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.cost.lines import LostHours
from ops_pipelines.flow.cost.owners import OwnerReader
from ops_pipelines.review.week.incidents import at_fault_of
from ops_pipelines.review.week.work import MARGIN, read_job_history
from ops_pipelines.teams.desk import TeamsDesk

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
