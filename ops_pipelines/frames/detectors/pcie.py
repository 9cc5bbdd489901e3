"""The PCIe link of a GPU: replays that grow steadily, and a link that came up narrower or slower than it can.

A link that a power saver slows down while its GPU idles is no fault.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.peers import group_by, group_count, group_median
from ops_pipelines.frames.detectors.windows import (
    GAP_SECONDS,
    Columns,
    Told,
    carried,
    ever,
    growth,
    newest,
    told,
    told_counts,
)
from ops_pipelines.frames.panels.detection import Detection, counted
from ops_pipelines.frames.panels.panel import Flags, Layer, Numbers, Panel

REPLAY_LIMIT_PER_MINUTE = 8
"""NVIDIA DCGM PCIe watch (DcgmGPUHardwareLimits.h scales it by generation and lanes)."""
REPLAY_WINDOW_SECONDS = 180
"""Assumption: three minutes at that rate, with growth at half of the samples: a burst at a job's start is no trend."""
DEGRADED_ROWS = 2
"""Assumption: a link is a state, and one sample may fall into its training."""
BUSY_RATIO = 0.05
"""Assumption: a GPU with less utilisation is idle, and its link may be asleep."""
PEER_COUNT = 3
"""Assumption: of fewer GPUs of the same model nobody knows what is usual."""
_WIDTH, _GENERATION = "pcie_link_width", "pcie_link_generation"
_LINK = ((_WIDTH, f"{_WIDTH}_limit", "width"), (_GENERATION, f"{_GENERATION}_limit", "generation"))


def detect_pcie(panel: Panel) -> Iterator[Detection]:
    """Yield PCIE_ERRORS, and PCIE_DEGRADED after DEGRADED_ROWS samples of a narrow or slow link."""
    yield from _detect_replays(panel)
    for column, limit_column, unit in _LINK:
        if column in panel.gpus and len(panel.times):
            yield from _detect_degraded(panel, column, limit_column, unit)


def _detect_replays(panel: Panel) -> Iterator[Detection]:
    grown = growth(panel, panel.gpus, "pcie_replay_count", least=REPLAY_LIMIT_PER_MINUTE * REPLAY_WINDOW_SECONDS / 60)
    rows = panel.rows_in(REPLAY_WINDOW_SECONDS)
    per_minute = grown.within(rows) * 60 / REPLAY_WINDOW_SECONDS
    yield from told_counts(
        panel,
        panel.gpus,
        grown,
        said=(per_minute >= REPLAY_LIMIT_PER_MINUTE) & (2 * counted(grown.grew, rows) >= rows),
        values=per_minute,
        signal=Signal.PCIE_ERRORS,
        words="replays {0:.0f} PCIe packets a minute",
        sign_rows=rows,
    )


def _detect_degraded(panel: Panel, column: str, limit_column: str, unit: str) -> Iterator[Detection]:
    layer = panel.gpus
    reading = layer.values[column]
    best = _best(layer, reading, layer.values.get(limit_column))
    narrow = reading < best
    if column == _GENERATION and "utilisation_ratio" in layer:
        narrow &= ~(layer.values["utilisation_ratio"] < BUSY_RATIO)  # lowered at rest on every board
    columns = ever(narrow)
    if not len(columns):
        return
    below = narrow[:, columns] & ~_is_asleep(layer, reading, columns)
    places = ever(below)
    below, columns = below[:, places], columns[places]
    best = best[:, columns]
    degraded = carried(below, ~np.isnan(reading[:, columns]), panel.rows_in(GAP_SECONDS))
    said = counted(degraded, DEGRADED_ROWS) >= DEGRADED_ROWS

    def describe(row: int, place: int) -> Told:
        rows = panel.rows_in(GAP_SECONDS) + 1
        value = newest(reading, column=int(columns[place]), row=row, rows=rows)
        most = newest(best, column=place, row=row, rows=rows)
        return f"runs its PCIe link at {unit} {value:.0f} of {most:.0f}", value

    yield from told(
        panel,
        layer,
        said,
        columns=columns,
        signal=Signal.PCIE_DEGRADED,
        describe=describe,
        signs=degraded,
        sign_rows=DEGRADED_ROWS,
    )


def _best(layer: Layer, reading: Numbers, limit: Numbers | None) -> Numbers:
    """Return what each link can do: its own limit, else what most of its model have now."""
    groups = group_by([part.model for part in layer.parts])
    if limit is not None and not np.isnan(limit).any():
        return limit
    usual = group_median(reading, groups)
    usual[:, groups.sizes <= PEER_COUNT] = np.nan
    by_part = usual[:, groups.index]
    return by_part if limit is None else np.where(np.isnan(limit), by_part, limit)


def _is_asleep(layer: Layer, reading: Numbers, columns: Columns) -> Flags:
    """Return where a GPU idles, and no more than half of the other idle GPUs of its model have a better link: power
    saving, or nobody knows before it works."""
    work = layer.values.get("utilisation_ratio")
    asleep = np.zeros((len(reading), len(columns)), dtype=bool)
    if work is None:
        return asleep
    idle = work < BUSY_RATIO
    groups = group_by([part.model for part in layer.parts])
    own, own_idle, own_group = reading[:, columns], idle[:, columns], groups.index[columns]
    others = group_count(idle, groups)[:, own_group] - 1
    levels = np.bincount(own[own_idle & ~np.isnan(own)].astype(np.int64)) > 0
    for level in np.flatnonzero(levels):
        better = group_count(idle & (reading > level), groups)[:, own_group]
        asleep |= own_idle & (own == level) & (2 * better <= others)
    return asleep
