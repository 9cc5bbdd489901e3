"""Hours of one column as a grid, nodes x time: gauges as they are, counters as rates. Computes; draws nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.lake.hours import RowOrder, microseconds, natural_order, numbers, order_rows, text_codes

TIME_BINS = 120
"""At most: half a minute each in an hour. Coarser grids are binned from this one."""
_BIN_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, TIME_BINS)
_ENTITIES_ENOUGH = 64
"""How often there are samples is judged on so many entities."""
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
    """Values by entity and interval of time; NaN where there are none."""

    names: tuple[str, ...]
    """One a row, in the order of people."""
    values: NDArray[np.float64]
    start: datetime
    end: datetime
    fold: Fold

    def coarser(self, *, rows: int, columns: int) -> "Grid":
        """Return this grid with at most so many rows and columns."""
        values = _narrowed(self.values, columns, self.fold, axis=1)
        names = self.names
        if len(names) > rows:
            names = tuple(f"{names[low]} ... {names[high - 1]}" for low, high in _spans(len(names), rows))
        return Grid(
            names=names,
            values=_narrowed(values, rows, self.fold, axis=0),
            start=self.start,
            end=self.end,
            fold=self.fold,
        )


def _spans(length: int, count: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, length, count + 1).round().astype(np.int64)
    return list(pairwise(edges.tolist()))


def _narrowed(values: NDArray[np.float64], count: int, fold: Fold, *, axis: int) -> NDArray[np.float64]:
    length = values.shape[axis]
    if length <= count:
        return values
    spans = _spans(length, count)
    return np.stack([_folded(values.take(range(low, high), axis), fold, axis=axis) for low, high in spans], axis)


def join_hours(grids: Mapping[datetime, Grid]) -> Grid:
    """Return the grids of single hours as one, in order of time; hours that are not there hold nothing.

    Raises ValueError without any.
    """
    if not grids:
        raise ValueError("there are no hours to join")
    start, end = min(grids), max(grids) + timedelta(hours=1)
    count = int((end - start) / timedelta(hours=1))
    width = max(1, TIME_BINS // count)
    fold = next(iter(grids.values())).fold
    names = natural_order({name for grid in grids.values() for name in grid.names})
    place = {name: number for number, name in enumerate(names)}
    values = np.full((len(names), count * width), 0.0 if fold is Fold.COUNT else np.nan)
    for hour, grid in grids.items():
        coarse = _narrowed(grid.values, width, fold, axis=1)
        first = int((hour - start) / timedelta(hours=1)) * width
        columns = np.arange(width) * coarse.shape[1] // width
        values[[place[name] for name in grid.names], first : first + width] = coarse[:, columns]
    return Grid(names=tuple(names), values=values, start=start, end=end, fold=fold)


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
    # Events have no rhythm; samples must meet a bin each, or every second bin would seem to lack data.
    bins = TIME_BINS if fold is Fold.COUNT else _bin_count(times - start, codes, span=end - start)
    cells = row_of_code[codes] * bins + (times - start) * bins // (end - start)
    size = len(names) * bins
    return Grid(
        names=tuple(names),
        values=_fold_cells(cells, values, size, fold).reshape(len(names), bins),
        start=datetime.fromtimestamp(start / 1e6, UTC),
        end=datetime.fromtimestamp(end / 1e6, UTC),
        fold=fold,
    )


def _bin_count(since: NDArray[np.int64], codes: NDArray[np.int64], *, span: int) -> int:
    """Return into how many parts an interval can be cut so that anyone who is sampled has a sample in each."""
    some = codes < _ENTITIES_ENOUGH
    places = np.unique(codes[some].astype(np.int64) * span + since[some])
    gaps = np.diff(places)[np.diff(places // span) == 0]
    sampled = span / float(np.median(gaps)) if len(gaps) else 1.0
    return max(count for count in _BIN_COUNTS if count <= max(sampled, 1.0) * 1.01)


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
