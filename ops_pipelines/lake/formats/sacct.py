"""Accounting of jobs as files give it: text, JSON and REST answers, 21.08 to 25.11.

Record: one row after the header, in JSON one job. Jobs become attempts in `job_accounting`, steps go to `job_steps`.
Times without a zone are taken as UTC. What cells mean is `formats.slurm_values`, how rows are parted is
`formats.slurm_rows`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from ops_pipelines.lake.formats import slurm_json as read
from ops_pipelines.lake.formats import slurm_json as states
from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Unbelievable, decode
from ops_pipelines.lake.formats.sacct_tables import Attempts, Columns, assemble, without_unreal_starts
from ops_pipelines.lake.formats.slurm_json import looks_like_json
from ops_pipelines.lake.formats.slurm_rows import Rows, Shape, read_rows, read_shape
from ops_pipelines.lake.quantities import Parsed, Refused, WrongKind, readable

# -- `sacct --json` and the REST answer slurmdb/jobs --


_MIB = 2**20
_FIRST_VERSION_WITH_EXIT_CODES = (22, 5, 99)
"""22.05 calls every exit a success (`return_code` 0 of `exit 3`)."""


def is_accounting_json(answer: read.SlurmReply) -> bool:
    """Return whether an answer's jobs are those of sacct: squeue's have `job_state`, and no `time`."""
    first = next((row for row in answer.records if isinstance(row, dict)), None)
    return answer.key == "jobs" and (first is None or isinstance(first.get("time"), dict) or "job_state" not in first)


def parse_json(text: str, *, source: str, at: datetime) -> Parsed:
    """Return the attempts and steps of an answer. Raises WrongKind if it is none of sacct."""
    answer = read.read_answer(text)
    if answer is None or not is_accounting_json(answer):
        found = "no answer of Slurm" if answer is None else f"Slurm's {answer.key} with {len(answer.records)} records"
        raise WrongKind(f"{source}: found {found}; expected sacct --json: an object with a list `jobs`")
    if not answer.records and answer.errors:
        raise WrongKind(f"{source}: found no jobs, and errors: {readable(json.dumps(answer.errors))[:300]}")
    return parse_answer(answer, source=source, at=at)


def parse_answer(answer: read.SlurmReply, *, source: str, at: datetime) -> Parsed:
    """Return the attempts and steps of an answer whose jobs are those of sacct."""
    rows = [_job(record, version=answer.version) for record in answer.records]
    cut = []
    if answer.broken is not None:
        record = f"jobs[{len(answer.records)}]"
        cut.append(Refused(record=record, reason="broken_json", detail=answer.broken, text=readable(answer.rest)))
    good: list[dict[str, object]] = [{} if isinstance(row, Unbelievable) else row for row in rows]
    moment = values.as_microseconds(at)

    def hangers(index: int) -> Sequence[dict[str, object]]:
        record = answer.records[index]
        return _steps(record, source=source, moment=moment) if isinstance(record, dict) else ()

    def column(name: str) -> list[object]:
        return [row.get(name) for row in good]

    words: list[str | None] = column("state")  # type: ignore[assignment]  # `_values` gives each its type
    starts: list[int | None] = column("started_at")  # type: ignore[assignment]
    ends: list[int | None] = column("ended_at")  # type: ignore[assignment]
    places: list[str | None] = column("nodes")  # type: ignore[assignment]
    attempts = Attempts(
        count=len(rows),
        errors={index: row for index, row in enumerate(rows) if isinstance(row, Unbelievable)},
        job=column("job"),  # type: ignore[arg-type]  # `_job` gives each its type
        step=[None] * len(rows),
        state=words,
        submitted=column("submitted_at"),  # type: ignore[arg-type]
        started=without_unreal_starts(words, starts, ends, places),
        ended=ends,
        cluster=column("cluster"),  # type: ignore[arg-type]
        name=column("name"),  # type: ignore[arg-type]
        exit_code=column("exit_code"),  # type: ignore[arg-type]
        elapsed=column("elapsed_seconds"),  # type: ignore[arg-type]
        others={name: column(name) for name in _OTHERS},
        of_steps={},
    )
    return assemble(
        attempts,
        source=source,
        at=at,
        record=lambda index: f"jobs[{index}]",
        text=lambda index: json.dumps(answer.records[index])[:2000],
        is_same=lambda one, other: answer.records[one] == answer.records[other],
        refused=cut,
        hangers=hangers,
    )


_OTHERS = values.words(
    "job_raw cancelled_by exit_signal user account partition qos reason eligible_at time_limit_seconds "
    "node_count cpu_count gpu_count memory_bytes nodes workdir comment restart_count"
)


def _job(record: object, *, version: tuple[int, ...]) -> "dict[str, object] | Unbelievable":
    if not isinstance(record, dict):
        return Unbelievable("not_an_object", f"found {type(record).__name__}; expected a job")
    try:
        return _values(record, version=version)
    except Unbelievable as exc:
        return exc


def _values(row: read.Row, *, version: tuple[int, ...]) -> dict[str, object]:
    times, state, tres = read.child(row, "time"), read.child(row, "state"), read.child(row, "tres")
    words = read.names(state, "current") or read.names(row, "state") if state else read.names(row, "state")
    word, _ = states.read_state(words[0]) if words else (None, None)
    exits = read.exit_of(row, "exit_code", is_wait_status=False)
    if version and version < _FIRST_VERSION_WITH_EXIT_CODES and exits == (0, 0) and word != "COMPLETED":
        exits = None
    asked, held = tres.get("requested"), tres.get("allocated")
    limit = read.number(times, "limit")
    memory = read.count_of_list(asked, "mem")
    killer = read.label(row, "kill_request_user")
    gpus = read.gpus_of_list(held)
    return {
        "job": job_of(row),
        "job_raw": str(read.whole(row, "job_id")),
        "cluster": read.label(row, "cluster"),
        "name": read.label(row, "name"),
        "user": read.label(row, "user") or read.label(read.child(row, "association"), "user"),
        "account": read.label(row, "account"),
        "partition": read.label(row, "partition"),
        "qos": read.label(row, "qos"),
        "state": word,
        "cancelled_by": killer if word == "CANCELLED" else None,
        "exit_code": None if exits is None else exits[0],
        "exit_signal": None if exits is None else exits[1],
        "reason": read.label(state, "reason"),
        "submitted_at": read.time(times, "submission"),
        "eligible_at": read.time(times, "eligible"),
        "started_at": read.time(times, "start"),
        "ended_at": read.time(times, "end"),
        "elapsed_seconds": read.number(times, "elapsed"),
        "time_limit_seconds": None if not limit else limit * 60,
        "node_count": read.whole(row, "allocation_nodes"),
        "cpu_count": _whole(read.count_of_list(held, "cpu") or read.number(read.child(row, "required"), "CPUs")),
        "gpu_count": gpus if gpus is not None else read.gpus_of_list(asked),
        # TRES count memory in MiB.
        "memory_bytes": memory * _MIB if memory else None,
        "nodes": read.label(row, "nodes"),
        "workdir": read.label(row, "working_directory"),
        "comment": read.label(read.child(row, "comment"), "job"),
        "restart_count": read.whole(row, "restart_cnt"),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def job_of(row: read.Row) -> str:
    """Return the id as users write it: 30_1, 30_[3-15%3], 40+1. Raises Unbelievable."""
    job = read.whole(row, "job_id")
    if not job:
        raise Unbelievable("no_job_id", f"job_id is {str(row.get('job_id'))[:60]!r}; expected a number above 0")
    array, het = read.child(row, "array") or row, read.child(row, "het")
    leader = read.whole(array, "job_id") if array is not row else read.whole(row, "array_job_id")
    task = read.whole(array, "task_id") if array is not row else read.whole(row, "array_task_id")
    if leader:
        waiting = read.label(array, "task") if array is not row else read.label(row, "array_task_string")
        if task is not None:
            return f"{leader}_{task}"
        if waiting is not None:
            return f"{leader}_[{waiting.strip('[]')}]"
    het_job = read.whole(het, "job_id") if het else read.whole(row, "het_job_id")
    offset = read.whole(het, "job_offset") if het else read.whole(row, "het_job_offset")
    if het_job:
        return f"{het_job}+{offset or 0}"
    return str(job)


def _steps(row: read.Row, *, source: str, moment: int) -> list[dict[str, object]]:
    listed = row.get("steps")
    found: list[dict[str, object]] = []
    for step in listed if isinstance(listed, list) else ():
        try:
            if isinstance(step, dict):
                found.append(_step(row, step, source=source, moment=moment))
        except Unbelievable:
            # The record is the job; a step that cannot be read does not refuse its job.
            continue
    return found


def _step(row: read.Row, step: read.Row, *, source: str, moment: int) -> dict[str, object]:
    named, times = read.child(step, "step"), read.child(step, "time")
    inner = named.get("id")
    if isinstance(inner, dict):
        mark = read.label(inner, "step_id") or "0"
    else:
        mark = (read.label(named, "id") or "0").rpartition(".")[2]
    started, ended = read.time(times, "start"), read.time(times, "end")
    words = read.names(step, "state")
    exits = read.exit_of(step, "exit_code", is_wait_status=False)
    total = read.child(times, "total")
    seconds = read.number(total, "seconds")
    most = read.count_of_list(read.child(step, "tres", "requested").get("max"), "mem")
    return {
        "job": job_of(row),
        "step": values.printable(mark.lower()),
        "attempt": values.iso_of(started) if started is not None else "unstarted",
        "time": next((each for each in (ended, started) if each is not None), moment),
        "name": read.label(named, "name"),
        "state": states.read_state(words[0])[0] if words else None,
        "exit_code": None if exits is None else exits[0],
        "elapsed_seconds": read.number(times, "elapsed"),
        "task_count": read.whole(read.child(step, "tasks"), "count"),
        "max_rss_bytes": most,
        "cpu_seconds": None if seconds is None else seconds + (read.number(total, "microseconds") or 0) / 1e6,
        "source": source,
    }


# -- accounting of jobs as files give it --


_NAMES: Mapping[str, str] = {
    name.lower(): name
    for name in values.words(
        "JobID JobIDRaw JobName Cluster Partition Account User QOS State ExitCode Reason Submit Eligible Start "
        "End Elapsed ElapsedRaw Timelimit TimelimitRaw NNodes AllocNodes NCPUS AllocCPUS ReqCPUS ReqMem "
        "AllocTRES ReqTRES AllocGRES ReqGRES NodeList WorkDir Comment Restarts NTasks MaxRSS TotalCPU CPUTime "
        "WaitStatus"
    )
} | {
    # The database's own names (job_table), and those of tables made from them.
    "id_job": "JobIDRaw",
    "job_id": "TraceID",
    "job_name": "JobName",
    "time_submit": "Submit",
    "time_eligible": "Eligible",
    "time_start": "Start",
    "time_end": "End",
    "submit_ts": "Submit",
    "start_ts": "Start",
    "end_ts": "End",
    "duration_s": "ElapsedRaw",
    "nodes_alloc": "NNodes",
    "nodes": "NNodes",
    "cpus_req": "ReqCPUS",
    "cpus": "NCPUS",
    "gpus": "GPUs",
    "tres_alloc": "AllocTRES",
    "tres_req": "ReqTRES",
    "gres_used": "AllocGRES",
    "gres_alloc": "AllocGRES",
    "exit_code": "WaitStatus",
    "work_dir": "WorkDir",
    "mem_req": "ReqMem",
    "team": "Account",
    "restart_cnt": "Restarts",
}
_IDS = frozenset(("JobID", "JobIDRaw", "TraceID"))
_BESIDE_IDS = frozenset(
    ("State", "Start", "End", "Submit", "ExitCode", "Elapsed", "ElapsedRaw", "AllocTRES", "JobName")
)
"""A table of jobs has an id and at least one of these."""
_FREE_TEXT = frozenset(
    ("JobName", "WorkDir", "Comment", "SubmitLine", "Reason", "SystemComment", "AdminComment", "Extra")
)
_MOST_LINES_BEFORE = 20
"""Warnings of the client may stand before the header."""


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the attempts and steps in `body`. `at` is the time of rows that state none; `node` says nothing here.

    Raises WrongKind if it is no accounting of jobs.
    """
    text = decode(body)
    if looks_like_json(text):
        return parse_json(text, source=source, at=at)
    lines = text.split("\n")
    found = _find_header(lines) or _find_layout(lines)
    if found is None:
        first = next((line for line in lines if line.strip()), "")
        raise WrongKind(
            f"{source}: found {readable(first)[:120]!r}; expected sacct with a header that has JobID, sacct --json, or "
            "one of the known formats without header"
        )
    begins, shape = found
    names = tuple(_canonical(name) for name in shape.names)
    strict = _strict_columns(names)
    rows = read_rows(
        lines[begins:],
        shape,
        first_line=begins + 1,
        flexible=[
            index for index, name in enumerate(shape.names) if name in _FREE_TEXT or name in ("job_name", "work_dir")
        ],
        fits=lambda cells: all(fits(cells[index]) for index, fits in strict),
        header=lines[begins - 1] if begins else "",
    )
    return assemble(
        _columns(names, rows).attempts(),
        source=source,
        at=at,
        record=rows.record,
        text=lambda index: "|".join(rows.row(index)),
        is_same=lambda one, other: rows.row(one) == rows.row(other),
        refused=rows.refused,
        ignored=rows.repeated_headers,
    )


