"""Rows of `job_allocations` -> when each node was at work, and which attempts ended badly: what the gate counts with.

An attempt stands there once an hour and node. Which times count is `domain.lifecycle.gate.compared_times`'.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import Stretch
from ops_pipelines.domain.lifecycle.gate.evidence import EventKind
from ops_pipelines.domain.lifecycle.gate.seen_events import SeenEvent, Worked

_HOUR = timedelta(hours=1)
_NODE_FAIL, _FAILED = "NODE_FAIL", "FAILED"


def since_when_known(allocations: pa.Table) -> datetime | None:
    """Return the first hour that is told of; None where nothing is."""
    first: datetime | None = pc.min(allocations["time"]).as_py()
    return None if first is None else first.astimezone(UTC)


def known_until(allocations: pa.Table) -> datetime | None:
    """Return the end of the last hour that is told of; None where nothing is."""
    last: datetime | None = pc.max(allocations["time"]).as_py()
    return None if last is None else last.astimezone(UTC) + _HOUR


def work_times(allocations: pa.Table, *, now: datetime) -> Worked:
    """Return when jobs held each node, in order and without overlaps.

    An attempt without an end ran at least to the end of the last hour in which it stands.
    """
    rows = allocations.filter(pc.is_valid(allocations["started_at"]))
    if not rows.num_rows:
        return {}
    attempts = rows.group_by(["node", "job", "attempt"], use_threads=False).aggregate(
        [("started_at", "min"), ("ended_at", "max"), ("time", "max")]
    )
    begins = _seconds(attempts["started_at_min"])
    seen_until = _seconds(attempts["time_max"]) + _HOUR.total_seconds()
    ended = attempts["ended_at_max"]
    known = pc.is_valid(ended).to_numpy(zero_copy_only=False)
    ends = np.minimum(np.where(known, _seconds(ended), seen_until), now.timestamp())
    codes = attempts["node"].combine_chunks().dictionary_encode()
    return _merged(codes.indices.to_numpy(), codes.dictionary.to_pylist(), begins, ends)


def of_one_node(allocations: pa.Table) -> pa.Table:
    """Return the rows of attempts on a single node: of these it is known where they failed."""
    return allocations.filter(pc.fill_null(pc.equal(allocations["node_count"], 1), False))


def failed_attempts(allocations: pa.Table) -> Iterator[SeenEvent]:
    """Yield what ended attempts on a single node: the node, or something in the job.

    Who corrects a program fails many times a day, with whatever node: of one user one failure a day counts.
    """
    rows = of_one_node(allocations)
    rows = rows.filter(pc.and_(pc.is_valid(rows["ended_at"]), pc.is_valid(rows["state"])))
    rows = rows.filter(
        pc.or_(pc.starts_with(rows["state"], pattern=_NODE_FAIL), pc.starts_with(rows["state"], pattern=_FAILED))
    )
    seen: set[tuple[str, str]] = set()
    for row in rows.select(["job", "attempt", "node", "user", "account", "state", "ended_at"]).to_pylist():
        if (row["job"], row["attempt"]) in seen:
            continue
        seen.add((row["job"], row["attempt"]))
        at = row["ended_at"].astimezone(UTC)
        if row["state"].startswith(_NODE_FAIL):
            yield SeenEvent(kind=EventKind.NODE_FAILURE, node=NodeName(row["node"]), at=at)
        else:
            whose = f"{row['user'] or ''}/{row['account'] or ''} on {at:%Y-%m-%d}"
            yield SeenEvent(kind=EventKind.JOB_FAILURE, node=NodeName(row["node"]), at=at, cause=whose)


def _seconds(column: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return times as seconds since 1970; 0 for none."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), dtype=np.float64) / 1e6


def _merged(
    codes: np.ndarray[tuple[int], np.dtype[np.int32]],
    names: list[str],
    begins: np.ndarray[tuple[int], np.dtype[np.float64]],
    ends: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Worked:
    kept = ends > begins
    codes, begins, ends = codes[kept], begins[kept], ends[kept]
    if not len(codes):
        return {}
    order = np.lexsort((begins, codes))
    codes, begins, ends = codes[order], begins[order], ends[order]
    # One running maximum over all nodes: each node's times lie beyond those of the node before it.
    apart = codes.astype(np.float64) * (float(ends.max() - begins.min()) + 1.0)
    reached = np.maximum.accumulate(ends - begins.min() + apart)
    is_first = np.append(True, (codes[1:] != codes[:-1]) | (begins[1:] - begins.min() + apart[1:] > reached[:-1]))
    starts = np.flatnonzero(is_first)
    last = np.maximum.reduceat(ends, starts)
    found: dict[NodeName, list[Stretch]] = {}
    for code, begin, end in zip(codes[starts].tolist(), begins[starts].tolist(), last.tolist(), strict=True):
        found.setdefault(NodeName(names[code]), []).append(
            Stretch(begins_at=datetime.fromtimestamp(begin, UTC), ends_at=datetime.fromtimestamp(end, UTC))
        )
    return found
