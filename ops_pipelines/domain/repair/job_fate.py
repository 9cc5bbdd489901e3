"""What a fault means for the jobs on its node: whether the node is silent, and whether it has ended them, or how soon.

How soon is `steps.timing`'s reading of the catalogue, of the findings that still count. What follows for the jobs is
`job_moves`', for the node `repair_steps`'.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import AT_ONCE, Finding, Hazard, Response
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    CONDITION_SOURCES,
    DETECTOR_SOURCE,
    HISTORY_SOURCE,
    TELEMETRY_SOURCE,
    JobStatus,
    NodeStatus,
)
from ops_pipelines.domain.guardrails.facts import is_cut_off, returned_at
from ops_pipelines.domain.guardrails.judge import ClusterFacts
from ops_pipelines.domain.steps.timing import hazard_of

_DEAD = Hazard(
    family=None,
    first_action=None,
    ends_job_per_hour=AT_ONCE,
    slowdown_ratio=0.0,
    source="a node that is silent gives no job a future",
)
_SOURCES_OF_METRICS = frozenset({TELEMETRY_SOURCE, DETECTOR_SOURCE})
_SOURCES_OF_NO_LOG = CONDITION_SOURCES | {HISTORY_SOURCE}


def is_silent(incident: Incident, nodes: Mapping[NodeName, NodeStatus]) -> bool:
    """Return whether an incident is about a node that does not answer.

    Before anything was tried, what calls for a power cycle is a silent node. Otherwise the scheduler is asked, too: a
    rung up the ladder says POWER_CYCLE of nodes that answer, and one that fell silent may stand above that rung.
    """
    if incident.response is Response.POWER_CYCLE and not incident.tries:
        return True
    is_cause = any(each.response is Response.POWER_CYCLE and not each.is_secondary for each in incident.findings)
    is_cycled = bool(incident.tries) and incident.response >= Response.POWER_CYCLE
    if not is_cause and not is_cycled:
        return False
    return any(name in nodes and not nodes[name].is_responding for name in incident.nodes)


def hazard_for(incident: Incident, facts: ClusterFacts, *, job: JobId | None = None) -> Hazard:
    """Return what the incident's fault does to a job that goes on; without rates nothing is waited for.

    That one job stands still says nothing of another on the same node; `job` None: of whichever it is worst for.

    On a node that was returned only what was seen since then counts: what was repaired did nothing to the jobs that
    began there afterwards.
    """
    if not facts.hazards or is_silent(incident, facts.nodes):
        return _DEAD
    counting = _findings_that_count(incident, facts)
    return hazard_of([each for each in counting if not _is_of_another(each, job)], facts.hazards)


def _is_of_another(finding: Finding, job: JobId | None) -> bool:
    return finding.family is Family.STALL and job is not None and finding.job not in (None, job)


def _findings_that_count(incident: Incident, facts: ClusterFacts) -> tuple[Finding, ...]:
    since = returned_at(incident, facts.records)
    return tuple(each for each in incident.findings if _is_since(each, since))


def _is_since(finding: Finding, since: datetime | None) -> bool:
    return since is None or (finding.last_at or finding.found_at) > since


def has_surely_ended(job: JobStatus, incident: Incident, facts: ClusterFacts) -> bool:
    """Return whether a fault has ended a job's work: a silent node has, and a lost part if the job has all GPUs there.

    Which GPUs a job has is not known: one that has some of a node's may be on the others. A replica may be the last
    that serves: a line that somebody forged, or a series that an exporter lost, is no proof that it is dead.
    """
    if not hazard_for(incident, facts, job=job.job).has_ended_job:
        return False
    if is_cut_off(job, facts):
        return True
    seen = [each for each in _findings_that_count(incident, facts) if _may_have_hit(each, job)]
    if facts.hazards and not hazard_of(seen, facts.hazards).has_ended_job:
        return False
    if job.service and not _is_seen_by_two(seen, facts.hazards):
        return False
    known = [facts.nodes[name] for name in job.nodes if name in facts.nodes]
    return job.gpu_count >= sum(node.gpu_count for node in known)


def _may_have_hit(finding: Finding, job: JobStatus) -> bool:
    """Return whether a finding may be about the present attempt of a job.

    A part that is gone is gone for whoever starts there. What was logged before the attempt began has done nothing to
    it, and a hang that began before is another's, though the job has the same number.
    """
    if _is_of_another(finding, job.job):
        return False
    if job.started_at is None or (finding.is_lasting and finding.family is not Family.STALL):
        return True
    return (finding.last_at or finding.found_at) >= job.started_at


def _is_seen_by_two(findings: Sequence[Finding], hazards: Sequence[Hazard]) -> bool:
    """Return whether both the metrics and a log show a fault that ends jobs, each by itself."""
    by_metrics = [each for each in findings if _SOURCES_OF_METRICS & _sources_of(each)]
    by_log = [each for each in findings if _sources_of(each) - _SOURCES_OF_NO_LOG]
    return all(hazard_of(seen, hazards).has_ended_job for seen in (by_metrics, by_log))


def _sources_of(finding: Finding) -> frozenset[str]:
    return frozenset(each.source for each in finding.evidence)
