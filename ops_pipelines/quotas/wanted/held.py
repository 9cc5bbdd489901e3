"""Which type of GPU attempts held or wait for, how long those ran that never ended, and what was held unused.

Accounting has no type. A cluster of which no type is known has one, called ``.

The lake's `job_accounting` tells of attempts when they end; who runs is seen in the hours that it held nodes. Here
these hours become rows of accounting, and an attempt that was seen no more before the newest hour ends with its last.

Idle is what the rules call idle. Of a row where half of the GPUs or more do nothing beside others that work, half is
counted: that much is known. What somebody wanted is not decided here.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.quotas.wanted.attempts import Texts

# -- which type of GPU attempts held, from their nodes --


UNTOLD = GpuType("")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTypes:
    """Where which type is built in."""

    by_node: Mapping[NodeName, GpuType] = field(default_factory=dict)
    by_partition: Mapping[str, GpuType] = field(default_factory=dict)

    @property
    def names(self) -> tuple[GpuType, ...]:
        """All types that can come out, in alphabetical order: what cannot be told first."""
        return tuple(sorted({UNTOLD, *self.by_node.values(), *self.by_partition.values()}))

    @property
    def only(self) -> GpuType | None:
        """The type of the whole cluster if it has one, None if it has several."""
        found = {*self.by_node.values(), *self.by_partition.values()}
        return next(iter(found)) if len(found) == 1 else None if found else UNTOLD

    def of_nodes(self, host_list: str) -> Mapping[GpuType, float]:
        """Return what share of the GPUs of an attempt on these nodes is of which type."""
        nodes = self._nodes(host_list)
        counts = Counter(self.by_node.get(node, UNTOLD) for node in nodes)
        return {kind: count / len(nodes) for kind, count in sorted(counts.items())} or {UNTOLD: 1.0}

    def of_node(self, node: str) -> GpuType:
        return self.by_node.get(NodeName(node), UNTOLD)

    def wanted_in(self, partition: str) -> GpuType:
        """Return the type that a job in a partition, or in one of several `a,b`, waits for."""
        if self.only is not None:
            return self.only
        found = {self.by_partition.get(name, UNTOLD) for name in partition.split(",")}
        return found.pop() if len(found) == 1 else UNTOLD

    @staticmethod
    def _nodes(host_list: str) -> Sequence[NodeName]:
        try:
            return expand_host_list(host_list) if host_list else ()
        except ValueError:
            return ()


def partition_types(inventory: pa.Table, by_node: Mapping[NodeName, GpuType]) -> Mapping[str, GpuType]:
    """Return the type of each partition whose nodes all have it, by rows of the inventory."""
    found: dict[str, set[GpuType]] = {}
    for node, partitions in zip(inventory["node"].to_pylist(), inventory["partitions"].to_pylist(), strict=True):
        for name in (partitions or "").split(","):
            if name:
                found.setdefault(name, set()).add(by_node.get(NodeName(node), UNTOLD))
    return {name: kinds.pop() for name, kinds in sorted(found.items()) if len(kinds) == 1 and UNTOLD not in kinds}


def shares_of(host_lists: Texts, types: GpuTypes) -> Sequence[Mapping[GpuType, float]]:
    """Return the shares of each distinct host list, in the order of its words. Each is read once."""
    if not types.by_node:
        return [{types.only or UNTOLD: 1.0}] * len(host_lists.words)
    return [types.of_nodes(word) for word in host_lists.words]


# -- attempts that only `job_allocations` know --


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


# -- verdicts of `gpu_efficiency` -> GPUs that a team held and nothing ran on, by hour --


_IDLE = "idle"
_HALF_IDLE = "half_idle"
_HOUR_SECONDS = 3600.0

Wasted = Mapping[tuple[TeamName, GpuType, datetime], float]


def read_waste(efficiency: pa.Table, *, types: GpuTypes) -> tuple[Wasted, float]:
    """Return mean idle GPUs by team, type and hour, and the GPU-hours of rows that name no account.

    Of jobs that share GPUs which cannot be told apart each counts all of them: whoever uses the sums bounds them.
    """
    idle = efficiency.filter(pc.fill_null(pc.equal(efficiency["verdict"], _IDLE), False))
    # GPUs that nobody held belong to no team.
    idle = idle.filter(pc.not_equal(idle["job"], ""))
    found: defaultdict[tuple[TeamName, GpuType, datetime], float] = defaultdict(float)
    untold = 0.0
    names = ("node", "time", "account", "rule", "gpu_count", "held_seconds")
    columns = [idle[name].to_pylist() for name in names]
    for node, time, account, rule, count, seconds in sorted(
        zip(*columns, strict=True), key=lambda row: (row[1], row[0], row[2] or "", row[4] or 0.0)
    ):
        gpus = (count or 0.0) * (seconds or 0.0) / _HOUR_SECONDS * (0.5 if rule == _HALF_IDLE else 1.0)
        if account:
            found[TeamName(account), types.of_node(node), time] += gpus
        else:
            untold += gpus
    return dict(found), untold
