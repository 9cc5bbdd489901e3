"""What is built in: GPUs, nodes, places; and the same GPU followed while its index, address or node changes.

Rows of inventory or of gpu_telemetry in, changes out. What a change means for a repair is `domain`'s business.

Here: rows of `inventory` out of other tables. Reading files and answers is `formats`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.lake.schema import TABLES

# -- the same GPU followed by serial and UUID while its index, PCI address or node changes --


_NO_SERIAL = frozenset({"", "0", "N/A", "[N/A]", "Unknown", "unknown", "None"})
_MIG = "/mig"


class ChangeKind(Enum):
    RENUMBERED = "renumbered"
    """Same place, another index: drivers number again at a boot."""
    MOVED = "moved"
    """Another PCI address of the same node."""
    TRANSFERRED = "transferred"
    """Another node."""
    SWAPPED = "swapped"
    """It and another GPU changed places."""
    REPLACED = "replaced"
    """A GPU that was never seen before is where another stood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a GPU is. None: never stated."""

    node: str
    pci_address: str | None = None
    gpu_index: int | None = None

    @property
    def place(self) -> tuple[str, str | int | None]:
        """What stays with the slot: the PCI address, else the index."""
        return self.node, self.gpu_index if self.pci_address is None else self.pci_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one GPU's place. It happened after `last_seen_at` and not after `since`."""

    kind: ChangeKind
    gpu: str
    """Its serial, else its UUID: the GPU that is at `after` now."""
    before: Seat
    """Where it stood; for REPLACED the seat as its predecessor held it."""
    after: Seat
    last_seen_at: datetime
    """When it (for REPLACED: its predecessor) was last seen at `before`."""
    since: datetime
    """When it was first seen at `after`."""
    other: str | None = None
    """The GPU that it changed places with, or whose place it took."""


def parent_of(device: str) -> str:
    """Return the GPU that a MIG slice belongs to; a whole GPU is its own."""
    return device.split("/", 1)[0] if _MIG in device else device


