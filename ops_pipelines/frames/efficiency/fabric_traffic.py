"""Network traffic of nodes while their jobs held them: rates of all ports together, and against what they can carry."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.frames.efficiency.gpu_holds import NOBODY, Holds
from ops_pipelines.lake.rates import rates

_COUNTERS = ("receive_bytes", "transmit_bytes")
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTraffic:
    """Traffic of a node's ports while a job held it; NaN: not known."""

    bytes_per_second: float
    """Both ways."""
    used_ratio: float
    """Over the rate of those ports whose rate is known, both ways."""


_UNKNOWN = PortTraffic(bytes_per_second=math.nan, used_ratio=math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTraffic:
    """Traffic by node and job. Ports belong to the node: jobs that share it see the same traffic."""

    by_key: Mapping[tuple[str, str], PortTraffic]

    def of(self, node: str, job: str) -> PortTraffic:
        """Return what is known; for a job that the scheduler does not name, that of the node at large."""
        return self.by_key.get((node, job)) or self.by_key.get((node, "*"), _UNKNOWN)


def read_fabric(fabric: pa.Table, *, holds: Holds, hour: datetime) -> FabricTraffic:
    """Return the traffic within the hour, from rows of `fabric_telemetry` (columns may be missing)."""
    counters = [name for name in _COUNTERS if name in fabric.column_names and fabric[name].null_count < fabric.num_rows]
    if not counters:
        return FabricTraffic(by_key={})
    within = pc.and_(
        pc.greater_equal(fabric["time"], pa.scalar(hour)), pc.less(fabric["time"], pa.scalar(hour + _HOUR))
    )
    # Switches stand in the table too, and belong to no node.
    rows = fabric.filter(pc.and_(within, pc.not_equal(fabric["node"], "")))
    node, device = (pc.dictionary_encode(rows[name].combine_chunks()) for name in ("node", "device"))
    nodes: list[str] = node.dictionary.to_pylist()
    node_codes = node.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    ports = len(device.dictionary)
    unit = node_codes * max(ports, 1) + device.indices.to_numpy(zero_copy_only=False)
    lines = _line_rates(rows, unit=unit)
    # (node, stretch) -> port -> [bytes, seconds of receive, seconds of transmit]
    found: defaultdict[tuple[int, int], defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for name in counters:
        narrow = pa.table({"unit": unit, "time": rows["time"], name: rows[name]})
        rated = rates(narrow, name, key=("unit",))
        rated = rated.filter(pc.is_valid(rated["increase"]))
        units = rated["unit"].to_numpy()
        begin = pa.scalar(hour, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
        microseconds = rated["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() - begin
        stretch = holds.places(nodes, units // ports, microseconds)
        grouped = (
            pa.table({"unit": units, "stretch": stretch, "i": rated["increase"], "s": rated["elapsed_seconds"]})
            .group_by(["unit", "stretch"], use_threads=False)
            .aggregate([("i", "sum"), ("s", "sum")])
        )
        for each, place, increase, seconds in zip(
            *(grouped[column].to_pylist() for column in ("unit", "stretch", "i_sum", "s_sum")), strict=True
        ):
            found[each // ports, place][each] += increase / seconds
            found[each // ports, place][-1 - each] = max(found[each // ports, place][-1 - each], seconds)
    return FabricTraffic(by_key=_by_job(found, nodes=nodes, lines=lines, holds=holds))


def _by_job(
    found: Mapping[tuple[int, int], Mapping[int, float]],
    *,
    nodes: list[str],
    lines: Mapping[int, float],
    holds: Holds,
) -> dict[tuple[str, str], PortTraffic]:
    """Return the mean over the stretches of each job, weighted by how long they were seen; `*` is the whole hour."""
    sums: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for (code, place), ports in found.items():
        seconds = max(value for key, value in ports.items() if key < 0)
        total = sum(value for key, value in ports.items() if key >= 0)
        rated = {key: value for key, value in ports.items() if key >= 0 and lines.get(key)}
        line = sum(2 * lines[key] for key in rated)
        jobs = (NOBODY,) if place < 0 else holds.stretches[place].jobs or (NOBODY,)
        for job in (*jobs, "*"):
            entry = sums[nodes[code], job]
            entry[0] += total * seconds
            entry[1] += seconds
            if line:
                entry[2] += sum(rated.values()) / line * seconds
                entry[3] += seconds
    return {
        key: PortTraffic(
            bytes_per_second=moved / seconds if seconds else math.nan,
            used_ratio=used / used_seconds if used_seconds else math.nan,
        )
        for key, (moved, seconds, used, used_seconds) in sums.items()
    }


def _line_rates(rows: pa.Table, *, unit: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[int, float]:
    """Return the rate of each port in bytes a second, one way."""
    if "rate_bits_per_second" not in rows.column_names:
        return {}
    grouped = (
        pa.table({"unit": unit, "rate": rows["rate_bits_per_second"]})
        .group_by("unit", use_threads=False)
        .aggregate([("rate", "max")])
    )
    return {
        each: rate / 8
        for each, rate in zip(grouped["unit"].to_pylist(), grouped["rate_max"].to_pylist(), strict=True)
        if rate
    }
