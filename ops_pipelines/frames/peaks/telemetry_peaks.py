"""Rows of telemetry within an hour -> how full links are, and what racks and the room draw. Means of the hour.

Links: each one's fuller direction over its rate, and of all the 90th percentile, by leaf switch and as a whole: a
fabric is full where its busiest tenth is, not where its mean is.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.lake.rates import rates

FABRIC_COLUMNS = ("node", "device", "time", "rate_bits_per_second", "receive_bytes", "transmit_bytes")
POWER_COLUMNS = (
    *("node", "device", "time", "rack_power_watts", "rack_power_limit_watts", "node_power_watts", "it_power_watts"),
)
WHOLE = ""
_BUSIEST_QUANTILE = 0.9
_RACK = "rack:"


def read_links(fabric: pa.Table, *, topology: Topology) -> Mapping[str, float]:
    """Return by leaf switch, and for the whole, how full the busiest tenth of the links of nodes was."""
    # Switches stand in the table too, and belong to no node: their ports are the other end of these links.
    rows = fabric.filter(pc.not_equal(fabric["node"], ""))
    speed = rows.group_by(["node", "device"], use_threads=False).aggregate([("rate_bits_per_second", "max")])
    bytes_per_second = {
        (node, device): rate / 8
        for node, device, rate in zip(
            *(speed[name].to_pylist() for name in ("node", "device", "rate_bits_per_second_max")), strict=True
        )
        if rate
    }
    fullest: dict[tuple[str, str], float] = {}
    for name in ("receive_bytes", "transmit_bytes"):
        told = rates(rows, name)
        told = told.filter(pc.is_valid(told["increase"]))
        sums = told.group_by(["node", "device"], use_threads=False).aggregate(
            [("increase", "sum"), ("elapsed_seconds", "sum")]
        )
        for node, device, moved, seconds in zip(
            *(sums[column].to_pylist() for column in ("node", "device", "increase_sum", "elapsed_seconds_sum")),
            strict=True,
        ):
            if (node, device) in bytes_per_second and seconds:
                ratio = moved / seconds / bytes_per_second[node, device]
                fullest[node, device] = max(ratio, fullest.get((node, device), 0.0))
    by_leaf: dict[str, list[float]] = defaultdict(list)
    for (node, _), ratio in sorted(fullest.items()):
        place = topology.places.get(NodeName(node))
        by_leaf[WHOLE].append(ratio)
        if place is not None and place.leaf_switch:
            by_leaf[place.leaf_switch].append(ratio)
    return {leaf: float(np.quantile(ratios, _BUSIEST_QUANTILE)) for leaf, ratios in sorted(by_leaf.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Means of an hour, in watts."""

    racks: Mapping[str, float]
    limits: Mapping[str, float]
    summed: tuple[str, ...]
    """Racks that no meter tells, and that are sums of all their nodes."""
    room: Mapping[str, float]
    """By site; by `` where there is one."""
    is_room_summed: bool = False
    """No meter tells what the room draws: it is the sum of all declared racks."""


def read_power(facility: pa.Table, *, topology: Topology) -> Power:
    """Return what racks drew and what the room did: all that is drawn is heat that must be carried off."""
    racks = {
        device.removeprefix(_RACK): watts
        for (_, device), watts in _means(facility, "rack_power_watts").items()
        if device.startswith(_RACK)
    }
    limits = {
        device.removeprefix(_RACK): watts
        for (_, device), watts in _means(facility, "rack_power_limit_watts").items()
        if device.startswith(_RACK) and watts > 0
    }
    nodes: dict[str, float] = {}
    for (node, _), watts in _means(facility, "node_power_watts").items():
        nodes[node] = nodes.get(node, 0.0) + watts
    stand_in: dict[str, list[str]] = defaultdict(list)
    for name, place in sorted(topology.places.items()):
        stand_in[place.rack].append(name)
    summed = []
    for rack, own in sorted(stand_in.items()):
        # A rack of which a node is silent drew more than the others say: nobody knows how much.
        if rack and rack not in racks and all(node in nodes for node in own):
            racks[rack] = sum(nodes[node] for node in own)
            summed.append(rack)
    sites = {device: watts for (_, device), watts in _means(facility, "it_power_watts").items()}
    room = {WHOLE: next(iter(sites.values()))} if len(sites) == 1 else sites
    is_room_summed = not room and bool(stand_in) and all(rack in racks for rack in stand_in)
    if is_room_summed:
        room = {WHOLE: sum(racks[rack] for rack in sorted(stand_in))}
    return Power(racks=racks, limits=limits, summed=tuple(summed), room=room, is_room_summed=is_room_summed)


def _means(rows: pa.Table, column: str) -> dict[tuple[str, str], float]:
    """Return the mean of a gauge by node and device, in their order."""
    told = rows.filter(pc.fill_null(pc.is_finite(rows[column]), False))
    means = told.group_by(["node", "device"], use_threads=False).aggregate([(column, "mean")])
    return dict(
        sorted(
            ((node, device), float(mean))
            for node, device, mean in zip(
                *(means[name].to_pylist() for name in ("node", "device", f"{column}_mean")), strict=True
            )
        )
    )
