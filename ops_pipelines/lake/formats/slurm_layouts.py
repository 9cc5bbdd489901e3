"""Tables of sinfo and squeue without a header: which of the formats in use they are, by the form of their cells.

A table whose cells fit no format is not guessed at.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.lake.formats import slurm_json as states
from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Unbelievable
from ops_pipelines.lake.formats.slurm_jobs import is_node_state


class Of(Enum):
    """What a row reports of."""

    JOB = "job"
    NODE = "node"
    QUEUE = "queue"
    """A job without its id: it only counts."""
    FIGURES = "figures"
    """How many nodes, CPUs, GPUs."""
    NOTHING = "nothing"
    """What has no table: shares, limits, priorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One format of one client."""

    of: Of
    columns: tuple[str, ...]
    """As sinfo and squeue name them; `-` is passed over."""
    delimiters: tuple[str, ...]
    """A blank matches any number of them."""


def _reads(read: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(cell: str) -> bool:
        try:
            read(cell)
        except Unbelievable:
            return False
        return True

    return fits


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda cell: compiled.fullmatch(cell) is not None


_JOB_STATES = frozenset(states.STATES)
FORMS: Mapping[str, Callable[[str], bool]] = {
    "JOBID": _reads(values.read_job_id),
    "STATE": lambda cell: is_node_state(cell),
    "JOB_STATE": lambda cell: cell.upper() in _JOB_STATES,
    "ST": _matches(r"[A-Z]{1,3}"),
    "NODELIST": _matches(r"[A-Za-z][A-Za-z0-9._-]*"),
    "NODELISTS": _matches(r"[A-Za-z(][A-Za-z0-9._,\[\]()/-]*"),
    "NODES": _matches(r"\d+"),
    "CPUS": _matches(r"\d+"),
    "ALLOCMEM": _matches(r"\d+"),
    "MEMORY": _matches(r"\d+\+?"),
    "CPUS(A/I/O/T)": _matches(r"\d+/\d+/\d+/\d+"),
    "NODES(A/I/O/T)/CPUS(A/I/O/T)": _matches(r"\d+(?:/\d+){7}"),
    "GRES": _matches(r"\(null\)|N/A|[a-z][\w.-]*:\S+"),
    "GRES_USED": _matches(r"\(null\)|N/A|[a-z][\w.-]*:\S+"),
    "PARTITION": _matches(r"[A-Za-z][\w.,-]*\*?"),
    "AVAIL": _matches(r"up|down|drain|inact"),
    "TIMELIMIT": _reads(values.read_duration),
    "TIME": _reads(values.read_duration),
    "TIME_LIMIT": _reads(values.read_duration),
    "TIMESTAMP": _reads(values.read_time),
    "SUBMIT_TIME": _reads(values.read_time),
    "START_TIME": _reads(values.read_time),
    "END_TIME": _reads(values.read_time),
    "TIME_LEFT": _reads(values.read_duration),
    "MIN_MEMORY": _reads(values.read_bytes),
    **dict.fromkeys(("THREADS_PER_CORE", "CORES_PER_SOCKET", "SOCKETS_PER_NODE", "UID"), _matches(r"\*|\d+")),
    "TRES_ALLOC": _reads(values.read_tres),
    "FEATURES": _matches(r"[\w.,:()-]+"),
    "SHARES": _matches(r"\d*|parent"),
    "RATIO": _matches(r"(?:\d+(?:\.\d+)?(?:e[+-]\d+)?)?"),
    "AMOUNT": _matches(r"\d+"),
    "ACCOUNT": _matches(r"[^|]*"),
    "-": lambda _: True,
}
_PIPES = ("|", "|#", "\x1f", "^", ";", "\t")
_ALL = (" ", *_PIPES, ",")
_GCM = values.words(
    "TRES_PER_NODE - JOBID JOBID_RAW NAME TIME_LIMIT - - - JOB_STATE USER CPUS NODES - TIME NODELIST_FREE - - "
    "START_TIME SUBMIT_TIME - - - COMMENT PARTITION ACCOUNT QOS REASON TRES_ALLOC - - - - -"
)
"""What facebookresearch/gcm asks squeue for."""


def _layout(of: Of, columns: str | Sequence[str], *delimiters: str) -> Layout:
    names = columns.split() if isinstance(columns, str) else columns
    return Layout(of=of, columns=tuple(names), delimiters=delimiters or _ALL)


_LAYOUTS = (
    _layout(Of.JOB, _GCM, *_PIPES),
    _layout(Of.JOB, [*_GCM, "-"], *_PIPES),
    _layout(Of.JOB, "JOBID ACCOUNT USER PARTITION_FREE JOB_STATE NODES CPUS TRES_ALLOC", *_PIPES),
    # Either the account or the user: nothing in it says which.
    _layout(Of.JOB, "JOBID - JOB_STATE NODES CPUS TRES_ALLOC", *_PIPES),
    _layout(Of.JOB, "JOBID JOB_STATE"),
    _layout(Of.JOB, "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)", " "),
    _layout(Of.QUEUE, "PARTITION_FREE JOB_STATE CPUS REASON USER", *_PIPES),
    _layout(Of.NODE, "NODELIST ALLOCMEM MEMORY CPUS(A/I/O/T) STATE PARTITION GRES GRES_USED"),
    _layout(Of.NODE, "NODELIST ALLOCMEM MEMORY CPUS(A/I/O/T) STATE PARTITION"),
    _layout(Of.NODE, "NODELIST ALLOCMEM MEMORY CPUS(A/I/O/T) STATE"),
    _layout(Of.NODE, "NODELIST GRES GRES_USED CPUS CPUS(A/I/O/T) STATE PARTITION"),
    _layout(Of.NODE, "NODELIST REASON TIMESTAMP STATE", *_PIPES),
    _layout(Of.NODE, "CPUS NODELIST FEATURES", "\x1f", "|"),
    _layout(Of.NODE, "NODELIST NODES PARTITION STATE", " "),
    _layout(Of.NODE, "NODELIST STATE"),
    _layout(Of.FIGURES, "NODES(A/I/O/T)/CPUS(A/I/O/T)"),
    _layout(Of.FIGURES, "CPUS(A/I/O/T)"),
    _layout(Of.FIGURES, "PARTITION CPUS(A/I/O/T)"),
    _layout(Of.FIGURES, "PARTITION NODES STATE FEATURES"),
    _layout(Of.FIGURES, "NODES STATE GRES GRES_USED", " ", "|"),
    _layout(Of.FIGURES, "NODES PARTITION GRES GRES_USED", " ", "|"),
    _layout(Of.FIGURES, "NODES GRES GRES_USED", " ", "|"),
    _layout(Of.FIGURES, "NODES GRES", " ", "|"),
    _layout(Of.FIGURES, "PARTITION AVAIL TIMELIMIT NODES STATE NODELISTS", " "),
    _layout(Of.NOTHING, "ACCOUNT USER SHARES RATIO AMOUNT RATIO RATIO", "|"),
)
FREE_TEXT = frozenset(("NAME", "REASON", "COMMENT", "NODELIST(REASON)"))
_SAMPLE = 60
_ENOUGH = 0.5
"""Share of the first rows that must fit."""


def find_layout(lines: Sequence[str]) -> tuple[Layout, str] | None:
    """Return the format of these rows and its delimiter; None if too few rows fit any."""
    sample = [line for line in lines if line.strip()][:_SAMPLE]
    best: tuple[float, Layout, str] | None = None
    for layout in _LAYOUTS:
        for delimiter in layout.delimiters:
            if delimiter != " " and not any(delimiter in line for line in sample) and len(layout.columns) > 1:
                continue
            share = sum(_fits(split(line, layout, delimiter), layout) for line in sample) / max(len(sample), 1)
            if share > _ENOUGH and (best is None or share > best[0]):
                best = (share, layout, delimiter)
    return None if best is None else best[1:]


def split(line: str, layout: Layout, delimiter: str) -> list[str]:
    """Return the cells of a row; the last column of a table parted by blanks may hold blanks."""
    bare = line.strip("\x1e\x00")
    if delimiter == " ":
        most = len(layout.columns) - 1 if layout.columns[-1] in FREE_TEXT else -1
        return bare.split(None, most)
    return [cell.strip() for cell in bare.split(delimiter)]


def _fits(cells: Sequence[str], layout: Layout) -> bool:
    return len(cells) == len(layout.columns) and all(
        FORMS[name](cell) for name, cell in zip(layout.columns, cells, strict=True) if name in FORMS
    )


def bare_name(column: str) -> str:
    """Return the name of a column without what only reports its form."""
    return {"JOB_STATE": "STATE", "NODELISTS": "NODELIST"}.get(column, column.removesuffix("_FREE"))
