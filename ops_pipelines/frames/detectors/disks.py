"""Disks and local file systems of a node: worn, full, failing. Shared storage is not here."""

from collections.abc import Callable, Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import (
    GAP_SECONDS,
    Told,
    carried,
    ever,
    growth,
    newest,
    state_holds,
    told,
    told_counts,
)
from ops_pipelines.frames.panels.detection import Detection, lasting
from ops_pipelines.frames.panels.panel import Flags, Layer, Numbers, Panel

WEAR_LIMIT_RATIO = 0.80
"""dcgm_fields, smartctl_device_percentage_used: 80 % and above warns, 100 % is the end of the rated endurance."""
SPARE_LIMIT_RATIO = 0.10
"""NVMe drives state their own threshold; 10 % is what most of them state. Used where the drive's is not measured."""
TEMPERATURE_WARNING = 2
"""Bit of the NVMe critical warning that says hot: no failing disk, and heat is a matter of its own."""
MEDIA_ERROR_COUNT, MEDIA_WINDOW_SECONDS = 2, 1_800
"""Assumption: one new media error is a reason to look (dcgm_fields), two within half an hour are a disk that fails."""
AVAILABLE_LIMIT_RATIO, FULL_ROWS = 0.05, 2
"""dcgm_fields, node_filesystem_avail_bytes: below 5 % jobs fail to write. Assumption: at two samples, as the end
of a job may free it at once."""
BUSY_LIMIT_RATIO, OPERATIONS_LIMIT_PER_SECOND, STUCK_SECONDS = 0.95, 5, 300
"""catalogue/metrics.csv, busy_seconds: near 1 with little throughput it is dying. Assumption: fewer than 5
operations a second for five minutes."""


def detect_disks(panel: Panel) -> Iterator[Detection]:
    """Yield DISK_WORN, DISK_FAILING and DISK_FULL. What a drive says of itself is said at its first sample."""
    disks = panel.disks
    yield from _state(
        panel, disks, "wear_ratio", Signal.DISK_WORN, lambda wear: wear >= np.float32(WEAR_LIMIT_RATIO),
        "has used {0:.0%} of its rated endurance",
    )  # fmt: skip
    yield from _state(
        panel, disks, "critical_warning", Signal.DISK_FAILING, _is_critical, "raises NVMe critical warning {0:#x}"
    )
    yield from _state(
        panel, disks, "healthy", Signal.DISK_FAILING, lambda passes: passes == 0, "fails its SMART self-assessment"
    )
    yield from _detect_spare(panel)
    for column in ("media_error_count", "uncorrected_read_error_count", "uncorrected_write_error_count"):
        yield from _detect_media_errors(panel, column)
    yield from _detect_stuck(panel)
    yield from _detect_full(panel)


def _is_critical(warning: Numbers) -> Flags:
    bits = np.nan_to_num(warning).astype(np.int64)
    return np.asarray((bits & ~TEMPERATURE_WARNING) > 0)


def _state(
    panel: Panel, layer: Layer, column: str, signal: Signal, holds: Callable[[Numbers], Flags], words: str
) -> Iterator[Detection]:
    said, columns = state_holds(panel, layer, column, holds)

    def describe(row: int, place: int) -> Told:
        value = float(layer.values[column][row, columns[place]])
        return words.format(int(value) if "#x" in words else value), value

    yield from told(panel, layer, said, columns=columns, signal=signal, describe=describe)


def _detect_spare(panel: Panel) -> Iterator[Detection]:
    spare = panel.disks.values.get("spare_ratio")
    if spare is None:
        return
    threshold = panel.disks.value("spare_threshold_ratio")
    limit = np.where(np.isnan(threshold), np.float32(SPARE_LIMIT_RATIO), threshold)
    low = spare < limit
    columns = ever(low)
    said = carried(low[:, columns], ~np.isnan(spare[:, columns]), panel.rows_in(GAP_SECONDS))

    def describe(row: int, place: int) -> Told:
        value, least = float(spare[row, columns[place]]), float(limit[row, columns[place]])
        return f"has {value:.0%} of its spare blocks left; its threshold is {least:.0%}", value

    yield from told(panel, panel.disks, said, columns=columns, signal=Signal.DISK_FAILING, describe=describe)


def _detect_media_errors(panel: Panel, column: str) -> Iterator[Detection]:
    grown = growth(panel, panel.disks, column, least=MEDIA_ERROR_COUNT)
    rows = panel.rows_in(MEDIA_WINDOW_SECONDS)
    within = grown.within(rows)
    what = column.removesuffix("_count").replace("_", " ")
    yield from told_counts(
        panel,
        panel.disks,
        grown,
        said=within >= MEDIA_ERROR_COUNT,
        values=within,
        signal=Signal.DISK_FAILING,
        words=f"counts {{0:.0f}} new {what}s within half an hour",
        sign_rows=rows,
    )


def _detect_stuck(panel: Panel) -> Iterator[Detection]:
    disks = panel.disks
    if "busy_seconds" not in disks or not ("read_count" in disks and "write_count" in disks):
        return
    busy = disks.rate("busy_seconds")
    columns = ever(busy >= BUSY_LIMIT_RATIO)
    done = disks.rate("read_count")[:, columns] + disks.rate("write_count")[:, columns]
    stuck = (busy[:, columns] >= BUSY_LIMIT_RATIO) & (done < OPERATIONS_LIMIT_PER_SECOND)
    stuck = carried(stuck, ~np.isnan(done), panel.rows_in(GAP_SECONDS))
    rows = panel.rows_in(STUCK_SECONDS)
    yield from told(
        panel,
        disks,
        lasting(stuck, rows),
        columns=columns,
        signal=Signal.DISK_FAILING,
        describe=lambda *_: ("has been busy all the time for five minutes and done next to nothing", None),
        signs=stuck,
        sign_rows=rows,
    )


def _detect_full(panel: Panel) -> Iterator[Detection]:
    column = "filesystem_available_ratio"
    full, columns = state_holds(panel, panel.nodes, column, lambda left: left < np.float32(AVAILABLE_LIMIT_RATIO))

    def describe(row: int, place: int) -> Told:
        value = newest(
            panel.nodes.values[column], column=int(columns[place]), row=row, rows=panel.rows_in(GAP_SECONDS) + 1
        )
        return f"has {value:.1%} left on its fullest local file system", value

    yield from told(
        panel,
        panel.nodes,
        lasting(full, FULL_ROWS),
        columns=columns,
        signal=Signal.DISK_FULL,
        describe=describe,
        signs=full,
        sign_rows=FULL_ROWS,
    )
