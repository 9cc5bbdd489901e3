"""Whether an act may be started: one judgement, used when planning and again just before each act.

A refusal is a value with a reason. Nothing here chooses an action. The rules of one target are `preconditions`, the
counts and caps on nodes `budgets`, those on jobs `job_limits`; here is who may act at all, on what and when, and the
order in which everything is asked.

The rules themselves are `guardrails`, `preconditions`, `budgets` and `job_limits`; a test holds the names together.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, MESSAGES, Action, Verb
from ops_pipelines.core.identity import NodeName, Topology, cause_of, is_rollout
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus, has_moved_on
from ops_pipelines.core.policy import ActionClass, Consent, FreezeWindow, Mode, Policy
from ops_pipelines.core.proof import Authority, Refusal, never, wait
from ops_pipelines.remediate.guardrails.budgets import BUDGETS, JOB_LIMITS, fences_held_jobs
from ops_pipelines.remediate.guardrails.consents import holder_of, judge_owner, lacks_consent
from ops_pipelines.remediate.guardrails.facts import (
    Case,
    ClusterFacts,
    Rule,
    held_and_not_released,
    is_begun,
    is_holding,
    mark_on,
)
from ops_pipelines.remediate.guardrails.preconditions import PRECONDITIONS

# -- whether an act may be started --


NEEDS_EYES = DESTRUCTIVE_VERBS - {Verb.DRAIN, Verb.CHECK}
"""Verbs that are not started while the metrics source is silent. A drain ends nothing and can be taken back; a check
only reads."""
_FACTS_LAST = timedelta(seconds=30)
"""# Assumption: a job may start on an idle node at any time; the older a reading, the likelier it is wrong."""


def judge(
    action: Action,
    facts: ClusterFacts,
    *,
    policy: Policy,
    topology: Topology,
    authority: Authority,
    origin: frozenset[NodeName] = frozenset(),
) -> Refusal | None:
    """Return why `action` must not be started on these facts, or None.

    `origin` are the nodes for whose sake a job is moved: a hold names the job alone.

    A page passes always, and owners are notified even while the autopilot is paused, but not in observe mode: there
    nothing happens to their jobs. Everything else passes every rule of `GUARDRAILS`.
    """
    if action.verb is Verb.NOTIFY_OWNER and policy.mode is Mode.OBSERVE and authority is not Authority.PERSON:
        return never("mode", "policy.yaml says mode: observe, so nobody's job is touched and no owner is notified")
    if action.verb in MESSAGES:
        return None
    case = Case(action=action, facts=facts, policy=policy, topology=topology, authority=authority, origin=origin)
    for rule in GUARDRAILS:
        refusal = rule(case)
        if refusal is not None:
            return refusal
    return None


def are_stale(facts: ClusterFacts, now: datetime) -> Refusal | None:
    """Return why nothing may be judged on these facts any more; asked inside the transaction that begins an act."""
    age = abs(now - facts.taken_at)  # A clock that was set back leaves an age that nobody knows.
    if age <= _FACTS_LAST:
        return None
    return wait(
        "stale_facts",
        f"the cluster was read {age.total_seconds():.0f} s ago; what is older than "
        f"{_FACTS_LAST.total_seconds():.0f} s is read again",
    )


def _may_act(case: Case) -> Refusal | None:
    if case.authority is Authority.PERSON:
        return None
    if case.facts.is_paused:
        return wait("pause", "the autopilot is paused; `ops-pipelines resume-autopilot` lets it act again")
    if case.policy.mode is Mode.OBSERVE:
        said = "policy.yaml says mode: observe, so nothing is done"
        # A node in hand of a rollout is not given up for it: it continues when the mode allows.
        return wait("mode", said) if is_rollout(case.action.incident) else never("mode", said)
    return lacks_consent(case)


