"""The program with one guardrail less: each rule of `remediate.guardrails.judge` can be taken out alone.

A rule is taken out by showing `judge` a world in which that one rule has nothing to object to; every other rule still
judges the world as it is. What is elsewhere (the ledger's own checks, `is_moot`) is taken out by name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, NodeState, NodeStatus, Workload
from ops_pipelines.core.policy import Consent, DrainBudget, Mode, Policy
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.remediate import act_proof, judgement, plan_proof
from ops_pipelines.remediate.guardrails import blast_radius
from ops_pipelines.remediate.guardrails import judge as guardrails
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, drain_reason
from ops_pipelines.resources.ledger import actions as ledger_actions
from tests.safety.rules import NEEDS_OUR_DRAIN
from tests.scenarios.small_autopilot import SmallAutopilot


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `judge` is asked."""

    action: Action
    facts: ClusterFacts
    policy: Policy
    topology: Topology
    authority: Authority
    origin: frozenset[NodeName]


Relaxation = Callable[[Question], Question]


def _with_node(question: Question, **changes: Any) -> Question:
    name, facts = question.action.node, question.facts
    if name is None or name not in facts.nodes:
        return question
    nodes = {**facts.nodes, name: replace(facts.nodes[name], **changes)}
    return replace(question, facts=replace(facts, nodes=nodes))


def _with_jobs(question: Question, change: Callable[[JobStatus], JobStatus]) -> Question:
    jobs = {name: change(job) for name, job in question.facts.jobs.items()}
    return replace(question, facts=replace(question.facts, jobs=jobs))


def _with_done(question: Question, verb: Verb) -> Question:
    """Pretend that `verb` was done to the same target for the same cause."""
    action, facts = question.action, question.facts
    done = ActionRecord(
        action=replace(action, verb=verb, gpu=None),
        plan=None,
        begun_at=facts.taken_at,
        outcome=Outcome(kind=OutcomeKind.DONE, witness="taken for granted", finished_at=facts.taken_at),
    )
    return replace(question, facts=replace(facts, records=(*facts.records, done)))


def _with_budget(question: Question, **changes: Any) -> Question:
    budget: DrainBudget = replace(question.policy.drain_budget, **changes)
    return replace(question, policy=replace(question.policy, drain_budget=budget))


def _with_policy(question: Question, section: str, **changes: Any) -> Question:
    policy = question.policy
    return replace(question, policy=replace(policy, **{section: replace(getattr(policy, section), **changes)}))


def _no_mode(question: Question) -> Question:
    is_observing = question.policy.mode is Mode.OBSERVE
    return replace(question, policy=replace(question.policy, mode=Mode.AUTO)) if is_observing else question


def _no_approval(question: Question) -> Question:
    is_asking = question.authority is Authority.AUTOPILOT and (
        question.policy.mode is Mode.APPROVE or Consent.APPROVE in question.policy.consents.values()
    )
    return replace(question, authority=Authority.APPROVED_PLAN) if is_asking else question


def _no_consent(question: Question) -> Question:
    kept = {kind: each for kind, each in question.policy.consents.items() if each is not Consent.FORBID}
    return replace(question, policy=replace(question.policy, consents=kept))


def _no_known_node(question: Question) -> Question:
    name, facts = question.action.node, question.facts
    question = replace(question, origin=frozenset())
    if name is None:
        return question
    place = Place(rack=f"rack of {name}", nvlink_domain=name, leaf_switch="leaf")
    places = {name: place, **question.topology.places}
    node = NodeStatus(
        node=name,
        state=NodeState.IDLE,
        is_drained=False,
        is_responding=True,
        reason=None,
        reason_set_at=None,
        booted_at=None,
        gpu_count=0,
        gpu_in_use_count=0,
    )
    facts = replace(facts, nodes={name: node, **facts.nodes})
    return replace(question, facts=facts, topology=replace(question.topology, places=places))


def _no_known_job(question: Question) -> Question:
    attempt, facts = question.action.attempt, question.facts
    if attempt is None or attempt.job in facts.jobs:
        return question
    job = JobStatus(
        job=attempt.job,
        state=JobState.RUNNING,
        is_held=False,
        is_requeueable=True,
        name="",
        user="",
        account="",
        workload=Workload.UNKNOWN,
        nodes=frozenset(),
        gpu_count=0,
        started_at=attempt.started_at,
        ended_at=None,
        restart_count=0,
        excluded_nodes=frozenset(),
        checkpointed_at=None,
    )
    return replace(question, facts=replace(facts, jobs={**facts.jobs, attempt.job: job}))


_NEED_IDLE = (
    Verb.REBOOT,
    Verb.RESET_GPU,
    Verb.REIMAGE,
    Verb.CHECK,
    Verb.POWER_OFF,
    Verb.INSTALL,
    Verb.RELOAD_DRIVER,
)


