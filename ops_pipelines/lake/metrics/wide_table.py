"""One wide table while it is filled from a block: labels and times numbered, points judged and placed, columns built.

Numbers instead of texts make it fast. Series that name a GPU by its index or address are joined with those that name
its UUID (`ways.GpuJoin`), within a block: a live cycle is a block of one time, an answer for an hour one of many.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.lake.metrics.series import Fate, SeriesBlock
from ops_pipelines.lake.metrics.ways import (
    NAMING_LABELS,
    BadGpuLabel,
    Device,
    GpuJoin,
    GpuLabels,
    Ints,
    Placed,
    Way,
    fill_column,
    label,
    number_rows,
    read_gpu_labels,
    read_holder,
    settle_identities,
    ways_by_name,
)
from ops_pipelines.lake.node_names import HOST_LABELS, NodeNames
from ops_pipelines.lake.schema import TABLES

# -- a block with its names, label sets and times numbered --


_TELLS_OF_A_GPU = re.compile(r"DCGM_|dcgm_|nvidia_|gpu_|amd_|rocm_")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The block, with its names and label sets numbered."""

    block: SeriesBlock
    starts: Ints
    names: Sequence[str]
    """Distinct names, by their number."""
    name_codes: NDArray[np.int32]
    label_sets: Sequence[Mapping[str, str]]
    """Distinct label sets, by their number."""
    sets: NDArray[np.int32]
    """Number of the label set of each series."""
    unplaced_gpu_series: list[Ints] = field(default_factory=list)
    """Series that the catalogue does not know, but whose labels may tell of a GPU."""

    @classmethod
    def of(cls, block: SeriesBlock) -> "Layout":
        codes: dict[str, int] = {}
        name_codes = np.fromiter((codes.setdefault(name, len(codes)) for name in block.names), np.int32)
        label_sets, sets = number_label_sets(block.labels)
        return cls(
            block=block,
            starts=np.cumsum(block.counts) - block.counts,
            names=list(codes),
            name_codes=name_codes,
            label_sets=label_sets,
            sets=sets,
        )

    def points_of(self, series: Ints) -> tuple[Ints, Ints]:
        """Return the points of these series, and for each point the place of its series in `series`."""
        counts = self.block.counts[series]
        if len(counts) == 0 or (counts.min() == 1 and counts.max() == 1):
            return self.starts[series], np.arange(len(series))
        place = np.repeat(np.arange(len(series)), counts)
        within = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.starts[series][place] + within, place


def number_label_sets(labels: Sequence[Mapping[str, str]]) -> tuple[list[Mapping[str, str]], NDArray[np.int32]]:
    """Return the distinct label sets, and the number of each series' own. Objects are compared first, then contents."""
    ids = np.fromiter(map(id, labels), np.int64, len(labels))
    _, firsts, inverse = np.unique(ids, return_index=True, return_inverse=True)
    as_written: dict[tuple[tuple[str, str], ...], int] = {}
    as_sorted: dict[tuple[tuple[str, str], ...], int] = {}
    distinct: list[Mapping[str, str]] = []
    codes = np.empty(len(firsts), np.int32)
    # In the order of the block, not of addresses in memory: the same block is always numbered the same.
    for place in np.argsort(firsts).tolist():
        each = labels[int(firsts[place])]
        written = tuple(each.items())
        code = as_written.get(written)
        if code is None:
            code = as_written[written] = as_sorted.setdefault(tuple(sorted(written)), len(distinct))
            if code == len(distinct):
                distinct.append(each)
        codes[place] = code
    return distinct, codes[inverse]


def number_times(block: SeriesBlock) -> tuple[NDArray[np.int32], Ints]:
    """Return the number of each point's time, and the distinct times in order."""
    times, counts = block.times, block.counts
    if len(times) == 0:
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    width = int(counts[0])
    if width and (counts == width).all():
        grid = times.reshape(-1, width)
        if (grid == grid[0]).all() and (np.diff(grid[0]) > 0).all():
            return np.tile(np.arange(width, dtype=np.int32), len(grid)), grid[0].copy()
    distinct, codes = np.unique(times, return_inverse=True)
    return codes.astype(np.int32), distinct


