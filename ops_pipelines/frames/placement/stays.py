"""Rows of accounting and allocations -> who held which node from when until when. What cannot be is refused, and kept.

GPUs are shared out evenly among an attempt's nodes: accounting does not say which node held how many.
"""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.domain.placement.standing import Stay
from ops_pipelines.frames.placement.recorded_times import Row, number_of, refuse, rows_of, text_of, time_of
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.lake.quantities import Refused
from ops_pipelines.quotas.wanted.held import with_running

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
        notes.append(f"of {held.unseen} attempts nobody told the end: it is the last hour in which they were seen")
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
        return None, refuse(row, "no_gpu_count", "how many GPUs is not told; expected a number, 0 for none")
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
