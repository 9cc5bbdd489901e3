"""Rows of accounting and job logs -> how long interruptions took: from the end of an attempt to work that continues.

An interruption is an attempt that the cluster ended (node failed, requeued, preempted) and that the same job followed
with another one. What it costs is measured apart from the work that is done again, which depends on the checkpoint.
What is decided with it is `remediate.timing`. Medians, and a bound on how much one job counts, keep a job
that writes lies or is requeued all day from moving the costs of others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.observe.logs.matching import LineKind, is_progress, kind_of

ATTEMPT_COLUMNS = ("job", "state", "started_at", "ended_at", "eligible_at")
ALLOCATION_COLUMNS = ("job", "time", "state", "started_at", "ended_at")
LOG_COLUMNS = ("job", "time", "step", "signature", "text")
INTERRUPTED = frozenset({"REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})
"""Slurm's words for an attempt after which the job may run again."""
LEAST_COUNT = 5
"""Fewer cases than this say nothing of the next one: the prior stays."""
ROOM_SECONDS = 300.0
"""A wait up to here had room. # Assumption: Slurm holds a requeued job for cred_expire + 1 s (121 s unless set lower:
measured), and a pass of its scheduler follows within a minute or two; who waits longer waits for others to end."""
PER_JOB = 5
"""Interruptions of one job that count, the newest: a requeue loop must not drown out all others."""
HOLD_OFF = timedelta(seconds=180)
"""A requeued job may become eligible so long after its end by Slurm's own doing; later, somebody held it."""
START_LIMIT = timedelta(hours=2)
"""Work that is first seen later than this after a start says nothing of how long starting took."""
_RESTART_BOUNDS = (10.0, START_LIMIT.total_seconds())
_NO_ROOM_BOUNDS = (ROOM_SECONDS, timedelta(days=1).total_seconds())
_CAPPED_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt, as far as it matters here. `ended_at` None: it ran when it was read."""

    job: str
    state: str
    started_at: datetime
    ended_at: datetime | None
    eligible_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One attempt that the cluster ended, and the next one of the same job."""

    job: str
    why: str
    ended_at: datetime
    resumed_at: datetime
    """When the next attempt started."""
    queue_seconds: float
    """How long it waited. Time for which somebody held it is left out."""

    @property
    def had_room(self) -> bool:
        """Whether it waited for the scheduler only, not for others to end."""
        return self.queue_seconds <= ROOM_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCounts:
    """On how many cases each part of the costs rests; below LEAST_COUNT it is the prior."""

    restart_count: int
    queue_count: int
    no_room_count: int


def attempts_of_rows(rows: pa.Table) -> list[Attempt]:
    """Return the attempts that rows of `job_accounting` or `job_allocations` name; those that never began are none."""
    found: list[Attempt] = []
    columns = [name for name in ATTEMPT_COLUMNS if name in rows.column_names]
    for row in rows.select(columns).to_pylist():
        if row["job"] and row["started_at"] is not None:
            found.append(
                Attempt(
                    job=row["job"],
                    state=(str(row["state"] or "").split() or [""])[0],
                    started_at=row["started_at"],
                    ended_at=row["ended_at"],
                    eligible_at=row.get("eligible_at"),
                )
            )
    return found


def find_interruptions(attempts: Iterable[Attempt]) -> tuple[Interruption, ...]:
    """Return the interruptions among `attempts`, PER_JOB of a job, by the time at which the next attempt started.

    Of an attempt that is reported twice the one with an end counts. Attempts of a job that overlap are passed over:
    their times cannot all be right.
    """
    by_job: dict[str, dict[datetime, Attempt]] = {}
    for attempt in attempts:
        known = by_job.setdefault(attempt.job, {})
        if attempt.started_at not in known or known[attempt.started_at].ended_at is None:
            known[attempt.started_at] = attempt
    found: list[Interruption] = []
    for job, known in by_job.items():
        listed = [known[start] for start in sorted(known)]
        of_job: list[Interruption] = []
        for one, following in pairwise(listed):
            if one.state not in INTERRUPTED or one.ended_at is None or following.started_at < one.ended_at:
                continue
            begin = one.ended_at
            eligible_at = following.eligible_at
            if eligible_at is not None and one.ended_at + HOLD_OFF < eligible_at <= following.started_at:
                begin = eligible_at
            of_job.append(
                Interruption(
                    job=job,
                    why=one.state,
                    ended_at=one.ended_at,
                    resumed_at=following.started_at,
                    queue_seconds=(following.started_at - begin).total_seconds(),
                )
            )
        found += of_job[-PER_JOB:]
    return tuple(sorted(found, key=lambda each: (each.resumed_at, each.job)))


