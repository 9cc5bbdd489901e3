"""Jobs spread over more racks or leaves than needed, and free GPUs that nobody could have had.

A job was spread without need where the nodes that could have taken it at its start fill fewer parts. That is judged by
free GPUs, partition and model; which nodes its user asked for is not known here.

Of a node's free GPUs each is counted under the first reason that holds: drained or reserved, then in no partition, then
without CPUs, then without memory. What the limits of teams leave over is counted last, of what is left. A node that is
down is broken, not stranded: `usage_ledger` has it.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.room import Room
from ops_pipelines.efficiency.placement.standing import (
    Absence,
    Away,
    Interval,
    Machine,
    Occupancy,
    Stay,
    could_take,
    needed,
    whole,
)

HEAVY_BYTES_PER_SECOND = 10e9
"""Per node, both ways. Assumption: above it a job's steps wait for the network when its way grows longer."""
LIGHT_BYTES_PER_SECOND = 1e9
"""Assumption: below it nobody notices where the nodes stand."""
LARGE_GANG, SMALL_GANG = 16, 4
"""Nodes. Assumption, for jobs whose traffic nobody measured."""


class Level(Enum):
    """What a job may straddle, the dearest first."""

    NVLINK_DOMAIN = "NVLink domain"
    LEAF_SWITCH = "leaf switch"
    RACK = "rack"


class CostClass(Enum):
    """How much it matters that a job is apart."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a job sent and received over the network, by node."""

    bytes_per_second: float
    is_bound: bool = False
    """Whether its GPUs waited for communication most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straddle:
    """One start of a job in several parts of the cluster."""

    stay: Stay
    level: Level
    parts: tuple[str, ...]
    """The parts in which it is, the one with the most of its nodes first."""
    fewest: int
    """In so many parts it could have stood, by what was free."""
    better: tuple[str, ...]
    """Parts that had room for it, `fewest` of them; empty where it could not have stood better."""
    cost: CostClass
    because: str

    @property
    def is_avoidable(self) -> bool:
        return self.fewest < len(self.parts)


def part_of(place: Place, level: Level) -> str:
    """Return the part of that level in which a node is."""
    if level is Level.NVLINK_DOMAIN:
        return place.nvlink_domain
    return place.leaf_switch if level is Level.LEAF_SWITCH else place.rack


def levels_of(machines: Iterable[Machine]) -> tuple[Level, ...]:
    """Return the levels with a part of several nodes: where NVLink ends at the chassis, every gang leaves it."""
    listed = list(machines)
    return tuple(
        level for level in Level if listed and max(Counter(part_of(each.place, level) for each in listed).values()) > 1
    )


def find_straddles(
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence] = (),
    start: datetime,
    end: datetime,
    traffic: Mapping[str, Traffic] | None = None,
) -> tuple[Straddle, ...]:
    """Return the jobs that started in [start, end) and straddle, once for each level, by time.

    `traffic`: job -> what was measured of it.
    """
    occupancy = Occupancy(machines)
    rooms = {level: Room(occupancy, partial(part_of, level=level)) for level in levels_of(occupancy.machines.values())}
    found: list[Straddle] = []
    for change in occupancy.play(stays, absences, until=end):
        stay = change.started
        if stay is not None and change.at >= start and stay.gpu_count > 0 and len(stay.gpus) > 1:
            found += _straddles(stay, occupancy, rooms=rooms, traffic=(traffic or {}).get(stay.job))
        for room in rooms.values():
            room.touch(change.nodes)
    return tuple(found)


def _straddles(
    stay: Stay, occupancy: Occupancy, *, rooms: Mapping[Level, Room], traffic: Traffic | None
) -> Iterator[Straddle]:
    own = [occupancy.machines[node].place for node in stay.gpus if node in occupancy.machines]
    for level, room in rooms.items():
        parts = Counter(part_of(place, level) for place in own)
        if len(parts) < 2:
            continue
        best = _fewest_parts(_counts_for(stay, occupancy, level=level, room=room), node_count=len(own))
        cost, because = _cost(len(own), traffic)
        yield Straddle(
            stay=stay,
            level=level,
            parts=tuple(part for part, _ in sorted(parts.items(), key=lambda item: (-item[1], item[0]))),
            fewest=min(len(best), len(parts)),
            better=best if len(best) < len(parts) else (),
            cost=cost,
            because=because,
        )


def _counts_for(stay: Stay, occupancy: Occupancy, *, level: Level, room: Room) -> Mapping[str, int]:
    """Return part -> its nodes that could have taken one of the job's parts at its start; its own are among them."""
    own = [node for node in stay.gpus if node in occupancy.machines]
    models = {occupancy.machines[node].place.model for node in own}
    model = next(iter(models)) if len(models) == 1 else None
    gpus = max(needed(gpus) for gpus in stay.gpus.values())
    counts = dict(room.counts(gpus=gpus, partition=stay.partition, model=model))
    for node in own:
        if not could_take(occupancy, node, gpus=gpus, partition=stay.partition, model=model):
            part = part_of(occupancy.machines[node].place, level)
            counts[part] = counts.get(part, 0) + 1
    return counts


