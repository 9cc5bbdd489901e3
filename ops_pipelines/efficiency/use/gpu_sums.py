"""An hour of GPU samples -> sums and counts for each GPU in each stretch in which the same jobs held its node.

Sums can be added up again, over stretches and GPUs: the samples are gone through once. The order of the rows does not
change the result beyond rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.efficiency.use.holds import Holds
from ops_pipelines.lake.rates import rates

WITHOUT_WORK_RATIO = 0.2
"""A sample below this found no work; dips are counted with it."""
_HOUR = timedelta(hours=1)
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
    """One entry for each GPU (or slice), stretch and label, by node, device, stretch and label."""

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
