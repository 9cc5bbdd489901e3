"""Rows of the lake -> the values that placement is judged by: machines, stays, waits, past runs, settings.

GPUs are shared out evenly among an attempt's nodes: accounting does not say which node held how many.

Who gave up while it waited is counted, not judged: how long it would have waited nobody knows.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib.resources import files

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.placement.fragmentation import Alike
from ops_pipelines.efficiency.placement.scheduler_policy import PolicyRow, Scope, Unwanted
from ops_pipelines.efficiency.placement.spread import Traffic
from ops_pipelines.efficiency.placement.standing import Machine, Stay, Waiting
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.lake.quantities import Parsed, Refused
from ops_pipelines.quotas.spans import with_running

# -- what the readers of placement share --


Row = Mapping[str, object]


def rows_of(table: pa.Table, columns: Sequence[str]) -> list[Row]:
    """Return rows with these columns; one that the table lacks is None in every row."""
    there = [name for name in columns if name in table.column_names]
    lacking = dict.fromkeys((name for name in columns if name not in there), None)
    found: list[Row] = [{**lacking, **row} for row in table.select(there).to_pylist()]
    return found


def text_of(cell: object) -> str:
    """Return a text; '' for none."""
    return cell if isinstance(cell, str) else ""


def number_of(cell: object) -> float | None:
    """Return a number; None for none, and for what is no number (NaN)."""
    if isinstance(cell, bool) or not isinstance(cell, int | float) or cell != cell:
        return None
    return float(cell)


def time_of(cell: object) -> datetime | None:
    return cell if isinstance(cell, datetime) else None


def refuse(row: Row, reason: str, detail: str) -> Refused:
    """Return a row as it was refused. `detail`: what was found, what was expected."""
    shown = {name: cell for name, cell in row.items() if cell is not None}
    text = " ".join(f"{name}={_shown(cell)}" for name, cell in shown.items())
    record = ", ".join(_shown(shown[name]) for name in ("job", "attempt", "started_at", "node") if name in shown)
    return Refused(record=record, reason=reason, detail=detail, text=text[:1000], into="placement_report")


def _shown(cell: object) -> str:
    return f"{cell:%Y-%m-%dT%H:%M:%SZ}" if isinstance(cell, datetime) else str(cell)


# -- cluster.yaml and rows of inventory -> the nodes that jobs may be given --


INVENTORY_COLUMNS = ("node", "device", "time", "kind", "partitions", "cpu_count", "gpu_count", "memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesRead:
    """The nodes of cluster.yaml."""

    machines: tuple[Machine, ...]
    notes: tuple[str, ...]


def read_machines(inventory: pa.Table, *, topology: Topology) -> MachinesRead:
    """Return the nodes as the newest rows have them."""
    machines = {
        node: Machine(node=node, place=place, gpu_count=topology.gpus_per_node)
        for node, place in sorted(topology.places.items())
    }
    rows = [row for row in rows_of(inventory, INVENTORY_COLUMNS) if row["kind"] == "node"]
    for row in sorted(rows, key=lambda each: str(each["time"])):
        node = NodeName(text_of(row["node"]))
        if node not in machines:
            continue
        machine = machines[node]
        gpus, cpus, memory = (number_of(row[name]) for name in ("gpu_count", "cpu_count", "memory_bytes"))
        listed = row["partitions"]
        machines[node] = replace(
            machine,
            # A node that is down may show none of its GPUs.
            gpu_count=int(gpus) if gpus else machine.gpu_count,
            cpu_count=int(cpus) if cpus else machine.cpu_count,
            memory_bytes=memory or machine.memory_bytes,
            partitions=_partitions(listed) if isinstance(listed, str) else machine.partitions,
        )
    return MachinesRead(machines=tuple(machines.values()), notes=_notes(tuple(machines.values())))


def _partitions(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _notes(machines: Sequence[Machine]) -> tuple[str, ...]:
    return tuple(
        f"the {what} of {lacking} of {len(machines)} nodes are not known: they strand nothing there"
        for what, lacking in (
            ("CPUs", sum(each.cpu_count is None for each in machines)),
            ("bytes of memory", sum(each.memory_bytes is None for each in machines)),
            ("partitions", sum(each.partitions is None for each in machines)),
        )
        if lacking
    )


# -- what jobs needed before --


EFFICIENCY_COLUMNS = ("node", "job", "verdict", "held_seconds", "fabric_bytes_per_second")
_BOUND = "communication_bound"


def elapsed_of(accounting: pa.Table, *, until: datetime) -> Mapping[Alike, Sequence[float]]:
    """Return the run times of attempts that ended by themselves by `until`; others needed longer than they had."""
    ends = accounting["ended_at"]
    is_over = pc.and_(
        pc.less_equal(ends, pa.scalar(until, ends.type)),
        pc.and_(pc.equal(accounting["state"], "COMPLETED"), pc.is_valid(accounting["elapsed_seconds"])),
    )
    ended = accounting.filter(pc.fill_null(is_over, False))
    found: defaultdict[Alike, list[float]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for row in rows_of(ended, ("job", "attempt", "user", "name", "elapsed_seconds")):
        key = text_of(row["job"]), text_of(row["attempt"])
        elapsed = number_of(row["elapsed_seconds"])
        if key not in seen and elapsed is not None and elapsed > 0 and row["user"] and row["name"]:
            seen.add(key)
            found[text_of(row["user"]), text_of(row["name"])].append(elapsed)
    return found


def traffic_of(efficiency: pa.Table) -> Mapping[str, Traffic]:
    """Return job -> its mean traffic by node, weighted by time; jobs of which nobody measured any are left out."""
    seconds: defaultdict[str, float] = defaultdict(float)
    carried: defaultdict[str, float] = defaultdict(float)
    bound: defaultdict[str, float] = defaultdict(float)
    for row in rows_of(efficiency, EFFICIENCY_COLUMNS):
        job, held = text_of(row["job"]), number_of(row["held_seconds"])
        rate = number_of(row["fabric_bytes_per_second"])
        if job and held and rate is not None and rate >= 0:
            seconds[job] += held
            carried[job] += rate * held
            bound[job] += held if row["verdict"] == _BOUND else 0.0
    return {
        job: Traffic(bytes_per_second=carried[job] / held, is_bound=bound[job] * 2 > held)
        for job, held in seconds.items()
    }


# -- the rows of catalogue/scheduler_policy.csv --


_NEEDED = ("name", "scope", "setting", "unwanted", "why", "set", "source", "checked_on")
_WITH_VALUE = frozenset({Unwanted.IS, Unwanted.LACKS, Unwanted.BELOW})


@cache
def read_scheduler_policy() -> tuple[PolicyRow, ...]:
    """Return the rows in their order. Raises ValueError with the line that cannot be right."""
    text = files("ops_pipelines.catalogue").joinpath("scheduler_policy.csv").read_text(encoding="utf-8")
    found = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            found.append(_row(row))
        except (KeyError, ValueError, TypeError) as exc:
            raise ValueError(f"catalogue/scheduler_policy.csv, line {number}: {exc}") from exc
    return tuple(found)


def _row(row: Mapping[str, str]) -> PolicyRow:
    if not all(row[name] for name in _NEEDED):
        raise ValueError(f"expected all of {', '.join(_NEEDED)}")
    unwanted = Unwanted(row["unwanted"])
    if (unwanted in _WITH_VALUE) is not bool(row["value"]):
        raise ValueError(f"{unwanted.value} with the value {row['value']!r}; expected one with is, lacks, below alone")
    return PolicyRow(
        name=row["name"],
        scope=Scope(row["scope"]),
        setting=row["setting"],
        unwanted=unwanted,
        value=row["value"],
        default=row["default"],
        when=tuple(condition.strip() for condition in row["when"].split(";") if condition.strip()),
        why=row["why"],
        set_to=row["set"],
        source=row["source"],
        checked_on=date.fromisoformat(row["checked_on"]),
    )


# -- rows of accounting and allocations -> who held which node from when until when --


ACCOUNTING_COLUMNS = (
    "job", "attempt", "time", "name", "user", "account", "partition", "state", "reason", "submitted_at",
    "eligible_at", "started_at", "ended_at", "elapsed_seconds", "time_limit_seconds", "node_count", "cpu_count",
    "gpu_count", "memory_bytes", "nodes", "restart_count",
)  # fmt: skip
ALLOCATION_COLUMNS = (
    "job", "attempt", "node", "time", "name", "user", "account", "partition", "state", "started_at", "ended_at",
    "gpu_count",
)  # fmt: skip
_NO_NODES = frozenset({"", "None assigned", "None"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StaysRead:
    """Attempts that held nodes."""

    stays: tuple[Stay, ...]
    """By their begin; each attempt once."""
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]


def read_stays(
    accounting: pa.Table, allocations: pa.Table, *, topology: Topology, since: datetime, until: datetime
) -> StaysRead:
    """Return the attempts that held nodes within [since, until)."""
    held = with_running(accounting, allocations)
    begins, ends = held.attempts["started_at"], held.attempts["ended_at"]
    # Kleene: whose end is not known runs still.
    overlaps = pc.and_kleene(
        pc.less(begins, pa.scalar(until, begins.type)),
        pc.or_kleene(pc.is_null(ends), pc.greater(ends, pa.scalar(since, ends.type))),
    )
    # Who ends before it starts must be seen to be refused.
    wrong = pc.less(ends, begins)
    chosen = held.attempts.filter(pc.or_(pc.fill_null(overlaps, False), pc.fill_null(wrong, False)))
    newest: dict[tuple[str, datetime], Stay] = {}
    refused: list[Refused] = []
    named = _names(allocations)
    for row in rows_of(chosen, ACCOUNTING_COLUMNS):
        stay, fault = _read(row, topology=topology, named=named)
        if fault is not None:
            refused.append(fault)
        if stay is not None and _is_later(stay, newest.get(stay.key)):
            newest[stay.key] = stay
    notes = []
    if held.alone:
        notes.append(
            f"of {held.alone} attempts only the hours are known in which they held nodes: no time limit, CPUs or memory"
        )
    if held.unseen:
        notes.append(f"of {held.unseen} attempts nobody reported the end: it is the last hour in which they were seen")
    stays = tuple(sorted(newest.values(), key=lambda each: (each.began_at, each.job)))
    return StaysRead(stays=stays, refused=tuple(refused), notes=tuple(notes))


def _is_later(stay: Stay, before: Stay | None) -> bool:
    """Return whether this is the later reading of an attempt: that with an end, of two the later one."""
    if before is None or before.ended_at is None:
        return True
    return stay.ended_at is not None and stay.ended_at > before.ended_at


def _names(allocations: pa.Table) -> dict[tuple[str, datetime], tuple[str, str]]:
    """Return job and start -> name and user: what allocations say of who runs."""
    found = {}
    for row in rows_of(allocations, ("job", "started_at", "name", "user")):
        began_at = time_of(row["started_at"])
        if began_at is not None:
            found[text_of(row["job"]), began_at] = text_of(row["name"]), text_of(row["user"])
    return found


def _read(
    row: Row, *, topology: Topology, named: dict[tuple[str, datetime], tuple[str, str]]
) -> tuple[Stay | None, Refused | None]:
    """Return the stay, and the refusal; both where only some of the nodes are unknown."""
    began_at, ended_at = time_of(row["started_at"]), time_of(row["ended_at"])
    listed = text_of(row["nodes"])
    if began_at is None or text_of(row["state"]) == "PENDING" or (ended_at is not None and ended_at == began_at):
        return None, None
    if ended_at is not None and ended_at < began_at:
        return None, refuse(row, "ends_before_it_starts", "expected the end after the start")
    gpus = number_of(row["gpu_count"])
    if gpus is None:
        return None, refuse(row, "no_gpu_count", "how many GPUs is not reported; expected a number, 0 for none")
    if gpus < 0:
        return None, refuse(row, "negative_gpus", f"{gpus:g} GPUs; expected 0 or more")
    if listed in _NO_NODES:
        return None, refuse(row, "no_nodes", "it has started and no node is named; expected a host list")
    try:
        nodes = list(dict.fromkeys(expand_host_list(listed)))
    except ValueError as exc:
        return None, refuse(row, "bad_host_list", str(exc)[:300])
    known = [NodeName(node) for node in nodes if topology.knows(NodeName(node))]
    unknown = [node for node in nodes if node not in known]
    fault = None
    if unknown:
        fault = refuse(
            row, "unknown_node", f"cluster.yaml does not name {', '.join(unknown[:5])}; expected nodes that it names"
        )
    if not known:
        return None, fault
    job = text_of(row["job"])
    name, user = named.get((job, began_at), ("", ""))
    cpus, memory = number_of(row["cpu_count"]), number_of(row["memory_bytes"])
    stay = Stay(
        job=job,
        name=text_of(row["name"]) or name,
        user=text_of(row["user"]) or user,
        team=TeamName(text_of(row["account"])),
        partition=text_of(row["partition"]),
        began_at=began_at,
        ended_at=ended_at,
        gpus={node: gpus / len(nodes) for node in known},
        cpus_per_node=None if cpus is None else cpus / len(nodes),
        memory_bytes_per_node=None if memory is None else memory / len(nodes),
        time_limit_seconds=number_of(row["time_limit_seconds"]),
    )
    return stay, fault


# -- rows of accounting -> how long each job waited for its start --


_SLACK = timedelta(minutes=1)
"""Clocks of a cluster differ by less."""
_FOR_ROOM = ("none", "priority", "resources", "reqnodenotavail", "nodes_required", "nodedown", "badconstraints")
"""Reasons of who waits for GPUs; without a reason it is believed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsRead:
    """Waits that ended within the window, or last at its end."""

    waits: tuple[Waiting, ...]
    """By their begin."""
    refused: tuple[Refused, ...]
    notes: tuple[str, ...]


