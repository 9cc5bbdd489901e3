"""Jobs, nodes and partitions as the scheduler lists them now -> rows.

What is as the start of a waiting job and as the end of a running one is a forecast: neither is kept.

A node that is in several partitions is several rows in sinfo and one here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ops_pipelines.lake.formats import slurm_json as read
from ops_pipelines.lake.formats import slurm_json as states
from ops_pipelines.lake.formats import slurm_values as values
from ops_pipelines.lake.formats.reading import Cell, Tally, Unbelievable
from ops_pipelines.lake.formats.sacct import job_of
from ops_pipelines.lake.node_names import expand_host_list

# -- one job as the scheduler reports of it now (squeue, scontrol show job --


Cells = Mapping[str, str]
"""Names as squeue heads its columns -> what is there."""

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


# -- nodes and partitions as the scheduler reports of them -> rows of `inventory` --


_MIB = 2**20
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253})", re.ASCII)
_MAX_LISTED = 500_000
"""# Assumption: no honest file lists more nodes, repeated by partition; a forged one must come to an end."""
NODE_FROM_SCONTROL: Mapping[str, str] = {
    "NodeName": "NODELIST",
    "State": "STATE",
    "Partitions": "PARTITION",
    "AvailableFeatures": "AVAIL_FEATURES",
    "Features": "AVAIL_FEATURES",
    "CPUTot": "CPUS",
    "RealMemory": "MEMORY",
    "Gres": "GRES",
    "CfgTRES": "TRES",
    "OS": "OS",
}
"""Key of `scontrol show node` -> sinfo's name for the same."""


@dataclass(slots=True)
class Site:
    """What one file says of nodes, gathered."""

    tally: Tally
    at: datetime
    _nodes: dict[str, dict[str, Cell]] = field(default_factory=dict)
    _partitions: dict[str, list[str]] = field(default_factory=dict)
    _figures: dict[str, dict[str, float]] = field(default_factory=dict)
    _listed_count: int = 0

    def listed_nodes(self, cells: Mapping[str, str]) -> tuple[str, ...]:
        """Return the nodes of a row about nodes that are alike, as `gpu[001-008]`; none if it lists none.

        Raises Unbelievable.
        """
        listed = (cells.get("NODELIST") or cells.get("NODELISTS") or "").strip()
        if values.is_nothing(listed) or listed.startswith("("):
            return ()
        try:
            names = expand_host_list(listed)
        except ValueError as exc:
            raise Unbelievable("bad_node_name", str(exc)[:200]) from exc
        self._listed_count += len(names)
        if self._listed_count > _MAX_LISTED:
            raise Unbelievable("too_many_nodes", f"{values.shown(listed)}: over {_MAX_LISTED} nodes in this file")
        return names

    def add_node(self, cells: Mapping[str, str]) -> None:
        """Take one node of text, with sinfo's names of columns. Raises Unbelievable."""
        name = read_node_name(cells.get("NODELIST") or cells.get("HOSTNAMES") or "")
        tres = values.read_tres(cells.get("TRES", ""))
        gpus = values.gpus_of_tres(tres) if tres else values.gpus_of_gres(cells.get("GRES", ""))
        state = values.read_label(cells.get("STATE", ""))
        memory = values.read_bytes(cells.get("MEMORY", "").rstrip("+"), unit="M")
        cpus = values.read_count(cells.get("CPUS", ""))
        if "CPUS(A/I/O/T)" in cells:
            four = read_four(cells["CPUS(A/I/O/T)"])
            cpus = four[3] if cpus is None else cpus
        system = cells.get("OS", "").split()
        self._keep(
            name,
            {
                "state": state,
                "features": values.read_label(cells.get("AVAIL_FEATURES", "") or cells.get("ACTIVE_FEATURES", "")),
                "cpu_count": cpus,
                "gpu_count": gpus,
                "memory_bytes": memory,
                "kernel_version": values.printable(system[1]) if len(system) > 1 else None,
            },
            partitions=cells.get("PARTITION", ""),
        )

    def add_json_node(self, row: read.Row) -> None:
        """Take one node of `scontrol show nodes --json`, of sinfo to 22.05, or of slurm/nodes. Raises Unbelievable."""
        name = read_node_name(read.label(row, "name") or "")
        states = read.names(row, "state") + read.names(row, "state_flags")
        tres = values.read_tres(read.label(row, "tres") or "")
        memory = read.number(row, "real_memory")
        system = (read.label(row, "operating_system") or "").split()
        self._keep(
            name,
            {
                "state": "+".join(states) or None,
                "features": read.joined(row, "features"),
                "cpu_count": read.whole(row, "cpus"),
                "gpu_count": values.gpus_of_tres(tres)
                if any(key.startswith("gres/") for key in tres)
                else values.gpus_of_gres(read.label(row, "gres") or "") or 0,
                "memory_bytes": None if memory is None else memory * _MIB,
                "kernel_version": system[1] if len(system) > 1 else None,
            },
            partitions=read.joined(row, "partitions") or "",
        )

    def add_group(self, row: read.Row) -> None:
        """Take one row of `sinfo --json` from 23.02 on: nodes that are alike. Raises Unbelievable."""
        nodes, partition = read.child(row, "nodes"), read.label(read.child(row, "partition"), "name") or ""
        states = read.names(read.child(row, "node"), "state")
        gres, memory = read.child(row, "gres"), read.whole(read.child(row, "memory"), "minimum")
        cpus = read.whole(read.child(row, "cpus"), "minimum")
        listed = nodes.get("nodes")
        names = [read_node_name(str(name)) for name in listed] if isinstance(listed, list) else []
        for name in names:
            self._keep(
                name,
                {
                    "state": "+".join(states) or None,
                    "features": read.joined(read.child(row, "features"), "total"),
                    "cpu_count": cpus,
                    "gpu_count": values.gpus_of_gres(read.label(gres, "total") or "") or 0,
                    "memory_bytes": None if memory is None else float(memory * _MIB),
                },
                partitions=partition,
            )
        count = read.whole(nodes, "total")
        if count:
            self.count_nodes(device_of(partition), "+".join(states), count)

    def count(self, device: str, column: str, amount: float) -> None:
        """Add to a figure of `platform_telemetry`."""
        figures = self._figures.setdefault(device, {})
        figures[column] = figures.get(column, 0) + amount

    def count_nodes(self, device: str, state: str, amount: int) -> None:
        """Add nodes in a state."""
        column = column_of_state(state)
        if column is not None:
            self.count(device, column, amount)
        self.count(device, "nodes_total_count", amount)

    def close(self) -> None:
        """Hand what was gathered to the tally."""
        for name, cells in self._nodes.items():
            partitions = ",".join(sorted(dict.fromkeys(self._partitions[name]))) or None
            self.tally.put("inventory", cells | {"partitions": partitions})
        for device, figures in self._figures.items():
            self.tally.put("platform_telemetry", {"node": "", "device": device, "time": self.at, **_floats(figures)})

    def _keep(self, name: str, cells: Mapping[str, Cell], *, partitions: str) -> None:
        known = self._nodes.setdefault(
            name, {"node": name, "device": "", "time": self.at, "kind": "node", "source": self.tally.source}
        )
        known.update({key: cell for key, cell in cells.items() if cell is not None and key not in known})
        kept = self._partitions.setdefault(name, [])
        kept += [part for part in _words(partitions) if part not in kept]


