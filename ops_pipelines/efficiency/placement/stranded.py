"""Free GPUs that nobody could have had: why, and how many GPU-hours.

Of a node's free GPUs each is counted under the first reason that holds: drained or reserved, then in no partition, then
without CPUs, then without memory. What the limits of teams leave over is counted last, of what is left. A node that is
down is broken, not stranded: `usage_ledger` has it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Occupancy, Stay, Stretch, whole

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
    """What each team may hold at most. None: somebody has no limit, or nobody tells; then limits strand nothing."""


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
    """How one node stands since its last change."""

    since: datetime
    free: int
    parts: Mapping[Why, int]
    cause: str

    @property
    def usable(self) -> int:
        return self.free - sum(self.parts.values())


class _Count:
    """Counts each node when it changes, and the limits of teams, which no node has, at each stretch."""

    def __init__(self, occupancy: Occupancy, *, rules: StrandRules) -> None:
        self._occupancy = occupancy
        self._rules = rules
        self._now: dict[NodeName, _Standing] = {}
        self._sums: dict[tuple[NodeName, Why], _Sum] = defaultdict(_Sum)
        self._free_gpu_hours = 0.0
        self._usable = 0

    def take(self, stretch: Stretch) -> None:
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
        """Return how many of the free GPUs have no CPUs or no memory left; what nobody tells strands nothing."""
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
