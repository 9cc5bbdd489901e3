"""Trouble of one GPU: memory, NVLink, PCIe, and what the driver itself asks for.

Uncorrected errors are `driver`'s, as the driver itself counts them.

One GPU's counters each. That the links of many GPUs lead to one switch is correlation's to see.

A link that a power saver slows down while its GPU idles is no fault.

The live path reads the same from single samples (`lake.telemetry`); this is for panels. Each number is a condition of
its own: "reset me" that becomes "reboot the node" is another one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.shared import (
    GAP_SECONDS,
    Columns,
    Told,
    carried,
    ever,
    group_by,
    group_count,
    group_median,
    growth,
    newest,
    state_holds,
    told,
    told_counts,
)
from ops_pipelines.observe.panels.panel import Detection, Flags, Layer, Numbers, Panel, counted, held_lately, lasting

# -- GPU memory --


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


# -- NVLink between the GPUs of a chassis --


CRC_LIMIT_PER_SECOND = 100
"""DCGM common/DcgmGPUHardwareLimits.h: NVLink CRC errors at 100 a second and more."""
CRC_ROWS = 2
"""Assumption: two samples in a row, so that one burst, or one counter that jumps, is none."""
REPLAY_LIMIT = 30
"""GCM check-dcgmi nvlink: fails at 30. DCGM calls a single replay an error, which a healthy link shows now and then."""
NVLINK_REPLAY_WINDOW_SECONDS = 600
REPLAY_SAMPLES = 3
"""Assumption, both: ten minutes, and growth at three samples of them."""
EVENT_HOLD_SECONDS = 600
"""Assumption: a recovery says something of the link for ten minutes."""


def detect_nvlink(panel: Panel) -> Iterator[Detection]:
    """Yield NVLINK_ERRORS. Recoveries are stated at their first sample: DCGM calls each new one an error, and a link
    that was retrained under a collective has cost it its answer."""
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
    rows = panel.rows_in(NVLINK_REPLAY_WINDOW_SECONDS)
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


# -- the PCIe link of a GPU --


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


# -- what the driver itself says of a GPU --


def detect_driver(panel: Panel) -> Iterator[Detection]:
    """Yield RECOVERY_ACTION and ECC_UNCORRECTABLE at their first sample: the driver's own word."""
    yield from _detect_numbers(
        panel, "recovery_action", Signal.RECOVERY_ACTION, "asks for recovery action {0} (DCGM field 1523)"
    )
    yield from _detect_numbers(
        panel,
        "ecc_uncorrectable_volatile_count",
        Signal.ECC_UNCORRECTABLE,
        "counts {0} uncorrectable ECC error(s) since its driver was loaded",
    )


def _detect_numbers(panel: Panel, column: str, signal: Signal, words: str) -> Iterator[Detection]:
    samples = panel.gpus.values.get(column)
    if samples is None:
        return
    for number in np.unique(samples[samples > 0]).tolist():

        def holds(values: Numbers, number: float = number) -> Flags:
            return np.equal(values, np.float32(number))

        said, columns = state_holds(panel, panel.gpus, column, holds)
        text = words.format(int(number))
        yield from told(
            panel,
            panel.gpus,
            said,
            columns=columns,
            signal=signal,
            describe=lambda *_, text=text: (text, None),
            code=int(number),
        )
