"""Each declared node as rollouts need it, and which version of what it runs; read from scheduler, ledger and nodes.

A node that does not answer is told from the newest inventory of the lake, and marked. Reads, changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.lake import Lake, LakeError, Rows
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.release import Component
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.guardrails.facts import drain_owner
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines.rollouts.versions.comparing import (
    Fit,
    SeenVersion,
    Spot,
    VersionLine,
    Wanted,
    given_by_rollouts,
    judge_versions,
)

# -- what rollouts need to know of each declared node --


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


# -- which version of what every declared node runs --


_LOOK_BACK = timedelta(hours=24)
_REMEMBERED = timedelta(days=400)
"""# Assumption: what was rolled out longer ago has been rolled out anew since, or is declared."""
_DRIVER_KEY = "driver"
"""Under which `release` of cluster.yaml has the driver; firmware stands there under the model of the part."""
_CLUSTER_FILE = "release in cluster.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsSeen:
    """Every component of every declared node, at one time."""

    taken_at: datetime
    lines: tuple[VersionLine, ...]
    """By node, and by component in the order of `Component`."""
    silent: tuple[NodeName, ...]
    """Nodes that did not answer."""
    problems: tuple[str, ...]

    @property
    def drifts(self) -> tuple[VersionLine, ...]:
        return tuple(each for each in self.lines if each.fit is Fit.DRIFTS)

    def counts(self) -> Mapping[tuple[Component, str, str], int]:
        """Return how many nodes of each model run each version, the most first; unknown ones are left out."""
        found = Counter((each.component, each.model, each.seen.version) for each in self.lines if each.seen is not None)
        return dict(found.most_common())


def look_at_versions(cluster: Cluster, *, lake: Lake | None, release: Mapping[str, str]) -> VersionsSeen:
    """Return what runs and what should. `release`: as cluster.yaml declares it. Raises LedgerError.

    Asks every node, many at once; `lake` None: nothing is known of those that do not answer.
    """
    now = cluster.clock.now()
    places = cluster.rules.topology.places
    live = read_versions(tuple(places), cluster)
    problems: tuple[str, ...] = ()
    inventory: Rows | None = None
    try:
        inventory = None if lake is None else _newest_inventory(lake, now=now)
    except LakeError as problem:
        problems = (f"the inventory cannot be read: {problem}",)
    seen: dict[Spot, SeenVersion] = {}
    part_models: Mapping[Spot, frozenset[str]] = {}
    if inventory is not None:
        from ops_pipelines.rollouts.past_rows import inventory_versions

        told = inventory_versions(inventory)
        part_models = told.models
        seen |= {spot: each for spot, each in told.seen.items() if spot[0] in places and spot[0] not in live}
    for node, versions in live.items():
        for component, version in versions.items():
            seen[node, component] = SeenVersion(version=version, seen_at=now, is_live=True)
    ledger = cluster.ledger
    rollouts = [
        (each, ledger.release(each.release_digest), ledger.rollout_nodes(each.rollout))
        for each in ledger.rollouts(final_since=now - _REMEMBERED)
    ]
    return VersionsSeen(
        taken_at=now,
        lines=judge_versions(
            seen,
            models={node: place.model for node, place in places.items()},
            given=given_by_rollouts(rollouts),
            declared=_declared(tuple(places), release, part_models),
        ),
        silent=tuple(sorted(places.keys() - live.keys())),
        problems=problems,
    )


def _newest_inventory(lake: Lake, *, now: datetime) -> Rows | None:
    """Return the rows of the newest hour of the last day that has any."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for _ in range(_LOOK_BACK // timedelta(hours=1)):
        rows = lake.read_hour("inventory", hour)
        if rows.num_rows:
            return rows
        hour -= timedelta(hours=1)
    return None


def _declared(
    nodes: tuple[NodeName, ...], release: Mapping[str, str], part_models: Mapping[Spot, frozenset[str]]
) -> Mapping[Spot, Wanted]:
    """Return what cluster.yaml says: the driver of all, firmware of those whose parts are of one declared model."""
    found: dict[Spot, Wanted] = {}
    if _DRIVER_KEY in release:
        wanted = Wanted(version=release[_DRIVER_KEY], said_by=_CLUSTER_FILE)
        found = {(node, Component.DRIVER): wanted for node in nodes}
    for spot, models in part_models.items():
        versions = {release[model] for model in models if model in release}
        if len(versions) == 1 and models <= release.keys():
            found[spot] = Wanted(version=versions.pop(), said_by=_CLUSTER_FILE)
    return found