def choose(layout: Layout, *, fallback: Way | None) -> list[tuple[Way, Ints]]:
    """Return each way that is used with its series, in the catalogue's order of names; notes the rest in the layout."""
    known = ways_by_name()
    order = np.argsort(layout.name_codes, kind="stable")
    bounds = np.searchsorted(layout.name_codes[order], np.arange(len(layout.names) + 1))
    found: list[tuple[Way, Ints]] = []
    left_over: list[Ints] = []
    for code, name in enumerate(layout.names):
        series = order[bounds[code] : bounds[code + 1]]
        ways = known.get(name, ())
        if ways:
            found += _split(layout, ways, series)
        elif fallback is not None:
            left_over.append(series)
        elif _TELLS_OF_A_GPU.match(name):
            layout.unplaced_gpu_series.append(series)
    if fallback is not None and left_over:
        found.append((fallback, np.sort(np.concatenate(left_over))))
    return found


def _split(layout: Layout, ways: Sequence[Way], series: Ints) -> list[tuple[Way, Ints]]:
    """Return the series of one name by the way whose conditions they fulfil."""
    found: list[tuple[Way, Ints]] = []
    sets = layout.sets[series].tolist()
    numbered: dict[str, tuple[dict[str, int], NDArray[np.int32]]] = {}
    for key in {key for way in ways for key, _ in way.conditions}:
        numbers: dict[str, int] = {}
        values = (numbers.setdefault(layout.label_sets[code].get(key, ""), len(numbers)) for code in sets)
        numbered[key] = (numbers, np.fromiter(values, np.int32, len(sets)))
    for way in ways:
        fits = np.ones(len(series), np.bool_)
        for key, expected in way.conditions:
            numbers, codes = numbered[key]
            fits &= codes == numbers.get(expected, -1)
        if fits.any():
            found.append((way, series if fits.all() else series[fits]))
    return found


# -- a block cut where the names of its GPUs change --


def split_by_known_gpus(block: SeriesBlock) -> Sequence[SeriesBlock]:
    """Return the block in parts, each of times at which the same label sets tell of GPUs; whole if none is joined."""
    codes, times = number_times(block)
    if len(times) < 2:
        return (block,)
    label_sets, sets = number_label_sets(block.labels)
    teaching = _teaching(label_sets)
    if not teaching.any():
        return (block,)
    series = np.repeat(np.arange(len(sets)), block.counts)
    is_there = np.zeros((len(label_sets), len(times)), np.bool_)
    is_there[sets[series], codes] = True
    _, group_of_time = np.unique(is_there[teaching], axis=1, return_inverse=True)
    groups = group_of_time.reshape(-1)[codes]
    if len(groups) == 0 or (groups == groups[0]).all():
        return (block,)
    return [_part(block, series, groups == group) for group in np.unique(groups).tolist()]


def _teaching(label_sets: Sequence[Mapping[str, str]]) -> NDArray[np.bool_]:
    """Return which label sets say two names of one GPU; none of them where no other has less than both to learn."""
    gpus = [_read(labels) for labels in label_sets]
    teaching = np.array([gpu is not None and _name_count(gpu) > 1 for gpu in gpus], np.bool_)
    is_learning = any(gpu is not None and gpu.gpu_uuid is None and _name_count(gpu) > 0 for gpu in gpus)
    return teaching if is_learning else np.zeros_like(teaching)


def _name_count(gpu: GpuLabels) -> int:
    return sum(name is not None for name in (gpu.gpu_uuid, gpu.pci_address, gpu.gpu_index))


def _read(labels: Mapping[str, str]) -> GpuLabels | None:
    if labels.keys().isdisjoint(NAMING_LABELS):
        return None  # most of a node's series are of no GPU
    try:
        return read_gpu_labels(labels)
    except ValueError:
        return None  # its points are refused when they are placed


def _part(block: SeriesBlock, series: NDArray[np.int64], chosen: NDArray[np.bool_]) -> SeriesBlock:
    counts = np.bincount(series[chosen], minlength=len(block.names))
    kept = np.flatnonzero(counts)
    return SeriesBlock(
        names=[block.names[place] for place in kept.tolist()],
        labels=[block.labels[place] for place in kept.tolist()],
        counts=counts[kept],
        times=block.times[chosen],
        values=block.values[chosen],
        lines=None if block.lines is None else block.lines[chosen],
    )


