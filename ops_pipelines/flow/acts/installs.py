"""What an act of a rollout installs or activates: its order, made anew from the ledger each time that it is needed.

The release is the one that the rollout was opened with, whatever the file says by now; which step, and which way,
stands in the act itself. Sending it is `commands'`, reading what became of it `witnesses'`.
"""

from ops_pipelines.core.action import Action
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName, RolloutId
from ops_pipelines.core.rollout import InstallOrder, RolloutNode, UnorderableError, order_for, step_of
from ops_pipelines.core.sources import SourceRefused


def order_of(action: Action, cluster: Cluster) -> InstallOrder:
    """Return the order of the step that an act is about; raise SourceRefused where there is none, and why."""
    if action.node is None:
        raise SourceRefused(f"{action.verb.value} names no node; nothing was sent")
    rollout = cluster.ledger.rollout(RolloutId(action.incident))
    node = None if rollout is None else _node_of(rollout.rollout, action.node, cluster)
    if rollout is None or node is None:
        raise SourceRefused(f"{action.incident} is no rollout with {action.node}; nothing is installed outside one")
    try:
        step, direction = step_of(action.part)
        return order_for(cluster.ledger.release(rollout.release_digest), node, step=step, direction=direction)
    except UnorderableError as problem:
        raise SourceRefused(str(problem)) from problem


def _node_of(rollout: RolloutId, name: NodeName, cluster: Cluster) -> RolloutNode | None:
    return next((each for each in cluster.ledger.rollout_nodes(rollout) if each.node == name), None)
