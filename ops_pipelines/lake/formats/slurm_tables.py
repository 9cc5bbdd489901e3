"""Slurm's smaller outputs: blocks of `scontrol`, `sdiag`, counts, and tables that have a header.

Values hold blanks (Reason, OS, a job's name), and no quotes. A job's name is a user's text: a record in which it could
pass for other fields is refused by the caller, who finds a key twice in `doubled`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ops_pipelines.lake.formats import slurm_json as read
from ops_pipelines.lake.formats import slurm_json as states
from ops_pipelines.lake.formats import slurm_layouts as layouts
from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Cell, Unbelievable, in_bounds, written_time
from ops_pipelines.lake.formats.slurm_jobs import Site, device_of, read_four

# -- `scontrol show ...`, in blocks and with -o -> Key=Value pairs of each record --


RECORDS = values.words(
    "NodeName JobId PartitionName ReservationName LicenseName SwitchName BlockName StepId FrontendName "
    "BurstBuffer UserName TopologyName"
)
_START = re.compile(r"(?P<kind>" + "|".join(RECORDS) + r")=", re.ASCII)
_KEY = re.compile(r"(?:^|(?<=\s))(?P<key>[A-Z][A-Za-z_]{0,40}(?:[:/][A-Za-z:_]{1,40})*)=", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One record of scontrol."""

    kind: str
    """Its first key: NodeName, JobId, ..."""
    pairs: Mapping[str, str]
    """Key -> value; of a key that is twice, the first."""
    doubled: frozenset[str]
    first: int
    last: int
    text: str


def begins_block(line: str) -> bool:
    """Return whether a line begins a record."""
    return _START.match(line) is not None


def read_blocks(text: str) -> Iterator[Block]:
    """Yield the records. A line that begins none belongs to the record before it; such lines before the first are a
    record of kind "".
    """
    gathered: list[str] = []
    first = 1
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if begins_block(line) or not line.strip():
            if gathered:
                yield _block(gathered, first=first)
                gathered = []
            if not line.strip():
                continue
        if not gathered:
            first = number
        gathered.append(line)


def _block(lines: list[str], *, first: int) -> Block:
    text = "\n".join(lines)
    start = _START.match(text)
    pairs: dict[str, str] = {}
    doubled: set[str] = set()
    keys = list(_KEY.finditer(text))
    ends = [*(key.start() for key in keys[1:]), len(text)]
    for key, end in zip(keys, ends, strict=False):
        value = text[key.end() : end].strip()
        if key["key"] in pairs:
            doubled.add(key["key"])
        pairs.setdefault(key["key"], value)
    return Block(
        kind=start["kind"] if start else "",
        pairs=pairs,
        doubled=frozenset(doubled),
        first=first,
        last=first + len(lines) - 1,
        text=text,
    )


# -- sdiag --


_TITLE = re.compile(r"^sdiag output at (?P<when>.+?)\s*(?:\((?P<epoch>\d{1,12})\))?\s*$", re.MULTILINE)
_LINE = re.compile(r"^\s*(?P<name>[A-Z][^:\n]{2,60}?)\s*:\s+(?P<number>\d{1,18})\s*$")
_MICRO = 1e-6
_TEXT: Mapping[tuple[str, str], tuple[str, float]] = {
    ("", "Server thread count"): ("scheduler_threads_count", 1),
    ("", "DBD Agent queue size"): ("accounting_queue_count", 1),
    ("", "Jobs submitted"): ("jobs_submitted_count", 1),
    ("", "Jobs started"): ("jobs_started_count", 1),
    ("", "Jobs completed"): ("jobs_completed_count", 1),
    ("", "Jobs failed"): ("jobs_failed_since_count", 1),
    ("", "Jobs pending"): ("jobs_pending_count", 1),
    ("", "Jobs running"): ("jobs_running_count", 1),
    ("Main schedule", "Last cycle"): ("scheduler_cycle_seconds", _MICRO),
    ("Main schedule", "Mean cycle"): ("scheduler_mean_cycle_seconds", _MICRO),
    ("Main schedule", "Last queue length"): ("scheduler_queue_count", 1),
    ("Backfilling", "Last cycle"): ("backfill_cycle_seconds", _MICRO),
    ("Backfilling", "Mean cycle"): ("backfill_mean_cycle_seconds", _MICRO),
}
"""Section and name of a line -> column, factor to its unit."""
_JSON: Mapping[str, tuple[str, float]] = {
    "server_thread_count": ("scheduler_threads_count", 1),
    "dbd_agent_queue_size": ("accounting_queue_count", 1),
    "jobs_submitted": ("jobs_submitted_count", 1),
    "jobs_started": ("jobs_started_count", 1),
    "jobs_completed": ("jobs_completed_count", 1),
    "jobs_failed": ("jobs_failed_since_count", 1),
    "jobs_pending": ("jobs_pending_count", 1),
    "jobs_running": ("jobs_running_count", 1),
    "schedule_cycle_last": ("scheduler_cycle_seconds", _MICRO),
    "schedule_cycle_mean": ("scheduler_mean_cycle_seconds", _MICRO),
    "schedule_queue_length": ("scheduler_queue_count", 1),
    "bf_cycle_last": ("backfill_cycle_seconds", _MICRO),
    "bf_cycle_mean": ("backfill_mean_cycle_seconds", _MICRO),
}


