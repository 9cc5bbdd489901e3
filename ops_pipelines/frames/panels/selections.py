"""Which rows of a table are parts of one kind: GPUs, ports, the disks of a node, what its devices add up to.

A row is judged by itself alone, so that rows can be chosen as they come. What becomes of them is `tables`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.frames.panels.columns import (
    DISK_COLUMNS,
    FILESYSTEM_COLUMNS,
    FROM_DEVICES,
    GPU_COLUMNS,
    INLET_COLUMNS,
    NODE_COLUMNS,
    PORT_COLUMNS,
    RACK_COLUMNS,
    FromDevices,
)
from ops_pipelines.frames.panels.grid import Name, Rename
from ops_pipelines.frames.panels.rows import begins_with, says, with_a_value

RACK = "rack:"
_NOT_LOCAL = ("lustre:", "nfs:", "ceph:", "loop", "ram", "sr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Some rows of a table."""

    table: str
    columns: tuple[str, ...]
    """Quantities that are asked for."""
    choose: Callable[[pa.Table], pa.Table]
    texts: tuple[str, ...] = ()
    """Labels that are asked for."""
    rename: Rename | None = None


def _whole_gpus(rows: pa.Table) -> pa.Table:
    if "mig_instance" in rows.column_names:
        rows = rows.filter(pc.is_null(rows["mig_instance"]))
    return _of_nodes(rows)


def _by_address(names: Sequence[Name], newest: Callable[[str], Sequence[str]]) -> Sequence[Name]:
    """Return each GPU by its newest PCI address: UUIDs move with the board, and exporters differ in what they give."""
    return [(node, address or device) for (node, device), address in zip(names, newest("pci_address"), strict=True)]


def _of_nodes(rows: pa.Table) -> pa.Table:
    return rows.filter(says(rows["node"], lambda node: pc.not_equal(node, "")))


def _devices(is_wanted: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: _of_nodes(rows.filter(says(rows["device"], is_wanted)))


def _with(
    columns: Sequence[str], choose: Callable[[pa.Table], pa.Table], *, needed: Sequence[str] = ()
) -> Callable[[pa.Table], pa.Table]:
    """Return what chooses among rows with a value of `needed` (none given: of any column), with `columns` alone: what
    is filtered is copied."""

    def choose_with(rows: pa.Table) -> pa.Table:
        present = [name for name in columns if name in rows.column_names]
        rows = rows.select([name for name in rows.column_names if name in {"node", "device", "time", *present}])
        return choose(with_a_value(rows, [name for name in needed or present if name in present]))

    return choose_with


def _is_port(device: pa.Array) -> pa.Array:
    """A switch names its own ports; what it sees of a link stands in the lake, but is no part of a node."""
    return pc.and_(pc.not_equal(device, ""), pc.invert(pc.starts_with(device, "switch:")))


def _is_disk(device: pa.Array) -> pa.Array:
    is_local = pc.not_equal(device, "")
    for prefix in _NOT_LOCAL:
        is_local = pc.and_(is_local, pc.invert(pc.starts_with(device, prefix)))
    return is_local


def _is_node_itself(device: pa.Array) -> pa.Array:
    return pc.equal(device, "")


def _is_inlet(device: pa.Array) -> pa.Array:
    return pc.match_substring(device, "inlet", ignore_case=True)


def _racks(rows: pa.Table) -> pa.Table:
    return rows.filter(begins_with(rows["device"], [RACK]))


def of_devices(spec: FromDevices) -> Mapping[str, tuple[str, ...]]:
    """Return the selections that a column of nodes may come from, in the order of asking, each with its columns."""
    groups = {spec.column: spec.sources, f"{spec.column}, instead": spec.instead}
    return {name: columns for name, columns in groups.items() if columns}


def _of_devices(spec: FromDevices, columns: tuple[str, ...]) -> Selection:
    def choose(rows: pa.Table) -> pa.Table:
        return _of_nodes(rows.filter(begins_with(rows["device"], spec.devices)))

    return Selection(table=spec.table, columns=columns, choose=_with(columns, choose))


SELECTIONS: Mapping[str, Selection] = {
    "gpus": Selection(
        table="gpu_telemetry",
        columns=GPU_COLUMNS,
        choose=_whole_gpus,
        texts=("gpu_uuid", "pci_address", "gpu_model", "driver_version", "job"),
        rename=_by_address,
    ),
    "ports": Selection(table="fabric_telemetry", columns=PORT_COLUMNS, choose=_devices(_is_port)),
    "disks": Selection(table="storage_telemetry", columns=DISK_COLUMNS, choose=_devices(_is_disk)),
    "nodes": Selection(table="node_telemetry", columns=NODE_COLUMNS, choose=_devices(_is_node_itself)),
    "filesystems": Selection(
        table="node_telemetry",
        columns=FILESYSTEM_COLUMNS,
        choose=_with(FILESYSTEM_COLUMNS, _of_nodes, needed=("filesystem_size_bytes",)),
    ),
    **{
        f"inlets, {name}": Selection(
            table="facility_telemetry", columns=(name,), choose=_with((name,), _devices(_is_inlet))
        )
        for name in INLET_COLUMNS
    },
    "racks": Selection(table="facility_telemetry", columns=RACK_COLUMNS, choose=_racks),
    **{name: _of_devices(spec, columns) for spec in FROM_DEVICES for name, columns in of_devices(spec).items()},
}
"""All that a panel is made of, but what jobs say of themselves."""
SELECTED_TABLES = frozenset(each.table for each in SELECTIONS.values())
