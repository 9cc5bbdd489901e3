"""What must never be done, as data: one rule, one function, named as the guardrail that should have stopped it.

A rule rests on the truth, except where the truth could not be known: the scheduler's answer was bent, or changed
after it was read. Then it rests on what the sender was told last.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta

from ops_pipelines.domain.action import DESTRUCTIVE_VERBS, MESSAGES, ActionRecord, Verb
from ops_pipelines.domain.guardrails.judge import DRAIN_MARK
from ops_pipelines.domain.identity import ActionKey, NodeName
from ops_pipelines.domain.incident import IncidentState
from ops_pipelines.domain.meaning.finding import REPAIRS
from ops_pipelines.domain.observation import (
    HAS_PROCESSES,
    Checkpointing,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    has_moved_on,
)
from ops_pipelines.domain.policy import Mode
from ops_pipelines.domain.steps.timing import RestartCosts
from tests.safety.border import Command
from tests.safety.rules_of_returns import RULES_OF_RETURNS
from tests.safety.scene import PERSON, Orders, Rule, Scene

__all__ = ["NEEDS_OUR_DRAIN", "PERSON", "RULES", "Orders", "Scene"]

NEEDS_OUR_DRAIN = frozenset(
    {
        Verb.RESET_GPU,
        Verb.REBOOT,
        Verb.POWER_OFF,
        Verb.DECLARE_DOWN,
        Verb.POWER_ON,
        Verb.REIMAGE,
        Verb.CHECK,
        Verb.PUT_LAST,
        Verb.RESUME,
    }
)
ONLY_ONCE = frozenset({Verb.REBOOT, Verb.POWER_OFF, Verb.RESET_GPU, Verb.REIMAGE})
"""Verbs that do harm the second time, whatever became of the answer to the first."""
_KNOWLEDGE_LASTS = timedelta(seconds=30)


def _mode(scene: Scene) -> str | None:
    return "the operator only observes" if scene.orders.policy.mode is Mode.OBSERVE and not scene.is_by_hand else None


def _pause(scene: Scene) -> str | None:
    return "a person has paused the autopilot" if scene.state.pause is not None and not scene.is_by_hand else None


def _approval(scene: Scene) -> str | None:
    if scene.orders.policy.mode is not Mode.APPROVE or scene.is_by_hand or scene.record is None:
        return None
    plan = scene.record.plan
    given = () if plan is None else scene.orders.approved.get(plan, ())
    if not given:
        return f"nobody approved {plan}"
    acts = [each for each in scene.state.records if each.plan == plan and each.action.verb not in MESSAGES]
    first = min(each.begun_at for each in acts)
    is_covered = any(since <= first < until for since, until in given)
    return None if is_covered else f"{plan} was begun at {first}, outside of its approval"


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
    if scene.command.verb not in DESTRUCTIVE_VERBS - {Verb.DRAIN, Verb.CHECK}:
        return None
    if told.samples is None or told.samples_at is None:
        return "the metrics source does not answer"
    if abs(scene.command.said_at - told.samples_at) > stale_after:
        return f"the metrics were asked at {told.samples_at} for the last time"
    if not any(abs(told.samples_at - sample.sampled_at) <= stale_after for sample in told.samples):
        return f"no sample is fresh: there are {len(told.samples)}"
    return None


def _idle_node(scene: Scene) -> str | None:
    is_cycle = scene.command.verb is Verb.POWER_OFF and scene.told_node is not None and scene.told_node.is_responding
    if scene.command.verb not in (Verb.REBOOT, Verb.RESET_GPU, Verb.REIMAGE, Verb.CHECK) and not is_cycle:
        return None
    if scene.told_busy:
        return f"it was said to run job {scene.told_busy[0].job}"
    if scene.told.is_honest and scene.attempts_alive:
        return f"{len(scene.attempts_alive)} attempt(s) have processes there"
    return None


def _hidden_work(scene: Scene) -> str | None:
    if scene.command.verb not in (Verb.REBOOT, Verb.RESET_GPU, Verb.POWER_OFF, Verb.REIMAGE, Verb.CHECK):
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
    if scene.command.verb is not Verb.POWER_OFF or is_silent or _was_begun(scene, Verb.REBOOT):
        return None
    return "it answers, and no reboot was tried"


def _was_begun(scene: Scene, *verbs: Verb) -> bool:
    """Return whether the same incident has before-entries of one of these verbs on the same node."""
    return scene.record is not None and any(
        each.action.verb in verbs
        and each.action.node == scene.command.node
        and each.action.incident == scene.record.action.incident
        for each in scene.state.records
    )


def _rung_order(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.REIMAGE or _was_begun(scene, Verb.REBOOT, Verb.POWER_OFF):
        return None
    return "no restart was tried before"


def _has_moved_jobs(scene: Scene) -> bool:
    """Return whether the cause has taken a hold that it has not given back: its fence is owed to that job."""
    ours = [
        command
        for command, record in scene.accepted
        if record is not None and scene.record is not None and record.action.incident == scene.record.action.incident
    ]
    held = {each.job for each in ours if each.verb is Verb.HOLD} - {
        each.job for each in ours if each.verb is Verb.RELEASE
    }
    return bool(held) and scene.told_node is not None and not scene.told_node.is_responding


def _freeze_window(scene: Scene) -> str | None:
    verb, at = scene.command.verb, scene.command.said_at
    windows = [each for each in scene.orders.policy.freeze_windows if each.begins_at <= at < each.ends_at]
    if verb not in DESTRUCTIVE_VERBS - {Verb.CHECK} or not windows:
        return None
    if verb is Verb.DRAIN and all(each.allows_drains for each in windows):
        return None
    if verb is Verb.DECLARE_DOWN and _was_begun(scene, Verb.POWER_OFF):
        return None
    if verb in (Verb.DRAIN, Verb.POWER_OFF) and _has_moved_jobs(scene):
        return None
    job = scene.told_job
    silent = {name for name, node in scene.told.nodes.items() if not node.is_responding}
    if verb is Verb.HOLD and job is not None and job.nodes & silent:
        return None
    return f"freeze window {windows[0].name} holds"


def _other_tries(scene: Scene) -> list[tuple[Command, ActionRecord]]:
    """Return the same repair of the same node as the cluster took it, for other tries."""
    repairs = (Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.REIMAGE)
    if scene.command.verb not in repairs or scene.record is None or _has_moved_jobs(scene):
        return []
    mine = scene.record.action
    return [
        (command, record)
        for command, record in scene.accepted
        if record is not None
        and (command.verb, command.node) == (mine.verb, mine.node)
        and (record.action.incident, record.action.try_number) != (mine.incident, mine.try_number)
    ]


def _cool_down(scene: Scene) -> str | None:
    limit = scene.orders.policy.ladder.cool_down
    ages = [
        scene.command.said_at - record.begun_at
        for command, record in _other_tries(scene)
        if command.gpu == scene.command.gpu
    ]
    return f"the last one was {min(ages)} ago" if ages and min(ages) < limit else None


def _rung_exhausted(scene: Scene) -> str | None:
    ladder = scene.orders.policy.ladder
    allowed = {
        Verb.RESET_GPU: ladder.max_gpu_resets_count,
        Verb.REBOOT: ladder.max_reboots_count,
        Verb.POWER_OFF: ladder.max_power_cycles_count,
        Verb.REIMAGE: ladder.max_reimages_count,
    }.get(scene.command.verb)
    if allowed is None or (scene.command.verb is Verb.POWER_OFF and _has_moved_jobs(scene)):
        return None
    since = scene.command.said_at - ladder.memory
    tries = {
        (record.action.incident, record.action.try_number)
        for _, record in _other_tries(scene)
        if record.begun_at > since
    }
    return f"it was tried {len(tries)} times, {allowed} allowed" if len(tries) >= allowed else None


def _requeue_limit(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.HOLD or _died_with_its_node(scene):
        return None
    limits = scene.orders.policy.recovery
    since = scene.command.said_at - limits.requeue_window
    earlier = {
        record.action.attempt
        for command, record in scene.accepted
        if command.verb is Verb.HOLD and command.job == scene.command.job and command.said_at > since
        if record is not None and record.action.verb is Verb.HOLD and record.action.attempt != scene.attempt
    }
    is_over = len(earlier) >= limits.max_requeues_count
    return f"moved {len(earlier)} times, {limits.max_requeues_count} allowed" if is_over else None


def _min_serving(scene: Scene) -> str | None:
    job = scene.told_job
    if scene.command.verb is not Verb.HOLD or job is None or not job.service:
        return None
    if job.job in scene.progress and scene.progress[job.job].is_hung:
        return None  # It serves nobody.
    nodes = scene.told.nodes
    fellows = [each for each in scene.told.jobs.values() if (each.service, each.account) == (job.service, job.account)]
    serving = [
        each.job
        for each in fellows
        if each.state is JobState.RUNNING
        and not each.is_held
        and all(name in nodes and nodes[name].is_responding for name in each.nodes)
    ]
    share = scene.orders.policy.recovery.default_min_serving_ratio * len(serving)
    running = [each for each in fellows if each.state is JobState.RUNNING]
    must = min(max((each.min_serving_count for each in running), default=0), len(running)) or share
    left = len(set(serving) - {job.job})
    return f"{left} replicas are left, {must:g} must serve" if job.job in serving and left < must else None


def _hourly_loss(scene: Scene) -> str | None:
    job = scene.told_job
    if scene.command.verb is not Verb.HOLD or job is None or job.checkpointed_at is None:
        return None
    if scene.record is not None and scene.record.action.has_ended and _is_hit(job, scene):
        return None  # The fault has taken it already.
    since = scene.command.said_at - timedelta(hours=1)
    before = {
        record.action.attempt: record.lost_gpu_hours or 0.0
        for command, record in scene.accepted
        if command.verb is Verb.HOLD and command.said_at > since
        if record is not None and record.action.attempt != scene.attempt
    }
    wasted = scene.command.said_at - job.checkpointed_at + _STANDS_IDLE
    lost = sum(before.values()) + wasted.total_seconds() * job.gpu_count / 3600
    cap = scene.orders.policy.blast_caps.max_gpu_hours_per_hour
    return f"{lost:.2f} GPU-hours within the hour, {cap:g} allowed" if lost > cap else None


_STANDS_IDLE = timedelta(seconds=RestartCosts().restart_seconds + RestartCosts().queue_seconds)


def _died_with_its_node(scene: Scene) -> bool:
    """Return whether the job was told to be on a silent node, which the incident is about: nothing of it is left."""
    job, nodes = scene.told_job, scene.told.nodes
    silent = () if job is None else [name for name in job.nodes if name in nodes and not nodes[name].is_responding]
    return bool(silent) and scene.record is not None and scene.record.action.has_ended


def _is_hit(job: JobStatus, scene: Scene) -> bool:
    """Return whether a node of the job is broken, or the program had reason to believe so: eyes may be deceived."""
    findings = () if scene.incident is None else scene.incident.findings
    is_told = any(each.node in job.nodes and each.response in REPAIRS and not each.is_secondary for each in findings)
    return is_told or any(not scene.truth[node].is_healthy for node in job.nodes if node in scene.truth)


def _free_spares(scene: Scene) -> str | None:
    node = scene.told_node
    if scene.command.verb is not Verb.RESERVE or node is None:
        return None
    if _is_out(node) or scene.told_busy or node.gpu_in_use_count:
        return "it is out of service, or busy"
    return f"it is kept as {node.reserved_as}" if node.reserved_as not in (None, scene.command.reason) else None


def _storm_brake(scene: Scene) -> str | None:
    touches = DESTRUCTIVE_VERBS - {Verb.CHECK}
    if scene.is_by_hand or scene.command.verb not in touches or scene.command.node is None:
        return None
    event = scene.orders.policy.mass_event
    since = scene.command.said_at - event.brake_window
    lately = [
        (command, record) for command, record in scene.accepted if command.verb in touches and command.said_at > since
    ]
    cause = None if scene.record is None else scene.record.action.incident
    if any(record is not None and record.action.incident == cause for _, record in lately):
        return None
    nodes = {command.node for command, _ in lately if command.node is not None} - {scene.command.node}
    is_storm = len(nodes) >= event.min_node_count
    return f"{len(nodes)} other nodes were touched within minutes" if is_storm else None


def _off_first(scene: Scene) -> str | None:
    node = scene.command.node
    if scene.command.verb is not Verb.DECLARE_DOWN or node is None:
        return None
    return "its power is on" if scene.truth[node].is_powered else None


def _our_drain(scene: Scene) -> str | None:
    node = scene.told_node
    if scene.command.verb not in NEEDS_OUR_DRAIN or node is None:
        return None
    is_said_again = scene.incident is not None and scene.incident.state is IncidentState.PROBATION
    if not node.is_drained and scene.command.verb is Verb.PUT_LAST and is_said_again:
        return None  # The scheduler forgot it.
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
    keeps_none = job is not None and job.checkpointing is Checkpointing.NO
    if scene.command.verb is Verb.HOLD and keeps_none and not _died_with_its_node(scene):
        return "it keeps no checkpoint"
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


def _parts_out(scene: Scene, place: Callable[[NodeName], str]) -> int:
    """Return how many nodes are out where the drained node stands, after a drain that takes it away."""
    out = _new_out(scene)
    if not out or scene.command.node is None:
        return 0
    return [place(node) for node in out].count(place(scene.command.node))


def _leaf_cap(scene: Scene) -> str | None:
    places, cap = scene.orders.topology.places, scene.orders.policy.blast_caps.max_out_per_leaf_count
    count = _parts_out(scene, lambda node: places[node].leaf_switch)
    return f"{count} nodes of the leaf out, {cap} allowed" if cap is not None and count > cap else None


def _nvlink_cap(scene: Scene) -> str | None:
    places, cap = scene.orders.topology.places, scene.orders.policy.blast_caps.max_out_per_nvlink_domain_count
    count = _parts_out(scene, lambda node: places[node].nvlink_domain)
    is_alone = (
        scene.command.node in places
        and [place.nvlink_domain for place in places.values()].count(places[scene.command.node].nvlink_domain) == 1
    )
    return (
        f"{count} nodes of the domain out, {cap} allowed" if cap is not None and count > cap and not is_alone else None
    )


def _partition_cap(scene: Scene) -> str | None:
    out, nodes = _new_out(scene), scene.told.nodes
    ratio = scene.orders.policy.blast_caps.max_out_per_partition_ratio
    for partition in nodes[scene.command.node].partitions if out and scene.command.node is not None else ():
        members = {
            name for name, node in nodes.items() if partition in node.partitions and scene.orders.topology.knows(name)
        }
        count = len(members & out)
        if count > 1 and count > ratio * len(members):
            return f"{count} of {len(members)} nodes of {partition} out, {ratio:.0%} allowed"
    return None


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
    count = sum(record is not None and record.action.key == key for _, record in scene.accepted)
    # A reset that helped nothing cannot be told from one that never came, and a second one harms nobody.
    allowed = 1 if scene.command.verb is Verb.RESET_GPU and scene.record.sent_at is None else 0
    if count > allowed and scene.command.verb in ONLY_ONCE:
        return "the cluster has taken it already"
    return "it was accepted and marked as sent" if count and scene.record.sent_at is not None else None


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
    "partition_cap": _partition_cap,
    "leaf_cap": _leaf_cap,
    "nvlink_cap": _nvlink_cap,
    "freeze_window": _freeze_window,
    "rung_order": _rung_order,
    "rung_exhausted": _rung_exhausted,
    "cool_down": _cool_down,
    "requeue_limit": _requeue_limit,
    "min_serving": _min_serving,
    "hourly_loss": _hourly_loss,
    "free_spares": _free_spares,
    "storm_brake": _storm_brake,
    **RULES_OF_RETURNS,
    "lease": _lease,
    "before_entry": _before_entry,
    "twice": _twice,
    "fresh_reading": _fresh_reading,
}
"""Named as the guardrail that stops it; the three limits of `drain_budget` by their keys in policy.yaml."""
