"""Which series and devices that we expect are missing, and since when; as rows and for people.

Beside telemetry, devices are known from the hour's inventory (GPUs: other sources name ports and disks their own way)
and from the hour before.

Expected are: of each node of cluster.yaml the layers that most nodes have, and its GPUs, ever seen or not; each device
that this hour, its inventory or the hour before knows; of a device the quantities that it gave in this hour, that are
listed as missing of it, or that most of its peers (same model, same sort of name) give or gave. A device that vanished
stays expected for a week, if no other took its place. Jobs come and go: application_telemetry is not expected.

Rows: `*` of a node (anything that it says itself), `TABLE.*` of a node's layer or of a device. `TABLE.COLUMN` only
where a quantity fares worse than its device; of the node where all its GPUs or ports lack it; and of `* KIND` (no node)
for all devices of a kind, which the next hour remembers. Counting is `expected_series`, the report `report`.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName, Topology, listed
from ops_pipelines.lake.inventory import parent_of
from ops_pipelines.lake.quantities import read_quantities
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from ops_pipelines.observe.expected_series import (
    COMPLETE_RATIO,
    GONE_AFTER,
    GPU_TABLE,
    MAJORITY_RATIO,
    Flags,
    Ints,
    Key,
    Measure,
    SeriesCounts,
    Unit,
    count_series,
    fresh_steps,
    gaps,
    moment,
    steps_per_hour,
)

# -- devices in `monitoring_coverage` --


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
    """Return which of the lost devices are missing, those lost last first. Others were exchanged or cut again."""
    lost = sorted(lost)
    if name != GPU_TABLE:
        return lost
    there = {parent_of(device) for device in fresh}
    # A slice whose GPU continues reporting was cut again; a GPU that reports by its slices is there.
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


# -- rows of `monitoring_coverage` for people --


_SHOWN = 5
NOT_THERE = "no device of this kind reports"
"""Why a kind's quantities are missing where the devices themselves are: they say it already."""

_Key = tuple[str, str, str]
_Row = dict[str, object]


def list_missing(coverage: pa.Table) -> list[dict[str, object]]:
    """Return what is missing at the end of the hour, longest first.

    A silent node hides its layers, a silent layer its devices; lines that share what, why and the minute are one, with
    `what`, `where` (up to five), `count`, `missing_since` (text, UTC) and `because`. Empty: nothing is missing.
    """
    rows = coverage.filter(pc.is_valid(coverage["missing_since"])).to_pylist()
    keys = {_key(row) for row in rows}
    series: defaultdict[tuple[str, str, str, datetime], list[str]] = defaultdict(list)
    for row in rows:
        node, device, quantity = _key(row)
        if row["because"] != NOT_THERE and not _is_hidden(node, device, quantity, keys):
            since = row["missing_since"].replace(second=0, microsecond=0)
            series[node, device, str(row["because"] or ""), since].append(quantity)
    causes: defaultdict[tuple[str, str, datetime], list[str]] = defaultdict(list)
    for (node, device, because, since), quantities in series.items():
        causes[_what(device, quantities), because, since].append(_where(node, device))
    lines = sorted(causes.items(), key=lambda item: (item[0][2], item[0][0], item[0][1]))
    return [
        {
            "what": what,
            "where": listed(sorted(where), at_most=_SHOWN),
            "count": len(where),
            "missing_since": f"{since:%Y-%m-%d %H:%M}Z",
            "because": because,
        }
        for (what, because, since), where in lines
    ]


def _key(row: _Row) -> _Key:
    return str(row["node"]), str(row["device"]), str(row["quantity"])


def _is_hidden(node: str, device: str, quantity: str, keys: set[_Key]) -> bool:
    if not node:
        return bool(device) and not device.startswith("* ") and ("", "", f"{quantity.split('.')[0]}.*") in keys
    if (node, "", "*") in keys:
        return (device, quantity) != ("", "*")
    layer = f"{quantity.split('.')[0]}.*"
    return (node, "", layer) in keys and (device, quantity) != ("", layer)


def _what(device: str, quantities: list[str]) -> str:
    if quantities == ["*"]:
        return "everything"
    names = sorted(quantities)
    table = names[0].split(".")[0]
    if names[0].endswith(".*"):
        return f"{table} of a device" if device else f"all of {table}"
    return f"{table}: {listed([name.split('.', 1)[1] for name in names], at_most=_SHOWN)}"


def _where(node: str, device: str) -> str:
    if device.startswith("* ") and not node:
        return f"all {device[2:]}"
    return " ".join(part for part in (node, device) if part) or "the cluster"


# -- quantities in `monitoring_coverage` --


_COLLAPSED = frozenset({GPU_TABLE, "fabric_telemetry"})
"""Tables in which a quantity that all devices of a node lack is one row of the node."""
_PROFILING = frozenset(
    quantity.column
    for quantity in read_quantities()
    if quantity.table == GPU_TABLE and any("_PROF_" in series.name for series in quantity.series)
)


def quantities_before(measure: Measure, name: str) -> set[str]:
    found = {key[2].removeprefix(f"{name}.") for key in measure.before if key[2].startswith(f"{name}.")}
    return {quantity for quantity in found if quantity != "*"}


def carry_kinds(measure: Measure, counted: Mapping[str, SeriesCounts]) -> None:
    """Keep what is remembered of kinds of which no device reports in this hour."""
    reporting = {(name, f"* {kind}") for name, counts in counted.items() for kind in counts.kinds}
    for key, row in measure.before.items():
        node, device, quantity = key
        is_kind = not node and device.startswith("* ")
        if is_kind and (quantity.split(".")[0], device) not in reporting and measure.known_before(key):
            expected = row["expected_count"]
            since = measure.since(key, newest=None)
            measure.add(
                key, expected=expected if isinstance(expected, int) else 0, seen=0, since=since, because=NOT_THERE
            )


