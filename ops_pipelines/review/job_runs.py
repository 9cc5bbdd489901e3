"""Rows of the lake -> attempts of jobs, the interruptions between them, and how much work lasted.

Reads each hour once, and keeps of it only the lines of the jobs that are asked about. Whose file a line stood in is not
known here, so what comes out is for reports, never for decisions (`observe.job_facts` is).

Who is to blame, and what lines say of checkpoints, is the caller's to know; what the interruptions cost is `work_sums`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.sources import Declared, ReadComment
from ops_pipelines.observe.logs.matching import CheckpointLine, LineKind, kind_of, read_line_rules

# -- rows of `job_logs` around interruptions -> when work was last saved before one --


_HOUR = timedelta(hours=1)
_SAVES = frozenset({LineKind.SAVED, LineKind.SAVING, LineKind.STAGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLines:
    """The lines of some jobs in some hours."""

    rows: Mapping[datetime, pa.Table]
    told: Mapping[str, tuple[CheckpointLine, ...]]
    """What they say of checkpoints, by job and time."""

    def before(self, job: str, *, since: datetime, until: datetime) -> tuple[CheckpointLine, ...]:
        """Return what a job reported of checkpoints in [since, until]."""
        return tuple(each for each in self.told.get(job, ()) if since <= each.at <= until)

    def tells_of_saves(self, job: str) -> bool:
        """Return whether any line of the job reports of a save: then one that is not reported was not made."""
        return any(each.kind in _SAVES for each in self.told.get(job, ()))

    def has_lines(self, job: str, *, since: datetime, until: datetime) -> bool:
        """Return whether the job wrote anything in the hours of [since, until]."""
        return any(
            hour < until and since < hour + _HOUR and pc.any(pc.equal(rows["job"], job)).as_py()
            for hour, rows in self.rows.items()
        )

    def after(self, start: datetime, *, within: timedelta) -> pa.Table | None:
        """Return the lines of the hours of [start, start + within); None where there are none."""
        near = [rows for hour, rows in sorted(self.rows.items()) if start - _HOUR < hour < start + within]
        return pa.concat_tables(near) if near else None


def read_job_lines(read: Callable[[datetime], pa.Table], wanted: Mapping[datetime, Collection[str]]) -> JobLines:
    """Return the lines of jobs in hours: `read` gives rows of `job_logs` of an hour, `wanted` the jobs asked for.

    The rows have `job`, `time` and `text` at least.
    """
    kept: dict[datetime, pa.Table] = {}
    told: dict[str, list[CheckpointLine]] = {}
    for hour in sorted(wanted):
        rows = read(hour)
        if not rows.num_rows:
            continue
        rows = rows.set_column(rows.column_names.index("job"), "job", rows["job"].cast(pa.string()))
        own = rows.filter(
            pc.fill_null(pc.is_in(rows["job"], value_set=pa.array(sorted(wanted[hour]), pa.string())), False)
        )
        if not own.num_rows:
            continue
        kept[hour] = own
        for row in own.filter(_may_tell(own["text"].cast(pa.string()))).select(["job", "time", "text"]).to_pylist():
            kind = kind_of(row["text"])
            if kind is not None:
                told.setdefault(row["job"], []).append(CheckpointLine(job=JobId(row["job"]), at=row["time"], kind=kind))
    return JobLines(
        rows=kept, told={job: tuple(sorted(lines, key=lambda each: each.at)) for job, lines in told.items()}
    )


def _may_tell(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    words = sorted({rule.holds for rule in read_line_rules()})
    may = pc.match_substring(texts, words[0])
    for word in words[1:]:
        may = pc.or_(may, pc.match_substring(texts, word))
    return pc.fill_null(may, False)


# -- hours of `application_telemetry` -> the worst 99th percentile of the latency of each --


COLUMNS = ("time", "device", "job", "namespace", "latency_p99_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMinute:
    """One minute of one service, all its replicas together: the slowest of them counts."""

    service: str
    job: str
    """Empty where the service is no job. Untrusted, as the others are."""
    namespace: str
    at: datetime
    p99_seconds: float


def latency_minutes(hours: Iterable[pa.Table]) -> Iterable[LatencyMinute]:
    """Yield the minutes of which any replica reported its latency. Values that are no number tell nothing."""
    for rows in hours:
        value = rows["latency_p99_seconds"]
        known = rows.filter(pc.fill_null(pc.and_(pc.is_valid(value), pc.is_finite(value)), False))
        if not known.num_rows:
            continue
        keys = pa.table(
            {
                "minute": pc.floor_temporal(known["time"], unit="minute"),
                **{name: pc.fill_null(known[name].cast(pa.string()), "") for name in ("device", "job", "namespace")},
                "p99": known["latency_p99_seconds"],
            }
        )
        worst = keys.group_by(["minute", "device", "job", "namespace"]).aggregate([("p99", "max")])
        for row in worst.to_pylist():
            yield LatencyMinute(
                service=row["device"],
                job=row["job"],
                namespace=row["namespace"],
                at=row["minute"].astimezone(UTC),
                p99_seconds=row["p99_max"],
            )


# -- rows of accounting and allocations -> the attempts of each job --


ACCOUNTING = (
    "job", "time", "account", "state", "submitted_at", "eligible_at", "started_at", "ended_at", "gpu_count", "nodes",
    "comment", "restart_count",
)  # fmt: skip
ALLOCATIONS = ("job", "node", "time", "account", "started_at", "ended_at", "gpu_count")
NO_TEAM = "unknown team"


class Cause(Enum):
    """Why an attempt ended before its work was done."""

    HARDWARE = "hardware"
    SOFTWARE = "software"
    """Of the platform or of the program itself, as an incident says."""
    OURS = "ours"
    """We moved a job that still ran, ahead of a fault: what it cost was our choice."""
    PREEMPTED = "preempted"
    """The scheduler gave its place to another: policy, and no failure."""
    UNKNOWN = "unknown"
    """No incident explains it: a node that failed unseen, a person's requeue."""


