"""Proves a plan against the state it was made from, by other means than those that made it.

Whatever is found here is a fault of ours, never a wish of the operator's: the planner refuses, this contradicts.
"""

from collections.abc import Callable, Mapping, Sequence

from ops_pipelines.domain.action import DESTRUCTIVE_VERBS, MESSAGES, Action, Verb
from ops_pipelines.domain.decision import Rules, Snapshot, cluster_facts
from ops_pipelines.domain.finding import REPAIRS
from ops_pipelines.domain.guardrails import nodes_out_of_service
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.remediation import IncidentPlan

_ORDER = {Verb.HOLD: 1, Verb.POWER_OFF: 2, Verb.DECLARE_DOWN: 3, Verb.FENCE: 4, Verb.EXCLUDE: 5, Verb.RELEASE: 6}


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
        if action.attempt is not None and action.attempt.job not in jobs:
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
        ranks = [_ORDER[action.verb] for action in plan.actions if action.verb in _ORDER]
        if ranks != sorted(ranks):
            problems.append(f"{plan.plan}: the order is not hold, fence, exclude, release")
        for attempt in sorted(
            {action.attempt for action in plan.actions if action.verb is Verb.RELEASE and action.attempt}
        ):
            verbs = {action.verb for action in plan.actions if action.attempt == attempt}
            if (plan.incident, attempt) in held_before:
                verbs.add(Verb.HOLD)  # By a plan that this one replaces.
            if not {Verb.HOLD, Verb.FENCE} <= verbs:
                problems.append(f"{plan.plan}: job {attempt.job} is released without hold and fence")
        verbs_in_order = [action.verb for action in plan.actions]
        for repair in (Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF):
            if repair in verbs_in_order and Verb.DRAIN not in verbs_in_order[: verbs_in_order.index(repair)]:
                problems.append(f"{plan.plan}: {repair.value} comes before the drain")
    return tuple(problems)


def find_overspent_budget(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return by how much all plans together would pass the drain budget."""
    out = nodes_out_of_service(cluster_facts(snapshot), rules.topology)
    drained = frozenset(action.node for _, action in _acts(plans) if action.verb is Verb.DRAIN and action.node)
    new = drained - out
    budget = rules.policy.drain_budget
    if new and len(out | new) > budget.max_out_count:
        return (f"{len(out | new)} nodes would be out of service; max_out_count is {budget.max_out_count}",)
    return ()


def find_acts_in_mass_event(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each act on a node that belongs to an open mass event."""
    frozen = {node: incident for incident in snapshot.incidents if _is_open_mass(incident) for node in incident.nodes}
    return tuple(
        f"{plan.plan}: {action.verb.value} of {action.node}, which is part of {frozen[action.node].incident}"
        for plan, action in _acts(plans)
        if action.node in frozen and action.verb in DESTRUCTIVE_VERBS
    )


def find_aimless_repairs(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that touches the cluster although its findings call for no repair."""
    return tuple(
        f"{plan.plan}: {action.verb.value} although the findings call for {plan.response.name.lower()}"
        for plan, action in _acts(plans)
        if plan.response not in REPAIRS
    )


PROOFS: Mapping[str, tuple[str, Callable[[Sequence[IncidentPlan], Snapshot, Rules], tuple[str, ...]]]] = {
    "targets_are_known": (
        "Every target is declared in cluster.yaml and known to the scheduler; none is untouchable.",
        find_unknown_targets,
    ),
    "order_is_hold_fence_exclude_release": ("No job is released before it was held and fenced.", find_broken_order),
    "stays_within_drain_budget": ("All plans together stay within the drain budget.", find_overspent_budget),
    "mass_event_is_left_alone": ("No plan touches a node of an open mass event.", find_acts_in_mass_event),
    "only_repairs_touch_nodes": ("A plan that calls for no repair touches nothing.", find_aimless_repairs),
}
"""Each proof by the name of its check: what must hold, and what finds the contradictions."""


def _acts(plans: Sequence[IncidentPlan]) -> list[tuple[IncidentPlan, Action]]:
    return [(plan, action) for plan in plans for action in plan.actions if action.verb not in MESSAGES]


def _is_open_mass(incident: Incident) -> bool:
    return incident.is_mass_event and incident.is_open
