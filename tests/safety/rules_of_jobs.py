"""What must never be done to a job: held where it may not be or once too often, released while its processes live.

Rules like those of `rules`.
"""

from collections.abc import Mapping
from datetime import timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.finding import ISOLATED_FOR, REPAIRS
from ops_pipelines.core.observation import HAS_PROCESSES, Checkpointing, JobState, JobStatus, has_moved_on
from ops_pipelines.core.plan import RestartCosts
from tests.safety.rules_of_drains import is_out
from tests.safety.scene import Rule, Scene


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
    """Return whether the job was instructed to be on a silent node, which the incident is about: nothing of it is
    left."""
    job, nodes = scene.told_job, scene.told.nodes
    silent = () if job is None else [name for name in job.nodes if name in nodes and not nodes[name].is_responding]
    return bool(silent) and scene.record is not None and scene.record.action.has_ended


def _is_hit(job: JobStatus, scene: Scene) -> bool:
    """Return whether a node of the job is broken, or the program had reason to believe so: eyes may be deceived."""
    findings = () if scene.incident is None else scene.incident.findings
    is_told = any(
        each.node in job.nodes
        and not each.is_secondary
        and (each.response in REPAIRS or each.first_action in ISOLATED_FOR)
        for each in findings
    )
    return is_told or any(not scene.truth[node].is_healthy for node in job.nodes if node in scene.truth)


def _free_spares(scene: Scene) -> str | None:
    node = scene.told_node
    if scene.command.verb is not Verb.RESERVE or node is None:
        return None
    if is_out(node) or scene.told_busy or node.gpu_in_use_count:
        return "it is out of service, or busy"
    return f"it is kept as {node.reserved_as}" if node.reserved_as not in (None, scene.command.reason) else None


def _requeueable(scene: Scene) -> str | None:
    job = scene.told_job
    keeps_none = job is not None and job.checkpointing is Checkpointing.NO
    if scene.command.verb is Verb.HOLD and keeps_none and not _died_with_its_node(scene):
        return "it keeps no checkpoint"
    is_fixed = job is not None and not job.is_requeueable
    is_kept = scene.command.verb in (Verb.HOLD, Verb.MARK)
    return "its owner forbade to requeue it" if is_kept and is_fixed else None


def _same_attempt(scene: Scene) -> str | None:
    job = scene.told_job
    if (
        scene.command.verb not in (Verb.HOLD, Verb.MARK, Verb.UNMARK, Verb.RELEASE)
        or job is None
        or scene.attempt is None
    ):
        return None
    return f"it is on the attempt of {job.started_at} by now" if has_moved_on(job, scene.attempt) else None


def _fenced_first(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.RELEASE:
        return None
    job = scene.told_job
    if job is not None and job.state in HAS_PROCESSES:
        return f"it was stated to be {job.state.value}"
    alive = [each.node for each in scene.truth.values() if scene.attempt in each.attempts and each.answers]
    return f"its processes live on {alive[0]}" if alive and scene.told.is_honest else None


def _silent_node(scene: Scene) -> str | None:
    if scene.command.verb in (Verb.MARK, Verb.UNMARK):
        return _mark_of_a_silence(scene)
    if scene.command.verb is not Verb.RELEASE or not scene.told.is_honest:
        return None
    alive = [each.node for each in scene.truth.values() if scene.attempt in each.attempts and not each.answers]
    return f"its processes live on {alive[0]}, which is silent" if alive else None


def _mark_of_a_silence(scene: Scene) -> str | None:
    """Judge a mark by what was reported the nodes: one is silent when it is set, none with processes when it is off."""
    nodes, job, record = scene.told.nodes, scene.told_job, scene.record
    silent = {name for name, node in nodes.items() if not node.is_responding}
    if scene.command.verb is Verb.MARK:
        return None if job is None or job.nodes & silent else "none of its nodes is silent"
    on = frozenset() if job is None else job.nodes
    on |= frozenset(
        name
        for each in scene.state.records
        if record is not None and each.action.verb is Verb.MARK and each.action.attempt == record.action.attempt
        for name in each.attempt_nodes
    )
    alive = [each.node for each in scene.truth.values() if scene.attempt in each.attempts and each.node in silent & on]
    return f"its processes live on {alive[0]}, which is silent" if alive and scene.told.is_honest else None


RULES_OF_JOBS: Mapping[str, Rule] = {
    "requeueable": _requeueable,
    "same_attempt": _same_attempt,
    "fenced_first": _fenced_first,
    "silent_node": _silent_node,
    "requeue_limit": _requeue_limit,
    "min_serving": _min_serving,
    "hourly_loss": _hourly_loss,
    "free_spares": _free_spares,
}