def _fewest_parts(counts: Mapping[str, int], *, node_count: int) -> tuple[str, ...]:
    """Return the fewest parts that hold so many nodes: the largest first; of one that suffices the smallest."""
    ordered = sorted((-count, part) for part, count in counts.items())
    chosen: list[str] = []
    missing = node_count
    for place, (less, part) in enumerate(ordered):
        if -less >= missing:
            left = ordered[place : bisect_right(ordered, -missing, key=lambda item: item[0])]
            _, last = min((-less, part) for less, part in left)
            return (*chosen, last)
        chosen.append(part)
        missing += less
    return tuple(chosen)


def _cost(node_count: int, traffic: Traffic | None) -> tuple[CostClass, str]:
    if traffic is not None:
        said = f"{traffic.bytes_per_second / 1e9:.1f} GB/s a node"
        if traffic.is_bound or traffic.bytes_per_second >= HEAVY_BYTES_PER_SECOND:
            return CostClass.HIGH, f"{said}, waits for communication" if traffic.is_bound else said
        if traffic.bytes_per_second < LIGHT_BYTES_PER_SECOND:
            return CostClass.LOW, said
        return CostClass.MEDIUM, said
    said = f"{node_count} nodes; its traffic is not known"
    if node_count >= LARGE_GANG:
        return CostClass.HIGH, said
    return CostClass.MEDIUM if node_count >= SMALL_GANG else CostClass.LOW, said


NO_NODE = NodeName("")
"""Of what no single node has: the limits of teams."""


class Why(Enum):
    """Why free GPUs cannot be had."""

    DRAINED = "drained with free GPUs"
    RESERVED = "reserved and unused"
    NO_PARTITION = "in no partition"
    NO_CPUS = "its CPUs are used up"
    NO_MEMORY = "its memory is used up"
    LIMITS = "the limits of all teams are reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandRules:
    """What a GPU cannot be used without, and who may ask for how many."""

    cpus_per_gpu: float = 1.0
    memory_bytes_per_gpu: float = float(1 << 30)
    """Assumption: with less than a GiB of memory no process drives a GPU."""
    most_by_team: Mapping[TeamName, int] | None = None
    """What each team may hold at most. None: somebody has no limit, or nobody reports; then limits strand nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """GPUs of one node and reason within the window."""

    node: NodeName
    why: Why
    gpu_hours: float
    at_the_end: int
    """How many at the end of the window."""
    cause: str = ""
    """What the source says of it, the newest: a drain's reason, a reservation's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedGpus:
    """All of a window."""

    stranded: tuple[Stranded, ...]
    """The most GPU-hours first."""
    free_gpu_hours: float
    """Of all GPUs that nobody held on nodes that were up, whether stranded or not."""


def find_stranded(
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence] = (),
    start: datetime,
    end: datetime,
    rules: StrandRules | None = None,
) -> StrandedGpus:
    """Return the GPUs that were free in [start, end) and could not be had."""
    occupancy = Occupancy(machines)
    count = _Count(occupancy, rules=rules or StrandRules())
    for stretch in occupancy.stretches(stays, absences, start=start, end=end):
        count.take(stretch)
    return count.close(end)


@dataclass(slots=True)
class _Sum:
    gpu_hours: float = 0.0
    at_the_end: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """One node since its last change."""

    since: datetime
    free: int
    parts: Mapping[Why, int]
    cause: str

    @property
    def usable(self) -> int:
        return self.free - sum(self.parts.values())


