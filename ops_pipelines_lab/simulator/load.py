"""What work does to a GPU: power, heat, clocks and activity, smooth in time and known at every instant.

Everything is a closed form of time, so that reading changes nothing and the order of reads does not matter.
Which work a GPU has is known by `hardware`; metric names are `metrics`' business.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum


class Load(Enum):
    """What keeps the GPU busy."""

    IDLE = "idle"
    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    INTERACTIVE = "interactive"
    INPUT_STALLED = "input_stalled"
    """A training that waits for its data: the GPU is idle most of each step, the file system is not."""
    COMMUNICATION_BOUND = "communication_bound"
    """A training that waits for its collectives: kernels spin, the fabric is full, tensor cores are seldom fed."""
    HUNG = "hung"
    """Kernels spin in a collective that never ends: 100 % utilisation, little power, no tensor activity."""
    STOPPED = "stopped"
    """The process holds its memory and launches nothing: what a rank looks like for which the others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """Typical readings under one load; what the host does for it is in `host`, per GPU.

    Assumption: read off published H100 SXM figures (700 W limit, 1,980 MHz boost, 60 to 75 W idle) and the
    signature of a spinning collective (utilisation 100 %, power near 35 % of the limit, tensor pipe near 0);
    recordings from a real H100 fleet would replace them.
    """

    watts: float
    swing_watts: float
    """Half the height of the slow wave around `watts`; 0 where nothing of the load waves."""
    busy_ratio: float
    sm_active_ratio: float
    sm_occupancy_ratio: float
    tensor_ratio: float
    dram_ratio: float
    sm_megahertz: float
    memory_mebibytes: int
    nvlink_bytes_per_second: float = 0.0
    pcie_in_bytes_per_second: float = 0.0
    """Into the GPU: data and network."""
    pcie_out_bytes_per_second: float = 0.0
    host: "HostShape"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """What the node does for one GPU under a load. The same assumption as for `LoadShape`."""

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    fabric_bytes_per_second: float = 0.0
    """Each way, over the GPU's own port."""
    congestion_ratio: float = 0.0
    """Share of time in which the port has data to send and no credit."""
    shared_read_bytes_per_second: float = 0.0
    """From the shared file system; the local disk's cache takes a tenth."""
    shared_write_bytes_per_second: float = 0.0
    io_stalled_ratio: float = 0.0
    """Share of time in which the GPU's processes all wait for input or output."""


