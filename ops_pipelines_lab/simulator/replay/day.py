"""One recorded day as values: what the sources would have shown and what was really so; its machines; and the canvas.

The machines have names, places, parts, and a difference from one specimen to the next; what runs on them is `cluster`,
how they look in numbers is `render`. The diagnosis under test sees everything of a day but `truths` and `pauses`. Which
faults there are is `make`'s.

The canvas: what happened to single parts at single times, noted while the day runs and put into the matrices at its
end. A stroke changes one column of some parts over some rows; what is noted belongs to its author (pauses, negatives,
faults).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ops_pipelines.core.fault import Component, ComponentKind, node_component
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress, Place, Topology
from ops_pipelines.core.observation import NO_NODE, JobStatus, NodeStatus
from ops_pipelines.core.sources import LogLine
from ops_pipelines.observe.panels.panel import Panel, Part
from ops_pipelines_lab.simulator.hardware import PCI_BUSES, slot_address


class FaultClass(Enum):
    """What can break. The first group shows itself at once; the others must be found."""

    GPU_OFF_BUS = "gpu_off_bus"
    GPU_VANISHED = "gpu_vanished"
    """Its series end, and nothing is logged."""
    MEMORY_UNCORRECTABLE = "memory_uncorrectable"
    MEMORY_CONTAINED = "memory_contained"
    GSP_TIMEOUT = "gsp_timeout"
    NVLINK_FAULT = "nvlink_fault"
    NVSWITCH_FAULT = "nvswitch_fault"
    """One switch of a baseboard; every rank of the job on it and elsewhere is killed and logs Xid 45."""
    HOST_MEMORY = "host_memory"
    NODE_DOWN = "node_down"
    LEAF_SWITCH = "leaf_switch"
    POWER_FEED = "power_feed"
    COOLING = "cooling"
    """A rack's: its nodes heat up together."""
    SHARED_STORAGE = "shared_storage"
    NIC_ERRORS = "nic_errors"
    LINK_FLAPS = "link_flaps"
    PCIE_DEGRADED = "pcie_degraded"
    FAN_FAILURE = "fan_failure"
    """One node's: its GPUs heat up and throttle while its neighbours' do not."""
    SLOW_GPU = "slow_gpu"
    """A straggler without any message."""
    DISK_FAILING = "disk_failing"
    HANG_ONE_RANK = "hang_one_rank"
    """One rank stops, all others wait for it."""
    HANG_OF_PROGRAM = "hang_of_program"
    """All ranks wait: no node is at fault."""
    APPLICATION_CRASHES = "application_crashes"
    """One job fails again and again on changing nodes."""
    NODE_FAILS_JOBS = "node_fails_jobs"
    """Different jobs fail on one node, with no message of the hardware."""
    LOSS_DIVERGES = "loss_diverges"


class PauseKind(Enum):
    """Why a job makes no steps and is well."""

    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    DATA_LOADING = "data_loading"
    WARM_UP = "warm_up"
    COMPILATION = "compilation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One injected fault."""

    fault: FaultClass
    onset: datetime
    end: datetime
    """When its cause was gone: repaired, or it ended by itself."""
    culprit: Component
    """A node or a part of one; a switch, rack, feed or store; or a job."""
    affected_nodes: frozenset[NodeName]
    """Nodes that showed it and are not at fault."""
    affected_jobs: frozenset[JobId]
    steps_began_at: datetime | None = None
    """When the attempt had completed its first step; for hangs only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One interval in which a healthy job made no steps."""

    kind: PauseKind
    job: JobId
    began_at: datetime
    ended_at: datetime
    live_signals: frozenset[str]
    """What moved all the same: `storage`, `network`, `cpu`, `log`, `gpu`. Never empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A person took a node out, put it right and gave it back: open incidents of it end here."""

    node: NodeName
    drained_at: datetime
    returned_at: datetime


