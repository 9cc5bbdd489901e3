"""What proves that a job lives: one sign a kind of work, each judged against its own floor of noise.

A sign moves, is still, or nobody knows; one that moves is enough to live. Who is called hung is `hang`'s business.

Floors stand between what a waiting job shows (nothing but keep-alives and metadata) and the faintest work that was met:
one writer of a few MB/s, one GPU at 5 %, one busy core. They are assumptions; docs/DIAGNOSIS.md measures them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.detectors.allocations import Allocation, Columns, row_max, row_median
from ops_pipelines.frames.panels.detection import counted
from ops_pipelines.frames.panels.panel import Flags, Layer, Numbers, Panel

ACTIVITY_FLOORS = {
    # A kernel that spins runs no tensor instruction at all.
    "tensor_active_ratio": 0.003,
    "fp16_active_ratio": 0.02,
    "fp32_active_ratio": 0.02,
    "fp64_active_ratio": 0.02,
    # It polls a few flags: about 0.01 (dcgm_fields.csv, DCGM_FI_PROF_DRAM_ACTIVE).
    "dram_active_ratio": 0.03,
}
POWER_MOVES_RATIO = 0.15
"""Only where no activity is measured: a rank that spins draws the same within a few percent."""
NVLINK_FLOOR_BYTES_PER_SECOND = 1e7
FABRIC_FLOOR_BYTES_PER_SECOND = 1e6
"""Keep-alives and subnet management are kilobytes."""
SHARED_FLOOR_BYTES_PER_SECOND = 3e5
DISK_FLOOR_BYTES_PER_SECOND = 3e8
"""Caches and the system's logs write megabytes whatever the job does; a checkpoint on a local disk fills it."""
SPIN_CORES_PER_RANK = 3.0
"""Nobody who only waits burns more: a core in the driver, one in the proxy of the collective."""
STEADY_CORES, STEADY_CORES_PER_DOUBLING = 0.13, 0.0065
"""Below that, waiting threads are told by their steadiness: standard deviation of one node over a minute and a half,
and what the unsteadiest of twice as many nodes shows more."""
CORES_APART = 0.4
"""One node above the median of its job, or above what it burnt in an earlier wait."""
_ANY = 1e-9
"""Steps or lines per second: even one in any gap."""
_LEAST_PEERS = 3
_BASELINE_WINDOWS = 25
_LEAST_KNOWN_SHARE = 0.5
"""Of the parts: one node's silent exporter does not blind us for a job of many nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One kind of sign over the rows of an allocation."""

    moves: Flags
    """(rows,)"""
    is_known: Flags
    """(rows,): enough parts gave a sample, or one of them moved."""


def read_signs(panel: Panel, held: Allocation) -> Mapping[str, Sign]:
    """Return the signs of a job by what a person calls them; those that nobody measures are left out."""
    one = np.array([held.job_column], dtype=np.intp)
    ranks_per_node = max(1.0, len(held.gpus) / max(1, len(held.nodes)))

    def grows(layer: Layer, column: str, columns: Columns, *, floor: float) -> Sign:
        return _sign(held.growth(layer, column, columns=columns), floor=floor)

    found = {
        "GPU activity": read_gpu_activity(panel, held),
        "NVLink": grows(panel.gpus, "nvlink_bandwidth_bytes", held.gpus, floor=NVLINK_FLOOR_BYTES_PER_SECOND),
        "network": grows(panel.nodes, "fabric_bytes", held.nodes, floor=FABRIC_FLOOR_BYTES_PER_SECOND),
        "shared storage": _either(
            grows(panel.nodes, "shared_read_bytes", held.nodes, floor=SHARED_FLOOR_BYTES_PER_SECOND),
            grows(panel.nodes, "shared_written_bytes", held.nodes, floor=SHARED_FLOOR_BYTES_PER_SECOND),
        ),
        "local disks": _local_disks(panel, held),
        "CPU": grows(panel.nodes, "cpu_busy_seconds", held.nodes, floor=SPIN_CORES_PER_RANK * ranks_per_node),
        "steps": grows(panel.jobs, "step_count", one, floor=_ANY),
        "log lines": grows(panel.jobs, "line_count", one, floor=_ANY),
    }
    return {name: sign for name, sign in found.items() if sign.is_known.any()}