def measure_quantities(measure: Measure, name: str, counts: SeriesCounts) -> None:
    """Add the rows of quantities that fare worse than their device, and what is remembered of each kind of device."""
    wanted, listed = _wanted(measure, name, counts)
    lost = wanted & ~counts.fresh & counts.is_fresh[:, None]
    worse = lost | (wanted & (counts.counts < COMPLETE_RATIO * counts.seen[:, None]))
    profiling = np.array([quantity in _PROFILING for quantity in listed], np.bool_) & (name == GPU_TABLE)
    # Of a unit that gives no profiling metric at all, the profiler is off, and not each of its metrics.
    is_off = np.asarray((wanted & profiling).any(axis=1) & ~(counts.fresh & profiling).any(axis=1), np.bool_)
    kinds = np.array(counts.kinds)
    for kind in sorted(set(counts.kinds)):
        peers = kinds == kind
        for place, quantity in enumerate(listed):
            if not wanted[peers, place].any():
                continue
            everywhere = bool(lost[peers, place].all())
            because = _why(quantity, is_off=bool(is_off[peers].all()) and bool(profiling[place]))
            key = ("", f"* {kind}", f"{name}.{quantity}")
            if peers.sum() > 1 or measure.known_before(key):
                seen, expected = int(counts.counts[peers, place].sum()), measure.steps * int(peers.sum())
                since = measure.since(key, newest=_newest_of(counts, quantity, peers)) if everywhere else None
                measure.add(
                    key,
                    expected=expected,
                    seen=seen,
                    since=since,
                    because=because if everywhere else gaps(seen, expected),
                )
                if everywhere:
                    continue
            _add_worse(
                measure, name, quantity, counts, units=np.flatnonzero(worse[:, place] & peers),
                place=place, lost=lost[:, place], is_off=is_off & profiling[place],
            )  # fmt: skip


def _wanted(measure: Measure, name: str, counts: SeriesCounts) -> tuple[Flags, tuple[str, ...]]:
    """Return which quantities are expected of which unit. All of the table's that are expected of any are columns."""
    given = counts.counts > 0
    wanted = given.copy()
    kinds = np.array(counts.kinds)
    for kind in set(counts.kinds):
        peers = kinds == kind
        wanted[np.ix_(peers, given[peers].mean(axis=0) >= MAJORITY_RATIO)] = True
    column = {quantity: place for place, quantity in enumerate(counts.quantities)}
    units = {unit: place for place, unit in enumerate(counts.units)}
    for key in measure.before:
        node, device, quantity = key
        place = column.get(quantity.removeprefix(f"{name}."), -1)
        if place < 0 or not quantity.startswith(f"{name}.") or not measure.known_before(key):
            continue
        if device.startswith("* ") and not node:
            ratio, since = measure.before[key]["coverage_ratio"], measure.before[key]["missing_since"]
            if since is not None or (isinstance(ratio, float) and ratio >= MAJORITY_RATIO * COMPLETE_RATIO):
                wanted[kinds == device[2:], place] = True
        elif (node, device) in units:
            wanted[units[node, device], place] = True
        elif not device and name in _COLLAPSED:
            wanted[list(counts.devices_of_node.get(node, ())), place] = True
    return wanted, counts.quantities


def _add_worse(
    measure: Measure,
    name: str,
    quantity: str,
    counts: SeriesCounts,
    *,
    units: Ints,
    place: int,
    lost: Flags,
    is_off: Flags,
) -> None:
    """Add one quantity's rows: one a device, or one a node where all its GPUs or ports have lost it."""
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for unit in units.tolist():
        by_node[counts.units[unit][0]].append(unit)
    for node, worse in by_node.items():
        all_lost = bool(lost[worse].all()) and len(worse) == len(_devices(counts, node)) and len(worse) > 1
        groups = [(counts.units[each][1], [each]) for each in worse]
        if name in _COLLAPSED and all_lost:
            groups = [("", worse)]
        for device, members in groups:
            key = (node, device, f"{name}.{quantity}")
            chosen = np.zeros(len(counts.units), np.bool_)
            chosen[members] = True
            seen, expected = int(counts.counts[members, place].sum()), measure.steps * len(members)
            is_lost = bool(lost[members].all())
            measure.add(
                key, expected=expected, seen=seen,
                since=measure.since(key, newest=_newest_of(counts, quantity, chosen)) if is_lost else None,
                because=_why(quantity, is_off=bool(is_off[members].all())) if is_lost else gaps(seen, expected),
            )  # fmt: skip


def _devices(counts: SeriesCounts, node: str) -> tuple[int, ...]:
    return counts.devices_of_node.get(node, ())


def _newest_of(counts: SeriesCounts, quantity: str, units: Flags) -> datetime | None:
    newest = counts.newest_of.get(quantity)
    found = -1 if newest is None else int(newest[units].max(initial=-1))
    return None if found < 0 else moment(found)


def _why(quantity: str, *, is_off: bool) -> str:
    if is_off:
        return "profiling metrics are off, or another profiler holds them"
    return f"no {quantity} while other quantities come"


# -- which series that we expect are missing --


__all__ = ["GONE_AFTER", "list_missing", "measure_coverage"]

_SAID_BY_OTHERS = frozenset({"platform_telemetry", "facility_telemetry"})
"""What Prometheus, the scheduler and BMCs say of a node continues when the node itself is silent."""


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
    hour before. A series is missing if none of its samples is in the last minute (or step) of the hour.
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
