"""The incidents while findings are being placed, the world they are correlated against, and what still holds.

Compares evidence with the conditions that hold now, without any waiting. How long it must stay away is `closing`.

Readings only; which incidents there are is `board`.

The one thing that changes during a correlation; the passes over it are the modules that take it. It decides nothing:
which incident a finding joins, what is merged and what is over is theirs to say.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ops_pipelines.core.fault import Component, FirstAction
from ops_pipelines.core.finding import ISOLATED_FOR, REPAIRS, Finding, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, Topology
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import (
    CONDITION_SOURCES,
    HAS_PROCESSES,
    NO_NODE,
    JobState,
    JobStatus,
    NodeStatus,
    Observation,
    Signal,
)
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.core.rollout import ChangeTime
from ops_pipelines.diagnose.hypothesis import by_urgency, diagnose, raised_response

# -- whether what an incident rests on still holds --


_STAYS = 0.25
"""When no more than this share of a wide fault's nodes is still broken, those few have faults of their own."""
Standing = tuple[Signal, NodeName, Component | None, JobId | None, str | None]


def standing_of(observation: Observation) -> Standing:
    """Return what makes two observations the same condition, whenever each began."""
    return observation.signal, observation.node, observation.component, observation.job, observation.signature


def is_shown(findings: Iterable[Finding], present: set[Standing]) -> bool:
    """Return whether any condition that any of the findings rests on holds now."""
    return any(standing_of(observation) in present for finding in findings for observation in finding.evidence)


def is_over(finding: Finding, present: set[Standing]) -> bool:
    """Return whether a finding rests on conditions alone, none of which holds any more."""
    return all(
        observation.source in CONDITION_SOURCES and standing_of(observation) not in present
        for observation in finding.evidence
    )


def has_cleared(incident: Incident, present: set[Standing]) -> bool:
    """Return whether an incident rests on lasting conditions alone, none of which holds any more.

    Never of a repair that we have started: a person or the verification ends it, not silence.
    """
    if incident.plan_count > 0 and not incident.is_mass_event and incident.response in REPAIRS:
        return False
    lasting = [finding for finding in incident.findings if not finding.is_secondary or finding.is_lasting]
    if incident.suspect is not None and any(finding.is_lasting for finding in lasting):
        # What a switch or a feed did to its nodes is over when they are well again, whatever they logged meanwhile.
        lasting = [finding for finding in lasting if finding.is_lasting]
    return bool(lasting) and all(finding.is_lasting for finding in lasting) and not is_shown(lasting, present)


def is_mostly_over(incident: Incident, present: set[Standing]) -> bool:
    """Return whether a wide fault is over for all but a few of its nodes."""
    if incident.suspect is None or not incident.is_mass_event:
        return False
    if any(finding.response in REPAIRS and not finding.is_lasting for finding in incident.findings):
        return False
    return 0 < len(still_broken(incident, present)) <= max(1, _STAYS * len(incident.nodes))


def still_broken(incident: Incident, present: set[Standing]) -> Mapping[NodeName, Finding]:
    """Return the nodes of a wide fault that still show it, each with the most urgent of what it shows."""
    return {
        finding.node: finding
        for finding in sorted(incident.findings, key=by_urgency, reverse=True)
        if finding.node in incident.nodes and is_shown([finding], present)
    }


_RELAPSING = frozenset({FirstAction.DRAIN_INSPECT, FirstAction.RMA, FirstAction.RESET_FABRIC})
"""What would only be looked at on any other node counts against one on probation."""


def isolates(finding: Finding) -> bool:
    """Return whether a finding is of the kind for which a node is isolated, taken alone."""
    return finding.first_action in ISOLATED_FOR and not finding.is_secondary


def is_shown_again(incident: Incident, finding: Finding) -> bool:
    """Return whether a finding shows again what a node was isolated for: the same rule, on the same part."""
    return (
        incident.response is Response.ISOLATE
        and isolates(finding)
        and any(
            (each.rule, each.node, each.component, each.gpu)
            == (finding.rule, finding.node, finding.component, finding.gpu)
            for each in incident.findings
        )
    )


