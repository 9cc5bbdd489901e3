"""What is in pieces or out of reach: gangs that could not start, domains broken up, where to wait.

The index is the share of jobs of one whole node that the free GPUs would make and that no node can take: 1 - (whole
free nodes) / floor(free GPUs / GPUs of a node). 0 where every free GPU is on a whole free node, or where fewer are
free than a node has. Why a part is held is `consolidation`'s business.

A domain is a chassis where NVLink ends there, and a rack of NVL72. Whole is one of which every GPU is free and offered.

A job ends at the latest when its time limit does; mostly it ends earlier, by what such jobs needed before. The hint
says both, and what nobody knows it leaves out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.efficiency.placement.room import Room
from ops_pipelines.efficiency.placement.standing import Absence, Machine, Occupancy, Stay, could_take, needed

# -- how much of what is free is in pieces --


HOUR = timedelta(hours=1)


class Within(Enum):
    """What all nodes of a gang must share."""

    ANYWHERE = "anywhere"
    LEAF_SWITCH = "one leaf switch"
    RACK = "one rack"
    NVLINK_DOMAIN = "one NVLink domain"


_PARTS: dict[Within, Callable[[Place], str]] = {
    Within.ANYWHERE: lambda _: "",
    Within.LEAF_SWITCH: lambda place: place.leaf_switch,
    Within.RACK: lambda place: place.rack,
    Within.NVLINK_DOMAIN: lambda place: place.nvlink_domain,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many jobs of one size could start now."""

    gpus_per_node: int
    node_count: int
    within: Within
    could_start: int
    by_count: int
    """As many as the number of free GPUs alone would allow; never less than `could_start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourIndex:
    """One hour, or the part of it that was asked for."""

    hour: datetime
    index_ratio: float
    """Mean over its time."""
    free_gpus: float
    """Mean of the GPUs that were free and offered."""


def find_fits(occupancy: Occupancy, *, gpus_per_node: int) -> tuple[Fit, ...]:
    """Return what could start: parts of a node, then gangs of whole nodes within each part of the cluster."""
    offered = {node: occupancy.offered(node) for node in occupancy.machines}
    total = sum(offered.values())
    found = []
    size = 1
    while size <= gpus_per_node:
        could = sum(free // size for free in offered.values())
        found.append(_fit(size, 1, Within.ANYWHERE, could, total))
        size *= 2
    if size // 2 != gpus_per_node:
        could = sum(free // gpus_per_node for free in offered.values())
        found.append(_fit(gpus_per_node, 1, Within.ANYWHERE, could, total))
    whole = [node for node, free in offered.items() if free >= gpus_per_node]
    for within, part in _PARTS.items():
        by_part = Counter(part(occupancy.machines[node].place) for node in whole)
        largest = max(Counter(part(each.place) for each in occupancy.machines.values()).values(), default=0)
        count = 2
        while count <= largest:
            could = sum(nodes // count for nodes in by_part.values())
            found.append(_fit(gpus_per_node, count, within, could, total))
            count *= 2
    return tuple(found)


def _fit(gpus: int, nodes: int, within: Within, could_start: int, total: int) -> Fit:
    return Fit(
        gpus_per_node=gpus,
        node_count=nodes,
        within=within,
        could_start=could_start,
        by_count=total // (gpus * nodes),
    )


def index_of(*, free_gpus: int, whole_nodes: int, gpus_per_node: int) -> float:
    """Return the fragmentation index, 0 to 1."""
    possible = free_gpus // gpus_per_node
    return 0.0 if possible == 0 else max(0.0, 1.0 - whole_nodes / possible)


def index_by_hour(
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence] = (),
    start: datetime,
    end: datetime,
    gpus_per_node: int,
) -> tuple[HourIndex, ...]:
    """Return the index of each hour from `start` on, weighted by time; the last one ends at `end`."""
    occupancy = Occupancy(machines)
    tally = _Tally(start, end)
    offered: dict[NodeName, int] = {}
    free = whole = 0
    for stretch in occupancy.stretches(stays, absences, start=start, end=end):
        for node in stretch.changed:
            was, offered[node] = offered.get(node, 0), occupancy.offered(node)
            free += offered[node] - was
            whole += (offered[node] >= gpus_per_node) - (was >= gpus_per_node)
        index = index_of(free_gpus=free, whole_nodes=whole, gpus_per_node=gpus_per_node)
        tally.add(stretch.since, stretch.until, index=index, free_gpus=free)
    return tally.hours()


class _Tally:
    """Sums by hour, weighted by seconds."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self._start, self._end = start, end
        count = max(0, -(-(end - start) // HOUR))
        self._index = [0.0] * count
        self._free = [0.0] * count

    def add(self, since: datetime, until: datetime, *, index: float, free_gpus: int) -> None:
        while since < until:
            place = (since - self._start) // HOUR
            edge = min(until, self._start + (place + 1) * HOUR)
            seconds = (edge - since).total_seconds()
            self._index[place] += index * seconds
            self._free[place] += free_gpus * seconds
            since = edge

    def hours(self) -> tuple[HourIndex, ...]:
        found = []
        for place, (index, free) in enumerate(zip(self._index, self._free, strict=True)):
            hour = self._start + place * HOUR
            seconds = (min(hour + HOUR, self._end) - hour).total_seconds()
            found.append(HourIndex(hour=hour, index_ratio=index / seconds, free_gpus=free / seconds))
        return tuple(found)


# -- whole NVLink domains that a small job broke up although broken ones had room for it --


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDomain:
    """One small job took a piece out of a whole domain."""

    stay: Stay
    domain: str
    domain_gpu_count: int
    elsewhere: tuple[str, ...]
    """Nodes of domains that were broken already and had room for it."""


def find_broken_domains(
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence] = (),
    start: datetime,
    end: datetime,
) -> tuple[BrokenDomain, ...]:
    """Return the starts in [start, end) that broke a domain and need not have, by time."""
    occupancy = Occupancy(machines)
    room = Room(occupancy, _domain_of)
    members: defaultdict[str, list[NodeName]] = defaultdict(list)
    for machine in occupancy.machines.values():
        members[_domain_of(machine.place)].append(machine.node)
    found = []
    for change in occupancy.play(stays, absences, until=end):
        stay = change.started
        if stay is not None and stay.gpu_count > 0 and change.at >= start:
            broken = _broken_by(stay, occupancy, room, members)
            if broken is not None:
                found.append(broken)
        room.touch(change.nodes)
    return tuple(found)


def _domain_of(place: Place) -> str:
    return place.nvlink_domain


def _broken_by(
    stay: Stay, occupancy: Occupancy, room: Room, members: Mapping[str, list[NodeName]]
) -> BrokenDomain | None:
    own = [node for node in stay.gpus if node in occupancy.machines]
    domains = {_domain_of(occupancy.machines[node].place) for node in own}
    if len(domains) != 1:
        return None
    domain = domains.pop()
    if domain in room.broken:
        return None
    size = sum(occupancy.machines[node].gpu_count for node in members[domain])
    if stay.gpu_count >= size:
        return None
    model = occupancy.machines[own[0]].place.model
    need = max(needed(gpus) for gpus in stay.gpus.values())
    counts = room.counts(gpus=need, partition=stay.partition, model=model)
    # A gang stays within one domain: pieces in several would be a worse place, not a better one.
    better = min((name for name in counts.keys() & room.broken.keys() if counts[name] >= len(own)), default=None)
    if better is None:
        return None
    fits = [
        node
        for node in members[better]
        if could_take(occupancy, node, gpus=need, partition=stay.partition, model=model)
    ]
    return BrokenDomain(stay=stay, domain=domain, domain_gpu_count=size, elsewhere=tuple(fits[: len(own)]))


# -- which nodes become whole first when small jobs end --


MOST_HINTS = 20
_LATEST = datetime.max.replace(tzinfo=UTC)
Alike = tuple[str, str]
"""User and name of a job: who submits the same again mostly needs as long again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHint:
    """One node in pieces, and the jobs that keep it so."""

    node: NodeName
    free_gpus: int
    held_gpus: float
    jobs: tuple[str, ...]
    whole_by: datetime | None
    """When the time limits end the last of them; None: one has none."""
    likely_by: datetime | None
    """When the last of them mostly would have ended, by past runs; None: of one too few are known."""


def find_node_hints(
    occupancy: Occupancy, *, now: datetime, needed_seconds: Mapping[Alike, float] | None = None
) -> tuple[NodeHint, ...]:
    """Return the nodes that have free GPUs beside jobs, those that become whole first at the beginning.

    `needed_seconds`: what jobs of one user and name mostly need (`backfill.needs_of`).
    """
    found = []
    for node, machine in occupancy.machines.items():
        stays = [stay for stay in occupancy.stays[node].values() if stay.gpus[node] > 0]
        if not stays or not 0 < occupancy.offered(node) < machine.gpu_count:
            continue
        latest = [_latest_end(stay) for stay in stays]
        likely = [_likely_end(stay, needed_seconds or {}, now=now) for stay in stays]
        found.append(
            NodeHint(
                node=node,
                free_gpus=occupancy.free(node),
                held_gpus=sum(stay.gpus[node] for stay in stays),
                jobs=tuple(sorted(stay.job for stay in stays)),
                whole_by=_last(latest),
                likely_by=_last(likely),
            )
        )
    return tuple(sorted(found, key=_order)[:MOST_HINTS])


def _order(hint: NodeHint) -> tuple[bool, datetime, float, str]:
    by = hint.likely_by or hint.whole_by
    return by is None, by or _LATEST, hint.held_gpus, hint.node


def _latest_end(stay: Stay) -> datetime | None:
    return None if stay.time_limit_seconds is None else stay.began_at + timedelta(seconds=stay.time_limit_seconds)


def _likely_end(stay: Stay, needs: Mapping[Alike, float], *, now: datetime) -> datetime | None:
    need = needs.get((stay.user, stay.name))
    if need is None:
        return None
    # Who has run longer than such jobs mostly do reports nothing of its end.
    end = stay.began_at + timedelta(seconds=need)
    return end if end > now else _latest_end(stay)


def _last(ends: list[datetime | None]) -> datetime | None:
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None
