"""Proves a plan against the state it was made from, by other means than those that made it.

Whatever is found here is a fault of ours, never a wish of the operator's: the planner refuses, this contradicts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ops_pipelines.domain.action import DESTRUCTIVE_VERBS, JOB_VERBS, MESSAGES, Action, ActionRecord, Verb
from ops_pipelines.domain.decision import cluster_facts, decide
from ops_pipelines.domain.guardrails.blast_radius import prove
from ops_pipelines.domain.guardrails.job_limits import must_serve, running_replicas, serving_replicas
from ops_pipelines.domain.guardrails.judge import ClusterFacts, nodes_out_of_service
from ops_pipelines.domain.identity import Digest, JobAttempt, JobId
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.meaning.finding import REPAIRS, Response
from ops_pipelines.domain.plan import BlastRadius, IncidentPlan
from ops_pipelines.domain.proof import PROVER_VERSION, CheckedPlan, Proof
from ops_pipelines.domain.repair.consented import is_forbidden
from ops_pipelines.domain.snapshot import Rules, Snapshot

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
    """Return by how much all plans together would pass the drain budget."""
    out = nodes_out_of_service(cluster_facts(snapshot, rules), rules.topology)
    drained = frozenset(action.node for _, action in _acts(plans) if action.verb is Verb.DRAIN and action.node)
    new = drained - out
    budget = rules.policy.drain_budget
    if new and len(out | new) > budget.max_out_count:
        return (f"{len(out | new)} nodes would be out of service; max_out_count is {budget.max_out_count}",)
    return ()


def find_acts_in_mass_event(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each act on a node that belongs to an open mass event; the drain of a node that broke anew is its own."""
    frozen = {node: incident for incident in snapshot.incidents if _is_open_mass(incident) for node in incident.nodes}
    return tuple(
        f"{plan.plan}: {action.verb.value} of {action.node}, which is part of {frozen[action.node].incident}"
        for plan, action in _acts(plans)
        if action.node in frozen
        and action.verb in DESTRUCTIVE_VERBS
        and not (_is_drain_after_storm(plan, action, snapshot) and plan.incident == frozen[action.node].incident)
    )