def is_relapse(incident: Incident, finding: Finding) -> bool:
    """Return whether something happened on a node on probation that says that it is not well after all.

    Events count at once; a condition is judged by how long it lasts (`verification.judge_probation`). What a program
    or a job did wrong says nothing of the node.
    """
    return (
        incident.state is IncidentState.PROBATION
        and incident.returned_at is not None
        and finding.found_at > incident.returned_at
        and finding.node in incident.nodes
        and not finding.is_secondary
        and not finding.is_lasting
        and (finding.response in REPAIRS or finding.first_action in _RELAPSING or is_shown_again(incident, finding))
        and finding.confidence >= _BELIEVED
    )


_BELIEVED = 0.6
"""As for raising an incident (`diagnosis.RAISED_AT`)."""
# -- the world that findings are correlated against --
_JUST_ENDED = timedelta(minutes=10)
"""A job that died of its own fault is gone from the node when its log line is read.
Source: Meta RSC attributes a cause seen in the last 10 minutes of a job (arXiv 2410.21680)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What findings are correlated against."""

    jobs: Collection[JobStatus]
    conditions: Collection[Observation]
    """Conditions that hold now."""
    topology: Topology
    mass_event: MassEvent
    waiting_limit: timedelta
    """How long an owner may not be notified before the incident is given up: no node is at fault."""
    returned: frozenset[IncidentId]
    """Escalated incidents whose node a person has taken back into service."""
    told: frozenset[JobAttempt]
    """Attempts whose owner was notified lately: once is enough, however often the program errs."""
    incident_count: int
    now: datetime
    nodes: Collection[NodeStatus] = ()
    """How the scheduler sees the nodes; without them nobody is known to have restarted one."""
    changes: Mapping[NodeName, tuple[ChangeTime, ...]] = field(default_factory=dict)
    """When rollouts changed the versions of nodes, now or within the last day."""

    def is_changing(self, node: NodeName) -> bool:
        """Return whether the versions of a node are being changed now: what it shows is the rollout's to judge."""
        return any(each.ended_at is None for each in self.changes.get(node, ()))

    def is_made_by_change(self, finding: Finding) -> bool:
        """Return whether an event is of a time at which its node was being changed. A condition shows itself again."""
        times = self.changes.get(finding.node, ())
        return not finding.is_lasting and any(each.holds(finding.found_at) for each in times)


class Roster:
    """Who runs where, and who ended there moments ago without success: the victims of what breaks there.

    By node it is made when first asked for: most decisions place nothing.
    """

    def __init__(self, jobs: Collection[JobStatus], *, now: datetime) -> None:
        self._jobs = jobs
        self._by_id = {job.job: job for job in jobs}
        self._now = now
        self._by_node: dict[NodeName, frozenset[JobAttempt]] | None = None

    def victims_of(self, finding: Finding) -> frozenset[JobAttempt]:
        """Return the attempts that a finding hits: of the job that it names, else all on its node."""
        if finding.job is not None:
            job = self._by_id.get(finding.job)
            return (
                frozenset() if job is None or not self._is_hit(job) or job.attempt is None else frozenset({job.attempt})
            )
        return frozenset() if finding.node == NO_NODE else self.attempts_on(finding.node)

    def jobs_of(self, finding: Finding) -> list[JobStatus]:
        """Return the jobs that a finding may be about: the one that it names, however it ended, else its node's."""
        if finding.job is not None:
            job = self._by_id.get(finding.job)
            return [] if job is None else [job]
        on_node = {attempt.job for attempt in self.attempts_on(finding.node)}
        return [self._by_id[job] for job in sorted(on_node)]

    def attempts_on(self, node: NodeName) -> frozenset[JobAttempt]:
        """Return the attempts on a node now, and those that ended there moments ago without success."""
        if self._by_node is None:
            by_node: dict[NodeName, set[JobAttempt]] = {}
            for job in self._jobs:
                if job.attempt is not None and self._is_hit(job):
                    for each in job.nodes:
                        by_node.setdefault(each, set()).add(job.attempt)
            self._by_node = {each: frozenset(attempts) for each, attempts in by_node.items()}
        return self._by_node.get(node, frozenset())

    def _is_hit(self, job: JobStatus) -> bool:
        """Return whether a job runs, or died moments ago."""
        is_fresh = job.ended_at is not None and self._now - job.ended_at <= _JUST_ENDED
        died = job.state not in HAS_PROCESSES and job.state not in (JobState.PENDING, JobState.COMPLETED)
        return job.state in HAS_PROCESSES or (died and is_fresh)