# -- what each label set of a block means --


GPU_TABLE = "gpu_telemetry"
_SERVICE_TABLES = frozenset({"application_telemetry", "platform_telemetry"})
"""What they measure belongs to no node: where the exporter listens says nothing, unless it is a known node."""


@dataclass(slots=True, kw_only=True)
class Sites:
    """Which node, device and holder each label set means. Each label set is read once."""

    label_sets: Sequence[Mapping[str, str]]
    names: NodeNames
    node: str | None
    join: GpuJoin = field(default_factory=GpuJoin)
    nodes: dict[int, tuple[str, bool | None]] = field(default_factory=dict)
    gpus: dict[int, GpuLabels] = field(default_factory=dict)

    def learn(self, sets: Iterable[NDArray[np.int32]]) -> None:
        """Learn from these label sets which names belong to one GPU."""
        for codes in sets:
            for code in np.unique(codes).tolist():
                if code in self.gpus:
                    continue
                try:
                    self.join.learn(self.find_node(code)[0], self.find_gpu(code))
                except ValueError:
                    continue  # its points are refused when they are placed

    def find_node(self, code: int) -> tuple[str, bool | None]:
        """Raises ValueError if the labels name two nodes."""
        found = self.nodes.get(code)
        if found is None:
            found = self.nodes[code] = self.names.find(self.label_sets[code], node=self.node)
        return found

    def find_gpu(self, code: int) -> GpuLabels:
        """Raises BadGpuLabel."""
        found = self.gpus.get(code)
        if found is None:
            found = self.gpus[code] = read_gpu_labels(self.label_sets[code])
        return found

    def place(self, code: int, *, table: str, device: Device) -> tuple[str, str | None, bool | None]:
        """Return node, device (None: not named) and unknown_node of a label set. Raises ValueError, BadGpuLabel."""
        node, is_unknown = self.find_node(code)
        labels = self.label_sets[code]
        if table == GPU_TABLE:
            return node, self.join.name_device(node, self.find_gpu(code)), is_unknown
        if table in _SERVICE_TABLES and is_unknown is not False and not any(labels.get(each) for each in HOST_LABELS):
            node, is_unknown = self.names.settle(self.node) if self.node else ("", None)
        return node, device.name(labels), is_unknown

    def identify(self, code: int, *, table: str, node: str) -> dict[str, object]:
        """Return the values of the table's label columns."""
        labels = self.label_sets[code]
        if table == GPU_TABLE:
            gpu = self.find_gpu(code)
            uuid, address = self.join.complete(node, gpu)
            return {
                "gpu_uuid": uuid,
                "pci_address": address,
                "gpu_index": gpu.gpu_index,
                "mig_instance": gpu.mig_instance,
                **dict(gpu.texts),
            }
        if table == "application_telemetry":
            job = label(labels, ("hpc_job", "slurm_job_id", "job_id", "exported_job", "job"))
            return {"job": job, **read_holder(labels)}
        return {"link_layer": label(labels, ("link_layer",))}


_SHARED = frozenset({"job", "namespace", "pod", "container"})
"""Label columns of which one device may have several at once."""
_UNSEEN, _NOWHERE = -2, -1

_Identity = tuple[object, ...]
"""The values of the table's label columns, in their order; None: not stated."""