def follow(rows: pa.Table) -> tuple[Change, ...]:
    """Return the changes of all GPUs in order of `since`. Rows may be in any order; MIG slices speak for their GPU.

    Takes `node`, `device`, `time`, and of `serial` or `gpu_serial`, `uuid` or `gpu_uuid`, `pci_address`, `gpu_index`,
    `kind` what there is. Two rows are of one GPU if they share a serial or a UUID; a serial that two UUIDs have at
    the same time is a board's, not a GPU's, and is not used. Rows with neither are passed over.
    """
    runs = list(_runs(rows))
    names = _name_gpus(runs)
    stays = _stays(runs, names)
    moves = [
        _moved(gpu, before, after)
        for gpu, listed in stays.items()
        for before, after in pairwise(listed)
        if before.seat != after.seat
    ]
    return tuple(
        sorted(
            [*_mark_swaps(moves), *_replacements(stays)],
            key=lambda change: (change.since, change.after.node, change.gpu, change.kind.value),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stay:
    """One GPU with one set of names at one seat, from its first to its last sighting without another between."""

    serial: str | None
    uuid: str | None
    seat: Seat
    first: datetime
    last: datetime


def _runs(rows: pa.Table) -> Iterator[_Stay]:
    """Yield equal sightings in a row as one. Works on distinct sightings of each device: hours of rows, few changes."""
    columns = _columns(rows)
    names = tuple(columns)
    table = pa.table({name: columns[name] for name in names} | {"time": rows.column("time")})
    # By GPU before node: one that went away and came back has three runs, not one.
    table = table.sort_by([(name, "ascending") for name in ("uuid", "serial", "device", "time", "node")])
    if table.num_rows == 0:
        return
    begins = np.zeros(table.num_rows, np.bool_)
    begins[0] = True
    for name in names:
        codes = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        begins[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], table.num_rows) - 1
    last = table.column("time").take(pa.array(ends)).to_pylist()
    for found, last_seen_at in zip(table.take(pa.array(starts)).to_pylist(), last, strict=True):
        yield from _read(found, first=found["time"], last=last_seen_at)


def _columns(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    wanted: Mapping[str, tuple[str, ...]] = {
        "node": ("node",),
        "device": ("device",),
        "serial": ("serial", "gpu_serial"),
        "uuid": ("gpu_uuid", "uuid"),
        "pci_address": ("pci_address",),
        "gpu_index": ("gpu_index",),
        "kind": ("kind",),
    }
    there = set(rows.column_names)
    return {
        name: rows.column(found)
        if (found := next((each for each in names if each in there), None))
        else pa.nulls(len(rows))
        for name, names in wanted.items()
    }


def _read(found: Mapping[str, object], *, first: datetime, last: datetime) -> Iterator[_Stay]:
    device, kind = str(found["device"] or ""), found["kind"]
    if kind not in (None, "gpu", "mig"):
        return
    serial, uuid = str(found["serial"] or ""), str(found["uuid"] or "")
    if kind == "mig" or _MIG in device:
        # What a slice says of itself is not its GPU's: only the device names that.
        parent = parent_of(device)
        serial, uuid = "", parent if parent.startswith("GPU-") else (uuid if uuid.startswith("GPU-") else "")
    is_serial = serial not in _NO_SERIAL and serial.strip("0") != ""
    is_uuid = uuid not in _NO_SERIAL and uuid.removeprefix("GPU-").strip("0-") != ""
    if not (is_serial or is_uuid):
        return
    address, index = found["pci_address"], found["gpu_index"]
    yield _Stay(
        serial=serial if is_serial else None,
        uuid=uuid if is_uuid else None,
        seat=Seat(
            node=str(found["node"]),
            pci_address=address if isinstance(address, str) else None,
            gpu_index=index if isinstance(index, int) else None,
        ),
        first=first,
        last=last,
    )


def _name_gpus(runs: Sequence[_Stay]) -> dict[str, str]:
    """Return for each serial and UUID the one name of its GPU: the serial that is smallest, else the UUID."""
    shared = _shared_serials(runs)
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for run in runs:
        known = [f"s{run.serial}"] if run.serial is not None and run.serial not in shared else []
        known += [f"u{run.uuid}"] if run.uuid is not None else []
        for name in known:
            # `s` sorts before `u`, so that a serial names the GPU wherever there is one.
            low, high = sorted((root(known[0]), root(name)))
            parents[high] = low
    return {name: root(name)[1:] for name in parents}


def _shared_serials(runs: Iterable[_Stay]) -> frozenset[str]:
    """Return the serials that two UUIDs have at the same time."""
    by_serial: dict[str, list[_Stay]] = {}
    for run in runs:
        if run.serial is not None and run.uuid is not None:
            by_serial.setdefault(run.serial, []).append(run)
    return frozenset(
        serial
        for serial, listed in by_serial.items()
        if any(
            one.uuid != other.uuid and one.first <= other.last and other.first <= one.last
            for number, one in enumerate(listed)
            for other in listed[number + 1 :]
        )
    )


def _stays(runs: Sequence[_Stay], names: Mapping[str, str]) -> dict[str, list[_Stay]]:
    """Return the stays of each GPU in order. What a sighting does not say stays as it was."""
    by_gpu: dict[str, list[_Stay]] = {}
    for run in sorted(runs, key=lambda run: (run.first, run.last)):
        gpu = names.get(f"u{run.uuid}") or names.get(f"s{run.serial}")
        if gpu is None:
            continue
        listed = by_gpu.setdefault(gpu, [])
        if listed and run.seat.node == listed[-1].seat.node:
            run = replace(run, seat=_complete(run.seat, listed[-1].seat))
            if run.seat == listed[-1].seat or _says_less(listed[-1].seat, run.seat):
                listed[-1] = replace(listed[-1], seat=run.seat, last=max(listed[-1].last, run.last))
                continue
        listed.append(run)
    return by_gpu


def _complete(seat: Seat, known: Seat) -> Seat:
    """Return the seat with what was known before where it says nothing; an index goes with its address only."""
    address = known.pci_address if seat.pci_address is None else seat.pci_address
    index = known.gpu_index if seat.gpu_index is None and address == known.pci_address else seat.gpu_index
    return Seat(node=seat.node, pci_address=address, gpu_index=index)


def _says_less(seat: Seat, than: Seat) -> bool:
    """Return whether both may be one seat of which `seat` is the poorer description."""
    return seat.pci_address in (None, than.pci_address) and seat.gpu_index in (None, than.gpu_index)


def _moved(gpu: str, before: _Stay, after: _Stay) -> Change:
    if before.seat.node != after.seat.node:
        kind = ChangeKind.TRANSFERRED
    elif before.seat.pci_address != after.seat.pci_address:
        kind = ChangeKind.MOVED
    else:
        kind = ChangeKind.RENUMBERED
    return Change(kind=kind, gpu=gpu, before=before.seat, after=after.seat, last_seen_at=before.last, since=after.first)


def _mark_swaps(moves: Sequence[Change]) -> list[Change]:
    """Return the moves, those marked that are one half of a swap: each is where the other stood, at one time."""
    physical = [move for move in moves if move.kind is not ChangeKind.RENUMBERED]
    by_places = {(move.before.place, move.after.place): move for move in physical}
    found: list[Change] = []
    for move in moves:
        other = by_places.get((move.after.place, move.before.place))
        is_swap = (
            other is not None
            and move.kind is not ChangeKind.RENUMBERED
            and other.gpu != move.gpu
            and other.last_seen_at < move.since
            and move.last_seen_at < other.since
        )
        found.append(replace(move, kind=ChangeKind.SWAPPED, other=other.gpu) if other and is_swap else move)
    return found


def _replacements(stays: Mapping[str, Sequence[_Stay]]) -> Iterator[Change]:
    """Yield a change for each GPU that first appears where another stood before."""
    by_place: dict[tuple[str, str | int | None], list[tuple[datetime, str, _Stay]]] = {}
    for gpu, listed in stays.items():
        for stay in listed:
            by_place.setdefault(stay.seat.place, []).append((stay.first, gpu, stay))
    for place, seated in by_place.items():
        if place[1] is None:
            continue
        seated.sort(key=lambda each: each[:2])
        for (_, former, before), (_, gpu, after) in pairwise(seated):
            if gpu != former and after is stays[gpu][0] and before.last < after.first:
                yield Change(
                    kind=ChangeKind.REPLACED,
                    gpu=gpu,
                    before=before.seat,
                    after=after.seat,
                    last_seen_at=before.last,
                    since=after.first,
                    other=former,
                )


# -- what is built in --


_FROM_LABELS: Mapping[str, str] = {
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "pci_address": "pci_address",
    "gpu_index": "gpu_index",
    "gpu_model": "model",
    "driver_version": "driver_version",
}
"""Label of gpu_telemetry -> column of inventory."""


def inventory_from_telemetry(gpu_rows: pa.Table, *, source: str = "gpu_telemetry") -> pa.Table:
    """Return one row for each GPU and MIG slice: its newest labels, at the time of its newest sample.

    A label that the newest sample lacks comes from the newest that has it. Memory is the most that was seen.
    """
    if not gpu_rows.num_rows:
        return TABLES["inventory"].arrow().empty_table()
    ordered = gpu_rows.sort_by([("node", "ascending"), ("device", "ascending"), ("time", "ascending")])
    labels = [*_FROM_LABELS, "mig_instance", "mig_profile"]
    newest = ordered.group_by(["node", "device"], use_threads=False).aggregate(
        [
            ("time", "last"),
            *((name, "last", pc.ScalarAggregateOptions(skip_nulls=True)) for name in labels),
            ("memory_total_bytes", "max"),
        ]
    )
    count = newest.num_rows
    is_slice = pc.is_valid(newest["mig_instance_last"])
    made: dict[str, pa.Array | pa.ChunkedArray] = {
        "node": newest["node"],
        "device": newest["device"],
        "time": newest["time_last"],
        "kind": pc.if_else(is_slice, "mig", "gpu"),
        "slot": newest["mig_profile_last"],
        "memory_bytes": newest["memory_total_bytes_max"],
        "source": pa.array([source] * count, pa.string()),
        **{column: newest[f"{label}_last"] for label, column in _FROM_LABELS.items()},
    }
    schema = TABLES["inventory"].arrow()
    arrays = [
        made[field.name].cast(field.type) if field.name in made else pa.nulls(count, field.type) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def with_places(inventory: pa.Table, topology: Topology) -> pa.Table:
    """Return the rows with rack, leaf switch and NVLink domain as the topology has them, and unknown nodes marked.

    A node that it does not name keeps the place that it has. Rows that belong to no node are not marked.
    """
    nodes = inventory["node"].to_pylist()
    places = [_place(topology, name) for name in nodes]
    marks = [None if not name else place is None for name, place in zip(nodes, places, strict=True)]
    named: Mapping[str, list[str | None]] = {
        "rack": [None if place is None else place.rack for place in places],
        "leaf_switch": [None if place is None else place.leaf_switch for place in places],
        "nvlink_domain": [None if place is None else place.nvlink_domain for place in places],
    }
    for column, found in named.items():
        at = inventory.schema.get_field_index(column)
        merged = pc.coalesce(pa.array(found, pa.string()), inventory[column])
        inventory = inventory.set_column(at, inventory.schema.field(at), merged)
    at = inventory.schema.get_field_index("unknown_node")
    return inventory.set_column(at, inventory.schema.field(at), pa.array(marks, pa.bool_()))


def _place(topology: Topology, name: str) -> Place | None:
    return topology.places.get(NodeName(name))


def build_inventory(
    gpu_rows: pa.Table, *, hour: datetime, topology: Topology, nodes: Sequence[NodeStatus] | None
) -> pa.Table:
    """Return what is built in within an hour, at its start: nodes of the topology and the scheduler, GPUs by telemetry.

    Without `nodes` the scheduler's columns are null. CPUs and memory of nodes the scheduler port does not tell.
    """
    gpus = inventory_from_telemetry(gpu_rows)
    statuses = {status.node: status for status in nodes or ()}
    tells_partitions = any(status.partitions for status in statuses.values())
    names = sorted({*topology.places, *statuses, *(NodeName(name) for name in gpus["node"].to_pylist() if name)})
    listed = TABLES["inventory"].from_rows(
        [_node_row(name, statuses.get(name), hour=hour, tells_partitions=tells_partitions) for name in names]
    )
    at = gpus.schema.get_field_index("time")
    moment = pa.array([hour] * gpus.num_rows, gpus.schema.field(at).type)
    every = pa.concat_tables([listed, gpus.set_column(at, gpus.schema.field(at), moment)])
    keys = [(name, "ascending") for name in TABLES["inventory"].sort_order]
    return with_places(every, topology).sort_by(keys)


def _node_row(
    name: NodeName, status: NodeStatus | None, *, hour: datetime, tells_partitions: bool
) -> dict[str, object]:
    """Return a node's row. `tells_partitions`: a node without any is in none; else nobody reports which it is in."""
    row: dict[str, object] = {"node": name, "device": "", "time": hour, "kind": "node", "source": "topology"}
    if status is not None:
        marks = [status.state.name]
        marks += ["DRAIN"] if status.is_drained else []
        marks += [] if status.is_responding else ["NOT_RESPONDING"]
        row |= {"state": "+".join(marks), "gpu_count": status.gpu_count, "source": "scheduler"}
        if tells_partitions:
            row["partitions"] = ",".join(sorted(status.partitions))
    return row


def moves_between(before: pa.Table, after: pa.Table) -> list[Mapping[str, object]]:
    """Return the GPUs that stand elsewhere than before, or took another's place, for people to read."""
    return [
        {
            "gpu": change.gpu,
            "what": change.kind.value,
            "was": _seat(change.before),
            "is": _seat(change.after),
            "other": change.other,
            "since": f"{change.since:%Y-%m-%d %H:%M:%S}",
        }
        for change in follow(pa.concat_tables([before, after]))
    ]


def _seat(seat: Seat) -> str:
    return f"{seat.node} {seat.pci_address or '?'} index {'?' if seat.gpu_index is None else seat.gpu_index}"


def batch_of(serial: str) -> str:
    """Return the batch in a 13-digit NVIDIA board serial: `2012-W37` of 0323712057131; empty for other serials.

    Digits 4 to 7 are week and year of manufacture. The serials of Titan and of later boards are all of this form.
    """
    if len(serial) != 13 or not (serial.isascii() and serial.isdigit()):
        return ""
    week, year = int(serial[3:5]), int(serial[5:7])
    return f"20{year:02}-W{week:02}" if 1 <= week <= 53 else ""
