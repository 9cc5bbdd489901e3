"""Each node as a rollout sees it, and which nodes start on their way there or back, turn round, or are put off.

Facts only: gathered by `rollouts.seen_fleet`, drawn by the simulation; `planner` and `engine` judge on them.

What the rollout as a whole does next is `course`'s, one node's own way is `engine`'s. How many may be out is asked of
the guardrails once more when each node's drain is begun.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobId, NodeName, Place
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Component, Release
from ops_pipelines.core.rollout import IN_HAND, Direction, NodeEvent, NodeStage, Rollout, RolloutNode, RolloutState

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
    """A rollout has begun with it, and has not returned it: it is out, or will be at any moment."""
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
    """Return whether a node works with the new version, or was lost before somebody said: try once more."""
    return node.stage in UPDATED or (node.stage is NodeStage.LOST and node.since < rollout.since)


def turning_round(rollout: Rollout, nodes: Collection[RolloutNode]) -> tuple[Beginning, ...]:
    """Return the nodes that turn round now: those that are in hand on the way forward, wherever they stand.

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
    """Return the nodes that failed alone and go back alone; what cannot go back stays drained, for people."""
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
    """Return the nodes that take a place of the rollouts: begun with, and out for no other reason."""
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

    Forward: nodes of the present wave, while a window is open that their visit is foreseen to fit into. Back: every
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
        return replace(node, wave=last, since=now, reason=f"put off to wave {last}: {why}")
    return replace(node, stage=NodeStage.SKIPPED, since=now, reason=why)


def _is_broken(node: RolloutNode, fleet: Mapping[NodeName, FleetNode]) -> bool:
    """Return whether an incident has the node: it comes last, so that it takes no place of one that can go back now."""
    return node.node in fleet and bool(fleet[node.node].trouble)


def _has_broken_under(node: RolloutNode, fleet: Mapping[NodeName, FleetNode]) -> bool:
    """Return whether a node broke under its jobs: as long as we have it nobody moves them, and they may never end."""
    return _is_broken(node, fleet) and bool(fleet[node.node].jobs)


def _is_waiting_for(node: RolloutNode, fleet: Mapping[NodeName, FleetNode]) -> bool:
    """Return whether a node waits on its way back until an incident is over: it is out anyway, and takes no place."""
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
