"""Which times of which nodes the gate compares: since an update, before it, and of nodes that were not touched. Pure.

What happened in these times is `seen_events`' to count. Between its first installation and its return a node belongs to
neither side: what a reboot brings along says nothing of the new version at work.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import Stretch
from ops_pipelines.core.rollout import Direction, NodeStage, Rollout, RolloutNode

PAST = timedelta(days=14)
"""# Assumption: two weeks hold every kind of work that a cluster does, and are not yet another cluster."""
_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
Times = Mapping[NodeName, Stretch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTimes:
    """The times of each side, one stretch a node at most."""

    treated: Times
    """Since the return with the new version."""
    control: Times
    """Not touched, since the first node returned: those that were touched later, until then."""
    own: Times
    """The treated nodes, in the two weeks before they were touched."""
    past: Times
    """All nodes of the rollout, in the two weeks before it began."""

    @property
    def since(self) -> datetime | None:
        """The earliest time that is asked about; None where nothing is."""
        sides = (self.treated, self.control, self.own, self.past)
        return min((each.begins_at for side in sides for each in side.values()), default=None)


def compared_times(
    rollout: Rollout, nodes: Collection[RolloutNode], records: Iterable[ActionRecord], *, now: datetime
) -> ComparedTimes:
    """Return which times count. `records`: the acts of the rollout, which tell when each node was first changed."""
    touched = _touched_at(records)
    treated: dict[NodeName, Stretch] = {}
    own: dict[NodeName, Stretch] = {}
    for each in nodes:
        returned_at = each.returned_at
        is_at_work = each.direction is Direction.FORWARD and each.stage in _AT_WORK
        if not is_at_work or returned_at is None or returned_at >= now:
            continue
        treated[each.node] = Stretch(begins_at=returned_at, ends_at=now)
        until = min(touched.get(each.node, returned_at), returned_at)
        own[each.node] = Stretch(begins_at=until - PAST, ends_at=until)
    began_at = min((each.begins_at for each in treated.values()), default=now)
    control: dict[NodeName, Stretch] = {}
    for each in nodes:
        untouched_until = _untouched_until(each, touched, now=now)
        if untouched_until is not None and untouched_until > began_at:
            control[each.node] = Stretch(begins_at=began_at, ends_at=untouched_until)
    created_at = rollout.created_at
    past = {
        each.node: Stretch(begins_at=created_at - PAST, ends_at=created_at)
        for each in nodes
        if each.stage is not NodeStage.SKIPPED
    }
    return ComparedTimes(treated=treated, control=control, own=own, past=past)


def known_from(times: ComparedTimes, since: datetime | None) -> ComparedTimes:
    """Return the times without those of which nobody knows who worked: their events would stand without their days.

    None: nobody knows of any past.
    """
    return replace(times, own=_cut(times.own, since), past=_cut(times.past, since))


def _cut(times: Times, since: datetime | None) -> Times:
    return {
        node: replace(each, begins_at=max(each.begins_at, since))
        for node, each in times.items()
        if since is not None and each.ends_at > since
    }


def _touched_at(records: Iterable[ActionRecord]) -> Mapping[NodeName, datetime]:
    found: dict[NodeName, datetime] = {}
    for record in records:
        node = record.action.node
        if record.action.verb is Verb.INSTALL and node is not None:
            found[node] = min(found.get(node, record.begun_at), record.begun_at)
    return found


def _untouched_until(node: RolloutNode, touched: Mapping[NodeName, datetime], *, now: datetime) -> datetime | None:
    """Return until when a node ran what it had before; None for one of which nobody knows, and for those passed over.

    Who was passed over may run the new version already, or be somebody else's.
    """
    if node.node in touched:
        return min(touched[node.node], now)
    return now if node.stage in (NodeStage.PENDING, NodeStage.DRAINING) else None
