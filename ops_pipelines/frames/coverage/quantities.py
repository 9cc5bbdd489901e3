"""Quantities in `monitoring_coverage`: those that fare worse than their device, and what is remembered of kinds."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import numpy as np

from ops_pipelines.frames.coverage.report import NOT_THERE
from ops_pipelines.frames.coverage.rows import COMPLETE_RATIO, GPU_TABLE, MAJORITY_RATIO, Measure, gaps
from ops_pipelines.frames.coverage.series_counts import Flags, Ints, SeriesCounts, moment
from ops_pipelines.lake.quantities import read_quantities

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
