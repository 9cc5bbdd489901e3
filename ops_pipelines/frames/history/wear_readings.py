"""Readings of what wears, from rows of the lake: one part's, one after the other, and what spare rows are left.

Reads; what the readings come to is `wear_out`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

BANK_COLUMNS = (
    "remap_banks_none_count",
    "remap_banks_low_count",
    "remap_banks_partial_count",
    "remap_banks_high_count",
    "remap_banks_max_count",
)
"""Banks by what is left of their 8 spare rows, the worst class first."""


_IDENTITIES = {"node", "device", "time", "gpu_serial", "gpu_uuid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One part's readings of one quantity, oldest first."""

    part: str
    """`node/device`, of a GPU its serial or UUID."""
    at_seconds: NDArray[np.float64]
    """Seconds since 1970, strictly rising."""
    values: NDArray[np.float64]


def readings_of(hours: Iterable[pa.Table], columns: Collection[str]) -> pa.Table:
    """Return the newest row of each part in each hour, with these columns alone. Hours are large: each is let go."""
    wanted = set(columns)
    kept: list[pa.Table] = []
    for rows in hours:
        names = [each for each in rows.column_names if each in wanted | _IDENTITIES]
        values = [each for each in names if each in wanted]
        if not rows.num_rows or not values:
            continue
        told = rows.select(names).filter(_any_valid(rows, values)).sort_by("time")
        place = told.append_column("place", pa.array(range(told.num_rows)))
        newest = place.group_by(["node", "device"]).aggregate([("place", "max")]).column("place_max")
        kept.append(told.take(newest))
    return pa.concat_tables(kept, promote_options="default") if kept else pa.table({})


def _any_valid(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray:
    is_told = pc.is_valid(rows.column(columns[0]))
    for column in columns[1:]:
        is_told = pc.or_(is_told, pc.is_valid(rows.column(column)))
    return is_told


def read_series(rows: pa.Table, column: str) -> Iterable[Readings]:
    """Yield each part's readings of a column, the last of each hour. A GPU goes by its serial, else its UUID.

    Rows without a value are no readings; of two at one time the greater counts.
    """
    if column not in rows.column_names:
        return
    rows = rows.filter(pc.is_finite(pc.cast(rows.column(column), pa.float64())))
    names = _names(rows)
    seconds = pc.cast(pc.cast(rows.column("time"), pa.timestamp("us", tz="UTC")), pa.int64()).to_numpy() / 1e6
    values = pc.cast(rows.column(column), pa.float64()).to_numpy()
    hours = np.floor(seconds / 3600)
    order = np.lexsort((values, seconds, names))
    for place in np.split(order, np.flatnonzero(names[order][1:] != names[order][:-1]) + 1):
        if not len(place):
            continue
        is_last = np.append(hours[place][1:] != hours[place][:-1], True)
        kept = place[is_last]
        yield Readings(part=str(names[kept[0]]), at_seconds=seconds[kept], values=values[kept])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What is left of the spare rows of one GPU, by its worst bank."""

    part: str
    worst: str
    """none, low, partial, high or max."""
    bank_count: int
    """Banks in that class."""
    explanation: str


def worst_banks(rows: pa.Table) -> tuple[Reserve, ...]:
    """Return the worst class of banks of each GPU at its newest reading, where it is low or worse; worst first.

    A bank without spare rows cannot mend its next uncorrectable error, however many rows the GPU has left.
    """
    known = [name for name in BANK_COLUMNS if name in rows.column_names]
    if not known:
        return ()
    newest: dict[str, tuple[datetime, dict[str, float]]] = {}
    listed = rows.select([*known, "time"]).to_pylist()
    for name, row in zip(_names(rows), listed, strict=True):
        counts = {column: row[column] for column in known if row[column] is not None}
        if counts and (name not in newest or row["time"] >= newest[name][0]):
            newest[name] = (row["time"], counts)
    found: list[tuple[int, Reserve]] = []
    for name, (_, counts) in newest.items():
        worst = next((column for column in BANK_COLUMNS[:2] if counts.get(column, 0) > 0), None)
        if worst is None:
            continue
        word = worst.removeprefix("remap_banks_").removesuffix("_count")
        banks = int(counts[worst])
        what = (
            "the next uncorrectable error there cannot be mended: plan an RMA" if word == "none" else "nearly used up"
        )
        text = f"{banks} bank(s) with {word} spare rows: {what}"
        found.append(
            (BANK_COLUMNS.index(worst), Reserve(part=str(name), worst=word, bank_count=banks, explanation=text))
        )
    return tuple(each for _, each in sorted(found, key=lambda each: (each[0], -each[1].bank_count, each[1].part)))


def _names(rows: pa.Table) -> NDArray[np.object_]:
    place = pc.binary_join_element_wise(rows.column("node"), rows.column("device"), "/")
    columns = [rows.column(name) for name in ("gpu_serial", "gpu_uuid") if name in rows.column_names]
    names: NDArray[np.object_] = np.array(pc.coalesce(*columns, place).to_pylist(), dtype=object)
    return names
