"""The machines of a recorded day: names, places, parts, and how one specimen differs from the next.

What runs on them is `cluster`; how they look in numbers is `render`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component, ComponentKind, node_component
from ops_pipelines.core.identity import GpuUuid, NodeName, PciAddress, Place, Topology
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.observe.panels.panel import Part
from ops_pipelines_lab.simulator.hardware import PCI_BUSES, slot_address

GPUS_PER_NODE, PORTS_PER_NODE, DISKS_PER_NODE = 8, 8, 2
NODES_PER_RACK, NODES_PER_LEAF, RACKS_PER_FEED = 8, 32, 2
_MODEL, _DRIVER, _FIRMWARE = "NVIDIA H100 80GB HBM3", "550.90.07", "96.00.89.00.01"


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """All machines, by index: GPU `g` is GPU `g % 8` of node `g // 8`; ports and disks likewise."""

    names: tuple[NodeName, ...]
    topology: Topology
    gpus: tuple[Part, ...]
    ports: tuple[Part, ...]
    disks: tuple[Part, ...]
    nodes: tuple[Part, ...]
    racks: tuple[Part, ...]
    leakage: NDArray[np.float32]
    """Per GPU: power at the same work, 1 for the typical one (2 to 3 % spread)."""
    heat: NDArray[np.float32]
    """Per GPU: kelvin above what its power alone explains: place on the board, paste."""
    phase: NDArray[np.float32]
    """Per GPU: shift of its slow wave, 0..1."""
    skew_seconds: NDArray[np.float64]
    """Per node: how far its clock is off."""
    booted_before_seconds: NDArray[np.float64]
    """Per node: how long before the day it booted."""

    @property
    def node_count(self) -> int:
        return len(self.names)

    @cached_property
    def rack_of(self) -> NDArray[np.intp]:
        """Return the rack of each node, by index."""
        return np.arange(self.node_count, dtype=np.intp) // NODES_PER_RACK

    def gpu_slice(self, node: int) -> slice:
        return slice(node * GPUS_PER_NODE, (node + 1) * GPUS_PER_NODE)

    def port_slice(self, node: int) -> slice:
        return slice(node * PORTS_PER_NODE, (node + 1) * PORTS_PER_NODE)

    def disk_slice(self, node: int) -> slice:
        return slice(node * DISKS_PER_NODE, (node + 1) * DISKS_PER_NODE)

    def address(self, gpu: int) -> PciAddress:
        return slot_address(gpu % GPUS_PER_NODE)

    def place(self, node: int) -> Place:
        return self.topology.places[self.names[node]]

    def gpu_component(self, gpu: int) -> Component:
        return Component(kind=ComponentKind.GPU, name=self.address(gpu), node=self.names[gpu // GPUS_PER_NODE])

    def port_component(self, port: int) -> Component:
        part = self.ports[port]
        return Component(kind=ComponentKind.LINK, name=part.device, node=part.node)

    def disk_component(self, disk: int) -> Component:
        part = self.disks[disk]
        return Component(kind=ComponentKind.DISK, name=part.device, node=part.node)

    def node_component(self, node: int) -> Component:
        return node_component(self.names[node])


def build_fleet(rng: Generator, *, node_count: int) -> Fleet:
    """Return the machines of one day."""
    names = tuple(NodeName(f"gpu{index + 1:03d}") for index in range(node_count))
    places = {}
    for index, name in enumerate(names):
        rack = index // NODES_PER_RACK
        places[name] = Place(
            rack=f"r{rack + 1:02d}",
            nvlink_domain=name,
            leaf_switch=f"leaf{index // NODES_PER_LEAF + 1:02d}",
            power_feed=f"feed{rack // RACKS_PER_FEED + 1:02d}",
        )
    gpu_count = node_count * GPUS_PER_NODE
    serials = rng.integers(0, 2**32, size=(gpu_count, 4), dtype=np.uint64)
    gpus = tuple(
        Part(
            node=names[gpu // GPUS_PER_NODE],
            device=f"0000:{PCI_BUSES[gpu % GPUS_PER_NODE]}:00",
            uuid=GpuUuid(_uuid(serials[gpu])),
            model=_MODEL,
            driver=_DRIVER,
            firmware=_FIRMWARE,
        )
        for gpu in range(gpu_count)
    )
    # Most clocks are held to milliseconds; a few nodes drift by seconds and one or two by tens of seconds.
    skew = rng.normal(0, 0.004, node_count)
    drifting = rng.random(node_count)
    skew[drifting < 0.06] = rng.normal(0, 2.0, int((drifting < 0.06).sum()))
    skew[drifting < 0.012] = rng.uniform(-35, 35, int((drifting < 0.012).sum()))
    # Upper board positions breathe warmer air: a fixed pattern of the chassis, besides the specimen's own spread.
    pattern = np.tile(np.array([0, 0.5, 1.0, 1.5, 1.0, 2.0, 2.5, 3.0], dtype=np.float32), node_count)
    return Fleet(
        names=names,
        topology=Topology(places=places, gpus_per_node=GPUS_PER_NODE),
        gpus=gpus,
        ports=tuple(
            Part(node=name, device=f"mlx5_{port}/1", model="ConnectX-7", firmware="28.39.1002")
            for name in names
            for port in range(PORTS_PER_NODE)
        ),
        disks=tuple(
            Part(node=name, device=f"nvme{disk}n1", model="MZWL63T8HFLT-00AW7")
            for name in names
            for disk in range(DISKS_PER_NODE)
        ),
        nodes=tuple(Part(node=name) for name in names),
        racks=tuple(
            Part(node=NO_NODE, device=f"r{rack + 1:02d}")
            for rack in range((node_count + NODES_PER_RACK - 1) // NODES_PER_RACK)
        ),
        leakage=rng.normal(1.0, 0.024, gpu_count).clip(0.92, 1.08).astype(np.float32),
        heat=(pattern + rng.normal(0, 1.4, gpu_count)).astype(np.float32),
        phase=rng.random(gpu_count, dtype=np.float32),
        skew_seconds=skew,
        booted_before_seconds=rng.uniform(3e5, 4e6, node_count),
    )


def _uuid(words: NDArray[np.uint64]) -> str:
    digits = "".join(f"{int(word):08x}" for word in words)
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
