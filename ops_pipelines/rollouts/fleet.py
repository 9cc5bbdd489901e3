"""Each node as a rollout sees it: read from scheduler, ledger and nodes, and who starts, turns round or waits.

A node that does not answer is read from the newest inventory of the lake, and marked. Reads, changes nothing. What the
rollout as a whole does next is `course`'s, one node's next step `engine`'s; the guardrails are asked once more how many
may be out when each node is drained.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import JobId, NodeName, Place
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Component, Release
from ops_pipelines.core.rollout import IN_HAND, Direction, NodeEvent, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.core.sources import Lake, LakeError, Rows, SourceError
from ops_pipelines.remediate.guardrails.facts import drain_owner
from ops_pipelines.rollouts.versions import (
    ExpectedVersion,
    Fit,
    SeenVersion,
    Spot,
    VersionLine,
    given_by_rollouts,
    judge_versions,
)

# -- what a rollout needs to know of each node --


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """One node as it is now."""

    node: NodeName
    model: str
    """As cluster.yaml declares it; empty: it declares none."""
    place: Place
    gpu_count: int
    versions: Mapping[Component, str]
    """What runs, as last seen; a component that is missing here was never seen."""
    is_in_service: bool
    """Takes work: neither drained nor down nor silent."""
    partitions: frozenset[str] = frozenset()
    is_in_hand: bool = False
    """A rollout has started with it, and has not returned it: it is out, or will be at any moment."""
    why_not: str = ""
    """Why no rollout may touch it now: untouchable, an open incident, somebody else's drain; empty: it may."""
    trouble: str = ""
    """The open incident about it that is not only watched; empty: none."""
    free_at: datetime | None = None
    """When its last job ends at the latest, by time limits; None: nobody knows (a job without one)."""
    is_idle: bool = False
    jobs: tuple[JobId, ...] = ()
    largest_job_gpu_count: int = 0
    """Of the jobs on it, the widest: the gang that waits if the node is taken."""
    teams: frozenset[str] = frozenset()
    """Accounts of the jobs on it."""


# -- which nodes of a rollout start on their way, there or back, which turn round --


UPDATED = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
"""At work with the new version."""
_NO_TIME = "its jobs end too late for the windows"
_BROKEN_FOR = timedelta(hours=1)
"""# Assumption: what is not repaired within an hour is repaired tomorrow; the rest of its wave does not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A node that starts on its way, there or back."""

    node: NodeName
    event: NodeEvent
    reason: str


def is_to_go_back(node: RolloutNode, rollout: Rollout) -> bool:
    """Return whether a node works with the new version, or was lost before somebody ordered: try once more."""
    return node.stage in UPDATED or (node.stage is NodeStage.LOST and node.since < rollout.since)


def turning_round(rollout: Rollout, nodes: Collection[RolloutNode]) -> tuple[Beginning, ...]:
    """Return the nodes that turn round now: those that are in hand on the way forward, wherever they are.

    One that was only drained is put back as it is (`engine`). Those at work follow as the budget allows (`beginning`).
    """
    if rollout.state is not RolloutState.GOING_BACK:
        return ()
    return tuple(
        Beginning(node=each.node, event=NodeEvent.GO_BACK, reason=rollout.stopped_because)
        for each in sorted(nodes, key=lambda each: each.node)
        if each.stage in IN_HAND - {NodeStage.DRAINING} and each.direction is Direction.FORWARD
    )


def pulled_out(nodes: Collection[RolloutNode], *, release: Release) -> tuple[Beginning, ...]:
    """Return the nodes that failed alone and roll back alone; what cannot roll back stays drained, for people."""
    if release.is_one_way:
        return ()
    return tuple(
        Beginning(node=each.node, event=NodeEvent.GO_BACK, reason=f"failed alone: {each.reason}")
        for each in sorted(nodes, key=lambda each: each.node)
        if each.stage is NodeStage.PULLED
    )


