"""What stood when, from rows of the lake: jobs at each change of their state; which GPU where, from when until when.

As far as the lake knows: accounting names attempts that ended, allocations those that held nodes in an hour, the
inventory what was seen of each part. Live, the scheduler says it (`core.scheduler`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress, parse_job_id, parse_node_name
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, JobStatus, Workload
from ops_pipelines.lake.inventory import batch_of
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.observe.detectors.stalls import EndedAttempt
from ops_pipelines.observe.repeated import PartKey, Seating


@dataclass(frozen=True, slots=True)
class Sighting:
    """A part in its place, as one row of an inventory has it."""

    part: PartKey
    node: NodeName
    pci: PciAddress | None
    uuid: GpuUuid | None
    labels: tuple[str, ...]


def read_seatings(inventories: Mapping[datetime, pa.Table], *, nodes: Collection[NodeName]) -> tuple[Seating, ...]:
    """Return which GPU stood where on some nodes; the cost is that of these nodes, however large the cluster."""
    chosen = pa.array(sorted(nodes), pa.string())
    # Chosen inside: an inventory without any rows says nothing, one without rows of these nodes that they were gone.
    spells = spells_of(inventories, keep=lambda rows: rows.filter(pc.is_in(rows.column("node"), value_set=chosen)))
    return seatings_of(spells)


Spell = tuple[Sighting, datetime, datetime | None]
"""From when until when a part was seen in one place; None: it still is."""


def spells_of(inventories: Mapping[datetime, pa.Table], *, keep: Callable[[pa.Table], pa.Table]) -> list[Spell]:
    """Return from when until when each part was seen where, by inventories and their times."""
    seen = {at: set(_sightings(keep(rows))) for at, rows in inventories.items() if rows.num_rows}
    return [spell for sighting in sorted(set().union(*seen.values()), key=str) for spell in _spells(sighting, seen)]


def seatings_of(spells: Iterable[Spell]) -> tuple[Seating, ...]:
    """Return which GPU stood where."""
    return tuple(
        Seating(
            node=each.node,
            pci=each.pci,
            since=since,
            until=until,
            uuid=each.uuid,
            serial=each.part.name if each.part.name != each.uuid else None,
        )
        for each, since, until in spells
        if each.pci is not None
    )


def _spells(sighting: Sighting, seen: Mapping[datetime, set[Sighting]]) -> Iterator[Spell]:
    since: datetime | None = None
    for at in sorted(seen):
        if sighting in seen[at]:
            since = since or at
        elif since is not None:
            yield sighting, since, at
            since = None
    if since is not None:
        yield sighting, since, None


def _sightings(rows: pa.Table) -> Iterator[Sighting]:
    names = ("node", "kind", "serial", "uuid", "pci_address", "model", "driver_version", "rack")
    known = [name for name in names if name in rows.column_names]
    listed = [dict.fromkeys(names) | row for row in rows.select(known).to_pylist()]
    gpus = [row for row in listed if row["kind"] == "gpu"]
    serials = [row["serial"] for row in gpus]
    racks = {row["node"]: row["rack"] for row in listed if row["rack"]}
    drivers = {row["node"]: row["driver_version"] for row in gpus if row["driver_version"]}
    for row in gpus:
        # A serial that two GPUs bear is their board's.
        own = row["serial"] if row["serial"] and serials.count(row["serial"]) == 1 else row["uuid"]
        if own:
            labels = (batch_of(row["serial"] or ""), row["model"], racks.get(row["node"]), row["driver_version"])
            yield Sighting(
                part=PartKey(kind=ComponentKind.GPU.value, name=own),
                node=NodeName(row["node"]),
                pci=None if row["pci_address"] is None else PciAddress(row["pci_address"]),
                uuid=None if row["uuid"] is None else GpuUuid(row["uuid"]),
                labels=tuple(each or "" for each in labels),
            )
    for node in sorted({row["node"] for row in listed if row["node"]}):
        yield Sighting(
            part=PartKey(kind=ComponentKind.NODE.value, name=node),
            node=NodeName(node),
            pci=None,
            uuid=None,
            labels=("", "", racks.get(node) or "", drivers.get(node) or ""),
        )


LATELY = timedelta(minutes=10)
"""For so long an attempt that ended is still named, as a scheduler does."""
ACCOUNTING_COLUMNS = (
    "job", "attempt", "time", "name", "user", "account", "state", "started_at", "ended_at", "gpu_count", "nodes",
    "restart_count",
)  # fmt: skip
ALLOCATION_COLUMNS = (
    "job", "attempt", "node", "time", "name", "user", "account", "state", "started_at", "ended_at", "gpu_count",
)  # fmt: skip
_JOB_STATES = {
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "NODE_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}
"""Words of accounting for an attempt that is over; an attempt without an end runs."""
Row = Mapping[str, object]


def attempts_of(accounting: pa.Table | None, allocations: pa.Table | None) -> tuple[JobStatus, ...]:
    """Return every attempt that began, once, as it stood when it was last read; by its start.

    Of an attempt that both tables name, accounting counts. Rows whose job or nodes have no possible name are passed
    over.
    """
    found: dict[tuple[JobId, datetime], JobStatus] = {}
    for held in _held(() if allocations is None else allocations.to_pylist()):
        if held.started_at is not None:
            found[held.job, held.started_at] = held
    for row in () if accounting is None else accounting.to_pylist():
        status = _accounted(row)
        if status is not None and status.started_at is not None:
            found[status.job, status.started_at] = status
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[1], key[0])))


def jobs_over_time(
    attempts: Sequence[JobStatus], *, start: datetime, end: datetime
) -> tuple[tuple[datetime, tuple[JobStatus, ...]], ...]:
    """Return what a scheduler would have stated of all jobs that run or ended LATELY: at `start`, and at each change up
    to `end`."""
    edges = {start}
    for each in attempts:
        edges |= {at for at in (each.started_at, each.ended_at) if at is not None}
        edges |= set() if each.ended_at is None else {each.ended_at + LATELY}
    times = sorted(at for at in edges if start <= at <= end)
    return tuple((at, tuple(_as_of(each, at) for each in attempts if _is_named(each, at))) for at in times)


def ended_attempts(jobs: Iterable[JobStatus]) -> tuple[EndedAttempt, ...]:
    """Return the attempts that are over, for who judges failures."""
    return tuple(
        EndedAttempt(
            job=job.job,
            name=job.name,
            user=job.user,
            nodes=job.nodes,
            started_at=job.started_at or job.ended_at,
            ended_at=job.ended_at,
            state=job.state,
        )
        for job in jobs
        if job.ended_at is not None and job.state not in HAS_PROCESSES and job.state is not JobState.PENDING
    )


def _is_named(attempt: JobStatus, at: datetime) -> bool:
    if attempt.started_at is None or attempt.started_at > at:
        return False
    return attempt.ended_at is None or at < attempt.ended_at + LATELY


def _as_of(attempt: JobStatus, at: datetime) -> JobStatus:
    if attempt.ended_at is None or attempt.ended_at <= at:
        return attempt
    return replace(attempt, state=JobState.RUNNING, ended_at=None)


def _held(rows: Iterable[Row]) -> list[JobStatus]:
    """Return the attempts of rows of job_allocations: a row an hour and node."""
    by_attempt: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_attempt.setdefault((str(row["job"]), str(row["attempt"])), []).append(row)
    found: list[JobStatus] = []
    for parts in by_attempt.values():
        newest = max(parts, key=lambda row: _time(row["time"]))
        gpus = {str(row["node"]): row["gpu_count"] for row in parts}
        counts = [count for count in gpus.values() if isinstance(count, (int, float))]
        status = _status(newest, nodes=gpus, gpu_count=round(sum(counts)))
        if status is not None:
            found.append(status)
    return found


def _accounted(row: Row) -> JobStatus | None:
    try:
        nodes = expand_host_list(str(row["nodes"])) if row["nodes"] else ()
    except ValueError:  # `None assigned`
        nodes = ()
    return _status(row, nodes=nodes, gpu_count=_whole(row["gpu_count"]))


def _status(row: Row, *, nodes: Iterable[str], gpu_count: int) -> JobStatus | None:
    ended_at = row["ended_at"] if isinstance(row["ended_at"], datetime) else None
    words = str(row["state"] or "").split()
    state = JobState.RUNNING if ended_at is None else _JOB_STATES.get(words[0] if words else "", JobState.UNKNOWN)
    try:
        return JobStatus(
            job=parse_job_id(str(row["job"])),
            state=state,
            is_held=False,
            is_requeueable=False,
            name=str(row["name"] or ""),
            user=str(row["user"] or ""),
            account=str(row["account"] or ""),
            workload=Workload.UNKNOWN,
            nodes=frozenset(parse_node_name(node) for node in nodes),
            gpu_count=gpu_count,
            started_at=row["started_at"] if isinstance(row["started_at"], datetime) else None,
            ended_at=ended_at,
            restart_count=_whole(row.get("restart_count")),
            excluded_nodes=frozenset(),
            checkpointed_at=None,
        )
    except ValueError:
        return None


def _whole(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _time(value: object) -> datetime:
    assert isinstance(value, datetime), "the schema of the table"
    return value
