"""What must never be done, as data: one rule, one function, named as the guardrail that should have stopped it.

A rule rests on the truth, except where the truth could not be known: the scheduler's answer was bent, or changed
after it was read. Then it rests on what the sender was told last.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.domain.action import DESTRUCTIVE_VERBS, ActionRecord, Verb
from ops_pipelines.domain.guardrails import DRAIN_MARK
from ops_pipelines.domain.identity import ActionKey, JobAttempt, JobId, NodeName, PlanId
from ops_pipelines.domain.observation import (
    HAS_PROCESSES,
    MAY_HAVE_PROCESSES,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    has_moved_on,
)
from ops_pipelines.domain.policy import Mode, Policy
from ops_pipelines.domain.topology import Topology
from ops_pipelines.ports.ledger import LedgerState
from ops_pipelines.simulator.ground_truth import NodeTruth
from tests.safety.border import Command, Told

PERSON = "person"
"""The process in which a person works by hand: mode, pause and approval do not bind it."""
NEEDS_OUR_DRAIN = frozenset(
    {Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.POWER_ON, Verb.RESUME}
)
ONLY_ONCE = frozenset({Verb.REBOOT, Verb.POWER_OFF, Verb.RESET_GPU})
"""Verbs that do harm the second time, whatever became of the answer to the first."""
_KNOWLEDGE_LASTS = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the operator allows, kept apart from what the program was given."""

    policy: Policy
    topology: Topology
    approved: dict[PlanId, tuple[datetime, datetime]] = field(default_factory=dict)
    """From when until when each plan had somebody's yes."""
    foreign_drains: set[tuple[NodeName, str | None, datetime | None]] = field(default_factory=set)
    """Drains by other people: node, and the reason and time that the scheduler shows for them."""
    tokens: dict[str, str | None] = field(default_factory=dict)
    """The lease that each process was given; a process that is not here uses the one that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One command and everything that its rules look at."""

    command: Command
    told: Told
    orders: Orders
    record: ActionRecord | None
    """Its before-entry."""
    state: LedgerState
    lease: str | None
    """The lease that runs by the sender's clock."""
    nodes: Mapping[NodeName, NodeStatus]
    """How the scheduler really sees the nodes."""
    jobs: Mapping[JobId, JobStatus]
    truth: Mapping[NodeName, NodeTruth]
    accepted: tuple[tuple[Command, ActionRecord | None], ...]
    beside: tuple[Command, ...]
    """Commands of the same batch before this one."""

    @property
    def is_by_hand(self) -> bool:
        return self.command.process == PERSON

    @property
    def told_node(self) -> NodeStatus | None:
        return None if self.command.node is None else self.told.nodes.get(self.command.node)

    @property
    def told_job(self) -> JobStatus | None:
        return None if self.command.job is None else self.told.jobs.get(self.command.job)

    @property
    def attempt(self) -> JobAttempt | None:
        return None if self.record is None else self.record.action.attempt

    @property
    def told_busy(self) -> tuple[JobStatus, ...]:
        """Jobs that were said to be on the node."""
        return tuple(
            job for job in self.told.jobs.values() if self.command.node in job.nodes and job.state in MAY_HAVE_PROCESSES
        )

    @property
    def attempts_alive(self) -> frozenset[JobAttempt]:
        """Attempts that really have processes on the node."""
        truth = None if self.command.node is None else self.truth.get(self.command.node)
        return frozenset() if truth is None else truth.attempts


Rule = Callable[[Scene], str | None]


def _mode(scene: Scene) -> str | None:
    return "the operator only observes" if scene.orders.policy.mode is Mode.OBSERVE and not scene.is_by_hand else None


def _pause(scene: Scene) -> str | None:
    return "a person has paused the autopilot" if scene.state.pause is not None and not scene.is_by_hand else None


def _approval(scene: Scene) -> str | None:
    if scene.orders.policy.mode is not Mode.APPROVE or scene.is_by_hand or scene.record is None:
        return None
    plan = scene.record.plan
    given = None if plan is None else scene.orders.approved.get(plan)
    if given is None:
        return f"nobody approved {plan}"
    first = min(each.begun_at for each in scene.state.records if each.plan == plan)
    return None if given[0] <= first < given[1] else f"{plan} was begun at {first}, outside of its approval"


def _known_node(scene: Scene) -> str | None:
    node = scene.command.node
    return f"{node} is not declared" if node is not None and not scene.orders.topology.knows(node) else None


def _untouchable(scene: Scene) -> str | None:
    is_listed = scene.command.node in scene.orders.policy.untouchable_nodes
    return f"the operator wants {scene.command.node} left alone" if is_listed else None