def is_accounting(text: str) -> bool:
    """Return whether a text has the header of sacct: squeue writes JOBID where sacct writes JobID."""
    found = _find_header(text.split("\n", _MOST_LINES_BEFORE + 1)[: _MOST_LINES_BEFORE + 1])
    return found is not None and any(name in ("JobID", "JobIDRaw", "id_job") for name in found[1].names)


def _canonical(name: str) -> str:
    bare = name.partition("%")[0]
    return _NAMES.get(bare.lower(), bare)


def _find_header(lines: Sequence[str]) -> tuple[int, Shape] | None:
    """Return the index of the first row, and the shape that the header before it gives."""
    for index, line in enumerate(lines[:_MOST_LINES_BEFORE]):
        if not line.strip() or len(line) > 20_000:
            continue
        shape = read_shape(line, below=lines[index + 1] if index + 1 < len(lines) else "")
        if shape is None:
            continue
        names = {_canonical(name) for name in shape.names}
        is_upper = "JOBID" in shape.names
        if names & _IDS and names & _BESIDE_IDS and not is_upper:
            # Blanks alone part words of any sentence: a table of fixed width needs its rule.
            if shape.delimiter is not None:
                return index + 1, shape
            if index + 1 < len(lines) and re.fullmatch(r"[\s-]*--[\s-]*", lines[index + 1]):
                return index + 2, shape
    return None