FAILURES = (Cause.HARDWARE, Cause.SOFTWARE, Cause.OURS, Cause.UNKNOWN)
"""Those that count as interruptions; preemption is separated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stint:
    """One attempt of one job that began."""

    job: str
    team: str
    """Its account. Untrusted."""
    started_at: datetime
    ended_at: datetime | None
    """None: it ran when it was last read."""
    seen_until: datetime | None = None
    """Of one without an end: the end of the newest hour in which it is known to have held nodes."""
    state: str = ""
    """Slurm's first word; empty while it runs."""
    submitted_at: datetime | None = None
    eligible_at: datetime | None = None
    restart_count: int = 0
    gpu_count: int = 0
    nodes: str = ""
    """The host list as the scheduler writes it."""
    said: Declared = Declared()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A job that ended without having started."""

    job: str
    team: str
    since: datetime
    until: datetime
    said: Declared = Declared()


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One interruption: an attempt that something else than the job ended, and what is known of what it cost."""

    stint: Stint
    ended_at: datetime
    cause: Cause
    incident: str = ""
    resumed_at: datetime | None = None
    """Start of the next attempt; None: none is known."""
    waits_from: datetime | None = None
    """From when on it waited: its end, or its release where somebody else than we held it."""
    waits_on: bool = False
    """It has not started again and is known to wait."""
    checkpointed_at: datetime | None = None
    """Its newest complete checkpoint. None: not known, unless `saved_nothing`."""
    saved_nothing: bool = False
    """It is known that nothing of the attempt was saved."""
    restart: timedelta | None = None
    """From the start of the next attempt until work was seen to continue; None: not seen, or there was none."""

    @property
    def is_loss_known(self) -> bool:
        return self.saved_nothing or self.checkpointed_at is not None


def stints_of(
    accounting: Iterable[pa.Table],
    allocations: Iterable[pa.Table],
    *,
    read_comment: ReadComment,
    known: Mapping[str, Workload],
) -> tuple[tuple[Stint, ...], tuple[Waited, ...]]:
    """Return every attempt that began, once, by job and start; and the jobs that ended without having started.

    Of an attempt that is reported more than once the one with an end counts, accounting before allocations. `known`:
    the workload of jobs as the scheduler has it, for those whose comment is not at hand.
    """
    found: dict[tuple[str, datetime], Stint] = {}
    waited: dict[str, Waited] = {}
    for rows in allocations:
        for stint in _held(rows, known):
            before = found.get((stint.job, stint.started_at))
            if before is None or stint.ended_at is not None or before.ended_at is None:
                found[stint.job, stint.started_at] = stint
    for rows in accounting:
        for row in rows.select([name for name in ACCOUNTING if name in rows.column_names]).to_pylist():
            if not row["job"]:
                continue
            said = _said(row["job"], row.get("comment"), read_comment, known)
            team = row["account"] or NO_TEAM
            if row["started_at"] is None:
                since = row["eligible_at"] or row["submitted_at"]
                if since is not None and row["ended_at"] is not None and row["ended_at"] >= since:
                    waited[row["job"]] = Waited(
                        job=row["job"], team=team, since=since, until=row["ended_at"], said=said
                    )
                continue
            before = found.get((row["job"], row["started_at"]))
            if before is not None and before.ended_at is not None and row["ended_at"] is None:
                continue
            if row["ended_at"] is not None and row["ended_at"] < row["started_at"]:
                continue
            found[row["job"], row["started_at"]] = Stint(
                job=row["job"],
                team=team,
                started_at=row["started_at"],
                ended_at=row["ended_at"],
                state=(str(row["state"] or "").split() or [""])[0],
                submitted_at=row["submitted_at"],
                eligible_at=row["eligible_at"],
                restart_count=row.get("restart_count") or 0,
                gpu_count=row["gpu_count"] or 0,
                nodes=row["nodes"] or "",
                said=said,
            )
    return tuple(found[key] for key in sorted(found)), tuple(waited[job] for job in sorted(waited))