def read_waits(accounting: pa.Table, *, start: datetime, end: datetime) -> WaitsRead:
    """Return who started in [start, end), and who waits at `end` still, of jobs that ask for GPUs."""
    by_job: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows_of(accounting, ACCOUNTING_COLUMNS):
        gpus = number_of(row["gpu_count"])
        if gpus is not None and gpus > 0:
            by_job[text_of(row["job"])].append(row)
    waits: list[Waiting] = []
    refused: list[Refused] = []
    gave_up = untold = 0
    for rows in by_job.values():
        over: datetime | None = None
        for row in _each_once(rows):
            begin, started_at = _since(row, over), _started(row)
            ended_at = time_of(row["ended_at"])
            if started_at is None:
                if ended_at is not None:
                    gave_up += start <= ended_at < end
                elif begin is not None and begin < end:
                    waits.append(_waiting(row, since=begin, until=None))
                continue
            over = ended_at
            if not start <= started_at < end:
                # Who starts later waits at the end of the window.
                if started_at >= end and begin is not None and begin < end:
                    waits.append(_waiting(row, since=begin, until=None))
                continue
            if begin is None:
                untold += 1
            elif begin - started_at > _SLACK:
                refused.append(refuse(row, "starts_before_submit", "expected the start after the submission"))
            else:
                waits.append(_waiting(row, since=min(begin, started_at), until=started_at))
    notes = []
    if untold:
        notes.append(f"of {untold} jobs nobody reported since when they waited")
    if gave_up:
        notes.append(f"{gave_up} jobs were cancelled while they waited: they are in no number here")
    return WaitsRead(
        waits=tuple(sorted(waits, key=lambda each: (each.since, each.job))), refused=tuple(refused), notes=tuple(notes)
    )


