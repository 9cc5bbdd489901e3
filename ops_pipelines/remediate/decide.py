"""The one entry point that decides: `decide(snapshot) -> Decision`, pure; and what to do about one incident.

A plan is data: it can be read, checked, dry-run, approved and replayed. It is made once, persisted, and kept until it
is done or superseded. Limits are `guardrails`' business; sending and witnessing are `remediate.acts.perform`'s.

Everything that a decision depends on is in the snapshot (or named there by its hash), so that the same snapshot gives
the same decision for ever: that is what makes replay and audit exact.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.core.action import SOFT, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, PlanId, Topology, digest_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import (
    MAY_HAVE_PROCESSES,
    TELEMETRY_SOURCE,
    JobState,
    JobStatus,
    NodeState,
    Signal,
    has_moved_on,
    seen_by_ourselves,
)
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, JobTiming, Moment, Rules, Snapshot
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.proof import Authority, Patience, Refusal
from ops_pipelines.core.rollout import times_of_change
from ops_pipelines.diagnose.correlate import correlate
from ops_pipelines.diagnose.hypothesis import response_of
from ops_pipelines.diagnose.incidents import World
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.remediate.guardrails.budgets import leaves_no_place
from ops_pipelines.remediate.guardrails.consents import holder_of
from ops_pipelines.remediate.guardrails.facts import (
    Case,
    ClusterFacts,
    held_and_not_released,
    is_drain_of,
    nodes_in_trouble,
    stricken_nodes,
)
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.isolation import (
    answer_struck,
    drain_first,
    is_of_own_part,
    isolation_for,
    may_be_shared,
    seen_at_first_hand,
    up_to_forbidden,
    within_consents,
)
from ops_pipelines.remediate.job_fate import has_surely_ended
from ops_pipelines.remediate.job_moves import ActionMaker, share_spares, time_jobs
from ops_pipelines.remediate.ladder import next_repair
from ops_pipelines.remediate.repair_steps import Situation, alternatives_to, effects_of, repair_actions

# -- what to do about one incident --


_CAUSE_SHOWS = timedelta(seconds=60)
"""A hung job or a lost peer may be the first sign of a broken part, whose own is sampled some seconds later.
Assumption: four samples of 15 s."""


def plan_remediation(
    incident: Incident, facts: ClusterFacts, *, policy: Policy, topology: Topology
) -> IncidentPlan | Refusal:
    """Return the plan for an incident that is open, or why there is none yet.

    The same incident on the same cluster gives the same plan id, so that an approval stays good until what would
    be done changes. In every mode the first act is judged by the guardrails as if approved: a plan that could not
    begin is a refusal and not a plan.
    """
    if incident.response is Response.MONITOR:
        return Refusal(guardrail="response", reason="nothing to do: it is only watched", patience=Patience.WAIT)
    if incident.response is Response.NOTIFY_OWNER:
        if _may_be_damage(incident) and facts.taken_at - incident.opened_at < _CAUSE_SHOWS:
            return Refusal(
                guardrail="confirmation",
                reason=f"looks like damage; its cause may show itself within {_CAUSE_SHOWS.total_seconds():.0f} s",
                patience=Patience.WAIT,
            )
        return _plan(incident, _tell_owners(incident, facts), effects=("no node and no job is touched",))
    owned = _owned(incident, facts)
    if owned is not None:
        return owned
    isolation = isolation_for(incident)
    if isolation is not None:
        seen = replace(incident, findings=seen_at_first_hand(incident))
        waits = _unconfirmed(seen, facts, policy=policy) or may_be_shared(incident, facts, policy=policy)
        if waits is not None:
            return waits
        isolated = replace(incident, response=isolation)
        return _plan_repair(isolated, facts, called_for=incident.response, policy=policy, topology=topology)
    if incident.is_mass_event and incident.renewed:
        answer = answer_struck(incident, facts, policy=policy, topology=topology)
        return _plan(incident, answer.actions, effects=answer.effects, proof=answer.proof)
    if incident.response not in REPAIRS:
        unconfirmed = None if incident.is_mass_event else _unconfirmed(incident, facts, policy=policy)
        if unconfirmed is not None:
            return unconfirmed
        if is_of_own_part(incident) and facts.taken_at - incident.opened_at < _CAUSE_SHOWS:
            # Who is called at the first line of a log has the incident: what our own sources see next isolates no more.
            return Refusal(
                guardrail="confirmation",
                reason=f"our own sources may show the same within {_CAUSE_SHOWS.total_seconds():.0f} s; then the node "
                "is isolated",
                patience=Patience.WAIT,
            )
        page = Action(
            verb=Verb.PAGE_HUMAN,
            incident=incident.incident,
            text=_page_text(incident),
            try_number=incident.plan_count + 1,
        )
        return _plan(incident, (page,), effects=("nothing is touched",))
    unconfirmed = None if incident.tries else _unconfirmed(incident, facts, policy=policy)
    if unconfirmed is not None and len(incident.nodes) == 1:
        return unconfirmed
    return _plan_repair(incident, facts, called_for=incident.response, policy=policy, topology=topology)


def _owned(incident: Incident, facts: ClusterFacts) -> Refusal | None:
    """Return why an incident waits whose nodes rollouts have in hand, every one of them; nobody is paged for it."""
    holders = {name: holder_of(name, facts) for name in sorted(incident.nodes)}
    if not holders or None in holders.values():
        return None
    said = ", ".join(f"{name} is being updated by {rollout}" for name, rollout in list(holders.items())[:8])
    return Refusal(guardrail="owned", reason=f"{said}; it is seen to if it is there afterwards", patience=Patience.WAIT)


def _may_be_damage(incident: Incident) -> bool:
    return all(each.is_secondary or each.family in (Family.STALL, Family.COLLECTIVE) for each in incident.findings)


def _plan_repair(
    incident: Incident, facts: ClusterFacts, *, called_for: Response, policy: Policy, topology: Topology
) -> IncidentPlan | Refusal:
    """Return the plan of the repair that `incident` stands at, `called_for` being what its findings ask for."""
    if len(incident.nodes) != 1:
        return _leave_to_human(incident, facts, f"a repair needs one node; this incident has {len(incident.nodes)}")
    (name,) = incident.nodes
    node = facts.nodes.get(name)
    if node is None or not topology.knows(name):
        why = f"{name} is not both in cluster.yaml and known to the scheduler; only such nodes are acted on"
        return _leave_to_human(incident, facts, why)
    if name in policy.untouchable_nodes:
        why = f"policy.yaml lists {name} under untouchable_nodes, so its jobs are left alone too"
        return _leave_to_human(incident, facts, why)
    jobs = sorted(
        (job for job in facts.jobs.values() if name in job.nodes and job.state in MAY_HAVE_PROCESSES),
        key=lambda job: job.job,
    )
    repair = next_repair(incident, facts.records, limits=policy.ladder, now=facts.taken_at)
    climbed = replace(incident, response=repair)
    timings = time_jobs(climbed, jobs, facts, policy=policy, topology=topology)
    situation = Situation(
        incident=climbed,
        node=node,
        jobs=tuple(jobs),
        timings=timings,
        held=_held_before(incident, facts),
        spares=share_spares(jobs, timings, facts, policy=policy, topology=topology),
        ended=frozenset(job.attempt for job in jobs if job.attempt and has_surely_ended(job, climbed, facts)),
        is_foreign=node.is_drained and not is_drain_of(incident.incident, node, facts.records),
        lacks="; ".join(dict.fromkeys(policy.lacking.values())),
    )
    plan = _plan_for(situation, facts, called_for=called_for, policy=policy, topology=topology)
    if isinstance(plan, Refusal):
        return plan
    excess = _excess(plan)
    if excess is None:
        return plan
    if all(action.verb is not Verb.HOLD for action in plan.actions):
        return excess
    # Too much would be lost by moving its jobs: the node takes no new work all the same.
    staying = _with_jobs_left(situation)
    plan = _plan_for(staying, facts, called_for=called_for, policy=policy, topology=topology)
    return plan if isinstance(plan, Refusal) else _excess(plan) or plan


def _with_jobs_left(situation: Situation) -> Situation:
    """Return the same repair with every job left running until it ends by itself."""
    reason = "to move it would pass the limits on what may be lost"
    staying = (replace(each, moment=Moment.JOB_END, until=None, reason=reason) for each in situation.timings)
    return replace(situation, timings=tuple(staying), spares={})


def _plan_for(
    situation: Situation, facts: ClusterFacts, *, called_for: Response, policy: Policy, topology: Topology
) -> IncidentPlan | Refusal:
    """Return the plan of a repair, or why its first act could not be begun; what it would lose is `_excess`'s."""
    situation = within_consents(situation, policy)
    actions = up_to_forbidden(drain_first(repair_actions(situation), policy), situation, policy)
    timings = situation.timings
    # Who only observes sees the plans that would be carried out, within the same limits.
    as_if = replace(policy, mode=Mode.APPROVE) if policy.mode is Mode.OBSERVE else policy
    refusal = judge(actions[0], facts, policy=as_if, topology=topology, authority=Authority.APPROVED_PLAN)
    if refusal is None and actions[0].verb is Verb.DRAIN:
        drain = Case(
            action=actions[0], facts=facts, policy=policy, topology=topology, authority=Authority.APPROVED_PLAN
        )
        refusal = leaves_no_place([each.moment for each in timings], drain)
    if refusal is not None:
        return refusal
    return _plan(
        situation.incident,
        actions,
        effects=effects_of(situation, facts),
        rejected_alternatives=alternatives_to(situation, called_for=called_for),
        timings=timings,
        proof=prove(actions, timings, facts, policy=policy, topology=topology),
        calls_for=called_for,
        left_to=(situation.node.reason or "no reason given") if situation.is_foreign else "",
    )