@dataclass(slots=True, kw_only=True)
class TableWork:
    """One table while it is filled."""

    table: str
    layout: Layout
    sites: Sites
    units: dict[tuple[str, str], int] = field(default_factory=dict)
    """(node, device) -> number."""
    unknown: list[bool | None] = field(default_factory=list)
    """unknown_node of each unit."""
    identities: dict[_Identity, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """The table's label columns."""
    seen: dict[Device, tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]] = field(default_factory=dict)
    """Per way of naming devices and label set: unit, identity, fate."""

    def __post_init__(self) -> None:
        table = TABLES[self.table]
        fixed = {*table.key, "time", "unknown_node"}
        self.columns = tuple(each.name for each in table.columns if each.quantity is None and each.name not in fixed)

    def fill(
        self,
        chosen: Sequence[tuple[int, Way, Ints]],
        *,
        time_codes: NDArray[np.int32],
        distinct_times: Ints,
        time_fates: NDArray[np.uint8],
        fates: NDArray[np.uint8],
        way_codes: NDArray[np.uint16],
    ) -> pa.Table | None:
        """Return the table's rows, or None without any; write down each point's fate."""
        block = self.layout.block
        for _, way, series in chosen:
            self._read_sets(way.device, self.layout.sets[series])
        places = self._sort_units()
        width = len(distinct_times)
        placed: list[Placed] = []
        for code, way, series in chosen:
            units, identities, set_fates = self.seen[way.device]
            sets = self.layout.sets[series]
            points, place = self.layout.points_of(series)
            raw = block.values[points]
            converted = way.gate.convert(raw)
            before = np.where(set_fates[sets][place] == Fate.ACCEPTED, time_fates[points], set_fates[sets][place])
            verdict = way.gate.judge(raw, converted, before)
            is_good = verdict == Fate.ACCEPTED
            changed = (fates[points] != Fate.ACCEPTED) & (verdict != Fate.IGNORED)
            fates[points[changed]] = verdict[changed]
            way_codes[points[changed]] = code
            if not is_good.all():
                points, place, converted = points[is_good], place[is_good], converted[is_good]
            if len(points):
                placed.append(
                    Placed(
                        way=way,
                        keys=places[units[sets]].astype(np.int64)[place] * width + time_codes[points],
                        values=converted,
                        points=points,
                        series=(self.layout.name_codes[series].astype(np.int64) * len(self.layout.label_sets) + sets)[
                            place
                        ],
                        identities=identities[sets][place],
                    )
                )
        if not placed:
            return None
        return self._build(placed, width=width, distinct_times=distinct_times, time_codes=time_codes, fates=fates)

    def _read_sets(self, device: Device, sets: NDArray[np.int32]) -> None:
        if device not in self.seen:
            count = len(self.layout.label_sets)
            self.seen[device] = (
                np.full(count, _UNSEEN, np.int32),
                np.zeros(count, np.int32),
                np.zeros(count, np.uint8),
            )
        units, identities, fates = self.seen[device]
        for code in np.unique(sets[units[sets] == _UNSEEN]).tolist():
            units[code] = _NOWHERE
            try:
                node, name, is_unknown = self.sites.place(code, table=self.table, device=device)
            except BadGpuLabel:
                fates[code] = Fate.BAD_PCI_ADDRESS
                continue
            except ValueError:
                fates[code] = Fate.TWO_NODES
                continue
            if name is None:
                fates[code] = Fate.NO_DEVICE
                continue
            fates[code] = Fate.ACCEPTED
            unit = self.units.setdefault((node, name), len(self.units))
            if unit == len(self.unknown):
                self.unknown.append(is_unknown)
            units[code] = unit
            if self.columns:
                said = self.sites.identify(code, table=self.table, node=node)
                identity = tuple(said.get(column) for column in self.columns)
                identities[code] = self.identities.setdefault(identity, len(self.identities))

    def _sort_units(self) -> Ints:
        """Return the place of each unit in the order of (node, device)."""
        places = np.zeros(len(self.units) + 1, np.int64)
        for place, unit in enumerate(sorted(self.units)):
            places[self.units[unit]] = place
        return places

    def _build(
        self,
        placed: Sequence[Placed],
        *,
        width: int,
        distinct_times: Ints,
        time_codes: NDArray[np.int32],
        fates: NDArray[np.uint8],
    ) -> pa.Table:
        rows = number_rows(placed, grid_size=len(self.units) * width)
        count = len(rows.keys)
        row_units, row_times = rows.keys // width, distinct_times[rows.keys % width]
        schema = TABLES[self.table].arrow()
        ordered = sorted(self.units)
        unknown = [self.unknown[self.units[unit]] for unit in ordered]
        taken = pa.array(row_units)
        arrays: dict[str, pa.Array] = {
            "node": pa.array([node for node, _ in ordered], pa.string()).take(taken),
            "device": pa.array([device for _, device in ordered], pa.string()).take(taken),
            "time": pa.array(row_times * 1000, pa.int64()).cast(schema.field("time").type),
            "unknown_node": pa.array(unknown, pa.bool_()).take(taken),
        }
        by_column: dict[str, list[tuple[Placed, Ints]]] = {}
        for each, of in zip(placed, rows.of, strict=True):
            by_column.setdefault(each.way.column, []).append((each, of))
        for column, parts in by_column.items():
            cells = fill_column(parts, row_count=count, merge=parts[0][0].way.gate.quantity.merge)
            fates[cells.conflicting] = Fate.CONFLICTING_DUPLICATE
            is_full = bool(cells.is_there.all())
            arrays[column] = pa.array(cells.values, pa.float64(), mask=None if is_full else ~cells.is_there)
        if self.columns:
            met = [(each.identities, of) for each, of in zip(placed, rows.of, strict=True)]
            met += self._unplaced(rows.keys, width=width, time_codes=time_codes)
            arrays |= self._label_columns(met, count=count)
        # Most columns of a narrow answer are empty: they share one array for each type.
        empty = {kind: pa.nulls(count, kind) for kind in {field.type for field in schema}}
        columns = {field.name: arrays.get(field.name, empty[field.type]) for field in schema}
        return pa.table(columns, schema=schema)

    def _unplaced(
        self, row_keys: Ints, *, width: int, time_codes: NDArray[np.int32]
    ) -> list[tuple[NDArray[np.int32], Ints]]:
        """Return what series without a column say of GPUs that have rows, at the rows' own times."""
        if self.table != GPU_TABLE:
            return []
        found: list[tuple[NDArray[np.int32], Ints]] = []
        places = self._sort_units()
        count = len(self.layout.label_sets)
        units, numbers = np.full(count, _UNSEEN, np.int64), np.zeros(count, np.int32)
        for series in self.layout.unplaced_gpu_series:
            sets = self.layout.sets[series]
            for code in np.unique(sets[units[sets] == _UNSEEN]).tolist():
                units[code] = _NOWHERE
                try:
                    node, device, _ = self.sites.place(code, table=self.table, device=Device(parts=()))
                    said = self.sites.identify(code, table=self.table, node=node)
                except ValueError:
                    continue
                unit = None if device is None else self.units.get((node, device))
                if unit is None:
                    continue
                identity = tuple(said.get(column) for column in self.columns)
                units[code] = places[unit]
                numbers[code] = self.identities.setdefault(identity, len(self.identities))
            useful = units[sets] >= 0
            points, place_of = self.layout.points_of(series[useful])
            keys = units[sets][useful][place_of] * width + time_codes[points]
            rows = np.minimum(np.searchsorted(row_keys, keys), len(row_keys) - 1)
            is_row = row_keys[rows] == keys
            found.append((numbers[sets][useful][place_of][is_row], rows[is_row]))
        return found

    def _label_columns(self, met: Sequence[tuple[NDArray[np.int32], Ints]], *, count: int) -> dict[str, pa.Array]:
        of_rows, sets = settle_identities(met, row_count=count)
        listed = list(self.identities)
        used, numbers = np.unique(of_rows, return_inverse=True)
        merged = [_unite([listed[each] for each in sets[number]], columns=self.columns) for number in used.tolist()]
        schema = TABLES[self.table].arrow()
        taken = pa.array(numbers)
        return {
            column: pa.array([identity[place] for identity in merged], schema.field(column).type).take(taken)
            for place, column in enumerate(self.columns)
        }


def _unite(identities: Sequence[_Identity], *, columns: Sequence[str]) -> _Identity:
    """Return what several label sets of one row say together. Several pods are listed; a contradiction says nothing."""
    if len(identities) == 1:
        return identities[0]
    united: list[object] = []
    for column, values in zip(columns, zip(*identities, strict=True), strict=True):
        said = {value for value in values if value is not None}
        if len(said) > 1 and column in _SHARED:
            united.append(",".join(sorted(map(str, said))))
        else:
            united.append(said.pop() if len(said) == 1 else None)
    return tuple(united)
