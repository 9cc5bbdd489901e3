"""Devices in `monitoring_coverage`: those that report, those that vanished, and GPUs that never came.

Beside telemetry, devices are known from the hour's inventory (GPUs: other sources name ports and disks their own way)
and from the hour before.
"""

from collections import defaultdict
from datetime import datetime

import pyarrow as pa

from ops_pipelines.core.identity import NodeName
from ops_pipelines.frames.coverage.rows import GPU_TABLE, Key, Measure, gaps
from ops_pipelines.frames.coverage.series_counts import SeriesCounts, Unit, moment
from ops_pipelines.lake.inventory import parent_of

UNSEEN = "unseen"
"""The device of GPUs that cluster.yaml promises and nobody ever saw."""
_Lost = tuple[int, Key, int, datetime]
"""Seconds since which it is lost, negative; its key; steps with a sample; since when."""


def measure_devices(
    measure: Measure,
    name: str,
    counts: SeriesCounts | None,
    *,
    inventory: pa.Table,
    silent: set[str],
    silent_layers: set[tuple[str, str]],
) -> None:
    """Add the rows of a table's devices: those that were seen, those that vanished, and GPUs that never came."""
    places = {} if counts is None else {unit: place for place, unit in enumerate(counts.units) if unit[1]}
    fresh: defaultdict[str, set[str]] = defaultdict(set)
    known: defaultdict[str, set[str]] = defaultdict(set)
    for (node, device), place in places.items():
        known[node].add(device)
        if counts is not None and counts.is_fresh[place]:
            fresh[node].add(device)
    for node, device in _remembered(measure, name, inventory=inventory):
        known[node].add(device)
    nodes = set(known) | (set(map(str, measure.topology.places)) if name == GPU_TABLE else set())
    for node in sorted(nodes):
        key_of_layer = (node, "", f"{name}.*")
        lost: list[_Lost] = []
        for device in sorted(known[node]):
            key = (node, device, f"{name}.*")
            unit = places.get((node, device))
            seen = 0 if unit is None or counts is None else int(counts.seen[unit])
            if device in fresh[node]:
                measure.add(key, expected=measure.steps, seen=seen, since=None, because=gaps(seen, measure.steps))
                continue
            newest = None if unit is None or counts is None else moment(int(counts.newest[unit]))
            since = measure.since(key, newest=newest)
            lost.append((-int(since.timestamp()), key, seen, since))
        still_expected = _still_expected(measure, name, node, lost=lost, fresh=fresh[node])
        for _, key, seen, since in still_expected:
            measure.add(
                key, expected=measure.steps, seen=seen, since=since,
                because=_because(name, node, present=len(fresh[node]), silent=silent, silent_layers=silent_layers),
            )  # fmt: skip
        if name == GPU_TABLE and measure.topology.knows(NodeName(node)) and key_of_layer in measure.rows:
            ever = {parent_of(device) for device in (*fresh[node], *(key[1] for _, key, _, _ in still_expected))}
            unseen = measure.topology.gpus_per_node - len(ever)
            if unseen > 0:
                key = (node, UNSEEN, f"{name}.*")
                because = f"{unseen} of {measure.topology.gpus_per_node} GPUs were never seen"
                since = measure.since(key, newest=None)
                measure.add(key, expected=measure.steps * unseen, seen=0, since=since, because=because)


def _remembered(measure: Measure, name: str, *, inventory: pa.Table) -> set[Unit]:
    found = {
        (node, device)
        for node, device, quantity in measure.before
        if quantity == f"{name}.*" and device not in ("", UNSEEN) and measure.known_before((node, device, quantity))
    }
    if name == GPU_TABLE and inventory.num_rows:
        columns = (inventory[column].to_pylist() for column in ("node", "device", "kind"))
        found |= {
            (node, device)
            for node, device, kind in zip(*columns, strict=True)
            if kind in ("gpu", "mig") and device and not _is_gone_before(measure, (node, device, f"{name}.*"))
        }
    return found


def _is_gone_before(measure: Measure, key: Key) -> bool:
    return key in measure.before and not measure.known_before(key)


def _still_expected(measure: Measure, name: str, node: str, *, lost: list[_Lost], fresh: set[str]) -> list[_Lost]:
    """Return which of the lost devices are missing, those lost last first. Others were exchanged or cut anew."""
    lost = sorted(lost)
    if name != GPU_TABLE:
        return lost
    there = {parent_of(device) for device in fresh}
    # A slice whose GPU goes on reporting was cut anew; a GPU that reports by its slices is there.
    lost = [each for each in lost if parent_of(each[1][1]) not in there]
    if not measure.topology.knows(NodeName(node)):
        return lost
    room = measure.topology.gpus_per_node - len(there)
    kept = list(dict.fromkeys(parent_of(each[1][1]) for each in lost))[: max(room, 0)]
    return [each for each in lost if parent_of(each[1][1]) in kept]


def _because(name: str, node: str, *, present: int, silent: set[str], silent_layers: set[tuple[str, str]]) -> str:
    if node in silent:
        return "node silent"
    if (node, name) in silent_layers:
        return "exporter silent"
    what = "GPU" if name == GPU_TABLE else "device"
    return f"{what} missing: {present} others of the node report"
