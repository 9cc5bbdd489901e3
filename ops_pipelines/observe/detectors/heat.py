"""Heat: GPUs and nodes that are hotter than neighbours that work as hard, and racks whose air or nodes are.

A part is compared with what shares its fate one step wider: a GPU with its node, a node with its rack, a rack with the
others. So what heats up a whole rack (a cooler, the time of day) is never said of its nodes, and a load has no say:
only neighbours that draw as much power count, now and over the last minutes, as heat lags behind power.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.observation import NO_NODE, Signal
from ops_pipelines.observe.detectors.shared import (
    GAP_SECONDS,
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
and did over the last five minutes: one that has just begun is still cool, one that has just ended is no measure."""
WORK_SLACK_RATIO = 0.1
"""Assumption: neighbours that draw nine tenths of one's power work as hard."""
PEER_COUNT = 3
"""Assumption: fewer neighbours have no median worth the name."""
HOLD_SECONDS = 300
"""Assumption: what was hot is hot until it was not for five minutes."""
SOFTWARE_THERMAL, HARDWARE_THERMAL = 0x20, 0x40
"""Clock event reasons (NVML nvmlClocksEventReasons)."""
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
    """A GPU is told only while its node as a whole is not."""
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
