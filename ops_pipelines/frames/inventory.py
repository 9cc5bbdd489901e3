"""What is built in: GPUs by the labels of telemetry, nodes by the scheduler, places by the topology.

Here: rows of `inventory` out of other tables. Reading files and answers is `formats`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.frames.gpu_lineage import Seat, follow
from ops_pipelines.frames.schema import TABLES

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
    """Return a node's row. `tells_partitions`: a node without any is in none; else nobody tells which it is in."""
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
