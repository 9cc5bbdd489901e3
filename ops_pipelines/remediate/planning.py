"""What to do about one incident: its plan, or why there is none yet; and when a page becomes an isolation.

A plan is data: it can be read, checked, dry-run, approved and replayed. It is made once, persisted, and kept until it
is done or superseded. Limits are the guardrails'; the acts of a repair are `repair_steps`'.

Isolation is drain, move, test: it takes a job off a bad part at once, where a page alone would leave it there until
somebody comes. Where any of its conditions does not hold, a person is paged.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import SOFT, Action, Verb
from ops_pipelines.core.fault import AtFault, ComponentKind, Family, FirstAction
from ops_pipelines.core.finding import ISOLATED_FOR, REPAIRS, Finding, Response
from ops_pipelines.core.identity import JobAttempt, PlanId, Topology, digest_of
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import (
    MAY_HAVE_PROCESSES,
    TELEMETRY_SOURCE,
    JobState,
    Signal,
    has_moved_on,
)
from ops_pipelines.core.plan import BlastRadius, IncidentPlan, JobTiming, Moment
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.proof import Authority, Refusal, wait
from ops_pipelines.diagnose.explanation import spreads_within
from ops_pipelines.diagnose.hypothesis import confidence_of, response_of
from ops_pipelines.diagnose.incidents import isolates
from ops_pipelines.remediate.guardrails.blast_radius import judge_proof, prove
from ops_pipelines.remediate.guardrails.budgets import leaves_no_place
from ops_pipelines.remediate.guardrails.consents import holder_of
from ops_pipelines.remediate.guardrails.facts import (
    Case,
    ClusterFacts,
    held_and_not_released,
    is_drain_of,
)
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.job_moves import ActionMaker, has_surely_ended, share_spares, time_jobs
from ops_pipelines.remediate.ladder import next_repair
from ops_pipelines.remediate.repair_steps import (
    Situation,
    alternatives_to,
    drain_first,
    drain_struck,
    effects_of,
    repair_actions,
    up_to_forbidden,
    within_consents,
)

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
        return wait("response", "nothing to do: it is only watched")
    if incident.response is Response.NOTIFY_OWNER:
        if _may_be_damage(incident) and facts.taken_at - incident.opened_at < _CAUSE_SHOWS:
            return wait(
                "confirmation",
                f"looks like damage; its cause may show itself within {_CAUSE_SHOWS.total_seconds():.0f} s",
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
        found = drain_struck(incident, facts, policy=policy, topology=topology)
        return _plan(incident, found.actions, effects=found.effects, proof=found.proof)
    if incident.response not in REPAIRS:
        unconfirmed = None if incident.is_mass_event else _unconfirmed(incident, facts, policy=policy)
        if unconfirmed is not None:
            return unconfirmed
        if is_of_own_part(incident) and facts.taken_at - incident.opened_at < _CAUSE_SHOWS:
            # Who is called at the first line of a log has the incident: what our own sources see next isolates no more.
            return wait(
                "confirmation",
                f"our own sources may show the same within {_CAUSE_SHOWS.total_seconds():.0f} s; then the node "
                "is isolated",
            )
        return _only_page(incident, f"{incident.note}. Nodes: {_names(incident)}. Nothing was touched.")
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
    return wait("owned", f"{said}; it is seen to if it is there afterwards")


def _may_be_damage(incident: Incident) -> bool:
    return all(each.is_secondary or each.family in (Family.STALL, Family.COLLECTIVE) for each in incident.findings)


def _plan_repair(
    incident: Incident, facts: ClusterFacts, *, called_for: Response, policy: Policy, topology: Topology
) -> IncidentPlan | Refusal:
    """Return the plan of the repair that `incident` is at, `called_for` being what its findings ask for."""
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
    """Return the plan of a repair, or why its first act could not be started; what it would lose is `_excess`'s."""
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
    return _only_page(incident, f"{incident.cause}. Nothing is done: {why}.{owed}")


