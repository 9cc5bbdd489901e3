"""Counters -> increases and rates, across resets and restarts. Pure: an Arrow table in, one out.

A counter only grows, but for restarts: a value below the one before means that it began at 0 again in between. What it
counted between the last sample and the restart is lost, so an increase is a lower bound.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

KEY = ("node", "device")
MAX_GAP = timedelta(minutes=5)
"""Longer without a sample, and nobody knows what the counter did."""
_END_OF_TIME_SECONDS = 253_402_300_800


def rates(
    table: pa.Table,
    column: str,
    *,
    key: Sequence[str] = KEY,
    max_gap: timedelta = MAX_GAP,
    boots: pa.Table | None = None,
) -> pa.Table:
    """Return one row for each sample of the counter that is not null, sorted by key and time: the key, `time`, and

    - `increase`: since the sample before, in the counter's unit, never negative. Null for the first sample of a key,
      and after a gap longer than `max_gap` (a gap of exactly `max_gap` counts).
    - `elapsed_seconds`: how long that took; null where `increase` is.
    - `per_second`: the one over the other.
    - `is_reset`: whether the counter began again in between; null where `increase` is.

    `boots` says when nodes booted (`node`, `time`, `boot_time_seconds`, as in node_telemetry). It finds restarts
    after which the counter had already passed its old value. Give it only for counters that do not survive a boot: the
    volatile ones, and those of the kernel. Rows that share key and time must not occur: tables of the lake have none.
    """
    kept = table.select([*key, "time", column]).filter(pc.is_valid(table.column(column)))
    kept = kept.sort_by([(name, "ascending") for name in (*key, "time")])
    values = kept.column(column).cast(pa.float64()).to_numpy()
    times = _microseconds(kept.column("time"))
    follows = _follows(kept, key=key)
    gap = np.diff(times, prepend=times[:1])
    is_known = follows & (gap > 0) & (gap <= int(max_gap / timedelta(microseconds=1)))
    before = np.concatenate((values[:1], values[:-1]))
    is_reset = values < before
    if boots is not None:
        is_reset = is_reset | _booted_between(kept, times=times, gap=gap, boots=boots)
    increase = np.where(is_reset, values, values - before)
    seconds = gap / 1e6
    with np.errstate(divide="ignore", invalid="ignore"):
        per_second = increase / seconds
    return pa.table(
        {name: kept.column(name) for name in (*key, "time")}
        | {
            "increase": pa.array(increase, pa.float64(), mask=~is_known),
            "elapsed_seconds": pa.array(seconds, pa.float64(), mask=~is_known),
            "per_second": pa.array(per_second, pa.float64(), mask=~is_known),
            "is_reset": pa.array(is_reset, pa.bool_(), mask=~is_known),
        }
    )


def _microseconds(times: pa.ChunkedArray) -> NDArray[np.int64]:
    found: NDArray[np.int64] = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return found


def _codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (
        column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
    )
    return found


def _follows(kept: pa.Table, *, key: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have the same key as the row before."""
    follows = np.ones(len(kept), np.bool_)
    follows[:1] = False
    for name in key:
        codes = _codes(kept.column(name))
        follows[1:] &= codes[1:] == codes[:-1]
    return follows


def _booted_between(
    kept: pa.Table, *, times: NDArray[np.int64], gap: NDArray[np.int64], boots: pa.Table
) -> NDArray[np.bool_]:
    """Return which rows have a boot of their node after the sample before and not after their own."""
    said = boots.select(["node", "boot_time_seconds"]).filter(pc.is_finite(boots.column("boot_time_seconds")))
    # Kernels compute it from the clock, so one boot shows as many times within a second: no sample lies between them.
    by_node: dict[str, set[int]] = {}
    for node, booted_at in zip(
        said.column("node").to_pylist(), said.column("boot_time_seconds").to_pylist(), strict=True
    ):
        if 0 < booted_at < _END_OF_TIME_SECONDS:
            by_node.setdefault(node, set()).add(int(booted_at * 1_000_000))
    has_booted = np.zeros(len(kept), np.bool_)
    encoded = kept.column("node").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    for code, node in enumerate(encoded.dictionary.to_pylist()):
        booted = np.array(sorted(by_node.get(node, ())), np.int64)
        if len(booted):
            rows = order[bounds[code] : bounds[code + 1]]
            until = np.searchsorted(booted, times[rows], side="right")
            since = np.searchsorted(booted, times[rows] - gap[rows], side="right")
            has_booted[rows] = until > since
    return has_booted


def step_seconds(times: pa.ChunkedArray) -> float | None:
    """Return the distance of the grid that the times stand on: the most common one; None for fewer than two times."""
    found = np.sort(pc.unique(times).cast(pa.int64()).to_numpy())
    if len(found) < 2:
        return None
    gaps, counts = np.unique(np.diff(found), return_counts=True)
    return float(gaps[np.argmax(counts)]) / 1e6
