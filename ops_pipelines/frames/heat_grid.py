"""An hour of one column as a grid, nodes x time: gauges as they are, counters as rates. Computes; draws nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.frames.row_order import RowOrder, microseconds, natural_order, numbers, order_rows, text_codes

TIME_BINS = 120
"""Half a minute each in an hour; coarser grids are binned from this one."""
_HOUR = 3_600_000_000

Values = Callable[[pa.Table, RowOrder | None], NDArray[np.float64]]
"""Rows of a table -> one number a row, NaN for none."""


class Fold(Enum):
    """What becomes of many values in one cell."""

    MAX = "highest"
    MEAN = "mean"
    COUNT = "count"
    """Rows; a cell without any holds 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Values by entity and stretch of time; NaN where there are none."""

    names: tuple[str, ...]
    """One a row, in the order of people."""
    values: NDArray[np.float64]
    start: datetime
    end: datetime
    fold: Fold

    def coarser(self, *, rows: int, columns: int) -> "Grid":
        """Return this grid with at most `rows` rows; `columns` must divide the columns that are there."""
        values = self.values.reshape(len(self.names), columns, -1)
        values = _folded(values, self.fold, axis=2)
        names = self.names
        if len(names) > rows:
            edges = np.linspace(0, len(names), rows + 1).round().astype(np.int64)
            spans = list(pairwise(edges))
            values = np.stack([_folded(values[low:high], self.fold, axis=0) for low, high in spans])
            names = tuple(f"{names[low]} ... {names[high - 1]}" for low, high in spans)
        return Grid(names=names, values=values, start=self.start, end=self.end, fold=self.fold)


def _folded(values: NDArray[np.float64], fold: Fold, *, axis: int) -> NDArray[np.float64]:
    """Return many cells as one; NaN where more than half of them hold nothing."""
    if fold is Fold.COUNT:
        return np.asarray(values.sum(axis=axis))
    known = np.isfinite(values)
    counts = known.sum(axis=axis)
    is_seen = counts * 2 >= values.shape[axis]
    if fold is Fold.MAX:
        return np.where(is_seen, np.where(known, values, -np.inf).max(axis=axis), np.nan)
    return np.where(is_seen, np.where(known, values, 0.0).sum(axis=axis) / np.maximum(counts, 1), np.nan)


def grid_of(rows: pa.Table, values: NDArray[np.float64], *, by: str, fold: Fold) -> Grid | None:
    """Return the grid of `values` (one a row of the table) by the texts of a column; None if no row has a value."""
    times = microseconds(rows.column("time"))
    codes, words = text_codes(rows.column(by))
    kept = np.isfinite(values) & (codes >= 0) & (times > np.iinfo(np.int64).min)
    if not kept.all():
        values, times, codes = values[kept], times[kept], codes[kept]
    if not len(values):
        return None
    start = int(times.min()) // _HOUR * _HOUR
    end = (int(times.max()) // _HOUR + 1) * _HOUR
    spoken = [word or "(none)" for word in words.to_pylist()]
    seen = set(np.unique(codes).tolist())
    names = natural_order(spoken[code] for code in seen)
    place = {name: number for number, name in enumerate(names)}
    row_of_code = np.array([place.get(word, 0) for word in spoken], dtype=np.int64)
    cells = row_of_code[codes] * TIME_BINS + (times - start) * TIME_BINS // (end - start)
    size = len(names) * TIME_BINS
    return Grid(
        names=tuple(names),
        values=_fold_cells(cells, values, size, fold).reshape(len(names), TIME_BINS),
        start=datetime.fromtimestamp(start / 1e6, UTC),
        end=datetime.fromtimestamp(end / 1e6, UTC),
        fold=fold,
    )


def _fold_cells(cells: NDArray[np.int64], values: NDArray[np.float64], size: int, fold: Fold) -> NDArray[np.float64]:
    if fold is Fold.MAX:
        highest = np.full(size, -np.inf)
        np.maximum.at(highest, cells, values)
        return np.where(np.isfinite(highest), highest, np.nan)
    counts = np.bincount(cells, minlength=size)
    if fold is Fold.COUNT:
        return counts.astype(np.float64)
    sums = np.bincount(cells, weights=values, minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def gauge(column: str) -> Values:
    """Return the values of a column."""
    return lambda rows, _: numbers(rows.column(column))


def rate(column: str) -> Values:
    """Return what a counter grew by, per second, since the row before of its series; after a restart, since zero."""

    def of(rows: pa.Table, order: RowOrder | None) -> NDArray[np.float64]:
        known = order if order is not None else order_rows(rows, key=("node", "device"))
        grown, seconds = growth(numbers(rows.column(column)), known)
        return np.where(seconds > 0, grown / np.maximum(seconds, 1e-6), np.nan)

    return of


def busy_share(*, idle: str, others: tuple[str, ...]) -> Values:
    """Return the share of all time that was not idle, out of counters of seconds."""

    def of(rows: pa.Table, order: RowOrder | None) -> NDArray[np.float64]:
        known = order if order is not None else order_rows(rows, key=("node", "device"))
        idled, _ = growth(numbers(rows.column(idle)), known)
        worked = [np.nan_to_num(growth(numbers(rows.column(name)), known)[0]) for name in others]
        whole = idled + sum(worked)
        return np.where(whole > 0, 1 - idled / np.maximum(whole, 1e-9), np.nan)

    return of


def growth(values: NDArray[np.float64], order: RowOrder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return by how much each row's counter grew since the last row that has it, and in how many seconds; else NaN."""
    grown, seconds = np.full(len(values), np.nan), np.full(len(values), np.nan)
    ordered = order.in_order(values)
    at = np.flatnonzero(np.isfinite(ordered))
    known, series, times = ordered[at], order.series[at], order.times[at]
    same = series[1:] == series[:-1]
    more = known[1:] - known[:-1]
    more = np.where(more < 0, known[1:], more)
    where = at[1:] if order.order is None else order.order[at[1:]]
    grown[where] = np.where(same, more, np.nan)
    seconds[where] = np.where(same, (times[1:] - times[:-1]) / 1e6, np.nan)
    return grown, seconds