def _no_idle_node(question: Question) -> Question:
    if question.action.verb not in _NEED_IDLE:
        return question
    name = question.action.node
    is_busy = any(name in job.nodes for job in question.facts.jobs.values())
    emptied = _with_jobs(question, lambda job: replace(job, state=JobState.COMPLETED) if name in job.nodes else job)
    return _with_node(emptied, gpu_in_use_count=0) if is_busy else question


def _no_held_first(question: Question) -> Question:
    if question.action.verb is not Verb.POWER_OFF:
        return question
    return _with_jobs(question, lambda job: replace(job, is_held=True))


def _no_answers_again(question: Question) -> Question:
    return _with_node(question, is_responding=False) if question.action.verb is Verb.POWER_OFF else question


def _no_our_drain(question: Question) -> Question:
    action = question.action
    if action.verb not in NEEDS_OUR_DRAIN:
        return question
    ours = _with_node(question, is_drained=True, reason=drain_reason(action.incident, "ours"), reason_set_at=None)
    return _with_done(ours, Verb.DRAIN)


def _no_foreign_drain(question: Question) -> Question:
    return _with_node(question, is_drained=False) if question.action.verb is Verb.DRAIN else question


def _no_same_attempt(question: Question) -> Question:
    attempt = question.action.attempt
    if attempt is None:
        return question
    at = attempt.started_at
    return _with_jobs(question, lambda job: replace(job, started_at=at) if job.job == attempt.job else job)


def _no_silent_node(question: Question) -> Question:
    if question.action.verb is not Verb.RELEASE:
        return question
    facts = question.facts
    nodes = {name: replace(node, is_responding=True) for name, node in facts.nodes.items()}
    return replace(question, facts=replace(facts, nodes=nodes))


def _no_free_spares(question: Question) -> Question:
    spares, facts = question.action.spares, question.facts
    free = {
        name: replace(
            facts.nodes[name],
            state=NodeState.IDLE,
            is_drained=False,
            is_responding=True,
            gpu_in_use_count=0,
            reserved_as=None,
        )
        for name in spares
        if name in facts.nodes
    }
    jobs = {name: replace(job, nodes=job.nodes - set(spares)) for name, job in facts.jobs.items()}
    return replace(question, facts=replace(facts, nodes={**facts.nodes, **free}, jobs=jobs))


def _if_verb(verb: Verb, relax: Relaxation) -> Relaxation:
    return lambda question: relax(question) if question.action.verb is verb else question


RELAXATIONS: Mapping[str, Relaxation] = {
    "mode": _no_mode,
    "pause": lambda question: replace(question, facts=replace(question.facts, is_paused=False)),
    "consent": _no_consent,
    "approval": _no_approval,
    "known_node": _no_known_node,
    "untouchable": lambda question: replace(question, policy=replace(question.policy, untouchable_nodes=frozenset())),
    "known_job": _no_known_job,
    "fresh_telemetry": lambda question: replace(question, facts=replace(question.facts, is_telemetry_available=True)),
    "idle_node": _no_idle_node,
    "hidden_work": lambda question: _with_node(question, gpu_in_use_count=0),
    "held_first": _no_held_first,
    "answers_again": _no_answers_again,
    "off_first": _if_verb(Verb.DECLARE_DOWN, lambda question: _with_done(question, Verb.POWER_OFF)),
    "our_drain": _no_our_drain,
    "foreign_drain": _no_foreign_drain,
    "requeueable": lambda question: _with_jobs(
        question, lambda job: replace(job, is_requeueable=True, checkpointing=Checkpointing.UNKNOWN)
    ),
    "same_attempt": _no_same_attempt,
    "fenced_first": _if_verb(Verb.RELEASE, lambda question: _with_done(question, Verb.FENCE)),
    "silent_node": _no_silent_node,
    "max_out_count": lambda question: _with_budget(question, max_out_count=10_000),
    "max_out_per_rack_count": lambda question: _with_budget(question, max_out_per_rack_count=10_000),
    "min_in_service_ratio": lambda question: _with_budget(question, min_in_service_ratio=0.0),
    "drain_rate": lambda question: _with_budget(question, max_new_per_hour_count=10_000),
    "partition_cap": lambda question: _with_policy(question, "blast_caps", max_out_per_partition_ratio=1.0),
    "leaf_cap": lambda question: _with_policy(question, "blast_caps", max_out_per_leaf_count=None),
    "nvlink_cap": lambda question: _with_policy(question, "blast_caps", max_out_per_nvlink_domain_count=None),
    "hourly_loss": lambda question: _with_policy(question, "blast_caps", max_gpu_hours_per_hour=1e12),
    "probation_cap": lambda question: _with_policy(question, "blast_caps", max_on_probation_count=10_000),
    "freeze_window": lambda question: replace(question, policy=replace(question.policy, freeze_windows=())),
    "rung_order": _if_verb(Verb.REIMAGE, lambda question: _with_done(question, Verb.POWER_OFF)),
    "rung_exhausted": lambda question: _with_policy(
        question,
        "ladder",
        max_gpu_resets_count=10_000,
        max_reboots_count=10_000,
        max_power_cycles_count=10_000,
        max_reimages_count=10_000,
    ),
    "cool_down": lambda question: _with_policy(question, "ladder", cool_down=timedelta(0)),
    "requeue_limit": lambda question: _with_policy(question, "recovery", max_requeues_count=10_000),
    "min_serving": lambda question: _with_jobs(question, lambda job: replace(job, service="")),
    "free_spares": _no_free_spares,
    "storm_brake": lambda question: _with_policy(question, "mass_event", min_node_count=10_000),
}
"""How each guardrail of `judge` is taken out; the three limits of `drain_budget` one by one."""

