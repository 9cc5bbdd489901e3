"""How much may be acted on at once, and on what: one judgement, used when planning and again just before each act.

A refusal is a value with a reason. Nothing here chooses an action. Longer than our modules are, so that every rule
that can stop an act, one function a rule, is found in one place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.domain.action import DESTRUCTIVE_VERBS, MESSAGES, Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.domain.identity import IncidentId, JobAttempt, JobId, NodeName
from ops_pipelines.domain.observation import (
    MAY_HAVE_PROCESSES,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    has_moved_on,
)
from ops_pipelines.domain.policy import Mode, Policy
from ops_pipelines.domain.topology import Topology

DRAIN_MARK = "ops_pipelines"
NEEDS_EYES = DESTRUCTIVE_VERBS - {Verb.DRAIN}
"""Verbs that are not begun while the metrics source is silent. A drain ends nothing and can be taken back."""

_DRAIN_SHOWS_WITHIN = timedelta(minutes=10)
"""A before-entry of a drain covers the time until the flag shows. Later the flag itself says whether the node is out,
so that an entry whose plan was superseded does not spend the budget for ever."""


class Patience(Enum):
    """Whether a refusal may pass by itself."""

    WAIT = "wait"
    """Ask again later: something has yet to happen."""
    NEVER = "never"
    """Not without a person or a change of policy."""


class Authority(Enum):
    """On whose word an action would be begun."""

    AUTOPILOT = "autopilot"
    """On nobody's: only where the mode is auto."""
    APPROVED_PLAN = "approved_plan"
    """A person said yes to exactly this plan."""
    PERSON = "person"
    """A person launched it by hand: mode and pause do not bind them, every other guardrail does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something is not done, and by which rule."""

    guardrail: str
    reason: str
    patience: Patience


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The fresh state that an action is judged on."""

    nodes: Mapping[NodeName, NodeStatus]
    jobs: Mapping[JobId, JobStatus]
    records: tuple[ActionRecord, ...]
    """Actions without an outcome, of open incidents, and of the last hour at least."""
    is_telemetry_available: bool
    is_paused: bool
    taken_at: datetime
    _out: list[tuple[Mapping[NodeName, NodeStatus], frozenset[NodeName]]] = field(
        default_factory=list, repr=False, compare=False
    )

    @property
    def nodes_not_serving(self) -> frozenset[NodeName]:
        """The nodes that take no work by their own state. Computed once for all judgements on the same nodes."""
        if not self._out or self._out[0][0] is not self.nodes:
            out = frozenset(
                name
                for name, node in self.nodes.items()
                if node.is_drained or node.state is NodeState.DOWN or not node.is_responding
            )
            self._out[:] = [(self.nodes, out)]
        return self._out[0][1]


def drain_reason(incident: IncidentId, why: str) -> str:
    """Return the reason written on a drained node: our token first, readable, one line, 200 characters at most."""
    words = " ".join(why.split())
    return f"{DRAIN_MARK} {incident}: {words}"[:200]


def is_drain_of(incident: IncidentId, node: NodeStatus, records: tuple[ActionRecord, ...]) -> bool:
    """Return whether this very incident holds the node's present drain: it alone may repair and return the node.

    A node that a person drained through us, or that another incident holds, is as foreign as anybody else's.
    """
    return drain_owner(node, records) == incident


def drain_owner(node: NodeStatus, records: tuple[ActionRecord, ...]) -> IncidentId | None:
    """Return the incident of ours that holds the node's present drain; None if the drain is foreign, or there is none.

    Ours means: its reason carries the token of an incident that drained it, and where the scheduler gave a time
    with our witness, that time is still the same. Everything else is foreign: never overwritten, never resumed.
    """
    if not node.is_drained or node.reason is None:
        return None
    for record in records:
        # Declaring a node down rewrites its reason and the reason's time; the drain stays ours.
        if record.action.verb not in (Verb.DRAIN, Verb.DECLARE_DOWN) or record.action.node != node.node:
            continue
        if not node.reason.startswith(f"{DRAIN_MARK} {record.action.incident}:"):
            continue
        outcome = record.outcome
        if outcome is None or outcome.witnessed_at is None or node.reason_set_at is None:
            return record.action.incident
        if outcome.witnessed_at == node.reason_set_at:
            return record.action.incident
    return None


def judge(
    action: Action, facts: ClusterFacts, *, policy: Policy, topology: Topology, authority: Authority
) -> Refusal | None:
    """Return why `action` must not be begun on these facts, or None.

    A page passes always, and owners are told even while the autopilot is paused, but not in observe mode: there
    nothing happens to their jobs. Everything else needs a mode that acts, no pause, a declared node and, for what
    takes capacity away, room in the drain budget.
    """
    if action.verb is Verb.NOTIFY_OWNER and policy.mode is Mode.OBSERVE and authority is not Authority.PERSON:
        return _never("mode", "policy.yaml says mode: observe, so nobody's job is touched and no owner is told")
    if action.verb in MESSAGES:
        return None
    for rule in (_may_act, _is_known_target, _has_fresh_eyes, _fits_verb, _fits_budget):
        refusal = rule(action, facts, policy, topology, authority)
        if refusal is not None:
            return refusal
    return None


def _may_act(
    action: Action, facts: ClusterFacts, policy: Policy, topology: Topology, authority: Authority
) -> Refusal | None:
    if authority is Authority.PERSON:
        return None
    if facts.is_paused:
        return _wait("pause", "the autopilot is paused; `ops-pipelines resume-autopilot` lets it act again")
    if policy.mode is Mode.OBSERVE:
        return _never("mode", "policy.yaml says mode: observe, so nothing is done")
    if policy.mode is Mode.APPROVE and authority is not Authority.APPROVED_PLAN:
        return _wait("approval", "policy.yaml says mode: approve, and nobody has approved this plan yet")
    return None


def _is_known_target(
    action: Action, facts: ClusterFacts, policy: Policy, topology: Topology, authority: Authority
) -> Refusal | None:
    if action.node is not None:
        if not topology.knows(action.node):
            return _never(
                "known_node", f"{action.node} is not declared in cluster.yaml; only declared nodes are acted on"
            )
        if action.node not in facts.nodes:
            return _never("known_node", f"the scheduler does not know {action.node}; check its name in cluster.yaml")
        if action.node in policy.untouchable_nodes:
            return _never("untouchable", f"policy.yaml lists {action.node} under untouchable_nodes")
    if action.attempt is not None and action.attempt.job not in facts.jobs:
        return _never("known_job", f"the scheduler no longer knows job {action.attempt.job}")
    return None


def _has_fresh_eyes(
    action: Action, facts: ClusterFacts, policy: Policy, topology: Topology, authority: Authority
) -> Refusal | None:
    if action.verb in NEEDS_EYES and not facts.is_telemetry_available:
        return _wait(
            "fresh_telemetry", "the metrics source does not answer; without eyes nothing beyond a drain is done"
        )
    return None


def _fits_verb(
    action: Action, facts: ClusterFacts, policy: Policy, topology: Topology, authority: Authority
) -> Refusal | None:
    judgement = _PRECONDITIONS.get(action.verb)
    return None if judgement is None else judgement(action, facts)


def _fits_budget(
    action: Action, facts: ClusterFacts, policy: Policy, topology: Topology, authority: Authority
) -> Refusal | None:
    if action.verb is not Verb.DRAIN or action.node is None:
        return None
    if facts.nodes[action.node].is_drained:
        return None  # It is ours, or `_judge_drain` had refused: draining it again takes nothing more away.
    budget = policy.drain_budget
    out = nodes_out_of_service(facts, topology) | {action.node}
    if len(out) > budget.max_out_count:
        return _wait(
            "drain_budget", f"{len(out)} nodes would be out of service; max_out_count is {budget.max_out_count}"
        )
    rack = topology.places[action.node].rack
    out_in_rack = [topology.places[node].rack for node in out & topology.places.keys()].count(rack)
    if out_in_rack > budget.max_out_per_rack_count:
        return _wait(
            "drain_budget",
            f"{out_in_rack} nodes of rack {rack} would be out; "
            f"max_out_per_rack_count is {budget.max_out_per_rack_count}",
        )
    in_service_ratio = (len(topology.places) - len(out)) / len(topology.places)
    if in_service_ratio < budget.min_in_service_ratio:
        return _wait(
            "drain_budget",
            f"only {in_service_ratio:.0%} of nodes would be in service; "
            f"min_in_service_ratio is {budget.min_in_service_ratio}",
        )
    hour_ago = facts.taken_at - timedelta(hours=1)
    recent = {
        record.action.node
        for record in facts.records
        if record.action.verb is Verb.DRAIN and record.begun_at > hour_ago and record.action.node != action.node
    }
    if len(recent) + 1 > budget.max_new_per_hour_count:
        return _wait(
            "drain_rate",
            f"{len(recent)} nodes were drained in the last hour; "
            f"max_new_per_hour_count is {budget.max_new_per_hour_count}",
        )
    return None


def is_moot(action: Action, facts: ClusterFacts) -> str | None:
    """Return why an action of a plan in progress has lost its object, None if it still has one.

    A job that ended, or went on to another attempt without us, needs no hold and no fence; a silent node that
    answers again before its power was cut is fenced like any reachable node.
    """
    if action.attempt is not None and action.verb not in MESSAGES:
        job = facts.jobs.get(action.attempt.job)
        if job is None or (job.state not in MAY_HAVE_PROCESSES and job.state is not JobState.PENDING):
            return f"job {action.attempt.job} has ended"
        if has_moved_on(job, action.attempt):
            return f"job {action.attempt.job} is on another attempt"
        if job.state is JobState.COMPLETING and job.ended_at is not None and action.verb is not Verb.FENCE:
            return f"job {action.attempt.job} ends by itself"
    if action.node is not None and action.verb in (Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.POWER_ON):
        node = facts.nodes.get(action.node)
        was_cut = _is_begun(facts, verb=Verb.POWER_OFF, incident=action.incident, node=action.node)
        if not was_cut and node is not None and node.is_responding:
            return f"{action.node} answers again"
        if not was_cut and action.verb is not Verb.POWER_OFF:
            return f"the power of {action.node} was never cut"
    return None


def nodes_out_of_service(facts: ClusterFacts, topology: Topology) -> frozenset[NodeName]:
    """Return the declared nodes that take no work, whoever did it, and those whose drain was just begun."""
    out = set(facts.nodes_not_serving & topology.places.keys())
    for record in facts.records:
        is_fresh = facts.taken_at - record.begun_at <= _DRAIN_SHOWS_WITHIN
        if record.action.verb is Verb.DRAIN and record.outcome is None and is_fresh and record.action.node is not None:
            out.add(record.action.node)
    return frozenset(out)


def _judge_drain(action: Action, facts: ClusterFacts) -> Refusal | None:
    node = facts.nodes[_node_of(action)]
    if node.is_drained and not is_drain_of(action.incident, node, facts.records):
        return _never("foreign_drain", f"{node.node} is already drained by someone else ({node.reason}); left alone")
    return None


def _judge_idle_repair(action: Action, facts: ClusterFacts) -> Refusal | None:
    foreign = _judge_ours(action, facts)
    if foreign is not None:
        return foreign
    name = _node_of(action)
    busy = sorted(job.job for job in facts.jobs.values() if name in job.nodes and job.state in MAY_HAVE_PROCESSES)
    if busy:
        return _wait("idle_node", f"{name} still runs job(s) {', '.join(busy)}; it waits until they are gone")
    return _judge_hidden_work(facts, name)


def _judge_hidden_work(facts: ClusterFacts, name: NodeName) -> Refusal | None:
    """Refuse where GPUs are in use by no job that we can see: the scheduler may hide other people's jobs from us."""
    in_use_count = facts.nodes[name].gpu_in_use_count
    is_explained = any(name in job.nodes and job.state in MAY_HAVE_PROCESSES for job in facts.jobs.values())
    if in_use_count > 0 and not is_explained:
        return _wait("hidden_work", f"{in_use_count} GPUs of {name} are in use by no job that the scheduler shows us")
    return None


