"""The world that findings are correlated against: what holds, what runs where, and whom a fault on a node hits.

Readings only; which incidents there are is `board`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import IncidentId, JobAttempt, NodeName, Topology
from ops_pipelines.core.observation import HAS_PROCESSES, NO_NODE, JobState, JobStatus, NodeStatus, Observation
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.core.rollout import ChangeTime

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
    """How long an owner may not be told before the incident is given up: no node is at fault."""
    returned: frozenset[IncidentId]
    """Escalated incidents whose node a person has taken back into service."""
    told: frozenset[JobAttempt]
    """Attempts whose owner was told lately: once is enough, however often the program errs."""
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
        """Return whether an event is of a time at which its node was being changed. A condition shows itself anew."""
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
