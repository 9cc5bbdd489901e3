"""Several devices of a node -> one number of the node: counters added up, the least, the most.

A sum that lacks a device is no sum: a port that was not read must not look like traffic that stopped.
"""

from collections.abc import Sequence

import numpy as np

from ops_pipelines.frames.panels.detection import held_lately
from ops_pipelines.frames.panels.grid import Grid, Ints, Matrix, Name

REMEMBERED_SECONDS = 300
"""A device that was seen within so long is expected; one that is away for longer is gone, as a share unmounted."""


def nodes_of(names: Sequence[Name]) -> tuple[list[str], Ints]:
    """Return the nodes of parts that stand node by node, and where the parts of each begin."""
    owners = [node for node, _ in names]
    starts = [place for place, node in enumerate(owners) if place == 0 or node != owners[place - 1]]
    return [owners[start] for start in starts], np.array(starts, dtype=np.int64)


def summed_counters(samples: Matrix, *, starts: Ints, grid: Grid) -> Matrix:
    """Return for each node a counter that grows as all its devices together do; shape (times, nodes).

    NaN where a device that is expected has no sample. A device that appears adds what it counts from then on. Where
    the counter of a device falls, the node's begins anew at 0: what was counted in between is not known.
    """
    count = len(samples)
    if not count:
        return np.full((0, len(starts)), np.nan)
    known = ~np.isnan(samples)
    newest = np.maximum.accumulate(np.where(known, np.arange(count)[:, None], -1), axis=0)
    filled = np.where(newest >= 0, np.take_along_axis(samples, np.maximum(newest, 0), axis=0), np.nan)
    lately = grid.row_count_of(REMEMBERED_SECONDS)
    grown = np.zeros(samples.shape)
    grown[1:] = np.nan_to_num(filled[1:] - filled[:-1])
    # One that was away for long is as good as new: what it counted meanwhile did not happen in one step.
    grown[1:][np.arange(1, count)[:, None] - newest[:-1] > lately] = 0
    has_fallen = np.add.reduceat(grown < 0, starts, axis=1, dtype=np.int64) > 0
    total = np.cumsum(np.add.reduceat(np.maximum(grown, 0), starts, axis=1), axis=0)
    first = np.add.reduceat(np.nan_to_num(filled[_first_rows(known, starts), np.arange(samples.shape[1])]), starts)
    restart = np.maximum.accumulate(np.where(has_fallen, np.arange(count)[:, None], -1), axis=0)
    since = np.take_along_axis(total, np.maximum(restart, 0), axis=0)
    summed = np.where(restart >= 0, total - since, total + first)
    expected = held_lately(known, lately)
    there, wanted = (np.add.reduceat(flags, starts, axis=1, dtype=np.int64) for flags in (known, expected))
    summed[(there == 0) | (there < wanted)] = np.nan
    return summed


def least(samples: Matrix, *, starts: Ints) -> Matrix:
    """Return the least known value over the devices of each node; NaN where none is known."""
    found: Matrix = np.fmin.reduceat(samples, starts, axis=1)
    return found


def most(samples: Matrix, *, starts: Ints) -> Matrix:
    """Return the greatest known value over the devices of each node; NaN where none is known."""
    found: Matrix = np.fmax.reduceat(samples, starts, axis=1)
    return found


def _first_rows(known: Matrix, starts: Ints) -> Ints:
    """Return for each device the row at which its node is first known: what it has counted by then is the beginning."""
    any_known = np.add.reduceat(known, starts, axis=1, dtype=np.int64) > 0
    rows = np.where(any_known.any(axis=0), any_known.argmax(axis=0), 0)
    return np.asarray(np.repeat(rows, np.diff(starts, append=known.shape[1])), dtype=np.int64)
