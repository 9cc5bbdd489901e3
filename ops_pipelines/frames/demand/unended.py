"""Attempts that only `job_allocations` know, and how long those ran whose end nobody told.

The lake's `job_accounting` tells of attempts when they end; who runs is seen in the hours that it held nodes. Here
these hours become rows of accounting, and an attempt that was seen no more before the newest hour ends with its last.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_HOUR = timedelta(hours=1)
_COLUMNS = ("job", "attempt", "node", "time", "account", "partition", "state", "started_at", "ended_at", "gpu_count")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WithRunning:
    """Rows of accounting, with rows of the same form for who runs."""

    attempts: pa.Table
    unseen: int
    """Attempts whose end nobody told, and that the newest hours do not show."""
    alone: int
    """Attempts that accounting does not have: when they were submitted is not known."""


def with_running(attempts: pa.Table, allocations: pa.Table) -> "WithRunning":
    """Return the rows of accounting with what only allocations know."""
    if not allocations.num_rows:
        return WithRunning(attempts=attempts, unseen=0, alone=0)
    covered = pc.max(allocations["time"]).as_py() + _HOUR
    has_end = pc.is_valid(attempts["ended_at"])
    over = attempts.filter(has_end).select(["job", "started_at"])
    # Most attempts are over: what remains is put together, not the hours of all.
    remaining = allocations.select(list(_COLUMNS)).join(over, keys=["job", "started_at"], join_type="left anti")
    running = _by_attempt(remaining).sort_by([("job", "ascending"), ("started_at", "ascending")])
    unseen = 0
    held: dict[tuple[str, datetime], dict[str, object]] = {}
    for row in running.to_pylist():
        if row["ended_at"] is None and row["time"] + _HOUR < covered:
            row["ended_at"] = row["time"] + _HOUR
            unseen += 1
        held[row["job"], row["started_at"]] = row
    told = _with_ends(attempts, held, has_end=has_end)
    return WithRunning(attempts=_appended(told, list(held.values())), unseen=unseen, alone=len(held))


def _with_ends(
    attempts: pa.Table, held: dict[tuple[str, datetime], dict[str, object]], *, has_end: pa.ChunkedArray
) -> pa.Table:
    """Return the rows with the ends that allocations know, and take these attempts out of `held`."""
    places = np.flatnonzero(~has_end.to_numpy())
    known = {}
    some = attempts.select(["job", "started_at"]).take(pa.array(places))
    for place, row in zip(places.tolist(), some.to_pylist(), strict=True):
        if (row["job"], row["started_at"]) in held:
            known[place] = row["job"], row["started_at"]
    if not known:
        return attempts
    ends = attempts["ended_at"].to_pylist()
    for place, key in known.items():
        ends[place] = held[key]["ended_at"]
    for key in set(known.values()):
        del held[key]
    column = attempts.schema.get_field_index("ended_at")
    return attempts.set_column(column, "ended_at", pa.array(ends, attempts.schema.field(column).type))


def _by_attempt(allocations: pa.Table) -> pa.Table:
    """Return a row for each attempt: GPUs and nodes of its nodes, each node once, and its newest hour."""
    node = allocations.group_by(["job", "started_at", "node"]).aggregate(
        [
            ("gpu_count", "max"),
            ("attempt", "min"),
            ("account", "max"),
            ("partition", "max"),
            ("ended_at", "max"),
            ("time", "max"),
        ]
    )
    newest = allocations.sort_by([("time", "ascending"), ("state", "ascending")]).group_by(
        ["job", "started_at"], use_threads=False
    )
    states = newest.aggregate([("state", "last")])
    whole = (
        node.sort_by([("node", "ascending")])
        .group_by(["job", "started_at"], use_threads=False)
        .aggregate(
            [
                ("gpu_count_max", "sum"),
                ("attempt_min", "min"),
                ("account_max", "max"),
                ("partition_max", "max"),
                ("ended_at_max", "max"),
                ("time_max", "max"),
                ("node", "list"),
            ]
        )
    )
    names = {
        "gpu_count_max_sum": "gpu_count", "attempt_min_min": "attempt", "account_max_max": "account",
        "partition_max_max": "partition", "ended_at_max_max": "ended_at", "time_max_max": "time",
        "node_list": "nodes", "state_last": "state",
    }  # fmt: skip
    nodes = pc.binary_join(whole["node_list"], ",")
    whole = whole.set_column(whole.schema.get_field_index("node_list"), "node_list", nodes)
    joined = whole.join(states, keys=["job", "started_at"])
    return joined.rename_columns([names.get(name, name) for name in joined.column_names])


def _appended(attempts: pa.Table, rows: list[dict[str, object]]) -> pa.Table:
    if not rows:
        return attempts
    schema = attempts.schema
    if "gpu_count" in schema.names:
        # GPUs by node are shares, and accounting may not say a number at all: a fraction must not be cut.
        place = schema.get_field_index("gpu_count")
        attempts = attempts.set_column(place, "gpu_count", attempts["gpu_count"].cast(pa.float64()))
        schema = attempts.schema
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    return pa.concat_tables(
        [attempts, pa.table(columns, schema=schema.remove_metadata())], promote_options="permissive"
    )