@dataclass(frozen=True, kw_only=True)
class Day:
    """Everything of one run."""

    seed: int
    topology: Topology
    panel: Panel
    lines: Sequence[LogLine]
    """Of kernels and jobs, by time of arrival; a line of a job names it. A node's clock may be wrong."""
    arrivals: Sequence[datetime]
    """When each line could be read."""
    truths: tuple[Truth, ...]
    pauses: tuple[Pause, ...]
    repairs: tuple[Repair, ...]
    jobs: Sequence[tuple[datetime, tuple[JobStatus, ...]]]
    """What the scheduler says of all jobs that run or ended within ten minutes, at each change, by time."""
    nodes: Sequence[tuple[datetime, tuple[NodeStatus, ...]]]
    """What the scheduler says of all nodes, at each change, by time."""


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


class Brush(Enum):
    """How a stroke changes what is there."""

    SET = "set"
    ADD = "add"
    SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Stroke:
    """One change: rows `first` to `end` (half-open) of some parts; values are a number, one a row, or rows by parts."""

    parts: slice | int | list[int]
    first: int
    end: int
    brush: Brush
    value: float | NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Growth:
    """A counter of one part grew by `amount` in the time before row `row`."""

    part: int
    row: int
    amount: float


@dataclass(kw_only=True)
class Canvas:
    """All changes of one day, by layer and column (`gpus/xid`). Rates carry the name of their counter."""

    row_count: int
    step_seconds: int
    strokes: dict[str, list[Stroke]] = field(default_factory=lambda: defaultdict(list))
    growths: dict[str, list[Growth]] = field(default_factory=lambda: defaultdict(list))
    gaps: list[tuple[str, slice | int, int, int]] = field(default_factory=list)
    """(layer, parts, first row, end row): no samples."""
    reboots: list[tuple[int, int, float]] = field(default_factory=list)
    """(node, first row of the new boot, its time in seconds of the day): every counter of the node begins again."""
    restarts: list[tuple[str, str, slice | int, int]] = field(default_factory=list)
    """(layer, column, parts, row): one counter begins again."""

    def row(self, seconds: float) -> int:
        """Return the first row at or after a time of the day, within 0 and `row_count`."""
        return int(min(max(np.ceil(seconds / self.step_seconds), 0), self.row_count))

    def paint(
        self,
        column: str,
        parts: slice | int | list[int],
        span: tuple[float, float],
        brush: Brush,
        value: float | NDArray[np.floating],
    ) -> None:
        """Note a change of `column` over a span of seconds. A `value` of rows starts at the span's first row."""
        first, end = self.row(span[0]), self.row(span[1])
        if first < end:
            if isinstance(value, np.ndarray):
                value = value[: end - first]
            self.strokes[column].append(Stroke(parts, first, end, brush, value))

    def row_count_of(self, span: tuple[float, float]) -> int:
        return max(0, self.row(span[1]) - self.row(span[0]))

    def grow(self, column: str, part: int, at: float, amount: float = 1.0) -> None:
        """Note that a counter grew; nothing after the day's last row."""
        row = self.row(at)
        if row < self.row_count:
            self.growths[column].append(Growth(part, row, amount))

    def hide(self, layer: str, parts: slice | int, span: tuple[float, float]) -> None:
        """Note that parts had no samples over a span of seconds."""
        first, end = self.row(span[0]), self.row(span[1])
        if first < end:
            self.gaps.append((layer, parts, first, end))

    def reboot(self, node: int, silent_from: float, back_at: float) -> None:
        """Note that a node was silent, and that all its counters are fresh when it is back."""
        for layer, width in (("gpus", 8), ("ports", 8), ("disks", 2), ("nodes", 1)):
            self.hide(layer, slice(node * width, (node + 1) * width), (silent_from, back_at))
        row = self.row(back_at)
        if row < self.row_count:
            self.reboots.append((node, row, back_at))