def is_report(text: str) -> bool:
    """Return whether a text is a report of sdiag."""
    return _TITLE.search(text[:2000]) is not None


def read_report(text: str, *, at: datetime) -> dict[str, Cell]:
    """Return the figures of a report. Raises Unbelievable if it holds none, or one that cannot be."""
    title = _TITLE.search(text)
    when = at
    if title is not None and title["epoch"]:
        when = _from_epoch(int(title["epoch"]))
    elif title is not None:
        when = written_time(title["when"]) or at
    found: dict[str, float | None] = {}
    section = ""
    for line in text.splitlines():
        if line[:1].isalpha() and any(
            line.startswith(head) for head in ("Main ", "Backfill", "Latency", "Remote", "Pending")
        ):
            # "Main schedule statistics" and "Main scheduler exit" are two sections, so are the two of backfill.
            section = next(
                (name for name in ("Main schedule ", "Backfilling") if line.startswith(name)), "other"
            ).strip()
            continue
        one = _LINE.match(line)
        name = (section, one["name"]) if one else ("", "")
        if one and name in _TEXT:
            column, factor = _TEXT[name]
            found.setdefault(column, float(one["number"]) * factor)
    return _row(found, when=when)


def read_json_report(row: read.Row, *, at: datetime) -> dict[str, Cell]:
    """Return the figures of a report in JSON. Raises Unbelievable."""
    found: dict[str, float | None] = {}
    for name, (column, factor) in _JSON.items():
        number = read.number(row, name)
        if number is not None:
            found[column] = number * factor
    when = read.number(row, "req_time")
    return _row(found, when=at if not when else _from_epoch(int(when)))


