"""What took nodes from the scheduler in a part of a month: incidents, rollouts, bookings, tests, probation, or nobody.

Gathers from the ledger what we did, and from the lake what the scheduler stated; whose second it is where several hold
is `costs.usage_ledger`'s. What nobody knows is reported in notes, and is in no state.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import pairwise

from ops_pipelines.core.action import ActionRecord, Verb, reservation_of
from ops_pipelines.core.cluster import HOUR, hour_of
from ops_pipelines.core.entries import EntryKind
from ops_pipelines.core.identity import NodeName, cause_of, parse_node_name
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.periods import BilledPart
from ops_pipelines.core.rollout import IN_HAND, NodeStage, Rollout, RolloutNode
from ops_pipelines.costs.usage import Fate
from ops_pipelines.review.cost import done_at, spans_out
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode


class Condition(Enum):
    """Why GPUs that no job holds do not wait for one. Of several that hold, the first here counts."""

    INCIDENT = "incident"
    ROLLOUT = "rollout"
    RESERVATION = "reservation"
    """One of ours, for maintenance."""
    TEST = "test"
    PROBATION = "probation"
    DOWN = "down"
    """The scheduler says so, and nothing above explains it."""
    DRAINED = "drained"
    """As `DOWN`."""


FATES = {
    Condition.INCIDENT: Fate.BROKEN,
    Condition.ROLLOUT: Fate.MAINTENANCE,
    Condition.RESERVATION: Fate.MAINTENANCE,
    Condition.TEST: Fate.OVERHEAD,
    Condition.PROBATION: Fate.OVERHEAD,
    Condition.DOWN: Fate.BROKEN,
    Condition.DRAINED: Fate.BROKEN,
}


RANKS = {condition: rank for rank, condition in enumerate(Condition)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Something took GPUs of a node from the scheduler."""

    node: NodeName
    condition: Condition
    since: datetime
    until: datetime | None
    """None: it lasts."""
    cause: str = ""
    """Incident, rollout or reservation by name."""
    gpu_count: int | None = None
    """How many of its GPUs; None: all."""


def check_installed(nodes: Iterable[InstalledNode]) -> None:
    """Raise ValueError, naming every fault, where a node is twice at one time: its hours would be paid twice."""
    by_node: dict[NodeName, list[InstalledNode]] = {}
    for each in nodes:
        by_node.setdefault(each.node, []).append(each)
    wrong = [fault for node in sorted(by_node) for fault in _overlaps(by_node[node])]
    if wrong:
        raise ValueError(f"installed twice: {'; '.join(wrong)}; expected each node once at any time")


def _overlaps(stays: Sequence[InstalledNode]) -> list[str]:
    ordered = sorted(stays, key=lambda each: each.since)
    return [
        f"{after.node} from {after.since:%Y-%m-%d %H:%M}, while it is installed since {before.since:%Y-%m-%d %H:%M}"
        for before, after in pairwise(ordered)
        if before.until is None or after.since < before.until
    ]


