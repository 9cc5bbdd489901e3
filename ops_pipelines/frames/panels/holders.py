"""Which job held which node as a whole, at each grid time: what the exporter says, else the scheduler, else accounting.

Whose efficiency a shared node's GPUs are, is `gpu_holds`; here a node that several jobs share, or one holds in part,
is held by none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobState, JobStatus
from ops_pipelines.frames.panels.devices import nodes_of
from ops_pipelines.frames.panels.grid import Grid, Ints, Parts, codes_of, float_values
from ops_pipelines.frames.panels.jobs import is_job_id
from ops_pipelines.lake.hours import microseconds

Holders = NDArray[np.int32]
"""(times, nodes) -> place of the job; UNSAID, or NOBODY."""
UNSAID, NOBODY = -2, -1
_HOUR_MICROSECONDS = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Who held what from when to when, one entry a job and node. All arrays have one entry a span."""

    node: Ints
    job: Ints
    first: Ints
    """Grid row from which on it held the node."""
    end: Ints
    is_whole: NDArray[np.bool_]
    """It held all GPUs of the node, as far as anyone says."""
    jobs: tuple[str, ...]


def spans_of_jobs(jobs: Sequence[JobStatus], *, nodes: Sequence[str], gpus_per_node: int | None, grid: Grid) -> Spans:
    """Return what the attempt of each job holds, as the scheduler says; a job without GPUs holds none."""
    position = {node: place for place, node in enumerate(nodes)}
    held = [
        (position[node], number, job)
        for number, job in enumerate(jobs)
        if job.started_at is not None and job.gpu_count > 0 and _has_run(job)
        for node in sorted(job.nodes)
        if node in position
    ]
    return Spans(
        node=np.array([place for place, _, _ in held], dtype=np.int64),
        job=np.array([number for _, number, _ in held], dtype=np.int64),
        first=grid.edge_rows(np.array([_micro(job.started_at) for _, _, job in held], dtype=np.int64), missing=0),
        end=grid.edge_rows(np.array([_micro(job.ended_at) for _, _, job in held], dtype=np.int64), missing=grid.count),
        is_whole=np.array(
            [gpus_per_node is None or job.gpu_count >= gpus_per_node * len(job.nodes) for _, _, job in held], dtype=bool
        ),
        jobs=tuple(job.job for job in jobs),
    )


def spans_of_allocations(rows: pa.Table, *, nodes: Sequence[str], gpus_per_node: int | None, grid: Grid) -> Spans:
    """Return what rows of `job_allocations` say: each within the hour that it is of."""
    job, jobs = codes_of(rows["job"])
    node, words = codes_of(rows["node"])
    position = {each: place for place, each in enumerate(nodes)}
    hour = microseconds(rows["time"])
    began, ended = microseconds(rows["started_at"]), microseconds(rows["ended_at"])
    none = np.iinfo(np.int64).min
    first = np.maximum(np.where(began == none, hour, began), hour)
    end = np.minimum(np.where(ended == none, hour + _HOUR_MICROSECONDS, ended), hour + _HOUR_MICROSECONDS)
    count = float_values(rows["gpu_count"]) if "gpu_count" in rows.column_names else np.full(rows.num_rows, np.nan)
    place = np.array([position.get(word, -1) for word in words] or [-1], dtype=np.int64)[node]
    kept = (place >= 0) & (job >= 0) & (count != 0) & (first < end)
    return Spans(
        node=place[kept],
        job=job[kept],
        first=grid.edge_rows(first[kept], missing=0),
        end=grid.edge_rows(end[kept], missing=0),
        is_whole=np.isnan(count[kept]) | (gpus_per_node is None) | (count[kept] >= (gpus_per_node or 0)),
        jobs=tuple(jobs),
    )


def holders_by_spans(spans: Spans, *, node_count: int, grid: Grid) -> Holders:
    """Return who held each node: the one job whose span covers the time, if it holds the node as a whole."""
    shape = (grid.count + 1, node_count)
    counts, sums, parts = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for total, weight in ((counts, 1), (sums, spans.job), (parts, (~spans.is_whole).astype(np.int64))):
        np.add.at(total, (spans.first, spans.node), weight)
        np.add.at(total, (spans.end, spans.node), -weight)
        np.cumsum(total, axis=0, out=total)
    held = np.where((counts == 1) & (parts == 0), sums, NOBODY)
    return np.where(counts == 0, UNSAID, held)[:-1].astype(np.int32)


def holders_by_labels(gpus: Parts, *, nodes: Sequence[str]) -> tuple[Holders, tuple[str, ...]]:
    """Return who held each node by the `job` label of its GPUs, and the jobs by place.

    A node whose GPUs name two jobs, a list of jobs, or only in part a job, is held by nobody as a whole. While none of
    its GPUs has a sample, the last word counts: silence ends no job. A label that is no job id says nothing.
    """
    held = np.full((gpus.row_count, len(nodes)), UNSAID, dtype=np.int32)
    cells, words = gpus.cells_of_text("job")
    nothing = len(words)
    if not words or not cells.size:
        return held, ()
    owners, starts = nodes_of(gpus.names)
    low = np.minimum.reduceat(np.where(cells < 0, nothing, cells), starts, axis=1)
    high = np.maximum.reduceat(cells, starts, axis=1)
    meaning = np.array(
        [NOBODY if "," in word else place if is_job_id(word) else UNSAID for place, word in enumerate(words)]
    )
    found = np.where(low == high, np.append(meaning, UNSAID)[low], NOBODY)
    seen = np.maximum.accumulate(np.where(high >= 0, np.arange(gpus.row_count)[:, None], -1), axis=0)
    found = np.where(seen >= 0, np.take_along_axis(found, np.maximum(seen, 0), axis=0), UNSAID)
    position = {node: place for place, node in enumerate(nodes)}
    held[:, [position[owner] for owner in owners]] = found
    return held, tuple(words)


def _has_run(job: JobStatus) -> bool:
    return job.state in MAY_HAVE_PROCESSES or (job.ended_at is not None and job.state is not JobState.PENDING)


def _micro(at: datetime | None) -> int:
    return np.iinfo(np.int64).min if at is None else round(at.timestamp() * 1_000_000)