def _excess(plan: IncidentPlan) -> Refusal | None:
    """Return why a plan would lose more than may be lost.

    The jobs of a silent node are held while its drain waits for budget; then each act is judged by itself.
    """
    return None if plan.actions[0].verb is Verb.HOLD else judge_proof(plan.proof)


def _leave_to_human(incident: Incident, facts: ClusterFacts, why: str) -> IncidentPlan | Refusal:
    """Return a plan that only pages: what may never be touched must not wait in silence."""
    held = ", ".join(attempt.job for attempt in _held_before(incident, facts))
    owed = f" Still held by an earlier plan, to be released by you: job {held}." if held else ""
    page = Action(
        verb=Verb.PAGE_HUMAN,
        incident=incident.incident,
        text=f"{incident.cause}. Nothing is done: {why}.{owed}",
        try_number=incident.plan_count + 1,
    )
    return _plan(incident, (page,), effects=("nothing is touched",))


def _held_before(incident: Incident, facts: ClusterFacts) -> tuple[JobAttempt, ...]:
    """Return the attempts that a superseded plan of this incident left held: the next plan owes them their release."""
    held = {record.action.attempt for record in held_and_not_released(incident.incident, facts)}
    return tuple(sorted(attempt for attempt in held if attempt is not None and _is_still_held(attempt, facts)))


