"""Jobs of several nodes that stand in more racks, leaves or NVLink domains than they needed to when they started.

A job needs not have straddled where the nodes that could have taken it at its start fill fewer parts. That is judged
before its start and by free GPUs, partition and model; which nodes its user asked for is not known here.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial

from ops_pipelines.core.identity import Place
from ops_pipelines.efficiency.placement.room import Room
from ops_pipelines.efficiency.placement.standing import Absence, Machine, Occupancy, Stay, could_take, needed

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
    """How much it matters that a job stands apart."""

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
    """The parts in which it stands, the one with the most of its nodes first."""
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
    """Return the part of that level in which a node stands."""
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
