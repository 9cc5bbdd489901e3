"""What work does to a GPU: power, heat, clocks and activity, smooth in time and known at every instant.

Everything is a closed form of time, so that reading changes nothing and the order of reads does not matter.
Which work a GPU has is told by `hardware`; metric names are `metrics`' business.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Load(Enum):
    """What keeps the GPU busy."""

    IDLE = "idle"
    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    INTERACTIVE = "interactive"
    HUNG = "hung"
    """Kernels spin in a collective that never ends: 100 % utilisation, little power, no tensor activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """Typical readings under one load.

    Assumption: read off published H100 SXM figures (700 W limit, 1,980 MHz boost, 60 to 75 W idle) and the
    signature of a spinning collective (utilisation 100 %, power near 35 % of the limit, tensor pipe near 0);
    recordings from a real H100 fleet would replace them.
    """

    watts: float
    swing_watts: float
    """Half the height of the slow wave around `watts`."""
    busy_ratio: float
    tensor_ratio: float
    dram_ratio: float
    sm_megahertz: float
    memory_mebibytes: int


SHAPES = {
    Load.IDLE: LoadShape(
        watts=70, swing_watts=2, busy_ratio=0, tensor_ratio=0, dram_ratio=0, sm_megahertz=345, memory_mebibytes=4
    ),
    Load.TRAINING: LoadShape(
        watts=640, swing_watts=25, busy_ratio=0.99, tensor_ratio=0.46, dram_ratio=0.38, sm_megahertz=1740,
        memory_mebibytes=71_680,
    ),
    Load.INFERENCE: LoadShape(
        watts=420, swing_watts=60, busy_ratio=0.78, tensor_ratio=0.21, dram_ratio=0.52, sm_megahertz=1860,
        memory_mebibytes=76_800,
    ),
    Load.BATCH: LoadShape(
        watts=480, swing_watts=45, busy_ratio=0.88, tensor_ratio=0.28, dram_ratio=0.34, sm_megahertz=1830,
        memory_mebibytes=46_080,
    ),
    Load.INTERACTIVE: LoadShape(
        watts=160, swing_watts=40, busy_ratio=0.18, tensor_ratio=0.04, dram_ratio=0.06, sm_megahertz=1980,
        memory_mebibytes=12_288,
    ),
    Load.HUNG: LoadShape(
        watts=245, swing_watts=4, busy_ratio=1.0, tensor_ratio=0, dram_ratio=0.01, sm_megahertz=1980,
        memory_mebibytes=71_680,
    ),
}  # fmt: skip

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

    def switch(self, load: Load, at: datetime) -> None:
        """Go on with another load from `at` on; the same load changes nothing."""
        if load is not self.load:
            self.joules_before, self.celsius_before = self.joules(at), self.celsius(at)
            self.load, self.since = load, at

    def restart(self, at: datetime) -> None:
        """Load the driver anew: idle, and the energy counter back at 0."""
        self.celsius_before = self.celsius(at)
        self.load, self.since, self.joules_before = Load.IDLE, at, 0.0

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

    def celsius(self, at: datetime) -> float:
        """Return the core temperature: it follows the mean power with the heat sink's delay."""
        settled = _INLET_CELSIUS + 4.0 * self.phase + _CELSIUS_PER_WATT * self._mean_watts()
        fading = math.exp(-(at - self.since).total_seconds() / _WARM_UP_SECONDS)
        return settled + (self.celsius_before - settled) * fading

    def wave(self, at: datetime) -> float:
        """Return this GPU's slow wave at `at`, -1..1: what makes its activity readings move."""
        return math.sin(self._angle(at) + 1.0)

    def _mean_watts(self) -> float:
        # GPUs of one model differ by a few percent at the same work (leakage): 2 % either way.
        return SHAPES[self.load].watts * (0.98 + 0.04 * self.phase)

    def _period_seconds(self) -> float:
        return 40.0 + 35.0 * self.phase

    def _angle(self, at: datetime) -> float:
        return 2 * math.pi * (at.timestamp() % 1e6 / self._period_seconds() + self.phase)
