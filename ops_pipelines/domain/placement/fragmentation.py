"""How much of what is free is in pieces: which gangs could start, and how that went over the hours.

The index is the share of jobs of one whole node that the free GPUs would make and that no node can take:
1 - (whole free nodes) / floor(free GPUs / GPUs of a node). 0 where every free GPU stands on a whole free node, or where
fewer are free than a node has. Why a part is held is `consolidation`'s business.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.domain.placement.occupancy import Occupancy
from ops_pipelines.domain.placement.standing import Absence, Machine, Stay

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