# -- without a header --

_XDMOD = values.words(
    "JobID JobIDRaw Cluster Partition QOS Account Group GID User UID Submit Eligible Start End Elapsed ExitCode "
    "State NNodes NCPUS ReqCPUS ReqMem ReqTRES AllocTRES Timelimit NodeList JobName"
)
"""What Open XDMoD asks for; its older versions leave one or two of these out."""
_LEFT_OUT = ((), ("ReqCPUS",), ("QOS",), ("ReqTRES",), ("AllocTRES",), ("QOS", "ReqCPUS"), ("QOS", "ReqTRES"))
_LAYOUTS: tuple[tuple[str, ...], ...] = (
    *(tuple(name for name in _XDMOD if name not in out) for out in _LEFT_OUT),
    ("JobID", "JobName", "Partition", "Account", "AllocCPUS", "State", "ExitCode"),
    ("JobID", "User", "Account", "AllocCPUS", "Elapsed", "TotalCPU", "CPUTime", "MaxRSS", "ReqMem"),
)
_DEFAULT_WIDTHS = (12, 10, 10, 10, 10, 10, 8)
"""Of the seven columns that `sacct` prints unasked."""


def _find_layout(lines: Sequence[str]) -> tuple[int, Shape] | None:
    sample = [line for line in lines[:200] if line.strip()][:100]
    if not sample:
        return None
    for delimiter in ("|", "^", ";", ",", "\t", "\x1f"):
        rows = [line.split(delimiter) for line in sample]
        for layout in _LAYOUTS:
            strict = _strict_columns(layout)
            for is_closed in (False, True):
                count = len(layout) + is_closed
                fitting = sum(len(cells) == count and all(fits(cells[at]) for at, fits in strict) for cells in rows)
                if fitting * 2 > len(sample):
                    return 0, Shape(names=layout, delimiter=delimiter, is_closed=is_closed)
    ends = [sum(_DEFAULT_WIDTHS[: number + 1]) + number for number in range(len(_DEFAULT_WIDTHS))]
    spans = tuple(zip([0, *(end + 1 for end in ends)], ends, strict=False))
    layout = _LAYOUTS[len(_LEFT_OUT)]
    strict = _strict_columns(layout)
    cut = [[line[start:end].strip() for start, end in spans] for line in sample]
    if sum(all(fits(cells[index]) for index, fits in strict) for cells in cut) * 2 > len(sample):
        return 0, Shape(names=layout, spans=spans)
    return None


