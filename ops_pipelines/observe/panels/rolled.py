"""The rows of a table as matrices that move on with time: a cycle costs what it brings, not what the window holds.

Most of what a healthy cluster measures never changes: counters of errors, limits, names. A column in which each unit
reported one value, in each of its rows, is kept as one row of values for as long as that holds.

Only rows at grid times, one a part, are kept as cells. Whatever is otherwise (a row between grid times or dated ahead,
two devices that are one part) makes the whole window be placed as `grid.place` does it: slow, and the same cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.lake.hours import microseconds
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.panels.grid import (
    Floats,
    Grid,
    Ints,
    Matrix,
    Name,
    NodeOrder,
    Parts,
    Rename,
    codes_of,
    float_values,
    place,
    precision_of,
    units_of,
)

_SEEN = ""
"""The matrix that says of which cells there was a row."""
HOLDER = "job"
"""The one text of which the newest row counts, whether it has one or not."""


class Rolled:
    """The newest `row_count` grid times of a table, one column a unit: a device of a node."""

    def __init__(
        self, name: str, *, columns: Sequence[str], texts: Sequence[str], step_seconds: int, row_count: int
    ) -> None:
        self._name = name
        self._columns, self._texts = columns, texts
        self._step_seconds = step_seconds
        self._row_count = row_count
        self._capacity = row_count + max(1, row_count // 16)
        """A few rows more, so that a cycle moves nothing."""
        self._first = 0
        """Number of the grid time of the first row: seconds since 1970 over the step."""
        self._units: list[Name] = []
        self._matrices: dict[str, Matrix] = {}
        self._steady: dict[str, Matrix] = {}
        """Column -> what each unit says of it in each of its rows, NaN for nothing; then it has no matrix."""
        self._words: dict[str, list[str]] = {}
        """Text column -> the texts that its matrix has the numbers of."""
        self._newest: dict[str, int] = {}
        """Column -> number of the newest grid time with a value."""
        self._apart: list[tuple[int, pa.Table]] = []
        """Rows that are no cells, and the number of the last grid time that they concern."""

    @property
    def time_count(self) -> int:
        """Return of how many grid times a panel can show rows."""
        if _SEEN not in self._matrices:
            return 0
        shown = self._matrices[_SEEN][: self._newest[_SEEN] - self._first + 1][-self._row_count :]
        return int(np.count_nonzero((~np.isnan(shown)).any(axis=1)))

    def add(self, rows: pa.Table, *, at: int) -> None:
        """Take in rows of the cycle at grid time number `at`, on top of those of equal time."""
        step = self._step_seconds * 1_000_000
        times = microseconds(rows["time"])
        numbers = times // step
        is_cell = (times % step == 0) & (numbers <= at)
        if not is_cell.all():
            self._apart.append((int(-(-times[~is_cell].max() // step)), rows.filter(pa.array(~is_cell))))
        self._reach(at)
        is_cell &= numbers >= self._first
        if not is_cell.all():
            rows, numbers = rows.filter(pa.array(is_cell)), numbers[is_cell]
        if not rows.num_rows:
            return
        columns = self._columns_of(rows)
        nothing = np.full(len(numbers), np.nan)
        there = frozenset(rows.column_names)
        for name in self._columns:
            if name in there:
                self._write(name, float_values(rows[name]), numbers, columns)
            elif name in self._steady:
                self._write(name, nothing, numbers, columns)
        for name in self._texts:
            if name in there:
                self._write(name, self._numbered(name, rows[name]), numbers, columns)
            elif name == HOLDER or name in self._steady:
                self._write(name, nothing, numbers, columns)
        self._write(_SEEN, np.ones(len(numbers)), numbers, columns)  # Last: `_spread` asks what was seen before.

    def placed(self, grid: Grid, *, node_order: NodeOrder, rename: Rename | None) -> Parts:
        """Return what there is of the grid times of `grid`; see `grid.place`."""
        first = grid.first_seconds // self._step_seconds
        self._reach(first + grid.count - 1)
        there = self._matrices.get(_SEEN, np.zeros((0, len(self._units))))[max(first - self._first, 0) :]
        is_gone = np.isnan(there).all(axis=0)
        if is_gone.any():
            self._arrange(np.flatnonzero(~is_gone))
        apart = [rows for last, rows in self._apart if last >= first]
        names = list(self._units) if rename is None else rename(self._units, partial(self.newest_texts, grid=grid))
        seen = self._rows(_SEEN, grid)
        is_simple = len({*names}) == len(names) and not apart and (seen is None or not np.isnan(seen).all(axis=0).any())
        if not is_simple:
            # Of rows of one time those that were dated ahead came first.
            everything = pa.concat_tables([*apart, self._as_table(grid)], promote_options="default")
            return place(everything, name=self._name, grid=grid, node_order=node_order, rename=rename)
        order = sorted(range(len(names)), key=lambda unit: (node_order(names[unit][0]), names[unit][1]))
        if order != list(range(len(names))):
            self._arrange(np.array(order))
        return RolledParts(rolled=self, grid=grid, names=tuple(names[unit] for unit in order))

    def matrix(self, column: str, grid: Grid) -> Matrix | None:
        """Return the cells of a column; None where no row has a value of it. Not to be written to."""
        found = self._rows(column, grid)
        if found is None:
            return None
        is_known = 0 <= self._newest[column] - grid.first_seconds // self._step_seconds < grid.count
        return found if is_known or not np.isnan(found).all() else None

    def newest_texts(self, column: str, grid: Grid) -> list[str]:
        """Return for each unit the newest text; `` where no row has one."""
        found = self._rows(column, grid)
        if found is None or not len(found):
            return [""] * len(self._units)
        known = ~np.isnan(found)
        newest = len(found) - 1 - known[::-1].argmax(axis=0)
        codes = found[newest, np.arange(found.shape[1])]
        words = self._words[column]
        return ["" if code != code else words[int(code)] for code in codes.tolist()]

    def cells_of_text(self, column: str, grid: Grid) -> tuple[Ints, list[str]]:
        """Return for each cell the number of its text, -1 without a row, and how many texts there are without a text;
        and the texts."""
        found, seen, words = self._rows(column, grid), self._rows(_SEEN, grid), self._words.get(column, [])
        if found is None or seen is None:
            return np.full((grid.count, len(self._units)), -1, dtype=np.int64), words
        cells = np.where(np.isnan(found), len(words), found)
        return np.where(np.isnan(seen), -1, cells).astype(np.int64), words

    def _reach(self, at: int) -> None:
        """Make the matrices reach to the grid time number `at`."""
        if at < self._first + self._capacity:
            return
        first = at - self._row_count + 1
        moved_by, self._first = first - self._first, first
        self._apart = [each for each in self._apart if each[0] >= first]
        for name in [name for name, newest in self._newest.items() if newest < first]:
            for of in (self._matrices, self._steady, self._newest, self._words):
                of.pop(name, None)
        for name, before in self._matrices.items():
            # Again, not in place: the panel before this one looks at the old one.
            moved = self._matrices[name] = np.full(before.shape, np.nan, dtype=before.dtype)
            moved[: max(len(before) - moved_by, 0)] = before[moved_by:]
        for name in self._words:
            self._forget_words(name)
        for name in [name for name in self._matrices if name != _SEEN]:
            self._settle(name)

    def _settle(self, name: str) -> None:
        """Keep a column as one row of values if each unit says one value in each of its rows."""
        cells, seen = self._matrices[name], self._matrices.get(_SEEN)
        if seen is None:
            return
        least, most = np.fmin.reduce(cells, axis=0), np.fmax.reduce(cells, axis=0)
        if not ((least == most) | np.isnan(least)).all():
            return
        if np.array_equal(np.isnan(cells), np.isnan(seen) | np.isnan(least)):
            self._steady[name] = least
            del self._matrices[name]

    def _spread(self, name: str) -> None:
        """Keep a column as a matrix again."""
        self._matrices[name] = _with_gaps(self._steady.pop(name), np.isnan(self._matrices[_SEEN]))

    def _forget_words(self, name: str) -> None:
        """Number the texts again that are still used: jobs come and go."""
        of = self._steady if name in self._steady else self._matrices
        if name not in of:
            return
        cells, words = of[name].copy(), self._words[name]
        known = ~np.isnan(cells)
        used = np.unique(cells[known].astype(np.int64))
        cells[known] = np.searchsorted(used, cells[known])
        of[name] = cells
        self._words[name] = [words[code] for code in used.tolist()]

    def _columns_of(self, rows: pa.Table) -> Ints:
        names, of_row = units_of(rows)
        known = {name: place for place, name in enumerate(self._units)}
        new = [name for name in names if name not in known]
        if new:
            self._units += new
            known |= {name: len(known) + place for place, name in enumerate(new)}
            for name, before in self._matrices.items():
                wider = np.full((len(before), len(new)), np.nan, dtype=before.dtype)
                self._matrices[name] = np.concatenate((before, wider), axis=1)
            for name, said in self._steady.items():
                self._steady[name] = np.concatenate((said, np.full(len(new), np.nan, dtype=said.dtype)))
        return np.array([known[name] for name in names], dtype=np.int64)[of_row]

    def _numbered(self, name: str, texts: pa.ChunkedArray) -> Floats:
        codes, words = codes_of(texts)
        known = self._words.setdefault(name, [])
        numbers = {word: number for number, word in enumerate(known)}
        own = np.array([*(numbers.setdefault(word, len(numbers)) for word in words), np.nan])
        known += list(numbers)[len(known) :]
        return own[codes]

    def _write(self, name: str, values: Floats, numbers: Ints, columns: Ints) -> None:
        if name in self._steady:
            if np.array_equal(self._steady[name][columns], values, equal_nan=True):
                newest = numbers[~np.isnan(values)].max(initial=self._newest[name])
                self._newest[name] = int(newest)
                return
            self._spread(name)
        is_known = ~np.isnan(values)
        kind = precision_of(self._name, name, values) if name in self._columns else np.float32
        if name not in self._matrices:
            if not is_known.any():
                return
            self._matrices[name] = np.full((self._capacity, len(self._units)), np.nan, dtype=kind)
        elif kind is np.float64 and self._matrices[name].dtype != kind:
            self._matrices[name] = self._matrices[name].astype(kind)  # Again: the panel before looks at the old one.
        if name == HOLDER:
            is_known[:] = True
        if not is_known.all():
            values, numbers, columns = values[is_known], numbers[is_known], columns[is_known]
        if len(numbers):
            self._matrices[name][numbers - self._first, columns] = values
            self._newest[name] = max(int(numbers.max()), self._newest.get(name, 0))

    def _rows(self, name: str, grid: Grid) -> Matrix | None:
        if name in self._steady:
            return self._steady_rows(name, grid)
        found = self._matrices.get(name)
        if found is None:
            return None
        first = grid.first_seconds // self._step_seconds - self._first
        before = np.full((min(max(-first, 0), grid.count), found.shape[1]), np.nan, dtype=found.dtype)
        inside = found[max(first, 0) : max(first + grid.count, 0)]
        rows: Matrix = np.concatenate((before, inside)) if len(before) else inside.view()
        rows.flags.writeable = False
        return rows

    def _steady_rows(self, name: str, grid: Grid) -> Matrix | None:
        said, seen = self._steady[name], self._rows(_SEEN, grid)
        if seen is None:
            return None
        is_gap = np.isnan(seen)
        if not is_gap.any():
            return np.broadcast_to(said, seen.shape)
        rows = _with_gaps(said, is_gap)
        rows.flags.writeable = False
        return rows

    def _arrange(self, order: NDArray[np.intp]) -> None:
        self._units = [self._units[unit] for unit in order.tolist()]
        self._matrices = {name: np.take(matrix, order, axis=1) for name, matrix in self._matrices.items()}
        self._steady = {name: said[order] for name, said in self._steady.items()}

    def _as_table(self, grid: Grid) -> pa.Table:
        """Return the cells as the rows that they came from."""
        schema = TABLES[self._name].arrow()
        seen = self._rows(_SEEN, grid)
        rows, units = np.nonzero(~np.isnan(np.zeros((0, 0)) if seen is None else seen))
        taken = pa.array(units)
        found = {
            name: pa.array([unit[place_of] for unit in self._units], pa.string()).take(taken).dictionary_encode()
            for place_of, name in enumerate(("node", "device"))
        }
        found["time"] = pa.array(grid.times[rows] * 1_000_000, pa.int64()).cast(schema.field("time").type)
        for name in (*self._columns, *self._texts):
            cells = self._rows(name, grid)
            if cells is None:
                continue
            values = cells[rows, units].astype(np.float64)
            if name in self._texts:
                numbers = pa.array(values, from_pandas=True).cast(pa.int64())
                found[name] = pa.array(self._words[name], pa.string()).take(numbers).dictionary_encode()
            else:
                found[name] = pa.array(values, from_pandas=True)
        return pa.table(found)


def _with_gaps(said: Matrix, is_gap: NDArray[np.bool_]) -> Matrix:
    """Return a row of values at every time, NaN where there is a gap."""
    cells: Matrix = np.where(is_gap, np.full(1, np.nan, dtype=said.dtype), said)
    return cells


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolledParts:
    """The cells of an interval; implements `grid.Parts`."""

    rolled: Rolled
    grid: Grid
    names: tuple[Name, ...]

    @property
    def row_count(self) -> int:
        return self.grid.count

    def matrix(self, column: str) -> Matrix | None:
        return self.rolled.matrix(column, self.grid)

    def newest_texts(self, column: str) -> list[str]:
        return self.rolled.newest_texts(column, self.grid)

    def cells_of_text(self, column: str) -> tuple[Ints, list[str]]:
        return self.rolled.cells_of_text(column, self.grid)
