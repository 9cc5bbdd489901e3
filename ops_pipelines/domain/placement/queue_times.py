"""How long jobs waited, by size and team. What they waited for is the scheduler's last word.

Jobs that wait still count with what they have waited so far, so that a number may be too low, and says so. Sums over
sizes mislead where one team asks for larger jobs (Simpson): such pairs of teams are named.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import combinations
from math import ceil

from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.placement.standing import Waiting

FEW_JOBS = 10
"""Fewer say nothing of what the next one waits."""
LONG_SECONDS = 3600.0


class SizeClass(Enum):
    """How much a job asks for."""

    ONE_GPU = "1 GPU"
    PART = "part of a node"
    ONE_NODE = "1 node"
    FEW_NODES = "2-4 nodes"
    SOME_NODES = "5-16 nodes"
    MANY_NODES = "more than 16 nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimes:
    """The waits of one size and team."""

    size: SizeClass
    team: TeamName | None
    """None: of all teams together."""
    job_count: int
    waiting_count: int
    """Of these, how many wait still: the numbers are at least so high."""
    median_seconds: float
    p90_seconds: float
    long_ratio: float
    """Share that waited longer than an hour."""
    mostly_for: str
    """The reason that most of them had; empty where none is told."""

    @property
    def is_few(self) -> bool:
        return self.job_count < FEW_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """Over all sizes one team waits less, and in every size that both have it waits longer."""

    seems_better: TeamName
    is_better: TeamName
    sizes: tuple[SizeClass, ...]


def size_of(waiting: Waiting, *, gpus_per_node: int) -> SizeClass:
    """Return the class of a job; more than one node by its nodes, else by its GPUs."""
    nodes = max(waiting.node_count, ceil(waiting.gpu_count / gpus_per_node))
    if nodes <= 1:
        if waiting.gpu_count <= 1:
            return SizeClass.ONE_GPU
        return SizeClass.PART if waiting.gpu_count < gpus_per_node else SizeClass.ONE_NODE
    if nodes <= 4:
        return SizeClass.FEW_NODES
    return SizeClass.SOME_NODES if nodes <= 16 else SizeClass.MANY_NODES


def find_queue_times(waits: Iterable[Waiting], *, gpus_per_node: int, now: datetime) -> tuple[QueueTimes, ...]:
    """Return the waits of each size, of all teams and then of each; sizes and teams without jobs are left out."""
    groups: defaultdict[tuple[SizeClass, TeamName | None], list[Waiting]] = defaultdict(list)
    for each in waits:
        size = size_of(each, gpus_per_node=gpus_per_node)
        groups[size, None].append(each)
        groups[size, each.team].append(each)
    places = {size: place for place, size in enumerate(SizeClass)}
    keys = sorted(groups, key=lambda key: (places[key[0]], key[1] is not None, key[1] or ""))
    return tuple(_times(groups[size, team], size=size, team=team, now=now) for size, team in keys)


def find_reversals(waits: Iterable[Waiting], *, gpus_per_node: int, now: datetime) -> tuple[Reversal, ...]:
    """Return the pairs of teams whose order over all jobs is the other way round in each size that both have."""
    by_team: defaultdict[TeamName, defaultdict[SizeClass, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in waits:
        by_team[each.team][size_of(each, gpus_per_node=gpus_per_node)].append(each.seconds(now))
    found = []
    for one, other in combinations(sorted(by_team), 2):
        shared = [size for size in SizeClass if min(len(by_team[one][size]), len(by_team[other][size])) >= FEW_JOBS]
        if len(shared) < 2:
            continue
        over_all = _sign(_all_of(by_team[one].values()), _all_of(by_team[other].values()))
        within = {_sign(by_team[one][size], by_team[other][size]) for size in shared}
        if within == {-over_all} and over_all:
            better, worse = (one, other) if over_all < 0 else (other, one)
            found.append(Reversal(seems_better=better, is_better=worse, sizes=tuple(shared)))
    return tuple(found)


def quantile(values: Sequence[float], ratio: float) -> float:
    """Return the smallest value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(ratio * len(ordered)) - 1)]


def _times(waits: Sequence[Waiting], *, size: SizeClass, team: TeamName | None, now: datetime) -> QueueTimes:
    seconds = [each.seconds(now) for each in waits]
    reasons = Counter(each.reason for each in waits if each.reason)
    return QueueTimes(
        size=size,
        team=team,
        job_count=len(waits),
        waiting_count=sum(each.until is None for each in waits),
        median_seconds=quantile(seconds, 0.5),
        p90_seconds=quantile(seconds, 0.9),
        long_ratio=sum(value > LONG_SECONDS for value in seconds) / len(seconds),
        mostly_for=min(reasons, key=lambda reason: (-reasons[reason], reason), default=""),
    )


def _all_of(groups: Iterable[list[float]]) -> list[float]:
    return [value for group in groups for value in group]


def _sign(one: Sequence[float], other: Sequence[float]) -> int:
    """Return -1 where one waits less than the other, by the mean: medians of sums hide what they are made of."""
    first, second = sum(one) / len(one), sum(other) / len(other)
    return (first > second) - (first < second)


def longest_queue(waits: Iterable[Waiting], *, start: datetime, end: datetime) -> int:
    """Return how many jobs waited at once at most within [start, end)."""
    steps: list[tuple[datetime, int]] = []
    for each in waits:
        since, until = max(each.since, start), min(each.until or end, end)
        if since < until:
            steps += [(since, 1), (until, -1)]
    most = count = 0
    for _, step in sorted(steps):
        count += step
        most = max(most, count)
    return most
