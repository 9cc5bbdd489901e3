"""A block cut where the names of its GPUs change: what an index stands for at one time says nothing of another time.

Series that name a GPU by its index or address are joined with those that name its UUID (`gpu_labels.GpuJoin`), within
a block. A live cycle is a block of one time, an answer for an hour one of many: cut so, both join the same.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.metrics.gpu_labels import NAMING_LABELS, GpuLabels, read_gpu_labels
from ops_pipelines.frames.metrics.layout import number_label_sets, number_times
from ops_pipelines.frames.metrics.series import SeriesBlock


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
