"""Jobs that hold GPUs without progress: idle, waiting for data, or with a loss that is no number.

A service that waits for traffic has its model in memory, and is not idle. Partly used jobs are `efficiency`'s.

Secondary by nature: what holds them up is found at the store or the switch. A pause of a healthy job moves bytes and
ends within ten minutes: who waits for storage and gets nothing is said at once, all else after a quarter of an hour.

Read off the gauge of the jobs' own metrics; what a job only writes into its log is the catalogue's business.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.hang import recent_mean
from ops_pipelines.observe.detectors.node import NOTHING_BELOW_BYTES_PER_SECOND
from ops_pipelines.observe.detectors.shared import Allocation, Columns, allocations, job_component, row_max, row_mean
from ops_pipelines.observe.panels.panel import (
    LOOKBACK_SECONDS,
    Detection,
    Flags,
    Numbers,
    Panel,
    counted,
    lasting,
    stretches,
)

# -- GPUs that a job holds and never uses --


IDLE_SECONDS = 1_800
REST_BELOW = {
    "utilisation_ratio": 0.02,
    "sm_active_ratio": 0.02,
    "graphics_active_ratio": 0.02,
    "tensor_active_ratio": 0.01,
    # A CUDA context alone takes about 0.5 GiB; two of them, and nothing else.
    "memory_used_bytes": 2 * 2.0**30,
}


def detect_idle_gpus(panel: Panel) -> Iterator[Detection]:
    """Yield GPUS_IDLE where every GPU of a job rested for IDLE_SECONDS. Activity and memory must both be measured."""
    rows = panel.rows_in(IDLE_SECONDS)
    for held in allocations(panel):
        if held.end - held.first < rows or not len(held.gpus):
            continue
        largest = {name: row_max(held.of(panel.gpus, name, columns=held.gpus)) for name in REST_BELOW}
        in_use = np.logical_or.reduce([largest[name] >= REST_BELOW[name] for name in REST_BELOW])
        activity_known = np.logical_or.reduce(
            [~np.isnan(largest[name]) for name in REST_BELOW if name != "memory_used_bytes"]
        )
        rests = ~in_use & activity_known & ~np.isnan(largest["memory_used_bytes"])
        job = panel.job(held.job_column)
        for stretch in stretches(lasting(rests[:, np.newaxis], rows)):
            began_at = panel.time(held.first + stretch.first - rows + 1)
            yield Detection(
                signal=Signal.GPUS_IDLE,
                node=NO_NODE,
                component=job_component(job),
                job=job,
                began_at=began_at,
                first_seen_at=panel.time(held.first + stretch.first),
                last_seen_at=panel.time(held.first + stretch.last),
                value=float(len(held.gpus)),
                text=f"job {job} holds {len(held.gpus)} GPUs and has used none of them since {began_at:%H:%M}: no"
                " activity, nothing in their memory",
            )


# -- jobs that look busy and wait --


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


# -- the loss of a training --


BROKEN_SECONDS = 60
"""One sample may be a batch of bad data; four in a row are the training."""
SPIKE_SECONDS = 120
"""Small spikes pass within a minute or two (BLOOM and OPT chronicles)."""
BASELINE_SECONDS = 1_800
LEAST_BASELINE_SAMPLES = 40
"""Ten minutes of samples: less shows no spread."""
SPREADS_ABOVE = 8.0
ABOVE_RATIO = 0.3
"""Besides: all of them so far above the median. Losses of small batches scatter by less."""
_LEAST_SPREAD_RATIO = 0.01
_MAD_TO_SIGMA = 1.4826


def detect_losses(panel: Panel) -> Iterator[Detection]:
    """Yield LOSS_NOT_FINITE and LOSS_SPIKE. NaN is no sample; what is infinite was no number where it was written."""
    if "loss" not in panel.jobs:
        return
    for held in allocations(panel):
        column = np.array([held.job_column], dtype=np.intp)
        loss = held.of(panel.jobs, "loss", columns=column).astype(np.float64)
        if np.isnan(loss).all():
            continue
        rows = panel.rows_in(BROKEN_SECONDS)
        goes_on = _goes_on(panel, held, column, rows=rows)
        broken = lasting(np.isinf(loss), rows) & goes_on
        for stretch in stretches(broken):
            yield _loss_detection(
                panel, held, Signal.LOSS_NOT_FINITE, stretch.first, stretch.last, rows, "is no number"
            )
        rows = panel.rows_in(SPIKE_SECONDS)
        spikes, ratios = _spikes(panel, loss, rows=rows)
        for stretch in stretches(spikes & goes_on):
            ratio = float(ratios[stretch.first])
            words = f"is {ratio:.1f} times its median of the half hour before"
            yield _loss_detection(panel, held, Signal.LOSS_SPIKE, stretch.first, stretch.last, rows, words, value=ratio)


def _goes_on(panel: Panel, held: Allocation, column: Columns, *, rows: int) -> Flags:
    """Return where steps were made meanwhile, or nobody counts them: a gauge keeps the loss of one bad step."""
    steps = held.growth(panel.jobs, "step_count", columns=column)
    flags: Flags = (counted(steps > 0, rows) > 0) | np.equal(counted(~np.isnan(steps), rows), 0)
    return flags


def _spikes(panel: Panel, loss: Numbers, *, rows: int) -> tuple[Flags, Numbers]:
    """Return where the last samples are all far above those before, and by which factor."""
    baseline_rows = panel.rows_in(min(BASELINE_SECONDS, LOOKBACK_SECONDS)) - rows
    finite = np.where(np.isinf(loss), np.nan, loss)[:, 0]
    flags, ratios = np.zeros(loss.shape, dtype=bool), np.full(len(loss), np.nan)
    for row in range(rows, len(finite)):
        recent = finite[row - rows + 1 : row + 1]
        lowest = recent.min()  # NaN if one is not known
        # Medians are costly: only where the lowest of the last samples is above the sample before their baseline ends.
        if not lowest > 0:
            continue
        before = finite[max(0, row - rows + 1 - baseline_rows) : row - rows + 1]
        known = before[~np.isnan(before)]
        if len(known) < LEAST_BASELINE_SAMPLES or lowest <= known.min() * (1 + ABOVE_RATIO):
            continue
        median = float(np.median(known))
        spread = max(float(np.median(np.abs(known - median))) * _MAD_TO_SIGMA, _LEAST_SPREAD_RATIO * abs(median))
        if lowest > median * (1 + ABOVE_RATIO) and lowest > median + SPREADS_ABOVE * spread:
            flags[row, 0], ratios[row] = True, lowest / median
    return flags, ratios


def _loss_detection(
    panel: Panel,
    held: Allocation,
    signal: Signal,
    first: int,
    last: int,
    rows: int,
    words: str,
    *,
    value: float | None = None,
) -> Detection:
    job = panel.job(held.job_column)
    began_at = panel.time(held.first + max(0, first - rows + 1))
    return Detection(
        signal=signal,
        node=NO_NODE,
        component=job_component(job),
        job=job,
        began_at=began_at,
        first_seen_at=panel.time(held.first + first),
        last_seen_at=panel.time(held.first + last),
        value=value,
        text=f"the loss of job {job} {words} since {began_at:%H:%M:%S}",
    )
