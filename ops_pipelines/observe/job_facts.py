"""What is learned of jobs from their lines, and how it joins what the scheduler says.

A line in a file counts only if the file is the job's user's, or root's. So a lie costs the user who reports it: a job
that claims fresh checkpoints is interrupted when that loses more of its work than it seems, one that hides them is
interrupted later or not at all, and its node waits. A collector that labels lines with jobs (Loki) is believed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Checkpointing, JobStatus
from ops_pipelines.core.sources import (
    TIMES_KEPT,
    CheckpointSeen,
    JobFacts,
    JobFactsError,
    JobFactsReading,
    LogBatch,
    LogLine,
    Rows,
)
from ops_pipelines.observe.repeated import Hold

if TYPE_CHECKING:
    from ops_pipelines.observe.logs.matching import CheckpointLine

SAME_SAVE = timedelta(seconds=30)
"""Ranks tell of one save within so long of each other. # Assumption: nobody saves whole checkpoints more often."""
PARTS_WITHIN = timedelta(minutes=10)
"""# Assumption: the files of one save are written with less than that between them."""
CLOCK_SKEW = timedelta(minutes=2)
"""A line may be dated so far ahead by its node's clock, and counts as of now; further ahead it is not believed."""
REMEMBERED = timedelta(days=14)
"""A job that waits for its next attempt longer than that has its checkpoint forgotten: unknown, not fresh."""
JOBS_AT_MOST = 20_000
_ROOT = "root"
"""Whom every file is open to anyway."""


def read_job_facts(job_facts: JobFacts | None) -> JobFactsReading:
    """Return what was learned; nothing, where nothing is kept."""
    return JobFactsReading() if job_facts is None else job_facts.read()


def merge_jobs(jobs: Iterable[JobStatus], reading: JobFactsReading, *, now: datetime) -> tuple[JobStatus, ...]:
    """Return the jobs, each with the newest checkpoint that is known of it; see `merge_job`."""
    seen = reading.checkpoints
    return tuple(merge_job(job, seen.get(job.job), now=now) for job in jobs)


def merge_job(job: JobStatus, seen: CheckpointSeen | None, *, now: datetime) -> JobStatus:
    """Return `job` with the newest credible checkpoint of those that the scheduler's adapter and its lines tell.

    Credible is what is not in the future. A checkpoint from before the attempt counts: it was resumed from it. The
    interval that is declared goes before the one that was seen. Of a job that says it keeps no checkpoints nothing is
    believed but that: a file of weights is none that it could resume from.
    """
    told = job.checkpointed_at
    if told is not None and told > now:
        told = None
    if job.checkpointing is Checkpointing.NO or seen is None:
        newest, every = told, job.checkpoint_every
    else:
        newest = max((time for time in (told, *seen.times) if time is not None and time <= now), default=None)
        every = job.checkpoint_every or seen.every
    is_seen = newest is not None and job.checkpointing is Checkpointing.UNKNOWN
    checkpointing = Checkpointing.YES if is_seen else job.checkpointing
    if (newest, every, checkpointing) == (job.checkpointed_at, job.checkpoint_every, job.checkpointing):
        return job
    return replace(job, checkpointed_at=newest, checkpoint_every=every, checkpointing=checkpointing)


def take_in_checkpoints(
    job_facts: JobFacts, rows: Rows, *, batch: LogBatch, holds: Iterable[Hold], now: datetime
) -> tuple[str, ...]:
    """Keep what the lines of a batch, tabulated in `rows`, tell of checkpoints; return what went wrong, in words.

    Whatever is wrong, the lines themselves are not lost for it.
    """
    attempts = sorted(holds, key=lambda hold: hold.started_at)
    started = {hold.job: hold.started_at for hold in attempts}
    users = {hold.job: hold.user for hold in attempts}
    try:
        learn_checkpoints(job_facts, rows, lines=batch.lines, started=started, users=users, now=now)
    except JobFactsError as problem:
        return (str(problem),)
    except Exception as problem:  # a fault of ours must not cost the lake its lines
        return (f"checkpoints were not learned from lines: {type(problem).__name__}: {problem}",)
    return ()


def learn_checkpoints(
    job_facts: JobFacts,
    rows: Rows,
    *,
    lines: Sequence[LogLine],
    started: Mapping[JobId, datetime],
    users: Mapping[JobId, str],
    now: datetime,
) -> None:
    """Keep what new rows of `job_logs`, made of `lines`, tell of checkpoints. Raises JobFactsError.

    `started`: when the present attempt of jobs began, as far as that is known. `users`: whose they are; where that is
    not known, the line of a file proves nothing. The same lines again change nothing. Nothing is written where nothing
    was learned.
    """
    from ops_pipelines.observe.logs.matching import read_checkpoint_lines, rows_of_lines, stepping_jobs

    lines = [line for line in lines if _is_the_jobs_own(line, users)]
    rows = rows_of_lines(rows, lines)
    told = read_checkpoint_lines(rows, lines=lines)
    known = job_facts.read().checkpoints
    waiting = {job for job, seen in known.items() if seen.saving_since is not None}
    # A step of the same batch may stand before the save, in the file of another rank: only one of a later batch proves
    # that the save is complete.
    going_on = stepping_jobs(rows, waiting)
    if not told and not going_on:
        return
    by_job: dict[JobId, list[CheckpointLine]] = {}
    for line in told:
        if line.at <= now + CLOCK_SKEW:
            by_job.setdefault(line.job, []).append(replace(line, at=min(line.at, now)))
    changed = dict(known)
    for job in by_job.keys() | going_on:
        before = known.get(job, CheckpointSeen())
        changed[job] = note_lines(before, by_job.get(job, ()), is_going_on=job in going_on, started_at=started.get(job))
    kept = _remembered(changed, now=now)
    if kept != known:
        job_facts.keep_checkpoints(kept)


