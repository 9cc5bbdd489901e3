"""What to do about one incident: an ordered plan of actions, or the reason for none.

A plan is data: it can be read, checked, dry-run, approved and replayed. It is made once, persisted, and kept
until it is done or superseded. Limits are `guardrails`' business; sending and witnessing are `flow.acts.perform`'s.
"""

from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.action import SOFT, Action, Verb
from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import JobAttempt, PlanId, Topology, digest_of
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    MAY_HAVE_PROCESSES,
    TELEMETRY_SOURCE,
    JobState,
    JobStatus,
    Signal,
    has_moved_on,
)
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, JobTiming, Moment
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.diagnose.hypothesis import response_of
from ops_pipelines.domain.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.domain.guardrails.budgets import leaves_no_place
from ops_pipelines.domain.guardrails.facts import held_and_not_released
from ops_pipelines.domain.guardrails.judge import Authority, Case, ClusterFacts, Patience, Refusal, is_drain_of, judge
from ops_pipelines.domain.guardrails.ownership import holder_of
from ops_pipelines.domain.repair.aftermath import answer_struck
from ops_pipelines.domain.repair.consented import drain_first, up_to_forbidden, within_consents
from ops_pipelines.domain.repair.isolation import is_of_own_part, isolation_for, may_be_shared, seen_at_first_hand
from ops_pipelines.domain.repair.job_fate import has_surely_ended
from ops_pipelines.domain.repair.job_moves import ActionMaker, share_spares, time_jobs
from ops_pipelines.domain.repair.plan_words import alternatives_to, effects_of
from ops_pipelines.domain.repair.repair_steps import Situation, repair_actions
from ops_pipelines.domain.steps.ladder import next_repair

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
