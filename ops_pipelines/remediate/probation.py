"""Watches nodes on probation and jobs that were moved: until the node is like any other, until the job continues.

What ends a probation well or badly is judged by `verification`; a relapse climbs the ladder. Progress of a job is a
checkpoint newer than its resumption: what is only running proves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, Recovery, advance, climb
from ops_pipelines.core.observation import JobState, JobStatus, has_moved_on
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import Durations
from ops_pipelines.observe.intake import Intake
from ops_pipelines.remediate.gate import escalate
from ops_pipelines.remediate.guardrails.consents import marked_by_rollouts
from ops_pipelines.remediate.judgement import Lease, nodes_in_begun_waves
from ops_pipelines.remediate.perform import Progress, Stage, perform
from ops_pipelines.remediate.snapshot import is_shared_silence
from ops_pipelines.remediate.verbs import inspect_node
from ops_pipelines.remediate.verification import Recovery as NodeRecovery
from ops_pipelines.remediate.verification import Verdict, judge_probation

_SAID_AT_MOST = 5
"""How often a node is made last choice within one probation: a scheduler that forgets more often has other troubles."""
_NUMBERS_APART = 1_000
"""Between the numbers of the same act repeated: no plan of the incident has such a number."""
_MARKS_ARE_SOUGHT = timedelta(days=1)
"""So far back incidents are looked at that have ended: each pass looks."""
_NUMBER_OF_NOTICE = -100_000
"""Messages of plans count upwards from 1: no notice of theirs has this number. One for each attempt that was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationReport:
    """What was found in this pass of one node that was repaired, or is on probation."""

    incident: Incident
    node: NodeName
    verdict: Verdict
    returned: Progress | None
    """How far its return came, or the end of its probation; None unless it was proven well."""


def see_to_probation(incident: Incident, seen: Intake, cluster: Cluster, *, lease: Lease) -> VerificationReport:
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
        inspection=inspect_node(node, cluster) if is_over else None,
        conditions=cluster.ledger.conditions(),
        gpu_count=cluster.rules.topology.gpus_per_node,
        durations=durations,
        now=now,
    )
    put_back = None
    if verdict.recovery is NodeRecovery.PERSISTS and not is_over:
        state = cluster.ledger.read_state(now)
        if is_shared_silence(cluster.ledger.conditions(), state, cluster.rules.policy):
            shared = "many nodes are silent at once: no fault of its own"
            waits = Verdict(recovery=NodeRecovery.SOAKING, facts=(shared,))
            return VerificationReport(incident=incident, node=node, verdict=waits, returned=None)
    if status is not None and not is_over and not status.is_last_choice:
        _say_again(incident, node, cluster, lease=lease)
    if verdict.recovery is NodeRecovery.PERSISTS:
        relapsed = climb(incident, IncidentEvent.RELAPSED, why="; ".join(verdict.facts), at=now)
        cluster.ledger.change_incident(relapsed, actor=AUTOPILOT, now=now)
    elif verdict.recovery is NodeRecovery.RECOVERED:
        put_back = _put_back(incident, node, cluster, verdict, lease=lease)
    elif is_over and now - incident.returned_at > durations.probation + durations.reboot_limit:
        escalate(incident, cluster, lease=lease, why=f"{node}: {'; '.join(verdict.facts)}")
    return VerificationReport(incident=incident, node=node, verdict=verdict, returned=put_back)


def _say_again(incident: Incident, node: NodeName, cluster: Cluster, *, lease: Lease) -> None:
    """Make a node last choice again where the scheduler forgot it: Slurm forgets weights when it restarts."""
    said = [each for each in cluster.ledger.records(incident.incident) if each.action.verb is Verb.PUT_LAST]
    if not any(each.outcome is not None and each.outcome.kind is OutcomeKind.DONE for each in said):
        return  # It never was: the scheduler cannot, and the ledger says why.
    if len(said) > _SAID_AT_MOST:
        return
    number = incident.plan_count + _NUMBERS_APART * len(said)
    action = Action(verb=Verb.PUT_LAST, incident=incident.incident, node=node, try_number=number)
    perform(Order(action=action, behind=incident.plan), cluster, lease=lease, judged_on=incident)


def _put_back(incident: Incident, node: NodeName, cluster: Cluster, verdict: Verdict, *, lease: Lease) -> Progress:
    action = Action(verb=Verb.PUT_BACK, incident=incident.incident, node=node, try_number=incident.plan_count)
    progress = perform(Order(action=action, behind=incident.plan), cluster, lease=lease, judged_on=incident)
    if progress.stage is Stage.UNDER_WAY:
        progress = perform(Order(action=action, behind=incident.plan), cluster, lease=lease, judged_on=incident)
    now = cluster.clock.now()
    if progress.stage is Stage.DONE:
        note = f"healed: {'; '.join(verdict.facts)}"
        healed = advance(incident, IncidentEvent.RECOVERED, at=now, note=note)
        cluster.ledger.change_incident(healed, actor=AUTOPILOT, now=now)
    elif progress.stage is Stage.FAILED:
        why = f"{node} is well but could not be put back among the others: {progress.reason}"
        escalate(incident, cluster, lease=lease, why=why)
    return progress