def _is_the_jobs_own(line: LogLine, users: Mapping[JobId, str]) -> bool:
    if line.job is None:
        return False
    return (
        line.written_by is None or line.written_by == _ROOT or (line.written_by or None) == users.get(JobId(line.job))
    )


def note_lines(
    seen: CheckpointSeen,
    lines: Sequence["CheckpointLine"],
    *,
    is_going_on: bool = False,
    started_at: datetime | None = None,
) -> CheckpointSeen:
    """Return what is known of a job after more of its lines.

    `is_going_on`: they show steps after what was known. `started_at`: when its present attempt began, None if unknown;
    a save that an earlier attempt had started was cut off with it, and is never complete.
    """
    from ops_pipelines.observe.logs.matching import LineKind

    seen = _without_cut_off(seen, started_at)
    begun = seen.saving_since
    for line in sorted(lines, key=lambda line: line.at):
        if started_at is not None and line.at >= started_at:
            seen = _without_cut_off(seen, started_at)
        if line.kind is LineKind.RESUMED:
            seen = _without_cut_off(seen, line.at)
        elif line.kind is LineKind.SAVED:
            # Whatever had started was this.
            seen = replace(_with_time(seen, line.at), saving_since=_after(seen.saving_since, line.at))
        elif line.kind is LineKind.SCHEDULED:
            seen = replace(seen, saving_since=None)
        elif line.kind is LineKind.SAVING and not _is_known(seen, line.at):
            if seen.saving_since is not None and line.at - seen.saving_since > PARTS_WITHIN:
                seen = _with_time(seen, seen.saving_since)  # another save: the training continued in between
            seen = replace(seen, saving_since=max(line.at, seen.saving_since or line.at))
        elif line.kind is LineKind.STAGED and not _is_known(seen, line.at):
            if seen.staged_at is not None and line.at - seen.staged_at > SAME_SAVE:
                seen = _with_time(seen, seen.staged_at)
            seen = replace(seen, staged_at=max(line.at, seen.staged_at or line.at))
    if is_going_on and begun is not None and seen.saving_since == begun:
        seen = replace(_with_time(seen, begun), saving_since=None)
    return _without_cut_off(seen, started_at)


def _without_cut_off(seen: CheckpointSeen, started_at: datetime | None) -> CheckpointSeen:
    """Return `seen` without saves that had started before `started_at` and were not complete."""
    if started_at is None:
        return seen
    is_cut_off = seen.saving_since is not None and seen.saving_since < started_at
    is_stale = seen.staged_at is not None and seen.staged_at < started_at
    if not is_cut_off and not is_stale:
        return seen
    return replace(
        seen,
        saving_since=None if is_cut_off else seen.saving_since,
        staged_at=None if is_stale else seen.staged_at,
    )


def _after(time: datetime | None, moment: datetime) -> datetime | None:
    return time if time is not None and time > moment else None


def _is_known(seen: CheckpointSeen, at: datetime) -> bool:
    """Return whether a save of that time, or a later one, is complete: its line came late, or again."""
    return seen.checkpointed_at is not None and at <= seen.checkpointed_at + SAME_SAVE


def _with_time(seen: CheckpointSeen, at: datetime) -> CheckpointSeen:
    """Return `seen` with one more complete checkpoint; of one save that several ranks tell, the last word counts."""
    times = [time for time in seen.times if abs(time - at) > SAME_SAVE]
    same = [time for time in seen.times if abs(time - at) <= SAME_SAVE]
    return replace(seen, times=tuple(sorted({*times, max([*same, at])}))[-TIMES_KEPT:])


def _remembered(seen: Mapping[JobId, CheckpointSeen], *, now: datetime) -> dict[JobId, CheckpointSeen]:
    newest = {job: _newest(each) for job, each in seen.items()}
    young = sorted((at, job) for job, at in newest.items() if at is not None and now - at <= REMEMBERED)
    return {job: seen[job] for _, job in young[-JOBS_AT_MOST:]}


def _newest(seen: CheckpointSeen) -> datetime | None:
    return max((at for at in (seen.checkpointed_at, seen.saving_since, seen.staged_at) if at is not None), default=None)
