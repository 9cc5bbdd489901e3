"""A block with its names, labels and times numbered: which node and GPU each label set means, and until when.

Numbers instead of texts are what makes the rest fast; nothing is judged here.

Series that name a GPU by its index or address are joined with those that name its UUID (`gpu_labels.GpuJoin`), within a
block. A live cycle is a block of one time, an answer for an hour one of many: cut so, both join the same.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.lake.metrics.gpu_labels import NAMING_LABELS, GpuJoin, GpuLabels, label, read_gpu_labels, read_holder
from ops_pipelines.lake.metrics.series import SeriesBlock
from ops_pipelines.lake.metrics.ways import Device, Ints, Way, ways_by_name
from ops_pipelines.lake.node_names import HOST_LABELS, NodeNames

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
