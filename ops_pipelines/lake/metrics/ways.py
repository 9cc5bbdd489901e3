"""The ways from a series into columns: which GPU its labels mean, which column its name fills, points made unique.

One device name for one GPU, in every dialect: its UUID, else its PCI address, else `gpu<index>`; a MIG slice is
`<gpu>/mig<id>`. Works on whole columns. What a point means was settled before, by `pages`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.identity import parse_pci_address
from ops_pipelines.core.sources import Query
from ops_pipelines.lake.metrics.series import Gate
from ops_pipelines.lake.quantities import Merge, Quantity, SeriesName, read_quantities, readable

MAX_LABEL_LENGTH = 200

_UUID = ("UUID", "uuid", "gpu_uuid", "GPU_UUID", "gpuUuid")
_PCI = ("pci_bus_id", "pci_address", "pciBusId", "PCI_BUS_ID", "gpu_pci_bus_id", "bus_id", "pci_bdf")
_INDEX = ("gpu", "gpu_index", "gpu_id", "index", "GPU")
_MIG = ("GPU_I_ID", "gpu_i_id", "gpu_instance_id", "mig_instance")
NAMING_LABELS = frozenset({*_UUID, *_PCI, *_INDEX})
"""Labels that name a GPU in one way or another."""
_TEXTS: Mapping[str, tuple[str, ...]] = {
    "gpu_serial": ("gpu_serial", "serial", "serial_number", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_SERIAL_NUMBER"),
    "gpu_model": ("modelName", "model_name", "gpu_model", "card_model", "DCGM_FI_DEV_NAME", "product_name", "name"),
    "mig_profile": ("GPU_I_PROFILE", "gpu_i_profile", "mig_profile", "gpu_instance_profile"),
    # Renamed by dcgm-exporter 4.9.
    "driver_version": ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "driver_version"),
    # Never `job`: that is the scrape job, which Prometheus adds to every target.
    "job": ("hpc_job", "slurm_job_id", "slurm_jobid", "job_id", "jobid", "SLURM_JOB_ID"),
}
_HOLDERS = ("namespace", "pod", "container")

# "unused", in the words of several exporters
_ABSENT = frozenset({"", "N/A", "[N/A]", "[Not Supported]", "none", "None", "null"})
_BARE_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OLD_MIG_UUID = re.compile(r"MIG-(?P<gpu>GPU-[0-9a-fA-F-]{8,40})/(?P<instance>\d{1,3})(?:/\d{1,3})?")
_NUMBER = re.compile(r"(?:gpu|nvidia|card)?(\d{1,4})", re.IGNORECASE)
_EXPORTER = re.compile(r"dcgm-exporter|gpu-exporter|metrics-exporter", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """What one label set says. None: it does not say."""

    gpu_uuid: str | None
    pci_address: str | None
    gpu_index: int | None
    mig_instance: str | None
    texts: tuple[tuple[str, str], ...]
    """Column -> value of the other label columns that are there, in column order."""


def label(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the first of the labels that says something, made readable and short."""
    for name in names:
        value = labels.get(name)
        if value is not None and value not in _ABSENT:
            return shown(value)
    return None


def shown(value: str) -> str:
    """Return a label's value made readable and short."""
    return (value if value.isascii() and value.isprintable() else readable(value))[:MAX_LABEL_LENGTH]


def read_gpu_labels(labels: Mapping[str, str]) -> GpuLabels:
    """Return what the labels say. Raises BadGpuLabel on a PCI address that is none."""
    uuid, instance = _read_uuid(label(labels, _UUID)), label(labels, _MIG)
    if uuid is not None and (old := _OLD_MIG_UUID.fullmatch(uuid)):
        uuid, instance = old["gpu"], instance or old["instance"]
    elif uuid is not None and uuid.startswith("MIG-"):
        # The UUID of a slice, not of its GPU: which GPU that is, only other labels tell.
        uuid, instance = None, instance or uuid
    texts = {column: value for column, names in _TEXTS.items() if (value := label(labels, names)) is not None}
    texts |= read_holder(labels)
    return GpuLabels(uuid, _read_pci(labels), _read_index(labels), instance, tuple(sorted(texts.items())))


