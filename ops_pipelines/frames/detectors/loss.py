"""The loss of a training: no number any more, or far above what it was.

Read off the gauge of the jobs' own metrics; what a job only writes into its log is the catalogue's business.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.frames.detectors.allocations import Allocation, Columns, allocations, job_component
from ops_pipelines.frames.panels.detection import Detection, counted, lasting, stretches
from ops_pipelines.frames.panels.panel import LOOKBACK_SECONDS, Flags, Numbers, Panel

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
            yield _detection(panel, held, Signal.LOSS_NOT_FINITE, stretch.first, stretch.last, rows, "is no number")
        rows = panel.rows_in(SPIKE_SECONDS)
        spikes, ratios = _spikes(panel, loss, rows=rows)
        for stretch in stretches(spikes & goes_on):
            ratio = float(ratios[stretch.first])
            words = f"is {ratio:.1f} times its median of the half hour before"
            yield _detection(panel, held, Signal.LOSS_SPIKE, stretch.first, stretch.last, rows, words, value=ratio)


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


def _detection(
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
