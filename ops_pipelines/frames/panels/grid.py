"""Rows of a table -> cells of matrices: which grid time and which part each row belongs to, in whole columns.

Here only where a value goes. Which columns a layer has, and what becomes of several devices, is `tables`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.lake.hours import microseconds
from ops_pipelines.lake.quantities import Kind
from ops_pipelines.lake.schema import TABLES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Matrix = NDArray[np.floating]
Name = tuple[str, str]
"""Node and device of a part."""
NodeOrder = Callable[[str], tuple[int, str]]
"""What nodes are sorted by."""
_NO_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Evenly spaced times: whole multiples of the step since 1970."""

    first_seconds: int
    step_seconds: int
    count: int

    @classmethod
    def between(cls, start: datetime, end: datetime, *, step_seconds: int) -> "Grid":
        """Return the grid times in [start, end). Raises ValueError for a step below a second."""
        if step_seconds < 1:
            raise ValueError(f"the step is {step_seconds} s; expected 1 or more")
        first, after = (-(-_microseconds(at) // (step_seconds * 1_000_000)) for at in (start, end))
        return cls(first_seconds=first * step_seconds, step_seconds=step_seconds, count=max(0, after - first))

    @property
    def times(self) -> Ints:
        """Return the grid times, seconds since 1970."""
        return self.first_seconds + self.step_seconds * np.arange(self.count, dtype=np.int64)

    def rows_of(self, times: Ints) -> Ints:
        """Return for times in microseconds the row of the grid time at which each is known: the first one that is not
        before it. -1 outside the grid."""
        since = np.where(times == _NO_TIME, 0, times) - self.first_seconds * 1_000_000
        rows: Ints = -(-since // (self.step_seconds * 1_000_000))
        rows[(times == _NO_TIME) | (rows < 0) | (rows >= self.count)] = -1
        return rows

    def edge_rows(self, times: Ints, *, missing: int) -> Ints:
        """Return for times in microseconds the row of the first grid time that is not before it, from 0 to `count`;
        `missing` for those without a time."""
        since = np.where(times == _NO_TIME, 0, times) - self.first_seconds * 1_000_000
        rows: Ints = np.clip(-(-since // (self.step_seconds * 1_000_000)), 0, self.count)
        rows[times == _NO_TIME] = missing
        return rows

    def row_count_of(self, seconds: float) -> int:
        return max(1, round(seconds / self.step_seconds))


class Parts(Protocol):
    """What rows of a table say on a grid, a column a part."""

    @property
    def names(self) -> tuple[Name, ...]:
        """Return the parts in order."""
        ...

    @property
    def row_count(self) -> int:
        """Return how many grid times there are."""
        ...

    def matrix(self, column: str) -> Matrix | None:
        """Return a quantity as (times, parts), not to be written to; None where no row has a value of it."""
        ...

    def newest_texts(self, column: str) -> list[str]:
        """Return for each part the newest text of a label; `` where no row has one."""
        ...

    def cells_of_text(self, column: str) -> tuple[Ints, list[str]]:
        """Return for each cell the number of what its newest row says, and the texts by their number.

        -1 without a row, and as many as there are texts where the row has none.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """The rows of a table that lie on the grid, each with its cell, so ordered that the last row of a cell counts."""

    name: str
    table: pa.Table
    rows: Ints
    """Grid row of each row of the table."""
    columns: Ints
    """Part of each row of the table: place in `names`."""
    names: tuple[Name, ...]
    row_count: int

    def matrix(self, column: str) -> Matrix | None:
        if column not in self.table.column_names:
            return None
        values = float_values(self.table[column])
        known = ~np.isnan(values)
        if not known.any():
            return None
        matrix = np.full((self.row_count, len(self.names)), np.nan, dtype=precision_of(self.name, column))
        if known.all():
            matrix[self.rows, self.columns] = values
        else:
            matrix[self.rows[known], self.columns[known]] = values[known]
        return matrix

    def newest_texts(self, column: str) -> list[str]:
        return newest_texts(self.table, column, groups=self.columns, count=len(self.names))

    def cells_of_text(self, column: str) -> tuple[Ints, list[str]]:
        codes, words = codes_of(self.table[column]) if column in self.table.column_names else (self.rows * 0, [])
        cells = np.full((self.row_count, len(self.names)), -1, dtype=np.int64)
        cells[self.rows, self.columns] = np.where(codes < 0, len(words), codes)
        return cells, words


Rename = Callable[[Sequence[Name], Callable[[str], Sequence[str]]], Sequence[Name]]
"""The name of each unit, what tells the newest text of a column for each of them -> the name of the part of each."""


def place(table: pa.Table, *, name: str, grid: Grid, node_order: NodeOrder, rename: Rename | None = None) -> Placed:
    """Return where each row of the table `name` goes; rows outside the grid are left out.

    `rename` gives the part of each (node, device). Two may become one, as a GPU that two exporters name differently:
    then the newest value of a cell counts, and of one time that of the device that is last by name.
    """
    rows = grid.rows_of(microseconds(table["time"]))
    if (rows < 0).any():
        inside = rows >= 0
        table, rows = table.filter(pa.array(inside)), rows[inside]
    found, of_row = units_of(table)
    newest = partial(newest_texts, table, groups=of_row, count=len(found))
    renamed = found if rename is None else rename(found, newest)
    names = tuple(sorted(set(renamed), key=lambda each: (node_order(each[0]), each[1])))
    position = {each: number for number, each in enumerate(names)}
    columns = np.array([position[each] for each in renamed], dtype=np.int64)[of_row]
    cells = rows * max(len(names), 1) + columns
    if len(cells) and np.bincount(cells).max() > 1:
        by_device = np.argsort(np.argsort(np.array([device for _, device in found]), kind="stable"))
        order = np.lexsort((by_device[of_row], microseconds(table["time"])))
        table, rows, columns = table.take(pa.array(order)), rows[order], columns[order]
    return Placed(name=name, table=table, rows=rows, columns=columns, names=names, row_count=grid.count)


def units_of(table: pa.Table) -> tuple[list[Name], Ints]:
    """Return each node and device, and for each row which of them it is of."""
    nodes, node_words = codes_of(table["node"])
    devices, device_words = codes_of(table["device"])
    width = max(len(device_words), 1)
    units, of_row = np.unique(nodes * width + devices, return_inverse=True)
    return [(node_words[unit // width], device_words[unit % width]) for unit in units.tolist()], of_row


def newest_texts(table: pa.Table, column: str, *, groups: Ints, count: int) -> list[str]:
    """Return for each of `count` groups of rows the text of the newest row that has one; `` if none has."""
    if column not in table.column_names:
        return [""] * count
    codes, words = codes_of(table[column])
    order = np.argsort(microseconds(table["time"]), kind="stable")
    order = order[codes[order] >= 0]
    newest = np.full(count, -1, dtype=np.int64)
    newest[groups[order]] = codes[order]
    return [words[code] if code >= 0 else "" for code in newest.tolist()]


def codes_of(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """Return a number for each text, -1 for null, and the texts by their number."""
    if pa.types.is_dictionary(column.type):
        encoded = column.unify_dictionaries().combine_chunks()
    else:
        encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    return codes, encoded.dictionary.to_pylist()


def float_values(column: pa.ChunkedArray) -> Floats:
    """Return numbers, NaN for null."""
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def precision_of(table: str, column: str) -> type[np.float32 | np.float64]:
    """Return what the numbers of a column need: counters, states and times every digit, gauges not."""
    quantity = TABLES[table].by_name[column].quantity
    return np.float32 if quantity is not None and quantity.kind is Kind.GAUGE else np.float64


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)