def _judge_power_off(action: Action, facts: ClusterFacts) -> Refusal | None:
    foreign = _judge_ours(action, facts)
    if foreign is not None:
        return foreign
    name = _node_of(action)
    if facts.nodes[name].is_responding:
        return _never("answers_again", f"{name} answers again; power is cut only from a node that is silent")
    # On a silent node a hold shows as a mark on the running job (Slurm), or as completing without end.
    unheld = MAY_HAVE_PROCESSES - {JobState.COMPLETING}
    running = sorted(
        job.job for job in facts.jobs.values() if name in job.nodes and job.state in unheld and not job.is_held
    )
    if running:
        return _wait("held_first", f"job(s) {', '.join(running)} on {name} are not held yet; hold comes before fence")
    return _judge_hidden_work(facts, name)


def _judge_declare_down(action: Action, facts: ClusterFacts) -> Refusal | None:
    foreign = _judge_ours(action, facts)
    if foreign is not None:
        return foreign
    if not _is_done(facts, verb=Verb.POWER_OFF, incident=action.incident, node=action.node):
        return _never("off_first", f"{action.node} is not witnessed powered off; down is no fence")
    return None


def _judge_ours(action: Action, facts: ClusterFacts) -> Refusal | None:
    node = facts.nodes[_node_of(action)]
    if not node.is_drained:
        return _never("our_drain", f"{node.node} is not drained; somebody returned it, so it is left alone")
    if not is_drain_of(action.incident, node, facts.records):
        return _never("our_drain", f"{node.node} is drained by someone else ({node.reason}); left alone")
    return None