def read_holder(labels: Mapping[str, str]) -> dict[str, str]:
    """Return namespace, pod and container of the workload.

    Prometheus that found the exporter through Kubernetes keeps `pod` for the exporter's own and calls the exporter's
    label `exported_pod`; the exporter's own pod holds no GPU.
    """
    prefix = "exported_" if any(labels.get(f"exported_{name}") for name in _HOLDERS) else ""
    held = {name: value for name in _HOLDERS if (value := label(labels, (prefix + name,))) is not None}
    if not prefix and any(_EXPORTER.search(held.get(name, "")) for name in ("pod", "container")):
        return {}
    return held


class BadGpuLabel(ValueError):
    """A label that cannot be right. `reason` is the code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _read_uuid(text: str | None) -> str | None:
    """Return the UUID as NVML writes it: nvidia_gpu_exporter drops `GPU-`."""
    return f"GPU-{text.lower()}" if text is not None and _BARE_UUID.fullmatch(text) else text


def _read_pci(labels: Mapping[str, str]) -> str | None:
    text = label(labels, _PCI)
    if text is None:
        return None
    try:
        return parse_pci_address(text)
    except ValueError as exc:
        raise BadGpuLabel("bad_pci_address", str(exc)) from None


def _read_index(labels: Mapping[str, str]) -> int | None:
    text = label(labels, _INDEX)
    if text is None:
        return None
    # Some sites write a name of their own here; the UUID or the address then says which GPU it is.
    match = _NUMBER.fullmatch(text)
    return None if match is None else int(match[1])


@dataclass(slots=True)
class GpuJoin:
    """Learns within one block which UUID an index or a PCI address of a node means: not every series has all.

    What two series contradict is not joined: an index that two GPUs had belongs to neither.
    """

    uuids: dict[tuple[str, str | int], str | None] = field(default_factory=dict)
    """(node, PCI address or index) -> UUID; None where two disagree."""
    addresses: dict[tuple[str, int], str | None] = field(default_factory=dict)

    def learn(self, node: str, gpu: GpuLabels) -> None:
        """Take in what one label set says of the names of its GPU."""
        if gpu.gpu_uuid is not None:
            for place in (gpu.pci_address, gpu.gpu_index):
                if place is not None:
                    key = (node, place)
                    self.uuids[key] = gpu.gpu_uuid if self.uuids.get(key, gpu.gpu_uuid) == gpu.gpu_uuid else None
        if gpu.pci_address is not None and gpu.gpu_index is not None:
            seat = (node, gpu.gpu_index)
            self.addresses[seat] = (
                gpu.pci_address if self.addresses.get(seat, gpu.pci_address) == gpu.pci_address else None
            )

    def complete(self, node: str, gpu: GpuLabels) -> tuple[str | None, str | None]:
        """Return the GPU's UUID and PCI address, as far as they are known."""
        uuid, address = gpu.gpu_uuid, gpu.pci_address
        if address is None and gpu.gpu_index is not None and uuid is None:
            address = self.addresses.get((node, gpu.gpu_index))
        if uuid is None and address is not None:
            uuid = self.uuids.get((node, address))
        if uuid is None and gpu.pci_address is None and gpu.gpu_index is not None:
            uuid = self.uuids.get((node, gpu.gpu_index))
        return uuid, address

    def name_device(self, node: str, gpu: GpuLabels) -> str | None:
        """Return the device's name, or None if nothing says which GPU it is."""
        uuid, address = self.complete(node, gpu)
        parent = uuid or address or (None if gpu.gpu_index is None else f"gpu{gpu.gpu_index}")
        if gpu.mig_instance is None:
            return parent
        if gpu.mig_instance.startswith("MIG-"):
            return gpu.mig_instance if parent is None else f"{parent}/{gpu.mig_instance}"
        return None if parent is None else f"{parent}/mig{gpu.mig_instance}"


# -- the ways from a series name into columns --


_PART = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How labels name the part of a node: `fs:{mountpoint}`. `{a|b}` takes `a`, else `b`."""

    parts: tuple[str | tuple[str, ...], ...]
    """Texts as they are, and the labels of each place, best first."""
    is_optional: bool = False
    """Whether a label set with none of the labels means the whole: an aggregate that a query computed."""

    @property
    def wanted(self) -> str:
        """The labels that it needs, for people."""
        return ", ".join("|".join(part) for part in self.parts if not isinstance(part, str))

    def name(self, labels: Mapping[str, str]) -> str | None:
        """Return the device, or None if the labels do not name it."""
        named = [part if isinstance(part, str) else _first(labels, part) for part in self.parts]
        if self.is_optional and all(
            value is None for value, part in zip(named, self.parts, strict=True) if not isinstance(part, str)
        ):
            return ""
        return None if None in named else "".join(part for part in named if part is not None)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((shown(value) for name in names if (value := labels.get(name))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of a series into one column."""

    table: str
    column: str
    rank: int
    """Among the names that mean the column: where cells are added up, only the first name that is there counts."""
    gate: Gate
    conditions: tuple[tuple[str, str], ...]
    """Labels that the series must have."""
    device: Device


