"""What to do about one incident: an ordered plan of actions, or the reason for none.

A plan is data: it can be read, checked, dry-run, approved and replayed. It is made once, persisted, and kept
until it is done or superseded. Limits are `guardrails`' business; sending and witnessing are `flow.perform`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.domain.action import Action, OutcomeKind, Verb
from ops_pipelines.domain.correlation import gpus_to_reset, response_of
from ops_pipelines.domain.fault import Family
from ops_pipelines.domain.finding import REPAIRS, Response
from ops_pipelines.domain.guardrails import (
    Authority,
    ClusterFacts,
    Patience,
    Refusal,
    drain_reason,
    is_drain_of,
    judge,
)
from ops_pipelines.domain.identity import IncidentId, JobAttempt, NodeName, PciAddress, PlanId, digest_of
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.observation import (
    MAY_HAVE_PROCESSES,
    TELEMETRY_SOURCE,
    JobState,
    JobStatus,
    NodeStatus,
    Signal,
    has_moved_on,
)
from ops_pipelines.domain.policy import Mode, Policy
from ops_pipelines.domain.topology import Topology

_CAUSE_SHOWS = timedelta(seconds=60)
"""A hung job or a lost peer may be the first sign of a broken part, whose own is sampled some seconds later.
Assumption: four samples of 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentPlan:
    """What is to be done about one incident, in this order. An empty plan means nothing, never everything."""

    plan: PlanId
    incident: IncidentId
    response: Response
    actions: tuple[Action, ...]
    reason: str
    effects: tuple[str, ...]
    """What it costs whom, one sentence each."""
    rejected_alternatives: tuple[str, ...]


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
    if incident.response not in REPAIRS:
        unconfirmed = None if incident.is_mass_event else _unconfirmed(incident, facts, policy=policy)
        if unconfirmed is not None:
            return unconfirmed
        page = Action(
            verb=Verb.PAGE_HUMAN,
            incident=incident.incident,
            text=_page_text(incident),
            try_number=incident.plan_count + 1,
        )
        return _plan(incident, (page,), effects=("nothing is touched",))
    return _plan_repair(incident, facts, policy=policy, topology=topology)


def _asks_for_more_than_gpus(incident: Incident) -> bool:
    """Return whether something without a GPU of its own, such as an NVSwitch, calls for a reset: a reboot covers it."""
    return any(
        each.response is Response.RESET_GPU and each.gpu is None and not each.is_secondary for each in incident.findings
    )


def _may_be_damage(incident: Incident) -> bool:
    return all(each.is_secondary or each.family in (Family.STALL, Family.COLLECTIVE) for each in incident.findings)


def _plan_repair(
    incident: Incident, facts: ClusterFacts, *, policy: Policy, topology: Topology
) -> IncidentPlan | Refusal:
    if len(incident.nodes) != 1:
        return _leave_to_human(incident, f"a repair needs one node; this incident has {len(incident.nodes)}")
    (name,) = incident.nodes
    unconfirmed = _unconfirmed(incident, facts, policy=policy)
    if unconfirmed is not None:
        return unconfirmed
    node = facts.nodes.get(name)
    if node is None or not topology.knows(name):
        why = f"{name} is not both in cluster.yaml and known to the scheduler; only such nodes are acted on"
        return _leave_to_human(incident, why)
    if name in policy.untouchable_nodes:
        why = f"policy.yaml lists {name} under untouchable_nodes, so its jobs are left alone too"
        return _leave_to_human(incident, why)
    jobs = sorted(
        (job for job in facts.jobs.values() if name in job.nodes and job.state in MAY_HAVE_PROCESSES),
        key=lambda job: job.job,
    )
    held = _held_before(incident, facts)
    is_foreign = node.is_drained and not is_drain_of(incident.incident, node, facts.records)
    actions = _repair_actions(incident, node, jobs, held=held, is_foreign=is_foreign)
    plan = _plan(
        incident,
        actions,
        effects=_effects(jobs, facts, held=held),
        rejected_alternatives=_alternatives(incident, is_foreign=is_foreign),
    )
    # Who only observes sees the plans that would be carried out, within the same limits.
    as_if = replace(policy, mode=Mode.APPROVE) if policy.mode is Mode.OBSERVE else policy
    refusal = judge(actions[0], facts, policy=as_if, topology=topology, authority=Authority.APPROVED_PLAN)
    return plan if refusal is None else refusal


def _leave_to_human(incident: Incident, why: str) -> IncidentPlan | Refusal:
    """Return a plan that only pages: what may never be touched must not wait in silence."""
    page = Action(
        verb=Verb.PAGE_HUMAN,
        incident=incident.incident,
        text=f"{incident.cause}. Nothing is done: {why}.",
        try_number=incident.plan_count + 1,
    )
    return _plan(incident, (page,), effects=("nothing is touched",))