def find_aimless_repairs(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that touches the cluster although its findings call for no repair."""
    return tuple(
        f"{plan.plan}: {action.verb.value} although the findings call for {plan.response.name.lower()}"
        for plan, action in _acts(plans)
        if plan.response not in REPAIRS and not _is_drain_after_storm(plan, action, snapshot)
    )


def find_passed_blast_caps(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each cap on parts of the cluster, jobs and GPU-hours that a plan would pass, and all drains together."""
    problems = [f"{plan.plan}: {broken}" for plan in plans for broken in _prove(plan, snapshot, rules).violations]
    drains = tuple(action for _, action in _acts(plans) if action.verb is Verb.DRAIN)
    facts = cluster_facts(snapshot, rules)
    together = prove(drains, (), facts, policy=rules.policy, topology=rules.topology)
    return (*problems, *(f"all plans together: {broken}" for broken in together.violations))


def find_acts_in_freeze(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that would begin with something destructive in a freeze window, and finishes no move.

    Later acts of a plan wait for the end of the window by themselves.
    """
    now = snapshot.taken_at
    held = {record.action.incident for record in snapshot.records if record.action.verb is Verb.HOLD}
    return tuple(
        f"{plan.plan}: {plan.actions[0].verb.value} would be begun in freeze window {window.name!r}"
        for plan in plans
        for window in rules.policy.freeze_windows
        if window.begins_at <= now < window.ends_at
        and plan.actions
        and plan.actions[0].verb in DESTRUCTIVE_VERBS
        and not (plan.actions[0].verb is Verb.DRAIN and window.allows_drains)
        and plan.incident not in held
    )


def find_unserved_services(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each plan that holds several replicas of a service at once, with fewer left than must serve."""
    facts = cluster_facts(snapshot, rules)
    problems = []
    for plan in plans:
        held: set[JobId] = set()
        for action in plan.actions:
            job = None if action.attempt is None else facts.jobs.get(action.attempt.job)
            if job is None or not job.service or action.verb not in (Verb.HOLD, Verb.RELEASE):
                continue
            held ^= {job.job}
            serving = {each.job for each in serving_replicas(job, facts)}
            running = {each.job for each in running_replicas(job, facts)}
            must = must_serve(job, facts, policy=rules.policy)
            if len(held & running) > 1 and len(serving - held) < must:
                problems.append(f"{plan.plan}: {len(serving - held)} of {job.service} would serve, and {must} must")
    return tuple(problems)


def re_prove(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return what a stored proof says otherwise than the facts that its plan was made from, and limits it breaks."""
    found = prove_again(plan, snapshot, rules)
    problems = [f"it breaks a limit: {broken}" for broken in found.violations]
    if plan.proof is None:
        touches = any(action.verb in DESTRUCTIVE_VERBS for action in plan.actions)
        return (*(["no proof is stored with it, although it touches the cluster"] if touches else []), *problems)
    for name in BlastRadius.__dataclass_fields__:
        stored, present = getattr(plan.proof, name), getattr(found, name)
        if stored != present:
            problems.append(f"{name.replace('_', ' ')}: stored {_shown(stored)}; computed anew {_shown(present)}")
    return tuple(problems)


def prove_again(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> BlastRadius:
    """Return the proof of a plan anew, from the snapshot that it was made from.

    The drains of plans that were made before it in the same decision count as begun, as they did then.
    """
    facts = facts_behind(plan, snapshot, rules)
    return prove(plan.actions, plan.timings, facts, policy=rules.policy, topology=rules.topology)


def facts_behind(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> ClusterFacts:
    """Return the facts on which a plan was judged when it was made."""
    facts = cluster_facts(snapshot, rules)
    earlier = [each for each in decide(snapshot, rules).plans if each.incident < plan.incident]
    drains = tuple(
        ActionRecord(action=action, plan=each.plan, begun_at=snapshot.taken_at)
        for each, action in _acts(earlier)
        if action.verb is Verb.DRAIN
    )
    return replace(facts, records=(*facts.records, *drains))


def _prove(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> BlastRadius:
    facts = cluster_facts(snapshot, rules)
    return prove(plan.actions, plan.timings, facts, policy=rules.policy, topology=rules.topology)


def _shown(value: object) -> str:
    text = "; ".join(str(each) for each in value) if isinstance(value, tuple) else str(value)
    return text or "none"


def find_forbidden_acts(plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules) -> tuple[str, ...]:
    """Return each act that policy.yaml forbids the autopilot: a plan ends before it, with a page."""
    return tuple(
        f"{plan.plan}: {action.verb.value} of {action.target}, which consents in policy.yaml forbid"
        for plan, action in _acts(plans)
        if is_forbidden(action, rules.policy)
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
        "No plan touches a node of an open mass event; one that broke anew after the storm is drained at most.",
        find_acts_in_mass_event,
    ),
    "only_repairs_touch_nodes": ("A plan that calls for no repair touches nothing.", find_aimless_repairs),
}
"""Each proof by the name of its check: what must hold, and what finds the contradictions."""


def prove_plans(
    plans: Sequence[IncidentPlan], snapshot: Snapshot, rules: Rules, *, inputs: Digest, contents: Sequence[Digest]
) -> tuple[Proof, ...]:
    """Return the proof of each plan, made on a snapshot that is kept as `inputs`; `contents` are digests of the plans.

    What holds for all together holds for each. Where something does not, each is proved by itself, after those before
    it that passed: their drains count as begun.
    """
    checked = _check(plans, snapshot, rules) if plans else ()
    if not any(each.contradictions for each in checked):
        return tuple(
            _proof(plan, content, checked, inputs, snapshot) for plan, content in zip(plans, contents, strict=True)
        )
    proofs = []
    for plan, content in zip(plans, contents, strict=True):
        proof = _proof(plan, content, _check((plan,), snapshot, rules), inputs, snapshot)
        proofs.append(proof)
        if not proof.contradictions:
            begun = tuple(
                ActionRecord(action=action, plan=plan.plan, begun_at=snapshot.taken_at)
                for action in plan.actions
                if action.verb is Verb.DRAIN
            )
            snapshot = replace(snapshot, records=(*snapshot.records, *begun))
    return tuple(proofs)


def _proof(
    plan: IncidentPlan, content: Digest, checked: tuple[CheckedPlan, ...], inputs: Digest, snapshot: Snapshot
) -> Proof:
    return Proof(
        plan=plan.plan,
        content=content,
        inputs=inputs,
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
    return incident.is_mass_event and incident.is_open