def _is_known_target(case: Case) -> Refusal | None:
    action = case.action
    for name in _nodes_named(case):
        if not case.topology.knows(name):
            return never("known_node", f"{name} is not declared in cluster.yaml; only declared nodes are acted on")
        if name not in case.facts.nodes:
            return never("known_node", f"the scheduler does not know {name}; check its name in cluster.yaml")
        if name in case.policy.untouchable_nodes:
            return never("untouchable", f"policy.yaml lists {name} under untouchable_nodes")
    # A reservation is given back, whatever became of the job that it was for.
    job = None if action.attempt is None or action.verb is Verb.UNRESERVE else action.attempt.job
    if job is not None and job not in case.facts.jobs:
        return never("known_job", f"the scheduler no longer knows job {job}")
    return None


def _nodes_named(case: Case) -> tuple[NodeName, ...]:
    """Return the nodes that an act is on, and those whose jobs it begins to take away.

    A node may be declared untouchable while its plan waits: then nothing is taken off it. But once a job of a silent
    node is held, the scheduler may give that node up and start its other jobs elsewhere: those are held like the first.
    """
    action = case.action
    named = action.spares if action.node is None else (action.node, *action.spares)
    if action.verb is Verb.HOLD and action.attempt is not None and action.attempt.job in case.facts.jobs:
        return named if _finishes_move(case) else (*named, *sorted(case.origin))
    return (*named, *sorted(case.origin)) if action.verb is Verb.RESERVE else named


def _has_one_owner(case: Case) -> Refusal | None:
    return judge_owner(case, _nodes_named(case))


def _has_fresh_eyes(case: Case) -> Refusal | None:
    if case.action.verb in NEEDS_EYES and not case.facts.is_telemetry_available:
        return wait(
            "fresh_telemetry", "the metrics source does not answer; without eyes nothing beyond a drain is done"
        )
    return None


def _fits_verb(case: Case) -> Refusal | None:
    judgement = PRECONDITIONS.get(case.action.verb)
    return None if judgement is None else judgement(case)


def _is_not_frozen(case: Case) -> Refusal | None:
    """Refuse to begin anything destructive in a freeze window; what was started before is brought to a good end.

    Fencing, excluding, releasing, powering on and returning take nothing away and continue. So does what the fence of a
    silent node needs once a job of it is held: its drain, the power switch, its being declared down, and the holds of
    the other jobs that are as dead as the first. Otherwise that job would stay held until the window ends. Tests run on
    a node that is drained and repaired: without them what was started before the window would come to no end. So would
    an update: a rollout finishes the nodes that it has, and takes no other.
    """
    if case.action.verb not in DESTRUCTIVE_VERBS - {Verb.CHECK}:
        return None
    window = frozen_by(case.policy, case.action.verb, at=case.facts.taken_at)
    if window is None or _finishes_move(case) or _finishes_update(case):
        return None
    return wait(
        "freeze_window",
        f"freeze window {window.name!r} holds from {window.begins_at:%Y-%m-%d %H:%M} until "
        f"{window.ends_at:%Y-%m-%d %H:%M} UTC; {case.action.verb.value} waits",
    )


def frozen_by(policy: Policy, verb: Verb, *, at: datetime) -> FreezeWindow | None:
    """Return the freeze window that keeps a destructive verb from being started at this time; None if none does."""
    return next(
        (
            window
            for window in policy.freeze_windows
            if window.begins_at <= at < window.ends_at and not (verb is Verb.DRAIN and window.allows_drains)
        ),
        None,
    )


def _finishes_update(case: Case) -> bool:
    name = case.action.node
    holder = None if name is None else holder_of(name, case.facts)
    return holder is not None and cause_of(holder) == case.action.incident


def _finishes_move(case: Case) -> bool:
    action, facts = case.action, case.facts
    if action.verb in (Verb.DRAIN, Verb.POWER_OFF):
        return fences_held_jobs(case)
    if action.verb is Verb.DECLARE_DOWN and action.node is not None:
        return is_begun(facts, verb=Verb.POWER_OFF, incident=action.incident, node=action.node)
    if action.verb is not Verb.HOLD:
        return False
    fenced = {name for record in held_and_not_released(action.incident, facts) for name in record.attempt_nodes}
    return any(name in facts.nodes and not facts.nodes[name].is_responding for name in case.job.nodes & fenced)