def _held_before(incident: Incident, facts: ClusterFacts) -> tuple[JobAttempt, ...]:
    """Return the attempts that a superseded plan of this incident left held: the next plan owes them their release."""
    ours = [record for record in facts.records if record.action.incident == incident.incident]
    released = {
        record.action.attempt
        for record in ours
        if record.action.verb is Verb.RELEASE and record.outcome is not None and record.outcome.kind is OutcomeKind.DONE
    }
    held = {record.action.attempt for record in ours if record.action.verb is Verb.HOLD} - released
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


def _is_leaving(job: JobStatus) -> bool:
    """Return whether a job ends or was requeued by somebody already: there is nothing to hold, only to wait for."""
    return job.state is JobState.COMPLETING and (job.attempt is None or job.ended_at is not None)


def _is_movable(job: JobStatus) -> bool:
    return job.is_requeueable and job.attempt is not None and job.state is not JobState.UNKNOWN and not _is_leaving(job)


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
    durations = policy.durations
    confirm_after = durations.confirm_unreachable_after if is_silent else durations.confirm_gpu_missing_after
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


def _repair_actions(
    incident: Incident,
    node: NodeStatus,
    jobs: Sequence[JobStatus],
    *,
    held: Sequence[JobAttempt],
    is_foreign: bool,
) -> tuple[Action, ...]:
    """Return drain; then per job hold, fence, exclude, release; then the repair itself.

    Unreachable is not dead: there the fence is the power switch, and only a node without power is declared down. Its
    jobs are held before anything else, while the drain may have to wait for budget: at its silence limit the scheduler
    itself would start them elsewhere.
    """
    act = _ActionMaker(incident)
    reason = drain_reason(incident.incident, incident.cause)
    movable = [job.attempt for job in jobs if _is_movable(job) and job.attempt is not None]
    fixed = [job for job in jobs if not _is_movable(job) and not _is_leaving(job)]
    moved = sorted({*movable, *held})
    is_silent = incident.response is Response.POWER_CYCLE
    gpus = sorted(gpus_to_reset(incident.findings))

    drains = [] if is_foreign else [act.on_node(Verb.DRAIN, node.node, reason)]
    notices = [
        act.on_job(Verb.NOTIFY_OWNER, job.attempt, _owner_text(incident, job))
        for job in jobs
        if job.attempt is not None and not _is_leaving(job)
    ]
    holds = [act.on_job(Verb.HOLD, attempt) for attempt in movable]
    is_silent_now = is_silent and not node.is_responding
    actions = [*holds, *drains, *notices] if is_silent_now else [*drains, *notices, *holds]
    if is_silent and (is_foreign or fixed):
        # Without a fence of our own nothing may be held, released or cut off.
        actions = [*drains, *notices]
        why = "drained by someone else" if is_foreign else f"running job {fixed[0].job}, which must not be requeued"
        stay = f"; job(s) {', '.join(attempt.job for attempt in held)} stay held" if held else ""
        return (*actions, act.page(f"{node.node} is silent and {why}: it is left to you{stay}"))
    if is_silent:
        actions.append(act.on_node(Verb.POWER_OFF, node.node))
        actions.append(act.on_node(Verb.DECLARE_DOWN, node.node, reason))
    actions += [act.on_job(Verb.FENCE, attempt) for attempt in moved]
    actions += [act.off_node(attempt, node.node) for attempt in moved]
    actions += [act.on_job(Verb.RELEASE, attempt) for attempt in moved]
    if is_foreign:
        return (
            *actions,
            act.page(f"{node.node} is drained by someone else: its jobs were moved, the node is left to you"),
        )
    if is_silent:
        actions.append(act.on_node(Verb.POWER_ON, node.node))
    elif incident.response is Response.RESET_GPU and gpus and not _asks_for_more_than_gpus(incident):
        actions += [act.on_gpu(node.node, gpu) for gpu in gpus]
    else:
        actions.append(act.on_node(Verb.REBOOT, node.node, reason))
    return tuple(actions)


