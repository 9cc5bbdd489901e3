"""Power: GPUs held down by a brake or a lower limit than their neighbours have, and power supplies that fail.

Clocks that the driver lowers at the usual limit (software power cap under full load) are normal, and heat is `heat`'s.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.observation import Signal
from ops_pipelines.observe.detectors.shared import (
    GAP_SECONDS,
    Columns,
    Told,
    ever,
    group_by,
    group_count,
    group_median,
    layer_of,
    most_of_group,
    newest,
    state_holds,
    told,
)
from ops_pipelines.observe.panels.panel import Detection, Flags, Panel, Part, counted, held_lately, lasting

APPLICATION_CLOCKS, POWER_CAP, SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = (
    0x2, 0x4, 0x8, 0x20, 0x40, 0x80,
)  # fmt: skip
"""Clock event reasons (NVML nvmlClocksEventReasons)."""
BRAKE_ROWS = 2
"""Assumption: two samples in a row; one may be a dip of the mains that the supplies ride through."""
BRAKE_EVENTS, BRAKE_WINDOW_SECONDS = 6, 600
"""gpud hw-slowdown: 0.6 events a minute over ten minutes."""
BRAKE_LIMIT_RATIO = 0.05
"""Assumption: a share of the time, as DCGM's limit for heat; any growth points at supply or rack (dcgm_fields)."""
LIMIT_RATIO, LIMIT_ROWS = 0.95, 4
"""Assumption: a limit 5 % below the usual is another limit; for a minute, as tools set one after another GPU."""
CLOCK_RATIO, CLOCK_SECONDS = 0.9, 120
"""dcgm_fields, DCGM_FI_DEV_SM_CLOCK: one GPU more than 10 % below its peers at equal load. Assumption: two minutes."""
BUSY_RATIO = 0.5
"""Assumption: a GPU with less utilisation may lower its clocks as it likes."""
PEER_COUNT = 3
"""Assumption: fewer neighbours have no median worth the name."""
SUPPLY_WARNING, SENSOR_CRITICAL, SUPPLY_ROWS = 2, 2, 2
"""DMTF Redfish Status.Health as redfish_exporter numbers it; ipmi_exporter's state 2. Assumption: at two samples."""
_LIMITS = {
    "power_limit_enforced_watts": ("power limit", "W", 1.0),
    "power_limit_watts": ("power limit", "W", 1.0),
    "application_clock_hertz": ("application clock", "MHz", 1e6),
}
_HOLD_SECONDS = 300
"""Assumption: what was capped is capped until it was not for five minutes."""


_Words = Callable[[int, Columns], Told]
"""Asked for a row and the GPUs that it is about."""


def detect_power(panel: Panel, *, topology: Topology) -> Iterator[Detection]:
    """Yield GPU_CAPPED for a node as a whole (no GPU) where it is half of its GPUs or more, else for each GPU; and
    POWER_SUPPLY."""
    if panel.gpus.values and len(panel.times):
        yield from _detect_brakes(panel)
        for column in _LIMITS:
            yield from _detect_lower_limit(panel, column, topology)
        yield from _detect_low_clock(panel)
    yield from _detect_supplies(panel)


def _reasons(panel: Panel) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Return the bit masks; 0 where there is no sample."""
    return np.nan_to_num(panel.gpus.value("clock_event_reasons")).astype(np.int32)


def _detect_brakes(panel: Panel) -> Iterator[Detection]:
    reasons = _reasons(panel)
    is_hot = (reasons & (SOFTWARE_THERMAL | HARDWARE_THERMAL)) != 0
    brakes = ((reasons & POWER_BRAKE) != 0) | (((reasons & SLOWDOWN) != 0) & ~is_hot)
    if "power_brake_seconds" in panel.gpus:
        brakes |= panel.gpus.rate("power_brake_seconds") > BRAKE_LIMIT_RATIO
    if not brakes.any():
        return
    rows = panel.rows_in(BRAKE_WINDOW_SECONDS)
    said = lasting(brakes, BRAKE_ROWS) | (counted(brakes, rows) >= BRAKE_EVENTS)
    said = held_lately(said, panel.rows_in(_HOLD_SECONDS))
    yield from _capped(panel, said, brakes, rows, "is slowed down by a power brake from outside")


def _detect_lower_limit(panel: Panel, column: str, topology: Topology) -> Iterator[Detection]:
    """Lower than most of its model everywhere and in its rack: what a whole rack has was somebody's will."""
    limits = panel.gpus.values.get(column)
    if limits is None or not limits.size:
        return
    if not np.fmin.reduce(limits, axis=None) < LIMIT_RATIO * np.fmax.reduce(limits, axis=None):
        return
    parts = panel.gpus.parts
    everywhere = group_by([part.model for part in parts])
    usual = group_median(limits, everywhere)
    usual[:, everywhere.sizes <= PEER_COUNT] = np.nan
    racks = [topology.places[part.node].rack if topology.knows(part.node) else "" for part in parts]
    nearby = group_by([(part.model, rack) for part, rack in zip(parts, racks, strict=True)])
    # a rack of one node has no say: it would always agree with itself
    nodes_of: dict[str, set[str]] = {}
    for part, rack in zip(parts, racks, strict=True):
        nodes_of.setdefault(rack, set()).add(part.node)
    has_say = np.array([len(nodes_of[rack]) > PEER_COUNT for rack in racks], dtype=bool)
    own_rack = group_median(limits, nearby)[:, nearby.index]
    lower = (limits < LIMIT_RATIO * usual[:, everywhere.index]) & (~has_say | (limits < LIMIT_RATIO * own_rack))
    name, unit, factor = _LIMITS[column]

    def words(row: int, gpus: Columns) -> Told:
        low = newest(np.fmin.reduce(limits[:, gpus], axis=1)[:, None], column=0, row=row, rows=LIMIT_ROWS)
        most = float(usual[row, everywhere.index[gpus[0]]])
        return f"has a {name} of {low / factor:.0f} {unit}; most of its model have {most / factor:.0f}", low

    yield from _capped(panel, lasting(lower, LIMIT_ROWS), lower, LIMIT_ROWS, words)