def _is_still_held(attempt: JobAttempt, facts: ClusterFacts) -> bool:
    job = facts.jobs.get(attempt.job)
    return (
        job is not None
        and job.is_held
        # Running and held is how a silent node's job looks: marked, and held once the node is given up.
        and job.state in (JobState.PENDING, JobState.COMPLETING, JobState.RUNNING)
        and not has_moved_on(job, attempt)
    )


def _unconfirmed(incident: Incident, facts: ClusterFacts, *, policy: Policy) -> Refusal | None:
    """Return why an incident must wait whose response rests on lasting conditions; a logged event needs no waiting.

    What counts is the condition that calls for this response: a node that lost a GPU a minute ago and falls silent
    now has been silent for no time at all. A condition that went and came again has begun anew.
    """
    if response_of(finding for finding in incident.findings if not finding.is_lasting) >= incident.response:
        return None
    decisive = [
        observation
        for finding in incident.findings
        if finding.is_lasting and finding.response >= incident.response
        for observation in finding.evidence
    ]
    if not decisive:
        return None
    began_at = {
        (each.signal, each.node, each.gpu): each.observed_at
        for each in sorted(decisive, key=lambda observation: observation.observed_at)
    }
    is_silent = any(observation.signal is Signal.NODE_UNREACHABLE for observation in decisive)
    confirm_after = policy.durations.confirm_after(is_silent=is_silent)
    is_blind = any(each.source == TELEMETRY_SOURCE for each in decisive) and not facts.is_telemetry_available
    if is_blind:
        return Refusal(
            guardrail="confirmation", reason="the metrics that showed it do not answer now", patience=Patience.WAIT
        )
    lasted = facts.taken_at - min(began_at.values())
    if lasted >= confirm_after:
        return None
    return Refusal(
        guardrail="confirmation",
        reason=f"seen for {lasted.total_seconds():.0f} s; believed after {confirm_after.total_seconds():.0f} s",
        patience=Patience.WAIT,
    )


def _plan(
    incident: Incident,
    actions: tuple[Action, ...],
    *,
    effects: tuple[str, ...],
    rejected_alternatives: tuple[str, ...] = (),
    timings: tuple[JobTiming, ...] = (),
    proof: BlastRadius | None = None,
    calls_for: Response | None = None,
    left_to: str = "",
) -> IncidentPlan | Refusal:
    if not actions:
        return Refusal(
            guardrail="empty_plan", reason="there is nobody to tell and nothing to touch", patience=Patience.WAIT
        )
    return IncidentPlan(
        # Which nodes are free, and whose checkpoint comes first, changes by the minute; a yes must outlive that.
        plan=PlanId("PLAN-" + digest_of(*sorted(each.key for each in actions if each.verb not in SOFT))[:12]),
        incident=incident.incident,
        response=incident.response,
        actions=actions,
        reason=incident.cause,
        effects=effects,
        rejected_alternatives=rejected_alternatives,
        timings=timings,
        proof=proof,
        calls_for=calls_for or incident.response,
        left_to=left_to,
    )


def _tell_owners(incident: Incident, facts: ClusterFacts) -> tuple[Action, ...]:
    act = ActionMaker(incident)
    # The attempt that was hit is named, not the present one: a job that waits again has none.
    return tuple(
        act.on_job(Verb.NOTIFY_OWNER, victim, _owner_text(incident, facts.jobs[victim.job]))
        for victim in sorted(incident.victims)
        if victim.job in facts.jobs
    )


def _owner_text(incident: Incident, job: JobStatus) -> str:
    return f"Your job {job.job} erred by itself: {incident.cause}. No node is at fault; please look at the program."


def _page_text(incident: Incident) -> str:
    return f"{incident.note}. Nodes: {_names(incident)}. Nothing was touched."


def _names(incident: Incident) -> str:
    names = sorted(incident.nodes)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no node"


# -- the one entry point that decides --


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
