"""How many nodes may be touched, how often the same, how many may be on probation, and what jobs and services may lose.

One function a rule. What must hold of the one target is `preconditions`; when a job is best moved, `timing`'s
arithmetic. The limits are the operator's (`core.policy`); a cap that is None, or does not speak of this verb, limits
nothing. Slightly longer than most: all counts stand beside each other.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, is_rollout
from ops_pipelines.core.observation import JobState, JobStatus, NodeState, Workload
from ops_pipelines.core.plan import Moment
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import Authority, Refusal, never, wait
from ops_pipelines.remediate.guardrails.consents import marked_by_rollouts
from ops_pipelines.remediate.guardrails.facts import (
    Case,
    ClusterFacts,
    Rule,
    expected_loss,
    has_died_with_its_node,
    held_and_not_released,
    is_taken_by_its_fault,
    nodes_out_of_service,
    still_waits,
)
from ops_pipelines.remediate.ladder import max_tries


def keeps_probation_cap(case: Case) -> Refusal | None:
    """Judge a return by how many other nodes are on probation: what may still break must not be too much."""
    cap = case.policy.blast_caps.max_on_probation_count
    if case.action.verb is not Verb.RESUME or is_rollout(case.action.incident):
        return None
    others = {name for name in _on_probation(case) if name != case.action.node and case.topology.knows(name)}
    if len(others) < cap:
        return None
    return wait("probation_cap", f"{len(others)} nodes are on probation; max_on_probation_count is {cap}")


def _on_probation(case: Case) -> frozenset[NodeName]:
    """Return the nodes in service as last choice, and those that we return, or have returned, to be that.

    The second for what the scheduler does not show yet, has refused or forgot: for no longer than a probation lasts. On
    a node that is drained the mark means nothing: it is left from a probation that did not end well. A node that soaks
    after an update was not broken.
    """
    nodes, durations = case.facts.nodes, case.policy.durations
    since = case.facts.taken_at - durations.probation - durations.reboot_limit
    watched = {name for name, node in nodes.items() if node.is_last_choice and not node.is_drained}
    marked = {_try_on(each) for each in case.facts.records if each.action.verb is Verb.PUT_LAST}
    ended_at = {
        each.action.node: each.begun_at
        for each in case.facts.records
        if each.action.verb in (Verb.PUT_BACK, Verb.DRAIN)
    }
    for record in case.facts.records:
        name, outcome = record.action.node, record.outcome
        if record.action.verb is not Verb.RESUME or name is None or name not in nodes or _try_on(record) not in marked:
            continue
        if outcome is None:
            watched.add(name)
        elif outcome.kind is OutcomeKind.DONE and outcome.finished_at > since:
            is_over = name in ended_at and ended_at[name] > record.begun_at
            watched |= set() if is_over else {name}
    return frozenset(watched) - marked_by_rollouts(case.facts.in_begun_waves, case.facts.records)


def _try_on(record: ActionRecord) -> tuple[IncidentId, NodeName | None, int]:
    return record.action.incident, record.action.node, record.action.try_number


REPAIR_OF: Mapping[Verb, Response] = {
    Verb.RESET_GPU: Response.RESET_GPU,
    Verb.REBOOT: Response.REBOOT_NODE,
    Verb.POWER_OFF: Response.POWER_CYCLE,
    Verb.REIMAGE: Response.REIMAGE,
}
"""The acts by which a try of each repair is counted."""
_TOUCHES = DESTRUCTIVE_VERBS - {Verb.CHECK}
"""The acts by which a storm is counted; a test follows a repair that was counted, and ends nothing."""
_AN_HOUR = timedelta(hours=1)
_NOT_ENDED = frozenset({JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.UNKNOWN})


def keeps_drain_budget(case: Case) -> Refusal | None:
    """Judge a drain by the nodes that are out, no matter who drained them, and how many we drained within the hour."""
    name = _newly_drained(case)
    if name is None:
        return None
    budget, places = case.policy.drain_budget, case.topology.places
    out = nodes_out_of_service(case.facts, case.topology) | {name}
    if len(out) > budget.max_out_count:
        return wait(
            "drain_budget", f"{len(out)} nodes would be out of service; max_out_count is {budget.max_out_count}"
        )
    rack = places[name].rack
    out_in_rack = [places[node].rack for node in out & places.keys()].count(rack)
    if out_in_rack > budget.max_out_per_rack_count:
        return wait(
            "drain_budget",
            f"{out_in_rack} nodes of rack {rack} would be out; "
            f"max_out_per_rack_count is {budget.max_out_per_rack_count}",
        )
    in_service_ratio = (len(places) - len(out)) / len(places)
    if in_service_ratio < budget.min_in_service_ratio:
        return wait(
            "drain_budget",
            f"only {in_service_ratio:.0%} of nodes would be in service; "
            f"min_in_service_ratio is {budget.min_in_service_ratio}",
        )
    if is_rollout(case.action.incident):
        return None  # How fast versions move is stated by windows, waves and the rollouts' own share.
    recent = {
        record.action.node
        for record in case.facts.begun_by_repairs([Verb.DRAIN], within=_AN_HOUR)
        if record.action.node != name
    }
    if len(recent) + 1 > budget.max_new_per_hour_count:
        return wait(
            "drain_rate",
            f"{len(recent)} nodes were drained in the last hour; "
            f"max_new_per_hour_count is {budget.max_new_per_hour_count}",
        )
    return None


def keeps_rollout_share(case: Case) -> Refusal | None:
    """Judge the drain of a rollout by the nodes that rollouts have out: the rest of the budget is left to faults."""
    name = _newly_drained(case)
    if name is None or not is_rollout(case.action.incident):
        return None
    out = (nodes_out_of_service(case.facts, case.topology) & case.facts.owned.keys()) | {name}
    most = case.policy.rollouts.max_out_count
    if len(out) <= most:
        return None
    return wait("rollout_share", f"{len(out)} nodes would be out for updates; rollouts.max_out_count is {most}")


def keeps_part_caps(case: Case) -> Refusal | None:
    """Judge a drain by the partitions, the leaf switch and the NVLink domain that the node is a part of."""
    name = _newly_drained(case)
    if name is None:
        return None
    caps, places, nodes = case.policy.blast_caps, case.topology.places, case.facts.nodes
    out = nodes_out_of_service(case.facts, case.topology) | {name}
    for partition in sorted(nodes[name].partitions):
        members = case.facts.nodes_in(partition)
        out_count = len(out & members)
        if out_count <= 1:
            continue
        node_count = len(places.keys() & members)
        if out_count > out_limit(node_count, caps.max_out_per_partition_ratio):
            return wait(
                "partition_cap",
                f"{out_count} of {node_count} nodes of partition {partition} would be out; "
                f"max_out_per_partition_ratio is {caps.max_out_per_partition_ratio}",
            )
    here = places[name]
    in_leaf = [each for each in out & places.keys() if places[each].leaf_switch == here.leaf_switch]
    if caps.max_out_per_leaf_count is not None and len(in_leaf) > caps.max_out_per_leaf_count:
        return wait(
            "leaf_cap",
            f"{len(in_leaf)} nodes of leaf switch {here.leaf_switch} would be out; "
            f"max_out_per_leaf_count is {caps.max_out_per_leaf_count}",
        )
    in_domain = [each for each in out & places.keys() if places[each].nvlink_domain == here.nvlink_domain]
    per_domain = caps.max_out_per_nvlink_domain_count
    if (
        per_domain is not None
        and len(in_domain) > per_domain
        and any(place.nvlink_domain == here.nvlink_domain for each, place in places.items() if each != name)
    ):
        return wait(
            "nvlink_cap",
            f"{len(in_domain)} nodes of NVLink domain {here.nvlink_domain} would be out; "
            f"max_out_per_nvlink_domain_count is {per_domain}",
        )
    return None


def out_limit(node_count: int, ratio: float) -> int:
    """Return how many nodes of a partition may be out: a share, but always one, however small the partition is."""
    return max(1, math.floor(ratio * node_count + 1e-9))


def _newly_drained(case: Case) -> NodeName | None:
    if case.action.verb is not Verb.DRAIN or case.node.is_drained:
        return None  # Drained by us, or its precondition had refused: draining it again takes nothing more away.
    return case.node.node


def brakes_in_storm(case: Case) -> Refusal | None:
    """Judge what would touch one more node after many were touched within minutes.

    So many faults at once are one cause that they share, or our own eyes. A node or an incident on which we have
    started within that time is carried on; a person's own acts are not doubted. A rollout was planned, and answers no
    fault.
    """
    event, action = case.policy.mass_event, case.action
    if case.authority is Authority.PERSON or action.verb not in _TOUCHES or is_rollout(action.incident):
        return None
    begun = [each.action for each in case.facts.begun_by_repairs(_TOUCHES, within=event.brake_window)]
    nodes = {each.node for each in begun if each.node is not None}
    if action.node in nodes or any(each.incident == action.incident for each in begun):
        return None
    # A hold names no node: an incident of which only jobs were touched so far counts for its own.
    with_node = {each.incident for each in begun if each.node is not None}
    touched_count = len(nodes) + len({each.incident for each in begun} - with_node)
    if touched_count < event.min_node_count:
        return None
    return wait(
        "storm_brake",
        f"we began on {touched_count} nodes within {event.brake_window.total_seconds() / 60:g} min; so many at once "
        f"are our sensors or the network, and not {touched_count} nodes (mass_event.min_node_count is "
        f"{event.min_node_count})",
    )


def keeps_tries(case: Case) -> Refusal | None:
    """Judge a repair by how often others tried the same on the node, and how long ago the last time was.

    Sending the same act again is no other try. A power-off that fences jobs which we hold is no repair: without it
    they would stay held for ever, so no count is in its way. The restarts of a rollout are no repairs.
    """
    action, limits = case.action, case.policy.ladder
    repair = REPAIR_OF.get(action.verb)
    if repair is None or is_rollout(action.incident) or fences_held_jobs(case):
        return None
    others = [
        record
        for record in case.facts.begun_by_repairs([action.verb], within=max(limits.memory, limits.cool_down))
        if record.action.node == action.node and not _is_same_try(record, case)
    ]
    since = case.facts.taken_at - limits.memory
    try_count = len({(each.action.incident, each.action.try_number) for each in others if each.begun_at > since})
    if try_count >= max_tries(repair, limits):
        return never(
            "rung_exhausted",
            f"{_words(repair)} was tried {try_count} time(s) on {action.node} within "
            f"{limits.memory.total_seconds() / 3600:g} h, and {max_tries(repair, limits)} are allowed; "
            "what comes next is a stronger repair",
        )
    last = max((each.begun_at for each in others if each.action.gpu == action.gpu), default=None)
    if last is not None and case.facts.taken_at - last < limits.cool_down:
        return wait(
            "cool_down",
            f"{_words(repair)} of {action.target} was started {(case.facts.taken_at - last).total_seconds():.0f} s "
            f"ago; the next waits {limits.cool_down.total_seconds():.0f} s",
        )
    return None


def fences_held_jobs(case: Case) -> bool:
    """Return whether an act on a silent node is what its held jobs wait for: they were held, and are owed a release.

    Whichever incident of ours holds them: a job on two broken nodes is held by one, and fenced by both. What its owner
    cancelled, or what continued without us, waits for nothing any more, although its hold was never undone.
    """
    node = case.action.node
    if node is None or node not in case.facts.nodes or case.facts.nodes[node].is_responding:
        return False
    incidents = {record.action.incident for record in case.facts.records if record.action.verb is Verb.HOLD}
    return any(
        node in record.attempt_nodes and still_waits(record, case.facts)
        for each in incidents
        for record in held_and_not_released(each, case.facts)
    )


def _is_same_try(record: ActionRecord, case: Case) -> bool:
    return (record.action.incident, record.action.try_number) == (case.action.incident, case.action.try_number)


def leaves_no_place(plan_moments: Collection[Moment], drain: Case) -> Refusal | None:
    """Judge a drain only to wait for the end of jobs: it leaves a place of the budget for what cannot wait.

    Such a drain may last for a day. Where the budget is one node, there is no place to be left.
    """
    name, budget = _newly_drained(drain), drain.policy.drain_budget
    if name is None or budget.max_out_count <= 1 or not plan_moments or set(plan_moments) != {Moment.JOB_END}:
        return None
    out = nodes_out_of_service(drain.facts, drain.topology) | {name}
    if len(out) < budget.max_out_count:
        return None
    return wait(
        "drain_budget",
        f"{len(out)} nodes would be out of service, and {name} only until its jobs end; of "
        f"{budget.max_out_count} places (max_out_count) one is left for faults that cannot wait",
    )


BUDGETS: tuple[Rule, ...] = (
    keeps_tries,
    keeps_drain_budget,
    keeps_rollout_share,
    keeps_part_caps,
    keeps_probation_cap,
    brakes_in_storm,
)
"""In the order in which they are asked: what no waiting resolves comes first."""


def _words(repair: Response) -> str:
    return repair.name.lower().replace("_", " ")


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
            "so its owner is notified instead",
        )
    return None


def keeps_hourly_loss(case: Case) -> Refusal | None:
    """Judge a hold by the GPU-hours that our holds of the last hour threw away; what is unknown counts as the most."""
    if case.action.verb is not Verb.HOLD or is_taken_by_its_fault(case.action, case.job, case.facts):
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
    """Judge a hold of a replica by those that continue serving. One that serves nobody takes nothing away."""
    if (
        case.action.verb is not Verb.HOLD
        or not case.job.service
        or is_taken_by_its_fault(case.action, case.job, case.facts)
    ):
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
                if name in each.nodes and each.job != job.job and each.job not in in_doubt and blow.may_have_hit(each)
            )
            in_doubt.update(there[: blow.gpu_count])
    return tuple(each for each in running if each.job not in in_doubt)


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
    """Return whose a job's service is: its account's, or its user's, as without accounting Slurm shows no account."""
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
"""In the order in which they are asked: what no waiting resolves comes first."""


def _holds_within(time: timedelta, case: Case) -> Iterator[ActionRecord]:
    return (
        record
        for record in case.facts.records
        if record.begun_at > case.facts.taken_at - time
        and record.action.verb is Verb.HOLD
        and (record.outcome is None or record.outcome.kind is not OutcomeKind.FAILED)
    )