def with_told(accounting: pa.Table, told: Iterable[Parsed]) -> pa.Table:
    """Return the rows of the lake with those of jobs that wait now, as the scheduler says."""
    tables = [each.tables["job_accounting"] for each in told if "job_accounting" in each.tables]
    return pa.concat_tables(
        [accounting, *(each.select(accounting.column_names).cast(accounting.schema) for each in tables)]
    )


def _each_once(rows: list[Row]) -> list[Row]:
    """Return the attempts by their start, each as reported last, and the wait that lasts, if none has started."""
    started: dict[datetime, Row] = {}
    newest: Row | None = None
    for row in rows:
        began_at = _started(row)
        if began_at is None:
            newest = row if newest is None or _asked_at(row) >= _asked_at(newest) else newest
        elif began_at not in started or time_of(row["ended_at"]) is not None:
            started[began_at] = row
    found = [started[key] for key in sorted(started)]
    if newest is not None:
        # A listing of who waits is older than the start that followed it.
        asked_at = _asked_at(newest)
        ends = [time_of(row["ended_at"]) for row in found]
        waits_again = found and ends[-1] is not None and asked_at >= ends[-1]
        if not found or waits_again:
            found.append(newest)
    return found


def _started(row: Row) -> datetime | None:
    return None if text_of(row["state"]) == "PENDING" else time_of(row["started_at"])


