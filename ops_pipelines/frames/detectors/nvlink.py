"""NVLink between the GPUs of a chassis: CRC errors at a rate, replays without end, recoveries and failed recoveries.

One GPU's counters each. That the links of many GPUs lead to one switch is correlation's to see.
"""

from collections.abc import Iterator

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import growth, told_counts
from ops_pipelines.frames.panels.detection import Detection, counted, held_lately, lasting
from ops_pipelines.frames.panels.panel import Panel

CRC_LIMIT_PER_SECOND = 100
"""DCGM common/DcgmGPUHardwareLimits.h: NVLink CRC errors at 100 a second and more."""
CRC_ROWS = 2
"""Assumption: two samples in a row, so that one burst, or one counter that jumps, is none."""
REPLAY_LIMIT = 30
"""GCM check-dcgmi nvlink: fails at 30. DCGM calls a single replay an error, which a healthy link shows now and then."""
REPLAY_WINDOW_SECONDS = 600
REPLAY_SAMPLES = 3
"""Assumption, both: ten minutes, and growth at three samples of them."""
EVENT_HOLD_SECONDS = 600
"""Assumption: a recovery says something of the link for ten minutes."""


def detect_nvlink(panel: Panel) -> Iterator[Detection]:
    """Yield NVLINK_ERRORS. Recoveries are said at their first sample: DCGM calls each new one an error, and a link that
    was retrained under a collective has cost it its answer."""
    for column, what in (
        ("nvlink_crc_flit_error_count", "flit CRC errors"),
        ("nvlink_crc_data_error_count", "data CRC errors"),
    ):
        yield from _rate(panel, column, what)
    yield from _replays(panel)
    for column, what in (
        ("nvlink_recovery_failed_count", "failed NVLink recoveries"),
        ("nvlink_recovery_error_count", "NVLink recoveries"),
    ):
        yield from _events(panel, column, what)


def _rate(panel: Panel, column: str, what: str) -> Iterator[Detection]:
    grown = growth(panel, panel.gpus, column, least=CRC_LIMIT_PER_SECOND * panel.step_seconds)
    fast = grown.counts >= CRC_LIMIT_PER_SECOND * panel.step_seconds
    yield from told_counts(
        panel,
        panel.gpus,
        grown,
        # a link that drops below the limit for a sample or two is the same link
        said=held_lately(lasting(fast, CRC_ROWS), CRC_ROWS + 1),
        values=grown.counts / panel.step_seconds,
        signal=Signal.NVLINK_ERRORS,
        words=f"counts {{0:.0f}} NVLink {what} a second",
        signs=fast,
        sign_rows=CRC_ROWS,
    )


def _replays(panel: Panel) -> Iterator[Detection]:
    grown = growth(panel, panel.gpus, "nvlink_replay_error_count", least=REPLAY_LIMIT)
    rows = panel.rows_in(REPLAY_WINDOW_SECONDS)
    within = grown.within(rows)
    yield from told_counts(
        panel,
        panel.gpus,
        grown,
        said=(within >= REPLAY_LIMIT) & (counted(grown.grew, rows) >= REPLAY_SAMPLES),
        values=within,
        signal=Signal.NVLINK_ERRORS,
        words="counts {0:.0f} NVLink replays within ten minutes",
        sign_rows=rows,
    )


def _events(panel: Panel, column: str, what: str) -> Iterator[Detection]:
    grown = growth(panel, panel.gpus, column)
    rows = panel.rows_in(EVENT_HOLD_SECONDS)
    yield from told_counts(
        panel,
        panel.gpus,
        grown,
        said=held_lately(grown.grew, rows),
        values=grown.within(rows),
        signal=Signal.NVLINK_ERRORS,
        words=f"counts {{0:.0f}} {what}",
        sign_rows=rows,
    )