def _only_page(incident: Incident, text: str) -> IncidentPlan | Refusal:
    return _plan(incident, (ActionMaker(incident).page(text),), effects=("nothing is touched",))


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
    now has been silent for no time at all. A condition that went and came again has started again.
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
        return wait("confirmation", "the metrics that showed it do not answer now")
    lasted = facts.taken_at - min(began_at.values())
    if lasted >= confirm_after:
        return None
    return wait(
        "confirmation", f"seen for {lasted.total_seconds():.0f} s; believed after {confirm_after.total_seconds():.0f} s"
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
        return wait("empty_plan", "there is nobody to tell and nothing to touch")
    return IncidentPlan(
        # Which nodes are free, and whose checkpoint comes first, changes by the minute; approval must outlive that.
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
        act.on_job(
            Verb.NOTIFY_OWNER,
            victim,
            f"Your job {victim.job} erred by itself: {incident.cause}. No node is at fault; please look at the "
            "program.",
        )
        for victim in sorted(incident.victims)
        if victim.job in facts.jobs
    )


def _names(incident: Incident) -> str:
    names = sorted(incident.nodes)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no node"


ISOLATED_AT = 0.85
"""How sure we must be that it is this node's own part. Assumption: what a detector alone is sure of that compares a
part with its peers, and more than one line of one log is."""
_PARTS_OF_A_NODE = frozenset({ComponentKind.GPU, ComponentKind.LINK, ComponentKind.DISK, ComponentKind.NODE})
_OWN_FAULTS = frozenset({AtFault.GPU, AtFault.NODE, AtFault.FABRIC})
"""At fault where a node's own part is; a link of one node alone is its own, whatever the other end is called."""
_SECOND_HAND = frozenset({Signal.LOG_SIGNATURE, Signal.REPEATED, Signal.ALERT})
_SPREADING = frozenset({Family.FABRIC, Family.NVLINK, Family.HEAT, Family.POWER, Family.SILENCE})
"""Trouble that a switch, a rack or a feed gives many nodes one after the other. A part that lags behind its peers, or a
rank that differs from all others, was compared with them already."""


def isolation_for(incident: Incident) -> Response | None:
    """Return what takes the node of an incident out of service that calls for a page; None: a person is paged as ever.

    ISOLATE, or RETURN_TO_VENDOR where the part must be replaced: no test can prove that one well.
    """
    belief = incident.hypothesis
    if belief is None or belief.confidence < ISOLATED_AT or not is_of_own_part(incident):
        return None
    shown = seen_at_first_hand(incident)
    calling = [each for each in shown if isolates(each) and each.node in incident.nodes and not _is_of_domain(each)]
    # What anybody may write into a log adds to what is believed, and takes no node out of service.
    if not any(each.first_action is belief.first_action for each in calling):
        return None
    if round(confidence_of(shown), 3) < ISOLATED_AT:
        return None
    return Response.RETURN_TO_VENDOR if belief.first_action is FirstAction.RMA else Response.ISOLATE


def is_of_own_part(incident: Incident) -> bool:
    """Return whether an incident calls for a page about one node's own part, and for eyes or hands on it.

    Whether that is believed enough to take the node out is not asked here.
    """
    belief = incident.hypothesis
    if (
        incident.response is not Response.PAGE
        or belief is None
        or incident.suspect is not None
        or len(incident.nodes) != 1
        or belief.first_action not in ISOLATED_FOR
        or belief.at_fault not in _OWN_FAULTS
    ):
        return False
    is_own = all(part.kind in _PARTS_OF_A_NODE and part.node in incident.nodes for part in belief.culprits)
    return bool(belief.culprits) and is_own


def _is_of_domain(finding: Finding) -> bool:
    """Return whether the driver asks for the NVLink domain to be recovered (IMEX), which spans many nodes."""
    return finding.is_driver_verdict and finding.first_action is FirstAction.RESET_FABRIC


def seen_at_first_hand(incident: Incident) -> tuple[Finding, ...]:
    """Return the findings that speak for an isolation: neither damage, nor words, history or alerts."""
    return tuple(each for each in incident.findings if not each.is_secondary and not is_second_hand(each))


def is_second_hand(finding: Finding) -> bool:
    """Return whether a finding rests on words, on history or on an alert alone.

    Users choose what their programs write and how often they fail; that something came often is a person's to judge,
    since no test of today settles it; and an alert is what another's rules made of what we may not have seen.
    """
    return all(each.signal in _SECOND_HAND for each in finding.evidence)


def may_be_shared(incident: Incident, facts: ClusterFacts, *, policy: Policy) -> Refusal | None:
    """Return why an isolation waits: its neighbours may be about to show the same, and then it is no node's own.

    A link that is down may be the first of a whole switch, a hot GPU the first of a rack. What is touched is gathered
    no more, so nothing is touched before the others have had their time.
    """
    began_at: dict[Family, datetime] = {}
    for each in seen_at_first_hand(incident):
        # An alert that has lasted since yesterday, or another trouble of the node, says nothing of how new this one is.
        if isolates(each):
            began_at[each.family] = min(began_at.get(each.family, each.found_at), each.found_at)
    ages = [(facts.taken_at - at, _window_of(family, policy)) for family, at in began_at.items()]
    waits = [(stood, window) for stood, window in ages if stood < window]
    if not waits:
        return None
    stood, window = max(waits, key=lambda each: each[1] - each[0])
    return wait(
        "confirmation",
        f"seen for {stood.total_seconds():.0f} s; its own after {window.total_seconds():.0f} s, if its "
        "neighbours stay well",
    )


def _window_of(family: Family, policy: Policy) -> timedelta:
    if family not in _SPREADING:
        return timedelta(0)
    return spreads_within(family, policy.mass_event)
