"""How a GPU and its host look under each load: `load.SHAPES`, and the loads of a recorded day that it has no word for.

Numbers only, as tables by code; noise, waves and single parts belong to `render`.
"""

from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ops_pipelines_lab.simulator.load import SHAPES, HostShape, Load, LoadShape


class Look(IntEnum):
    """What a GPU does at a grid time."""

    IDLE = 0
    TRAINING = 1
    INFERENCE = 2
    BATCH = 3
    INTERACTIVE = 4
    INPUT_STALLED = 5
    COMMUNICATION_BOUND = 6
    SPINNING = 7
    """Waits in a collective: kernels spin."""
    WAITING = 8
    """Waits on the host: memory held, no kernel."""
    EVALUATING = 9
    """Forward passes only, in small batches."""
    STARTING = 10
    """Memory is being filled; nothing else."""


_GIB = 2.0**30
_WAITING_HOST = HostShape(cpu_cores=1.1, memory_bytes=90 * _GIB)
"""Who waits spins one thread a rank at most. `load` gives a hung node eight cores a GPU; stack dumps of hung trainings
(BLOOM chronicle, NCCL issues 1409 and 2013) show a main thread in cudaStreamSynchronize and everybody else asleep."""
LOOKS: dict[Look, LoadShape] = {
    Look.IDLE: SHAPES[Load.IDLE],
    Look.TRAINING: SHAPES[Load.TRAINING],
    Look.INFERENCE: SHAPES[Load.INFERENCE],
    Look.BATCH: SHAPES[Load.BATCH],
    Look.INTERACTIVE: SHAPES[Load.INTERACTIVE],
    Look.INPUT_STALLED: SHAPES[Load.INPUT_STALLED],
    Look.COMMUNICATION_BOUND: SHAPES[Load.COMMUNICATION_BOUND],
    Look.SPINNING: replace(SHAPES[Load.HUNG], host=_WAITING_HOST),
    Look.WAITING: replace(
        SHAPES[Load.IDLE], watts=118, swing_watts=2, sm_megahertz=1980, memory_mebibytes=71_680, host=_WAITING_HOST
    ),
    Look.EVALUATING: replace(
        SHAPES[Load.INFERENCE], watts=340, busy_ratio=0.6, sm_active_ratio=0.4, tensor_ratio=0.14, dram_ratio=0.3,
        memory_mebibytes=71_680,
    ),
    Look.STARTING: replace(
        SHAPES[Load.IDLE], watts=112, sm_megahertz=1980, memory_mebibytes=22_000,
        host=HostShape(cpu_cores=1.1, memory_bytes=30 * _GIB),
    ),
}  # fmt: skip


def table(name: str) -> NDArray[np.float32]:
    """Return one property of all looks, by code: a field of LoadShape, or of HostShape behind `host.`."""
    field = name.removeprefix("host.")
    return np.array(
        [getattr(LOOKS[look].host if name.startswith("host.") else LOOKS[look], field) for look in Look],
        dtype=np.float32,
    )
