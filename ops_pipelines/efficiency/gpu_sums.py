"""Who held which GPU when, and an hour of GPU samples as sums for each holder.

What the exporter reports of a GPU (`job`, else `namespace/pod`) is believed. Else the scheduler's allocations decide;
they name nodes and a number of GPUs but not which: then GPUs with memory in use are taken to be held. Where several
jobs hold a node at once and nothing separates their GPUs, each is given all of these, and is marked as shared.

Sums can be added up again, over intervals and GPUs: samples are read once. The order of the rows does not change the
result beyond rounding.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.lake.rates import rates

# -- who held which GPU when --


NOBODY = ""
_HOUR_MICROSECONDS = 3_600_000_000
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One job on one node within the hour; its attempts there are added up."""

    job: str
    user: str | None
    account: str | None
    held_seconds: float
    gpu_count: float | None
    """GPUs on this node; None: not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInterval:
    """An interval of the hour in which the same jobs held a node. Microseconds since the hour's begin, half-open."""

    node: str
    start: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """All allocations of an hour."""

    by_key: Mapping[tuple[str, str], Hold]
    """(node, job) -> what is known."""
    stretches: tuple[HeldInterval, ...]
    """By node and start."""
    _starts: NDArray[np.int64]
    _first: Mapping[str, int]
    """Node -> its place in the order of nodes in which `_starts` is packed."""

    def places(self, nodes: Sequence[str], codes: NDArray[np.int64], microseconds: NDArray[np.int64]) -> "Places":
        """Return for each sample the place of its interval in `stretches`; -1: nobody held the node.

        `codes` are places in `nodes`, `microseconds` count from the hour's begin.
        """
        known = np.array([self._first.get(node, -1) for node in nodes], np.int64)[codes]
        packed = known * _HOUR_MICROSECONDS + microseconds
        found = np.searchsorted(self._starts, packed, side="right") - 1
        return np.where(known < 0, -1, found)


Places = NDArray[np.int64]