def beginning(
    rollout: Rollout,
    nodes: Sequence[RolloutNode],
    *,
    fleet: Mapping[NodeName, FleetNode],
    calendar: WorkCalendar,
    limits: RolloutLimits,
    visit_seconds: float,
    now: datetime,
) -> tuple[Beginning, ...]:
    """Return the nodes that start now where `max_out_count` is the only budget: the first of those that are `ready`."""
    places = limits.max_out_count - len(in_hand(nodes, fleet))
    if places <= 0:
        return ()
    return ready(rollout, nodes, fleet=fleet, calendar=calendar, visit_seconds=visit_seconds, now=now)[:places]


def in_hand(nodes: Iterable[RolloutNode], fleet: Mapping[NodeName, FleetNode]) -> frozenset[NodeName]:
    """Return the nodes that take a place of the rollouts: started with, and out for no other reason."""
    return frozenset(each.node for each in nodes if each.stage in IN_HAND and not _is_waiting_for(each, fleet))


def ready(
    rollout: Rollout,
    nodes: Sequence[RolloutNode],
    *,
    fleet: Mapping[NodeName, FleetNode],
    calendar: WorkCalendar,
    visit_seconds: float,
    now: datetime,
) -> tuple[Beginning, ...]:
    """Return the nodes that may start now, as far as there is room: idle ones first, then those that are free soonest.

    Forward: nodes of the present wave, while a window is open that their visit is expected to fit into. Back: every
    node at work with the new version, windows or not: a bad version is worse than work outside hours.
    """
    if rollout.state is RolloutState.GOING_BACK:
        back = [each for each in nodes if is_to_go_back(each, rollout) and not _has_broken_under(each, fleet)]
        return tuple(
            Beginning(node=each.node, event=NodeEvent.GO_BACK, reason=rollout.stopped_because)
            for each in sorted(back, key=lambda each: (_is_broken(each, fleet), _rank(each, fleet, now=now), each.node))
        )
    if rollout.state is not RolloutState.RUNNING or not calendar.is_open(now):
        return ()
    closes_at = calendar.closes_at(now)
    forward = [
        each
        for each in nodes
        if each.wave == rollout.wave
        and each.stage is NodeStage.PENDING
        and not _was_put_back(each, rollout)
        and each.node in fleet
        and not fleet[each.node].why_not
        and fleet[each.node].is_in_service
        and _fits(fleet[each.node], closes_at, visit_seconds=visit_seconds, now=now)
    ]
    return tuple(
        Beginning(node=each.node, event=NodeEvent.BEGIN, reason=f"wave {rollout.wave} of {rollout.release}")
        for each in sorted(forward, key=lambda each: (_rank(each, fleet, now=now), each.node))
    )


def put_off(
    rollout: Rollout,
    nodes: Sequence[RolloutNode],
    *,
    fleet: Mapping[NodeName, FleetNode],
    calendar: WorkCalendar,
    limits: RolloutLimits,
    visit_seconds: float,
    now: datetime,
    why_full: Callable[[FleetNode], str] | None = None,
) -> tuple[RolloutNode, ...]:
    """Return the nodes that hold their wave up, as they are from now on: in the last wave, or out.

    Only when nothing else of the wave is left to do: one broken node, or one job without an end, must not stop the rest
    for weeks. `why_full` says which budget has no room for a node, though nothing of the wave is out.
    """
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    if (
        rollout.state is not RolloutState.RUNNING
        or not calendar.is_open(now)
        # Who came back in this very pass still counts as out in `fleet`: the next one knows how much room there is.
        or any(each.stage in IN_HAND or (each.node in fleet and fleet[each.node].is_in_hand) for each in of_wave)
    ):
        return ()
    closes_at = calendar.closes_at(now)
    found: list[RolloutNode] = []
    for each in of_wave:
        if each.stage is not NodeStage.PENDING:
            continue
        if _was_put_back(each, rollout):
            found.append(_elsewhere(each, rollout, each.reason, now=now))
            continue
        why = _in_the_way(fleet.get(each.node), closes_at, visit_seconds=visit_seconds, now=now)
        full = "" if why or why_full is None else why_full(fleet[each.node])
        if not why and not full:
            return ()
        is_slow = full or why == _NO_TIME
        if now - max(rollout.since, each.since) >= (limits.job_end_limit if is_slow else _BROKEN_FOR):
            found.append(_elsewhere(each, rollout, why or f"no room: {full}", now=now))
    return tuple(found)


