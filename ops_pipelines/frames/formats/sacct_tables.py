"""Rows of accounting as values -> attempts and steps: what an attempt is called, and which rows cannot be.

Shared by text and JSON. Reading cells is `sacct_columns` and `sacct_json`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from ops_pipelines.frames.formats import slurm_values as values
from ops_pipelines.frames.formats.reading import Unbelievable
from ops_pipelines.frames.parsed import Parsed, Refused, readable
from ops_pipelines.frames.schema import TABLES

_NOT_ENDED = frozenset(["PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "STOPPED", "SIGNALING"])
"""What stands as the end of such an attempt is a guess or the end of a window."""
_Key = tuple[str, str | None, str, int]


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Rows of accounting, column by column; all columns have `count` values. Times are microseconds since 1970."""

    count: int
    errors: dict[int, Unbelievable]
    """Rows that cannot be read."""
    job: Sequence[str | None]
    step: Sequence[str | None]
    """None: the row is a job."""
    state: Sequence[str | None]
    submitted: Sequence[int | None]
    started: Sequence[int | None]
    ended: Sequence[int | None]
    states_start: bool = True
    """The source says when attempts start; without it a row without start is not known to be unstarted."""
    states_state: bool = True
    cluster: Sequence[str | None]
    name: Sequence[str | None]
    exit_code: Sequence[int | None]
    elapsed: Sequence[float | None]
    others: Mapping[str, Sequence[object]]
    """Further columns of job_accounting."""
    of_steps: Mapping[str, Sequence[object]]
    """Further columns of job_steps."""


@dataclass(slots=True)
class _Kept:
    """The rows of one table that are kept."""

    rows: list[int] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    ends: list[int | None] = field(default_factory=list)
    starts: list[int | None] = field(default_factory=list)


def without_unreal_starts(
    states: Sequence[str | None],
    started: Sequence[int | None],
    ended: Sequence[int | None],
    nodes: Sequence[str | None],
) -> list[int | None]:
    """Return the starts, without those of jobs that were cancelled while they waited.

    Slurm writes the time of the cancellation as the start of such a job; it held no node.
    """
    return [
        None if state == "CANCELLED" and place is None and start == end else start
        for state, start, end, place in zip(states, started, ended, nodes, strict=True)
    ]


def assemble(
    found: Attempts,
    *,
    source: str,
    at: datetime,
    record: Callable[[int], str],
    text: Callable[[int], str],
    is_same: Callable[[int, int], bool],
    refused: Sequence[Refused] = (),
    ignored: int = 0,
    hangers: Callable[[int], Sequence[Mapping[str, object]]] | None = None,
) -> Parsed:
    """Return the tables. `record` and `text` name and show row i; `hangers` gives the steps that hang on job i."""
    kept = {"job_accounting": _Kept(), "job_steps": _Kept()}
    wrong = dict(found.errors)
    seen: dict[_Key, int] = {}
    moment = values.as_microseconds(at)
    jobs, steps = kept["job_accounting"], kept["job_steps"]
    columns = zip(
        found.job, found.step, found.state, found.submitted, found.started, found.ended, found.elapsed, strict=True
    )
    for index, (job, step, state, submitted, started, ended, elapsed) in enumerate(columns):
        if index in wrong or job is None:
            wrong.setdefault(index, Unbelievable("no_job_id", "the row has no job id"))
            continue
        if state is None and found.states_state:
            wrong[index] = Unbelievable("no_state", "the state is empty; expected one such as COMPLETED")
            continue
        if state in _NOT_ENDED:
            ended = None
            if state == "PENDING":
                started = None
        if started is not None and ended is not None and ended < started:
            wrong[index] = Unbelievable(
                "ends_before_it_starts", f"{_span(started, ended)}; expected the end after the start"
            )
            continue
        if submitted is not None and started is not None and started < submitted and step is None:
            wrong[index] = Unbelievable(
                "starts_before_submit", f"submitted and started {_span(submitted, started)}; expected the start later"
            )
            continue
        if started is None and ended is not None and elapsed and not found.states_start:
            started = ended - round(elapsed * 1_000_000)
        attempt = values.iso_of(started) if started is not None else ("unstarted" if found.states_start else "unknown")
        time = next((each for each in (ended, started, submitted) if each is not None), moment)
        key = (job, step, attempt, time)
        first = seen.setdefault(key, index)
        if first != index:
            # One id twice: a number used again, another cluster. What tells them apart goes into the attempt's name.
            attempt = _told_apart(found, first, index, attempt)
            if (job, step, attempt, time) in seen:
                wrong[index] = _second(same=is_same(first, index), first=record(first))
                continue
            seen[(job, step, attempt, time)] = index
        into = jobs if step is None else steps
        into.rows.append(index)
        into.attempts.append(attempt)
        into.times.append(time)
        into.starts.append(started)
        into.ends.append(ended)
    listed = [*refused]
    for index in sorted(wrong):
        is_step = found.step[index] is not None
        listed.append(
            Refused(
                record=record(index),
                reason=wrong[index].reason,
                detail=readable(wrong[index].detail),
                text=readable(text(index)),
                into="job_steps" if is_step else "job_accounting",
            )
        )
    accepted = len(jobs.rows) + len(steps.rows)
    tables = {
        name: table
        for name, table in (
            ("job_accounting", _job_table(found, jobs, source=source)),
            ("job_steps", _step_table(found, steps, source=source, hangers=hangers, jobs=jobs)),
        )
        if table.num_rows
    }
    return Parsed(
        read=accepted + len(listed) + ignored, accepted=accepted, ignored=ignored, refused=tuple(listed), tables=tables
    )