_NEVER = datetime.min.replace(tzinfo=UTC)


def _asked_at(row: Row) -> datetime:
    return time_of(row["time"]) or time_of(row["submitted_at"]) or _NEVER


def _since(row: Row, over: datetime | None) -> datetime | None:
    """Return since when it waits: submitted, eligible, and the attempt before over, whichever is last."""
    submitted, eligible = time_of(row["submitted_at"]), time_of(row["eligible_at"])
    known = [at for at in (submitted, eligible, over) if at is not None]
    return max(known) if submitted is not None or eligible is not None else None


def _waiting(row: Row, *, since: datetime, until: datetime | None) -> Waiting:
    reason = text_of(row["reason"])
    gpus = number_of(row["gpu_count"]) or 0.0
    return Waiting(
        job=text_of(row["job"]),
        name=text_of(row["name"]),
        user=text_of(row["user"]),
        team=TeamName(text_of(row["account"])),
        partition=text_of(row["partition"]),
        gpu_count=gpus,
        node_count=max(1, int(number_of(row["node_count"]) or 1)),
        since=since,
        until=until,
        reason="" if reason.lower() in ("none", "(null)") else reason,
        is_for_room=not reason or reason.lower().replace(" ", "_").startswith(_FOR_ROOM),
        time_limit_seconds=number_of(row["time_limit_seconds"]),
    )