def _floats(figures: Mapping[str, float]) -> dict[str, Cell]:
    return {name: float(value) for name, value in figures.items()}


def _words(text: str) -> list[str]:
    return [values.printable(word.strip().rstrip("*")) for word in text.split(",") if not values.is_nothing(word)]


def device_of(partition: str) -> str:
    """Return the device under which figures of a partition stand; those of the whole cluster stand under none."""
    name = values.printable(partition.strip().rstrip("*"))
    return f"partition:{name}" if name and not values.is_nothing(name) else ""


def read_node_name(text: str) -> str:
    """Return the name of one node. Raises Unbelievable."""
    name = text.strip()
    if not _NAME.fullmatch(name):
        raise Unbelievable("bad_node_name", f"{values.shown(text)}; expected the name of one node")
    return name


_FOUR = re.compile(r"(\d{1,12})/(\d{1,12})/(\d{1,12})/(\d{1,12})", re.ASCII)


def read_four(text: str) -> tuple[int, int, int, int]:
    """Return allocated, idle, other, total of `5725/877/34/6636`. Raises Unbelievable."""
    found = _FOUR.fullmatch(text.strip())
    if found is None:
        raise Unbelievable("bad_counts", f"{values.shown(text)}; expected allocated/idle/other/total")
    allocated, idle, other, total = (int(part) for part in found.groups())
    if allocated + idle + other != total:
        raise Unbelievable("bad_counts", f"{values.shown(text)}; expected the first three to make the fourth")
    return allocated, idle, other, total


_COLUMNS = (
    # What weighs most comes first: a node that is MIXED+DRAIN counts as drained.
    ("nodes_drain_count", {"DRAIN", "DRAINED", "DRAINING", "DRNG", "DRAINING@"}),
    ("nodes_fail_count", {"FAIL", "FAILING", "FAILG", "ERROR", "INVAL", "INVALID_REG"}),
    ("nodes_down_count", {"DOWN", "NOT_RESPONDING", "NO_RESPOND"}),
    ("nodes_maint_count", {"MAINT", "MAINTENANCE"}),
    ("nodes_resv_count", {"RESV", "RESERVED"}),
    ("nodes_mix_count", {"MIX", "MIXED"}),
    ("nodes_alloc_count", {"ALLOC", "ALLOCATED", "COMP", "COMPLETING"}),
    ("nodes_idle_count", {"IDLE"}),
)
NODE_STATES = frozenset[str]().union(
    *(words for _, words in _COLUMNS),
    values.words(
        "UNKNOWN UNK PLANNED PLND FUTURE FUTR POWER_DOWN POWERED_DOWN POWERING_DOWN POWERING_UP POWER_UP POW_DN "
        "POW_UP BOOT BLOCKED BLOCK PERFCTRS NPC REBOOT REBOOT_REQUESTED REBOOT_ISSUED DYNAMIC_NORM CLOUD "
        "POWERED_UP"
    ),
)
"""The words of sinfo(1) for states of nodes, long and short, 20.11 to 25.11."""
_SUFFIXES = "*~#!%$@^-"


def state_words(state: str) -> set[str]:
    """Return the words of a state without the marks behind them: `IDLE+DRAIN`, `down*`."""
    return {word.rstrip(_SUFFIXES) for word in state.strip().upper().replace(" ", "").split("+") if word}


def is_node_state(state: str) -> bool:
    """Return whether a text is a state of nodes in sinfo's words."""
    words = state_words(state)
    return bool(words) and words <= NODE_STATES


def column_of_state(state: str) -> str | None:
    """Return the figure in which a node of this state counts; None for states that have none."""
    words = state_words(state)
    return next((column for column, fitting in _COLUMNS if words & fitting), None)
