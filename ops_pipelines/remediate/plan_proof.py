"""The second opinion on a plan: what may never be done, found by other means than those that made the plan.

Shares with the planner and the guardrails the nouns alone, and counts everything itself: from the snapshot, on its own
way. Whatever is found here is a fault of ours, never a wish of the operator's: the planner refuses, this contradicts.

Of a plan in force (one that a version before put there) only what is left of it counts, and only what makes it wrong
for good: whether each act may be started at its moment is `act_proof`'s and the guardrails'.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import ceil

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, JOB_VERBS, MESSAGES, Action, ActionRecord, Verb
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import Digest, JobAttempt, JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, NodeStatus, Workload
from ops_pipelines.core.plan import IncidentPlan, ProvedPlan, Rules, Snapshot
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import PROVER_VERSION, CheckedPlan, Proof, why_unproved

_SHOWS_WITHIN = timedelta(minutes=10)
"""So long what was started may not show in the scheduler yet."""
_NOT_OVER = frozenset({JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN})
CLASSES = {
    Verb.DRAIN: ActionClass.ISOLATE,
    Verb.RESERVE: ActionClass.ISOLATE,
    Verb.HOLD: ActionClass.MOVE_JOBS,
    Verb.RESET_GPU: ActionClass.RESET_GPU,
    Verb.REBOOT: ActionClass.REBOOT,
    Verb.POWER_OFF: ActionClass.POWER,
    Verb.DECLARE_DOWN: ActionClass.POWER,
    Verb.POWER_ON: ActionClass.POWER,
    Verb.REIMAGE: ActionClass.REIMAGE,
    Verb.CHECK: ActionClass.CHECK,
    Verb.RESUME: ActionClass.RETURN_NODE,
}
"""Whose consent an act of a plan needs. What gives back to a job what was taken, and messages, need none."""
_ORDER = {
    # On a silent node no hold waits for a reservation: either of the two may come first.
    Verb.RESERVE: 1,
    Verb.HOLD: 1,
    Verb.POWER_OFF: 2,
    Verb.DECLARE_DOWN: 3,
    Verb.FENCE: 4,
    Verb.EXCLUDE: 5,
    Verb.UNRESERVE: 6,
    Verb.RELEASE: 7,
}
_BUDGETED = ("the cluster", "rack")
_CAPPED = ("leaf switch", "nvlink domain", "partition")
"""Parts of the cluster whose limits are the drain budget's, and those that have caps of their own."""
_ON_DRAINED_NODES = (Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.REIMAGE, Verb.CHECK)