def _known_job(scene: Scene) -> str | None:
    job = scene.command.job
    return f"the scheduler lists no job {job}" if job is not None and scene.told_job is None else None


def _fresh_telemetry(scene: Scene) -> str | None:
    told, stale_after = scene.told, scene.orders.policy.durations.telemetry_stale_after
    if scene.command.verb not in DESTRUCTIVE_VERBS - {Verb.DRAIN}:
        return None
    if told.samples is None or told.samples_at is None:
        return "the metrics source does not answer"
    if abs(scene.command.said_at - told.samples_at) > stale_after:
        return f"the metrics were asked at {told.samples_at} for the last time"
    if not any(abs(told.samples_at - sample.sampled_at) <= stale_after for sample in told.samples):
        return f"no sample is fresh: there are {len(told.samples)}"
    return None


def _idle_node(scene: Scene) -> str | None:
    if scene.command.verb not in (Verb.REBOOT, Verb.RESET_GPU):
        return None
    if scene.told_busy:
        return f"it was said to run job {scene.told_busy[0].job}"
    if scene.told.is_honest and scene.attempts_alive:
        return f"{len(scene.attempts_alive)} attempt(s) have processes there"
    return None


def _hidden_work(scene: Scene) -> str | None:
    if scene.command.verb not in (Verb.REBOOT, Verb.RESET_GPU, Verb.POWER_OFF):
        return None
    node = scene.told_node
    is_used = node is not None and node.gpu_in_use_count > 0
    return "its GPUs are used by jobs that are not shown" if is_used and not scene.told_busy else None