def _judge_hold(action: Action, facts: ClusterFacts) -> Refusal | None:
    job = _job_of(action, facts)
    if not job.is_requeueable:
        return _never("requeueable", f"job {job.job} must not be requeued; its owner is told instead")
    return _judge_attempt(action, job)


def _judge_release(action: Action, facts: ClusterFacts) -> Refusal | None:
    job = _job_of(action, facts)
    moved_on = _judge_attempt(action, job)
    if moved_on is not None:
        return moved_on
    if not _is_done(facts, verb=Verb.FENCE, incident=action.incident, attempt=action.attempt):
        return _wait(
            "fenced_first", f"the processes of job {job.job} are not witnessed gone; release comes after fence"
        )
    for name in sorted(_nodes_of_attempt(action, facts)):
        node = facts.nodes.get(name)
        is_off = _is_done(facts, verb=Verb.POWER_OFF, incident=action.incident, node=name)
        if not is_off and (node is None or not node.is_responding):
            # The scheduler calls the job pending as soon as it gives a silent node up: that is no fence.
            return _never(
                "silent_node",
                f"{name} fell silent with its power on; processes of job {job.job} may still write there, so the "
                "job stays held",
            )
    return None


def _nodes_of_attempt(action: Action, facts: ClusterFacts) -> frozenset[NodeName]:
    """Return every node on which the attempt is known to have run, from its hold and its exclusions."""
    nodes: set[NodeName] = set()
    for record in facts.records:
        known = record.action
        if known.incident == action.incident and known.attempt == action.attempt:
            nodes |= record.attempt_nodes
            nodes |= {known.node} if known.verb is Verb.EXCLUDE and known.node is not None else set()
    return frozenset(nodes)


