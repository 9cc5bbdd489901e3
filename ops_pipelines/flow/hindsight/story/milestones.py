"""When an incident began, was noticed, decided, drained, moved, repaired and returned: its milestones, by their times.

What a milestone took is the time since the one before it, so that the parts add up to the whole.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.flow.hindsight.story.chain import Chain

REPAIRS_OF_NODES = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON, Verb.REIMAGE})


class MilestoneKind(Enum):
    """What was reached."""

    BEGAN = "fault began"
    NOTICED = "noticed"
    DECIDED = "decided"
    APPROVED = "approved"
    DRAINED = "drained"
    MOVED = "last job moved"
    RUNNING = "jobs run again"
    PROGRESSED = "jobs beyond their checkpoints"
    REPAIRED = "repaired"
    HANDED_OVER = "handed over to people"
    RETURNED = "back in service"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """One point in the life of an incident."""

    number: int
    """As the picture and the table of a report call it, from 1."""
    kind: MilestoneKind
    at: datetime
    took_seconds: float
    """Since the milestone before it; 0 of the first."""
    since_began_seconds: float


def milestones_of(incident: Incident, chain: Chain, records: Collection[ActionRecord]) -> tuple[Milestone, ...]:
    """Return the milestones that were reached, by their times.

    Clocks of nodes may run ahead: what is said to have begun after it was noticed began, for us, when it was noticed.
    """
    began = min(incident.began_at, incident.opened_at)
    reached = [(MilestoneKind.BEGAN, began), (MilestoneKind.NOTICED, incident.opened_at)]
    reached += [(kind, max(at, began)) for kind, at in _later(incident, chain, records)]
    reached.sort(key=lambda each: (each[1], _ORDER[each[0]]))
    return tuple(
        Milestone(
            number=number,
            kind=kind,
            at=at,
            took_seconds=0.0 if number == 1 else (at - reached[number - 2][1]).total_seconds(),
            since_began_seconds=(at - began).total_seconds(),
        )
        for number, (kind, at) in enumerate(reached, start=1)
    )


_ORDER = {kind: place for place, kind in enumerate(MilestoneKind)}
"""Of milestones at one instant."""


def _later(
    incident: Incident, chain: Chain, records: Collection[ActionRecord]
) -> Iterator[tuple[MilestoneKind, datetime]]:
    if chain.plans:
        yield MilestoneKind.DECIDED, chain.plans[0].made_at
    if chain.approvals:
        yield MilestoneKind.APPROVED, chain.approvals[0].given_at
    drained = drained_at(records)
    if drained is not None:
        yield MilestoneKind.DRAINED, drained
    # Only when all have: one job that stands still is what a reader asks for.
    let_go = [each.begun_at for each in records if each.action.verb is Verb.RELEASE and each.took_effect]
    released = _when_all(let_go, count=len(incident.recoveries))
    if released is not None:
        yield MilestoneKind.MOVED, released
    running = _when_all([each.resumed_at for each in incident.recoveries], count=len(incident.recoveries))
    if running is not None:
        yield MilestoneKind.RUNNING, running
    progressed = _when_all([each.progressed_at for each in incident.recoveries], count=len(incident.recoveries))
    if progressed is not None:
        yield MilestoneKind.PROGRESSED, progressed
    repaired = done_at(records, REPAIRS_OF_NODES)
    if repaired:
        yield MilestoneKind.REPAIRED, repaired[-1]
    handed_over = [
        each.at
        for each in chain.changes
        if each.state in (IncidentState.ESCALATED.value, IncidentState.IN_REPAIR.value)
    ]
    if handed_over:
        yield MilestoneKind.HANDED_OVER, handed_over[0]
    returned = returned_at(incident, records)
    if returned is not None:
        yield MilestoneKind.RETURNED, returned
    if incident.closed_at is not None:
        yield MilestoneKind.CLOSED, incident.closed_at


def drained_at(records: Collection[ActionRecord]) -> datetime | None:
    """Return when the first drain was read back; None if no node was drained."""
    found = done_at(records, {Verb.DRAIN})
    return found[0] if found else None


def returned_at(incident: Incident, records: Collection[ActionRecord]) -> datetime | None:
    """Return since when the node is back in service; None if it is not, or was never taken."""
    if incident.returned_at is not None:
        return incident.returned_at
    drained, resumed = done_at(records, {Verb.DRAIN}), done_at(records, {Verb.RESUME})
    return resumed[-1] if resumed and (not drained or resumed[-1] >= drained[-1]) else None


def done_at(records: Collection[ActionRecord], verbs: Collection[Verb]) -> list[datetime]:
    """Return when acts of these verbs were witnessed, oldest first. What had lost its object did nothing."""
    return sorted(
        each.outcome.finished_at
        for each in records
        if each.action.verb in verbs and each.outcome is not None and each.took_effect
    )


def _when_all(times: Sequence[datetime | None], *, count: int) -> datetime | None:
    known = [at for at in times if at is not None]
    return max(known) if known and len(known) >= count else None
