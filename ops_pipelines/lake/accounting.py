"""What the accounting says: attempts that ended in an interval of time, who held which node when, and who waits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa

from ops_pipelines.lake.formats import sacct, slurm
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.lake.quantities import Parsed
from ops_pipelines.lake.schema import TABLES

_HOUR = timedelta(hours=1)


def read_ended(body: bytes, *, source: str, start: datetime) -> Parsed:
    """Return `job_accounting` and `job_steps` of attempts that ended: one is accounted once, whenever it began."""
    return sacct.parse(body, source=source, at=start)


def read_held(body: bytes, *, source: str, start: datetime, end: datetime) -> Parsed:
    """Return `job_allocations` in [start, end), both whole hours, of attempts that overlap it."""
    parsed = sacct.parse(body, source=source, at=start)
    attempts = parsed.tables.get("job_accounting")
    held = None if attempts is None else allocations_of(attempts, start=start, end=end)
    return replace(parsed, tables={} if held is None or not held.num_rows else {"job_allocations": held})


def read_waiting(body: bytes, *, source: str, at: datetime) -> Parsed:
    """Return rows of `job_accounting` for jobs that wait at `at`: text of sacct, or a listing of squeue."""
    parsed = slurm.parse(body, source=source, at=at)
    rows = parsed.tables.get("job_accounting")
    return replace(parsed, tables={} if rows is None or not rows.num_rows else {"job_accounting": rows})


def allocations_of(attempts: pa.Table, *, start: datetime, end: datetime) -> pa.Table:
    """Return the allocations in each hour of [start, end) of attempts as `job_accounting` has them.

    GPUs are shared out evenly among an attempt's nodes: accounting does not say which node held how many.
    """
    return TABLES["job_allocations"].from_rows(_allocations(attempts, start=start, end=end))


def _allocations(attempts: pa.Table, *, start: datetime, end: datetime) -> Iterator[Mapping[str, object]]:
    for attempt in attempts.to_pylist():
        began_at, ended_at = attempt["started_at"], attempt["ended_at"]
        if began_at is None or began_at >= end or (ended_at is not None and ended_at <= start):
            continue
        nodes = _nodes_of(attempt["nodes"])
        hour = max(start, began_at.replace(minute=0, second=0, microsecond=0))
        while hour < end and (ended_at is None or hour < ended_at):
            until = min(hour + _HOUR, ended_at or end)
            held_seconds = (until - max(hour, began_at)).total_seconds()
            for node in nodes:
                yield {
                    **{name: attempt[name] for name in _CARRIED},
                    "node": node,
                    "time": hour,
                    "held_seconds": held_seconds,
                    "node_count": len(nodes),
                    "gpu_count": None if attempt["gpu_count"] is None else attempt["gpu_count"] / len(nodes),
                }
            hour += _HOUR


_CARRIED = ("job", "attempt", "name", "user", "account", "partition", "state", "started_at", "ended_at", "source")


def _nodes_of(host_list: str | None) -> tuple[str, ...]:
    """Return the nodes of a host list; none if it cannot be read: `None assigned` is one such."""
    try:
        return tuple(expand_host_list(host_list)) if host_list else ()
    except ValueError:
        return ()
