"""One job as the scheduler tells of it now (squeue, scontrol show job, their JSON) -> a row of `job_accounting`.

What stands as the start of a waiting job and as the end of a running one is a forecast: neither is kept.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from ops_pipelines.frames.formats import slurm_json as read
from ops_pipelines.frames.formats import slurm_states as states
from ops_pipelines.frames.formats import slurm_values as values
from ops_pipelines.frames.formats.reading import Cell, Unbelievable
from ops_pipelines.frames.formats.sacct_json import job_of

Cells = Mapping[str, str]
"""Names as squeue heads its columns -> what stands there."""

FROM_SCONTROL: Mapping[str, str] = {
    "JobId": "JOBID",
    "ArrayJobId": "ARRAY_JOB_ID",
    "ArrayTaskId": "ARRAY_TASK_ID",
    "HetJobId": "HET_JOB_ID",
    "HetJobOffset": "HET_JOB_OFFSET",
    "JobName": "NAME",
    "UserId": "USER",
    "Account": "ACCOUNT",
    "QOS": "QOS",
    "Partition": "PARTITION",
    "JobState": "STATE",
    "Reason": "REASON",
    "Restarts": "RESTARTS",
    "ExitCode": "EXIT_CODE",
    "RunTime": "TIME",
    "TimeLimit": "TIME_LIMIT",
    "SubmitTime": "SUBMIT_TIME",
    "EligibleTime": "ELIGIBLE_TIME",
    "StartTime": "START_TIME",
    "EndTime": "END_TIME",
    "NodeList": "NODELIST",
    "NumNodes": "NODES",
    "NumCPUs": "CPUS",
    "TRES": "TRES_ALLOC",
    "AllocTRES": "TRES_ALLOC",
    "ReqTRES": "TRES_REQ",
    "TresPerNode": "TRES_PER_NODE",
    "WorkDir": "WORK_DIR",
    "Comment": "COMMENT",
}
"""Key of `scontrol show job` -> squeue's name for the same."""


def job_row(cells: Cells, *, source: str, at: datetime) -> dict[str, Cell]:
    """Return one job of text. Raises Unbelievable."""
    state, _ = states.read_state(cells.get("STATE") or cells.get("ST") or "")
    tres = values.read_tres(cells.get("TRES_ALLOC", "")) or values.read_tres(cells.get("TRES_REQ", ""))
    nodes = values.read_count(cells.get("NODES", ""))
    exits = states.read_exit_code(cells.get("EXIT_CODE", ""))
    place, reason = _place_and_reason(cells, state)
    per_node = values.gpus_of_gres(cells.get("TRES_PER_NODE", "") or cells.get("GRES", ""))
    job, raw = _ids(cells)
    return _row(
        {
            "job": job,
            "job_raw": raw,
            "name": values.read_label(cells.get("NAME", "")),
            "user": _user(cells.get("USER", "")),
            "account": values.read_label(cells.get("ACCOUNT", "")),
            "partition": values.read_label(cells.get("PARTITION", "")),
            "qos": values.read_label(cells.get("QOS", "")),
            "state": state,
            "reason": reason,
            "elapsed_seconds": values.read_duration(cells.get("TIME", "")),
            "time_limit_seconds": values.read_minutes(cells.get("TIME_LIMIT", "") or cells.get("TIMELIMIT", "")),
            "node_count": nodes,
            "cpu_count": values.read_count(cells.get("CPUS", "")),
            "gpu_count": values.gpus_of_tres(tres) if tres else values.times(per_node, nodes),
            "memory_bytes": (values.read_bytes(tres["mem"], unit="M") or None) if "mem" in tres else None,
            "nodes": place,
            "workdir": values.read_label(cells.get("WORK_DIR", "")),
            "comment": values.read_label(cells.get("COMMENT", "")),
            "restart_count": values.read_count(cells.get("RESTARTS", "")),
            "exit_code": None if exits is None else exits[0],
            "exit_signal": None if exits is None else exits[1],
        },
        submitted=values.read_time(cells.get("SUBMIT_TIME", "")),
        eligible=values.read_time(cells.get("ELIGIBLE_TIME", "")),
        started=values.read_time(cells.get("START_TIME", "")),
        ended=values.read_time(cells.get("END_TIME", "")),
        source=source,
        at=at,
    )


