"""Rows of a table -> cells of matrices: few columns, which rows are parts of one kind, times and parts.

A row is judged by itself alone, so that rows can be chosen as they come. What becomes of them is `tables`.

Here only where a value goes. Which columns a layer has, and what becomes of several devices, is `tables`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import NodeName, PciAddress
from ops_pipelines.lake.hours import microseconds
from ops_pipelines.lake.quantities import Kind
from ops_pipelines.lake.rates import step_seconds as step_seconds_of
from ops_pipelines.lake.schema import TABLES, ColumnType
from ops_pipelines.observe.panels.panel import (
    DISK_COLUMNS,
    FILESYSTEM_COLUMNS,
    FROM_DEVICES,
    GPU_COLUMNS,
    INLET_COLUMNS,
    NODE_COLUMNS,
    PANEL_COLUMNS,
    PORT_COLUMNS,
    RACK_COLUMNS,
    FromDevices,
)

# -- rows of the lake on their way to a panel --


_SMALL_BYTES = 64_000_000


def panel_rows(table: str, rows: pa.Table) -> pa.Table:
    """Return what a panel needs of rows of `table`: few columns, texts encoded, and no row without a value in them."""
    spec = TABLES[table]
    there = frozenset(rows.column_names)  # pyarrow makes the list again each time
    wanted = [name for name in dict.fromkeys((*spec.key, "time", *PANEL_COLUMNS[table])) if name in there]
    if table in ("job_logs", "rejected_rows"):
        wanted = [name for name in wanted if name in ("time", *PANEL_COLUMNS[table])]
    rows = rows.select(wanted)
    if table == "job_logs":
        rows = rows.filter(pc.is_valid(rows["job"]))
    elif table == "rejected_rows":
        is_loss = pc.and_(
            pc.equal(rows["into"], "application_telemetry"),
            pc.and_(pc.equal(rows["reason"], "not_finite"), pc.starts_with(rows["text"], "training_loss")),
        )
        rows = rows.filter(is_loss)
    elif table not in ("gpu_telemetry", "job_allocations"):
        rows = with_a_value(rows, [name for name in PANEL_COLUMNS[table] if name in wanted])
    keys = {*spec.key, "time", *PANEL_COLUMNS["job_allocations"]}
    rows = rows.select([name for name in rows.column_names if name in keys or rows[name].null_count < rows.num_rows])
    for place_of, name in enumerate(rows.column_names):
        is_text = spec.by_name[name].type is ColumnType.TEXT
        if is_text and not pa.types.is_dictionary(rows[name].type) and table != "rejected_rows":
            rows = rows.set_column(place_of, name, rows[name].dictionary_encode())
    return rows


def joined_rows(parts: Sequence[pa.Table]) -> pa.Table:
    """Return rows that `panels.rows` made, one part after the other; a column that a part lacks is null there."""
    joined = pa.concat_tables(parts, promote_options="default")
    # Many small parts cost more than their rows do, and large ones would be copied for little.
    return joined.unify_dictionaries().combine_chunks() if joined.nbytes <= _SMALL_BYTES else joined


def grid_step_of(rows: pa.Table) -> int | None:
    """Return the distance in seconds of the grid that most rows stand on; None for rows of fewer than two times."""
    found = step_seconds_of(rows["time"])
    return None if found is None else max(1, round(found))


def times_of(rows: pa.Table) -> tuple[datetime, ...]:
    """Return the times of rows, each once, in order."""
    return tuple(sorted(rows["time"].unique().to_pylist()))


def addresses_of(rows: pa.Table) -> Mapping[NodeName, frozenset[PciAddress]]:
    """Return the PCI addresses of the GPUs that rows of gpu_telemetry name, by node."""
    if "pci_address" not in rows.column_names:
        return {}
    pairs = rows.select(["node", "pci_address"]).group_by(["node", "pci_address"]).aggregate([])
    found: dict[NodeName, set[PciAddress]] = {}
    for node, address in zip(pairs["node"].to_pylist(), pairs["pci_address"].to_pylist(), strict=True):
        if address is not None:
            found.setdefault(NodeName(node), set()).add(PciAddress(address))
    return {node: frozenset(addresses) for node, addresses in found.items()}


def with_a_value(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows in which one of the columns says something."""
    said = [pc.is_valid(rows[name]) for name in columns if rows[name].null_count < rows.num_rows]
    if not said:
        return rows.slice(0, 0)
    kept = said[0]
    for each in said[1:]:
        kept = pc.or_(kept, each)
    return rows.filter(kept)


def begins_with(texts: pa.ChunkedArray, prefixes: Sequence[str]) -> pa.ChunkedArray:
    """Return where a text begins with one of the prefixes; null where it is null."""

    def begins(words: pa.Array) -> pa.Array:
        found = pc.starts_with(words, prefixes[0])
        for prefix in prefixes[1:]:
            found = pc.or_(found, pc.starts_with(words, prefix))
        return found

    return says(texts, begins)