def recent_mean(values: Numbers, rows: int) -> Numbers:
    """Return the mean of the known values of the last `rows` rows, this one included; NaN where none is known."""
    known = ~np.isnan(values)
    total, count = np.zeros(values.shape), np.zeros(values.shape, dtype=np.int32)
    filled = np.where(known, values, 0.0)
    for back in range(min(rows, len(values))):
        total[back:] += filled[: len(values) - back]
        count[back:] += known[: len(values) - back]
    found = np.full(values.shape, np.nan)
    np.divide(total, count, out=found, where=count > 0)
    return found


def read_gpu_activity(panel: Panel, held: Allocation) -> Sign:
    """Return the sign that nearly every job that lives shows all the time: who sees it need not read the others."""
    measured = [
        _sign(held.of(panel.gpus, column, columns=held.gpus), floor=floor)
        for column, floor in ACTIVITY_FLOORS.items()
        if column in panel.gpus
    ]
    if any(sign.is_known.any() for sign in measured):
        return _either(*measured)
    power = held.of(panel.gpus, "power_watts", columns=held.gpus).astype(np.float64)
    if not power.size:
        return Sign(moves=np.zeros(len(power), dtype=bool), is_known=np.zeros(len(power), dtype=bool))
    change = np.full(power.shape, np.nan)
    change[1:] = np.abs(power[1:] - power[:-1]) / np.maximum(power[:-1], 1.0)
    return _sign(change, floor=POWER_MOVES_RATIO)


def _local_disks(panel: Panel, held: Allocation) -> Sign:
    columns = panel.disks.columns_of(panel.nodes.parts[column].node for column in held.nodes)
    return _either(
        *(
            _sign(held.growth(panel.disks, column, columns=columns), floor=DISK_FLOOR_BYTES_PER_SECOND)
            for column in ("read_bytes", "written_bytes")
        )
    )


def _sign(values: Numbers, *, floor: float) -> Sign:
    """Return where any part reaches its floor, and where enough parts are known to say that none does."""
    moves = row_max(values) >= floor
    enough = max(1.0, _LEAST_KNOWN_SHARE * values.shape[1])
    return Sign(moves=moves, is_known=moves | (np.count_nonzero(~np.isnan(values), axis=1) >= enough))


def _either(*signs: Sign) -> Sign:
    """Return the sign that moves where any of them does; it is known as soon as one is."""
    return Sign(
        moves=np.logical_or.reduce([sign.moves for sign in signs]),
        is_known=np.logical_or.reduce([sign.is_known for sign in signs]),
    )


def burns_like_waiting(panel: Panel, held: Allocation, *, waits: Flags, rows: NDArray[np.intp], window: int) -> Flags:
    """Return for each of `rows` whether the CPUs of the job do no more than waiting threads do; True if not measured.

    `waits` says of every row whether its GPUs are at rest after a first step: what a node burnt in such a time within
    `_BASELINE_WINDOWS` windows before is what its waiting costs.
    """
    cores = held.growth(panel.nodes, "cpu_busy_seconds", columns=held.nodes)
    if np.isnan(cores).all() or not len(rows):
        return np.ones(len(rows), dtype=bool)
    mean = recent_mean(cores, window)
    square = recent_mean(cores**2, window)
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0) * (window / (window - 1)))
    tolerance = STEADY_CORES + STEADY_CORES_PER_DOUBLING * np.log2(len(held.nodes))
    is_unsteady = deviation[rows] > np.maximum(tolerance, 0.012 * mean[rows])
    is_apart = (mean[rows] - row_median(mean[rows])[:, np.newaxis]) > CORES_APART
    if len(held.nodes) < _LEAST_PEERS:
        is_apart[:] = False
    waited = np.where((counted(waits, window) >= window)[:, np.newaxis], mean, np.inf)
    is_above = np.zeros(is_apart.shape, dtype=bool)
    for place, row in enumerate(rows):
        before = waited[max(0, row - _BASELINE_WINDOWS * window + 1) : row + 1].min(axis=0)
        is_above[place] = mean[row] - before > CORES_APART
    return np.array(~(is_unsteady | is_apart | is_above).any(axis=1), dtype=bool)