def _reads(read: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(cell: str) -> bool:
        try:
            read(cell)
        except Unbelievable:
            return False
        return True

    return fits


_STRICT: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(("JobID", "JobIDRaw"), _reads(values.read_job_id)),
    "TraceID": _reads(values.read_trace_id),
    **dict.fromkeys(("Submit", "Eligible", "Start", "End"), _reads(values.read_time)),
    **dict.fromkeys(("Elapsed", "Timelimit", "TotalCPU", "CPUTime"), _reads(values.read_duration)),
    **dict.fromkeys(("NNodes", "NCPUS", "AllocCPUS", "ReqCPUS", "AllocNodes", "GID", "UID"), _reads(values.read_count)),
    **dict.fromkeys(("ReqTRES", "AllocTRES"), _reads(values.read_tres)),
    "ExitCode": _reads(states.read_exit_code),
    "State": lambda cell: cell.partition(" ")[0].rstrip("+") in states.STATES or cell.endswith("+") or cell.isdecimal(),
    "MaxRSS": _reads(values.read_bytes),
    "ReqMem": _reads(values.read_asked_memory),
}


def _strict_columns(names: Sequence[str]) -> list[tuple[int, Callable[[str], bool]]]:
    return [(index, _STRICT[name]) for index, name in enumerate(names) if name in _STRICT]


def _columns(names: Sequence[str], rows: Rows) -> Columns:
    """Return the columns by name; of several with one name the first counts."""
    by_name: dict[str, Sequence[str]] = {}
    for index, name in enumerate(names):
        if name not in by_name:
            by_name[name] = rows.column(index)
    return Columns(by_name)