def _held(rows: pa.Table, known: Mapping[str, Workload]) -> Iterable[Stint]:
    by_attempt: dict[tuple[str, datetime], list[dict[str, object]]] = {}
    if not rows.num_rows:
        return ()
    for row in rows.select([name for name in ALLOCATIONS if name in rows.column_names]).to_pylist():
        if row["job"] and row["started_at"] is not None:
            by_attempt.setdefault((row["job"], row["started_at"]), []).append(row)
    found = []
    for (job, started_at), parts in by_attempt.items():
        gpus = {str(row["node"]): row["gpu_count"] for row in parts}
        ends = [row["ended_at"] for row in parts if isinstance(row["ended_at"], datetime)]
        found.append(
            Stint(
                job=job,
                team=str(parts[0]["account"] or NO_TEAM),
                started_at=started_at,
                ended_at=max(ends, default=None),
                seen_until=max(row["time"] for row in parts if isinstance(row["time"], datetime)) + _HOUR,
                gpu_count=round(sum(each for each in gpus.values() if isinstance(each, int | float))),
                said=Declared(workload=known.get(job, Workload.UNKNOWN)),
            )
        )
    return found


def _said(job: str, comment: object, read_comment: ReadComment, known: Mapping[str, Workload]) -> Declared:
    said = read_comment(comment) if isinstance(comment, str) and comment else Declared()
    if said.workload is not Workload.UNKNOWN or job not in known:
        return said
    return Declared(workload=known[job], checkpointed_at=said.checkpointed_at, saves_nothing=said.saves_nothing)


def find_breaks(
    stints: Sequence[Stint],
    *,
    blame: Callable[[Stint], tuple[Cause, str] | None],
    hold_off: timedelta,
    waiting: Collection[str] = (),
) -> tuple[Break, ...]:
    """Return the interruptions among attempts sorted as `stints_of` sorts them, by job and end.

    `blame`: why an ended attempt ended, with the incident; None where it is no interruption. `hold_off`: a requeued job
    may become eligible so long after its end by the scheduler's own doing; later, somebody held it. `waiting`: jobs
    that the scheduler says are pending now.
    """
    found = []
    for place, stint in enumerate(stints):
        verdict = None if stint.ended_at is None else blame(stint)
        if stint.ended_at is None or verdict is None:
            continue
        cause, incident = verdict
        following = stints[place + 1] if place + 1 < len(stints) else None
        if following is None or following.job != stint.job or following.started_at < stint.ended_at:
            following = None
        found.append(
            Break(
                stint=stint,
                ended_at=stint.ended_at,
                cause=cause,
                incident=incident,
                resumed_at=None if following is None else following.started_at,
                waits_from=None if following is None else _waits_from(stint.ended_at, following, cause, hold_off),
                waits_on=following is None and stint.job in waiting,
                saved_nothing=stint.said.saves_nothing,
                checkpointed_at=_not_after(stint.said.checkpointed_at, stint.ended_at),
            )
        )
    return tuple(found)


def _waits_from(ended_at: datetime, following: Stint, cause: Cause, hold_off: timedelta) -> datetime:
    """Return from when on the wait is the cluster's: a hold of somebody else is not; our own hold is."""
    eligible_at = following.eligible_at
    if cause is Cause.OURS or eligible_at is None or not ended_at + hold_off < eligible_at <= following.started_at:
        return ended_at
    return eligible_at


def _not_after(at: datetime | None, end: datetime) -> datetime | None:
    return at if at is not None and at <= end else None
