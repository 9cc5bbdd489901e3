"""Whose row is whose: rows of a table as numbered series in key and time order, in whole columns.

For what must look from one row to the next of the same series: duplicates, counters that fall, rates.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowOrder:
    """Rows by series and time. All arrays have one entry a row, in that order."""

    order: NDArray[np.int64] | None
    """Position in the table of each row; None: the table is in this order already."""
    series: NDArray[np.int64]
    """Number of the series: equal keys, equal numbers, ascending as the keys do."""
    times: NDArray[np.int64]
    """Microseconds since 1970, UTC; the least number there is for a null."""
    unsorted_count: int
    """Rows of the table that stand before one they should follow."""

    def in_order(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a column of the table in this order."""
        return values if self.order is None else values[self.order]

    @property
    def repeats(self) -> NDArray[np.bool_]:
        """Return where a row has the key and time of the one before it."""
        found = np.zeros(len(self.series), dtype=np.bool_)
        found[1:] = (self.series[1:] == self.series[:-1]) & (self.times[1:] == self.times[:-1])
        return found


def order_rows(rows: pa.Table, *, key: Sequence[str]) -> RowOrder:
    """Return the order of rows by `key` and `time`; texts by their bytes, nulls first."""
    series = np.zeros(rows.num_rows, dtype=np.int64)
    for name in key:
        rank, size = text_ranks(rows.column(name))
        series = series * (size + 1) + rank
        if series.size and (size + 1) * int(series.max()) > 2**62:
            series = np.unique(series, return_inverse=True)[1].astype(np.int64)
    times = microseconds(rows.column("time"))
    before = (series[:-1] > series[1:]) | ((series[:-1] == series[1:]) & (times[:-1] > times[1:]))
    unsorted = int(np.count_nonzero(before))
    order = np.lexsort((times, series)) if unsorted else None
    return RowOrder(
        order=order,
        series=series if order is None else series[order],
        times=times if order is None else times[order],
        unsorted_count=unsorted,
    )


def text_ranks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """Return the rank of each text among the column's distinct ones, from 1, 0 for null; and how many there are."""
    codes, words = text_codes(column)
    by_bytes = pc.array_sort_indices(words).to_numpy()
    rank_of_code = np.zeros(len(words) + 1, dtype=np.int64)
    rank_of_code[by_bytes] = np.arange(1, len(words) + 1)
    return rank_of_code[codes], len(words)


def text_codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the place of each text among the column's distinct ones, -1 for null; and these, as they first appear."""
    encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    return codes, encoded.dictionary


def microseconds(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return times as microseconds since 1970, the least number there is for null."""
    least = np.iinfo(np.int64).min
    whole = pc.fill_null(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), least)
    return np.asarray(whole.to_numpy(), dtype=np.int64)


def numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return numbers, NaN for null."""
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def natural_order(words: Iterable[str]) -> list[str]:
    """Return words in the order of people: node9 before node10."""

    def parts(word: str) -> list[tuple[int, int, str]]:
        return [
            (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part)
            for part in re.split(r"([0-9]+)", word)
            if part
        ]

    return sorted(words, key=lambda word: (parts(word), word))
