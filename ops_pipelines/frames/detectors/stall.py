"""Jobs that look busy and wait: resident kernels, hardly any work, while storage or the network holds them up.

Secondary by nature: what holds them up is found at the store or the switch. A pause of a healthy job moves bytes and
ends within ten minutes: who waits for storage and gets nothing is said at once, all else after a quarter of an hour.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.frames.detectors.allocations import Allocation, allocations, job_component, row_max, row_mean
from ops_pipelines.frames.detectors.signs_of_life import recent_mean
from ops_pipelines.frames.detectors.storage import NOTHING_BELOW_BYTES_PER_SECOND
from ops_pipelines.frames.panels.detection import Detection, lasting, stretches
from ops_pipelines.frames.panels.panel import Numbers, Panel

WINDOW_SECONDS = 900
"""Longer than any pause of a healthy job (600 s)."""
LOOKS_BUSY_ABOVE_RATIO, LITTLE_WORK_BELOW_RATIO = 0.7, 0.1
"""Utilisation counts resident kernels; tensor activity the work (dcgm_fields.csv: training shows 0.3 to 0.5)."""
STALLED_ABOVE_RATIO = 0.3
"""Kernel pressure (PSI), mean of the job's nodes; a healthy loader stays below 0.05."""
WAITS_ABOVE_TICKS_PER_SECOND = 1e7
"""Congestion: a port that has data and no credit counts ticks of some nanoseconds; this is several percent of them."""
NOTHING_SECONDS = 60
_ROUNDING = 1 + 1e-9
"""The mean of numbers may lie below the least of them by its rounding."""
STORAGE, NETWORK = 1, 2
_REASONS = {STORAGE: "storage", NETWORK: "the network"}


def detect_stalled_jobs(panel: Panel) -> Iterator[Detection]:
    """Yield JOB_STALLED with code 1 (storage) or 2 (network). Without tensor activity nothing is said."""
    window, soon = panel.rows_in(WINDOW_SECONDS), panel.rows_in(NOTHING_SECONDS)
    for held in allocations(panel):
        busy = row_mean(held.of(panel.gpus, "utilisation_ratio", columns=held.gpus))
        work = row_mean(held.of(panel.gpus, "tensor_active_ratio", columns=held.gpus))
        if not (work < LITTLE_WORK_BELOW_RATIO * _ROUNDING).any():
            continue  # who always works is never stalled: the rest need not be read
        stalled = row_mean(held.growth(panel.nodes, "pressure_io_stalled_seconds", columns=held.nodes))
        congested = _wait_ticks(panel, held)
        looks_busy = recent_mean(busy, window) >= LOOKS_BUSY_ABOVE_RATIO
        looks_busy &= recent_mean(work, window) < LITTLE_WORK_BELOW_RATIO
        looks_busy[: window - 1] = False
        gets_nothing = (work < LITTLE_WORK_BELOW_RATIO) & (stalled >= STALLED_ABOVE_RATIO)
        gets_nothing &= _shared_bytes(panel, held) < NOTHING_BELOW_BYTES_PER_SECOND
        storage = (looks_busy & (recent_mean(stalled, window) >= STALLED_ABOVE_RATIO)) | lasting(gets_nothing, soon)
        network = looks_busy & (recent_mean(congested, window) >= WAITS_ABOVE_TICKS_PER_SECOND) & ~storage
        for code, flags, numbers in ((STORAGE, storage, stalled), (NETWORK, network, congested)):
            for stretch in stretches(flags[:, np.newaxis]):
                first = stretch.first
                rows = window if looks_busy[first] else soon
                yield _detection(
                    panel,
                    held,
                    code=code,
                    first=first,
                    last=stretch.last,
                    rows=rows,
                    words=f"utilisation {busy[first]:.0%}, tensor pipes {work[first]:.0%}",
                    value=float(numbers[first]),
                )


def _shared_bytes(panel: Panel, held: Allocation) -> Numbers:
    """Return what shared storage moved for the busiest node of the job, per second."""
    read = row_max(held.growth(panel.nodes, "shared_read_bytes", columns=held.nodes))
    written = row_max(held.growth(panel.nodes, "shared_written_bytes", columns=held.nodes))
    return np.fmax(read, written)


def _wait_ticks(panel: Panel, held: Allocation) -> Numbers:
    columns = panel.ports.columns_of(panel.nodes.parts[column].node for column in held.nodes)
    return row_mean(held.growth(panel.ports, "transmit_wait_count", columns=columns))


def _detection(
    panel: Panel, held: Allocation, *, code: int, first: int, last: int, rows: int, words: str, value: float
) -> Detection:
    job = panel.job(held.job_column)
    began_at = panel.time(held.first + max(0, first - rows + 1))
    return Detection(
        signal=Signal.JOB_STALLED,
        node=NO_NODE,
        component=job_component(job),
        job=job,
        code=code,
        began_at=began_at,
        first_seen_at=panel.time(held.first + first),
        last_seen_at=panel.time(held.first + last),
        value=value,
        text=f"job {job} looks busy and waits for {_REASONS[code]} since {began_at:%H:%M}: {words}",
    )
