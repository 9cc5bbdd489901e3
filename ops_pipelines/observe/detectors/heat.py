"""Heat and power: GPUs, nodes and racks hotter than neighbours that work as hard; brakes, low limits, failing supplies.

A part is compared with what shares its fate one step wider: a GPU with its node, a node with its rack, a rack with the
others. So what heats up a whole rack (a cooler, the time of day) is never reported of its nodes, and a load has no
influence: only neighbours that draw as much power count, now and over the last minutes, as heat lags behind power.
Clocks that the driver lowers at the usual limit (software power cap under full load) are normal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.shared import (
    GAP_SECONDS,
    Columns,
    Groups,
    Told,
    above_least,
    carried,
    ever,
    excess_over_busier,
    group_by,
    group_count,
    group_median,
    layer_of,
    mean_lately,
    most_of_group,
    newest,
    state_holds,
    told,
)
from ops_pipelines.observe.panels.panel import (
    Detection,
    Flags,
    Layer,
    Numbers,
    Panel,
    Part,
    counted,
    held_lately,
    lasting,
)

GPU_EXCESS_CELSIUS = 15.0
"""Assumption: air-cooled boards show up to 10 degrees between the GPUs of a node, by their place in the air stream."""
NODE_EXCESS_CELSIUS = 10.0
"""Assumption: the medians of eight GPUs differ by less within a rack, from its bottom to its top."""
RACK_EXCESS_CELSIUS = 10.0
"""Assumption: the day's course and the place in the hall make +-4 degrees."""
THROTTLED_EXCESS_CELSIUS = 5.0
"""Assumption: who is throttled by heat need not be hotter than its neighbours by as much: throttling cools it."""
HOT_SECONDS, THROTTLED_SECONDS = 120, 30
"""Assumption: two minutes of excess, with one sample of it missing at most; two samples where the driver says heat."""
WORK_SECONDS = (45, 300)
"""Assumption: a heat sink follows its load within a minute or two. So a neighbour works as hard only if it does so now
and did over the last five minutes: one that has just started is still cool, one that has just ended is no measure."""
WORK_SLACK_RATIO = 0.1
"""Assumption: neighbours that draw nine tenths of one's power work as hard."""
PEER_COUNT = 3
"""Assumption: fewer neighbours have no median worth the name."""
HOLD_SECONDS = 300
"""Assumption: what was hot is hot until it was not for five minutes."""
THROTTLED_LIMIT_RATIO, THROTTLED_ALONE_SECONDS = 0.05, 600
"""dcgm_fields, DCGM_FI_DEV_THERMAL_VIOLATION: more than 0.05 s a second for ten minutes is a cooling incident."""
INLET_LIMIT_CELSIUS, INLET_ROWS = 35.0, 2
"""ASHRAE TC 9.9: upper end of the allowable range of class A2. Assumption: at two samples."""
INLET_RECOMMENDED_CELSIUS, INLET_EXCESS_CELSIUS = 27.0, 6.0
"""ASHRAE TC 9.9: upper end of the recommended range; above it, and (Assumption) 6 degrees above the other racks, it is
this rack's trouble and not the hall's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Readings:
    """Temperature and recent work of GPUs and of nodes, all (times, columns)."""

    temperature: Numbers
    power: Numbers
    throttled: Flags
    by_node: Groups
    nodes: Layer
    node_temperature: Numbers
    node_work: tuple[Numbers, ...]
    """Mean over each of WORK_SECONDS of the median power of its GPUs."""
    node_throttled: Flags


def detect_heat(panel: Panel, *, topology: Topology) -> Iterator[Detection]:
    """Yield GPU_HOT for a node as a whole (no GPU) or one GPU, and INLET_HOT for a rack."""
    readings = _read(panel)
    if readings is not None:
        yield from _detect_nodes_and_gpus(panel, readings, topology)
    yield from _detect_racks(panel, readings, topology)


def _read(panel: Panel) -> _Readings | None:
    layer = panel.gpus
    temperature, power = layer.values.get("temperature_celsius"), layer.values.get("power_watts")
    if temperature is None or power is None or not temperature.size:
        return None
    throttled = _is_throttled(layer)
    by_node = group_by([part.node for part in layer.parts])
    return _Readings(
        temperature=temperature,
        power=power,
        throttled=throttled,
        by_node=by_node,
        nodes=layer_of(panel, (Part(node=node) for node in layer.nodes)),
        node_temperature=group_median(temperature, by_node),
        node_work=_work_of(panel, group_median(power, by_node)),
        node_throttled=most_of_group(throttled, layer.present, by_node, least=1),
    )


def _work_of(panel: Panel, power: Numbers) -> tuple[Numbers, ...]:
    return tuple(mean_lately(power, panel.rows_in(seconds)) for seconds in WORK_SECONDS)


def _is_throttled(layer: Layer) -> Flags:
    throttled = np.zeros((layer.time_count, len(layer.parts)), dtype=bool)
    reasons = layer.values.get("clock_event_reasons")
    if reasons is not None:
        bits = np.nan_to_num(reasons).astype(np.int64)
        throttled |= (bits & (SOFTWARE_THERMAL | HARDWARE_THERMAL)) != 0
    for column in ("thermal_throttle_seconds", "software_thermal_throttle_seconds"):
        if column in layer:
            throttled |= layer.rate(column) > THROTTLED_LIMIT_RATIO
    return throttled


def _detect_nodes_and_gpus(panel: Panel, readings: _Readings, topology: Topology) -> Iterator[Detection]:
    """A GPU is reported only while its node as a whole is not."""
    by_rack = _neighbourhoods(readings.nodes, topology)
    temperature, throttled = readings.node_temperature, readings.node_throttled
    excess = excess_over_busier(
        temperature,
        work=readings.node_work,
        groups=by_rack,
        candidates=above_least(temperature, by_rack, limit=NODE_EXCESS_CELSIUS)
        | (throttled & above_least(temperature, by_rack, limit=THROTTLED_EXCESS_CELSIUS)),
        slack_ratio=WORK_SLACK_RATIO,
        peer_count=PEER_COUNT,
    )
    said = _is_hot(panel, excess, throttled, NODE_EXCESS_CELSIUS)
    # who has no neighbours to be compared with is judged by the driver's word alone
    alone = (by_rack.sizes <= PEER_COUNT)[by_rack.index]
    known = ~np.isnan(temperature)
    alone_rows = panel.rows_in(THROTTLED_ALONE_SECONDS)
    said |= alone & lasting(carried(throttled, known, panel.rows_in(GAP_SECONDS)), alone_rows)
    columns = ever(said)

    def describe(row: int, place: int) -> Told:
        column = int(columns[place])
        return _words(panel, excess, temperature, column, row, "nodes of its rack")

    yield from told(
        panel,
        readings.nodes,
        said[:, columns],
        columns=columns,
        signal=Signal.GPU_HOT,
        describe=describe,
        signs=(excess >= THROTTLED_EXCESS_CELSIUS)[:, columns] | (throttled & alone)[:, columns],
        sign_rows=alone_rows,
    )
    yield from _detect_gpus(panel, readings, said)


def _detect_gpus(panel: Panel, readings: _Readings, node_hot: Flags) -> Iterator[Detection]:
    by_node, throttled = readings.by_node, readings.throttled
    candidates = above_least(readings.temperature, by_node, limit=GPU_EXCESS_CELSIUS)
    if throttled.any():
        candidates |= throttled & above_least(readings.temperature, by_node, limit=THROTTLED_EXCESS_CELSIUS)
    # all GPUs of the nodes that have a candidate: few, and the rest need no closer look
    gpus = np.flatnonzero(np.isin(by_node.index, by_node.index[ever(candidates)]))
    if not len(gpus):
        return
    temperature, throttled, node = readings.temperature[:, gpus], throttled[:, gpus], by_node.index[gpus]
    excess = excess_over_busier(
        temperature,
        work=_work_of(panel, readings.power[:, gpus]),
        groups=group_by(node.tolist()),
        candidates=candidates[:, gpus],
        slack_ratio=WORK_SLACK_RATIO,
        peer_count=PEER_COUNT,
    )
    node_was_hot = held_lately(node_hot, panel.rows_in(HOLD_SECONDS))
    said = _is_hot(panel, excess, throttled, GPU_EXCESS_CELSIUS) & ~node_was_hot[:, node]
    places = ever(said)
    yield from told(
        panel,
        panel.gpus,
        said[:, places],
        columns=gpus[places],
        signal=Signal.GPU_HOT,
        describe=lambda row, place: _words(panel, excess, temperature, int(places[place]), row, "GPUs of its node"),
        signs=(excess >= THROTTLED_EXCESS_CELSIUS)[:, places],
        sign_rows=panel.rows_in(HOT_SECONDS) + 1,
    )


def _is_hot(panel: Panel, excess: Numbers, throttled: Flags, limit: float) -> Flags:
    rows = panel.rows_in(HOT_SECONDS)
    hot = (excess >= limit) | (throttled & (excess >= THROTTLED_EXCESS_CELSIUS))
    said = counted(hot, rows) >= max(1, rows - 1)
    said |= lasting(throttled & (excess >= THROTTLED_EXCESS_CELSIUS), panel.rows_in(THROTTLED_SECONDS))
    return held_lately(said, panel.rows_in(HOLD_SECONDS))


def _words(panel: Panel, excess: Numbers, temperature: Numbers, column: int, row: int, peers: str) -> Told:
    rows = panel.rows_in(HOT_SECONDS + HOLD_SECONDS)
    value = newest(excess, column=column, row=row, rows=rows)
    now = newest(temperature, column=column, row=row, rows=rows)
    if np.isnan(value):
        return "has been throttled by heat for ten minutes", None if np.isnan(now) else now
    return f"is at {now:.0f} degrees, {value:.0f} above the {peers} that work as hard", value


def _neighbourhoods(nodes: Layer, topology: Topology) -> Groups:
    """Return the racks; nodes whose rack has too few of them are compared with all such nodes."""
    racks = [topology.places[part.node].rack if topology.knows(part.node) else None for part in nodes.parts]
    return group_by([rack if rack is not None and racks.count(rack) > PEER_COUNT else None for rack in racks])


def _detect_racks(panel: Panel, readings: _Readings | None, topology: Topology) -> Iterator[Detection]:
    """By the air at their front, else by their nodes. One condition a rack, however it is seen."""
    shape = (len(panel.times), 0)
    seen: dict[str, tuple[Flags, Numbers, str]] = {}
    for name, said, values in _racks_by_nodes(panel, readings, topology):
        seen[name] = (said, values, "has nodes {0:.0f} degrees hotter than those of other racks that work as hard")
    for name, said, values in _racks_by_air(panel):
        # the air is the cause, so its words come first; the nodes' excess still counts
        before = seen.get(name)
        seen[name] = (said if before is None else said | before[0], values, "takes in air of {0:.0f} degrees")
        if before is not None and not said.any():
            seen[name] = before
    names = sorted(name for name, (said, _, _) in seen.items() if said.any())
    if not names:
        return
    racks = layer_of(panel, (Part(node=NO_NODE, device=name) for name in names))
    said = np.stack([seen[name][0] for name in names], axis=1) if names else np.zeros(shape, dtype=bool)

    def describe(row: int, place: int) -> Told:
        _, values, words = seen[names[place]]
        value = newest(values[:, None], column=0, row=row, rows=panel.rows_in(HOT_SECONDS))
        return words.format(value), value

    yield from told(
        panel,
        racks,
        said,
        columns=np.arange(len(names)),
        signal=Signal.INLET_HOT,
        describe=describe,
        kind=ComponentKind.RACK,
    )


def _racks_by_nodes(
    panel: Panel, readings: _Readings | None, topology: Topology
) -> Iterator[tuple[str, Flags, Numbers]]:
    if readings is None:
        return
    places = [topology.places.get(part.node) for part in readings.nodes.parts]
    by_rack = group_by([None if place is None else place.rack for place in places])
    first = [places[columns[0]] for columns in by_rack.members]
    temperature = group_median(readings.node_temperature, by_rack)
    counts = group_count(~np.isnan(readings.node_temperature), by_rack)
    temperature[(counts <= PEER_COUNT) | np.array([place is None for place in first])] = np.nan
    everyone = group_by([None] * len(by_rack))
    excess = excess_over_busier(
        temperature,
        work=tuple(group_median(measure, by_rack) for measure in readings.node_work),
        groups=everyone,
        candidates=above_least(temperature, everyone, limit=RACK_EXCESS_CELSIUS),
        slack_ratio=WORK_SLACK_RATIO,
        peer_count=PEER_COUNT,
    )
    said = _is_hot(panel, excess, np.zeros(excess.shape, dtype=bool), RACK_EXCESS_CELSIUS)
    for rack in ever(said):
        place = first[rack]
        if place is not None:
            yield place.rack, said[:, rack], excess[:, rack]


def _racks_by_air(panel: Panel) -> Iterator[tuple[str, Flags, Numbers]]:
    air = panel.racks.values.get("inlet_temperature_celsius")
    if air is None or not air.size:
        return
    usual = group_median(air, group_by([None] * len(panel.racks.parts)))
    others = (~np.isnan(air)).sum(axis=1, keepdims=True) - 1
    apart = (air > INLET_RECOMMENDED_CELSIUS) & (air - usual >= INLET_EXCESS_CELSIUS) & (others >= PEER_COUNT)
    rows = panel.rows_in(HOT_SECONDS)
    known = ~np.isnan(air)
    above = carried(air > INLET_LIMIT_CELSIUS, known, panel.rows_in(GAP_SECONDS))
    said = lasting(above, INLET_ROWS) | (counted(apart, rows) >= max(1, rows - 1))
    said = held_lately(said, panel.rows_in(HOLD_SECONDS))
    for column, part in enumerate(panel.racks.parts):
        yield part.device, said[:, column], air[:, column]


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
