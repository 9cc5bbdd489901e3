"""What must never be done about drains: against somebody else's, or beyond what may be out of service at once.

Rules like those of `rules`.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta

from ops_pipelines.core.action import DRAIN_MARK, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import NodeState, NodeStatus
from tests.safety.rules_of_rollouts import is_of_rollout
from tests.safety.scene import Rule, Scene

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
        Verb.INSTALL,
        Verb.RELOAD_DRIVER,
    }
)


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


def _nodes_out(scene: Scene) -> frozenset[NodeName]:
    """Return the declared nodes out of service as the sender was reported, and those that are so by our own
    commands."""
    out = {name for name, node in scene.told.nodes.items() if is_out(node)}
    if scene.told.is_honest:
        out |= {name for name, node in scene.nodes.items() if node.is_drained and _is_marked(node)}
    out |= {each.node for each in scene.beside if each.verb is Verb.DRAIN and each.node is not None}
    return frozenset(name for name in out if scene.orders.topology.knows(name))


def is_out(node: NodeStatus) -> bool:
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
    """Return how many nodes are out where the drained node is, after a drain that takes it away."""
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
    return f"{ratio:.0%} of the nodes in service, {limit:.0%} requested" if out and ratio < limit else None


def _drain_rate(scene: Scene) -> str | None:
    if not _new_out(scene) or is_of_rollout(scene.record):
        return None  # How fast versions move is stated by waves, windows and the rollouts' own share.
    since = scene.command.said_at - timedelta(hours=1)
    drained = {
        command.node
        for command, record in scene.accepted
        if command.verb is Verb.DRAIN and command.said_at > since and not is_of_rollout(record)
    } | {scene.command.node}
    limit = scene.orders.policy.drain_budget.max_new_per_hour_count
    return f"{len(drained)} nodes drained within the hour, {limit} allowed" if len(drained) > limit else None


RULES_OF_DRAINS: Mapping[str, Rule] = {
    "our_drain": _our_drain,
    "foreign_drain": _foreign_drain,
    "max_out_count": _max_out_count,
    "max_out_per_rack_count": _max_out_per_rack_count,
    "min_in_service_ratio": _min_in_service_ratio,
    "drain_rate": _drain_rate,
    "partition_cap": _partition_cap,
    "leaf_cap": _leaf_cap,
    "nvlink_cap": _nvlink_cap,
}
