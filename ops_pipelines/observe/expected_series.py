"""Which series of a table were there within an hour, per device; rows of `monitoring_coverage` while made."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import Topology
from ops_pipelines.lake.schema import TABLES

# -- rows of `monitoring_coverage` of one hour while they are made --


GONE_AFTER = timedelta(days=7)
"""After that, what vanished is taken to be gone for good. Nodes and GPUs of cluster.yaml never are."""
COMPLETE_RATIO = 0.95
"""Fewer samples than this share are a gap worth a word."""
MAJORITY_RATIO = 0.5
GPU_TABLE = "gpu_telemetry"

Key = tuple[str, str, str]
"""Node, device, quantity."""


@dataclass(slots=True, kw_only=True)
class Measure:
    """One hour, while its rows are made."""

    hour: datetime
    steps: int
    fresh: int
    topology: Topology
    before: Mapping[Key, Mapping[str, object]]
    rows: dict[Key, dict[str, object]] = field(default_factory=dict)

    def known_before(self, key: Key) -> bool:
        """Whether the hour before has it, and it is not gone for good."""
        row = self.before.get(key)
        return row is not None and not self.is_gone(row["missing_since"])

    def is_gone(self, missing_since: object) -> bool:
        return isinstance(missing_since, datetime) and self.hour - missing_since >= GONE_AFTER

    def since(self, key: Key, *, newest: datetime | None) -> datetime:
        """Return since when something is missing: its newest sample, else what the hour before says, else its end."""
        earlier = (self.before.get(key) or {}).get("missing_since")
        return newest or (earlier if isinstance(earlier, datetime) else self.hour)

    def add(self, key: Key, *, expected: int, seen: int, since: datetime | None, because: str | None) -> None:
        node, device, quantity = key
        self.rows[key] = {
            "node": node,
            "device": device,
            "quantity": quantity,
            "time": self.hour,
            "expected_count": expected,
            "seen_count": seen,
            "coverage_ratio": seen / expected if expected else 1.0,
            "missing_since": since,
            "because": because,
        }


def gaps(seen: int, expected: int) -> str | None:
    """Return a word on gaps; None where there are none to speak of."""
    return None if seen >= COMPLETE_RATIO * expected else f"gaps: {seen} of {expected} samples"


# -- which series of one telemetry table were there within an hour --


HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATE = timedelta(minutes=1)
"""What is that late at the end of the hour may still come: a scrape takes its time, and so does a cycle."""
_NUMBER = re.compile(r"\d+")

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Unit = tuple[str, str]
"""(node, device)."""


def fresh_steps(step_seconds: int) -> int:
    """Return how many of the last steps may lack a sample before a series counts as missing, less one: 4 of 15 s."""
    return max(1, -(-int(_LATE.total_seconds()) // step_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesCounts:
    """One table's hour. Arrays have one row a unit; those of quantities one column each."""

    units: tuple[Unit, ...]
    kinds: tuple[str, ...]
    """What a unit's peers share: the GPU's model, else the device's name without its numbers."""
    seen: Ints
    """Steps with a sample of anything."""
    is_fresh: Flags
    """Whether one of the last steps has one."""
    newest: Ints
    """Microseconds since 1970 of the newest sample."""
    quantities: tuple[str, ...]
    counts: Ints
    """Units x quantities: samples, no more than `seen`."""
    fresh: Flags
    """Units x quantities: whether one of the last steps has a sample."""
    newest_of: Mapping[str, Ints]
    """Quantity -> newest sample of each unit, -1 for none; only of quantities that some unit lacks at the end."""
    steps_of_node: Mapping[str, Flags]
    """Node -> which steps have a sample of anything of it."""
    newest_of_node: Mapping[str, int]
    devices_of_node: Mapping[str, tuple[int, ...]]
    """Node -> places of its devices; the node itself is none."""


