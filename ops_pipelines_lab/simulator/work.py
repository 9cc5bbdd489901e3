"""What one node does and has done since its boot: the sum over its GPUs from which every counter of the node follows.

A closed form of time like `load`, so that the same moment always gives the same numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines_lab.simulator.hardware import Gpu, Node
from ops_pipelines_lab.simulator.load import SHAPES, HostShape, Load

CPU_CORE_COUNT = 112
MEMORY_BYTES = 2.0 * 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """The work of one node at one moment."""

    uptime_seconds: float
    seconds: tuple[dict[Load, float], ...]
    """Per GPU: time under each load since the boot."""
    loads: tuple[Load, ...]
    """Per GPU: what it does now."""
    phase: float
    """0..1, of this node alone: no two nodes are alike."""
    wave: float
    """-1..1, slowly."""

    def grown(self, field: str) -> float:
        """Return what a rate of `HostShape` has added up to since the boot, over all GPUs."""
        return sum(grown(seconds, field) for seconds in self.seconds)

    def rate(self, field: str) -> float:
        """Return a rate of `HostShape` as it is now, over all GPUs."""
        return sum(_host_value(load, field) for load in self.loads)


def grown(seconds: dict[Load, float], field: str) -> float:
    """Return what a rate of `HostShape` adds up to over `seconds` under each load."""
    return sum(_host_value(load, field) * passed for load, passed in seconds.items())


def work_of(node: Node, *, at: datetime) -> NodeWork:
    """Return what `node` does at `at`, and has done since it booted."""
    phase = node.gpus[0].meter.phase
    return NodeWork(
        uptime_seconds=max(0.0, (at - node.booted_at).total_seconds()),
        seconds=tuple(gpu.meter.seconds(at) for gpu in node.gpus),
        loads=tuple(gpu.meter.load for gpu in node.gpus),
        phase=phase,
        wave=math.sin(2 * math.pi * (at.timestamp() % 1e6 / (90.0 + 60.0 * phase) + phase)),
    )


def watts_of(node: Node, *, at: datetime) -> float:
    """Return the power that the node draws: nothing without power, whatever it does otherwise."""
    if not node.is_powered:
        return 0.0
    cores = sum(_host_value(gpu.meter.load, "cpu_cores") for gpu in node.gpus)
    return _BASE_WATTS + _WATTS_PER_CORE * cores + _sum_of_watts(node.gpus, at)


def _sum_of_watts(gpus: Iterable[Gpu], at: datetime) -> float:
    return sum(gpu.meter.watts(at) for gpu in gpus)


_BASE_WATTS = 1_900.0
"""Assumption: fans, memory, switches and network cards of an HGX node, so that 8 x 700 W come to some 8 kW."""
_WATTS_PER_CORE = 4.0


_HOST_VALUES = {
    (load, name): float(getattr(shape.host, name)) for load, shape in SHAPES.items() for name in HostShape.__slots__
}


def _host_value(load: Load, field: str) -> float:
    return _HOST_VALUES[load, field]
