"""Columns of accounting text -> columns of values. Each distinct cell is read once: that is where the speed comes from.

A cell that cannot be read refuses its row. Which rows are attempts, and what they are called, is `sacct_tables`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from ops_pipelines.frames.formats import slurm_states as states
from ops_pipelines.frames.formats import slurm_values as values
from ops_pipelines.frames.formats.reading import Unbelievable
from ops_pipelines.frames.formats.sacct_tables import Attempts, without_unreal_starts

Value = TypeVar("Value")
_NO_TASK = 0xFFFFFFF0
"""An array task number of this or more is NO_VAL: the job is no task."""


class _Memo(dict[str, Value | None], Generic[Value]):
    """Cell -> value; what cannot be read is None here and stands in `bad`."""

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