def find_unknown_targets(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each target that is not declared, not known to the scheduler, or not to be touched."""
    nodes = {node.node for node in snapshot.nodes}
    jobs = {job.job for job in snapshot.jobs}
    problems = []
    for plan, action in _acts(plans):
        if action.node is not None and not rules.topology.knows(action.node):
            problems.append(f"{plan.plan}: {action.node} is not in cluster.yaml")
        if action.node is not None and action.node not in nodes:
            problems.append(f"{plan.plan}: the scheduler does not know {action.node}")
        if action.node is not None and action.node in rules.policy.untouchable_nodes:
            problems.append(f"{plan.plan}: {action.node} is untouchable")
        if action.attempt is not None and action.attempt.job not in jobs and not _is_in_force(plan, snapshot):
            problems.append(f"{plan.plan}: the scheduler does not know job {action.attempt.job}")
    return tuple(problems)


def find_broken_order(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that releases before it held and fenced, or repairs a node before its jobs are off it."""
    problems = []
    held_before = {
        (record.action.incident, record.action.attempt)
        for record in snapshot.records
        if record.action.verb is Verb.HOLD
    }
    for plan in plans:
        for attempt in sorted({action.attempt for action in plan.actions if action.attempt is not None}):
            ranks = [_ORDER[action.verb] for action in _steps_of(attempt, plan.actions)]
            if ranks != sorted(ranks):
                problems.append(
                    f"{plan.plan}: the order for job {attempt.job} is not reserve, hold, fence, exclude, unreserve, "
                    "release"
                )
            verbs = {action.verb for action in plan.actions if action.attempt == attempt}
            if Verb.UNRESERVE in verbs and Verb.RESERVE not in verbs and Verb.RELEASE not in verbs:
                problems.append(f"{plan.plan}: what is kept free for job {attempt.job} is handed over to nobody")
            if Verb.RELEASE not in verbs:
                continue
            if (plan.incident, attempt) in held_before:
                verbs.add(Verb.HOLD)  # By a plan that this one replaces.
            if not {Verb.HOLD, Verb.FENCE} <= verbs:
                problems.append(f"{plan.plan}: job {attempt.job} is released without hold and fence")
            if Verb.RESERVE in verbs and Verb.UNRESERVE not in verbs:
                problems.append(f"{plan.plan}: job {attempt.job} is released while its spare nodes are still reserved")
        verbs_in_order = [action.verb for action in plan.actions]
        for repair in _ON_DRAINED_NODES:
            if repair in verbs_in_order and Verb.DRAIN not in verbs_in_order[: verbs_in_order.index(repair)]:
                problems.append(f"{plan.plan}: {repair.value} comes before the drain")
    return tuple(problems)


def _steps_of(attempt: JobAttempt, actions: Sequence[Action]) -> Iterator[Action]:
    """Yield the ordered acts on one attempt, with the power switch where it is a fence: before the last act on a job.

    A node that is cycled once its jobs are off it is repaired, not fenced.
    """
    last = max((number for number, action in enumerate(actions) if action.verb in JOB_VERBS - MESSAGES), default=-1)
    for number, action in enumerate(actions):
        is_fence = action.attempt is None and number < last
        if action.verb in _ORDER and (action.attempt == attempt or is_fence):
            yield action


def find_overspent_budget(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each limit of the drain budget, on the cluster and its racks, that all plans together would pass."""
    return tuple(_passed_parts(plans, snapshot, rules, kinds=_BUDGETED))


def out_of_service(
    nodes: Iterable[NodeStatus], records: Iterable[ActionRecord], rules: Rules, *, at: datetime
) -> frozenset[NodeName]:
    """Return the declared nodes that take no work, and those whose drain was just started and may not show yet."""
    out = {node.node for node in nodes if node.node in rules.topology.places and not _takes_work(node)}
    begun = {
        record.action.node
        for record in records
        if record.action.verb is Verb.DRAIN and record.outcome is None and at - record.begun_at <= _SHOWS_WITHIN
    }
    return frozenset(name for name in out | begun if name is not None)


def _takes_work(node: NodeStatus) -> bool:
    return node.is_responding and not node.is_drained and node.state is not NodeState.DOWN


def find_acts_in_mass_event(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each act on a node that belongs to an open mass event; the drain of a node that broke again is its own."""
    frozen = {node: incident for incident in snapshot.incidents if _is_open_mass(incident) for node in incident.nodes}
    return tuple(
        f"{plan.plan}: {action.verb.value} of {action.node}, which is part of {frozen[action.node].incident}"
        for plan, action in _acts(plans)
        if action.node in frozen
        and action.verb in DESTRUCTIVE_VERBS
        and not (_is_drain_after_storm(plan, action, snapshot) and plan.incident == frozen[action.node].incident)
        and not _is_in_force(plan, snapshot)
    )


def find_aimless_repairs(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that touches the cluster although its findings call for no repair."""
    return tuple(
        f"{plan.plan}: {action.verb.value} although the findings call for {plan.response.name.lower()}"
        for plan, action in _acts(plans)
        if plan.response not in REPAIRS and not _is_drain_after_storm(plan, action, snapshot)
    )


def find_passed_blast_caps(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each cap on parts of the cluster that all drains together would pass, and on jobs and GPU-hours a plan."""
    alone = [f"{plan.plan}: {broken}" for plan in plans for broken in _passed_losses(plan, snapshot, rules.policy)]
    return (*alone, *_passed_parts(plans, snapshot, rules, kinds=_CAPPED))


def _passed_parts(
    plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules, *, kinds: Collection[str]
) -> Iterator[str]:
    """Yield each part of the cluster of which too much would be out by what these plans newly drain."""
    out = out_of_service(snapshot.nodes, snapshot.records, rules, at=snapshot.taken_at)
    begun = {record.action.key for record in snapshot.records}
    drained = {each.node for _, each in _acts(plans) if each.verb is Verb.DRAIN and each.key not in begun}
    new = (drained - out) & rules.topology.places.keys()
    if not new:
        return
    for (kind, name), members in parts_of_cluster(snapshot.nodes, rules).items():
        if kind not in kinds or members.isdisjoint(new):
            continue
        gone, total = len(members & (out | new)), len(members)
        for is_passed, limit in caps_on(kind, gone, total, rules.policy):
            if is_passed:
                yield f"{gone} of {total} nodes of {f'{kind} {name}'.strip()} would be out; {limit}"


def parts_of_cluster(nodes: Iterable[NodeStatus], rules: Rules) -> Mapping[tuple[str, str], set[NodeName]]:
    """Return the declared nodes of each part of the cluster that may share a fate."""
    parts: defaultdict[tuple[str, str], set[NodeName]] = defaultdict(set)
    partitions = {node.node: node.partitions for node in nodes}
    for node, place in rules.topology.places.items():
        parts["the cluster", ""].add(node)
        parts["rack", place.rack].add(node)
        parts["leaf switch", place.leaf_switch].add(node)
        parts["nvlink domain", place.nvlink_domain].add(node)
        for partition in partitions.get(node, ()):
            parts["partition", partition].add(node)
    return parts


def caps_on(kind: str, gone: int, total: int, policy: Policy) -> tuple[tuple[bool, str], ...]:
    """Return each limit on a part of a kind, with whether `gone` of `total` nodes pass it."""
    budget, caps = policy.drain_budget, policy.blast_caps
    if kind == "the cluster":
        is_thin = (total - gone) / total < budget.min_in_service_ratio
        return (
            (gone > budget.max_out_count, f"max_out_count is {budget.max_out_count}"),
            (is_thin, f"min_in_service_ratio is {budget.min_in_service_ratio}"),
        )
    if kind == "rack":
        return ((gone > budget.max_out_per_rack_count, f"max_out_per_rack_count is {budget.max_out_per_rack_count}"),)
    if kind == "partition":
        ratio = caps.max_out_per_partition_ratio
        # One node may always be out, however small the partition is.
        return ((gone > 1 and gone / total > ratio + 1e-9, f"max_out_per_partition_ratio is {ratio}"),)
    if kind == "leaf switch":
        cap, name = caps.max_out_per_leaf_count, "max_out_per_leaf_count"
    else:
        cap, name = caps.max_out_per_nvlink_domain_count if total > 1 else None, "max_out_per_nvlink_domain_count"
    return () if cap is None else ((gone > cap, f"{name} is {cap}"),)


def _passed_losses(plan: IncidentPlan, snapshot: Snapshot, policy: Policy) -> Iterator[str]:
    """Yield each cap on jobs that one plan interrupts, and on the work that it throws away, that it would pass."""
    caps, jobs = policy.blast_caps, {job.job: job for job in snapshot.jobs}
    begun = {record.action.key for record in snapshot.records}
    # What the fault has ended is not interrupted, nor lost, by us.
    held = {
        each.attempt
        for each in plan.actions
        if each.verb is Verb.HOLD and each.attempt is not None and not each.has_ended and each.key not in begun
    }
    if len(held) > caps.max_jobs_per_plan_count:
        yield f"{len(held)} jobs would be interrupted; max_jobs_per_plan_count is {caps.max_jobs_per_plan_count}"
    lost = sum(_loss_of(attempt, jobs.get(attempt.job), plan, snapshot) for attempt in held)
    if lost > caps.max_gpu_hours_per_plan:
        yield f"{lost:.1f} GPU-hours would be lost; max_gpu_hours_per_plan is {caps.max_gpu_hours_per_plan:g}"
    before = _lost_within_hour(snapshot, jobs, but=held)
    if lost > 0 and before + lost > caps.max_gpu_hours_per_hour:
        yield (
            f"{before:.1f} GPU-hours were lost within the hour, and {lost:.1f} would be added; "
            f"max_gpu_hours_per_hour is {caps.max_gpu_hours_per_hour:g}"
        )


def _loss_of(attempt: JobAttempt, job: JobStatus | None, plan: IncidentPlan, snapshot: Snapshot) -> float:
    """Return the GPU-hours that a hold costs, now or at the moment that the plan chose; 0 if unknown.

    A plan that waited for approval was made when a moment cost what it does not cost any more: the smaller counts.
    """
    costs = [
        each.lost_gpu_hours or 0.0
        for timing in plan.timings
        if timing.attempt == attempt
        for each in timing.options
        if each.moment is timing.moment
    ]
    if job is not None and job.checkpointed_at is not None:
        kept_until = max(job.checkpointed_at, job.started_at or job.checkpointed_at)
        idle_seconds = snapshot.costs.restart_seconds + snapshot.costs.queue_seconds
        seconds = max(0.0, (snapshot.taken_at - kept_until).total_seconds()) + idle_seconds
        costs.append(seconds * job.gpu_count / 3600)
    return min(costs, default=0.0)


def _lost_within_hour(snapshot: Snapshot, jobs: Mapping[JobId, JobStatus], *, but: Collection[JobAttempt]) -> float:
    """Return the GPU-hours that our holds of the last hour cost; what was not known counts as the whole attempt."""
    lost: dict[JobAttempt, float] = {}
    for record in snapshot.records:
        attempt = record.action.attempt
        is_recent = record.begun_at > snapshot.taken_at - timedelta(hours=1)
        if record.action.verb is not Verb.HOLD or not is_recent or attempt is None or attempt in but:
            continue
        cost = record.lost_gpu_hours
        if cost is None:
            job = jobs.get(attempt.job)
            keeps_nothing = record.action.has_ended or (job is not None and job.workload is Workload.INFERENCE)
            age = max(0.0, (record.begun_at - attempt.started_at).total_seconds())
            cost = 0.0 if keeps_nothing else age * record.gpu_count / 3600
        lost[attempt] = max(cost, lost.get(attempt, 0.0))
    return sum(lost.values())


def find_acts_in_freeze(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that would begin with something destructive in a freeze window, and finishes no move.

    Later acts of a plan wait for the end of the window by themselves.
    """
    now = snapshot.taken_at
    holds = [record for record in snapshot.records if record.action.verb is Verb.HOLD]
    held = {record.action.incident for record in holds}
    # Who holds the job of a silent node: it waits for that node's fence, too.
    owed = {name for record in holds for name in record.attempt_nodes}
    return tuple(
        f"{plan.plan}: {plan.actions[0].verb.value} would be started in freeze window {window.name!r}"
        for plan in plans
        for window in rules.policy.freeze_windows
        if window.begins_at <= now < window.ends_at
        and plan.actions
        and plan.actions[0].verb in DESTRUCTIVE_VERBS
        and not (plan.actions[0].verb is Verb.DRAIN and window.allows_drains)
        and plan.incident not in held
        and plan.actions[0].node not in owed
        and not _is_in_force(plan, snapshot)
    )


def find_unserved_services(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that holds several replicas of a service at once, with fewer left than must serve."""
    jobs = {job.job: job for job in snapshot.jobs}
    problems = []
    for plan in plans:
        held: set[JobId] = set()
        for action in plan.actions:
            job = None if action.attempt is None else jobs.get(action.attempt.job)
            if job is None or not job.service or action.verb not in (Verb.HOLD, Verb.RELEASE):
                continue
            held ^= {job.job}
            running, must = _service_of(job, snapshot, rules.policy)
            left = len(running - held)
            if len(held & running) > 1 and left < must:
                problems.append(f"{plan.plan}: {left} of {job.service} would serve, and {must} must")
    return tuple(problems)


def _service_of(job: JobStatus, snapshot: Snapshot, policy: Policy) -> tuple[set[JobId], int]:
    """Return the replicas of a job's service that seem to serve, and how many of them must."""
    works = {node.node for node in snapshot.nodes if node.is_responding and node.state is not NodeState.DOWN}
    ending = {
        record.action.attempt
        for record in snapshot.records
        if record.action.verb is Verb.HOLD
        and record.outcome is None
        and snapshot.taken_at - record.begun_at <= _SHOWS_WITHIN
    }
    owner = job.account or job.user
    replicas = [
        each
        for each in snapshot.jobs
        if each.service == job.service and (each.account or each.user) == owner and each.state in _NOT_OVER
    ]
    running = [each for each in replicas if each.state is JobState.RUNNING]
    serving = {
        each.job
        for each in running
        if not each.is_held and works.issuperset(each.nodes) and (each.job == job.job or each.attempt not in ending)
    }
    declared = min(max((each.min_serving_count for each in running), default=0), len(running))
    return serving, declared or ceil(policy.recovery.default_min_serving_ratio * len(replicas) - 1e-9)


def find_forbidden_acts(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each act that policy.yaml forbids the autopilot: a plan ends before it, with a page."""
    return tuple(
        f"{plan.plan}: {action.verb.value} of {action.target}, which consents in policy.yaml forbid"
        for plan, action in _acts(plans)
        if action.verb in CLASSES and rules.policy.consent_to(CLASSES[action.verb]) is Consent.FORBID
        if not _is_in_force(plan, snapshot)
    )


PROOFS: Mapping[str, tuple[str, Callable[[Sequence[IncidentPlan], Snapshot, Rules], tuple[str, ...]]]] = {
    "targets_are_known": (
        "Every target is declared in cluster.yaml and known to the scheduler; none is untouchable.",
        find_unknown_targets,
    ),
    "order_is_hold_fence_exclude_release": (
        "No job is released before it was held and fenced, and its spare nodes were handed over.",
        find_broken_order,
    ),
    "stays_within_drain_budget": ("All plans together stay within the drain budget.", find_overspent_budget),
    "stays_within_blast_caps": (
        "No plan passes a cap on parts of the cluster, jobs or GPU-hours, nor do all drains together.",
        find_passed_blast_caps,
    ),
    "keeps_freeze_windows": ("No plan begins anything destructive in a freeze window.", find_acts_in_freeze),
    "keeps_services_serving": (
        "Replicas of a service are moved one after the other where not enough would serve.",
        find_unserved_services,
    ),
    "keeps_consents": ("No plan holds an act of a class that policy.yaml forbids.", find_forbidden_acts),
    "mass_event_is_left_alone": (
        "No plan touches a node of an open mass event; one that broke again after the storm is drained at most.",
        find_acts_in_mass_event,
    ),
    "only_repairs_touch_nodes": ("A plan that calls for no repair touches nothing.", find_aimless_repairs),
}
"""Each proof by the name of its check: what must hold, and what finds the contradictions."""


def prove_plans(
    plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules, *, inputs: Digest, contents: Sequence[Digest]
) -> tuple[Proof, ...]:
    """Return the proof of each plan, made on a snapshot that is kept as `inputs`; `contents` are digests of the plans.

    What holds for all together holds for each. Where something does not, one half is proved before the other, down to
    the plan that is contradicted: the drains of those before that passed count as started.
    """
    if not plans:
        return ()
    checked = _check(plans, snapshot, rules)
    if len(plans) == 1 or not any(each.contradictions for each in checked):
        return tuple(
            _proof(plan, content, checked, inputs, snapshot) for plan, content in zip(plans, contents, strict=True)
        )
    half = len(plans) // 2
    first = prove_plans(plans[:half], snapshot, rules, inputs=inputs, contents=contents[:half])
    begun = tuple(
        ActionRecord(action=action, plan=plan.plan, begun_at=snapshot.taken_at)
        for plan, proof in zip(plans[:half], first, strict=True)
        for action in plan.actions
        if action.verb is Verb.DRAIN and not proof.contradictions
    )
    then = replace(snapshot, records=(*snapshot.records, *begun))
    return (*first, *prove_plans(plans[half:], then, rules, inputs=inputs, contents=contents[half:]))


def refuse_plans(
    plans: Sequence[IncidentPlan], snapshot: Snapshot, *, inputs: Digest, contents: Sequence[Digest], why: str
) -> tuple[Proof, ...]:
    """Return proofs that let none of the plans pass, because the checks came to no end."""
    checked = tuple(CheckedPlan(check=name, contradictions=(why,)) for name in PROOFS)
    return tuple(
        _proof(plan, content, checked, inputs, snapshot) for plan, content in zip(plans, contents, strict=True)
    )


def with_proof(plan: IncidentPlan, proof: Proof | None, *, content: Digest) -> ProvedPlan | str:
    """Return a plan as its steps may be ordered, or why they may not be."""
    why = why_unproved(proof, content=content, checks=PROOFS)
    if proof is None or why is not None:
        return why or ""
    return ProvedPlan(plan=plan, content=content, proof=proof)


def _proof(
    plan: IncidentPlan, content: Digest, checked: tuple[CheckedPlan, ...], inputs: Digest, snapshot: Snapshot
) -> Proof:
    return Proof(
        plan=plan.plan,
        content=content,
        inputs=inputs,
        rules=snapshot.rules_digest,
        version=PROVER_VERSION,
        made_at=snapshot.taken_at,
        checked=checked,
    )


def _check(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[CheckedPlan, ...]:
    return tuple(
        CheckedPlan(check=name, contradictions=_contradictions(find, plans, snapshot, rules))
        for name, (_, find) in PROOFS.items()
    )


def _contradictions(
    find: Callable[[Sequence[IncidentPlan], Snapshot, Rules], tuple[str, ...]],
    plans: Sequence[IncidentPlan],
    snapshot: Snapshot,
    rules: Rules,
) -> tuple[str, ...]:
    """Return what a check finds; one that raises, or says nothing that can be read, lets nothing pass."""
    try:
        found = find(plans, snapshot, rules)
    except Exception as problem:  # whatever it is, it is no proof
        return (f"the check itself failed: {problem!r}",)
    if not isinstance(found, tuple) or not all(isinstance(each, str) for each in found):
        return (f"the check itself failed: it answered {found!r}",)
    return found


def _acts(plans: Sequence[IncidentPlan]) -> list[tuple[IncidentPlan, Action]]:
    return [(plan, action) for plan in plans for action in plan.actions if action.verb not in MESSAGES]


def _is_drain_after_storm(plan: IncidentPlan, action: Action, snapshot: Snapshot) -> bool:
    """Return whether an act drains for a mass event that was known before, and pages: what just opened only pages."""
    is_known = any(each.incident == plan.incident and _is_open_mass(each) for each in snapshot.incidents)
    is_told = any(each.verb is Verb.PAGE_HUMAN for each in plan.actions)
    is_of_mass = plan.response is Response.PAGE_MASS_EVENT
    return is_of_mass and is_known and is_told and action.verb is Verb.DRAIN


def _is_open_mass(incident: Incident) -> bool:
    """Return whether nobody touches its nodes. One about a part that nodes share stops no repair of theirs."""
    return incident.is_mass_event and incident.is_open and incident.suspect is None


def _is_in_force(plan: IncidentPlan, snapshot: Snapshot) -> bool:
    return any(each.plan == plan.plan and each.state is IncidentState.ACTING for each in snapshot.incidents)
