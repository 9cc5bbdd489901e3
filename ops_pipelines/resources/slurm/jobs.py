"""Reads the jobs that `squeue --json` prints, in the shapes of 22.05 to 25.11. Pure.

An array task is named by array and task (`30_1`): that stays over a requeue, while its own number is another one in
every squeue and the array's number means all tasks. Components of a heterogeneous job are joined by `job_rows`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ops_pipelines.core.identity import JobId, NodeName, parse_job_id
from ops_pipelines.core.observation import JobState, JobStatus, Rejected
from ops_pipelines.resources.slurm.answers import read_rows
from ops_pipelines.resources.slurm.job_comment import read_job_comment
from ops_pipelines.resources.slurm.job_rows import Component, JobRow, join_components
from ops_pipelines.resources.slurm.values import Row, count_job_gpus, names_of, nodes_of, number_of, text_of, time_of

WAITING_TASKS_SUFFIX = "_waiting"
"""`30_waiting`: the tasks of array 30 that have not started, which Slurm keeps as one record. A bare 30 would be a
name for danger: sent back as a command it means *every* task, the running ones included."""

_LEAST_TIME_LIMIT = timedelta(seconds=30)
"""Half of the shortest time limit that Slurm knows (1 minute): room for clocks that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAnswer:
    """What was said of jobs, and the rows that could not be believed."""

    jobs: tuple[JobRow, ...]
    rejected: tuple[Rejected, ...]


def read_jobs_answer(text: str, *, source: str, now: datetime) -> JobsAnswer:
    """Return the jobs of `squeue --json`, a heterogeneous one as one; raise as `read_nodes_answer` does.

    `now` tells a requeued job, whose end lies ahead, from one that has ended.
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
    """Return the job's id, the id to command it by, and whether it stands for an array's waiting tasks."""
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
