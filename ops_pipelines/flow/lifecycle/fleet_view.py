"""What rollouts need to know of each declared node: from the scheduler, the ledger and cluster.yaml. Reads, decides
nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import SourceError
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.remediate.guardrails.facts import drain_owner

_ASKED_AT_ONCE = 32
Versions = Mapping[Component, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The declared nodes as they are now, and the jobs that they were judged on."""

    nodes: Mapping[NodeName, FleetNode]
    jobs: tuple[JobStatus, ...]
    taken_at: datetime


def read_versions(names: Collection[NodeName], cluster: Cluster) -> Mapping[NodeName, Versions]:
    """Return what runs on each node; who does not answer is missing. Asks many at once."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="versions") as asking:
        answers = asking.map(lambda name: _versions_of(name, cluster), names)
        return {name: found for name, found in zip(names, answers, strict=True) if found is not None}


def view_fleet(cluster: Cluster, state: LedgerState, *, versions: Mapping[NodeName, Versions]) -> FleetView:
    """Return every declared node as it is now. Raises SourceError if the scheduler does not answer."""
    jobs = cluster.scheduler.read_jobs()
    known = {each.node: each for each in cluster.scheduler.read_nodes()}
    running: defaultdict[NodeName, list[JobStatus]] = defaultdict(list)
    for job in jobs:
        if job.state in MAY_HAVE_PROCESSES:
            for name in job.nodes:
                running[name].append(job)
    broken = _broken(state.incidents)
    topology = cluster.rules.topology
    untouchable = cluster.rules.policy.untouchable_nodes
    nodes: dict[NodeName, FleetNode] = {}
    for name, place in topology.places.items():
        status, own = known.get(name), running.get(name, [])
        ends = [job.ends_by for job in own]
        nodes[name] = FleetNode(
            node=name,
            model=place.model,
            place=place,
            gpu_count=topology.gpus_per_node if status is None else status.gpu_count,
            versions=versions.get(name, {}),
            is_in_service=status is not None and _serves(status),
            partitions=frozenset() if status is None else status.partitions,
            is_in_hand=name in state.owned,
            why_not=_why_not(name, status, state, broken=broken, is_untouchable=name in untouchable),
            trouble=f"{broken[name].incident}: {broken[name].cause}" if name in broken else "",
            free_at=max((at for at in ends if at is not None), default=None) if None not in ends else None,
            is_idle=not own and status is not None and status.gpu_in_use_count == 0,
            jobs=tuple(sorted(job.job for job in own)),
            largest_job_gpu_count=max((job.gpu_count for job in own), default=0),
            teams=frozenset(job.account for job in own),
        )
    return FleetView(nodes=nodes, jobs=jobs, taken_at=cluster.clock.now())


def _versions_of(name: NodeName, cluster: Cluster) -> Versions | None:
    try:
        return cluster.fleet.read_versions(name)
    except SourceError:
        return None


def _serves(status: NodeStatus) -> bool:
    return status.is_responding and not status.is_drained and status.state is not NodeState.DOWN


def _broken(incidents: Collection[Incident]) -> Mapping[NodeName, Incident]:
    """Return the nodes that open incidents are about, but for those that are only watched."""
    return {
        node: each
        for each in incidents
        if each.is_open and each.response is not Response.MONITOR
        for node in each.nodes
    }


def _why_not(
    name: NodeName,
    status: NodeStatus | None,
    state: LedgerState,
    *,
    broken: Mapping[NodeName, Incident],
    is_untouchable: bool,
) -> str:
    """Return why no rollout may begin with a node now; empty if it may."""
    if is_untouchable:
        return "policy.yaml calls it untouchable"
    if status is None:
        return "the scheduler does not know it"
    if name in state.owned:
        return f"{state.owned[name]} has it in hand"
    if name in broken:
        return f"{broken[name].incident} is about it: {broken[name].cause}"
    if status.is_drained:
        owner = drain_owner(status, state.records)
        return f"drained by {owner}" if owner is not None else f"drained by somebody else: {status.reason}"
    if not _serves(status):
        return "down or silent"
    return ""
