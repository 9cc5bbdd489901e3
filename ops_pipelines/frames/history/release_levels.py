"""Rows of `job_allocations` and of step times -> one number a run: what the gate compares levels by.

Which runs are alike, and what they are compared with, is `domain.lifecycle.gate.like_runs`'.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.domain.lifecycle.gate.like_runs import MeasuredRun

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
    """Those that the rows told of."""


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
    """Yield the attempts whose steps were told for long enough, with the middle of their means of five minutes."""
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
    """Means of five minutes of one job, one a node and stretch."""

    times: NDArray[np.float64]
    nodes: NDArray[np.object_]
    values: NDArray[np.float64]

    def within(self, since: float, until: float) -> "_Steps":
        kept = (self.times >= since) & (self.times + BIN.total_seconds() <= until)
        return _Steps(times=self.times[kept], nodes=self.nodes[kept], values=self.values[kept])

    def by_node(self) -> Mapping[NodeName, float]:
        """Return what single nodes told, of those that told for long enough."""
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
