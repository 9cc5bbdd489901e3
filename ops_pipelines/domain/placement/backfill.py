"""Jobs that would have started earlier in the holes that were there, had their time limit been what they need.

A scheduler puts a job into a hole only if its time limit fits. Which holes there were is known afterwards: what was
free stayed free until somebody took it. Nobody would have started later: the hole was empty. Who waits for a limit of
its own, another job or its hour is passed over, and who could not have fitted with less time either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import ceil

from ops_pipelines.core.identity import NodeName
from ops_pipelines.domain.placement.consolidation import Alike
from ops_pipelines.domain.placement.free_runs import FreeRuns
from ops_pipelines.domain.placement.standing import Absence, Away, Machine, Stay, Waiting, needed

ENOUGH_RUNS = 10
"""Fewer past runs say nothing of what the next one needs."""
PERCENTILE = 0.95
MARGIN_RATIO = 1.1
"""What is proposed is so much above what 95 of 100 runs needed."""
WORTH = timedelta(minutes=10)
"""Who would have started less earlier is not told."""
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

    `stays` and `absences` are all that overlap [known_since, now); nobody is told of a start before.
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