def says(texts: pa.ChunkedArray, is_so: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    """Return for each text what `is_so` says of it: asked once a word, not once a row, where the texts are encoded."""
    if not pa.types.is_dictionary(texts.type):
        return is_so(texts.cast(pa.string()))
    chunks = []
    words: pa.Array | None = None
    for chunk in texts.unify_dictionaries().chunks:
        if words is None:  # All chunks have the same by now.
            words = is_so(chunk.dictionary.cast(pa.string()))
        chunks.append(words.take(chunk.indices))
    return pa.chunked_array(chunks, pa.bool_())


# -- rows of a table -> cells of matrices --


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
        kind = precision_of(self.name, column, values)
        matrix = np.full((self.row_count, len(self.names)), np.nan, dtype=kind)
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
"""The name of each unit, what reports the newest text of a column for each of them -> the name of the part of each."""


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


def precision_of(table: str, column: str, values: NDArray[np.floating]) -> type[np.float32 | np.float64]:
    """Return what `values` of a column need: half the memory where it holds every digit of them.

    Of gauges not every digit counts. Counters, states and times lose none; most of them are small numbers.
    """
    quantity = TABLES[table].by_name[column].quantity
    if quantity is not None and quantity.kind is Kind.GAUGE:
        return np.float32
    narrow = values.astype(np.float32)
    return np.float32 if ((narrow == values) | np.isnan(values)).all() else np.float64


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


# -- which rows of a table are parts of one kind --


RACK = "rack:"
_NOT_LOCAL = ("lustre:", "nfs:", "ceph:", "loop", "ram", "sr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Some rows of a table."""

    table: str
    columns: tuple[str, ...]
    """Quantities that are asked for."""
    choose: Callable[[pa.Table], pa.Table]
    texts: tuple[str, ...] = ()
    """Labels that are asked for."""
    rename: Rename | None = None


def _whole_gpus(rows: pa.Table) -> pa.Table:
    if "mig_instance" in rows.column_names:
        rows = rows.filter(pc.is_null(rows["mig_instance"]))
    return _of_nodes(rows)


def _by_address(names: Sequence[Name], newest: Callable[[str], Sequence[str]]) -> Sequence[Name]:
    """Return each GPU by its newest PCI address: UUIDs move with the board, and exporters differ in what they give."""
    return [(node, address or device) for (node, device), address in zip(names, newest("pci_address"), strict=True)]


def _of_nodes(rows: pa.Table) -> pa.Table:
    return rows.filter(says(rows["node"], lambda node: pc.not_equal(node, "")))


def _devices(is_wanted: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: _of_nodes(rows.filter(says(rows["device"], is_wanted)))


def _with(
    columns: Sequence[str], choose: Callable[[pa.Table], pa.Table], *, needed: Sequence[str] = ()
) -> Callable[[pa.Table], pa.Table]:
    """Return what chooses among rows with a value of `needed` (none given: of any column), with `columns` alone: what
    is filtered is copied."""

    def choose_with(rows: pa.Table) -> pa.Table:
        present = [name for name in columns if name in rows.column_names]
        rows = rows.select([name for name in rows.column_names if name in {"node", "device", "time", *present}])
        return choose(with_a_value(rows, [name for name in needed or present if name in present]))

    return choose_with


def _is_port(device: pa.Array) -> pa.Array:
    """A switch names its own ports; what it sees of a link is in the lake, but is no part of a node."""
    return pc.and_(pc.not_equal(device, ""), pc.invert(pc.starts_with(device, "switch:")))


def _is_disk(device: pa.Array) -> pa.Array:
    is_local = pc.not_equal(device, "")
    for prefix in _NOT_LOCAL:
        is_local = pc.and_(is_local, pc.invert(pc.starts_with(device, prefix)))
    return is_local


def _is_node_itself(device: pa.Array) -> pa.Array:
    return pc.equal(device, "")


def _is_inlet(device: pa.Array) -> pa.Array:
    return pc.match_substring(device, "inlet", ignore_case=True)


def _racks(rows: pa.Table) -> pa.Table:
    return rows.filter(begins_with(rows["device"], [RACK]))


def of_devices(spec: FromDevices) -> Mapping[str, tuple[str, ...]]:
    """Return the selections that a column of nodes may come from, in the order of asking, each with its columns."""
    groups = {spec.column: spec.sources, f"{spec.column}, instead": spec.instead}
    return {name: columns for name, columns in groups.items() if columns}


def _of_devices(spec: FromDevices, columns: tuple[str, ...]) -> Selection:
    def choose(rows: pa.Table) -> pa.Table:
        return _of_nodes(rows.filter(begins_with(rows["device"], spec.devices)))

    return Selection(table=spec.table, columns=columns, choose=_with(columns, choose))


SELECTIONS: Mapping[str, Selection] = {
    "gpus": Selection(
        table="gpu_telemetry",
        columns=GPU_COLUMNS,
        choose=_whole_gpus,
        texts=("gpu_uuid", "pci_address", "gpu_model", "driver_version", "job"),
        rename=_by_address,
    ),
    "ports": Selection(table="fabric_telemetry", columns=PORT_COLUMNS, choose=_devices(_is_port)),
    "disks": Selection(table="storage_telemetry", columns=DISK_COLUMNS, choose=_devices(_is_disk)),
    "nodes": Selection(table="node_telemetry", columns=NODE_COLUMNS, choose=_devices(_is_node_itself)),
    "filesystems": Selection(
        table="node_telemetry",
        columns=FILESYSTEM_COLUMNS,
        choose=_with(FILESYSTEM_COLUMNS, _of_nodes, needed=("filesystem_size_bytes",)),
    ),
    **{
        f"inlets, {name}": Selection(
            table="facility_telemetry", columns=(name,), choose=_with((name,), _devices(_is_inlet))
        )
        for name in INLET_COLUMNS
    },
    "racks": Selection(table="facility_telemetry", columns=RACK_COLUMNS, choose=_racks),
    **{name: _of_devices(spec, columns) for spec in FROM_DEVICES for name, columns in of_devices(spec).items()},
}
"""All that a panel is made of, but what jobs say of themselves."""
SELECTED_TABLES = frozenset(each.table for each in SELECTIONS.values())