def _held_first(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.POWER_OFF:
        return None
    unheld = [job.job for job in scene.told_busy if job.state is not JobState.COMPLETING and not job.is_held]
    return f"job {unheld[0]} on it is not held" if unheld else None


def _answers_again(scene: Scene) -> str | None:
    node = scene.told_node
    is_silent = node is None or not node.is_responding
    return "it answers" if scene.command.verb is Verb.POWER_OFF and not is_silent else None


def _off_first(scene: Scene) -> str | None:
    node = scene.command.node
    if scene.command.verb is not Verb.DECLARE_DOWN or node is None:
        return None
    return "its power is on" if scene.truth[node].is_powered else None


def _our_drain(scene: Scene) -> str | None:
    node = scene.told_node
    if scene.command.verb not in NEEDS_OUR_DRAIN or node is None:
        return None
    if not node.is_drained:
        return "it is not drained"
    return f"the drain is somebody else's: {node.reason}" if _is_foreign(node, scene) else None


def _foreign_drain(scene: Scene) -> str | None:
    node = scene.told_node
    if scene.command.verb is not Verb.DRAIN or node is None or not node.is_drained:
        return None
    return f"somebody else has drained it: {node.reason}" if _is_foreign(node, scene) else None


def _is_foreign(node: NodeStatus, scene: Scene) -> bool:
    if (node.node, node.reason, node.reason_set_at) in scene.orders.foreign_drains:
        return True
    cause = "" if scene.record is None else f" {scene.record.action.incident}:"
    return not (node.reason or "").startswith(f"{DRAIN_MARK}{cause}")


def _requeueable(scene: Scene) -> str | None:
    job = scene.told_job
    is_fixed = job is not None and not job.is_requeueable
    return "its owner forbade to requeue it" if scene.command.verb is Verb.HOLD and is_fixed else None


def _same_attempt(scene: Scene) -> str | None:
    job = scene.told_job
    if scene.command.verb not in (Verb.HOLD, Verb.RELEASE) or job is None or scene.attempt is None:
        return None
    return f"it is on the attempt of {job.started_at} by now" if has_moved_on(job, scene.attempt) else None


def _fenced_first(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.RELEASE:
        return None
    job = scene.told_job
    if job is not None and job.state in HAS_PROCESSES:
        return f"it was said to be {job.state.value}"
    alive = [each.node for each in scene.truth.values() if scene.attempt in each.attempts and each.answers]
    return f"its processes live on {alive[0]}" if alive and scene.told.is_honest else None


def _silent_node(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.RELEASE or not scene.told.is_honest:
        return None
    alive = [each.node for each in scene.truth.values() if scene.attempt in each.attempts and not each.answers]
    return f"its processes live on {alive[0]}, which is silent" if alive else None


def _nodes_out(scene: Scene) -> frozenset[NodeName]:
    """Return the declared nodes out of service as the sender was told, and those that are so by our own commands."""
    out = {name for name, node in scene.told.nodes.items() if _is_out(node)}
    if scene.told.is_honest:
        out |= {name for name, node in scene.nodes.items() if node.is_drained and _is_marked(node)}
    out |= {each.node for each in scene.beside if each.verb is Verb.DRAIN and each.node is not None}
    return frozenset(name for name in out if scene.orders.topology.knows(name))


def _is_out(node: NodeStatus) -> bool:
    return node.is_drained or node.state is NodeState.DOWN or not node.is_responding


def _is_marked(node: NodeStatus) -> bool:
    return (node.reason or "").startswith(DRAIN_MARK)


def _new_out(scene: Scene) -> frozenset[NodeName]:
    """Return the nodes out of service after a drain that takes one more away; none if it takes nothing."""
    node = scene.command.node
    if scene.command.verb is not Verb.DRAIN or node is None or not scene.orders.topology.knows(node):
        return frozenset()
    if scene.told.nodes[node].is_drained or scene.nodes[node].is_drained:
        return frozenset()
    return _nodes_out(scene) | {node}


def _max_out_count(scene: Scene) -> str | None:
    out, limit = _new_out(scene), scene.orders.policy.drain_budget.max_out_count
    return f"{len(out)} nodes out, {limit} allowed: {', '.join(sorted(out))}" if len(out) > limit else None


def _max_out_per_rack_count(scene: Scene) -> str | None:
    out, places = _new_out(scene), scene.orders.topology.places
    if not out or scene.command.node is None:
        return None
    limit, rack = scene.orders.policy.drain_budget.max_out_per_rack_count, places[scene.command.node].rack
    in_rack = [node for node in out if places[node].rack == rack]
    return f"{len(in_rack)} nodes of rack {rack} out, {limit} allowed" if len(in_rack) > limit else None


def _min_in_service_ratio(scene: Scene) -> str | None:
    out, count = _new_out(scene), len(scene.orders.topology.places)
    ratio, limit = (count - len(out)) / count, scene.orders.policy.drain_budget.min_in_service_ratio
    return f"{ratio:.0%} of the nodes in service, {limit:.0%} wanted" if out and ratio < limit else None


def _drain_rate(scene: Scene) -> str | None:
    if not _new_out(scene):
        return None
    since = scene.command.said_at - timedelta(hours=1)
    drained = {
        command.node for command, _ in scene.accepted if command.verb is Verb.DRAIN and command.said_at > since
    } | {scene.command.node}
    limit = scene.orders.policy.drain_budget.max_new_per_hour_count
    return f"{len(drained)} nodes drained within the hour, {limit} allowed" if len(drained) > limit else None


def _lease(scene: Scene) -> str | None:
    tokens, process = scene.orders.tokens, scene.command.process
    if process in tokens and tokens[process] != scene.lease:
        return "another process holds the lease, or nobody does"
    return None


def _before_entry(scene: Scene) -> str | None:
    return "the ledger has no before-entry of it" if scene.record is None else None


def _twice(scene: Scene) -> str | None:
    if scene.record is None:
        return None
    key: ActionKey = scene.record.action.key
    was_accepted = any(record is not None and record.action.key == key for _, record in scene.accepted)
    if was_accepted and scene.command.verb in ONLY_ONCE:
        return "the cluster has taken it already"
    return "it was accepted and marked as sent" if was_accepted and scene.record.sent_at is not None else None


def _fresh_reading(scene: Scene) -> str | None:
    told, at = scene.told, scene.command.at
    ages = [at - read_at for read_at in (told.nodes_at, told.jobs_at) if read_at is not None]
    is_fresh = len(ages) == 2 and max(ages) <= _KNOWLEDGE_LASTS
    return None if is_fresh else "nodes and jobs were read too long ago"


RULES: Mapping[str, Rule] = {
    "mode": _mode,
    "pause": _pause,
    "approval": _approval,
    "known_node": _known_node,
    "untouchable": _untouchable,
    "known_job": _known_job,
    "fresh_telemetry": _fresh_telemetry,
    "idle_node": _idle_node,
    "hidden_work": _hidden_work,
    "held_first": _held_first,
    "answers_again": _answers_again,
    "off_first": _off_first,
    "our_drain": _our_drain,
    "foreign_drain": _foreign_drain,
    "requeueable": _requeueable,
    "same_attempt": _same_attempt,
    "fenced_first": _fenced_first,
    "silent_node": _silent_node,
    "max_out_count": _max_out_count,
    "max_out_per_rack_count": _max_out_per_rack_count,
    "min_in_service_ratio": _min_in_service_ratio,
    "drain_rate": _drain_rate,
    "lease": _lease,
    "before_entry": _before_entry,
    "twice": _twice,
    "fresh_reading": _fresh_reading,
}
"""Named as the guardrail that stops it; the three limits of `drain_budget` by their keys in policy.yaml."""
