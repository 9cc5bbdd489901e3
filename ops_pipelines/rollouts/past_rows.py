"""Rows of the lake -> what the gate counts and compares: work, endings, levels, versions.

An attempt is there once an hour and node. Which times count is `rollouts.gate.seen_events`'.

Which runs are alike, and what they are compared with, is `rollouts.gate.measures`'.

For nodes that do not tell it themselves. Parts of one node that disagree are reported together, in order.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.periods import Interval
from ops_pipelines.core.release import Component
from ops_pipelines.rollouts.gate.evidence import EventKind
from ops_pipelines.rollouts.gate.measures import MeasuredRun
from ops_pipelines.rollouts.gate.seen_events import SeenEvent, Worked
from ops_pipelines.rollouts.versions import SeenVersion, Spot

# -- rows of `job_allocations` -> when each node was at work --


_HOUR = timedelta(hours=1)
_NODE_FAIL, _FAILED = "NODE_FAIL", "FAILED"


def since_when_known(allocations: pa.Table) -> datetime | None:
    """Return the first hour of which anything is known; None where nothing is."""
    first: datetime | None = pc.min(allocations["time"]).as_py()
    return None if first is None else first.astimezone(UTC)


def known_until(allocations: pa.Table) -> datetime | None:
    """Return the end of the last hour of which anything is known; None where nothing is."""
    last: datetime | None = pc.max(allocations["time"]).as_py()
    return None if last is None else last.astimezone(UTC) + _HOUR


def work_times(allocations: pa.Table, *, now: datetime) -> Worked:
    """Return when jobs held each node, in order and without overlaps.

    An attempt without an end ran at least to the end of the last hour in which it is.
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
    found: dict[NodeName, list[Interval]] = {}
    for code, begin, end in zip(codes[starts].tolist(), begins[starts].tolist(), last.tolist(), strict=True):
        found.setdefault(NodeName(names[code]), []).append(
            Interval(begins_at=datetime.fromtimestamp(begin, UTC), ends_at=datetime.fromtimestamp(end, UTC))
        )
    return found


# -- rows of `job_allocations` and of step times -> one number a run --


BIN = timedelta(minutes=5)
WARM_UP = timedelta(minutes=5)
"""# Assumption: what compiles, loads and fills caches is over by then; until then steps say nothing."""
FEWEST_BINS = 2
"""# Assumption: ten minutes of steps tell how fast a run is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one job that held nodes."""

    job: JobId
    program: tuple[str, ...]
    started_at: datetime
    ended_at: datetime | None
    nodes: frozenset[NodeName]
    """Those that the rows reported of."""


def attempts_on(allocations: pa.Table, nodes: Collection[NodeName]) -> tuple[Attempt, ...]:
    """Return the attempts that held any of `nodes`, by job and start, each with all nodes that the rows tell of."""
    rows = allocations.filter(pc.is_valid(allocations["started_at"]))
    named = rows.filter(pc.is_in(rows["node"], value_set=pa.array(sorted(nodes), pa.string())))
    jobs = pc.unique(named["job"])
    rows = rows.filter(pc.is_in(rows["job"], value_set=jobs.combine_chunks() if hasattr(jobs, "chunks") else jobs))
    if not rows.num_rows:
        return ()
    keys = ["job", "attempt", "started_at", "user", "account", "name", "node_count"]
    grouped = rows.group_by(keys, use_threads=False).aggregate([("ended_at", "max"), ("node", "distinct")])
    found = [
        Attempt(
            job=JobId(row["job"]),
            program=(row["user"] or "", row["account"] or "", row["name"] or "", str(row["node_count"] or 0)),
            started_at=row["started_at"].astimezone(UTC),
            ended_at=None if row["ended_at_max"] is None else row["ended_at_max"].astimezone(UTC),
            nodes=frozenset(NodeName(name) for name in row["node_distinct"]),
        )
        for row in grouped.to_pylist()
    ]
    asked = frozenset(nodes)
    return tuple(sorted((each for each in found if each.nodes & asked), key=lambda each: (each.job, each.started_at)))