def moment(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


def count_series(
    name: str, rows: pa.Table, *, hour: datetime, step_seconds: int, expected: Collection[str] = ()
) -> SeriesCounts:
    """Return what rows of telemetry table `name` hold within [hour, hour + 1 h). Columns may be missing.

    Quantities are those that have a sample, and those `expected`.

    Several samples within one step count as one, so that nothing is ever more than complete.
    """
    steps = steps_per_hour(step_seconds)
    within = pc.and_(pc.greater_equal(rows["time"], pa.scalar(hour)), pc.less(rows["time"], pa.scalar(hour + HOUR)))
    quantities = [
        column.name
        for column in TABLES[name].columns
        if column.quantity is not None and (column.name in expected or _has_samples(rows, column.name))
    ]
    labels = [label for label in ("gpu_model", "mig_instance") if label in rows.column_names]
    given = [quantity for quantity in quantities if quantity in rows.column_names]
    rows = rows.select(["node", "device", "time", *labels, *given]).filter(within)
    node, device = (_encode(rows[column]) for column in ("node", "device"))
    packed = node[0] * max(len(device[1]), 1) + device[0]
    kept, first, unit = np.unique(packed, return_index=True, return_inverse=True)
    unit = unit.reshape(-1).astype(np.int64)
    begin = (hour - _EPOCH) // _MICROSECOND
    times: Ints = rows["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    step = np.minimum((times - begin) // (step_seconds * 1_000_000), steps - 1)
    size = len(kept)
    grid = np.zeros((size, steps), np.bool_)
    grid[unit, step] = True
    newest = np.full(size, -1, np.int64)
    np.maximum.at(newest, unit, times)
    at_end = step >= steps - fresh_steps(step_seconds)
    seen = grid.sum(axis=1).astype(np.int64)
    counts, fresh, newest_of = _of_quantities(rows, quantities, unit=unit, seen=seen, at_end=at_end, times=times)
    is_fresh = np.asarray(np.any(grid[:, steps - min(steps, fresh_steps(step_seconds)) :], axis=1), np.bool_)
    units = tuple((node[1][node[0][place]], device[1][device[0][place]]) for place in first.tolist())
    steps_of_node: dict[str, Flags] = {}
    newest_of_node: dict[str, int] = {}
    devices: defaultdict[str, list[int]] = defaultdict(list)
    for place, (name_of_node, own) in enumerate(units):
        if own:
            devices[name_of_node].append(place)
        newest_of_node[name_of_node] = max(newest_of_node.get(name_of_node, -1), int(newest[place]))
        known = steps_of_node.get(name_of_node)
        steps_of_node[name_of_node] = grid[place] if known is None else known | grid[place]
    return SeriesCounts(
        units=units,
        kinds=_gpu_kinds(rows, units, first=first)
        if name == "gpu_telemetry"
        else tuple(kind_of(own) for _, own in units),
        seen=seen,
        is_fresh=is_fresh,
        newest=newest,
        quantities=tuple(quantities),
        counts=counts,
        fresh=fresh,
        newest_of=newest_of,
        steps_of_node=steps_of_node,
        newest_of_node=newest_of_node,
        devices_of_node={each: tuple(found) for each, found in devices.items()},
    )


def steps_per_hour(step_seconds: int) -> int:
    if not 1 <= step_seconds <= 3600:
        raise ValueError(f"a step of {step_seconds} s; expected 1 to 3600")
    return 3600 // step_seconds


def kind_of(device: str) -> str:
    """Return a device's name without its numbers: `mlx5_0/1` and `mlx5_7/1` are alike, `/` and `/raid` are not."""
    return _NUMBER.sub("#", device)


def _has_samples(rows: pa.Table, column: str) -> bool:
    return column in rows.column_names and rows[column].null_count < rows.num_rows


def _of_quantities(
    rows: pa.Table, quantities: list[str], *, unit: Ints, seen: Ints, at_end: Flags, times: Ints
) -> tuple[Ints, Flags, dict[str, Ints]]:
    size = len(seen)
    counts = np.zeros((size, len(quantities)), np.int64)
    fresh = np.zeros((size, len(quantities)), np.bool_)
    newest_of: dict[str, Ints] = {}
    ending = np.flatnonzero(at_end)
    for place, name in enumerate(quantities):
        is_valid = np.full(len(unit), name in rows.column_names)
        if name in rows.column_names and rows[name].null_count:
            is_valid = rows[name].is_valid().to_numpy().astype(np.bool_)
        # Several samples of one step may be more than the steps that are there.
        counts[:, place] = np.minimum(np.bincount(unit[is_valid], minlength=size), seen)
        fresh[unit[ending[is_valid[ending]]], place] = True
        if not fresh[:, place].all():
            newest = np.full(size, -1, np.int64)
            np.maximum.at(newest, unit[is_valid], times[is_valid])
            newest_of[name] = newest
    return counts, fresh, newest_of


def _gpu_kinds(rows: pa.Table, units: tuple[Unit, ...], *, first: Ints) -> tuple[str, ...]:
    models = rows["gpu_model"].take(pa.array(first)).to_pylist() if "gpu_model" in rows.column_names else []
    # A slice gives other quantities than the GPU that it is cut from.
    return tuple(
        (model or "GPU") + (" slice" if "/" in device else "")
        for model, (_, device) in zip(models or [None] * len(units), units, strict=True)
    )


def _encode(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes: Ints = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, encoded.dictionary.to_pylist()