GUARDRAILS: tuple[Rule, ...] = (
    _may_act,
    _is_known_target,
    _has_one_owner,
    _has_fresh_eyes,
    _fits_verb,
    _is_not_frozen,
    *BUDGETS,
    *JOB_LIMITS,
)
"""Every rule that can stop an act, in the order in which they are asked."""


def is_moot(action: Action, facts: ClusterFacts) -> str | None:
    """Return why an action of a plan in progress has lost its object, None if it still has one.

    A job that ended, or continued to another attempt without us, needs no hold and no fence; one that others hold is
    neither held once more nor released, for it is theirs. A silent node that
    answers again before its power was cut is fenced like any reachable node. One that was rebooted for the same
    incident, and answers, is cycled because that did not help: `judge` says whether it may be. A rollout restarts nodes
    that answer.
    """
    if action.attempt is not None and action.verb not in MESSAGES and action.verb is not Verb.UNRESERVE:
        job = facts.jobs.get(action.attempt.job)
        if job is None or (job.state not in MAY_HAVE_PROCESSES and job.state is not JobState.PENDING):
            return f"job {action.attempt.job} has ended"
        if has_moved_on(job, action.attempt):
            return f"job {action.attempt.job} is on another attempt"
        if job.state is JobState.COMPLETING and job.ended_at is not None and action.verb is not Verb.FENCE:
            return f"job {action.attempt.job} ends by itself"
        if action.verb is Verb.UNMARK:
            return _why_unmarked(job)
        if not is_holding(action.incident, action.attempt, facts):
            if action.verb not in (Verb.RESERVE, Verb.HOLD, Verb.MARK):
                return f"{action.incident} does not hold job {action.attempt.job}"
            is_ours = action.verb is not Verb.MARK and mark_on(action.attempt, facts.records) is not None
            if job.state is JobState.PENDING or (job.is_held and not is_ours):
                return f"job {action.attempt.job} waits already; who held it releases it"
    if action.node is not None and action.verb in (Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.POWER_ON):
        node = facts.nodes.get(action.node)
        was_cut = is_begun(facts, verb=Verb.POWER_OFF, incident=action.incident, node=action.node)
        was_rebooted = is_begun(facts, verb=Verb.REBOOT, incident=action.incident, node=action.node)
        is_repair = action.verb is Verb.POWER_OFF and (was_rebooted or is_rollout(action.incident))
        if not was_cut and not is_repair and node is not None and node.is_responding:
            return f"{action.node} answers again"
        if not was_cut and action.verb is not Verb.POWER_OFF:
            return f"the power of {action.node} was never cut"
    return None


def _why_unmarked(job: JobStatus) -> str | None:
    if not job.is_held:
        return f"job {job.job} is not held any more"
    return f"job {job.job} is held by its user, who releases it" if job.is_held_by_user else None


# -- every guardrail by its name --


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleWords:
    """One guardrail in words."""

    guardrail: str
    judged_on: str
    limit: str
    """The limit that holds here; empty where it is yes or no."""