_OFF_THE_BUS = frozenset({"gpu_missing", "xid_79"})
"""Findings after which a GPU does no work although its node does."""
_STILL_OUT = IN_HAND | {NodeStage.PULLED, NodeStage.LOST}
_CHECKS_PER_NODE = 50
_LONGEST_TEST = timedelta(days=1)
"""Times of tests are the node's own clock: what lasted longer is a clock that was set."""
_FILLED_LATE = timedelta(minutes=15)
"""An hour's inventory is read when the hour is filled: what we did shortly after it shows in it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStates:
    """What is known, and what is not."""

    states: tuple[NodeState, ...]
    notes: tuple[str, ...]


def find_states(part: BilledPart, desk: TeamsDesk) -> FoundStates:
    """Return what took nodes from the scheduler in this part. Raises LedgerError and LakeError."""
    ledger, now = desk.cluster.ledger, desk.clock.now()
    incidents = ledger.incidents_since(part.since)
    ours = [
        *(state for each in incidents for state in _of_incident(each, ledger.records(each.incident), now=now)),
        *(state for each in ledger.rollouts(final_since=part.since) for state in _of_rollout(each, ledger)),
        *_tests({each.node for each in desk.installed}, ledger, part=part),
    ]
    ours = [each for each in ours if each.since < part.until and (each.until is None or each.until > part.since)]
    told, notes = _as_the_scheduler_says(part, desk, explained=ours)
    return FoundStates(states=(*ours, *told), notes=notes)


# -- incidents --


def _of_incident(incident: Incident, records: Sequence[ActionRecord], *, now: datetime) -> Iterator[NodeState]:
    name = incident.incident
    for node, since, until in spans_out(incident, records, now=now):
        ends_at = None if until >= now else until
        yield NodeState(node=node, condition=Condition.INCIDENT, since=since, until=ends_at, cause=name)
    yield from _gpus_off_the_bus(incident)
    for node, since, ended_at in _probations(incident, records):
        yield NodeState(node=node, condition=Condition.PROBATION, since=since, until=ended_at, cause=name)
    yield from _spares(incident, records)


def _gpus_off_the_bus(incident: Incident) -> Iterator[NodeState]:
    """Yield GPUs that were gone while their node still worked; a drained node is out as a whole."""
    if incident.state is IncidentState.MERGED or incident.is_watched:
        return
    gone = [each for each in incident.findings if each.rule in _OFF_THE_BUS and each.node in incident.nodes]
    for node in sorted({each.node for each in gone}):
        of_node = [each for each in gone if each.node == node]
        yield NodeState(
            node=node,
            condition=Condition.INCIDENT,
            since=min(each.found_at for each in of_node),
            until=incident.returned_at or incident.closed_at,
            cause=incident.incident,
            # A finding that does not say which is the same GPU once more.
            gpu_count=max(1, len({each.gpu for each in of_node if each.gpu is not None})),
        )


def _probations(
    incident: Incident, records: Sequence[ActionRecord]
) -> Iterator[tuple[NodeName, datetime, datetime | None]]:
    for node in sorted(incident.nodes):
        of_node = [each for each in records if each.action.node == node]
        begins = sorted({*done_at(of_node, {Verb.PUT_LAST}), *([incident.returned_at] if incident.returned_at else [])})
        ends = sorted(
            {*done_at(of_node, {Verb.PUT_BACK, Verb.DRAIN}), *([incident.closed_at] if incident.closed_at else [])}
        )
        for since in begins:
            ended_at = next((at for at in ends if at > since), None)
            if ended_at is None and incident.state is not IncidentState.PROBATION:
                ended_at = max(since, incident.changed_at)
            if ended_at != since:
                yield node, since, ended_at


def _spares(incident: Incident, records: Sequence[ActionRecord]) -> Iterator[NodeState]:
    """Yield nodes that were kept free for a job that was about to be moved."""
    for record in records:
        begun = done_at([record], {Verb.RESERVE})
        if not begun:
            continue
        of_job = [each for each in records if each.action.attempt == record.action.attempt]
        ends = sorted(at for at in done_at(of_job, {Verb.UNRESERVE, Verb.RELEASE}) if at >= begun[0])
        ended_at = ends[0] if ends else incident.closed_at
        for node in record.action.spares:
            yield NodeState(
                node=node,
                condition=Condition.RESERVATION,
                since=begun[0],
                until=ended_at,
                cause=reservation_of(record.action),
            )


# -- rollouts --


def _of_rollout(rollout: Rollout, ledger: Ledger) -> Iterator[NodeState]:
    cause = cause_of(rollout.rollout)
    for node in ledger.rollout_nodes(rollout.rollout):
        if node.wave is not None:
            records = ledger.records_on(cause, node.node)
            for since, until in _taken(node, records):
                yield NodeState(
                    node=node.node, condition=Condition.ROLLOUT, since=since, until=until, cause=rollout.rollout
                )
    yield from _bookings(rollout, ledger)


def _taken(node: RolloutNode, records: Sequence[ActionRecord]) -> Iterator[tuple[datetime, datetime | None]]:
    """Yield from when until when a rollout had a node: from its drain to its return."""
    drains, returns = done_at(records, {Verb.DRAIN}), done_at(records, {Verb.RESUME})
    free_from: datetime | None = None
    for since in drains:
        if free_from is not None and since < free_from:
            continue
        back = next((at for at in returns if at >= since), None)
        if back is None and node.stage not in _STILL_OUT:
            # Somebody else gave it back: the stage says since when at the latest.
            back = max(since, node.returned_at or node.since)
        yield since, back
        if back is None:
            return
        free_from = back


def _bookings(rollout: Rollout, ledger: Ledger) -> Iterator[NodeState]:
    """Yield the nodes that the scheduler kept free for us, each booking until its end or until we took it back."""
    held: Mapping[str, object] | None = None
    for each in ledger.entries_about(cause_of(rollout.rollout)):
        is_told, booking = _booking_in(each.body) if each.kind is EntryKind.ROLLOUT else (False, None)
        if not is_told:
            continue
        if held is not None and (booking is None or booking["name"] != held["name"]):
            yield from _kept_free(held, taken_back_at=each.written_at)
            held = None
        if booking is not None and booking.get("is_accepted"):
            held = booking
    if held is not None:
        yield from _kept_free(held, taken_back_at=None)


def _kept_free(booking: Mapping[str, object], *, taken_back_at: datetime | None) -> Iterator[NodeState]:
    since, until = _time(booking["begins_at"]), _time(booking["ends_at"])
    if taken_back_at is not None:
        until = min(until, taken_back_at)
    if since < until:
        for node in _names(booking["nodes"]):
            yield NodeState(
                node=node, condition=Condition.RESERVATION, since=since, until=until, cause=str(booking["name"])
            )


def _booking_in(body: str) -> tuple[bool, Mapping[str, object] | None]:
    """Return whether a line of the chain is about the rollout itself, and the booking that it had then."""
    rollout = json.loads(body).get("rollout")
    if not isinstance(rollout, dict):
        return False, None
    booking = rollout.get("booking")
    return True, booking if isinstance(booking, dict) else None


def _time(text: object) -> datetime:
    return datetime.fromisoformat(str(text)).astimezone(UTC)


def _names(listed: object) -> Iterator[NodeName]:
    if isinstance(listed, list):
        yield from (parse_node_name(str(each)) for each in listed)


# -- tests --


def _tests(nodes: Iterable[NodeName], ledger: Ledger, *, part: BilledPart) -> Iterator[NodeState]:
    for node in sorted(nodes):
        for check, _ in ledger.checks(node, limit=_CHECKS_PER_NODE):
            lasted = check.finished_at - check.started_at
            if timedelta(0) < lasted <= _LONGEST_TEST and check.started_at < part.until:
                yield NodeState(
                    node=node,
                    condition=Condition.TEST,
                    since=check.started_at,
                    until=check.finished_at,
                    cause=f"test {check.suite}",
                )


# -- what the scheduler says --


def _as_the_scheduler_says(
    part: BilledPart, desk: TeamsDesk, *, explained: Sequence[NodeState]
) -> tuple[list[NodeState], tuple[str, ...]]:
    """Return the hours in which a node was down or drained and nothing of ours says why, and what nobody knows."""
    from ops_pipelines.costs.holds import INVENTORY_COLUMNS, read_scheduler_states

    why: dict[NodeName, list[tuple[datetime, datetime | None]]] = {}
    for each in explained:
        if each.gpu_count is None and each.condition in (Condition.INCIDENT, Condition.ROLLOUT):
            why.setdefault(each.node, []).append((each.since, each.until))
    states: list[NodeState] = []
    lasting: dict[NodeName, NodeState] = {}
    seen: set[NodeName] = set()
    silent_count = hour_count = 0
    hour = hour_of(part.since)
    while hour < part.until:
        told = read_scheduler_states(
            desk.lake.read("inventory", start=hour, end=hour + HOUR, columns=INVENTORY_COLUMNS)
        )
        hour_count += 1
        silent_count += not told
        seen |= told.keys()
        now_out = {
            node: condition
            for node, condition in told.items()
            if condition is not None and not _is_explained(why.get(node, ()), hour)
        }
        lasting = _go_on(lasting, now_out, hour=hour, ended=states)
        hour += HOUR
    notes = []
    if silent_count:
        notes.append(
            f"in {silent_count} of {hour_count} hours nobody noted what the scheduler says of nodes: "
            "what was down then for no reason of ours counts as idle"
        )
    unseen = sorted({each.node for each in desk.installed} - seen)
    if unseen and silent_count < hour_count:
        notes.append(f"{len(unseen)} installed nodes were never listed by the scheduler, such as {unseen[0]}")
    return [*states, *lasting.values()], tuple(notes)


def _go_on(
    lasting: Mapping[NodeName, NodeState],
    now_out: Mapping[NodeName, Condition],
    *,
    hour: datetime,
    ended: list[NodeState],
) -> dict[NodeName, NodeState]:
    """Return the states that hold in an hour, those of the hour before made longer; what is over goes to `ended`."""
    fresh: dict[NodeName, NodeState] = {}
    for node, condition in now_out.items():
        before = lasting.get(node)
        is_same = before is not None and before.condition is condition
        since = before.since if before is not None and is_same else hour
        fresh[node] = NodeState(node=node, condition=condition, since=since, until=hour + HOUR)
    ended += [state for node, state in lasting.items() if node not in fresh or fresh[node].since != state.since]
    return fresh


def _is_explained(spans: Iterable[tuple[datetime, datetime | None]], hour: datetime) -> bool:
    """Return whether what we did explains an hour's reading: it was out by us at some time of it."""
    return any(since < hour + HOUR + _FILLED_LATE and (until is None or until > hour) for since, until in spans)