@cache
def ways_by_name() -> Mapping[str, tuple[Way, ...]]:
    """Return the ways of every series name that the catalogue knows, NVML's calls included."""
    found: dict[str, list[Way]] = {}
    for quantity in read_quantities():
        listed = [*quantity.series, *([quantity.nvml] if quantity.nvml else [])]
        ranks = {name: rank for rank, name in enumerate(dict.fromkeys(each.name for each in listed))}
        for each in listed:
            found.setdefault(each.name, []).append(_way(quantity, each, rank=ranks[each.name]))
    return {name: tuple(ways) for name, ways in found.items()}


def way_of_query(query: Query | None) -> Way | None:
    """Return where series go that have no name of their own; None if the query does not say.

    Raises ValueError on a column that the catalogue does not have.
    """
    if query is None or query.table is None or query.column is None:
        return None
    for quantity in read_quantities():
        if (quantity.table, quantity.column) == (query.table, query.column):
            return _way(quantity, SeriesName(name=""), rank=0)
    raise ValueError(f"the catalogue has no column {query.column} in {query.table}; expected one of metrics.csv")


def _way(quantity: Quantity, series: SeriesName, *, rank: int) -> Way:
    is_query = not series.name
    may_be_blank = series.name.upper().startswith("DCGM_") or (is_query and quantity.table == "gpu_telemetry")
    return Way(
        table=quantity.table,
        column=quantity.column,
        rank=rank,
        gate=Gate(quantity=quantity, factor=series.factor, may_be_blank=may_be_blank, is_computed=is_query),
        conditions=tuple(sorted(series.labels.items())),
        device=_device(quantity.device, is_optional=is_query),
    )


@cache
def _device(template: str, *, is_optional: bool) -> Device:
    pieces = _PART.split(template)
    parts = [tuple(piece.split("|")) if number % 2 else piece for number, piece in enumerate(pieces)]
    return Device(parts=tuple(part for part in parts if part), is_optional=is_optional)


# -- points that were placed -> rows and columns of one wide table --


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """Accepted points that came one way. The arrays have one element a point."""

    way: Way
    keys: Ints
    """Row of the grid of units and times: unit x times + time."""
    values: NDArray[np.float64]
    points: Ints
    """Where they stand in the block."""
    series: Ints
    """A number for the series: points of equal series have equal numbers."""
    identities: NDArray[np.int32]
    """A number for what the labels say beside the key."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The rows of a table: their keys in order, and the row of each placed point."""

    keys: Ints
    of: Sequence[Ints]
    """For each `Placed`, the row of each of its points."""


def number_rows(placed: Sequence[Placed], *, grid_size: int) -> Rows:
    """Return the rows that have at least one cell, in the order of their keys."""
    count = sum(len(each.keys) for each in placed)
    if grid_size <= 4 * count + 1_000_000:
        is_there = np.zeros(grid_size, np.bool_)
        for each in placed:
            is_there[each.keys] = True
        keys = np.flatnonzero(is_there)
        row_of = np.zeros(grid_size, np.int64)
        row_of[keys] = np.arange(len(keys))
        return Rows(keys=keys, of=[row_of[each.keys] for each in placed])
    keys = np.unique(np.concatenate([each.keys for each in placed]))
    return Rows(keys=keys, of=[np.searchsorted(keys, each.keys) for each in placed])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """One column: its values, where it has one, and the points that contradict an earlier one of their own series."""

    values: NDArray[np.float64]
    is_there: NDArray[np.bool_]
    conflicting: Ints


_NONE: Ints = np.zeros(0, np.int64)