_GIB = 2.0**30
_MB = 1e6
_GB = 1e9
SHAPES = {
    Load.IDLE: LoadShape(
        watts=70, swing_watts=2, busy_ratio=0, sm_active_ratio=0, sm_occupancy_ratio=0, tensor_ratio=0, dram_ratio=0,
        sm_megahertz=345, memory_mebibytes=4, host=HostShape(),
    ),
    Load.TRAINING: LoadShape(
        watts=640, swing_watts=25, busy_ratio=0.99, sm_active_ratio=0.88, sm_occupancy_ratio=0.31, tensor_ratio=0.46,
        dram_ratio=0.38, sm_megahertz=1740, memory_mebibytes=71_680, nvlink_bytes_per_second=180 * _GB,
        pcie_in_bytes_per_second=12 * _GB, pcie_out_bytes_per_second=11 * _GB,
        host=HostShape(
            cpu_cores=5, memory_bytes=90 * _GIB, fabric_bytes_per_second=18 * _GB, congestion_ratio=0.01,
            shared_read_bytes_per_second=60 * _MB, shared_write_bytes_per_second=25 * _MB, io_stalled_ratio=0.002,
        ),
    ),
    Load.INFERENCE: LoadShape(
        watts=420, swing_watts=60, busy_ratio=0.78, sm_active_ratio=0.52, sm_occupancy_ratio=0.18, tensor_ratio=0.21,
        dram_ratio=0.52, sm_megahertz=1860, memory_mebibytes=76_800, nvlink_bytes_per_second=22 * _GB,
        pcie_in_bytes_per_second=0.4 * _GB, pcie_out_bytes_per_second=0.3 * _GB,
        host=HostShape(cpu_cores=3, memory_bytes=40 * _GIB, fabric_bytes_per_second=0.2 * _GB),
    ),
    Load.BATCH: LoadShape(
        watts=480, swing_watts=45, busy_ratio=0.88, sm_active_ratio=0.71, sm_occupancy_ratio=0.44, tensor_ratio=0.28,
        dram_ratio=0.34, sm_megahertz=1830, memory_mebibytes=46_080, nvlink_bytes_per_second=1 * _GB,
        pcie_in_bytes_per_second=5 * _GB, pcie_out_bytes_per_second=2 * _GB,
        host=HostShape(
            cpu_cores=8, memory_bytes=60 * _GIB, fabric_bytes_per_second=0.1 * _GB,
            shared_read_bytes_per_second=300 * _MB, shared_write_bytes_per_second=40 * _MB, io_stalled_ratio=0.01,
        ),
    ),
    Load.INTERACTIVE: LoadShape(
        watts=160, swing_watts=40, busy_ratio=0.18, sm_active_ratio=0.07, sm_occupancy_ratio=0.05, tensor_ratio=0.04,
        dram_ratio=0.06, sm_megahertz=1980, memory_mebibytes=12_288, pcie_in_bytes_per_second=0.1 * _GB,
        pcie_out_bytes_per_second=0.1 * _GB,
        host=HostShape(cpu_cores=2, memory_bytes=25 * _GIB, shared_read_bytes_per_second=5 * _MB),
    ),
    Load.INPUT_STALLED: LoadShape(
        watts=230, swing_watts=45, busy_ratio=0.27, sm_active_ratio=0.22, sm_occupancy_ratio=0.08, tensor_ratio=0.09,
        dram_ratio=0.09, sm_megahertz=1935, memory_mebibytes=61_440, nvlink_bytes_per_second=35 * _GB,
        pcie_in_bytes_per_second=2 * _GB, pcie_out_bytes_per_second=1 * _GB,
        host=HostShape(
            cpu_cores=10, memory_bytes=150 * _GIB, fabric_bytes_per_second=3 * _GB,
            shared_read_bytes_per_second=450 * _MB, shared_write_bytes_per_second=10 * _MB, io_stalled_ratio=0.6,
        ),
    ),
    Load.COMMUNICATION_BOUND: LoadShape(
        watts=330, swing_watts=30, busy_ratio=0.99, sm_active_ratio=0.9, sm_occupancy_ratio=0.12, tensor_ratio=0.08,
        dram_ratio=0.12, sm_megahertz=1935, memory_mebibytes=69_632, nvlink_bytes_per_second=60 * _GB,
        pcie_in_bytes_per_second=44 * _GB, pcie_out_bytes_per_second=43 * _GB,
        host=HostShape(
            cpu_cores=5, memory_bytes=90 * _GIB, fabric_bytes_per_second=44 * _GB, congestion_ratio=0.35,
            shared_read_bytes_per_second=15 * _MB, shared_write_bytes_per_second=8 * _MB,
        ),
    ),
    Load.HUNG: LoadShape(
        watts=245, swing_watts=0, busy_ratio=1.0, sm_active_ratio=0.98, sm_occupancy_ratio=0.06, tensor_ratio=0,
        dram_ratio=0.01, sm_megahertz=1980, memory_mebibytes=71_680,
        host=HostShape(cpu_cores=1.2, memory_bytes=90 * _GIB),
    ),
    Load.STOPPED: LoadShape(
        watts=118, swing_watts=0, busy_ratio=0, sm_active_ratio=0, sm_occupancy_ratio=0, tensor_ratio=0,
        dram_ratio=0, sm_megahertz=1980, memory_mebibytes=71_680,
        host=HostShape(cpu_cores=0.02, memory_bytes=90 * _GIB),
    ),
}  # fmt: skip

