"""The ways from a series name into columns, and what becomes of points that were placed: sorted, unique.

Works on whole columns. What a point means was settled before, by `pages`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.core.sources import Query
from ops_pipelines.lake.metrics.gpu_labels import shown
from ops_pipelines.lake.metrics.series import Gate
from ops_pipelines.lake.quantities import Merge, Quantity, SeriesName, read_quantities

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