def _was_put_back(node: RolloutNode, rollout: Rollout) -> bool:
    """Return whether a node was drained in the present wave, and given back: it is tried again in the last one."""
    is_of_last_wave = node.wave == len(rollout.waves)
    return node.try_number > 1 and node.since >= rollout.since and not is_of_last_wave


def _in_the_way(node: FleetNode | None, closes_at: datetime | None, *, visit_seconds: float, now: datetime) -> str:
    if node is None:
        return "nobody knows it any more"
    if node.why_not or not node.is_in_service:
        return node.why_not or "out of service"
    return "" if _fits(node, closes_at, visit_seconds=visit_seconds, now=now) else _NO_TIME


def _elsewhere(node: RolloutNode, rollout: Rollout, why: str, *, now: datetime) -> RolloutNode:
    last = len(rollout.waves)
    if rollout.wave < last:
        return replace(node, wave=last, since=now, reason=f"postponed to wave {last}: {why}")
    return replace(node, stage=NodeStage.SKIPPED, since=now, reason=why)


def _is_broken(node: RolloutNode, fleet: Mapping[NodeName, FleetNode]) -> bool:
    """Return whether an incident has the node: it comes last, and takes no place of one that can roll back now."""
    return node.node in fleet and bool(fleet[node.node].trouble)


def _has_broken_under(node: RolloutNode, fleet: Mapping[NodeName, FleetNode]) -> bool:
    """Return whether a node broke under its jobs: as long as we have it nobody moves them, and they may never end."""
    return _is_broken(node, fleet) and bool(fleet[node.node].jobs)


def _is_waiting_for(node: RolloutNode, fleet: Mapping[NodeName, FleetNode]) -> bool:
    """Return whether a node that rolls back waits for an incident to end: it is out anyway, and takes no place."""
    is_to_go_back = node.stage is NodeStage.DRAINING and node.direction is Direction.BACK
    return is_to_go_back and _is_broken(node, fleet)


def _rank(node: RolloutNode, fleet: Mapping[NodeName, FleetNode], *, now: datetime) -> tuple[int, float]:
    """Idle nodes come first, then those whose jobs end soonest, then those of which nobody knows."""
    known = fleet.get(node.node)
    if known is None or (known.free_at is None and not known.is_idle):
        return (2, 0.0)
    if known.is_idle or known.free_at is None:
        return (0, 0.0)
    return (1, (known.free_at - now).total_seconds())


def _fits(node: FleetNode, closes_at: datetime | None, *, visit_seconds: float, now: datetime) -> bool:
    if closes_at is None:
        return True
    free_at = now if node.is_idle else node.free_at
    return free_at is not None and (closes_at - max(free_at, now)).total_seconds() >= visit_seconds


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
"""# Assumption: what was rolled out longer ago has been rolled out again since, or is declared."""
_DRIVER_KEY = "driver"
"""Under which `release` of cluster.yaml has the driver; firmware is there under the model of the part."""
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
) -> Mapping[Spot, ExpectedVersion]:
    """Return what cluster.yaml says: the driver of all, firmware of those whose parts are of one declared model."""
    found: dict[Spot, ExpectedVersion] = {}
    if _DRIVER_KEY in release:
        wanted = ExpectedVersion(version=release[_DRIVER_KEY], said_by=_CLUSTER_FILE)
        found = {(node, Component.DRIVER): wanted for node in nodes}
    for spot, models in part_models.items():
        versions = {release[model] for model in models if model in release}
        if len(versions) == 1 and models <= release.keys():
            found[spot] = ExpectedVersion(version=versions.pop(), said_by=_CLUSTER_FILE)
    return found