def read_rulebook(policy: Policy) -> tuple[RuleWords, ...]:
    """Return every guardrail of `judge`, in the order in which they are asked."""
    budget, event, caps = policy.drain_budget, policy.mass_event, policy.blast_caps
    ladder, recovery = policy.ladder, policy.recovery
    windows = ", ".join(f"{each.name} until {each.ends_at:%Y-%m-%d %H:%M} UTC" for each in policy.freeze_windows)
    rows = (
        ("pause", "the ledger's pause", ""),
        ("mode", "policy.yaml", f"mode {policy.mode.value}"),
        ("consent", "policy.yaml, by class of act", _forbidden(policy)),
        ("approval", "approvals of exactly this plan", f"mode {policy.mode.value}{_approved(policy)}"),
        ("known_node", "cluster.yaml and the scheduler's nodes", ""),
        ("untouchable", "policy.yaml", f"{len(policy.untouchable_nodes)} nodes"),
        ("known_job", "the scheduler's jobs", ""),
        ("owned", "rollouts that have a node in hand, and incidents that are at work on it", ""),
        ("fresh_telemetry", "whether the metrics answer", _seconds(policy.durations.telemetry_stale_after)),
        ("foreign_drain", "the drain's reason and time against our own records", ""),
        ("our_drain", "the drain's reason and time against our own records", ""),
        ("idle_node", "the jobs that the scheduler shows on the node", ""),
        ("hidden_work", "the node's GPUs in use", ""),
        ("held_first", "whether the jobs on a silent node are held", ""),
        ("answers_again", "whether the node answers, and our reboots of it", ""),
        ("off_first", "our power-off and its witness", ""),
        ("rung_order", "what was tried before for this incident", ""),
        ("requeueable", "what the job declares", ""),
        ("our_mark", "our mark on the job, and plans that move it", ""),
        ("same_attempt", "the job's present start", ""),
        ("fenced_first", "our fence and its witness", ""),
        ("silent_node", "every node of the attempt", ""),
        ("free_spares", "state, jobs, GPUs and reservation of each spare node", ""),
        ("freeze_window", "the time of the facts", windows or "none"),
        (
            "rung_exhausted",
            "repairs started on the node, for whatever cause",
            f"{ladder.max_gpu_resets_count} resets, {ladder.max_reboots_count} reboots, "
            f"{ladder.max_power_cycles_count} power cycles, {ladder.max_reimages_count} re-images within "
            f"{_seconds(ladder.memory)}",
        ),
        ("cool_down", "the last repair of the same kind on the node", _seconds(ladder.cool_down)),
        (
            "drain_budget",
            "declared nodes out of service, no matter who took them out, and drains under way",
            f"{budget.max_out_count} in all, {budget.max_out_per_rack_count} in a rack, "
            f"{budget.min_in_service_ratio:.0%} in service",
        ),
        ("drain_rate", "nodes that we drained within the hour, rollouts apart", f"{budget.max_new_per_hour_count}"),
        ("rollout_share", "nodes that rollouts have out of service", f"{policy.rollouts.max_out_count}"),
        ("partition_cap", "nodes of its partitions out of service", f"{caps.max_out_per_partition_ratio:.0%}"),
        ("leaf_cap", "nodes below its leaf switch out of service", _count(caps.max_out_per_leaf_count)),
        ("nvlink_cap", "nodes of its NVLink domain out of service", _count(caps.max_out_per_nvlink_domain_count)),
        ("probation_cap", "nodes chosen last", f"{caps.max_on_probation_count}"),
        (
            "storm_brake",
            "nodes on which we began anything destructive, rollouts apart",
            f"{event.min_node_count} within {_seconds(event.brake_window)}",
        ),
        (
            "requeue_limit",
            "attempts of the job that we ended",
            f"{recovery.max_requeues_count} within {_seconds(recovery.requeue_window)}",
        ),
        (
            "min_serving",
            "replicas of its service that serve; where a known fault ended jobs, one less for each GPU that it took",
            f"as declared, else {recovery.default_min_serving_ratio:.0%}",
        ),
        ("hourly_loss", "what our holds of the last hour cost", f"{caps.max_gpu_hours_per_hour:g} GPU-hours"),
    )
    return tuple(RuleWords(guardrail=name, judged_on=on, limit=limit) for name, on, limit in rows)


def _forbidden(policy: Policy) -> str:
    kinds = [kind.value for kind in ActionClass if policy.consents.get(kind) is Consent.FORBID]
    return f"forbidden: {', '.join(kinds)}" if kinds else "nothing is forbidden"


def _approved(policy: Policy) -> str:
    named = [f"{kind.value}: {policy.consents[kind].value}" for kind in ActionClass if kind in policy.consents]
    return f"; {', '.join(named)}" if named else ""


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"


def _count(count: int | None) -> str:
    return "none" if count is None else f"{count}"
