"""What jobs and services may lose by us: every limit on holds, one function a rule.

When a job is best moved is `timing`'s arithmetic; these say when it must not be.
"""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, Workload
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import Refusal, never, wait
from ops_pipelines.remediate.guardrails.facts import (
    Blow,
    Case,
    ClusterFacts,
    Rule,
    expected_loss,
    has_died_with_its_node,
)

_AN_HOUR = timedelta(hours=1)
_NOT_ENDED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN})
_HOLD_SHOWS_WITHIN = timedelta(minutes=10)
"""A before-entry of a hold covers the time until the job is seen to be held, as with drains."""


def keeps_requeue_limit(case: Case) -> Refusal | None:
    """Judge a hold by how many earlier attempts of the job we ended: what loops is not helped by one more.

    What died with its node is started again by the scheduler whatever we do: there the hold only puts a fence before.
    """
    attempt, limits = case.action.attempt, case.policy.recovery
    if case.action.verb is not Verb.HOLD or attempt is None or has_died_with_its_node(case):
        return None
    moved = {
        record.action.attempt
        for record in _holds_within(limits.requeue_window, case)
        if record.action.attempt is not None
        and record.action.attempt.job == attempt.job
        and record.action.attempt != attempt
    }
    if len(moved) >= limits.max_requeues_count:
        return never(
            "requeue_limit",
            f"job {attempt.job} was moved {len(moved)} time(s) within "
            f"{limits.requeue_window.total_seconds() / 3600:g} h; max_requeues_count is {limits.max_requeues_count}, "
            "so its owner is told instead",
        )
    return None


def keeps_hourly_loss(case: Case) -> Refusal | None:
    """Judge a hold by the GPU-hours that our holds of the last hour threw away; what is unknown counts as the most."""
    if case.action.verb is not Verb.HOLD or case.action.has_ended:
        return None
    cap, loss = case.policy.blast_caps.max_gpu_hours_per_hour, _charge(case.job, case.facts)
    lost = lost_within_hour(case.facts, but=frozenset({case.action.attempt}))
    if lost + loss <= cap:
        return None
    return wait(
        "hourly_loss",
        f"{lost:.1f} GPU-hours were lost by our holds within the hour, and this costs {loss:.1f} more; "
        f"max_gpu_hours_per_hour is {cap:g}",
    )


def lost_within_hour(facts: ClusterFacts, *, but: frozenset[JobAttempt | None] = frozenset()) -> float:
    """Return the GPU-hours that our holds of the last hour were expected to cost, without those of some attempts.

    A loss that was not known is charged as the whole attempt.
    """
    losses: dict[JobAttempt | None, float] = {}
    for record in facts.records:
        if record.action.verb is Verb.HOLD and record.begun_at > facts.taken_at - _AN_HOUR:
            losses[record.action.attempt] = max(losses.get(record.action.attempt, 0.0), _charged(record, facts))
    return sum(loss for attempt, loss in losses.items() if attempt not in but)


def _charge(job: JobStatus, facts: ClusterFacts) -> float:
    """Return the GPU-hours to charge for ending the attempt now: as expected, else all that it can have worked."""
    known = expected_loss(job, facts)
    if known is not None:
        return known
    if job.workload is Workload.INFERENCE or job.started_at is None:
        return 0.0
    return _whole_age(job.started_at, facts.taken_at, gpu_count=job.gpu_count)


def _charged(record: ActionRecord, facts: ClusterFacts) -> float:
    """Return what a hold of ours is charged with; what the fault had ended was not lost by us."""
    if record.lost_gpu_hours is not None:
        return record.lost_gpu_hours
    attempt = record.action.attempt
    if attempt is None or record.action.has_ended:
        return 0.0
    job = facts.jobs.get(attempt.job)
    if job is not None and job.workload is Workload.INFERENCE:
        return 0.0  # Requests, and no work that is kept.
    return _whole_age(attempt.started_at, record.begun_at, gpu_count=record.gpu_count)


def _whole_age(began_at: datetime, ended_at: datetime, *, gpu_count: int) -> float:
    return max(0.0, (ended_at - began_at).total_seconds()) * gpu_count / 3600