class _ActionMaker:
    """Makes actions of one incident and one try."""

    def __init__(self, incident: Incident) -> None:
        self._incident = incident.incident
        self._try_number = incident.plan_count + 1

    def on_node(self, verb: Verb, node: NodeName, text: str = "") -> Action:
        return Action(verb=verb, incident=self._incident, node=node, text=text, try_number=self._try_number)

    def on_gpu(self, node: NodeName, gpu: PciAddress) -> Action:
        return Action(verb=Verb.RESET_GPU, incident=self._incident, node=node, gpu=gpu, try_number=self._try_number)

    def on_job(self, verb: Verb, attempt: JobAttempt, text: str = "") -> Action:
        return Action(verb=verb, incident=self._incident, attempt=attempt, text=text, try_number=self._try_number)

    def off_node(self, attempt: JobAttempt, node: NodeName) -> Action:
        return Action(
            verb=Verb.EXCLUDE, incident=self._incident, attempt=attempt, node=node, try_number=self._try_number
        )

    def page(self, text: str) -> Action:
        return Action(verb=Verb.PAGE_HUMAN, incident=self._incident, text=text, try_number=self._try_number)


def _plan(
    incident: Incident,
    actions: tuple[Action, ...],
    *,
    effects: tuple[str, ...],
    rejected_alternatives: tuple[str, ...] = (),
) -> IncidentPlan | Refusal:
    if not actions:
        return Refusal(
            guardrail="empty_plan", reason="there is nobody to tell and nothing to touch", patience=Patience.WAIT
        )
    return IncidentPlan(
        plan=PlanId("PLAN-" + digest_of(*(action.key for action in actions))[:12]),
        incident=incident.incident,
        response=incident.response,
        actions=actions,
        reason=incident.cause,
        effects=effects,
        rejected_alternatives=rejected_alternatives,
    )


def _tell_owners(incident: Incident, facts: ClusterFacts) -> tuple[Action, ...]:
    act = _ActionMaker(incident)
    # The attempt that was hit is named, not the present one: a job that waits again has none.
    return tuple(
        act.on_job(Verb.NOTIFY_OWNER, victim, _owner_text(incident, facts.jobs[victim.job]))
        for victim in sorted(incident.victims)
        if victim.job in facts.jobs
    )


def _owner_text(incident: Incident, job: JobStatus) -> str:
    cause = incident.cause
    if incident.response is Response.NOTIFY_OWNER:
        return f"Your job {job.job} erred by itself: {cause}. No node is at fault; please look at the program."
    if _is_movable(job):
        return (
            f"Your job {job.job} ran on {_names(incident)}: {cause}. "
            "It goes on elsewhere from its last checkpoint; there is nothing for you to do."
        )
    return (
        f"Your job {job.job} runs on {_names(incident)}: {cause}. "
        "It may not be requeued, so it is left running; please save and end it."
    )


def _page_text(incident: Incident) -> str:
    return f"{incident.note}. Nodes: {_names(incident)}. Nothing was touched."


def _names(incident: Incident) -> str:
    names = sorted(incident.nodes)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no node"


def _effects(jobs: Sequence[JobStatus], facts: ClusterFacts, *, held: Sequence[JobAttempt]) -> tuple[str, ...]:
    effects = [f"job {attempt.job}, held by an earlier plan, is released" for attempt in held]
    for job in jobs:
        if _is_leaving(job):
            effects.append(f"job {job.job} is ending already; the repair waits until it is gone")
        elif not _is_movable(job):
            effects.append(f"job {job.job} ({job.gpu_count} GPUs) is not touched; the repair waits until it ends")
        elif job.checkpointed_at is None:
            effects.append(f"job {job.job} ({job.gpu_count} GPUs) is requeued; the age of its checkpoint is unknown")
        else:
            lost_seconds = max(0.0, (facts.taken_at - job.checkpointed_at).total_seconds())
            lost = lost_seconds * job.gpu_count / 3600
            effects.append(
                f"job {job.job} ({job.gpu_count} GPUs) goes back {lost_seconds:.0f} s to its last checkpoint: "
                f"{lost:.2f} GPU-hours"
            )
    return tuple(effects) or ("no job runs on it",)


def _alternatives(incident: Incident, *, is_foreign: bool) -> tuple[str, ...]:
    rejected = []
    driver = [finding for finding in incident.findings if finding.is_driver_verdict]
    tables = {finding.response for finding in incident.findings if not finding.is_driver_verdict} & REPAIRS
    for other in sorted(tables - {incident.response}):
        by = "the driver itself asks for it" if driver else "a stronger finding asks for it"
        rejected.append(f"{_words(other)}: {_words(incident.response)} instead, because {by}")
    if incident.response is Response.POWER_CYCLE:
        rejected.append(
            "declaring the node down first: that starts a second copy of its jobs while the first still writes"
        )
    if is_foreign:
        rejected.append("repairing the node: its drain is somebody else's")
    return tuple(rejected)


def _words(response: Response) -> str:
    return response.name.lower().replace("_", " ")
