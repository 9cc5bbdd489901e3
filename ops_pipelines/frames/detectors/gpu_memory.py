"""GPU memory: row remaps that are pending, failed or have no reserve left; corrected errors at a rate that foretells.

Uncorrected errors are `driver`'s, as the driver itself counts them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import Told, growth, state_holds, told, told_counts
from ops_pipelines.frames.panels.detection import Detection, counted
from ops_pipelines.frames.panels.panel import Flags, Numbers, Panel

PENDING, FAILED, EXHAUSTED = 1, 2, 3
"""`code` of ROW_REMAP."""
REMAPPED_ROWS_LIMIT = 512
"""NVIDIA GPU memory error management: 512 uncorrectable remaps exhaust a GPU (8 a bank, which no metric shows)."""
RETIRED_PAGES_LIMIT = 63
"""DCGM common/DcgmGPUHardwareLimits.h: hard limit of retired pages before Ampere."""
CORRECTED_COUNT_LIMIT = 20_000_000
"""azurehpc-health-checks nd96isr_h100_v5.conf: a node with more corrected errors of DRAM fails."""
CORRECTED_RATE_LIMIT_PER_MINUTE = 10
"""DCGM common/DcgmGPUHardwareLimits.h: rate limit of single-bit errors 10. Assumption: a minute."""
RATE_WINDOW_SECONDS = 600
"""Assumption: ten minutes, so that one burst is no rate."""
RATE_SAMPLES = 5
"""Assumption: the count must have grown at so many samples of the window: a few corrections are life."""


def detect_gpu_memory(panel: Panel) -> Iterator[Detection]:
    """Yield ROW_REMAP at the first sample that says so (the driver's own word, and none that noise can make), and
    ECC_RATE."""
    yield from _state(panel, "row_remap_pending", 1, PENDING, "has a row remap pending: it waits for a reset")
    yield from _state(panel, "retired_pages_pending", 1, PENDING, "has {0:.0f} page(s) waiting for retirement")
    yield from _state(panel, "row_remap_failed", 1, FAILED, "failed to remap a row")
    yield from _state(panel, "memory_unrepairable", 1, FAILED, "has memory that cannot be repaired")
    yield from _state(panel, "remap_banks_none_count", 1, EXHAUSTED, "has {0:.0f} memory bank(s) without a spare row")
    yield from _state(
        panel, "row_remap_uncorrectable_count", REMAPPED_ROWS_LIMIT, EXHAUSTED, "has remapped {0:.0f} rows of 512"
    )
    for column in ("retired_pages_uncorrectable_count", "retired_pages_correctable_count"):
        yield from _state(panel, column, RETIRED_PAGES_LIMIT, EXHAUSTED, "has retired {0:.0f} pages of 63")
    yield from _detect_corrected(panel)


def _state(panel: Panel, column: str, limit: float, code: int, words: str) -> Iterator[Detection]:
    holds, columns = state_holds(panel, panel.gpus, column, _at_least(limit))

    def describe(row: int, place: int) -> Told:
        value = float(panel.gpus.values[column][row, columns[place]])
        return words.format(value), value

    yield from told(panel, panel.gpus, holds, columns=columns, signal=Signal.ROW_REMAP, describe=describe, code=code)


def _at_least(limit: float) -> Callable[[Numbers], Flags]:
    return lambda samples: np.greater_equal(samples, limit)


def _detect_corrected(panel: Panel) -> Iterator[Detection]:
    column, rows = "ecc_correctable_volatile_count", panel.rows_in(RATE_WINDOW_SECONDS)
    least = CORRECTED_RATE_LIMIT_PER_MINUTE * RATE_WINDOW_SECONDS / 60
    grown = growth(panel, panel.gpus, column, least=least)
    per_minute = grown.within(rows) * 60 / RATE_WINDOW_SECONDS
    yield from told_counts(
        panel,
        panel.gpus,
        grown,
        said=(per_minute >= CORRECTED_RATE_LIMIT_PER_MINUTE) & (counted(grown.grew, rows) >= RATE_SAMPLES),
        values=per_minute,
        signal=Signal.ECC_RATE,
        words="corrected {0:.0f} memory errors a minute over ten minutes",
        sign_rows=rows,
    )
    holds, columns = state_holds(panel, panel.gpus, column, lambda samples: np.greater(samples, CORRECTED_COUNT_LIMIT))
    yield from told(
        panel,
        panel.gpus,
        holds,
        columns=columns,
        signal=Signal.ECC_RATE,
        describe=lambda row, place: (
            "has corrected more than 20 million memory errors since its driver was loaded",
            float(panel.gpus.values[column][row, columns[place]]),
        ),
    )