def _from_epoch(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise Unbelievable("bad_time", f"found {seconds}, expected seconds since 1970") from exc


def _row(found: Mapping[str, float | None], *, when: datetime) -> dict[str, Cell]:
    if not found:
        raise Unbelievable("no_figures", "the report holds none of the figures of sdiag")
    return {"node": "", "device": "", "time": when, **in_bounds("platform_telemetry", found)}


# -- rows of sinfo and squeue that name no node and no job -> how many there are --


_OF_CLUSTER = {
    "PENDING": "jobs_pending_count",
    "RUNNING": "jobs_running_count",
    "COMPLETING": "jobs_completing_count",
    "FAILED": "jobs_failed_count",
    "NODE_FAIL": "jobs_node_fail_count",
    "TIMEOUT": "jobs_timeout_count",
}
_OF_PARTITIONS = frozenset(("PENDING", "RUNNING"))
"""These count by partition too."""


def add_queue(site: Site, cells: Mapping[str, str]) -> bool:
    """Count one job without id; return False for a state that is not counted. Raises Unbelievable."""
    state, _ = states.read_state(cells.get("STATE") or cells.get("ST") or "")
    if state not in _OF_CLUSTER:
        return False
    site.count("", _OF_CLUSTER[state], 1)
    for partition in cells.get("PARTITION", "").split(",") if state in _OF_PARTITIONS else ():
        device = device_of(partition)
        if device:
            site.count(device, _OF_CLUSTER[state], 1)
    return True


def add_figures(site: Site, cells: Mapping[str, str], *, beside: Sequence[Mapping[str, str]]) -> bool:
    """Add one row of counts; return False if it says nothing that has a column. `beside` are all rows of the table.

    Raises Unbelievable.
    """
    device = device_of(cells.get("PARTITION", ""))
    both = cells.get("NODES(A/I/O/T)/CPUS(A/I/O/T)")
    if both is not None:
        parts = both.split("/")
        allocated, idle, _, total = read_four("/".join(parts[:4]))
        for column, amount in (
            ("nodes_alloc_count", allocated),
            ("nodes_idle_count", idle),
            ("nodes_total_count", total),
        ):
            site.count(device, column, amount)
        _add_cpus(site, device, "/".join(parts[4:]))
        return True
    count = values.read_count(cells.get("NODES", ""))
    is_counted = False
    if "CPUS(A/I/O/T)" in cells and "GRES" not in cells:
        _add_cpus(site, device, cells["CPUS(A/I/O/T)"])
        is_counted = True
    if count is not None and "STATE" in cells:
        site.count_nodes(device, cells["STATE"], count)
        is_counted = True
    if count is not None and "GRES" in cells:
        is_counted |= _add_gpus(site, device, cells, count=count, beside=beside)
    if not is_counted and count is None and "STATE" not in cells:
        raise Unbelievable("no_figures", "the row names no node and counts none")
    return is_counted


def _add_cpus(site: Site, device: str, text: str) -> None:
    allocated, idle, _, total = read_four(text)
    for column, amount in (("cpus_alloc_count", allocated), ("cpus_idle_count", idle), ("cpus_total_count", total)):
        site.count(device, column, amount)


def _add_gpus(
    site: Site, device: str, cells: Mapping[str, str], *, count: int, beside: Sequence[Mapping[str, str]]
) -> bool:
    built_in, used = values.gpus_of_gres(cells["GRES"]), cells.get("GRES_USED")
    if used is None and "STATE" not in cells and "PARTITION" not in cells:
        # Two columns alone: GresUsed shows indices, Gres shows sockets or (null). Neither: it cannot be known.
        column = _which_gres([row.get("GRES", "") for row in beside])
        if column is None:
            return False
        site.count(device, column, (built_in or 0) * count)
        return True
    site.count(device, "gpus_total_count", (built_in or 0) * count)
    if used is not None:
        site.count(device, "gpus_alloc_count", (values.gpus_of_gres(used) or 0) * count)
    return True


def _which_gres(cells: Sequence[str]) -> str | None:
    if any("(IDX" in cell for cell in cells):
        return "gpus_alloc_count"
    if any("(S:" in cell or cell == "(null)" for cell in cells):
        return "gpus_total_count"
    return None


# -- tables of Slurm's clients that have a header --


_ALIASES = {
    "NODE_LIST": "NODELIST",
    "ARRAYJOBID": "ARRAY_JOB_ID",
    "TIMELIMIT": "TIMELIMIT",
    "FEATURES": "AVAIL_FEATURES",
    "TRES_ALLOC": "TRES_ALLOC",
    "MIN_CPUS": "-",
}
_OF_JOBS = frozenset(("JOBID", "ARRAY_JOB_ID"))
_OF_NODES = frozenset(("NODELIST", "HOSTNAMES", "PARTITION"))
_BESIDE_NODES = frozenset(("STATE", "STATECOMPACT", "STATELONG", "NODES", "CPUS", "GRES", "AVAIL", "REASON"))
_NO_TABLE = tuple(
    frozenset(names.split())
    for names in (
        "Name Priority GraceTime",
        "User DefaultAccount",
        "User Def_Acct",
        "Cluster Account User",
        "Account User RawShares",
        "Cluster NodeName TimeStart",
        "JOBID PRIORITY FAIRSHARE",
        "JOBID PRIORITY AGE",
        "Account Descr Org",
        "Cluster ControlHost",
        "Type Name ID",
        "Name Server Type",
        "User Admin",
    )
)


def kind_of_header(names: Sequence[str]) -> layouts.Of | None:
    known = set(names)
    if any(wanted <= known for wanted in _NO_TABLE):
        return layouts.Of.NOTHING
    if known & _OF_JOBS and known & {"STATE", "ST"}:
        return layouts.Of.JOB
    if {"PARTITION", "USER"} <= known and known & {"STATE", "ST"} and "NODELIST" not in known:
        return layouts.Of.JOB
    if known & _OF_NODES and len(known & _BESIDE_NODES) >= 1 and len(known) > 1:
        return layouts.Of.NODE
    return None


def named(names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return cells by name. A name that is twice: JOBID is the longer one (30_7 and 34), else the longer text."""
    found: dict[str, str] = {}
    for name, cell in zip((_ALIASES.get(name, name) for name in names), (cell.strip() for cell in cells), strict=True):
        if name not in found:
            found[name] = cell
            continue
        if name == "JOBID":
            short, long = sorted((found[name], cell), key=lambda one: (not one.isdecimal(), len(one)))
            found["JOBID_RAW"], found[name] = short, long
        elif len(cell) > len(found[name]):
            found[name] = cell
    return found


def is_row(names: Sequence[str], cells: Sequence[str], of: layouts.Of) -> bool:
    """Return whether the cells that have a form have it; a state is of jobs or of nodes."""
    state = layouts.FORMS["JOB_STATE" if of is layouts.Of.JOB else "STATE"]
    forms = {**layouts.FORMS, "STATE": state}
    return all(
        values.is_nothing(cell) or forms[name](cell.strip())
        for name, cell in zip(names, cells, strict=True)
        if name in forms and name not in _LOOSE
    )


_LOOSE = frozenset(("ST", "PARTITION", "NODELIST", "ACCOUNT", "FEATURES", "GRES", "TRES_PER_NODE"))


def is_one_node(cells: Mapping[str, str]) -> bool:
    name = cells.get("NODELIST") or cells.get("HOSTNAMES") or ""
    return "[" not in name and "," not in name and bool(name) and not name.startswith("(")
