"""Reads what Slurm's clients print: nodes and jobs as JSON, in the shapes of 22.05 to 25.11; settings as text. Pure.

JSON, because text cannot be trusted: `scontrol show job -o` prints the job's name unquoted, so a name with a newline
forges whole records of other jobs (seen with 22.05). What to ask for, and how, is `slurm`.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.domain.fencing_room import SchedulerLimits
from ops_pipelines.domain.identity import JobId, NodeName, parse_job_id, parse_node_name
from ops_pipelines.domain.observation import JobState, JobStatus, NodeState, NodeStatus, Rejected
from ops_pipelines.frames.host_list import expand_host_list
from ops_pipelines.ports.source_error import SourceNonsense, SourceUnavailable
from ops_pipelines.resources.job_comment import read_job_comment

_Row = Mapping[str, object]
"""One JSON object; nothing about its values is known yet."""

WAITING_TASKS_SUFFIX = "_waiting"
"""`30_waiting`: the tasks of array 30 that have not started, which Slurm keeps as one record. A bare 30 would be a
name for danger: sent back as a command it means *every* task, the running ones included."""

_UNSET_FROM = 0xFFFFFFFE
"""NO_VAL and INFINITE (32 and 64 bits) leak into numbers as this or more (25.11: cpu_load 4294967294)."""
_LEAST_TIME_LIMIT = timedelta(seconds=30)
"""Half of the shortest time limit that Slurm knows (1 minute): room for clocks that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAnswer:
    """What was said of nodes, and the rows that could not be believed."""

    nodes: tuple[NodeStatus, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job, with what commands and checkpoints need besides its status."""

    status: JobStatus
    leader: JobId
    """Whom to name in a command: the leader of a heterogeneous job, else the job itself."""
    is_waiting_array: bool
    """True for the tasks of an array that have not started: no command can name them alone."""
    checkpoint_path: str | None
    """What the comment declares; untrusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAnswer:
    """What was said of jobs, and the rows that could not be believed."""

    jobs: tuple[JobRow, ...]
    rejected: tuple[Rejected, ...]


def read_nodes_answer(text: str, *, source: str) -> NodesAnswer:
    """Return the nodes of `sinfo --json` (22.05) or `scontrol show nodes --json` (23.02 and later).

    Raises SourceUnavailable if the answer reports errors (22.05 prints no nodes and rc 0 when slurmctld is gone),
    SourceNonsense if it is not such an answer.
    """
    nodes: list[NodeStatus] = []
    rejected = _read_rows(text, key="nodes", source=source, take=lambda row: nodes.append(_read_node(row)))
    return NodesAnswer(nodes=tuple(nodes), rejected=rejected)


def read_jobs_answer(text: str, *, source: str, now: datetime) -> JobsAnswer:
    """Return the jobs of `squeue --json`; raise as `read_nodes_answer` does.

    `now` tells a requeued job, whose end lies ahead, from one that has ended.
    """
    jobs: list[JobRow] = []
    rejected = _read_rows(text, key="jobs", source=source, take=lambda row: jobs.append(_read_job(row, now=now)))
    return JobsAnswer(jobs=tuple(jobs), rejected=rejected)


def read_config_answer(text: str, *, source: str) -> SchedulerLimits:
    """Return the limits of `scontrol show config`: lines such as `SlurmdTimeout           = 300 sec`.

    Raises SourceNonsense if one of them is missing or is no number: no default is guessed.
    """
    settings: dict[str, str] = {}
    for line in text.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting:
            # Sections of plugins follow: the first of a name is Slurm's own.
            settings.setdefault(name.strip(), value.strip())

    def number(name: str) -> int:
        found = re.fullmatch(r"([0-9]+)(?: sec)?", settings.get(name, ""))
        if found is None:
            shown = settings.get(name, "nothing")[:80]
            raise SourceNonsense(f"{source} printed {shown!r} for {name}; expected a number. Run it by hand")
        return int(found[1])

    silence_limit = timedelta(seconds=number("SlurmdTimeout"))
    return SchedulerLimits(
        # At 0 slurmctld neither gives a node up nor pings one that has answered before.
        silence_limit=silence_limit or None,
        ping_interval=silence_limit / 3 or None,
        answer_limit=timedelta(seconds=number("MessageTimeout")),
        is_every_down_node_returned=number("ReturnToService") == 2,
        is_requeue_the_default=number("JobRequeue") != 0,
    )


# -- answers and rows --


def _read_rows(text: str, *, key: str, source: str, take: Callable[[_Row], None]) -> tuple[Rejected, ...]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise SourceNonsense(f"{source} printed no JSON ({exc}): {text[:120]!r}; run it by hand") from exc
    if not isinstance(answer, dict):
        raise SourceNonsense(f"{source} printed {type(answer).__name__}; expected an object with {key!r}")
    if answer.get("errors"):
        raise SourceUnavailable(f"{source} reports {json.dumps(answer['errors'])[:300]}; check slurmctld and munge")
    rows = answer.get(key)
    if not isinstance(rows, list):
        raise SourceNonsense(f"{source} printed no list {key!r}; expected one in 22.05 to 25.11. Run it by hand")
    rejected: list[Rejected] = []
    for position, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise ValueError(f"it is {type(row).__name__}; expected an object")
            take(row)
        except ValueError as exc:
            raw = json.dumps(row, default=str)[:500]
            rejected.append(Rejected(source=source, position=f"{key}[{position}]", reason=str(exc), text=raw))
    return tuple(rejected)


def _read_node(row: _Row) -> NodeStatus:
    names = _names(row, "state") | _names(row, "state_flags", is_required=False)
    return NodeStatus(
        node=parse_node_name(_text(row, "name")),
        state=next((state for name, state in _NODE_STATES.items() if name in names), NodeState.UNKNOWN),
        # FAIL is DRAIN by another name: no new work until it is taken back.
        is_drained=not names.isdisjoint({"DRAIN", "FAIL"}),
        is_responding=names.isdisjoint({"NOT_RESPONDING", "NO_RESPOND"}),
        reason=_text(row, "reason", is_required=False) or None,
        reason_set_at=_time(row, "reason_changed_at"),
        booted_at=_time(row, "boot_time"),
        gpu_count=_count_gpus(_text(row, "gres", is_required=False)),
        gpu_in_use_count=_gpus_in_use(row),
    )


def _gpus_in_use(row: _Row) -> int:
    """Return how many GPUs are in use by jobs.

    22.05 goes on counting those of a silent node that it gave up by itself (seen: 16 of 8). No job is without a CPU,
    so where none is allocated no GPU is.
    """
    return 0 if row.get("alloc_cpus") == 0 else _count_gpus(_text(row, "gres_used", is_required=False))


_NODE_STATES = {
    "DOWN": NodeState.DOWN,
    "ALLOCATED": NodeState.ALLOCATED,
    "MIXED": NodeState.MIXED,
    "IDLE": NodeState.IDLE,
}


def _read_job(row: _Row, *, now: datetime) -> JobRow:
    names = _names(row, "job_state")
    state = _job_state(names)
    started_at, ended_at = _time(row, "start_time"), _time(row, "end_time")
    nodes = _nodes(_text(row, "nodes", is_required=False))
    # While the processes of a requeued attempt end, 22.05 says COMPLETING and nothing else; later versions add PENDING.
    # Its start is then the time of the requeue and its end lies a whole time limit ahead.
    is_requeued = state is JobState.COMPLETING and (
        not names.isdisjoint(_WAITING_NAMES) or (ended_at is not None and ended_at - now >= _LEAST_TIME_LIMIT)
    )
    has_started = state in _STARTED and not is_requeued and bool(nodes)
    has_ended = state in _ENDED or (state is JobState.COMPLETING and not is_requeued)
    comment = read_job_comment(_text(row, "comment", is_required=False), now=now)
    job, leader, is_waiting_array = _job_ids(row)
    status = JobStatus(
        job=job,
        state=state,
        is_held=not has_ended and _is_held(row, is_waiting=state is JobState.PENDING or is_requeued),
        is_requeueable=row.get("requeue") is True,
        name=_text(row, "name", is_required=False),
        user=_text(row, "user_name", is_required=False) or f"uid {_number(row, 'user_id')}",
        account=_text(row, "account", is_required=False),
        workload=comment.workload,
        nodes=frozenset() if state is JobState.PENDING else nodes,
        gpu_count=_count_job_gpus(row),
        started_at=started_at if has_started else None,
        ended_at=ended_at if has_ended else None,
        restart_count=_number(row, "restart_cnt") or 0,
        excluded_nodes=_excluded(row),
        checkpointed_at=comment.checkpointed_at,
    )
    return JobRow(
        status=status, leader=leader, is_waiting_array=is_waiting_array, checkpoint_path=comment.checkpoint_path
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
_STARTED = frozenset(JobState) - {JobState.PENDING, JobState.UNKNOWN}


def _job_state(names: frozenset[str]) -> JobState:
    return next((state for name, state in _JOB_STATES.items() if name in names), JobState.UNKNOWN)


def _job_ids(row: _Row) -> tuple[JobId, JobId, bool]:
    """Return the job's id, the id to command it by, and whether it stands for an array's waiting tasks."""
    number = _number(row, "job_id")
    if not number:
        raise ValueError(f"job_id is {row.get('job_id')!r}; expected a number above 0")
    array = _number(row, "array_job_id")
    if array:
        task = _number(row, "array_task_id")
        if task is None:
            waiting = parse_job_id(f"{array}{WAITING_TASKS_SUFFIX}")
            return waiting, waiting, True
        one = parse_job_id(f"{array}_{task}")
        return one, one, False
    return parse_job_id(str(number)), parse_job_id(str(_number(row, "het_job_id") or number)), False


def _is_held(row: _Row, *, is_waiting: bool) -> bool:
    """Return whether a job that has not ended is held: by its reason, or by priority 0.

    A suspended job has priority 0 without a hold. `scontrol hold` of a running job marks it, and it runs on.
    """
    if _text(row, "state_reason", is_required=False) in {"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"}:
        return True
    return is_waiting and _number(row, "priority") == 0


def _excluded(row: _Row) -> frozenset[NodeName]:
    value = row.get("excluded_nodes")
    lists = value if isinstance(value, list) else [value or ""]
    return frozenset(node for text in lists for node in _nodes(str(text)))


def _nodes(host_list: str) -> frozenset[NodeName]:
    """Return the nodes of a host list; none for an empty one, as a pending job has it."""
    return frozenset(expand_host_list(host_list)) if host_list else frozenset()


# -- GPUs --


def _count_gpus(gres: str) -> int:
    """Return the GPUs of `gpu:h100:8(S:0-1),gpu:a100:2(IDX:0,1),mps:100`."""
    total = 0
    for part in re.split(r",(?![^(]*\))", gres):
        match = re.fullmatch(r"gpu(?::[^:()]+)?:(\d+)(?:\(.*\))?", part)
        if match:
            total += int(match[1])
    return total


def _count_job_gpus(row: _Row) -> int:
    """Return a job's GPUs: allocated, else asked for. Typed TRES repeat the plain one, where that is accounted."""
    tres = _text(row, "tres_alloc_str", is_required=False) or _text(row, "tres_req_str", is_required=False)
    counts = {name: int(count) for name, count in re.findall(r"(?:^|,)gres/(gpu(?::[^=,]+)?)=(\d+)", tres)}
    if counts:
        return counts.get("gpu") or sum(counts.values())
    details = row.get("gres_detail")
    return sum(_count_gpus(str(detail)) for detail in details) if isinstance(details, list) else 0


# -- values --


def _text(row: _Row, key: str, *, is_required: bool = True) -> str:
    value = row.get(key)
    if value is None and not is_required:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}; expected text")
    return value


def _names(row: _Row, key: str, *, is_required: bool = True) -> frozenset[str]:
    """Return state names in upper case: one text (22.05: state beside flags) or a list of both (23.02 and later)."""
    value = row.get(key)
    words = [value] if isinstance(value, str) else value
    if words is None and not is_required:
        return frozenset()
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or (is_required and not words):
        raise ValueError(f"{key} is {value!r}; expected a state or a list of them")
    return frozenset(word.upper() for word in words)


def _number(row: _Row, key: str) -> int | None:
    """Return a whole number; None if it is absent, unset, infinite or a leaked NO_VAL."""
    value = row.get(key)
    if isinstance(value, dict):
        if value.get("infinite") or not value.get("set"):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} is {value!r}; expected a number")
    if not math.isfinite(value) or value >= _UNSET_FROM:
        return None
    return int(value)


def _time(row: _Row, key: str) -> datetime | None:
    """Return a point in time; None if it is unset (0)."""
    seconds = _number(row, key)
    if not seconds:
        return None
    if seconds < 0:
        raise ValueError(f"{key} is {seconds}; expected seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC)
