"""How far parts stand apart from their neighbours: medians and spreads over groups, over many grid times at once.

Numbers only. Who is whose neighbour, and how far is too far, is for each detector in `detectors` to say.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.panels.panel import Flags, Numbers

MAD_TO_SIGMA = 1.4826
"""Of a normal distribution, the standard deviation over the median absolute deviation."""
_CELLS_AT_ONCE = 4_000_000
"""Bounds the memory of comparisons in which each part has other peers."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A partition of columns."""

    index: NDArray[np.intp]
    """Column -> its group."""
    members: NDArray[np.intp]
    """(groups, size of the largest) -> column; -1 where a group is smaller."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sizes(self) -> NDArray[np.intp]:
        return np.asarray((self.members >= 0).sum(axis=1), dtype=np.intp)


def group_by(labels: Sequence[Hashable]) -> Groups:
    """Return the columns grouped by equal label, groups in the order of their first column."""
    order: dict[Hashable, list[int]] = {}
    for column, label in enumerate(labels):
        order.setdefault(label, []).append(column)
    width = max(map(len, order.values()), default=0)
    index = np.zeros(len(labels), dtype=np.intp)
    members = np.full((len(order), width), -1, dtype=np.intp)
    for group, columns in enumerate(order.values()):
        index[columns] = group
        members[group, : len(columns)] = columns
    return Groups(index, members)


def gathered(values: Numbers, groups: Groups) -> Numbers:
    """Return values (times, columns) as (times, groups, members); NaN where a group is smaller than the largest."""
    members = groups.members
    if np.array_equal(members.ravel(), np.arange(values.shape[1])):
        return values.reshape(len(values), *members.shape)  # the usual case: eight GPUs a node, one node after another
    found = values[:, members]
    found[:, members < 0] = np.nan
    return found


def group_count(flags: Flags, groups: Groups) -> NDArray[np.int32]:
    """Return (times, groups): for how many members the flag holds."""
    counts = np.zeros((len(flags), len(groups)), dtype=np.int32)
    if groups.members.shape[1] > len(groups):
        for group, columns in enumerate(groups.members):
            counts[:, group] = flags[:, columns[columns >= 0]].sum(axis=1)
        return counts
    for columns in groups.members.T:
        counts += flags[:, columns] & (columns >= 0)
    return counts


def median(values: Numbers) -> Numbers:
    """Return the median along the last axis, NaN left out; NaN where nothing is left."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan, dtype=values.dtype)
    in_order = np.sort(values, axis=-1)  # NaN comes last
    counts = values.shape[-1] - np.isnan(in_order).sum(axis=-1)
    low = np.maximum(counts - 1, 0) // 2
    high = np.where(counts > 0, counts // 2, 0)
    pair = np.take_along_axis(in_order, np.stack((low, high), axis=-1), axis=-1)
    return np.asarray((pair[..., 0] + pair[..., 1]) / 2, dtype=values.dtype)


def group_median(values: Numbers, groups: Groups) -> Numbers:
    """Return (times, groups): the median of each group, NaN left out; NaN where a group has no sample."""
    return median(gathered(values, groups))


def robust_z(values: Numbers, groups: Groups, *, least_spread: float) -> Numbers:
    """Return how many robust standard deviations each value lies above the median of its group.

    The spread is 1.4826 x MAD, and never less than `least_spread` (in the unit of the values): peers that agree to the
    last digit would make an outlier of any noise. NaN where the value is NaN.
    """
    members = gathered(values, groups)
    middle = median(members)
    spread = np.maximum(median(np.abs(members - middle[..., None])) * MAD_TO_SIGMA, least_spread)
    return np.asarray((values - middle[:, groups.index]) / spread[:, groups.index], dtype=values.dtype)


def excess_over_busier(
    values: Numbers, *, work: Sequence[Numbers], groups: Groups, candidates: Flags, slack_ratio: float, peer_count: int
) -> Numbers:
    """Return by how much each value exceeds the median of the peers that work at least as hard; NaN elsewhere.

    Peers are the others of the group of whom each measure of work is at least (1 - `slack_ratio`) of one's own: who
    gives off more than its busier neighbours has no work to excuse it. NaN where it is no candidate, and with fewer
    than `peer_count` such peers. All matrices are (times, columns).
    """
    excess = np.full(values.shape, np.nan, dtype=np.float32)
    rows, columns = np.nonzero(candidates & ~np.isnan(values))
    step = max(1, _CELLS_AT_ONCE // max(1, groups.members.shape[1]))
    for first in range(0, len(rows), step):
        row, column = rows[first : first + step], columns[first : first + step]
        peers = groups.members[groups.index[column]]
        beside = row[:, None]
        unfit = (peers < 0) | (peers == column[:, None])
        for measure in work:
            unfit |= ~(measure[beside, peers] >= measure[row, column][:, None] * (1 - slack_ratio))
        theirs = np.where(unfit, np.nan, values[beside, peers])
        enough = (~np.isnan(theirs)).sum(axis=1) >= peer_count
        excess[row, column] = np.where(enough, values[row, column] - median(theirs), np.nan)
    return excess


def above_least(values: Numbers, groups: Groups, *, limit: float) -> Flags:
    """Return where a value exceeds the least of its group by `limit` or more.

    Whoever exceeds the median of any part of its group by that much does this too: a cheap way to candidates.
    """
    if not groups.members.size:
        return np.zeros(values.shape, dtype=bool)
    least = np.fmin.reduce(gathered(values, groups), axis=2)
    return np.asarray(values - least[:, groups.index] >= limit)


def most_of_group(flags: Flags, known: Flags, groups: Groups, *, least: int) -> Flags:
    """Return (times, groups): at least `least` known members, and at least half of them, have the flag."""
    if not flags.any():
        return np.zeros((len(flags), len(groups)), dtype=bool)
    counts = group_count(flags & known, groups)
    return np.asarray((counts >= least) & (2 * counts >= group_count(known, groups)))
