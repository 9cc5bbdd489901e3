"""What a plan touches and what stays in service of each part of the cluster: computed before anything is done.

Computed from the facts alone and by other means than the planner's and the guardrails': those judge one act on one
node, this counts every part of the cluster before and after. Limits on it are policy (`DrainBudget`, `BlastCaps`).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, NODE_VERBS, Action, Verb
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName, Place, Topology
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus, NodeState
from ops_pipelines.core.plan import BlastRadius, JobTiming, Remaining, TouchedJob
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import Refusal, wait
from ops_pipelines.remediate.guardrails.budgets import (
    lost_within_hour,
    must_serve,
    out_limit,
    owner_of,
    running_replicas,
    serving_replicas,
)
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, expected_loss

# -- what stays in service of each part of the cluster when nodes are drained --


_DRAIN_SHOWS_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    max_out_count: int
    words: str


def count_parts(
    drained: frozenset[NodeName], facts: ClusterFacts, *, policy: Policy, topology: Topology
) -> tuple[list[Remaining], list[str]]:
    """Return every part that a drain touches, before and after, and the limits that are broken by what is new."""
    declared = topology.places
    concerned = {part for name in drained if name in declared for part in _parts_of(name, declared[name], facts)}
    being_drained = {
        record.action.node
        for record in facts.records
        if record.outcome is None
        and record.action.verb is Verb.DRAIN
        and facts.taken_at - record.begun_at <= _DRAIN_SHOWS_WITHIN
    }
    was_out = {name for name in declared if _is_out(name, facts) or name in being_drained}
    members = {part: _members_of(part, facts, topology) for part in concerned}
    total = {part: len(names) for part, names in members.items()}
    before = {part: len(names & was_out) for part, names in members.items()}
    after = {part: len(names & (was_out | drained)) for part, names in members.items()}
    remaining, broken = [], []
    for part in sorted(concerned, key=lambda each: (_KINDS.index(each[0]), each[1])):
        kind, part_name = part
        limits = _limits_of(kind, total[part], policy)
        remaining.append(
            Remaining(
                kind=kind,
                name=part_name,
                total_count=total[part],
                out_before_count=before[part],
                out_after_count=after[part],
                limit=", ".join(limit.words for limit in limits),
            )
        )
        if after[part] > before[part]:
            where = "the cluster" if kind == "cluster" else f"{kind.replace('_', ' ')} {part_name}"
            broken += [
                f"{after[part]} of {total[part]} nodes of {where} would be out; {limit.words}"
                for limit in limits
                if after[part] > limit.max_out_count
            ]
    return remaining, broken


_KINDS = ("cluster", "partition", "rack", "leaf_switch", "nvlink_domain")


def _parts_of(name: NodeName, place: Place, facts: ClusterFacts) -> list[tuple[str, str]]:
    status = facts.nodes.get(name)
    return [
        ("cluster", ""),
        ("rack", place.rack),
        ("leaf_switch", place.leaf_switch),
        ("nvlink_domain", place.nvlink_domain),
        *(("partition", partition) for partition in (() if status is None else status.partitions)),
    ]


def _members_of(part: tuple[str, str], facts: ClusterFacts, topology: Topology) -> set[NodeName]:
    """Return the declared nodes of one part."""
    kind, name = part
    match kind:
        case "cluster":
            return set(topology.places)
        case "partition":
            known = ((each, facts.nodes.get(each)) for each in topology.places)
            return {each for each, status in known if status is not None and name in status.partitions}
        case "rack":
            return {each for each, place in topology.places.items() if place.rack == name}
        case "leaf_switch":
            return {each for each, place in topology.places.items() if place.leaf_switch == name}
    return {each for each, place in topology.places.items() if place.nvlink_domain == name}


def _is_out(name: NodeName, facts: ClusterFacts) -> bool:
    node = facts.nodes.get(name)
    return node is not None and (node.is_drained or node.state is NodeState.DOWN or not node.is_responding)


def _limits_of(kind: str, total: int, policy: Policy) -> list[_Limit]:
    budget, caps = policy.drain_budget, policy.blast_caps
    match kind:
        case "cluster":
            # The highest count at which the share is still met, found by trying: no rounding of our own.
            in_service = max(
                (out for out in range(total + 1) if (total - out) / total >= budget.min_in_service_ratio), default=-1
            )
            return [
                _Limit(max_out_count=budget.max_out_count, words=f"max_out_count is {budget.max_out_count}"),
                _Limit(max_out_count=in_service, words=f"min_in_service_ratio is {budget.min_in_service_ratio}"),
            ]
        case "rack":
            limit = budget.max_out_per_rack_count
            return [_Limit(max_out_count=limit, words=f"max_out_per_rack_count is {limit}")]
        case "partition":
            ratio = caps.max_out_per_partition_ratio
            return [_Limit(max_out_count=out_limit(total, ratio), words=f"max_out_per_partition_ratio is {ratio}")]
        case "leaf_switch":
            per_leaf = caps.max_out_per_leaf_count
            return (
                []
                if per_leaf is None
                else [_Limit(max_out_count=per_leaf, words=f"max_out_per_leaf_count is {per_leaf}")]
            )
    per_domain = caps.max_out_per_nvlink_domain_count
    if per_domain is None or total == 1:
        return []
    return [_Limit(max_out_count=per_domain, words=f"max_out_per_nvlink_domain_count is {per_domain}")]


# -- what a plan touches and what stays healthy --


__all__ = ["BlastRadius", "Remaining", "TouchedJob", "judge_proof", "prove"]
_TAKES_NODE = (DESTRUCTIVE_VERBS & NODE_VERBS) - {Verb.CHECK}


def prove(
    actions: Sequence[Action],
    timings: Sequence[JobTiming],
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
) -> BlastRadius:
    """Return what the acts of one plan touch, and what stays healthy of every part that they touch.

    A job that is held is interrupted, and its loss is what its timing expects at the chosen moment, or what the age of
    its checkpoint says where nobody timed it. A job on a node that is taken and not held is waited for, at no cost.
    """
    held = [action.attempt for action in actions if action.verb is Verb.HOLD and action.attempt is not None]
    taken = frozenset(action.node for action in actions if action.verb in _TAKES_NODE and action.node is not None)
    dead = frozenset(action.attempt for action in actions if action.verb is Verb.HOLD and action.has_ended)
    jobs = tuple(_touched_jobs(held, dead, taken, timings, facts))
    losses = [job.lost_gpu_hours for job in jobs if job.is_interrupted]
    lost = sum(loss for loss in losses if loss is not None)
    drained = frozenset(action.node for action in actions if action.verb is Verb.DRAIN and action.node is not None)
    parts, broken = count_parts(drained, facts, policy=policy, topology=topology)
    services, unserved = _count_services(actions, facts, policy=policy)
    return BlastRadius(
        jobs=jobs,
        teams=tuple(_shares(jobs, facts)),
        lost_gpu_hours=lost,
        unknown_loss_count=losses.count(None),
        remaining=(*parts, *services),
        violations=(
            *broken,
            *_overspent(len(losses), lost, frozenset(held), facts, policy=policy),
            *unserved,
        ),
    )


def judge_proof(proof: BlastRadius | None) -> Refusal | None:
    """Return why a plan with this proof must not be started, None if it keeps every limit or needs no proof."""
    if proof is None or not proof.violations:
        return None
    return wait("blast_radius", "; ".join(proof.violations))


# -- jobs --


def _touched_jobs(
    held: Sequence[JobAttempt],
    dead: Collection[JobAttempt | None],
    taken: frozenset[NodeName],
    timings: Sequence[JobTiming],
    facts: ClusterFacts,
) -> Iterator[TouchedJob]:
    told = {timing.attempt: timing for timing in timings}
    ended = {attempt.job: attempt for attempt in held}
    for name in sorted(facts.jobs):
        job = facts.jobs[name]
        is_interrupted = name in ended
        if not is_interrupted and not (job.state in MAY_HAVE_PROCESSES and job.nodes & taken):
            continue
        yield TouchedJob(
            job=name,
            account=job.account,
            gpu_count=job.gpu_count,
            # What the fault has ended already is not lost by our act.
            lost_gpu_hours=_loss(job, told.get(ended[name]), facts)
            if is_interrupted and ended[name] not in dead
            else 0.0,
            is_interrupted=is_interrupted,
        )


def _loss(job: JobStatus, timing: JobTiming | None, facts: ClusterFacts) -> float | None:
    """Return what one interruption is expected to cost; of a checkpoint of unknown age only what its timing says."""
    chosen = [] if timing is None else [each for each in timing.options if each.moment is timing.moment]
    if chosen:
        return chosen[0].lost_gpu_hours
    return expected_loss(job, facts)


def _shares(jobs: Sequence[TouchedJob], facts: ClusterFacts) -> Iterator[str]:
    running: Counter[str] = Counter()
    for job in facts.jobs.values():
        if job.state is JobState.RUNNING:
            running[job.account] += job.gpu_count
    touched: Counter[str] = Counter()
    for each in jobs:
        touched[each.account] += each.gpu_count
    for account in sorted(touched):
        whole = max(running[account], touched[account])
        yield f"{account or 'no account'}: {touched[account]} of {whole} running GPUs"


def _overspent(
    interrupted_count: int, lost: float, held: frozenset[JobAttempt], facts: ClusterFacts, *, policy: Policy
) -> Iterator[str]:
    caps = policy.blast_caps
    if interrupted_count > caps.max_jobs_per_plan_count:
        yield (
            f"{interrupted_count} jobs would be interrupted; max_jobs_per_plan_count is {caps.max_jobs_per_plan_count}"
        )
    if lost > caps.max_gpu_hours_per_plan:
        yield f"{lost:.1f} GPU-hours would be lost; max_gpu_hours_per_plan is {caps.max_gpu_hours_per_plan:g}"
    within_hour = lost_within_hour(facts, but=frozenset[JobAttempt | None](held))
    if lost > 0 and within_hour + lost > caps.max_gpu_hours_per_hour:
        yield (
            f"{within_hour:.1f} GPU-hours were lost within the hour, and {lost:.1f} would be added; "
            f"max_gpu_hours_per_hour is {caps.max_gpu_hours_per_hour:g}"
        )


# -- services --


def _count_services(
    actions: Sequence[Action], facts: ClusterFacts, *, policy: Policy
) -> tuple[list[Remaining], list[str]]:
    """Return each service of which replicas are held, with the most that are held at once.

    One replica at a time is no violation: its hold waits until enough others serve. Two that are held before the first
    is released would wait for each other for ever.
    """
    remaining, broken = [], []
    for service, jobs in _held_services(actions, facts).items():
        serving = {job.job for job in serving_replicas(jobs[0], facts)}
        running = {job.job for job in running_replicas(jobs[0], facts)}
        held = _most_at_once(actions, running & {job.job for job in jobs})
        left = len(serving - held)
        must = must_serve(jobs[0], facts, policy=policy)
        owner, name = service
        remaining.append(
            Remaining(
                kind="service",
                name=f"{name} of {owner}" if owner else name,
                total_count=len(serving),
                out_before_count=0,
                out_after_count=len(held),
                limit=f"{must} must serve",
            )
        )
        if len(held) > 1 and left < must:
            broken.append(
                f"{len(held)} replicas of {name} would be held at once; {left} would serve, and {must} must: they are "
                "moved one after the other"
            )
    return remaining, broken


def _held_services(actions: Sequence[Action], facts: ClusterFacts) -> Mapping[tuple[str, str], list[JobStatus]]:
    services: dict[tuple[str, str], list[JobStatus]] = {}
    for action in actions:
        job = None if action.attempt is None else facts.jobs.get(action.attempt.job)
        if action.verb is Verb.HOLD and job is not None and job.service and not action.has_ended:
            services.setdefault((owner_of(job), job.service), []).append(job)
    return services


def _most_at_once(actions: Sequence[Action], replicas: set[JobId]) -> frozenset[JobId]:
    held: set[JobId] = set()
    most: frozenset[JobId] = frozenset()
    for action in actions:
        job = None if action.attempt is None else action.attempt.job
        if job not in replicas:
            continue
        if action.verb is Verb.HOLD:
            held.add(job)
        elif action.verb is Verb.RELEASE:
            held.discard(job)
        most = max(most, frozenset(held), key=len)
    return most