def _judge_attempt(action: Action, job: JobStatus) -> Refusal | None:
    if action.attempt is not None and has_moved_on(job, action.attempt):
        return _never("same_attempt", f"job {job.job} is on another attempt by now; this one is over")
    return None


_PRECONDITIONS = {
    Verb.DRAIN: _judge_drain,
    Verb.RESET_GPU: _judge_idle_repair,
    Verb.REBOOT: _judge_idle_repair,
    Verb.POWER_OFF: _judge_power_off,
    Verb.DECLARE_DOWN: _judge_declare_down,
    Verb.POWER_ON: _judge_ours,
    Verb.RESUME: _judge_ours,
    Verb.HOLD: _judge_hold,
    Verb.RELEASE: _judge_release,
}


def _is_done(
    facts: ClusterFacts,
    *,
    verb: Verb,
    incident: IncidentId,
    node: NodeName | None = None,
    attempt: JobAttempt | None = None,
) -> bool:
    return any(
        record.action.verb is verb
        and record.action.incident == incident
        and (node is None or record.action.node == node)
        and (attempt is None or record.action.attempt == attempt)
        and record.outcome is not None
        and record.outcome.kind is OutcomeKind.DONE
        for record in facts.records
    )


def _is_begun(facts: ClusterFacts, *, verb: Verb, incident: IncidentId, node: NodeName) -> bool:
    return any(
        record.action.verb is verb and record.action.incident == incident and record.action.node == node
        for record in facts.records
    )


def _node_of(action: Action) -> NodeName:
    assert action.node is not None  # Action refuses a node verb without a node
    return action.node


def _job_of(action: Action, facts: ClusterFacts) -> JobStatus:
    assert action.attempt is not None  # Action refuses a job verb without an attempt
    return facts.jobs[action.attempt.job]


def _wait(guardrail: str, reason: str) -> Refusal:
    return Refusal(guardrail=guardrail, reason=reason, patience=Patience.WAIT)


def _never(guardrail: str, reason: str) -> Refusal:
    return Refusal(guardrail=guardrail, reason=reason, patience=Patience.NEVER)
