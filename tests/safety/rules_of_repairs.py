"""What must never be done when a node is repaired: blind, with work on it, out of turn, too often, or in a freeze.

Rules like those of `rules`.
"""

from collections.abc import Iterable, Mapping

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, ActionRecord, Verb
from ops_pipelines.core.identity import IncidentId, JobId
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus, has_moved_on
from tests.safety.border import Command
from tests.safety.rules_of_rollouts import finishes_update, is_of_rollout
from tests.safety.scene import KNOWLEDGE_LASTS, Rule, Scene


def _fresh_telemetry(scene: Scene) -> str | None:
    told, stale_after = scene.told, scene.orders.policy.durations.telemetry_stale_after
    if scene.command.verb not in DESTRUCTIVE_VERBS - {Verb.DRAIN, Verb.CHECK}:
        return None
    if told.samples is None or told.samples_at is None:
        return "the metrics source does not answer"
    if abs(scene.command.said_at - told.samples_at) > max(stale_after, KNOWLEDGE_LASTS):
        return f"the metrics were asked at {told.samples_at} for the last time"
    if not any(abs(told.samples_at - sample.sampled_at) <= stale_after for sample in told.samples):
        return f"no sample is fresh: there are {len(told.samples)}"
    return None


_NEEDS_IDLE = (Verb.REBOOT, Verb.RESET_GPU, Verb.REIMAGE, Verb.CHECK, Verb.INSTALL, Verb.RELOAD_DRIVER)


def _idle_node(scene: Scene) -> str | None:
    is_cycle = scene.command.verb is Verb.POWER_OFF and scene.told_node is not None and scene.told_node.is_responding
    if scene.command.verb not in _NEEDS_IDLE and not is_cycle:
        return None
    if scene.told_busy:
        return f"it was stated to run job {scene.told_busy[0].job}"
    if scene.told.is_honest and scene.attempts_alive:
        return f"{len(scene.attempts_alive)} attempt(s) have processes there"
    return None


def _hidden_work(scene: Scene) -> str | None:
    if scene.command.verb not in (*_NEEDS_IDLE, Verb.POWER_OFF):
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


def _fences_held_job(scene: Scene) -> bool:
    """Return whether a job that we hold, for whatever cause, ran on the silent node: its fence is owed to that job.

    Not to one that has ended since, or continued without us: nothing waits for the fence any more.
    """
    node, held = scene.told_node, dict[JobId, ActionRecord]()
    for command, record in scene.accepted:
        if command.verb in (Verb.HOLD, Verb.MARK) and record is not None and command.job is not None:
            held[command.job] = record
        elif command.verb in (Verb.RELEASE, Verb.UNMARK) and command.job is not None:
            held.pop(command.job, None)
    waiting = [each for job, each in held.items() if _still_waits(scene.told.jobs.get(job), each)]
    is_silent = node is not None and not node.is_responding
    return is_silent and any(scene.command.node in each.attempt_nodes for each in waiting)


def _still_waits(job: JobStatus | None, hold: ActionRecord) -> bool:
    if job is None or hold.action.attempt is None or has_moved_on(job, hold.action.attempt):
        return False
    ends_by_itself = job.state is JobState.COMPLETING and job.ended_at is not None
    return job.is_held if job.state is JobState.PENDING else job.state in MAY_HAVE_PROCESSES and not ends_by_itself


def _freeze_window(scene: Scene) -> str | None:
    verb, at = scene.command.verb, scene.command.said_at
    windows = [each for each in scene.orders.policy.freeze_windows if each.begins_at <= at < each.ends_at]
    if verb not in DESTRUCTIVE_VERBS - {Verb.CHECK} or not windows:
        return None
    if verb is Verb.DRAIN and all(each.allows_drains for each in windows):
        return None
    if (verb is Verb.DECLARE_DOWN and _was_begun(scene, Verb.POWER_OFF)) or finishes_update(scene):
        return None
    if verb in (Verb.DRAIN, Verb.POWER_OFF) and _fences_held_job(scene):
        return None
    job = scene.told_job
    silent = {name for name, node in scene.told.nodes.items() if not node.is_responding}
    if verb is Verb.HOLD and job is not None and job.nodes & silent:
        return None
    return f"freeze window {windows[0].name} holds"


def _other_tries(scene: Scene) -> list[tuple[Command, ActionRecord]]:
    """Return the same repair of the same node as the cluster took it, for other tries."""
    repairs = (Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.REIMAGE)
    if (
        scene.command.verb not in repairs
        or scene.record is None
        or _fences_held_job(scene)
        or is_of_rollout(scene.record)
    ):
        return []
    mine = scene.record.action
    return [
        (command, record)
        for command, record in scene.accepted
        if record is not None
        and not is_of_rollout(record)
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
    is_fence = scene.command.verb is Verb.POWER_OFF and _fences_held_job(scene)
    if allowed is None or is_fence or is_of_rollout(scene.record):
        return None
    since = scene.command.said_at - ladder.memory
    tries = {
        (record.action.incident, record.action.try_number)
        for _, record in _other_tries(scene)
        if record.begun_at > since
    }
    return f"it was tried {len(tries)} times, {allowed} allowed" if len(tries) >= allowed else None


def _storm_brake(scene: Scene) -> str | None:
    touches = DESTRUCTIVE_VERBS - {Verb.CHECK}
    if scene.is_by_hand or scene.command.verb not in touches or scene.command.node is None:
        return None
    if is_of_rollout(scene.record):
        return None  # It was planned, and answers no fault; nor does it speak for a storm.
    event = scene.orders.policy.mass_event
    since = scene.command.said_at - event.brake_window
    lately = [
        (command, record)
        for command, record in scene.accepted
        if command.verb in touches and command.said_at > since and not is_of_rollout(record)
    ]
    cause = None if scene.record is None else scene.record.action.incident
    if any(record is not None and record.action.incident == cause for _, record in lately):
        return None
    # A spare is kept because it is well: its cause, like one that only moved jobs, represents one node, its own.
    on_nodes = [each for each in lately if each[0].node is not None and each[0].verb is not Verb.RESERVE]
    nodes = {command.node for command, _ in on_nodes} - {scene.command.node}
    count = len(nodes) + len(_causes(lately) - _causes(on_nodes))
    return f"{count} other nodes were touched within minutes" if count >= event.min_node_count else None


def _causes(commands: Iterable[tuple[Command, ActionRecord | None]]) -> frozenset[IncidentId]:
    return frozenset(record.action.incident for _, record in commands if record is not None)


def _off_first(scene: Scene) -> str | None:
    node = scene.command.node
    if scene.command.verb is not Verb.DECLARE_DOWN or node is None:
        return None
    return "its power is on" if scene.truth[node].is_powered else None


RULES_OF_REPAIRS: Mapping[str, Rule] = {
    "fresh_telemetry": _fresh_telemetry,
    "idle_node": _idle_node,
    "hidden_work": _hidden_work,
    "held_first": _held_first,
    "answers_again": _answers_again,
    "off_first": _off_first,
    "freeze_window": _freeze_window,
    "rung_order": _rung_order,
    "rung_exhausted": _rung_exhausted,
    "cool_down": _cool_down,
    "storm_brake": _storm_brake,
}
