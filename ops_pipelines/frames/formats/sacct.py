"""Accounting of jobs as files give it: `sacct` as text in every delimiter, as JSON, and as rows of its database.

Record: one row after the header, in JSON one job. Jobs become attempts in `job_accounting`, steps go to `job_steps`.
Times without a zone are taken as UTC. What cells mean is `formats.slurm_values`, how rows are parted is
`formats.slurm_rows`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from ops_pipelines.frames.formats import slurm_states as states
from ops_pipelines.frames.formats import slurm_values as values
from ops_pipelines.frames.formats.reading import Unbelievable, decode
from ops_pipelines.frames.formats.sacct_columns import Columns
from ops_pipelines.frames.formats.sacct_json import parse_json
from ops_pipelines.frames.formats.sacct_tables import assemble
from ops_pipelines.frames.formats.slurm_json import looks_like_json
from ops_pipelines.frames.formats.slurm_rows import Rows, Shape, read_rows, read_shape
from ops_pipelines.frames.parsed import Parsed, WrongKind, readable

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
