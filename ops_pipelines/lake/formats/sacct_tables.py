"""Rows of accounting as values -> attempts and steps; each distinct cell is read once.

A cell that cannot be read refuses its row. Which rows are attempts, and what they are called, is `sacct_tables`.

Shared by text and JSON. Reading cells is `sacct_columns` and `sacct`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

import pyarrow as pa

from ops_pipelines.lake.formats import slurm_json as states
from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Unbelievable
from ops_pipelines.lake.quantities import Parsed, Refused, readable
from ops_pipelines.lake.schema import TABLES

# -- rows of accounting as values -> attempts and steps --


_NOT_ENDED = frozenset(["PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "STOPPED", "SIGNALING"])
"""What is as the end of such an attempt is a guess or the end of a window."""
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
            # One id twice: a number used again, another cluster. What distinguishes them goes into the attempt's name.
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


# -- columns of accounting text -> columns of values --


Value = TypeVar("Value")
_NO_TASK = 0xFFFFFFF0
"""An array task number of this or more is NO_VAL: the job is no task."""


class _Memo(dict[str, Value | None], Generic[Value]):
    """Cell -> value; what cannot be read is None here and is in `bad`."""

    def __init__(self, read: Callable[[str], Value | None]) -> None:
        super().__init__()
        self._read = read
        self.bad: dict[str, Unbelievable] = {}

    def __missing__(self, cell: str) -> Value | None:
        try:
            value = self._read(cell)
        except Unbelievable as exc:
            self.bad[cell] = exc
            value = None
        self[cell] = value
        return value


class Columns:
    """The columns of one table by their names in sacct."""

    def __init__(self, by_name: Mapping[str, Sequence[str]]) -> None:
        self._by_name = by_name
        self._count = len(next(iter(by_name.values()), ()))
        self._errors: dict[int, Unbelievable] = {}

    def attempts(self) -> Attempts:
        """Return every row as values."""
        self._errors = {}
        ids = self._ids()
        found_states = self._read(states.read_state, "State", when=lambda cell: bool(cell.strip()))
        allocated, asked = self._tres("AllocTRES"), self._tres("ReqTRES")
        exits = self._exits()
        nodes = self._read(values.read_count, "NNodes", "AllocNodes")
        cpus = self._read(values.read_count, "NCPUS", "AllocCPUS", "ReqCPUS")
        raw = self._read(_raw_id, "JobIDRaw")
        states_only = [None if found is None else found[0] for found in found_states]
        started, ended = self._read(values.read_time, "Start"), self._read(values.read_time, "End")
        places = self._read(_host_list, "NodeList", "nodelist")
        if "NodeList" in self._by_name:
            started = without_unreal_starts(states_only, started, ended, places)
        return Attempts(
            count=self._count,
            errors=self._errors,
            job=[None if found is None else found[0] for found in ids],
            step=[None if found is None else found[1] for found in ids],
            state=states_only,
            submitted=self._read(values.read_time, "Submit"),
            started=started,
            ended=ended,
            states_start="Start" in self._by_name,
            states_state="State" in self._by_name,
            cluster=self._text("Cluster"),
            exit_code=[None if found is None else found[0] for found in exits],
            elapsed=self._first(
                self._read(values.read_seconds, "ElapsedRaw"), self._read(values.read_duration, "Elapsed")
            ),
            name=self._text("JobName"),
            others={
                "job_raw": raw,
                "cancelled_by": [None if found is None else found[1] for found in found_states],
                "exit_signal": [None if found is None else found[1] for found in exits],
                "user": self._text("User"),
                "account": self._text("Account"),
                "partition": self._text("Partition"),
                "qos": self._text("QOS"),
                "reason": self._text("Reason"),
                "eligible_at": self._read(values.read_time, "Eligible"),
                "time_limit_seconds": self._first(
                    self._read(values.read_minutes, "Timelimit"), self._read(values.read_minutes, "TimelimitRaw")
                ),
                "node_count": nodes,
                "cpu_count": cpus,
                "gpu_count": self._gpus(allocated, asked, nodes),
                "memory_bytes": self._memory(asked, nodes, cpus),
                "nodes": places,
                "workdir": self._text("WorkDir"),
                "comment": self._text("Comment"),
                "restart_count": self._read(values.read_count, "Restarts"),
            },
            of_steps={
                "task_count": self._read(values.read_count, "NTasks"),
                "max_rss_bytes": self._read(values.read_bytes, "MaxRSS"),
                "cpu_seconds": self._read(values.read_duration, "TotalCPU"),
            },
        )

    # -- one column --

    def _read(
        self, read: Callable[[str], Value | None], *names: str, when: Callable[[str], bool] | None = None
    ) -> list[Value | None]:
        """Return the first of the named columns that is there as values; all None if none is."""
        column = next((self._by_name[name] for name in names if name in self._by_name), None)
        if column is None:
            return [None] * self._count
        memo: _Memo[Value] = _Memo(read if when is None else lambda cell: read(cell) if when(cell) else None)
        found = [memo[cell] for cell in column]
        if memo.bad:
            for index, cell in enumerate(column):
                if cell in memo.bad:
                    self._errors.setdefault(index, memo.bad[cell])
        return found

    def _text(self, name: str) -> list[str | None]:
        return self._read(values.read_label, name)

    def _first(self, wanted: list[Value | None], otherwise: list[Value | None]) -> list[Value | None]:
        return [other if value is None else value for value, other in zip(wanted, otherwise, strict=True)]

    def _ids(self) -> list[tuple[str, str | None] | None]:
        """Return job and step of each row; a database has array and task in columns of their own."""
        if "JobID" in self._by_name:
            return self._read(_job_id, "JobID")
        if "TraceID" in self._by_name:
            return self._read(values.read_trace_id, "TraceID")
        found = self._read(_exported_id, "JobIDRaw")
        arrays, tasks = self._read(_raw_id, "id_array_job"), self._read(values.read_count, "id_array_task")
        return [
            one
            if one is None or array in (None, "0") or task is None or task >= _NO_TASK
            else (f"{array}_{task}", None)
            for one, array, task in zip(found, arrays, tasks, strict=True)
        ]

    def _exits(self) -> list[tuple[int, int] | None]:
        if "WaitStatus" in self._by_name and "ExitCode" not in self._by_name:
            return self._read(_wait_status, "WaitStatus")
        return self._read(states.read_exit_code, "ExitCode")

    # -- several columns --

    def _tres(self, name: str) -> list[tuple[int, float | None] | None]:
        """Return GPUs and bytes of memory of each row; None where the column says nothing."""
        return self._read(_gpus_and_memory, name)

    def _gpus(
        self,
        allocated: list[tuple[int, float | None] | None],
        asked: list[tuple[int, float | None] | None],
        nodes: list[int | None],
    ) -> list[int | None]:
        given = self._read(values.read_count, "GPUs")
        old_allocated = self._read(values.gpus_of_gres, "AllocGRES")
        old_asked = self._read(values.gpus_of_gres, "ReqGRES")
        found: list[int | None] = []
        for plain, new, old, wished, old_wished, count in zip(
            given, allocated, old_allocated, asked, old_asked, nodes, strict=True
        ):
            if plain is not None:
                found.append(plain)
            elif new is not None:
                found.append(new[0])
            elif old is not None:
                found.append(old)
            elif wished is not None:
                found.append(wished[0])
            else:
                # ReqGRES counts by the node.
                found.append(_times(old_wished, count))
        return found

    def _memory(
        self, asked: list[tuple[int, float | None] | None], nodes: list[int | None], cpus: list[int | None]
    ) -> list[float | None]:
        sizes = self._read(values.read_asked_memory, "ReqMem")
        found: list[float | None] = []
        for tres, size, node_count, cpu_count in zip(asked, sizes, nodes, cpus, strict=True):
            if tres is not None and tres[1]:
                found.append(tres[1])
            elif size is None:
                found.append(None)
            else:
                factor = {"n": node_count, "c": cpu_count}.get(size[1], 1)
                found.append(None if factor is None else size[0] * max(factor, 1))
        return found


def _exported_id(cell: str) -> tuple[str, str | None]:
    # Databases keep numbers, and exports write them as 838595000000.0.
    return values.read_job_id(cell.strip().removesuffix(".0"))


def _job_id(cell: str) -> tuple[str, str | None]:
    # An export through floating point: 16051200000000.0 is a job, not step 0 of one.
    whole, point, rest = cell.strip().partition(".")
    return values.read_job_id(whole if point and rest == "0" and whole.isdecimal() and len(whole) > 12 else cell)


def _raw_id(cell: str) -> str | None:
    if values.is_nothing(cell):
        return None
    return _job_id(cell)[0]


def _wait_status(cell: str) -> tuple[int, int] | None:
    found = values.read_count(cell)
    return None if found is None else states.read_wait_status(found)


def _gpus_and_memory(cell: str) -> tuple[int, float | None] | None:
    tres = values.read_tres(cell)
    if not tres:
        return None
    memory = values.read_bytes(tres["mem"], unit="M") if "mem" in tres else None
    return values.gpus_of_tres(tres), memory or None


def _host_list(cell: str) -> str | None:
    listed = cell.strip()
    if listed.startswith("['") and listed.endswith("']"):
        # A Python list, as some exports write it.
        listed = listed[1:-1].replace("'", "").replace(" ", "")
    return values.read_label(listed)


def _times(per_node: int | None, nodes: int | None) -> int | None:
    try:
        return values.times(per_node, nodes)
    except Unbelievable:
        return None