def json_job_row(row: read.Row, *, source: str, at: datetime) -> dict[str, Cell]:
    """Return one job of `squeue --json`, `scontrol show job --json` or slurm/jobs. Raises Unbelievable."""
    words = read.names(row, "job_state")
    # Later versions append flags to the base state: ["PENDING", "REQUEUED"].
    state, _ = states.read_state(words[0] if words else "")
    tres = values.read_tres(read.label(row, "tres_alloc_str") or read.label(row, "tres_req_str") or "")
    exits = read.exit_of(row, "exit_code", is_wait_status=True)
    limit = read.number(row, "time_limit")
    nodes = read.whole(row, "node_count")
    has_ended = state in states.ENDED
    return _row(
        {
            "job": job_of(row),
            "job_raw": str(read.whole(row, "job_id")),
            "cluster": read.label(row, "cluster"),
            "name": read.label(row, "name"),
            "user": read.label(row, "user_name", "user_id"),
            "account": read.label(row, "account"),
            "partition": read.label(row, "partition"),
            "qos": read.label(row, "qos"),
            "state": state,
            "reason": read.label(row, "state_reason"),
            "time_limit_seconds": None if not limit else limit * 60,
            "node_count": nodes,
            "cpu_count": read.whole(row, "cpus"),
            "gpu_count": values.gpus_of_tres(tres)
            if tres
            else values.times(values.gpus_of_gres(read.label(row, "tres_per_node") or ""), nodes),
            "memory_bytes": (values.read_bytes(tres["mem"], unit="M") or None) if "mem" in tres else None,
            "nodes": read.label(row, "nodes"),
            "workdir": read.label(row, "current_working_directory"),
            "comment": read.label(row, "comment"),
            "restart_count": read.whole(row, "restart_cnt"),
            "exit_code": exits[0] if exits and has_ended else None,
            "exit_signal": exits[1] if exits and has_ended else None,
        },
        submitted=read.time(row, "submit_time"),
        eligible=read.time(row, "eligible_time"),
        started=read.time(row, "start_time"),
        ended=read.time(row, "end_time"),
        source=source,
        at=at,
    )


def _row(
    cells: dict[str, Cell],
    *,
    submitted: int | None,
    eligible: int | None,
    started: int | None,
    ended: int | None,
    source: str,
    at: datetime,
) -> dict[str, Cell]:
    state = str(cells["state"])
    is_waiting, is_over = state in states.WAITING, state in states.ENDED
    begun = None if is_waiting else started
    over = ended if is_over else None
    if begun is not None and over is not None and over < begun:
        raise Unbelievable("ends_before_it_starts", f"{values.iso_of(begun)} and {values.iso_of(over)}")
    start = values.iso_of(begun) if begun is not None else "unknown"
    attempt = "unstarted" if is_waiting else start
    moment = next((each for each in (over, begun, submitted) if each is not None), None)
    return cells | {
        "attempt": attempt,
        "time": at if moment is None else _aware(moment),
        "submitted_at": _aware(submitted),
        "eligible_at": _aware(eligible),
        "started_at": _aware(begun),
        "ended_at": _aware(over),
        "source": source,
    }


def _aware(microseconds: int | None) -> datetime | None:
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)


def _user(text: str) -> str | None:
    """Return `root` of `root(0)`."""
    found = values.read_label(text)
    return found.partition("(")[0] or found if found else None


def _ids(cells: Cells) -> tuple[str, str | None]:
    job, step = values.read_job_id(cells.get("JOBID", ""))
    if step is not None:
        raise Unbelievable("bad_job_id", f"{values.shown(cells['JOBID'])}; expected a job, found a step")
    raw = cells.get("JOBID_RAW") or (job if job.isdecimal() else None)
    array, task = cells.get("ARRAY_JOB_ID", ""), cells.get("ARRAY_TASK_ID", "")
    if "_" not in job and array.isdecimal() and not values.is_nothing(task):
        job = f"{array}_{task}" if task.isdecimal() else f"{array}_[{task.strip('[]')}]"
    het, offset = cells.get("HET_JOB_ID", ""), cells.get("HET_JOB_OFFSET", "")
    if het.isdecimal() and int(het) and offset.isdecimal():
        job = f"{het}+{offset}"
    return values.read_job_id(job)[0], raw


def _place_and_reason(cells: Cells, state: str) -> tuple[str | None, str | None]:
    """Return nodes and reason. The last column of squeue holds the nodes, or the reason in brackets."""
    mixed = cells.get("NODELIST(REASON)")
    if mixed is None:
        return values.read_label(cells.get("NODELIST", "")), values.read_label(cells.get("REASON", ""))
    if mixed.startswith("(") and mixed.endswith(")"):
        return None, values.read_label(mixed[1:-1])
    return values.read_label(mixed), None
