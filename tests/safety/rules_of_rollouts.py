"""What must never be done about nodes that a rollout has: by another cause, by it on another's, too many, or unproven.

Rules like those of `rules`. Who has a node follows from the commands that the cluster took: its drain and its return.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from ops_pipelines.core.action import DRAIN_MARK, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId, NodeName, is_rollout
from ops_pipelines.core.node_tests import TestResult
from ops_pipelines.core.policy import WeeklyWindow
from tests.safety.scene import Rule, Scene

_FOR_ROLLOUTS = frozenset({Verb.INSTALL, Verb.RELOAD_DRIVER})


def is_of_rollout(record: ActionRecord | None) -> bool:
    return record is not None and is_rollout(record.action.incident)


def finishes_update(scene: Scene) -> bool:
    """Return whether a command only continues with a node that its rollout has, or has installed something on."""
    if scene.record is None or not is_rollout(scene.record.action.incident):
        return False
    cause, node = scene.record.action.incident, scene.command.node
    if _owners(scene).get(node) == cause:
        return True
    return any(
        record is not None and record.action.incident == cause and command.verb is Verb.INSTALL and command.node == node
        for command, record in scene.accepted
    )


def _owners(scene: Scene) -> Mapping[NodeName | None, IncidentId]:
    """Return which rollout has each node."""
    owners: dict[NodeName | None, IncidentId] = {}
    for command, record in scene.accepted:
        if record is None:
            continue
        if command.verb is Verb.DRAIN and is_rollout(record.action.incident):
            owners[command.node] = record.action.incident
        elif command.verb in (Verb.DRAIN, Verb.RESUME):
            owners.pop(command.node, None)  # An incident drains what no rollout has any more: that is judged there.
    return owners


def _one_owner(scene: Scene) -> str | None:
    node, cause = scene.command.node, None if scene.record is None else scene.record.action.incident
    if node is None or cause is None:
        return None
    owner, told = _owners(scene).get(node), scene.told_node
    if owner is not None and owner != cause and not _was_put_back_by_others(scene):
        return f"{owner} has it"
    if not is_rollout(cause):
        return f"{cause} is no rollout" if scene.command.verb in _FOR_ROLLOUTS else None
    drained_by = "" if told is None or not told.is_drained else told.reason or ""
    is_anothers = drained_by.startswith(f"{DRAIN_MARK} ") and not drained_by.startswith(f"{DRAIN_MARK} {cause}:")
    return f"it is drained by another cause: {drained_by}" if is_anothers else None


def _was_put_back_by_others(scene: Scene) -> bool:
    """Return whether a node was seen without a drain after its newest one, or under one that is newer than all of ours.

    Whom somebody put back, nobody of ours has; and who drains it again in our words is somebody else.
    """
    node, told, told_at = scene.command.node, scene.told_node, scene.told.nodes_at
    if told is None or told_at is None:
        return False
    if not told.is_drained:
        drains = [each.at for each, _ in scene.accepted if each.verb is Verb.DRAIN and each.node == node]
        return told_at > max(drains)
    seen = [
        record.outcome.finished_at
        for record in scene.state.records
        if record.action.verb is Verb.DRAIN and record.action.node == node and record.outcome is not None
    ]
    return told.reason_set_at is not None and told.reason_set_at > max(seen, default=told.reason_set_at)


def _rollout_share(scene: Scene) -> str | None:
    if scene.command.verb is not Verb.DRAIN or not is_of_rollout(scene.record):
        return None
    nodes = scene.told.nodes
    out = {name for name in _owners(scene) if name in nodes and nodes[name].is_drained} - {scene.command.node}
    limit = scene.orders.policy.rollouts.max_out_count
    return f"{len(out)} others are out for updates, {limit} allowed" if len(out) >= limit else None


def why_unproven(scene: Scene) -> str | None:
    """Judge the return of a node by a rollout: what was changed was tested since, and every test passed."""
    assert scene.record is not None
    action = scene.record.action
    own = [
        each
        for each in scene.state.records
        if (each.action.incident, each.action.node, each.action.try_number)
        == (action.incident, action.node, action.try_number)
    ]
    if all(each.action.verb is not Verb.INSTALL for each in own):
        return None  # It was drained, and nothing else: it is put back as it was.
    check = next((each for each in own if each.action.verb is Verb.CHECK), None)
    if check is None or check.outcome is None or check.outcome.kind is not OutcomeKind.DONE:
        return "its new version was not tested to the end"
    found = scene.told.heard.get(check.action.key)
    if found is None:
        return "what its tests found was never read"
    failed = [each.test for each in found.tests if each.result is TestResult.FAILED]
    return f"its tests failed: {', '.join(failed)}" if failed else None


def _window(scene: Scene) -> str | None:
    """Judge the drain by which a rollout begins with a node; what it has touched it finishes at any time."""
    windows, at = scene.orders.policy.maintenance_windows, scene.command.said_at
    if scene.command.verb is not Verb.DRAIN or not is_of_rollout(scene.record) or finishes_update(scene):
        return None
    if windows is None or any(_holds(each, at) for each in windows):
        return None
    return f"no maintenance window holds at {at:%a %H:%M} UTC"


def _holds(window: WeeklyWindow, at: datetime) -> bool:
    local = at.astimezone(ZoneInfo(window.timezone))
    for day in (local.date() - timedelta(days=1), local.date()):
        last = day if window.ends > window.begins else day + timedelta(days=1)
        begins = datetime.combine(day, window.begins, local.tzinfo)
        if day.weekday() in window.days and begins <= local < datetime.combine(last, window.ends, local.tzinfo):
            return True
    return False


def _verified(scene: Scene) -> str | None:
    """Judge the return of a node by what really runs there: what its rollout installed last."""
    node, own = scene.command.node, scene.record
    if scene.command.verb is not Verb.RESUME or node is None or own is None or not is_of_rollout(own):
        return None
    installed = [
        record.action.text
        for command, record in scene.accepted
        if record is not None
        and command.verb is Verb.INSTALL
        and (command.node, record.action.incident) == (node, own.action.incident)
        and record.action.try_number == own.action.try_number
    ]
    running = {f"{component.value} {version}" for component, version in scene.versions.get(node, {}).items()}
    wrong = [each for text in installed for each in text.split(", ") if each not in running]
    return f"{', '.join(wrong)} was installed and does not run" if wrong else None


RULES_OF_ROLLOUTS: Mapping[str, Rule] = {
    "owned": _one_owner,
    "rollout_share": _rollout_share,
    "window": _window,
    "verified": _verified,
}
"""The first two are guardrails of the same name; what keeps the others is made to err by `slips_of_rollouts`."""
