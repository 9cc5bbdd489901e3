"""Jobs as Slurm reports them: `squeue --json` in the shapes of 22.05 to 25.11, comments, and declared checkpoint files.

Here: one row of a job, the components of a heterogeneous job joined into one, what a job says of itself in its comment,
and when its checkpoint files last changed. Not here: what is done to a job (`scheduler`) and past attempts
(`client`).

An array task is named by array and task (`30_1`): that stays over a requeue, while its own number changes with every
squeue and the array's number means all tasks.

The components of a heterogeneous job (`40+0`, `40+1`) are one job, because Slurm requeues and releases them through the
leader alone, and starts none without the others. Kept apart they would be a trap: who fences the nodes of one component
and releases the job starts a second copy of the others. Only exclusions are kept per component. Measured on 22.05.8.

Users write comments, so nothing in them is believed beyond its form; whatever has no such form means "not reported":

    {"workload": "training", "checkpointed_at": "2026-11-21T07:00:00Z", "ckpt": "/ckpt/run7/last", "ckpt_every": 1800}
    workload=training ckpt=/ckpt/run7/last ckpt_every=1800
    workload=inference service=chat min_serving=3 ckpt=none

Checkpoint files are looked at only beneath roots that the operator named, in a thread of its own that is given up after
a limit: a file system hangs when its server does. Reading answers and comments is pure.
"""

import json
import math
import re
import stat
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops_pipelines.core.identity import JobId, NodeName, parse_job_id
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, Rejected, Workload
from ops_pipelines.resources.slurm.answers import (
    Row,
    count_job_gpus,
    names_of,
    nodes_of,
    number_of,
    read_rows,
    text_of,
    time_of,
)

# -- what a job says of itself in its comment --


_COMMENT_MAX_LENGTH = 4096
"""Longer comments are not read. Assumption: what we ask for fits ten times over."""
_NO_CHECKPOINT = "none"
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MIN_SERVING_MAX = 100_000
_EVERY_MIN_SECONDS, _EVERY_MAX_SECONDS = 10, 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class JobComment:
    """What a job says of itself. UNKNOWN, None, 0 and empty: it says nothing, or nothing that makes sense."""

    workload: Workload = Workload.UNKNOWN
    checkpointed_at: datetime | None = None
    checkpoint_path: str | None = None
    """Absolute; whether it may be looked at is for the caller."""
    checkpointing: Checkpointing = Checkpointing.UNKNOWN
    """YES if it says when one was made, NO if it says `ckpt=none`. A path alone is a promise."""
    checkpoint_every: timedelta | None = None
    service: str = ""
    min_serving_count: int = 0


def read_job_comment(comment: str, *, now: datetime) -> JobComment:
    """Return what `comment` says; never raises. A checkpoint in the future or in local time is not believed."""
    if len(comment) > _COMMENT_MAX_LENGTH:
        return JobComment()
    said = _object(comment) if comment.lstrip().startswith("{") else _words(comment)
    checkpointed_at = _past_time(said.get("checkpointed_at"), now=now)
    every = _whole_number(said.get("ckpt_every"), least=_EVERY_MIN_SECONDS, most=_EVERY_MAX_SECONDS)
    return JobComment(
        workload=_workload(said.get("workload")),
        checkpointed_at=checkpointed_at,
        checkpoint_path=_absolute_path(said.get("ckpt")),
        checkpointing=_checkpointing(said.get("ckpt"), checkpointed_at=checkpointed_at),
        checkpoint_every=None if every is None else timedelta(seconds=every),
        service=_service(said.get("service")),
        min_serving_count=_whole_number(said.get("min_serving"), least=0, most=_MIN_SERVING_MAX) or 0,
    )


def _object(comment: str) -> Mapping[str, object]:
    try:
        said = json.loads(comment)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _words(comment: str) -> Mapping[str, object]:
    return {key: value for key, equals, value in (word.partition("=") for word in comment.split()) if equals}


def _workload(value: object) -> Workload:
    try:
        return Workload(value.strip().lower()) if isinstance(value, str) else Workload.UNKNOWN
    except ValueError:
        return Workload.UNKNOWN


