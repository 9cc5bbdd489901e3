"""How long jobs waited, and which would have started earlier in the holes that were there.

Jobs that wait still count with what they have waited so far, so that a number may be too low, and says so. Sums over
sizes mislead where one team asks for larger jobs (Simpson): such pairs of teams are named.

A scheduler puts a job into a hole only if its time limit fits. Which holes there were is known afterwards: what was
free stayed free until somebody took it. Nobody would have started later: the hole was empty. Who waits for a limit of
its own, another job or its hour is passed over, and who could not have fitted with less time either.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from itertools import combinations
from math import ceil

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.fragmentation import Alike
from ops_pipelines.efficiency.placement.room import FreeRuns
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Stay, Waiting, needed

# -- how long jobs waited, by size and team --


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
    """The reason that most of them had; empty where none is reported."""

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


# -- jobs that would have started earlier in the holes that were there --


ENOUGH_RUNS = 10
"""Fewer past runs say nothing of what the next one needs."""
PERCENTILE = 0.95
MARGIN_RATIO = 1.1
"""What is proposed is so much above what 95 of 100 runs needed."""
WORTH = timedelta(minutes=10)
"""Who would have started less earlier is not reported."""
MOST_JOBS = 200
"""Looked at, those that waited longest: the others lost less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillHint:
    """One job that a shorter time limit would have started earlier."""

    waiting: Waiting
    limit_seconds: float
    proposed_seconds: float
    run_count: int
    """Past runs that the proposal was made from."""
    could_have_started_at: datetime
    earlier_seconds: float
    hole_ends_at: datetime
    ended_by: str
    """What the hole lay before: `a job`, or the reservation or drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What jobs of one user and name needed before."""

    seconds: float
    run_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """GPUs that stood free right before a reservation or a planned absence, because nobody's time limit fitted."""

    node: NodeName
    since: datetime
    until: datetime
    free_gpus: int
    """The fewest in that time."""
    cause: str

    @property
    def gpu_hours(self) -> float:
        return self.free_gpus * (self.until - self.since).total_seconds() / 3600


def needs_of(elapsed_seconds: Mapping[Alike, Sequence[float]]) -> Mapping[Alike, Need]:
    """Return what 95 of 100 runs of each kind needed at most; kinds with too few runs are left out."""
    found = {}
    for alike, seconds in elapsed_seconds.items():
        if len(seconds) >= ENOUGH_RUNS:
            ordered = sorted(seconds)
            place = ceil(PERCENTILE * len(ordered)) - 1
            found[alike] = Need(seconds=ordered[place], run_count=len(ordered))
    return found


def find_backfill_hints(
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    waits: Iterable[Waiting],
    *,
    absences: Iterable[Absence] = (),
    needs: Mapping[Alike, Need],
    known_since: datetime,
    now: datetime,
) -> tuple[BackfillHint, ...]:
    """Return the hints, those that gain most first.

    `stays` and `absences` are all that overlap [known_since, now); no start before is known.
    """
    rooms = FreeRuns(machines, stays, absences)
    candidates = [
        (each, needs[each.user, each.name], limit)
        for each in waits
        if each.is_for_room
        and (limit := each.time_limit_seconds) is not None
        and (each.user, each.name) in needs
        and needs[each.user, each.name].seconds * MARGIN_RATIO < limit
    ]
    candidates.sort(key=lambda item: (-item[0].seconds(now), item[0].job))
    found = []
    for waiting, need, limit in candidates[:MOST_JOBS]:
        hint = _hint(waiting, rooms, need=need, limit=limit, known_since=known_since, now=now)
        if hint is not None:
            found.append(hint)
    return tuple(sorted(found, key=lambda each: (-each.earlier_seconds, each.waiting.job)))


def find_holes(
    machines: Iterable[Machine], stays: Iterable[Stay], *, absences: Iterable[Absence], start: datetime, end: datetime
) -> tuple[Hole, ...]:
    """Return the holes before reservations that began in [start, end), the most GPU-hours first."""
    listed: list[Absence] = []
    others: list[Absence] = []
    for each in absences:
        (listed if each.why is Away.RESERVED and start <= each.since < end else others).append(each)
    nodes = {each.node for each in listed}
    rooms = FreeRuns(
        (each for each in machines if each.node in nodes), (each for each in stays if nodes & each.gpus.keys()), others
    )
    found = []
    for absence in listed:
        run = max(
            (each for each in rooms.of(absence.node, gpus=1) if max(each.since, start) < absence.since <= each.until),
            key=lambda each: each.since,
            default=None,
        )
        if run is not None:
            since = max(run.since, start)
            found.append(
                Hole(
                    node=absence.node,
                    since=since,
                    until=absence.since,
                    free_gpus=rooms.fewest(absence.node, since=since, until=absence.since),
                    cause=absence.cause,
                )
            )
    return tuple(sorted(found, key=lambda each: (-each.gpu_hours, each.node)))


def _hint(
    waiting: Waiting, rooms: FreeRuns, *, need: Need, limit: float, known_since: datetime, now: datetime
) -> BackfillHint | None:
    until = waiting.until or now
    count = max(1, waiting.node_count)
    proposed = need.seconds * MARGIN_RATIO
    earliest = partial(
        rooms.earliest,
        job=waiting.job,
        partition=waiting.partition,
        gpus=needed(waiting.gpu_count / count),
        count=count,
        since=max(waiting.since, known_since),
    )
    short = earliest(seconds=proposed, latest=until - WORTH)
    if short is None:
        return None
    at, hole = short
    if earliest(seconds=limit, latest=at) is not None:
        # There was room for all of its limit too: something else kept it waiting.
        return None
    return BackfillHint(
        waiting=waiting,
        limit_seconds=limit,
        proposed_seconds=proposed,
        run_count=need.run_count,
        could_have_started_at=at,
        earlier_seconds=(until - at).total_seconds(),
        hole_ends_at=hole.until,
        ended_by=hole.ended_by,
    )