def _span(one: int, other: int) -> str:
    return f"{values.iso_of(one)} and {values.iso_of(other)}"


def _told_apart(found: Attempts, first: int, index: int, attempt: str) -> str:
    submitted, cluster = found.submitted[index], found.cluster[index]
    if submitted is not None and submitted != found.submitted[first]:
        return f"{attempt}, submitted {values.iso_of(submitted)}"
    if cluster is not None and cluster != found.cluster[first]:
        return f"{attempt}, {cluster}"
    return attempt


def _second(*, same: bool, first: str) -> Unbelievable:
    if same:
        return Unbelievable("duplicate_row", f"the same as {first}")
    return Unbelievable("conflicting_row", f"the same attempt and time as {first}, with other values")


def _job_table(found: Attempts, kept: _Kept, *, source: str) -> pa.Table:
    picked = kept.rows
    given: dict[str, Sequence[object]] = {
        "state": found.state,
        "cluster": found.cluster,
        "name": found.name,
        "job": found.job,
        "exit_code": found.exit_code,
        "elapsed_seconds": found.elapsed,
        "submitted_at": found.submitted,
        **found.others,
    }
    columns: dict[str, Sequence[object]] = {name: [column[index] for index in picked] for name, column in given.items()}
    columns |= {
        "attempt": kept.attempts,
        "time": kept.times,
        "started_at": kept.starts,
        "ended_at": kept.ends,
        "source": [source] * len(picked),
    }
    return as_table("job_accounting", columns)


def _step_table(
    found: Attempts,
    kept: _Kept,
    *,
    source: str,
    hangers: Callable[[int], Sequence[Mapping[str, object]]] | None,
    jobs: _Kept,
) -> pa.Table:
    picked = kept.rows
    if hangers is not None:
        hung = [row for index in jobs.rows for row in hangers(index)]
        unique = {(row["job"], row["step"], row["attempt"], row["time"]): row for row in hung}
        names = TABLES["job_steps"].by_name
        return as_table("job_steps", {name: [row.get(name) for row in unique.values()] for name in names})
    given: dict[str, Sequence[object]] = {
        "job": found.job,
        "step": found.step,
        "name": found.name,
        "state": found.state,
        "exit_code": found.exit_code,
        "elapsed_seconds": found.elapsed,
        **found.of_steps,
    }
    columns: dict[str, Sequence[object]] = {name: [column[index] for index in picked] for name, column in given.items()}
    columns |= {"attempt": kept.attempts, "time": kept.times, "source": [source] * len(picked)}
    return as_table("job_steps", columns)


def as_table(name: str, columns: Mapping[str, Sequence[object]]) -> pa.Table:
    """Return columns as a table of the lake; times are microseconds, a column that is not given is null."""
    schema = TABLES[name].arrow()
    count = len(next(iter(columns.values()), ()))
    arrays = []
    for column in schema:
        cells = columns.get(column.name)
        if cells is None:
            arrays.append(pa.nulls(count, column.type))
        elif pa.types.is_timestamp(column.type):
            arrays.append(pa.array(cells, pa.int64()).cast(column.type))
        else:
            arrays.append(pa.array(cells, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)
