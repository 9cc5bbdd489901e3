"""Which series that we expect are missing, and since when: what nobody sees cannot be called healthy.

Expected are: of each node of cluster.yaml the layers that most nodes have, and its GPUs, ever seen or not; each device
that this hour, its inventory or the hour before knows; of a device the quantities that it gave in this hour, that are
listed as missing of it, or that most of its peers (same model, same sort of name) give or gave. A device that vanished
stays expected for a week, if no other took its place. Jobs come and go: application_telemetry is not expected.

Rows: `*` of a node (anything that it says itself), `TABLE.*` of a node's layer or of a device. `TABLE.COLUMN` only
where a quantity fares worse than its device; of the node where all its GPUs or ports lack it; and of `* KIND` (no node)
for all devices of a kind, which the next hour remembers. Counting is `series_counts`, the report `report`.
"""

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pyarrow as pa

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.frames.coverage.devices import measure_devices
from ops_pipelines.frames.coverage.quantities import carry_kinds, measure_quantities, quantities_before
from ops_pipelines.frames.coverage.report import list_missing
from ops_pipelines.frames.coverage.rows import GONE_AFTER, MAJORITY_RATIO, Key, Measure, gaps
from ops_pipelines.frames.coverage.series_counts import (
    Flags,
    SeriesCounts,
    count_series,
    fresh_steps,
    moment,
    steps_per_hour,
)
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES

__all__ = ["GONE_AFTER", "list_missing", "measure_coverage"]

_SAID_BY_OTHERS = frozenset({"platform_telemetry", "facility_telemetry"})
"""What Prometheus, the scheduler and BMCs say of a node goes on when the node itself is silent."""


def measure_coverage(
    tables: Mapping[str, pa.Table],
    *,
    inventory: pa.Table,
    before: pa.Table,
    hour: datetime,
    step_seconds: int,
    topology: Topology,
) -> pa.Table:
    """Return `monitoring_coverage` of the hour that begins at `hour`, sorted by key.

    `tables`: rows of the telemetry tables by name; one that is not there has no rows. `before`: this table, of the
    hour before. A series is missing if none of its samples stands in the last minute (or step) of the hour.
    """
    measure = Measure(
        hour=hour,
        steps=steps_per_hour(step_seconds),
        fresh=min(steps_per_hour(step_seconds), fresh_steps(step_seconds)),
        topology=topology,
        before={(row["node"], row["device"], row["quantity"]): row for row in before.to_pylist()},
    )
    counted = {
        name: count_series(
            name, tables[name], hour=hour, step_seconds=step_seconds, expected=quantities_before(measure, name)
        )
        for name in TELEMETRY_TABLES
        if name in tables and name != "application_telemetry" and tables[name].num_rows
    }
    nodes = _nodes(measure, counted)
    silent, silent_layers = _measure_nodes(measure, counted, nodes=nodes)
    for name in TELEMETRY_TABLES:
        measure_devices(
            measure, name, counted.get(name), inventory=inventory, silent=silent, silent_layers=silent_layers
        )
        if name in counted:
            measure_quantities(measure, name, counted[name])
    carry_kinds(measure, counted)
    return TABLES["monitoring_coverage"].from_rows(measure.rows[key] for key in sorted(measure.rows))


def _nodes(measure: Measure, counted: Mapping[str, SeriesCounts]) -> list[str]:
    found = set(map(str, measure.topology.places))
    for counts in counted.values():
        found |= counts.steps_of_node.keys()
    found |= {key[0] for key in measure.before if key[1] == "" and key[2].endswith("*") and measure.known_before(key)}
    return sorted(found)


def _measure_nodes(
    measure: Measure, counted: Mapping[str, SeriesCounts], *, nodes: list[str]
) -> tuple[set[str], set[tuple[str, str]]]:
    """Add the rows of nodes and of their layers; return silent nodes, and (node, table) of silent layers."""
    common = _common_layers(measure, counted)
    silent: set[str] = set()
    silent_layers: set[tuple[str, str]] = set()
    for node in nodes:
        layers: dict[str, Flags] = {}
        for name in TELEMETRY_TABLES:
            there = counted[name].steps_of_node.get(node) if name in counted else None
            is_expected = (name in common and measure.topology.knows(NodeName(node))) or measure.known_before(
                (node, "", f"{name}.*")
            )
            if there is not None or is_expected:
                layers[name] = np.zeros(measure.steps, np.bool_) if there is None else there
        own = {name: there for name, there in layers.items() if name not in _SAID_BY_OTHERS}
        if node and (own or measure.topology.knows(NodeName(node))):
            anything = np.logical_or.reduce([np.zeros(measure.steps, np.bool_), *own.values()])
            if not anything[-measure.fresh :].any():
                silent.add(node)
            newest = _newest({name: counts for name, counts in counted.items() if name in own}, node)
            _add_layer(measure, (node, "", "*"), there=anything, newest=newest, because="node silent: nothing comes")
        for name, there in layers.items():
            if not there[-measure.fresh :].any():
                silent_layers.add((node, name))
            because = "node silent" if node in silent else f"exporter silent: no {name} while other layers come"
            newest = _newest({name: counted[name]} if name in counted else {}, node)
            _add_layer(measure, (node, "", f"{name}.*"), there=there, newest=newest, because=because)
    return silent, silent_layers


def _add_layer(measure: Measure, key: Key, *, there: Flags, newest: datetime | None, because: str) -> None:
    seen = int(there.sum())
    is_missing = not there[-measure.fresh :].any()
    measure.add(
        key,
        expected=measure.steps,
        seen=seen,
        since=measure.since(key, newest=newest) if is_missing else None,
        because=because if is_missing else gaps(seen, measure.steps),
    )


def _common_layers(measure: Measure, counted: Mapping[str, SeriesCounts]) -> set[str]:
    nodes = set(map(str, measure.topology.places))
    found: set[str] = set()
    for name in TELEMETRY_TABLES:
        if name == "application_telemetry":
            continue
        there = nodes & counted[name].steps_of_node.keys() if name in counted else set()
        known = {node for node in nodes if measure.known_before((node, "", f"{name}.*"))}
        if nodes and len(there | known) >= MAJORITY_RATIO * len(nodes):
            found.add(name)
    return found


def _newest(counted: Mapping[str, SeriesCounts], node: str) -> datetime | None:
    found = max((counts.newest_of_node.get(node, -1) for counts in counted.values()), default=-1)
    return None if found < 0 else moment(found)