def _past_time(value: object, *, now: datetime) -> datetime | None:
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            time = datetime.fromtimestamp(value, UTC) if math.isfinite(value) and value > 0 else None
        elif isinstance(value, str):
            time = datetime.fromisoformat(value)
        else:
            return None
        if time is None or time.tzinfo is None or time > now:
            return None
        return time.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _absolute_path(value: object) -> str | None:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        return None
    return value


def _checkpointing(value: object, *, checkpointed_at: datetime | None) -> Checkpointing:
    if checkpointed_at is not None:
        return Checkpointing.YES
    is_none = isinstance(value, str) and value.strip().lower() == _NO_CHECKPOINT
    return Checkpointing.NO if is_none else Checkpointing.UNKNOWN


def _whole_number(value: object, *, least: int, most: int) -> int | None:
    """Return a whole number within bounds, from a number or its digits; None for all else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(most)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


def _service(value: object) -> str:
    return value if isinstance(value, str) and _SERVICE.fullmatch(value) else ""


# -- when its checkpoints were last written --


class CheckpointFiles:
    """Reads modification times, at most one look at a time. No roots: nothing is ever looked at."""

    def __init__(self, roots: Collection[Path]) -> None:
        self._roots = tuple(root.resolve() for root in roots)
        self._looking = threading.Lock()
        self._seen: frozenset[str] = frozenset()

    def was_seen(self, path: str | None) -> bool:
        """Return whether a look since this program began found the file, also if the last one did not.

        Kept for paths that are still asked for: a name that no job declares any more is forgotten.
        """
        return path in self._seen

    def read_times(self, paths: Collection[str], *, timeout_seconds: float) -> Mapping[str, datetime]:
        """Return path -> time of its last change, for the regular files whose resolved path lies beneath a root.

        Incomplete if the limit passes, empty while an earlier look still hangs: unknown is not never.
        """
        if not self._roots or not paths or not self._looking.acquire(blocking=False):
            return {}
        found: dict[str, datetime] = {}
        thread = threading.Thread(target=self._look, args=(tuple(paths), found), daemon=True)
        thread.start()
        thread.join(timeout_seconds)
        return dict(found)

    def _look(self, paths: Collection[str], found: dict[str, datetime]) -> None:
        try:
            for path in paths:
                changed_at = self._changed_at(path)
                if changed_at is not None:
                    found[path] = changed_at
                    self._seen |= {path}
            self._seen &= frozenset(paths)
        finally:
            self._looking.release()

    def _changed_at(self, path: str) -> datetime | None:
        try:
            resolved = Path(path).resolve(strict=True)
            if not any(resolved.is_relative_to(root) for root in self._roots):
                return None
            status = resolved.lstat()
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            return None
        return parse_change_time(status.st_mtime) if stat.S_ISREG(status.st_mode) else None


def parse_change_time(seconds: float) -> datetime | None:
    """Return a file's time of change; None for one that no calendar has: its owner sets it to whatever he likes."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