_UNEVENNESS = 0.12
"""How far traffic swings around its mean; below 1, so that no counter ever falls."""
STEADY_LOADS = frozenset(load for load, shape in SHAPES.items() if not shape.swing_watts)
"""Threads that wait poll, and burn the same every second: that is how a hang is distinguished from work."""
_WARM_UP_SECONDS = 25.0
"""Assumption: time constant of an air-cooled SXM heat sink; DCGM traces show half a minute from idle to load."""
_INLET_CELSIUS = 27.0
_CELSIUS_PER_WATT = 0.055
"""Assumption: 640 W settle near 62 degrees, 70 W near 31, as fleets of air-cooled H100 report."""


@dataclass(slots=True)
class Meter:
    """The electrical life of one GPU since its driver was loaded. Changed by `switch` and `restart` only."""

    phase: float
    """Shift of this GPU's waves, 0..1, so that no two GPUs move together."""
    since: datetime
    load: Load = Load.IDLE
    joules_before: float = 0.0
    """Energy used up to `since`, since the driver was loaded."""
    celsius_before: float = 31.0
    """Core temperature at `since`."""
    seconds_before: dict[Load, float] = field(default_factory=dict)
    """Time under each load up to `since`, since the driver was loaded."""

    def switch(self, load: Load, at: datetime) -> None:
        """Continue with another load from `at` on; the same load changes nothing."""
        if load is not self.load:
            self.joules_before, self.celsius_before = self.joules(at), self.celsius(at)
            self.seconds_before[self.load] = self.seconds_before.get(self.load, 0.0) + self._seconds_since(at)
            self.load, self.since = load, at

    def restart(self, at: datetime) -> None:
        """Load the driver again: idle, and the energy counter back at 0."""
        self.celsius_before = self.celsius(at)
        self.load, self.since, self.joules_before = Load.IDLE, at, 0.0
        self.seconds_before.clear()

    def watts(self, at: datetime) -> float:
        """Return the board power at `at`."""
        shape = SHAPES[self.load]
        return self._mean_watts() + shape.swing_watts * math.sin(self._angle(at))

    def joules(self, at: datetime) -> float:
        """Return the energy used since the driver was loaded: the integral of `watts`."""
        period = self._period_seconds()
        waved = math.cos(self._angle(self.since)) - math.cos(self._angle(at))
        wave = SHAPES[self.load].swing_watts * period / (2 * math.pi) * waved
        return self.joules_before + self._mean_watts() * (at - self.since).total_seconds() + wave

    def seconds(self, at: datetime) -> dict[Load, float]:
        """Return how long it worked under each load since the driver was loaded: what counters of traffic grow by.

        A second counts a little more or less as the wave goes, but always more than nothing; under a steady load, one.
        """
        total = dict(self.seconds_before)
        total[self.load] = total.get(self.load, 0.0) + self._seconds_since(at)
        return total

    def celsius(self, at: datetime) -> float:
        """Return the core temperature: it follows the mean power with the heat sink's delay."""
        settled = _INLET_CELSIUS + 4.0 * self.phase + _CELSIUS_PER_WATT * self._mean_watts()
        fading = math.exp(-(at - self.since).total_seconds() / _WARM_UP_SECONDS)
        return settled + (self.celsius_before - settled) * fading

    def wave(self, at: datetime) -> float:
        """Return this GPU's slow wave at `at`, -1..1: what makes its activity readings move. 0 under a steady load."""
        return 0.0 if self.load in STEADY_LOADS else math.sin(self._angle(at) + 1.0)

    def _seconds_since(self, at: datetime) -> float:
        passed = (at - self.since).total_seconds()
        if self.load in STEADY_LOADS:
            return passed
        waved = math.cos(self._angle(self.since)) - math.cos(self._angle(at))
        return passed + _UNEVENNESS * self._period_seconds() / (2 * math.pi) * waved

    def _mean_watts(self) -> float:
        # GPUs of one model differ by a few percent at the same work (leakage): 2 % either way.
        return SHAPES[self.load].watts * (0.98 + 0.04 * self.phase)

    def _period_seconds(self) -> float:
        return 40.0 + 35.0 * self.phase

    def _angle(self, at: datetime) -> float:
        return 2 * math.pi * (at.timestamp() % 1e6 / self._period_seconds() + self.phase)
