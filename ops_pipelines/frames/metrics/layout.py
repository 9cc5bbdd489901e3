"""A block with its names, label sets and times numbered, and its series sorted into the ways that they go.

Numbers instead of texts are what makes the rest fast; nothing is judged here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.metrics.cells import Ints
from ops_pipelines.frames.metrics.series import SeriesBlock
from ops_pipelines.frames.metrics.ways import Way, ways_by_name

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