# -- the components of a heterogeneous job --


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """What Slurm keeps a record of: the whole job, or one component of a heterogeneous one."""

    job: JobId
    excluded_nodes: frozenset[NodeName]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job, with what commands and checkpoints need besides its status."""

    status: JobStatus
    leader: JobId
    """Whom to name in a command: the leader of a heterogeneous job, else the job itself."""
    components: tuple[Component, ...]
    """At least one; exclusions are set on each."""
    is_waiting_array: bool
    """True for the tasks of an array that have not started: no command can name them alone."""
    checkpoint_path: str | None
    """What the comment declares; untrusted."""

    @property
    def ids(self) -> frozenset[JobId]:
        """Every id by which somebody may name the job."""
        return frozenset({self.status.job, *(component.job for component in self.components)})


def join_components(rows: Sequence[JobRow]) -> tuple[JobRow, ...]:
    """Return one row a job, under the id of its leader, in the order in which the leaders were first named."""
    by_leader: dict[JobId, list[JobRow]] = {}
    for row in rows:
        by_leader.setdefault(row.leader, []).append(row)
    return tuple(_join(leader, parts) for leader, parts in by_leader.items())


def _join(leader: JobId, parts: Sequence[JobRow]) -> JobRow:
    if len(parts) == 1 and parts[0].status.job == leader:
        return parts[0]
    # The leader is the first of its components: what users say once (name, comment) they say there.
    first, *_ = ordered = sorted(
        parts, key=lambda part: (part.status.job != leader, len(part.status.job), part.status.job)
    )
    all_of = [part.status for part in ordered]
    living = [status for status in all_of if status.ended_at is None]
    has_ended = not living
    return replace(
        first,
        status=replace(
            first.status,
            job=leader,
            state=min((status.state for status in living or all_of), key=_TELLING.index),
            # Slurm starts it only when no component is held, but one hold of a user's keeps nothing after his release.
            is_held=not has_ended and all(status.is_held for status in living),
            is_held_by_user=any(status.is_held_by_user for status in living),
            is_requeueable=all(status.is_requeueable for status in all_of),
            nodes=frozenset[NodeName]().union(*(status.nodes for status in all_of)),
            gpu_count=sum(status.gpu_count for status in all_of),
            started_at=min((status.started_at for status in all_of if status.started_at is not None), default=None),
            ended_at=max((status.ended_at for status in all_of if status.ended_at), default=None)
            if has_ended
            else None,
            restart_count=max(status.restart_count for status in all_of),
            excluded_nodes=frozenset.intersection(*(status.excluded_nodes for status in all_of)),
            ends_by=min((status.ends_by for status in all_of if status.ends_by is not None), default=None),
        ),
        leader=leader,
        components=tuple(component for part in ordered for component in part.components),
        is_waiting_array=False,
    )


_TELLING = (
    JobState.UNKNOWN,
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
    JobState.PENDING,
    *(
        state
        for state in JobState
        if state
        not in {
            JobState.UNKNOWN,
            JobState.RUNNING,
            JobState.SUSPENDED,
            JobState.COMPLETING,
            JobState.PENDING,
            JobState.COMPLETED,
        }
    ),
    JobState.COMPLETED,
)
"""Of the states of the components that live (else of all), the first here is the job's: a job has processes as long
as one component has, and has completed only if every component has."""


# -- the answer of squeue --


WAITING_TASKS_SUFFIX = "_waiting"
"""`30_waiting`: the tasks of array 30 that have not started, which Slurm keeps as one record. A bare 30 would be a
name for danger: sent back as a command it means *every* task, the running ones included."""

_LEAST_TIME_LIMIT = timedelta(seconds=30)
"""Half of the shortest time limit that Slurm knows (1 minute): room for clocks that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAnswer:
    """What was stated of jobs, and the rows that could not be believed."""

    jobs: tuple[JobRow, ...]
    rejected: tuple[Rejected, ...]


def read_jobs_answer(text: str, *, source: str, now: datetime) -> JobsAnswer:
    """Return the jobs of `squeue --json`, a heterogeneous one as one; raise as `read_nodes_answer` does.

    `now` distinguishes a requeued job, whose end lies ahead, from one that has ended.
    """
    jobs: list[JobRow] = []
    rejected = read_rows(text, key="jobs", source=source, take=lambda row: jobs.append(_read_job(row, now=now)))
    return JobsAnswer(jobs=join_components(jobs), rejected=rejected)


