"""The one entry point that decides: `decide(snapshot) -> Decision`, pure; a stored plan counted again.

Everything that a decision depends on is in the snapshot (or named there by its hash), so that the same snapshot gives
the same decision for ever: that is what makes replay and audit exact. What is done about one incident is `planning`'s.

Counting again uses the planner's own means (`guardrails.blast_radius`): it finds what was changed afterwards. The
second opinion, by other means, is `plan_proof`'s.
"""

from dataclasses import dataclass, replace

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import IncidentId, JobAttempt
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import (
    NodeState,
    seen_by_ourselves,
)
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, Rules, Snapshot
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.rollout import times_of_change
from ops_pipelines.diagnose.correlate import correlate
from ops_pipelines.diagnose.incidents import World
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.guardrails.blast_radius import prove
from ops_pipelines.remediate.guardrails.facts import (
    ClusterFacts,
    nodes_in_trouble,
    stricken_nodes,
)
from ops_pipelines.remediate.planning import (
    plan_remediation,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the program thinks, and what it would do."""

    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]
    """New and changed ones."""
    plans: tuple[IncidentPlan, ...]
    """One for each open incident that may be acted on now."""
    refusals: tuple[tuple[IncidentId, Refusal], ...]
    """Why the other open incidents have no plan."""


def cluster_facts(snapshot: Snapshot, rules: Rules) -> ClusterFacts:
    """Return the part of a snapshot that the guardrails judge on."""
    return ClusterFacts(
        nodes={node.node: node for node in snapshot.nodes},
        jobs={job.job: job for job in snapshot.jobs},
        records=snapshot.records,
        is_telemetry_available=snapshot.is_telemetry_available,
        is_paused=snapshot.is_paused,
        taken_at=snapshot.taken_at,
        costs=snapshot.costs,
        hazards=rules.catalogue.hazards,
        stricken=stricken_nodes(snapshot.incidents, snapshot.records, rules.catalogue.hazards),
        owned=snapshot.owned,
        in_trouble=nodes_in_trouble(snapshot.incidents),
    )


def find_all(snapshot: Snapshot, rules: Rules) -> tuple[Finding, ...]:
    """Return one finding for each new observation, in the order of the evidence."""
    return tuple(find(observation, rules.catalogue) for observation in snapshot.observations)


def correlate_all(findings: tuple[Finding, ...], snapshot: Snapshot, rules: Rules) -> tuple[Incident, ...]:
    """Return the incidents that the findings open or change."""
    return correlate(
        findings,
        snapshot.incidents,
        World(
            jobs=snapshot.jobs,
            conditions=snapshot.conditions,
            topology=rules.topology,
            mass_event=rules.policy.mass_event,
            waiting_limit=rules.policy.durations.waiting_limit,
            returned=_returned_by_people(snapshot),
            told=_told_owners(snapshot),
            incident_count=snapshot.incident_count,
            now=snapshot.taken_at,
            nodes=snapshot.nodes,
            changes=times_of_change(snapshot.owned, snapshot.records),
        ),
    )


def _returned_by_people(snapshot: Snapshot) -> frozenset[IncidentId]:
    """Return the escalated incidents whose node we drained and somebody else has put back into service.

    Not while something is still seen to be wrong with it: a scheduler that crashed forgets a drain, too, and then
    nobody has put anything back.
    """
    handed = [
        incident
        for incident in snapshot.incidents
        if incident.state in (IncidentState.ESCALATED, IncidentState.IN_REPAIR) and incident.nodes
    ]
    if not handed:
        return frozenset()
    seen_broken = {condition.node for condition in seen_by_ourselves(snapshot.conditions)}
    in_service = {
        node.node
        for node in snapshot.nodes
        if not node.is_drained
        and node.is_responding
        and node.state is not NodeState.DOWN
        and node.node not in seen_broken
    }
    drained = {
        (record.action.incident, record.action.node)
        for record in snapshot.records
        if record.action.verb is Verb.DRAIN and record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    }
    return frozenset(
        incident.incident
        for incident in handed
        if all(node in in_service and (incident.incident, node) in drained for node in incident.nodes)
    )


def _told_owners(snapshot: Snapshot) -> frozenset[JobAttempt]:
    """Return the attempts whose owners got a message within the last day (older records are not in a snapshot)."""
    return frozenset(
        record.action.attempt
        for record in snapshot.records
        if record.action.verb is Verb.NOTIFY_OWNER and record.outcome is not None and record.action.attempt is not None
    )


def plan_all(
    changed: tuple[Incident, ...], snapshot: Snapshot, rules: Rules
) -> tuple[tuple[IncidentPlan, ...], tuple[tuple[IncidentId, Refusal], ...]]:
    """Return a plan or a refusal for each incident that waits for one."""
    present = {incident.incident: incident for incident in snapshot.incidents} | {
        incident.incident: incident for incident in changed
    }
    # What was found in this very decision counts: the other replica on a node that broke with this one serves nobody.
    stricken = stricken_nodes(present.values(), snapshot.records, rules.catalogue.hazards)
    facts = replace(cluster_facts(snapshot, rules), stricken=stricken)
    plans: list[IncidentPlan] = []
    refusals: list[tuple[IncidentId, Refusal]] = []
    for name in sorted(present):
        incident = present[name]
        if incident.state is not IncidentState.OPEN:
            continue
        planned = plan_remediation(incident, facts, policy=rules.policy, topology=rules.topology)
        if isinstance(planned, Refusal):
            refusals.append((name, planned))
        else:
            plans.append(planned)
            # What this plan will drain is spent for the next one: together they stay within the budget.
            facts = replace(facts, records=(*facts.records, *_intended_drains(planned, facts)))
    return tuple(plans), tuple(refusals)


def _intended_drains(plan: IncidentPlan, facts: ClusterFacts) -> tuple[ActionRecord, ...]:
    return tuple(
        ActionRecord(action=action, plan=plan.plan, begun_at=facts.taken_at)
        for action in plan.actions
        if action.verb is Verb.DRAIN
    )


def decide(snapshot: Snapshot, rules: Rules) -> Decision:
    """Return what is wrong and what to do about it. The three stages are also steps of the job `remediate`."""
    findings = find_all(snapshot, rules)
    incidents = correlate_all(findings, snapshot, rules)
    plans, refusals = plan_all(incidents, snapshot, rules)
    return Decision(findings=findings, incidents=incidents, plans=plans, refusals=refusals)


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
            problems.append(f"{name.replace('_', ' ')}: stored {_shown(stored)}; computed again {_shown(present)}")
    return tuple(problems)


def prove_again(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> BlastRadius:
    """Return the proof of a plan again, from the snapshot that it was made from.

    The drains of plans that were made before it in the same decision count as started, as they did then.
    """
    facts = facts_behind(plan, snapshot, rules)
    return prove(plan.actions, plan.timings, facts, policy=rules.policy, topology=rules.topology)


def facts_behind(plan: IncidentPlan, snapshot: Snapshot, rules: Rules) -> ClusterFacts:
    """Return the facts on which a plan was judged when it was made."""
    facts = cluster_facts(snapshot, rules)
    earlier = [each for each in decide(snapshot, rules).plans if each.incident < plan.incident]
    drains = tuple(
        ActionRecord(action=action, plan=each.plan, begun_at=snapshot.taken_at)
        for each in earlier
        for action in each.actions
        if action.verb is Verb.DRAIN
    )
    return replace(facts, records=(*facts.records, *drains))


def _shown(value: object) -> str:
    text = "; ".join(str(each) for each in value) if isinstance(value, tuple) else str(value)
    return text or "none"
