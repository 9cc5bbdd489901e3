"""`sacct --json` and the REST answer slurmdb/jobs, 21.08 to 25.11 -> attempts and their steps. Record: one job."""

import json
from collections.abc import Sequence
from datetime import datetime

from ops_pipelines.frames.formats import slurm_json as read
from ops_pipelines.frames.formats import slurm_states as states
from ops_pipelines.frames.formats import slurm_values as values
from ops_pipelines.frames.formats.reading import Unbelievable
from ops_pipelines.frames.formats.sacct_tables import Attempts, assemble, without_unreal_starts
from ops_pipelines.frames.parsed import Parsed, Refused, WrongKind, readable

_MIB = 2**20
_FIRST_VERSION_WITH_EXIT_CODES = (22, 5, 99)
"""22.05 calls every exit a success (`return_code` 0 of `exit 3`)."""


def is_accounting(answer: read.Answer) -> bool:
    """Return whether an answer's jobs are those of sacct: squeue's have `job_state`, and no `time`."""
    first = next((row for row in answer.records if isinstance(row, dict)), None)
    return answer.key == "jobs" and (first is None or isinstance(first.get("time"), dict) or "job_state" not in first)


def parse_json(text: str, *, source: str, at: datetime) -> Parsed:
    """Return the attempts and steps of an answer. Raises WrongKind if it is none of sacct."""
    answer = read.read_answer(text)
    if answer is None or not is_accounting(answer):
        found = "no answer of Slurm" if answer is None else f"Slurm's {answer.key} with {len(answer.records)} records"
        raise WrongKind(f"{source}: found {found}; expected sacct --json: an object with a list `jobs`")
    if not answer.records and answer.errors:
        raise WrongKind(f"{source}: found no jobs, and errors: {readable(json.dumps(answer.errors))[:300]}")
    return parse_answer(answer, source=source, at=at)


def parse_answer(answer: read.Answer, *, source: str, at: datetime) -> Parsed:
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
