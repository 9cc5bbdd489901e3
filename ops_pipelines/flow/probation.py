"""Sees to nodes on probation and to the jobs that were moved: until the node is like any other, until the job goes on.

What ends a probation well or badly is judged by `domain.verification`; a relapse climbs the ladder. Progress of a job
is a checkpoint newer than its resumption: what is only running proves nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from ops_pipelines.domain.action import Action, OutcomeKind, Verb
from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.domain.incident import Incident, IncidentEvent, IncidentState, Recovery, advance
from ops_pipelines.domain.ladder import climb
from ops_pipelines.domain.observation import JobState, JobStatus, NodeInspection, has_moved_on
from ops_pipelines.domain.policy import Durations
from ops_pipelines.domain.verification import NodeBaseline, Verdict, judge_probation
from ops_pipelines.domain.verification import Recovery as NodeRecovery
from ops_pipelines.flow.carry_out import escalate
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.intake import Intake
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.perform import Progress, Stage, perform
from ops_pipelines.ports.ledger import AUTOPILOT
from ops_pipelines.ports.source_error import SourceError

_SAID_AT_MOST = 5
"""How often a node is made last choice within one probation: a scheduler that forgets more often has other troubles."""
_NUMBERS_APART = 1_000
"""Between the numbers of the same act said again: no plan of the incident has such a number."""
_FOLLOWED = frozenset({IncidentState.VERIFYING, IncidentState.PROBATION, IncidentState.IN_REPAIR})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbationReport:
    """What was found of one node on probation in this pass."""

    incident: Incident
    node: NodeName
    verdict: Verdict
    put_back: Progress | None
    """How far its return among the others came; None unless its probation is over."""


def see_to_probation(incident: Incident, seen: Intake, cluster: Cluster, *, lease: Lease) -> ProbationReport:
    """Judge a node on probation; end the probation where it is over, climb where the node broke again."""
    (node,) = incident.nodes
    now = cluster.clock.now()
    durations = cluster.rules.policy.durations
    assert incident.returned_at is not None  # what is on probation was returned
    is_over = now >= incident.returned_at + durations.probation
    status = next((each for each in seen.nodes or () if each.node == node), None)
    verdict = judge_probation(
        incident,
        status=status,
        inspection=_inspect(node, cluster) if is_over else None,
        conditions=cluster.ledger.conditions(),
        baseline=NodeBaseline(gpu_count=cluster.rules.topology.gpus_per_node),
        durations=durations,
        now=now,
    )
    put_back = None
    if status is not None and not is_over and not status.is_last_choice:
        _say_again(incident, node, cluster, lease=lease)
    if verdict.recovery is NodeRecovery.PERSISTS:
        relapsed = climb(incident, IncidentEvent.RELAPSED, why="; ".join(verdict.facts), at=now)
        cluster.ledger.change_incident(relapsed, actor=AUTOPILOT, now=now)
    elif verdict.recovery is NodeRecovery.RECOVERED:
        put_back = _put_back(incident, node, cluster, verdict, lease=lease)
    elif is_over and now - incident.returned_at > durations.probation + durations.reboot_limit:
        escalate(incident, cluster, lease=lease, why=f"{node}: {'; '.join(verdict.facts)}")
    return ProbationReport(incident=incident, node=node, verdict=verdict, put_back=put_back)


def _say_again(incident: Incident, node: NodeName, cluster: Cluster, *, lease: Lease) -> None:
    """Make a node last choice again where the scheduler forgot it: Slurm forgets weights when it restarts."""
    said = [each for each in cluster.ledger.records(incident.incident) if each.action.verb is Verb.PUT_LAST]
    if not any(each.outcome is not None and each.outcome.kind is OutcomeKind.DONE for each in said):
        return  # It never was: the scheduler cannot, and the ledger says why.
    if len(said) > _SAID_AT_MOST:
        return
    number = incident.plan_count + _NUMBERS_APART * len(said)
    action = Action(verb=Verb.PUT_LAST, incident=incident.incident, node=node, try_number=number)
    perform(action, cluster, plan=incident.plan, lease=lease, judged_on=incident)


def _put_back(incident: Incident, node: NodeName, cluster: Cluster, verdict: Verdict, *, lease: Lease) -> Progress:
    action = Action(verb=Verb.PUT_BACK, incident=incident.incident, node=node, try_number=incident.plan_count)
    progress = perform(action, cluster, plan=incident.plan, lease=lease, judged_on=incident)
    if progress.stage is Stage.UNDER_WAY:
        progress = perform(action, cluster, plan=incident.plan, lease=lease, judged_on=incident)
    now = cluster.clock.now()
    if progress.stage is Stage.DONE:
        note = f"healed: {'; '.join(verdict.facts)}"
        healed = advance(incident, IncidentEvent.RECOVERED, at=now, note=note)
        cluster.ledger.change_incident(healed, actor=AUTOPILOT, now=now)
    elif progress.stage is Stage.FAILED:
        why = f"{node} is well but could not be put back among the others: {progress.reason}"
        escalate(incident, cluster, lease=lease, why=why)
    return progress


def follow_jobs(cluster: Cluster, *, lease: Lease) -> None:
    """Take note of moved jobs that go on, and tell the owner once of one that does not.

    Raises SourceError if the scheduler does not list its jobs.
    """
    now = cluster.clock.now()
    followed = [
        incident
        for incident in cluster.ledger.read_state(now).incidents
        if incident.state in _FOLLOWED and any(_is_open(each) for each in incident.recoveries)
    ]
    if not followed:
        return
    jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
    durations = cluster.rules.policy.durations
    for incident in followed:
        fresh = tuple(follow(each, jobs, durations=durations, now=now) for each in incident.recoveries)
        for before, after in zip(incident.recoveries, fresh, strict=True):
            if after.ended_as.startswith(_NO_PROGRESS) and _is_open(before) and after.attempt.job in jobs:
                _tell_owner(incident, after, cluster, lease=lease)
        if fresh != incident.recoveries:
            current = cluster.ledger.incident(incident.incident)
            if current == incident:
                cluster.ledger.change_incident(replace(incident, recoveries=fresh), actor=AUTOPILOT, now=now)


_NO_PROGRESS = "no checkpoint was seen"


def _is_open(recovery: Recovery) -> bool:
    return recovery.progressed_at is None and not recovery.ended_as


def follow(recovery: Recovery, jobs: Mapping[JobId, JobStatus], *, durations: Durations, now: datetime) -> Recovery:
    """Return what is known by now of a job that was moved."""
    if not _is_open(recovery):
        return recovery
    job = jobs.get(recovery.attempt.job)
    if job is None:
        return replace(recovery, ended_as="gone from the scheduler before it was seen to go on")
    if has_moved_on(job, recovery.attempt) and recovery.resumed_at is None:
        recovery = replace(recovery, resumed_at=job.started_at)
    if recovery.resumed_at is None:
        is_over = job.state not in (JobState.PENDING, JobState.COMPLETING, JobState.RUNNING, JobState.SUSPENDED)
        return replace(recovery, ended_as=job.state.value) if is_over else recovery
    if job.checkpointed_at is not None and job.checkpointed_at > recovery.resumed_at:
        return replace(recovery, progressed_at=job.checkpointed_at)
    if job.state is JobState.COMPLETED:
        return replace(recovery, progressed_at=job.ended_at or now)
    if job.ended_at is not None and job.state is not JobState.PENDING:
        return replace(recovery, ended_as=job.state.value)
    if now - recovery.resumed_at > durations.progress_limit:
        hours = durations.progress_limit.total_seconds() / 3600
        return replace(recovery, ended_as=f"{_NO_PROGRESS} within {hours:g} h of its resumption")
    return recovery


def _tell_owner(incident: Incident, recovery: Recovery, cluster: Cluster, *, lease: Lease) -> None:
    text = (
        f"Your job {recovery.attempt.job} was moved at {recovery.held_at:%Y-%m-%d %H:%M} UTC and runs again since "
        f"{recovery.resumed_at:%H:%M} UTC; {recovery.ended_as}. Please look whether it makes progress."
    )
    # Messages of plans count upwards from 1: this one has a number that none of them takes.
    number = -100_000 - incident.plan_count
    notice = Action(
        verb=Verb.NOTIFY_OWNER, incident=incident.incident, attempt=recovery.attempt, text=text, try_number=number
    )
    perform(notice, cluster, plan=None, lease=lease)


def _inspect(node: NodeName, cluster: Cluster) -> NodeInspection | None:
    try:
        return cluster.fleet.inspect(node)
    except SourceError:
        return None