def _read_job(row: Row, *, now: datetime) -> JobRow:
    names = names_of(row, "job_state")
    state = _job_state(names)
    started_at, ended_at = time_of(row, "start_time"), time_of(row, "end_time")
    nodes = nodes_of(text_of(row, "nodes", is_required=False))
    # While the processes of a requeued attempt end, 22.05 says COMPLETING and nothing else; later versions add PENDING.
    # Its start is then the time of the requeue and its end lies a whole time limit ahead.
    is_requeued = state is JobState.COMPLETING and (
        not names.isdisjoint(_WAITING_NAMES) or (ended_at is not None and ended_at - now >= _LEAST_TIME_LIMIT)
    )
    has_started = state in _STARTED and not is_requeued and bool(nodes)
    has_ended = state in _ENDED or (state is JobState.COMPLETING and not is_requeued)
    comment = read_job_comment(text_of(row, "comment", is_required=False), now=now)
    job, leader, is_waiting_array = _job_ids(row)
    status = JobStatus(
        job=job,
        state=state,
        is_held=not has_ended and _is_held(row, is_waiting=state is JobState.PENDING or is_requeued),
        is_requeueable=row.get("requeue") is True,
        name=text_of(row, "name", is_required=False),
        user=text_of(row, "user_name", is_required=False) or f"uid {number_of(row, 'user_id')}",
        account=text_of(row, "account", is_required=False),
        workload=comment.workload,
        nodes=frozenset() if state is JobState.PENDING else nodes,
        gpu_count=count_job_gpus(row),
        started_at=started_at if has_started else None,
        ended_at=ended_at if has_ended else None,
        restart_count=number_of(row, "restart_cnt") or 0,
        excluded_nodes=_excluded(row),
        checkpointed_at=comment.checkpointed_at,
        checkpointing=comment.checkpointing,
        checkpoint_every=comment.checkpoint_every,
        partition=text_of(row, "partition", is_required=False),
        # Without a limit Slurm plans an end in a year.
        ends_by=ended_at if state in _LIMITED and number_of(row, "time_limit") is not None else None,
        service=comment.service,
        min_serving_count=comment.min_serving_count,
        priority=number_of(row, "priority") or None,  # 0 is how a hold shows.
        is_held_by_user=text_of(row, "state_reason", is_required=False) == "JobHeldUser",
        checkpoint=comment.checkpoint_path or "",
    )
    return JobRow(
        status=status,
        leader=leader,
        components=(Component(job=job, excluded_nodes=status.excluded_nodes),),
        is_waiting_array=is_waiting_array,
        checkpoint_path=comment.checkpoint_path,
    )


_WAITING_NAMES = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_JOB_STATES = {
    # A flag that says more than the base state comes first: ["PENDING", "COMPLETING"], ["CANCELLED", "COMPLETING"].
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    **dict.fromkeys(sorted(_WAITING_NAMES), JobState.PENDING),
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "NODE_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}
"""Source: the states of squeue(1), 22.05 to 25.11."""
_ENDED = frozenset(JobState) - {
    JobState.PENDING,
    JobState.RUNNING,
    JobState.COMPLETING,
    JobState.SUSPENDED,
    JobState.UNKNOWN,
}
_LIMITED = frozenset({JobState.RUNNING, JobState.SUSPENDED})
"""States in which the planned end is the end of the time limit; in all others it is a guess, or in the past."""
_STARTED = frozenset(JobState) - {JobState.PENDING, JobState.UNKNOWN}


def _job_state(names: frozenset[str]) -> JobState:
    return next((state for name, state in _JOB_STATES.items() if name in names), JobState.UNKNOWN)


def _job_ids(row: Row) -> tuple[JobId, JobId, bool]:
    """Return the job's id, the id to command it by, and whether it represents an array's waiting tasks."""
    number = number_of(row, "job_id")
    if not number:
        raise ValueError(f"job_id is {row.get('job_id')!r}; expected a number above 0")
    array = number_of(row, "array_job_id")
    if array:
        task = number_of(row, "array_task_id")
        if task is None:
            waiting = parse_job_id(f"{array}{WAITING_TASKS_SUFFIX}")
            return waiting, waiting, True
        one = parse_job_id(f"{array}_{task}")
        return one, one, False
    return parse_job_id(str(number)), parse_job_id(str(number_of(row, "het_job_id") or number)), False


def _is_held(row: Row, *, is_waiting: bool) -> bool:
    """Return whether a job that has not ended is held: by its reason, or by priority 0.

    A suspended job has priority 0 without a hold. `scontrol hold` of a running job marks it, and it runs on.
    """
    if text_of(row, "state_reason", is_required=False) in {"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"}:
        return True
    return is_waiting and number_of(row, "priority") == 0


def _excluded(row: Row) -> frozenset[NodeName]:
    value = row.get("excluded_nodes")
    lists = value if isinstance(value, list) else [value or ""]
    return frozenset(node for text in lists for node in nodes_of(str(text)))
