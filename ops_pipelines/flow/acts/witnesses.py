"""Reads what bears witness of one act, and how a node sees itself; what cannot be read is unknown, never an error.

What the reading says of the act is `domain.returning.testimony`'s.
"""

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NodeInspection
from ops_pipelines.core.sources import SourceError
from ops_pipelines.domain.returning.testimony import Scene
from ops_pipelines.flow.acts.installs import order_of

_OF_JOBS = frozenset({Verb.HOLD, Verb.MARK, Verb.UNMARK, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE})


def look(action: Action, cluster: Cluster) -> Scene:
    """Read what bears witness of an action; what cannot be read stays None."""
    try:
        if action.verb in _OF_JOBS and action.attempt is not None:
            wanted = action.attempt.job
            return Scene(job=next((job for job in cluster.scheduler.read_jobs() if job.job == wanted), None))
        if action.verb in (Verb.RESERVE, Verb.UNRESERVE):
            return Scene(nodes=cluster.scheduler.read_nodes())
        if action.verb is Verb.CHECK and action.node is not None:
            return Scene(is_check_over=cluster.fleet.read_check(action.node, key=action.key) is not None)
        if action.verb is Verb.INSTALL and action.node is not None:
            report = cluster.fleet.read_install(action.node, key=action.key)
            return Scene(install=report, is_install_unknown=report is None)
        if action.verb is Verb.RELOAD_DRIVER and action.node is not None:
            versions = cluster.fleet.read_versions(action.node)
            return Scene(versions=versions, wanted_versions=order_of(action, cluster).versions)
        if action.verb in (Verb.DRAIN, Verb.DECLARE_DOWN, Verb.RESUME, Verb.PUT_LAST, Verb.PUT_BACK):
            return Scene(node=next((node for node in cluster.scheduler.read_nodes() if node.node == action.node), None))
        if action.verb is Verb.POWER_OFF and action.node is not None:
            return Scene(power=cluster.fleet.power_state(action.node))
    except SourceError:
        return Scene()
    return Scene(inspection=None if action.node is None else inspect_node(action.node, cluster))


def inspect_node(node: NodeName, cluster: Cluster) -> NodeInspection | None:
    """Ask a node how it sees itself; None if it does not answer."""
    try:
        return cluster.fleet.inspect(node)
    except SourceError:
        return None
