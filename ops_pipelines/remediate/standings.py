"""Where each node is on the ladder, and which nodes are on probation.

Reads the ledger and, for probation, the scheduler. Which rung comes next is `ladder`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState, Try, asked_of_person
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.ladder import RUNGS, Rung, next_repair, position_of, rung_of
from ops_pipelines.remediate.repair_report import queued_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one node is because of one incident."""

    node: NodeName
    incident: Incident
    rung: Rung
    since: datetime
    """When that rung was first reached."""
    failed: frozenset[Rung]
    """The rungs that were tried and did not help."""
    next_rung: Rung | None
    """What comes next by itself; None: nothing, or a person decides."""
    waits_for: str
    """In words; empty: for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """One node that is watched after its return."""

    node: NodeName
    incident: Incident
    since: datetime
    until: datetime
    jobs: tuple[JobId, ...] | None
    """What runs on it; None: the scheduler did not answer."""


def standings_of(cluster: Cluster, state: LedgerState) -> tuple[Standing, ...]:
    """Return every node of an open incident that is above watching, the highest first, then by name."""
    now = cluster.clock.now()
    found = []
    for incident in state.incidents:
        records = [each for each in state.records if each.action.incident == incident.incident]
        for node in sorted(incident.nodes):
            of_node = [each for each in records if each.action.node in (None, node)]
            rung = position_of(incident, of_node)
            if rung is Rung.MONITOR:
                continue
            found.append(
                Standing(
                    node=node,
                    incident=incident,
                    rung=rung,
                    since=_reached_at(rung, incident, of_node),
                    failed=frozenset(rung_of(each.response) for each in incident.tries),
                    next_rung=_next_rung(incident, rung, state, cluster, now=now),
                    waits_for=_waits_for(incident, cluster),
                )
            )
    return tuple(sorted(found, key=lambda each: (-each.rung, each.node, each.incident.incident)))


def probations_of(cluster: Cluster, state: LedgerState) -> tuple[Probation, ...]:
    """Return every node on probation, the one that ends first first. The scheduler is asked once."""
    watched = [each for each in state.incidents if each.state is IncidentState.PROBATION]
    if not watched:
        return ()
    jobs_by_node = _jobs_by_node(cluster)
    found = [
        Probation(
            node=node,
            incident=incident,
            since=incident.returned_at or incident.changed_at,
            until=(incident.returned_at or incident.changed_at) + cluster.rules.policy.durations.probation,
            jobs=None if jobs_by_node is None else tuple(sorted(jobs_by_node.get(node, ()))),
        )
        for incident in watched
        for node in sorted(incident.nodes)
    ]
    return tuple(sorted(found, key=lambda each: (each.until, each.node)))


def _jobs_by_node(cluster: Cluster) -> dict[NodeName, list[JobId]] | None:
    try:
        jobs = cluster.scheduler.read_jobs()
    except SourceError:
        return None
    found: dict[NodeName, list[JobId]] = {}
    for job in jobs:
        for node in job.nodes if job.state is JobState.RUNNING else ():
            found.setdefault(node, []).append(job.job)
    return found


def _reached_at(rung: Rung, incident: Incident, records: Sequence[ActionRecord]) -> datetime:
    if rung is Rung.RETURN_TO_VENDOR:
        return queued_at(incident)
    verbs = RUNGS[rung].verbs or RUNGS[Rung.DRAIN].verbs  # An isolation begins with its drain.
    return min((each.begun_at for each in records if each.action.verb in verbs), default=incident.changed_at)


def _next_rung(incident: Incident, rung: Rung, state: LedgerState, cluster: Cluster, *, now: datetime) -> Rung | None:
    """Return the rung of the next repair; of one that is under way or being proven, the one after it."""
    if incident.state in (IncidentState.IN_REPAIR, IncidentState.ESCALATED) or len(incident.nodes) != 1:
        return None
    asked = incident
    if incident.state is not IncidentState.OPEN:
        present = next((each for each in REPAIRS if rung_of(each) is rung), incident.response)
        asked = replace(
            incident, tries=(*incident.tries, Try(response=present, ended_at=now, why="if it does not help"))
        )
    found = rung_of(next_repair(asked, state.records, limits=cluster.rules.policy.ladder, now=now))
    return found if found > rung else None


def _waits_for(incident: Incident, cluster: Cluster) -> str:
    durations = cluster.rules.policy.durations
    match incident.state:
        case IncidentState.OPEN:
            return "its plan to begin"
        case IncidentState.ACTING:
            return "the witnesses of the plan under way"
        case IncidentState.VERIFYING:
            return "the tests that prove it well"
        case IncidentState.PROBATION:
            until = (incident.returned_at or incident.changed_at) + durations.probation
            return f"the end of its probation, {until:%d %b %H:%M} UTC"
        case IncidentState.IN_REPAIR:
            return f"hands; then `ops-pipelines repair done {incident.incident}`"
        case IncidentState.ESCALATED:
            return f"a person: {asked_of_person(incident)}"
        case _:
            return ""