def _detect_low_clock(panel: Panel) -> Iterator[Detection]:
    """One GPU slower than the others of its node, which work too, and its own sensors say why."""
    clock, reasons = panel.gpus.values.get("sm_clock_hertz"), panel.gpus.values.get("clock_event_reasons")
    work = panel.gpus.values.get("utilisation_ratio")
    if clock is None or reasons is None or work is None:
        return
    by_node = group_by([part.node for part in panel.gpus.parts])
    working = np.where(work >= BUSY_RATIO, clock, np.float32(np.nan))
    usual = group_median(working, by_node)
    counts = group_count(~np.isnan(working), by_node)
    usual[counts <= PEER_COUNT] = np.nan
    low = working < CLOCK_RATIO * usual[:, by_node.index]
    columns = ever(low)
    if not len(columns):
        return
    reason_bits = np.nan_to_num(reasons[:, columns]).astype(np.int32)
    held_down = np.zeros(low.shape, dtype=bool)
    held_down[:, columns] = (
        low[:, columns]
        & ((reason_bits & (APPLICATION_CLOCKS | POWER_CAP | SLOWDOWN | POWER_BRAKE)) != 0)
        & ((reason_bits & (SOFTWARE_THERMAL | HARDWARE_THERMAL)) == 0)
    )
    rows = panel.rows_in(CLOCK_SECONDS)

    def words(row: int, gpus: Columns) -> Told:
        now = float(clock[row, gpus].min())
        most = float(usual[row, by_node.index[gpus[0]]])
        mask = int(np.nan_to_num(reasons[row, gpus]).max())
        text = f"is held at {now / 1e6:.0f} MHz (reasons {mask:#x}); the others of its node run at {most / 1e6:.0f}"
        return text, now

    yield from _capped(panel, lasting(held_down, rows), held_down, rows, words)


def _capped(panel: Panel, said: Flags, signs: Flags, sign_rows: int, words: str | _Words) -> Iterator[Detection]:
    """Tell it of nodes where half of their GPUs have it, else of the GPUs."""
    if not said.any():
        return
    by_node = group_by([part.node for part in panel.gpus.parts])
    most = most_of_group(said, panel.gpus.present, by_node, least=2)
    node_columns, gpu_flags = ever(most), said & ~most[:, by_node.index]
    gpu_columns = ever(gpu_flags)
    nodes = layer_of(panel, (Part(node=node) for node in panel.gpus.nodes))
    node_signs = most_of_group(signs, panel.gpus.present, by_node, least=1)

    def describe(row: int, gpus: Columns) -> Told:
        return (words, None) if isinstance(words, str) else words(row, gpus)

    def of_node(row: int, place: int) -> Told:
        gpus = by_node.members[node_columns[place]]
        text, value = describe(row, gpus[(gpus >= 0) & said[row, gpus]])
        return f"{text} (half of its GPUs or more)", value

    yield from told(
        panel, nodes, most[:, node_columns], columns=node_columns, signal=Signal.GPU_CAPPED, describe=of_node,
        signs=node_signs[:, node_columns], sign_rows=sign_rows,
    )  # fmt: skip
    yield from told(
        panel, panel.gpus, gpu_flags[:, gpu_columns], columns=gpu_columns, signal=Signal.GPU_CAPPED,
        describe=lambda row, place: describe(row, gpu_columns[place : place + 1]),
        signs=signs[:, gpu_columns], sign_rows=sign_rows,
    )  # fmt: skip


def _detect_supplies(panel: Panel) -> Iterator[Detection]:
    yield from _detect_bad_state(panel, "supply_health_state", SUPPLY_WARNING, "has a power supply that its BMC faults")
    yield from _detect_bad_state(panel, "bmc_power_state", SENSOR_CRITICAL, "has a power sensor that its BMC faults")


def _detect_bad_state(panel: Panel, column: str, least: int, words: str) -> Iterator[Detection]:
    state, columns = state_holds(panel, panel.nodes, column, lambda samples: np.greater_equal(samples, least))

    def describe(row: int, place: int) -> Told:
        rows = panel.rows_in(GAP_SECONDS) + 1
        value = newest(panel.nodes.values[column], column=int(columns[place]), row=row, rows=rows)
        return f"{words} ({column} is {value:.0f})", value

    yield from told(
        panel,
        panel.nodes,
        lasting(state, SUPPLY_ROWS),
        columns=columns,
        signal=Signal.POWER_SUPPLY,
        describe=describe,
        signs=state,
        sign_rows=SUPPLY_ROWS,
    )