OF_ROLLOUTS: Mapping[str, Relaxation] = {
    "rollout_share": lambda question: _with_policy(question, "rollouts", max_out_count=10_000)
}
"""Guardrails that rollouts alone meet: `slips_of_rollouts` has what breaks them."""

ELSEWHERE = frozenset({"ledger_pause", "lease", "is_moot", "executed_without_proof"})
"""Checks that stand outside of `judge`: three in the ledger, and what makes an action needless."""
PLANNED = frozenset({"judge_proof"})
"""Checks that keep a plan from being made: a hostile plan has passed them by."""


@contextmanager
def without(*names: str, keeps_second_opinion: bool = False) -> Iterator[None]:
    """Take the named checks out while the block runs.

    With them goes the second opinion, which would hide what they alone keep, but where it is what is looked at.
    """
    there = {**RELAXATIONS, **OF_ROLLOUTS}
    unknown = set(names) - there.keys() - ELSEWHERE - PLANNED
    if unknown:
        raise ValueError(f"there is no guardrail {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    with ExitStack() as stack:
        relaxations = [there[name] for name in names if name in there]
        if relaxations:
            stack.enter_context(replaced(guardrails.judge, _judge_relaxed(relaxations)))
        if "is_moot" in names:
            stack.enter_context(replaced(guardrails.is_moot, lambda *_: None))
        if "lease" in names:
            # It is asked twice: in the ledger (`without_in_ledger`), and right before the command.
            stack.enter_context(replaced(judgement.why_too_late, _why_stale))
        if names and not keeps_second_opinion:
            for proofs in (plan_proof, act_proof):
                stack.enter_context(replaced(proofs._contradictions, lambda *_: ()))
        if "executed_without_proof" in names:
            stack.enter_context(replaced(ledger_actions.refusal_of_unproved, lambda *_, **__: None))
        if "judge_proof" in names:
            stack.enter_context(replaced(blast_radius.judge_proof, lambda *_: None))
        yield


def _why_stale(facts: ClusterFacts, cluster: Cluster, *, token: str) -> Refusal | None:
    return guardrails.are_stale(facts, cluster.clock.now())


def without_in_ledger(*names: str) -> Callable[[SmallAutopilot], None]:
    """Return what makes a process of the program use a ledger without the named checks of its own."""
    changes: dict[str, object] = {}
    if "lease" in names:
        changes["lease_token"] = None  # the port's way to say that no lease is asked for
    if "ledger_pause" in names:
        changes["actor"] = "nobody-in-particular"  # a pause binds the autopilot only

    def dress(autopilot: SmallAutopilot) -> None:
        ledger = cast("Ledger", _LaxLedger(autopilot.cluster.ledger, changes))
        autopilot.cluster = replace(autopilot.cluster, ledger=ledger)

    return dress


class _LaxLedger:
    """A ledger that is asked to begin actions in other words."""

    def __init__(self, ledger: Ledger, changes: Mapping[str, object]) -> None:
        self._ledger = ledger
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)
        if name not in ("begin", "begin_all", "begin_again"):
            return method
        return lambda *args, **options: method(*args, **{**options, **self._changes})


def _judge_relaxed(relaxations: list[Relaxation]) -> Callable[..., Refusal | None]:
    original = guardrails.judge

    def judge(
        action: Action,
        facts: ClusterFacts,
        *,
        policy: Policy,
        topology: Topology,
        authority: Authority,
        origin: frozenset[NodeName] = frozenset(),
    ) -> Refusal | None:
        asked = Question(
            action=action, facts=facts, policy=policy, topology=topology, authority=authority, origin=origin
        )
        for relax in relaxations:
            asked = relax(asked)
        return original(
            action,
            asked.facts,
            policy=asked.policy,
            topology=asked.topology,
            authority=asked.authority,
            origin=asked.origin,
        )

    return judge


@contextmanager
def replaced(original: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """Put `other` wherever a module of the program has imported `original` while the block runs."""
    name = original.__name__
    homes = [
        module
        for key, module in list(sys.modules.items())
        if key.startswith("ops_pipelines") and module.__dict__.get(name) is original
    ]
    for home in homes:
        setattr(home, name, other)
    try:
        yield
    finally:
        for home in homes:
            setattr(home, name, original)