def time_restart(interruption: Interruption, rows: pa.Table) -> float | None:
    """Return the seconds from the start of the new attempt to its first sign of work, as rows of `job_logs` show it.

    A step of the training; where its steps are not recognised, a line that says that the checkpoint was loaded; else
    its first checkpoint less the time between the first two. None if there is none of these within START_LIMIT.
    """
    start = interruption.resumed_at
    times = rows["time"]
    of_job = pc.equal(rows["job"].cast(pa.string()), interruption.job)
    within = pc.and_(
        pc.greater_equal(times, pa.scalar(start, times.type)),
        pc.less(times, pa.scalar(start + START_LIMIT, times.type)),
    )
    own = rows.filter(pc.fill_null(pc.and_(of_job, within), False))
    if not own.num_rows:
        return None
    steps = own.filter(is_progress(own))["time"]
    if len(steps):
        return float((pc.min(steps).as_py() - start).total_seconds())
    told = [(row["time"], kind_of(row["text"] or "")) for row in own.select(["time", "text"]).to_pylist()]
    loaded = [time for time, kind in told if kind is LineKind.RESUMED]
    if loaded:
        return float((min(loaded) - start).total_seconds())
    saved = sorted({time for time, kind in told if kind is LineKind.SAVED})
    if len(saved) < 2:
        return None
    seconds = float((saved[0] - (saved[1] - saved[0]) - start).total_seconds())
    return seconds if seconds > 0 else None


def measure_costs(
    interruptions: Sequence[Interruption], restart_seconds: Sequence[float]
) -> tuple[RestartCosts, CostCounts]:
    """Return what an interruption costs here, each part measured where it has LEAST_COUNT cases, else the prior.

    With room: the median wait of those that waited at most ROOM_SECONDS. Without: the mean wait of the others, the
    longest tenth counted as if it were at the 90th percentile, because a loss grows with the wait and one job that
    nobody could place must not decide. Jobs that still wait are not counted, so that long queues look a little shorter
    than they are.
    """
    prior = RestartCosts()
    room = [each.queue_seconds for each in interruptions if each.had_room]
    no_room = [each.queue_seconds for each in interruptions if not each.had_room]
    counts = CostCounts(restart_count=len(restart_seconds), queue_count=len(room), no_room_count=len(no_room))
    is_measured = max(len(restart_seconds), len(room), len(no_room)) >= LEAST_COUNT
    costs = RestartCosts(
        restart_seconds=(
            _between(median(restart_seconds), _RESTART_BOUNDS)
            if len(restart_seconds) >= LEAST_COUNT
            else prior.restart_seconds
        ),
        queue_seconds=median(room) if len(room) >= LEAST_COUNT else prior.queue_seconds,
        no_room_queue_seconds=(
            _between(_capped_mean(no_room), _NO_ROOM_BOUNDS)
            if len(no_room) >= LEAST_COUNT
            else prior.no_room_queue_seconds
        ),
        measured_count=len(interruptions) if is_measured else 0,
    )
    return costs, counts


def cost_rows(costs: RestartCosts, counts: CostCounts) -> list[Mapping[str, object]]:
    """Return the costs as rows for a page: what, how long, on how many cases it rests, and the prior."""
    prior = RestartCosts()
    parts = (
        ("restart, until work continues", costs.restart_seconds, counts.restart_count, prior.restart_seconds),
        ("queue, with room", costs.queue_seconds, counts.queue_count, prior.queue_seconds),
        ("queue, without room", costs.no_room_queue_seconds, counts.no_room_count, prior.no_room_queue_seconds),
    )
    return [
        {
            "part": part,
            "seconds": round(seconds, 1),
            "cases": count,
            "is": "measured" if count >= LEAST_COUNT else f"prior: fewer than {LEAST_COUNT} cases",
            "prior_seconds": before,
        }
        for part, seconds, count, before in parts
    ]


def _between(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def _capped_mean(values: Sequence[float]) -> float:
    ordered = sorted(values)
    cap = ordered[min(len(ordered) - 1, int(_CAPPED_SHARE * len(ordered)))]
    return sum(min(value, cap) for value in ordered) / len(ordered)