class _Count:
    """Counts each node when it changes, and the limits of teams, which no node has, at each interval."""

    def __init__(self, occupancy: Occupancy, *, rules: StrandRules) -> None:
        self._occupancy = occupancy
        self._rules = rules
        self._now: dict[NodeName, _Standing] = {}
        self._sums: dict[tuple[NodeName, Why], _Sum] = defaultdict(_Sum)
        self._free_gpu_hours = 0.0
        self._usable = 0

    def take(self, stretch: Interval) -> None:
        for node in stretch.changed:
            self._leave(node, stretch.since)
            self._now[node] = standing = self._look_at(node, stretch.since)
            self._usable += standing.usable
        over = self._over_limits()
        if over:
            hours = (stretch.until - stretch.since).total_seconds() / 3600
            self._sums[NO_NODE, Why.LIMITS].gpu_hours += over * hours

    def close(self, end: datetime) -> StrandedGpus:
        over = self._over_limits() if self._now else 0
        for node, standing in list(self._now.items()):
            for why, gpus in standing.parts.items():
                self._sums[node, why].at_the_end = gpus
            self._leave(node, end)
        if over:
            self._sums[NO_NODE, Why.LIMITS].at_the_end = over
        found = [
            Stranded(node=node, why=why, gpu_hours=each.gpu_hours, at_the_end=each.at_the_end, cause=each.cause)
            for (node, why), each in self._sums.items()
            if each.gpu_hours > 0
        ]
        found.sort(key=lambda each: (-each.gpu_hours, each.node, each.why.value))
        return StrandedGpus(stranded=tuple(found), free_gpu_hours=self._free_gpu_hours)

    def _leave(self, node: NodeName, at: datetime) -> None:
        """Count how the node stood up to now."""
        standing = self._now.pop(node, None)
        if standing is None:
            return
        self._usable -= standing.usable
        hours = (at - standing.since).total_seconds() / 3600
        self._free_gpu_hours += standing.free * hours
        for why, gpus in standing.parts.items():
            entry = self._sums[node, why]
            entry.gpu_hours += gpus * hours
            entry.cause = standing.cause or entry.cause

    def _look_at(self, node: NodeName, since: datetime) -> _Standing:
        absence, free = self._occupancy.absence(node), self._occupancy.free(node)
        if absence is not None and absence.why is Away.DOWN:
            return _Standing(since=since, free=0, parts={}, cause="")
        if free == 0:
            return _Standing(since=since, free=0, parts={}, cause="")
        if absence is not None:
            why = Why.DRAINED if absence.why is Away.DRAINED else Why.RESERVED
            return _Standing(since=since, free=free, parts={why: free}, cause=absence.cause)
        if self._occupancy.machines[node].partitions == frozenset():
            return _Standing(since=since, free=free, parts={Why.NO_PARTITION: free}, cause="")
        return _Standing(since=since, free=free, parts=self._used_up(node, free), cause="")

    def _used_up(self, node: NodeName, free: int) -> Mapping[Why, int]:
        """Return how many of the free GPUs have no CPUs or no memory left; what nobody reports strands nothing."""
        machine, stays = self._occupancy.machines[node], self._occupancy.stays[node].values()
        found: dict[Why, int] = {}
        left = free
        for why, there, held, each in (
            (Why.NO_CPUS, machine.cpu_count, [stay.cpus_per_node for stay in stays], self._rules.cpus_per_gpu),
            (
                Why.NO_MEMORY,
                machine.memory_bytes,
                [stay.memory_bytes_per_node for stay in stays],
                self._rules.memory_bytes_per_gpu,
            ),
        ):
            if there is None or each <= 0:
                continue
            room = max(0, whole((there - sum(amount for amount in held if amount is not None)) / each))
            if room < left:
                found[why] = left - room
                left = room
        return found

    def _over_limits(self) -> int:
        """Return how many GPUs that are free and usable no team may ask for."""
        most = self._rules.most_by_team
        if most is None:
            return 0
        held = self._occupancy.held_by_team
        return max(0, self._usable - sum(max(0, whole(top - held[team])) for team, top in most.items()))