# -- the incidents while findings are being placed --


class Board:
    """The incidents by name, oldest first, and the world that they are judged in."""

    def __init__(self, incidents: Collection[Incident], world: World) -> None:
        self._before: Mapping[IncidentId, Incident] = {
            incident.incident: incident for incident in sorted(incidents, key=lambda each: each.incident)
        }
        self._count = world.incident_count
        self.incidents: dict[IncidentId, Incident] = dict(self._before)
        self.world = world
        self.present: set[Standing] = {standing_of(condition) for condition in world.conditions}
        """The conditions that hold now."""
        self.roster = Roster(world.jobs, now=world.now)

    def changed(self) -> tuple[Incident, ...]:
        """Return every incident that is new or changed, each with what is believed of it now."""
        return tuple(
            replace(incident, hypothesis=diagnose(incident, topology=self.world.topology))
            for key, incident in self.incidents.items()
            if self._before.get(key) != incident
        )

    def put(self, incident: Incident) -> None:
        """Let an incident take the place of what it was."""
        self.incidents[incident.incident] = incident

    def open(
        self,
        finding: Finding,
        *,
        nodes: frozenset[NodeName],
        victims: frozenset[JobAttempt],
        suspect: Component | None = None,
    ) -> None:
        """Open an incident of one finding; it names the finding's GPU where it blames a node."""
        self.put(
            Incident(
                incident=self._next_name(),
                state=IncidentState.OPEN,
                response=raised_response([finding]),
                nodes=nodes,
                gpus=frozenset() if finding.gpu is None or not nodes else frozenset({finding.gpu}),
                victims=victims,
                findings=(finding,),
                opened_at=self.world.now,
                changed_at=self.world.now,
                suspect=suspect,
                note=finding.explanation,
            )
        )

    def open_wide(
        self,
        findings: tuple[Finding, ...],
        *,
        nodes: frozenset[NodeName],
        victims: frozenset[JobAttempt],
        note: str,
        suspect: Component | None = None,
    ) -> Incident:
        """Open an incident of many nodes, which pages and touches nothing; return it."""
        incident = Incident(
            incident=self._next_name(),
            state=IncidentState.OPEN,
            response=Response.PAGE_MASS_EVENT,
            nodes=nodes,
            gpus=frozenset(),
            victims=victims,
            findings=findings,
            opened_at=self.world.now,
            changed_at=self.world.now,
            suspect=suspect,
            note=note,
        )
        self.put(incident)
        return incident

    def merge(self, incident: Incident, *, into: Incident) -> None:
        """Close an open incident as part of another."""
        self.put(advance(incident, IncidentEvent.JOINED_OTHER, at=self.world.now, note=f"part of {into.incident}"))

    def clear(self, incident: Incident, *, note: str) -> None:
        """Close an incident that is over, and say why."""
        self.put(advance(incident, IncidentEvent.CLEARED, at=self.world.now, note=note))

    def _next_name(self) -> IncidentId:
        self._count += 1
        return IncidentId(f"INC-{self._count:04d}")


def is_touched(incident: Incident) -> bool:
    """Return whether we have started to act on an incident: a superseded one waits again, with its node drained."""
    return incident.state is not IncidentState.OPEN or incident.plan_count > 0