def keeps_service(case: Case) -> Refusal | None:
    """Judge a hold of a replica by those that go on serving. One that serves nobody takes nothing away."""
    if case.action.verb is not Verb.HOLD or not case.job.service or case.action.has_ended:
        return None
    serving = serving_replicas(case.job, case.facts)
    others = [each for each in serving if each.job != case.job.job]
    must = must_serve(case.job, case.facts, policy=case.policy)
    if len(others) == len(serving) or len(others) >= must:
        return None
    return wait(
        "min_serving",
        f"{len(others)} other replica(s) of {case.job.service} would serve, and {must} must; it waits for more",
    )


def serving_replicas(job: JobStatus, facts: ClusterFacts) -> tuple[JobStatus, ...]:
    """Return the replicas of the job's service that surely serve: `running_replicas`, but for those in doubt.

    A fault that ends jobs leaves a replica RUNNING that serves nobody. Which of those on its node it has ended nobody
    knows: as many as it took GPUs are not counted, and never the job itself, so that holding that takes something away.
    """
    running = running_replicas(job, facts)
    in_doubt: set[JobId] = set()
    for name, blows in facts.stricken.items():
        for blow in blows:
            there = sorted(
                each.job
                for each in running
                if name in each.nodes and each.job != job.job and each.job not in in_doubt and _may_have_hit(blow, each)
            )
            in_doubt.update(there[: blow.gpu_count])
    return tuple(each for each in running if each.job not in in_doubt)


def _may_have_hit(blow: Blow, replica: JobStatus) -> bool:
    return blow.at is None or replica.started_at is None or replica.started_at <= blow.at


def running_replicas(job: JobStatus, facts: ClusterFacts) -> tuple[JobStatus, ...]:
    """Return the replicas of the job's service that seem to serve: running, not held, on nodes that answer.

    The service of another account is another service, whatever it is called; where no account is known, of another
    user.
    """
    ending = {
        record.action.attempt
        for record in facts.records
        if record.action.verb is Verb.HOLD
        and record.outcome is None
        and facts.taken_at - record.begun_at <= _HOLD_SHOWS_WITHIN
    }
    return tuple(
        each
        for each in _replicas(job, facts)
        if each.state is JobState.RUNNING
        and not each.is_held
        and (each.job == job.job or each.attempt not in ending)
        and all(_serves(name, facts) for name in each.nodes)
    )


def must_serve(job: JobStatus, facts: ClusterFacts, *, policy: Policy) -> int:
    """Return how many replicas must serve: the most that any that runs declares, else policy's share of all.

    The share is of all that have not ended, or a service of which one waits after another would go down step by step.
    What waits declares nothing, and more than run is never asked for: a job is submitted with any words in its comment.
    """
    running = [each for each in _replicas(job, facts) if each.state is JobState.RUNNING]
    declared = max((each.min_serving_count for each in running), default=0)
    share = policy.recovery.default_min_serving_ratio * len(list(_replicas(job, facts)))
    return min(declared, len(running)) or math.ceil(share - 1e-9)


def owner_of(job: JobStatus) -> str:
    """Return whose a job's service is: its account's, or its user's, as without accounting Slurm tells no account."""
    return job.account or job.user


def _replicas(job: JobStatus, facts: ClusterFacts) -> Iterator[JobStatus]:
    return (
        each
        for each in facts.jobs.values()
        if each.service == job.service and owner_of(each) == owner_of(job) and each.state in _NOT_ENDED
    )


def _serves(name: NodeName, facts: ClusterFacts) -> bool:
    node = facts.nodes.get(name)
    return node is not None and node.is_responding and node.state is not NodeState.DOWN


JOB_LIMITS: tuple[Rule, ...] = (keeps_requeue_limit, keeps_service, keeps_hourly_loss)
"""In the order in which they are asked: what no waiting mends comes first."""


def _holds_within(time: timedelta, case: Case) -> Iterator[ActionRecord]:
    return (
        record
        for record in case.facts.records
        if record.begun_at > case.facts.taken_at - time
        and record.action.verb is Verb.HOLD
        and (record.outcome is None or record.outcome.kind is not OutcomeKind.FAILED)
    )
