"""Which times of which nodes the gate compares, and what happened on them.

What happened in these times is `seen_events`' to count. Between its first installation and its return a node belongs to
neither side: what a reboot brings along says nothing of the new version at work.

What a program does wrong, what people want and what only follows from something else is no event here. What a node
repeats within a day counts once, and so does what one cause did to many nodes. A silence counts once it has lasted as
long as would make us act on it: a node that has just been restarted may be missed for a second.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.fault import AtFault, ComponentKind
from ops_pipelines.core.finding import REPAIRS, Finding
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import ALERT_SOURCE, NO_NODE, Observation, Signal
from ops_pipelines.core.periods import Interval, merged
from ops_pipelines.core.policy import Durations
from ops_pipelines.core.rollout import Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.rollouts.gate.evidence import CauseCounts, EventCounts, EventKind

# -- which times of which nodes the gate compares --


PAST = timedelta(days=14)
"""# Assumption: two weeks hold every kind of work that a cluster does, and are not yet another cluster."""
_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
Times = Mapping[NodeName, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTimes:
    """The times of each side, one interval a node at most."""

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
    treated: dict[NodeName, Interval] = {}
    own: dict[NodeName, Interval] = {}
    for each in nodes:
        returned_at = each.returned_at
        is_at_work = each.direction is Direction.FORWARD and each.stage in _AT_WORK
        if not is_at_work or returned_at is None or returned_at >= now:
            continue
        treated[each.node] = Interval(begins_at=returned_at, ends_at=now)
        until = min(touched.get(each.node, returned_at), returned_at)
        own[each.node] = Interval(begins_at=until - PAST, ends_at=until)
    began_at = min((each.begins_at for each in treated.values()), default=now)
    control: dict[NodeName, Interval] = {}
    for each in nodes:
        untouched_until = _untouched_until(each, touched, now=now)
        if untouched_until is not None and untouched_until > began_at:
            control[each.node] = Interval(begins_at=began_at, ends_at=untouched_until)
    created_at = rollout.created_at
    past = {
        each.node: Interval(begins_at=created_at - PAST, ends_at=created_at)
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


# -- what happened on nodes, counted for the gate --


AGAIN_WITHIN = timedelta(days=1)
Worked = Mapping[NodeName, Sequence[Interval]]
"""When jobs ran on each node, in order and without overlaps."""

_NOT_THE_NODE = frozenset({AtFault.APPLICATION, AtFault.USER, AtFault.NOTHING, AtFault.STORAGE, AtFault.FACILITY})
_KINDS: Mapping[Signal, EventKind] = {
    Signal.XID: EventKind.XID,
    Signal.SXID: EventKind.LINK,
    Signal.NVLINK_ERRORS: EventKind.LINK,
    Signal.PCIE_ERRORS: EventKind.LINK,
    Signal.PCIE_DEGRADED: EventKind.LINK,
    Signal.LINK_DOWN: EventKind.LINK,
    Signal.LINK_FLAPS: EventKind.LINK,
    Signal.LINK_ERRORS: EventKind.LINK,
    Signal.ECC_UNCORRECTABLE: EventKind.ECC,
    Signal.ECC_RATE: EventKind.ECC,
    Signal.ROW_REMAP: EventKind.ECC,
    Signal.HOST_MEMORY: EventKind.ECC,
    Signal.NODE_UNREACHABLE: EventKind.NODE_FAILURE,
    Signal.GPU_MISSING: EventKind.NODE_FAILURE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """Something that happened on one node."""

    kind: EventKind
    node: NodeName
    at: datetime
    cause: str = ""
    """What did it to many nodes at once, or on many days; empty: it is for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCause:
    """Diagnosis named a cause of a node's own part."""

    cause: str
    node: NodeName
    at: datetime


def events_of(incidents: Iterable[Incident], *, durations: Durations, now: datetime) -> Iterator[SeenEvent]:
    """Yield what incidents say happened on nodes, first-hand."""
    for incident in incidents:
        if incident.state is IncidentState.MERGED:
            continue
        shared = str(incident.incident) if incident.is_mass_event or incident.suspect is not None else ""
        believed = [each for each in incident.findings if _is_believed(each, incident, durations, now=now)]
        calls_for_repair = incident.plan_count > 0 or any(each.response in REPAIRS for each in believed)
        if incident.response in REPAIRS and calls_for_repair and not _is_programs(incident):
            for node in sorted(incident.nodes):
                yield SeenEvent(kind=EventKind.NODE_FAILURE, node=node, at=incident.began_at, cause=shared)
        for finding in believed:
            for observation in _first_hand(finding):
                yield SeenEvent(
                    kind=_KINDS[observation.signal], node=observation.node, at=observation.observed_at, cause=shared
                )


def unconfirmed_on(
    nodes: Collection[NodeName], incidents: Iterable[Incident], *, durations: Durations, now: datetime
) -> frozenset[NodeName]:
    """Return the nodes of which something is missed now, for too short a time yet to count."""
    return frozenset(
        node
        for incident in incidents
        if incident.is_open
        for finding in incident.findings
        if not _is_believed(finding, incident, durations, now=now)
        for node in incident.nodes.intersection(nodes)
    )


def _is_believed(finding: Finding, incident: Incident, durations: Durations, *, now: datetime) -> bool:
    """Return whether a finding is more than a short silence; what was acted on was confirmed then."""
    if not finding.is_lasting or incident.plan_count > 0:
        return True
    lasted = (incident.closed_at or now) - finding.found_at
    return all(
        lasted >= durations.confirm_after(is_silent=each.signal is Signal.NODE_UNREACHABLE)
        for each in finding.evidence
        if _KINDS.get(each.signal) is EventKind.NODE_FAILURE
    )


def _first_hand(finding: Finding) -> Iterator[Observation]:
    if finding.is_secondary or finding.at_fault in _NOT_THE_NODE:
        return
    for each in finding.evidence:
        if each.signal in _KINDS and each.source != ALERT_SOURCE and each.node != NO_NODE:
            yield each


def _is_programs(incident: Incident) -> bool:
    return incident.hypothesis is not None and incident.hypothesis.at_fault in _NOT_THE_NODE


def causes_of(incidents: Iterable[Incident]) -> Iterator[SeenCause]:
    """Yield what diagnosis found to be at fault on nodes themselves, in words that are the same on every node.

    What a rack, a switch or a feed did to its nodes is one piece of bad luck: the first of them means all.
    """
    for incident in incidents:
        hypothesis = incident.hypothesis
        if incident.state is IncidentState.MERGED or hypothesis is None or hypothesis.at_fault in _NOT_THE_NODE:
            continue
        told = [each for each in incident.findings if not each.is_secondary and each.at_fault not in _NOT_THE_NODE]
        if not told:
            continue
        leading = min(told, key=lambda each: (-each.confidence, each.rule))
        is_shared = incident.suspect is not None and incident.suspect.kind is not ComponentKind.DRIVER
        nodes = sorted(incident.nodes)
        for node in nodes[:1] if is_shared else nodes:
            cause = f"{leading.rule} ({hypothesis.family.value.replace('_', ' ')})"
            yield SeenCause(cause=cause, node=node, at=incident.began_at)


def count_events(kind: EventKind, events: Collection[SeenEvent], times: ComparedTimes, worked: Worked) -> EventCounts:
    """Return how often one kind of event came on each side, with the node-days at work of each."""
    own = list(_once_each_cause([each for each in events if each.kind is kind], times))
    treated = _counted(own, times.treated)
    return EventCounts(
        kind=kind,
        treated_count=len(treated),
        treated_node_days=node_days(times.treated, worked),
        control_count=len(_counted(own, times.control)),
        control_node_days=node_days(times.control, worked),
        own_count=len(_counted(own, times.own)),
        own_node_days=node_days(times.own, worked),
        treated_nodes=frozenset(each.node for each in treated),
        past_count=len(_counted(own, times.past)),
        past_node_days=node_days(times.past, worked),
    )


def count_causes(causes: Collection[SeenCause], times: ComparedTimes, worked: Worked) -> tuple[CauseCounts, ...]:
    """Return each cause that was found on an updated node, with how often it was found on the others."""
    treated_days, control_days = node_days(times.treated, worked), node_days(times.control, worked)
    found = []
    for name in sorted({each.cause for each in causes}):
        alike = [
            SeenEvent(kind=EventKind.NODE_FAILURE, node=each.node, at=each.at) for each in causes if each.cause == name
        ]
        treated = _counted(alike, times.treated)
        if treated:
            found.append(
                CauseCounts(
                    cause=name,
                    treated_nodes=frozenset(each.node for each in treated),
                    treated_node_days=treated_days,
                    control_count=len(_counted(alike, times.control)),
                    control_node_days=control_days,
                )
            )
    return tuple(found)


def node_days(times: Times, worked: Worked) -> float:
    """Return for how many days nodes worked within their times, all together."""
    return sum((worked_within(worked.get(node, ()), time) for node, time in times.items()), timedelta(0)) / timedelta(
        days=1
    )


def worked_within(stretches: Sequence[Interval], time: Interval) -> timedelta:
    """Return for how long jobs ran within a time."""
    return sum(
        (
            min(each.ends_at, time.ends_at) - max(each.begins_at, time.begins_at)
            for each in stretches
            if each.begins_at < time.ends_at and time.begins_at < each.ends_at
        ),
        timedelta(0),
    )


def joined(*sources: Worked) -> Worked:
    """Return when jobs ran, as all sources together know it."""
    nodes = {node for source in sources for node in source}
    return {node: merged(each for source in sources for each in source.get(node, ())) for node in nodes}


def _once_each_cause(events: Iterable[SeenEvent], times: ComparedTimes) -> Iterator[SeenEvent]:
    """Yield the events that any side asks about, of each cause the first one, on whichever side it fell.

    Counting it once on each side would charge the few with what strikes the many.
    """
    sides = (times.treated, times.control, times.own, times.past)
    causes: set[str] = set()
    for each in sorted(events, key=lambda event: (event.at, event.node)):
        is_asked = any(each.node in side and side[each.node].holds(each.at) for side in sides)
        if not is_asked or each.cause in causes:
            continue
        if each.cause:
            causes.add(each.cause)
        yield each


def _counted(events: Iterable[SeenEvent], times: Times) -> list[SeenEvent]:
    """Return the events within the times of their nodes, what a node repeats within a day once."""
    counted: list[SeenEvent] = []
    last: dict[NodeName, datetime] = {}
    for each in sorted(events, key=lambda event: (event.at, event.node)):
        time = times.get(each.node)
        if time is None or not time.holds(each.at):
            continue
        if each.at - last.get(each.node, each.at - AGAIN_WITHIN) < AGAIN_WITHIN:
            continue
        last[each.node] = each.at
        counted.append(each)
    return counted