def fill_column(parts: Sequence[tuple[Placed, Ints]], *, row_count: int, merge: Merge) -> Cells:
    """Return the column that these points make; `parts` gives each its rows.

    Points of one series at one time are one measurement: equal ones count once, and of different ones the first.
    Several series in one cell are merged. Where they are added up or averaged, only the catalogue's first name counts:
    the old and the new name of a field are not two measurements. The order of the series does not matter.
    """
    values, is_there = np.zeros(row_count), np.zeros(row_count, np.bool_)
    count = 0
    for each, rows in parts:
        values[rows] = each.values
        is_there[rows] = True
        count += len(rows)
    if count == int(np.count_nonzero(is_there)):
        return Cells(values=values, is_there=is_there, conflicting=_NONE)
    rows = np.concatenate([rows for _, rows in parts])
    found = np.concatenate([each.values for each, _ in parts])
    points = np.concatenate([each.points for each, _ in parts])
    series = np.concatenate([each.series for each, _ in parts])
    ranks = np.concatenate([np.full(len(rows), each.way.rank, np.int64) for each, rows in parts])
    is_kept, conflicting = _drop_repeats(rows, series=series, points=points, values=found)
    if is_kept is not None:
        rows, found, ranks = rows[is_kept], found[is_kept], ranks[is_kept]
    if merge in (Merge.SUM, Merge.MEAN) and ranks.min() != ranks.max():
        best = np.full(row_count, np.iinfo(np.int64).max)
        np.minimum.at(best, rows, ranks)
        is_best = ranks == best[rows]
        rows, found = rows[is_best], found[is_best]
    return Cells(values=_merge(rows, found, merge=merge, values=values), is_there=is_there, conflicting=conflicting)


def _drop_repeats(
    rows: Ints, *, series: Ints, points: Ints, values: NDArray[np.float64]
) -> tuple[NDArray[np.bool_] | None, Ints]:
    """Return which points are the first of their series in their row (None: all), and those that contradict one."""
    order = np.lexsort((points, series, rows))
    is_repeat = np.zeros(len(order), np.bool_)
    is_repeat[1:] = (rows[order][1:] == rows[order][:-1]) & (series[order][1:] == series[order][:-1])
    if not is_repeat.any():
        return None, _NONE
    first = np.maximum.accumulate(np.where(is_repeat, 0, np.arange(len(order))))
    ordered = values[order]
    conflicting = points[order][is_repeat & (ordered != ordered[first])]
    is_kept = np.ones(len(order), np.bool_)
    is_kept[order[is_repeat]] = False
    return is_kept, conflicting


def _merge(rows: Ints, found: NDArray[np.float64], *, merge: Merge, values: NDArray[np.float64]) -> NDArray[np.float64]:
    # Values in order, so that a sum has the same last bit whatever the order of the series.
    order = np.lexsort((found, rows))
    rows, found = rows[order], found[order]
    starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    match merge:
        case Merge.MIN:
            merged = found[starts]
        case Merge.MAX:
            merged = found[np.concatenate((starts[1:], [len(rows)])) - 1]
        case Merge.SUM:
            merged = np.add.reduceat(found, starts)
        case Merge.MEAN:
            merged = np.add.reduceat(found, starts) / np.diff(np.concatenate((starts, [len(rows)])))
    values[rows[starts]] = merged
    return values


def settle_identities(
    placed: Sequence[tuple[NDArray[np.int32], Ints]], *, row_count: int
) -> tuple[NDArray[np.int64], list[tuple[int, ...]]]:
    """Return for each row a number, and for each number the identities that met there, in order.

    Nearly all rows have one identity: only the others cost more than a look.
    """
    last = np.zeros(row_count, np.int64)
    for identities, rows in placed:
        last[rows] = identities
    is_mixed = np.zeros(row_count, np.bool_)
    for identities, rows in placed:
        is_mixed[rows[last[rows] != identities]] = True
    size = 1 + max((int(identities.max()) for identities, _ in placed if len(identities)), default=0)
    sets: list[tuple[int, ...]] = [(number,) for number in range(size)]
    if not is_mixed.any():
        return last, sets
    pairs = [rows[is_mixed[rows]] * size + identities[is_mixed[rows]] for identities, rows in placed]
    numbers: dict[tuple[int, ...], int] = {}
    distinct = np.unique(np.concatenate(pairs))
    rows, starts = np.unique(distinct // size, return_index=True)
    met = (distinct % size).tolist()
    for row, start, end in zip(rows.tolist(), starts.tolist(), [*starts[1:].tolist(), len(met)], strict=True):
        together = tuple(met[start:end])
        if together not in numbers:
            numbers[together] = len(sets)
            sets.append(together)
        last[row] = numbers[together]
    return last, sets