def read_holds(allocations: pa.Table, *, hour: datetime) -> Holds:
    """Return the allocations within the hour. Attempts without GPUs hold none, and are left out.

    A start that is null is the hour's, an end that is null the end of the hour.
    """
    by_key: dict[tuple[str, str], Hold] = {}
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for row in _rows(allocations):
        node, job, count = str(row["node"]), str(row["job"]), row["gpu_count"]
        gpu_count = float(count) if isinstance(count, (int, float)) else None
        start, end = (
            _offset(row["started_at"], hour=hour, default=0),
            _offset(row["ended_at"], hour=hour, default=_HOUR_MICROSECONDS),
        )
        if gpu_count == 0 or start >= end:
            continue
        spans.setdefault(node, []).append((start, end, job))
        before = by_key.get((node, job))
        by_key[(node, job)] = Hold(
            job=job,
            user=_text(row["user"]),
            account=_text(row["account"]),
            held_seconds=(end - start) / 1e6 + (before.held_seconds if before else 0.0),
            gpu_count=gpu_count,
        )
    stretches: list[HeldInterval] = []
    starts: list[int] = []
    first: dict[str, int] = {}
    for order, node in enumerate(sorted(spans)):
        first[node] = order
        for start, jobs in _cut(spans[node]):
            stretches.append(HeldInterval(node=node, start=start, jobs=jobs))
            starts.append(order * _HOUR_MICROSECONDS + start)
    return Holds(by_key=by_key, stretches=tuple(stretches), _starts=np.array(starts, np.int64), _first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One GPU in one interval, given to one job."""

    place: int
    """Its place in what was asked."""
    job: str
    how: str
    """How it is known: `` (stated by the exporter, or the job held all), `memory` or `shared`."""


def share_out(
    node: str, jobs: Sequence[str], *, labels: Sequence[str], is_used: Sequence[bool], holds: Holds
) -> list[Share]:
    """Return who held each GPU (or slice) of a node in one interval: one share for each, or several of a shared one.

    `labels` and `is_used` have one entry a GPU: what its exporter says (`` for nothing; `1,2` for two jobs), and
    whether memory was in use or kernels ran.
    """
    if any(labels):
        return [
            Share(place=place, job=job, how="shared" if "," in label else "")
            for place, label in enumerate(labels)
            for job in (label.split(",") if label else [NOBODY])
        ]
    if not jobs:
        return [Share(place=place, job=NOBODY, how="") for place in range(len(is_used))]
    counts = [holds.by_key[(node, job)].gpu_count for job in jobs]
    asked = len(is_used) if None in counts else int(np.ceil(sum(count for count in counts if count is not None)))
    if len(jobs) == 1 and asked >= len(is_used):
        return [Share(place=place, job=jobs[0], how="") for place in range(len(is_used))]
    # GPUs in use first: of those that do nothing, one is as good as the other.
    order = sorted(range(len(is_used)), key=lambda place: not is_used[place])
    held = set(order[: max(asked, sum(is_used))])
    how = "shared" if len(jobs) > 1 else "memory"
    return [
        Share(place=place, job=job, how=how if place in held else "")
        for place in range(len(is_used))
        for job in (jobs if place in held else [NOBODY])
    ]


def _cut(spans: Sequence[tuple[int, int, str]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the intervals of one node's hour: (start, jobs that hold it), from 0 on, without gaps."""
    edges = sorted({0, *(start for start, _, _ in spans), *(end for _, end, _ in spans)} - {_HOUR_MICROSECONDS})
    return [(edge, tuple(sorted({job for start, end, job in spans if start <= edge < end}))) for edge in edges]


def _rows(allocations: pa.Table) -> list[dict[str, object]]:
    names = ("node", "job", "user", "account", "gpu_count", "started_at", "ended_at")
    known = [name for name in names if name in allocations.column_names]
    rows: list[dict[str, object]] = allocations.select(known).to_pylist()
    return [dict.fromkeys(names) | row for row in rows]


def _offset(at: object, *, hour: datetime, default: int) -> int:
    if not isinstance(at, datetime):
        return default
    return int(min(max(at - hour, timedelta(0)), _HOUR) / timedelta(microseconds=1))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# -- network traffic of nodes while their jobs held them --


_COUNTERS = ("receive_bytes", "transmit_bytes")


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
    # (node, interval) -> port -> [bytes, seconds of receive, seconds of transmit]
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
    """Return the mean over the intervals of each job, weighted by how long they were seen; `*` is the whole hour."""
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


WITHOUT_WORK_RATIO = 0.2
"""A sample below this found no work; dips are counted with it."""

_MEANS = (
    "utilisation_ratio",
    "sm_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "memory_copy_ratio",
    "power_watts",
    "temperature_celsius",
)
_LABELS = ("job", "namespace", "pod", "mig_profile", "gpu_model")

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSums:
    """One entry for each GPU (or slice), interval and label, by node, device, interval and label."""

    node: tuple[str, ...]
    device: tuple[str, ...]
    stretch: Codes
    """Place in `Holds.stretches`; -1: nobody held the node."""
    label: tuple[str, ...]
    """The job that the exporter names, else `namespace/pod`, else ``."""
    profile: tuple[str, ...]
    """MIG profile; `` for a whole GPU."""
    model: tuple[str, ...]
    samples: Floats
    sums: Mapping[str, Floats]
    counts: Mapping[str, Floats]
    """Of the values that went into each sum: a mean is one over the other."""


def read_samples(gpu: pa.Table, *, holds: Holds, hour: datetime) -> GpuSums:
    """Return the sums of the samples within [hour, hour + 1 h). Columns that are missing are unknown throughout."""
    within = pc.and_(pc.greater_equal(gpu["time"], pa.scalar(hour)), pc.less(gpu["time"], pa.scalar(hour + _HOUR)))
    if not pc.all(within).as_py():
        gpu = gpu.filter(within)
    node, nodes = _encode(gpu["node"])
    device, devices = _encode(gpu["device"])
    texts = {name: _encode(gpu[name]) if name in gpu.column_names else None for name in _LABELS}
    microseconds = _since(gpu["time"], hour=hour)
    stretch = holds.places(nodes, node, microseconds)
    label, labels = _label(texts, rows=gpu.num_rows)
    unit = node * max(len(devices), 1) + device
    starts, groups = _runs(unit, stretch, label)
    first = starts[np.unique(groups, return_index=True)[1]]
    values = _values(gpu)
    sums, counts = _add_up(values, starts=starts, groups=groups)
    traffic_sum, traffic_seconds = _counter(
        gpu, "nvlink_bandwidth_bytes", unit=unit, keys=(unit, stretch, label), first=first
    )
    sums["nvlink_bytes_per_second"], counts["nvlink_bytes_per_second"] = traffic_sum, traffic_seconds
    return GpuSums(
        node=tuple(nodes[code] for code in node[first]),
        device=tuple(devices[code] for code in device[first]),
        stretch=stretch[first],
        label=tuple(labels[code] for code in label[first]),
        profile=_taken(texts["mig_profile"], first),
        model=_taken(texts["gpu_model"], first),
        samples=_totals(groups, np.diff(starts, append=gpu.num_rows), size=len(first)),
        sums=sums,
        counts=counts,
    )


def throttled_ratio(gpu: pa.Table, column: str, *, node: str, device: str) -> float | None:
    """Return the share of time that a counter of seconds grew by on one GPU; None if it does not say."""
    if column not in gpu.column_names:
        return None
    rated = rates(gpu.filter(pc.and_(pc.equal(gpu["node"], node), pc.equal(gpu["device"], device))), column)
    seconds = pc.sum(rated["elapsed_seconds"]).as_py()
    return float(pc.sum(rated["increase"]).as_py() / seconds) if seconds else None


def numbers(table: pa.Table, column: str) -> Floats:
    """Return a column as floats; NaN where it is null, and throughout where there is none."""
    if column not in table.column_names or table[column].null_count == table.num_rows:
        return np.full(table.num_rows, np.nan)
    found: Floats = table[column].cast(pa.float64()).to_numpy()
    return found


def _values(gpu: pa.Table) -> dict[str, Floats]:
    """Return what is averaged, per sample."""
    found = {name: numbers(gpu, name) for name in _MEANS}
    utilisation = found["utilisation_ratio"]
    busy = np.where(np.isnan(utilisation), numbers(gpu, "graphics_active_ratio"), utilisation)
    found["busy_ratio"] = busy
    found["dip_ratio"] = np.where(np.isnan(busy), np.nan, (busy < WITHOUT_WORK_RATIO).astype(np.float64))
    # Between kernels the clock falls by itself: what holds a GPU back shows under work.
    found["sm_clock_hertz"] = np.where(busy < 0.5, np.nan, numbers(gpu, "sm_clock_hertz"))
    used, total = numbers(gpu, "memory_used_bytes"), numbers(gpu, "memory_total_bytes")
    reserved = np.nan_to_num(numbers(gpu, "memory_reserved_bytes"))
    total = np.where(np.isnan(total), used + numbers(gpu, "memory_free_bytes") + reserved, total)
    limit = numbers(gpu, "power_limit_enforced_watts")
    limit = np.where(np.isnan(limit), numbers(gpu, "power_limit_watts"), limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        found["memory_used_ratio"] = np.where(total > 0, used / total, np.nan)
        found["power_ratio"] = np.where(limit > 0, found["power_watts"] / limit, np.nan)
    out, into = numbers(gpu, "pcie_transmit_bytes_per_second"), numbers(gpu, "pcie_receive_bytes_per_second")
    found["pcie_bytes_per_second"] = np.where(
        np.isnan(out) & np.isnan(into), np.nan, np.nan_to_num(out) + np.nan_to_num(into)
    )
    return found


def _add_up(
    values: Mapping[str, Floats], *, starts: Codes, groups: Codes
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    sums: dict[str, Floats] = {}
    counts: dict[str, Floats] = {}
    size = int(groups.max()) + 1 if len(groups) else 0
    for name, column in values.items():
        is_known = ~np.isnan(column)
        if len(starts) == 0 or not is_known.any():
            sums[name], counts[name] = np.zeros(size), np.zeros(size)
            continue
        known = column if is_known.all() else np.where(is_known, column, 0.0)
        sums[name] = _totals(groups, np.add.reduceat(known, starts), size=size)
        counts[name] = _totals(groups, np.add.reduceat(is_known.astype(np.float64), starts), size=size)
    return sums, counts


def _counter(
    gpu: pa.Table, column: str, *, unit: Codes, keys: tuple[Codes, Codes, Codes], first: Codes
) -> tuple[Floats, Floats]:
    """Return the increases of a counter and the seconds they took, for each entry; each counts where it ended."""
    size = len(first)
    if column not in gpu.column_names or gpu[column].null_count == gpu.num_rows:
        return np.zeros(size), np.zeros(size)
    # Numbers sort faster than texts.
    narrow = pa.table({"unit": unit, "row": np.arange(gpu.num_rows), "time": gpu["time"], column: gpu[column]})
    kept = narrow.filter(pc.is_valid(narrow[column])).sort_by([("unit", "ascending"), ("time", "ascending")])
    rated = rates(kept, column, key=("unit",))
    rows = kept["row"].to_numpy()
    entry = _entries(keys, first=first)[rows]
    increase, seconds = (np.nan_to_num(rated[name].to_numpy()) for name in ("increase", "elapsed_seconds"))
    return _totals(entry, increase, size=size), _totals(entry, seconds, size=size)


def _totals(groups: Codes, weights: Floats | Codes, *, size: int) -> Floats:
    return np.bincount(groups, weights=weights, minlength=size).astype(np.float64)


def _entries(keys: tuple[Codes, Codes, Codes], *, first: Codes) -> Codes:
    """Return for each row the entry that it belongs to."""
    starts, groups = _runs(*keys)
    return np.repeat(groups, np.diff(starts, append=len(keys[0])))


def _runs(unit: Codes, stretch: Codes, label: Codes) -> tuple[Codes, Codes]:
    """Return where runs of equal keys start, and the entry of each run; entries are numbered by key."""
    if len(unit) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    changes = np.ones(len(unit), np.bool_)
    changes[1:] = (unit[1:] != unit[:-1]) | (stretch[1:] != stretch[:-1]) | (label[1:] != label[:-1])
    starts = np.flatnonzero(changes)
    keys = np.stack((unit[starts], stretch[starts], label[starts]))
    groups = np.unique(keys, axis=1, return_inverse=True)[1]
    return starts, groups.reshape(-1).astype(np.int64)


def _encode(column: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Return codes and texts, in the order of the texts; null is ``."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    said = [text or "" for text in encoded.dictionary.to_pylist()]
    texts = sorted(set(said))
    place = {text: at for at, text in enumerate(texts)}
    order = np.array([place[text] for text in said], np.int64)
    return (order[encoded.indices.to_numpy(zero_copy_only=False)] if len(said) else np.zeros(0, np.int64)), texts


def _label(texts: Mapping[str, tuple[Codes, list[str]] | None], *, rows: int) -> tuple[Codes, list[str]]:
    job, namespace, pod = texts["job"], texts["namespace"], texts["pod"]
    code, names = (np.zeros(rows, np.int64), [""]) if job is None else job
    if pod is None or pod[1] == [""]:
        return code, names
    spaces, space_names = (np.zeros(rows, np.int64), [""]) if namespace is None else namespace
    packed = (code * len(pod[1]) + pod[0]) * len(space_names) + spaces
    kinds, found = np.unique(packed, return_inverse=True)
    said: list[str] = []
    for kind in kinds.tolist():
        rest, space = divmod(kind, len(space_names))
        own, held_by = divmod(rest, len(pod[1]))
        said.append(names[own] or (f"{space_names[space]}/{pod[1][held_by]}".strip("/") if pod[1][held_by] else ""))
    listed = sorted(set(said))
    return np.array([listed.index(name) for name in said], np.int64)[found.reshape(-1)], listed


def _since(times: pa.ChunkedArray, *, hour: datetime) -> Codes:
    begin = pa.scalar(hour, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
    found: Codes = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() - begin
    return found


def _taken(coded: tuple[Codes, list[str]] | None, first: Codes) -> tuple[str, ...]:
    return ("",) * len(first) if coded is None else tuple(coded[1][code] for code in coded[0][first])