def put_back_what_was_left(cluster: Cluster, *, lease: Lease) -> None:
    """Let nodes be chosen like any other that a person took back into service after a relapse on probation.

    The mark of a probation that came to no end of its own is nobody else's: it would count against the cap for ever.
    Not while an incident of the node is open: a drain that was lifted, or forgotten, has repaired nothing, and what
    still breaks is chosen last until a person's word, or its return, has ended that. Raises SourceError if the
    scheduler does not list its nodes.
    """
    if cluster.rules.policy.durations.probation <= timedelta(0):
        return
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    busy = {node for each in state.incidents for node in each.nodes} | state.owned.keys()
    # A node that soaks after an update is last choice until its wave is good.
    busy |= marked_by_rollouts(nodes_in_begun_waves(state), state.records)
    left = {
        each.node
        for each in cluster.scheduler.read_nodes()
        if each.is_last_choice and not each.is_drained and each.node not in busy
    }
    if not left:
        return
    for incident in cluster.ledger.incidents_since(now - _MARKS_ARE_SOUGHT):
        if len(incident.nodes) != 1 or not incident.nodes <= left:
            continue
        marks = [
            each.action
            for each in cluster.ledger.records(incident.incident)
            if each.action.verb in (Verb.PUT_LAST, Verb.PUT_BACK) and each.took_effect
        ]
        if marks and marks[-1].verb is Verb.PUT_LAST:
            put_back = replace(marks[-1], verb=Verb.PUT_BACK)
            perform(Order(action=put_back), cluster, lease=lease)


def follow_jobs(cluster: Cluster, *, lease: Lease) -> None:
    """Take note of moved jobs that continue, and notify the owner once of one that does not.

    Whatever became of the plan that moved a job: what was released is followed in every open state of its incident.
    Raises SourceError if the scheduler does not list its jobs.
    """
    now = cluster.clock.now()
    state = cluster.ledger.read_state(now)
    moves = ((incident, with_moved(incident, state.records)) for incident in state.incidents)
    followed = [(incident, moved) for incident, moved in moves if any(_is_open(each) for each in moved)]
    if not followed:
        return
    jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
    durations = cluster.rules.policy.durations
    for incident, moved in followed:
        fresh = tuple(
            _unless_untold(each, follow(each, jobs, durations=durations, now=now), incident, cluster, lease=lease)
            for each in moved
        )
        if fresh != incident.recoveries:
            current = cluster.ledger.incident(incident.incident)
            if current == incident:
                cluster.ledger.change_incident(replace(incident, recoveries=fresh), actor=AUTOPILOT, now=now)


def with_moved(incident: Incident, records: Sequence[ActionRecord]) -> tuple[Recovery, ...]:
    """Return what is followed of an incident, with every job that it released and that is not followed yet."""
    ours = [each for each in records if each.action.incident == incident.incident]
    released = dict.fromkeys(
        each.action.attempt for each in ours if each.action.verb is Verb.RELEASE and each.took_effect
    )
    if not released:
        return incident.recoveries
    # Of an attempt that two plans held, the first hold shows when it ended.
    held = {each.action.attempt: each for each in reversed(ours) if each.action.verb is Verb.HOLD and _is_ours(each)}
    known = {each.attempt for each in incident.recoveries}
    return (
        *incident.recoveries,
        *(
            Recovery(
                attempt=attempt,
                gpu_count=held[attempt].gpu_count,
                held_at=held[attempt].begun_at,
                checkpointed_at=held[attempt].checkpointed_at,
            )
            for attempt in released
            if attempt is not None and attempt in held and attempt not in known
        ),
    )


def _is_ours(hold: ActionRecord) -> bool:
    """Return whether a hold ended the attempt; what ended by itself, or was held by somebody else, we did not move."""
    return hold.outcome is None or hold.outcome.was_needed


def _unless_untold(
    before: Recovery, after: Recovery, incident: Incident, cluster: Cluster, *, lease: Lease
) -> Recovery:
    """Return what is known of a job by now; while its owner cannot be notified that it makes no progress, it stays
    open."""
    if not _is_open(before) or not after.ended_as.startswith(_NO_PROGRESS):
        return after
    told = _tell_owner(incident, after, cluster, lease=lease)
    return after if told.stage in (Stage.DONE, Stage.FAILED) else replace(after, ended_as="")


_NO_PROGRESS = "no checkpoint was seen"


def _is_open(recovery: Recovery) -> bool:
    return recovery.progressed_at is None and not recovery.ended_as


def follow(recovery: Recovery, jobs: Mapping[JobId, JobStatus], *, durations: Durations, now: datetime) -> Recovery:
    """Return what is known by now of a job that was moved."""
    if not _is_open(recovery):
        return recovery
    job = jobs.get(recovery.attempt.job)
    if job is None:
        return replace(recovery, ended_as="gone from the scheduler before it was seen to continue")
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


def _tell_owner(incident: Incident, recovery: Recovery, cluster: Cluster, *, lease: Lease) -> Progress:
    text = (
        f"Your job {recovery.attempt.job} was moved at {recovery.held_at:%Y-%m-%d %H:%M} UTC and runs again since "
        f"{recovery.resumed_at:%H:%M} UTC; {recovery.ended_as}. Please look whether it makes progress."
    )
    notice = Action(
        verb=Verb.NOTIFY_OWNER,
        incident=incident.incident,
        attempt=recovery.attempt,
        text=text,
        try_number=_NUMBER_OF_NOTICE,
    )
    return perform(Order(action=notice), cluster, lease=lease)
