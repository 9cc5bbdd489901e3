"""Panels out of a few words: healthy parts, columns broadcast over times and parts, and what to change in them.

    panel(time_count=40, gpus=(gpu_parts(nodes=2), {"power_watts": 700.0, "temperature_celsius": readings}))

A column may be one number, one number a time (shape (times, 1)), one a part, or a full matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ops_pipelines.core.identity import GpuUuid, NodeName, Place, Topology
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.observe.panels.panel import Layer, Panel, Part

START_SECONDS = 1_790_000_010
"""2026-09-21 13:33:30 UTC, on the grid of 15 s."""
STEP_SECONDS = 15

Given = tuple[Sequence[Part], Mapping[str, ArrayLike]]
"""Parts of one layer, and its columns."""


def panel(
    *,
    time_count: int,
    step_seconds: int = STEP_SECONDS,
    start_seconds: int = START_SECONDS,
    gpus: Given | None = None,
    nodes: Given | None = None,
    ports: Given | None = None,
    disks: Given | None = None,
    racks: Given | None = None,
    jobs: Given | None = None,
    held_by: ArrayLike = -1,
) -> Panel:
    """Return a panel of `time_count` grid times. `held_by` is broadcast to (times, nodes of the layer `nodes`)."""

    def layer(given: Given | None) -> Layer:
        parts, columns = given if given is not None else ((), {})
        shape = (time_count, len(parts))
        values = {
            name: np.broadcast_to(np.asarray(column, np.float32), shape).copy() for name, column in columns.items()
        }
        return Layer(parts=tuple(parts), values=values, step_seconds=step_seconds)

    node_layer = layer(nodes)
    return Panel(
        times=start_seconds + step_seconds * np.arange(time_count, dtype=np.int64),
        step_seconds=step_seconds,
        gpus=layer(gpus),
        nodes=node_layer,
        ports=layer(ports),
        disks=layer(disks),
        racks=layer(racks),
        jobs=layer(jobs),
        held_by=np.broadcast_to(np.asarray(held_by, np.int32), (time_count, len(node_layer.parts))).copy(),
    )


def rows_of(whole: Panel, first: int, end: int) -> Panel:
    """Return the grid times `first` (included) to `end` (not included) of a panel, as if nothing else were known."""

    def cut(layer: Layer) -> Layer:
        columns = {name: matrix[first:end].copy() for name, matrix in layer.values.items()}
        return Layer(parts=layer.parts, values=columns, step_seconds=layer.step_seconds)

    return replace(
        whole,
        times=whole.times[first:end],
        held_by=whole.held_by[first:end],
        gpus=cut(whole.gpus),
        nodes=cut(whole.nodes),
        ports=cut(whole.ports),
        disks=cut(whole.disks),
        racks=cut(whole.racks),
        jobs=cut(whole.jobs),
    )


def node_name(number: int) -> NodeName:
    return NodeName(f"n{number:03d}")


def gpu_parts(*, nodes: int, gpus: int = 8, model: str = "NVIDIA H100", driver: str = "580.95.05") -> list[Part]:
    """Return GPUs node by node: device 0000:10:00, 0000:11:00, ..."""
    return [
        Part(
            node=node_name(node),
            device=f"0000:{16 + gpu:02x}:00",
            uuid=GpuUuid(f"GPU-{node:04d}-{gpu}"),
            model=model,
            driver=driver,
        )
        for node in range(nodes)
        for gpu in range(gpus)
    ]


def node_parts(*, nodes: int) -> list[Part]:
    return [Part(node=node_name(node)) for node in range(nodes)]


def port_parts(*, nodes: int, ports: int = 2, firmware: str = "28.43.2026") -> list[Part]:
    """Return ports node by node: device mlx5_0/1, mlx5_1/1, ..."""
    return [
        Part(node=node_name(node), device=f"mlx5_{port}/1", model="ConnectX-7", firmware=firmware)
        for node in range(nodes)
        for port in range(ports)
    ]


def disk_parts(*, nodes: int, disks: int = 1) -> list[Part]:
    """Return disks node by node: device nvme0n1, nvme1n1, ..."""
    return [Part(node=node_name(node), device=f"nvme{disk}n1") for node in range(nodes) for disk in range(disks)]


def rack_parts(*, racks: int) -> list[Part]:
    return [Part(node=NO_NODE, device=f"r{rack:02d}") for rack in range(racks)]


def job_parts(*jobs: str) -> list[Part]:
    return [Part(node=NO_NODE, device=job) for job in jobs]


def topology(*, nodes: int, nodes_per_rack: int = 8, gpus_per_node: int = 8) -> Topology:
    """Return nodes in racks r00, r01, ..., one leaf switch a rack."""
    places = {
        node_name(node): Place(
            rack=f"r{node // nodes_per_rack:02d}",
            nvlink_domain=node_name(node),
            leaf_switch=f"leaf{node // nodes_per_rack:02d}",
        )
        for node in range(nodes)
    }
    return Topology(places=places, gpus_per_node=gpus_per_node)


def changed(
    matrix: NDArray[np.float32], *, rows: slice, columns: slice | Sequence[int], to: ArrayLike
) -> NDArray[np.float32]:
    """Return a copy in which some grid times of some parts read something else."""
    copy = matrix.copy()
    copy[rows, columns] = to
    return copy
