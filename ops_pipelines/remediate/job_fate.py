"""What a fault means for the jobs on its node, and which running jobs are marked held because a node fell silent.

How soon is `timing`'s reading of the catalogue, of the findings that still count. What follows for the jobs is
`job_moves`', for the node `repair_steps`'.

At its silence limit the scheduler starts such a job elsewhere, while its processes may still write. The mark costs
nobody anything, so it is set at the first sight of a silence, before that is believed. Whether one may be set is
`guardrails`'; whoever moves the job afterwards takes the mark over (`remediation`).
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import MARKS, Action, ActionRecord, Verb
from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import AT_ONCE, Finding, Hazard, Response
from ops_pipelines.core.identity import IncidentId, JobId, NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    CONDITION_SOURCES,
    DETECTOR_SOURCE,
    HISTORY_SOURCE,
    TELEMETRY_SOURCE,
    JobState,
    JobStatus,
    NodeStatus,
    has_moved_on,
)
from ops_pipelines.remediate.guardrails.facts import (
    ClusterFacts,
    being_moved,
    is_cut_off,
    mark_of,
    open_marks,
    power_cut_at,
    returned_at,
)
from ops_pipelines.remediate.timing import hazard_of

# -- what a fault means for the jobs on its node --


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


# -- which running jobs are marked held because a node of theirs fell silent --


_TRIED_AGAIN_AFTER = timedelta(minutes=10)
"""What the scheduler has refused it will refuse again in a moment; a job that stays held is a night's work lost."""
_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is to be done about marks now."""

    to_set: tuple[Action, ...]
    to_lift: tuple[Action, ...]
    in_sight: tuple[ActionRecord, ...]
    """What must be known of standing marks for as long as they stand, with the tries to take them off."""


def find_marks(
    facts: ClusterFacts, *, silent_since: Mapping[NodeName, datetime], causes: Mapping[NodeName, IncidentId]
) -> Marks:
    """Return the marks that are lacking, and those whose jobs every node has answered for.

    `silent_since` are the nodes that are seen silent, `causes` the incident of each. One silence marks an attempt once:
    who releases it meanwhile has decided.
    """
    known = {(each.action.attempt, each.action.part) for each in facts.records if each.action.verb is Verb.MARK}
    to_set = []
    for job in sorted(facts.jobs.values(), key=lambda job: job.job):
        silent = sorted(
            (silent_since[name], name)
            for name in job.nodes
            if name in silent_since and name in causes and _is_silent(name, facts)
        )
        if not silent or job.state not in _RUNS or job.is_held or not job.is_requeueable or job.attempt is None:
            continue
        since, name = silent[0]
        part = since.isoformat()
        if (job.attempt, part) not in known:
            to_set.append(Action(verb=Verb.MARK, incident=causes[name], attempt=job.attempt, part=part))
    standing = standing_marks(facts.records, facts.jobs)
    names = {mark_of(mark) for mark in standing}
    in_sight = tuple(each for each in facts.records if each.action.verb in MARKS and mark_of(each) in names)
    ended_at: defaultdict[Hashable, list[datetime]] = defaultdict(list)
    for each in in_sight:
        if each.action.verb is Verb.UNMARK and each.outcome is not None:
            ended_at[mark_of(each)].append(each.outcome.finished_at)
    moved = being_moved(facts)
    cut_at = power_cut_at(facts.records)
    to_lift = [
        lift
        for mark in standing
        if mark.action.attempt not in moved and not _lacks_an_answer(mark, facts, cut_at)
        if (lift := _next_lift(mark, ended_at[mark_of(mark)], now=facts.taken_at)) is not None
    ]
    return Marks(to_set=tuple(to_set), to_lift=tuple(to_lift), in_sight=in_sight)


def _next_lift(mark: ActionRecord, ended_at: Sequence[datetime], *, now: datetime) -> Action | None:
    """Return the act that takes a mark off; where one came to nothing, another one after a while."""
    if ended_at and now - max(ended_at) < _TRIED_AGAIN_AFTER:
        return None
    incident, attempt, part = mark_of(mark)
    return Action(verb=Verb.UNMARK, incident=incident, attempt=attempt, part=part, try_number=1 + len(ended_at))


def standing_marks(records: Collection[ActionRecord], jobs: Mapping[JobId, JobStatus]) -> tuple[ActionRecord, ...]:
    """Return the marks of ours whose jobs are still held by them, oldest first."""
    return tuple(mark for mark in open_marks(records) if _stands(mark, jobs))


def nodes_in_doubt(facts: ClusterFacts) -> frozenset[NodeName]:
    """Return the silent nodes of marked jobs that the scheduler has given up: only their power switch can tell."""
    return frozenset(
        name
        for mark in standing_marks(facts.records, facts.jobs)
        if mark.action.attempt is not None and facts.jobs[mark.action.attempt.job].state is JobState.PENDING
        for name in mark.attempt_nodes
        if _is_silent(name, facts)
    )


def _stands(mark: ActionRecord, jobs: Mapping[JobId, JobStatus]) -> bool:
    attempt = mark.action.attempt
    job = None if attempt is None else jobs.get(attempt.job)
    if attempt is None or job is None or has_moved_on(job, attempt) or job.ended_at is not None:
        return False
    return job.is_held and not job.is_held_by_user


def _lacks_an_answer(mark: ActionRecord, facts: ClusterFacts, cut_at: Mapping[NodeName, datetime]) -> bool:
    """Return whether a node of the attempt is silent, has power, and has not lost it since the mark was set."""
    return any(
        _is_silent(name, facts)
        and name not in facts.without_power
        and (name not in cut_at or cut_at[name] < mark.begun_at)
        for name in mark.attempt_nodes
    )


def _is_silent(name: NodeName, facts: ClusterFacts) -> bool:
    return name not in facts.nodes or not facts.nodes[name].is_responding
