"""One wide table while it is filled from a block: points judged and placed, cells and label columns built."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.lake.metrics.gpu_labels import BadGpuLabel
from ops_pipelines.lake.metrics.layout import GPU_TABLE, Layout, Sites
from ops_pipelines.lake.metrics.series import Fate
from ops_pipelines.lake.metrics.ways import Device, Ints, Placed, Way, fill_column, number_rows, settle_identities
from ops_pipelines.lake.schema import TABLES

_SHARED = frozenset({"job", "namespace", "pod", "container"})
"""Label columns of which one device may have several at once."""
_UNSEEN, _NOWHERE = -2, -1

_Identity = tuple[object, ...]
"""The values of the table's label columns, in their order; None: not said."""


@dataclass(slots=True, kw_only=True)
class TableWork:
    """One table while it is filled."""

    table: str
    layout: Layout
    sites: Sites
    units: dict[tuple[str, str], int] = field(default_factory=dict)
    """(node, device) -> number."""
    unknown: list[bool | None] = field(default_factory=list)
    """unknown_node of each unit."""
    identities: dict[_Identity, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """The table's label columns."""
    seen: dict[Device, tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]] = field(default_factory=dict)
    """Per way of naming devices and label set: unit, identity, fate."""

    def __post_init__(self) -> None:
        table = TABLES[self.table]
        fixed = {*table.key, "time", "unknown_node"}
        self.columns = tuple(each.name for each in table.columns if each.quantity is None and each.name not in fixed)

    def fill(
        self,
        chosen: Sequence[tuple[int, Way, Ints]],
        *,
        time_codes: NDArray[np.int32],
        distinct_times: Ints,
        time_fates: NDArray[np.uint8],
        fates: NDArray[np.uint8],
        way_codes: NDArray[np.uint16],
    ) -> pa.Table | None:
        """Return the table's rows, or None without any; write down each point's fate."""
        block = self.layout.block
        for _, way, series in chosen:
            self._read_sets(way.device, self.layout.sets[series])
        places = self._sort_units()
        width = len(distinct_times)
        placed: list[Placed] = []
        for code, way, series in chosen:
            units, identities, set_fates = self.seen[way.device]
            sets = self.layout.sets[series]
            points, place = self.layout.points_of(series)
            raw = block.values[points]
            converted = way.gate.convert(raw)
            before = np.where(set_fates[sets][place] == Fate.ACCEPTED, time_fates[points], set_fates[sets][place])
            verdict = way.gate.judge(raw, converted, before)
            is_good = verdict == Fate.ACCEPTED
            changed = (fates[points] != Fate.ACCEPTED) & (verdict != Fate.IGNORED)
            fates[points[changed]] = verdict[changed]
            way_codes[points[changed]] = code
            if not is_good.all():
                points, place, converted = points[is_good], place[is_good], converted[is_good]
            if len(points):
                placed.append(
                    Placed(
                        way=way,
                        keys=places[units[sets]].astype(np.int64)[place] * width + time_codes[points],
                        values=converted,
                        points=points,
                        series=(self.layout.name_codes[series].astype(np.int64) * len(self.layout.label_sets) + sets)[
                            place
                        ],
                        identities=identities[sets][place],
                    )
                )
        if not placed:
            return None
        return self._build(placed, width=width, distinct_times=distinct_times, time_codes=time_codes, fates=fates)

    def _read_sets(self, device: Device, sets: NDArray[np.int32]) -> None:
        if device not in self.seen:
            count = len(self.layout.label_sets)
            self.seen[device] = (
                np.full(count, _UNSEEN, np.int32),
                np.zeros(count, np.int32),
                np.zeros(count, np.uint8),
            )
        units, identities, fates = self.seen[device]
        for code in np.unique(sets[units[sets] == _UNSEEN]).tolist():
            units[code] = _NOWHERE
            try:
                node, name, is_unknown = self.sites.place(code, table=self.table, device=device)
            except BadGpuLabel:
                fates[code] = Fate.BAD_PCI_ADDRESS
                continue
            except ValueError:
                fates[code] = Fate.TWO_NODES
                continue
            if name is None:
                fates[code] = Fate.NO_DEVICE
                continue
            fates[code] = Fate.ACCEPTED
            unit = self.units.setdefault((node, name), len(self.units))
            if unit == len(self.unknown):
                self.unknown.append(is_unknown)
            units[code] = unit
            if self.columns:
                said = self.sites.identify(code, table=self.table, node=node)
                identity = tuple(said.get(column) for column in self.columns)
                identities[code] = self.identities.setdefault(identity, len(self.identities))

    def _sort_units(self) -> Ints:
        """Return the place of each unit in the order of (node, device)."""
        places = np.zeros(len(self.units) + 1, np.int64)
        for place, unit in enumerate(sorted(self.units)):
            places[self.units[unit]] = place
        return places

    def _build(
        self,
        placed: Sequence[Placed],
        *,
        width: int,
        distinct_times: Ints,
        time_codes: NDArray[np.int32],
        fates: NDArray[np.uint8],
    ) -> pa.Table:
        rows = number_rows(placed, grid_size=len(self.units) * width)
        count = len(rows.keys)
        row_units, row_times = rows.keys // width, distinct_times[rows.keys % width]
        schema = TABLES[self.table].arrow()
        ordered = sorted(self.units)
        unknown = [self.unknown[self.units[unit]] for unit in ordered]
        taken = pa.array(row_units)
        arrays: dict[str, pa.Array] = {
            "node": pa.array([node for node, _ in ordered], pa.string()).take(taken),
            "device": pa.array([device for _, device in ordered], pa.string()).take(taken),
            "time": pa.array(row_times * 1000, pa.int64()).cast(schema.field("time").type),
            "unknown_node": pa.array(unknown, pa.bool_()).take(taken),
        }
        by_column: dict[str, list[tuple[Placed, Ints]]] = {}
        for each, of in zip(placed, rows.of, strict=True):
            by_column.setdefault(each.way.column, []).append((each, of))
        for column, parts in by_column.items():
            cells = fill_column(parts, row_count=count, merge=parts[0][0].way.gate.quantity.merge)
            fates[cells.conflicting] = Fate.CONFLICTING_DUPLICATE
            is_full = bool(cells.is_there.all())
            arrays[column] = pa.array(cells.values, pa.float64(), mask=None if is_full else ~cells.is_there)
        if self.columns:
            met = [(each.identities, of) for each, of in zip(placed, rows.of, strict=True)]
            met += self._unplaced(rows.keys, width=width, time_codes=time_codes)
            arrays |= self._label_columns(met, count=count)
        # Most columns of a narrow answer are empty: they share one array for each type.
        empty = {kind: pa.nulls(count, kind) for kind in {field.type for field in schema}}
        columns = {field.name: arrays.get(field.name, empty[field.type]) for field in schema}
        return pa.table(columns, schema=schema)

    def _unplaced(
        self, row_keys: Ints, *, width: int, time_codes: NDArray[np.int32]
    ) -> list[tuple[NDArray[np.int32], Ints]]:
        """Return what series without a column say of GPUs that have rows, at the rows' own times."""
        if self.table != GPU_TABLE:
            return []
        found: list[tuple[NDArray[np.int32], Ints]] = []
        places = self._sort_units()
        count = len(self.layout.label_sets)
        units, numbers = np.full(count, _UNSEEN, np.int64), np.zeros(count, np.int32)
        for series in self.layout.unplaced_gpu_series:
            sets = self.layout.sets[series]
            for code in np.unique(sets[units[sets] == _UNSEEN]).tolist():
                units[code] = _NOWHERE
                try:
                    node, device, _ = self.sites.place(code, table=self.table, device=Device(parts=()))
                    said = self.sites.identify(code, table=self.table, node=node)
                except ValueError:
                    continue
                unit = None if device is None else self.units.get((node, device))
                if unit is None:
                    continue
                identity = tuple(said.get(column) for column in self.columns)
                units[code] = places[unit]
                numbers[code] = self.identities.setdefault(identity, len(self.identities))
            useful = units[sets] >= 0
            points, place_of = self.layout.points_of(series[useful])
            keys = units[sets][useful][place_of] * width + time_codes[points]
            rows = np.minimum(np.searchsorted(row_keys, keys), len(row_keys) - 1)
            is_row = row_keys[rows] == keys
            found.append((numbers[sets][useful][place_of][is_row], rows[is_row]))
        return found

    def _label_columns(self, met: Sequence[tuple[NDArray[np.int32], Ints]], *, count: int) -> dict[str, pa.Array]:
        of_rows, sets = settle_identities(met, row_count=count)
        listed = list(self.identities)
        used, numbers = np.unique(of_rows, return_inverse=True)
        merged = [_unite([listed[each] for each in sets[number]], columns=self.columns) for number in used.tolist()]
        schema = TABLES[self.table].arrow()
        taken = pa.array(numbers)
        return {
            column: pa.array([identity[place] for identity in merged], schema.field(column).type).take(taken)
            for place, column in enumerate(self.columns)
        }


def _unite(identities: Sequence[_Identity], *, columns: Sequence[str]) -> _Identity:
    """Return what several label sets of one row say together. Several pods are listed; a contradiction says nothing."""
    if len(identities) == 1:
        return identities[0]
    united: list[object] = []
    for column, values in zip(columns, zip(*identities, strict=True), strict=True):
        said = {value for value in values if value is not None}
        if len(said) > 1 and column in _SHARED:
            united.append(",".join(sorted(map(str, said))))
        else:
            united.append(said.pop() if len(said) == 1 else None)
    return tuple(united)