def measure_runs(attempts: Collection[Attempt], steps: pa.Table) -> Iterator[MeasuredRun]:
    """Yield the attempts whose steps were reported for long enough, with the middle of their means of five minutes."""
    by_job = _by_job(steps)
    for each in attempts:
        told = by_job.get(each.job)
        if told is None:
            continue
        since = (each.started_at + WARM_UP).timestamp()
        until = np.inf if each.ended_at is None else each.ended_at.timestamp()
        own = told.within(since, until)
        if len(np.unique(own.times)) < FEWEST_BINS:
            continue
        yield MeasuredRun(
            program=each.program,
            job=each.job,
            started_at=each.started_at,
            nodes=each.nodes,
            value=float(np.median(own.values)),
            of_nodes=own.by_node(),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """Means of five minutes of one job, one a node and interval."""

    times: NDArray[np.float64]
    nodes: NDArray[np.object_]
    values: NDArray[np.float64]

    def within(self, since: float, until: float) -> "_Steps":
        kept = (self.times >= since) & (self.times + BIN.total_seconds() <= until)
        return _Steps(times=self.times[kept], nodes=self.nodes[kept], values=self.values[kept])

    def by_node(self) -> Mapping[NodeName, float]:
        """Return what single nodes reported, of those that reported for long enough."""
        found = {}
        for name in np.unique(self.nodes).tolist():
            own = self.values[self.nodes == name]
            if name and len(own) >= FEWEST_BINS:
                found[NodeName(name)] = float(np.median(own))
        return found


def _by_job(steps: pa.Table) -> Mapping[JobId, _Steps]:
    """Return the means of five minutes of each job; samples that are no positive number are passed over."""
    values = steps["step_seconds"]
    kept = steps.filter(pc.fill_null(pc.and_(pc.is_finite(values), pc.greater(values, 0.0)), False))
    if not kept.num_rows:
        return {}
    bins = pc.floor_temporal(kept["time"], multiple=int(BIN.total_seconds() // 60), unit="minute")
    means = (
        pa.table({"device": kept["device"], "node": kept["node"], "bin": bins, "step_seconds": kept["step_seconds"]})
        .group_by(["device", "node", "bin"], use_threads=False)
        .aggregate([("step_seconds", "mean")])
        .sort_by([("device", "ascending"), ("bin", "ascending"), ("node", "ascending")])
    )
    devices = np.asarray(means["device"].to_pylist(), dtype=np.object_)
    times = np.asarray(means["bin"].cast(pa.int64()).to_numpy(), dtype=np.float64) / 1e6
    nodes = np.asarray(means["node"].to_pylist(), dtype=np.object_)
    found = np.asarray(means["step_seconds_mean"].to_numpy(), dtype=np.float64)
    starts = np.flatnonzero(np.append(True, devices[1:] != devices[:-1]))
    ends = np.append(starts[1:], len(devices))
    return {
        JobId(devices[start].removeprefix("job:")): _Steps(
            times=times[start:end], nodes=nodes[start:end], values=found[start:end]
        )
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    }


# -- rows of `inventory` -> which version of what each node had when they were written --


_COLUMNS = ("node", "time", "kind", "model", "driver_version", "firmware_version", "vbios_version", "kernel_version")
_NETWORK = frozenset({"nic", "port"})
_WHERE: Mapping[str, tuple[tuple[str, Component], ...]] = {
    "node": (("driver_version", Component.DRIVER), ("kernel_version", Component.KERNEL)),
    "gpu": (("driver_version", Component.DRIVER), ("vbios_version", Component.GPU_VBIOS)),
    **dict.fromkeys(_NETWORK, (("firmware_version", Component.NIC_FIRMWARE),)),
    "bmc": (("firmware_version", Component.BMC),),
}
"""Kind of part -> which column reports the version of which component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryVersions:
    """What one inventory says."""

    seen: Mapping[Spot, SeenVersion]
    models: Mapping[Spot, frozenset[str]]
    """Models of the parts whose firmware a component is, by node."""


def inventory_versions(rows: pa.Table) -> InventoryVersions:
    """Return the versions and part models of each node."""
    found: defaultdict[Spot, set[str]] = defaultdict(set)
    times: dict[Spot, datetime] = {}
    models: defaultdict[Spot, set[str]] = defaultdict(set)
    for row in rows.select([name for name in _COLUMNS if name in rows.column_names]).to_pylist():
        if not row["node"]:
            continue
        node = NodeName(row["node"])
        for column, component in _WHERE.get(row["kind"] or "", ()):
            version = row.get(column)
            if row["model"] and component in (Component.GPU_VBIOS, Component.NIC_FIRMWARE):
                models[node, component].add(row["model"])
            if version:
                at = row["time"].astimezone(UTC)
                found[node, component].add(version)
                times[node, component] = max(times.get((node, component), at), at)
    return InventoryVersions(
        seen={
            spot: SeenVersion(version=" / ".join(sorted(versions)), seen_at=times[spot], is_live=False)
            for spot, versions in found.items()
        },
        models={spot: frozenset(names) for spot, names in models.items()},
    )
