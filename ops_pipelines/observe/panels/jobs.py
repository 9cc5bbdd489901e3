"""Jobs on a panel: which job held which node, what jobs report; and several devices of a node as one number.

A sum that lacks a device is no sum: a port that was not read must not look like traffic that stopped.

Whose efficiency a shared node's GPUs are, is `efficiency.gpu_sums`; here a node that several jobs share, or one holds
in part, is held by none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ops_pipelines.core.identity import parse_job_id
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, NO_NODE, JobState, JobStatus
from ops_pipelines.lake.hours import microseconds
from ops_pipelines.observe.logs.matching import read_rules
from ops_pipelines.observe.panels.grid import (
    Floats,
    Grid,
    Ints,
    Matrix,
    Name,
    Parts,
    begins_with,
    codes_of,
    float_values,
)
from ops_pipelines.observe.panels.panel import Layer, Part, held_lately

# -- several devices of a node -> one number of the node --


REMEMBERED_SECONDS = 300
"""A device that was seen within so long is expected; one that is away for longer is gone, as a share unmounted."""


def nodes_of(names: Sequence[Name]) -> tuple[list[str], Ints]:
    """Return the nodes of parts that stand node by node, and where the parts of each begin."""
    owners = [node for node, _ in names]
    starts = [place for place, node in enumerate(owners) if place == 0 or node != owners[place - 1]]
    return [owners[start] for start in starts], np.array(starts, dtype=np.int64)


def summed_counters(samples: Matrix, *, starts: Ints, grid: Grid) -> Matrix:
    """Return for each node a counter that grows as all its devices together do; shape (times, nodes).

    NaN where a device that is expected has no sample. A device that appears adds what it counts from then on. Where
    the counter of a device falls, the node's begins again at 0: what was counted in between is not known.
    """
    count = len(samples)
    if not count:
        return np.full((0, len(starts)), np.nan)
    known = ~np.isnan(samples)
    newest = np.maximum.accumulate(np.where(known, np.arange(count)[:, None], -1), axis=0)
    filled = np.where(newest >= 0, np.take_along_axis(samples, np.maximum(newest, 0), axis=0), np.nan)
    lately = grid.row_count_of(REMEMBERED_SECONDS)
    grown = np.zeros(samples.shape)
    grown[1:] = np.nan_to_num(np.subtract(filled[1:], filled[:-1], dtype=np.float64))
    # One that was away for long is as good as new: what it counted meanwhile did not happen in one step.
    grown[1:][np.arange(1, count)[:, None] - newest[:-1] > lately] = 0
    has_fallen = np.add.reduceat(grown < 0, starts, axis=1, dtype=np.int64) > 0
    total = np.cumsum(np.add.reduceat(np.maximum(grown, 0), starts, axis=1), axis=0)
    beginnings = np.nan_to_num(filled[_first_rows(known, starts), np.arange(samples.shape[1])])
    first = np.add.reduceat(beginnings, starts, dtype=np.float64)
    restart = np.maximum.accumulate(np.where(has_fallen, np.arange(count)[:, None], -1), axis=0)
    since = np.take_along_axis(total, np.maximum(restart, 0), axis=0)
    summed = np.where(restart >= 0, total - since, total + first)
    expected = held_lately(known, lately)
    there, wanted = (np.add.reduceat(flags, starts, axis=1, dtype=np.int64) for flags in (known, expected))
    summed[(there == 0) | (there < wanted)] = np.nan
    return summed


def least(samples: Matrix, *, starts: Ints) -> Matrix:
    """Return the least known value over the devices of each node; NaN where none is known."""
    found: Matrix = np.fmin.reduceat(samples, starts, axis=1)
    return found


def most(samples: Matrix, *, starts: Ints) -> Matrix:
    """Return the greatest known value over the devices of each node; NaN where none is known."""
    found: Matrix = np.fmax.reduceat(samples, starts, axis=1)
    return found


def _first_rows(known: Matrix, starts: Ints) -> Ints:
    """Return for each device the row at which its node is first known: what it has counted by then is the beginning."""
    any_known = np.add.reduceat(known, starts, axis=1, dtype=np.int64) > 0
    rows = np.where(any_known.any(axis=0), any_known.argmax(axis=0), 0)
    return np.asarray(np.repeat(rows, np.diff(starts, append=known.shape[1])), dtype=np.int64)


# -- what jobs say of themselves -> the layer of jobs --


_JOB_DEVICE = "job:"
_REFUSED_LOSS = re.compile(r'^training_loss\{(?:[^}]*,)?job_id="([^"]{1,250})"')
_COLUMNS = ("step_count", "loss", "step_seconds", "line_count")
NO_COLUMN = -1
"""What `Panel.held_by` says of a node that nobody holds."""


@dataclass(slots=True)
class JobMatrices:
    """Cells of jobs, filled source by source. A job gets its column when it is first named.

    Labels are untrusted: one that is no job id (`is_job_id`) has no column, and its cells are dropped.
    """

    grid: Grid
    jobs: dict[str, int] = field(default_factory=dict)
    cells: dict[str, list[tuple[Ints, Ints, Floats]]] = field(default_factory=dict)

    def column(self, job: str) -> int:
        """Return the column of a job; NO_COLUMN where `job` is no job id."""
        return self.jobs.setdefault(job, len(self.jobs)) if is_job_id(job) else NO_COLUMN

    def add(self, name: str, *, rows: Ints, columns: Ints, values: Floats) -> None:
        kept = columns != NO_COLUMN
        self.cells.setdefault(name, []).append((rows[kept], columns[kept], values[kept]))

    def matrix(self, name: str) -> Floats:
        """Return a quantity as (times, jobs); of one cell the later value counts, and infinity before all."""
        matrix = np.full((self.grid.count, len(self.jobs)), np.nan)
        for rows, columns, values in self.cells.get(name, ()):
            known = ~np.isnan(values)
            matrix[rows[known], columns[known]] = values[known]
        for rows, columns, values in self.cells.get(name, ()):
            endless = np.isposinf(values)
            matrix[rows[endless], columns[endless]] = np.inf
        return matrix


def is_job_id(label: str) -> bool:
    """Return whether a label names a job: all that leaves a panel as a job may reach a command line."""
    try:
        parse_job_id(label)
    except ValueError:
        return False
    return True


def add_application(found: JobMatrices, rows: pa.Table) -> None:
    """Take in what jobs export. A loss that is no number is infinite."""
    rows = rows.filter(begins_with(rows["device"], [_JOB_DEVICE]))
    if not rows.num_rows:
        return
    placed, rows = _on_grid(rows, found.grid)
    devices, words = codes_of(rows["device"])
    columns = np.array([found.column(word.removeprefix(_JOB_DEVICE)) for word in words], dtype=np.int64)[devices]
    for name in ("step_count", "loss", "step_seconds"):
        if name in rows.column_names:
            values = _losses(rows[name]) if name == "loss" else float_values(rows[name])
            found.add(name, rows=placed, columns=columns, values=values)


def add_refused_losses(found: JobMatrices, rows: pa.Table) -> None:
    """Take in the losses of exporters that the gates refused because they were no numbers (`rejected_rows`)."""
    rows = rows.filter(pc.and_(pc.equal(rows["reason"], "not_finite"), pc.equal(rows["into"], "application_telemetry")))
    placed, rows = _on_grid(rows, found.grid)
    for row, text in zip(placed.tolist(), rows["text"].to_pylist(), strict=True):
        match = _REFUSED_LOSS.match(text or "")
        if match is not None:
            cell = np.array([row]), np.array([found.column(match[1])])
            found.add("loss", rows=cell[0], columns=cell[1], values=np.array([np.inf]))


def add_lines(found: JobMatrices, rows: pa.Table, *, until: datetime | None) -> None:
    """Take in the lines of jobs: how many there were, and what they say of steps and loss.

    `until` is the time up to which the logs were read: later the count is not known, which is no silence. The step
    and the loss that a line names stand until a line names another, for jobs that export none.
    """
    grid = found.grid
    placed, rows = _on_grid(rows.filter(pc.is_valid(rows["job"])), grid)
    if not rows.num_rows:
        return
    order = np.argsort(microseconds(rows["time"]), kind="stable")
    rows, placed = rows.take(pa.array(order)), placed[order]
    codes, words = codes_of(rows["job"])
    own = np.array([found.column(word) for word in words], dtype=np.int64)
    read_count = grid.count
    if until is not None:
        read_count = int(grid.edge_rows(np.array([round(until.timestamp() * 1e6) + 1]), missing=0)[0])
    shape = (grid.count, len(words))
    losses = _losses_of_lines(rows)
    is_broken = np.isinf(losses)
    # A loss that is no number is stated of its own step only: the next one may be well.
    found.add("loss", rows=placed[is_broken], columns=own[codes][is_broken], values=losses[is_broken])
    standing = {
        "line_count": _counts(placed, codes, shape=shape),
        "step_count": _standing(placed, codes, _numbers(rows, "step"), shape=shape),
        "loss": _standing(placed, codes, np.where(is_broken, np.nan, losses), shape=shape),
    }
    for name, matrix in standing.items():
        exported = {
            column
            for _, columns, values in found.cells.get(name, ())
            for column in np.unique(columns[np.isfinite(values)]).tolist()
        }
        matrix[:, [number for number, column in enumerate(own.tolist()) if column in exported]] = np.nan
        matrix[read_count:] = np.nan
        at, which = np.nonzero(~np.isnan(matrix))
        found.add(name, rows=at, columns=own[which], values=matrix[at, which])
    found.add("step_seconds", rows=placed, columns=own[codes], values=_numbers(rows, "step_seconds"))


def job_layer(found: JobMatrices) -> Layer:
    """Return the layer, its jobs in the order of their names."""
    names = sorted(found.jobs)
    order = np.array([found.jobs[name] for name in names], dtype=np.int64)
    values = {name: found.matrix(name)[:, order] for name in _COLUMNS if found.cells.get(name)}
    return Layer(
        parts=tuple(Part(node=NO_NODE, device=name) for name in names),
        values=values,
        step_seconds=found.grid.step_seconds,
    )


def _counts(placed: Ints, codes: Ints, *, shape: tuple[int, ...]) -> Floats:
    """Return how many lines of each column there were; NaN before the first: nobody knows whether its log is read."""
    counts = np.zeros(shape)
    np.add.at(counts, (placed, codes), 1.0)
    counts = np.cumsum(counts, axis=0)
    return np.where(counts == 0, np.nan, counts)


def _standing(placed: Ints, codes: Ints, values: Floats, *, shape: tuple[int, ...]) -> Floats:
    """Return the newest value of each column at each row, as long as no other is stated."""
    matrix = np.full(shape, np.nan)
    known = ~np.isnan(values)
    # Ranks of one job write the same step, and not at once.
    np.fmax.at(matrix, (placed[known], codes[known]), values[known])
    said = np.maximum.accumulate(np.where(np.isnan(matrix), -1, np.arange(shape[0])[:, None]), axis=0)
    return np.where(said >= 0, np.take_along_axis(matrix, np.maximum(said, 0), axis=0), np.nan)


def _on_grid(rows: pa.Table, grid: Grid) -> tuple[Ints, pa.Table]:
    placed = grid.rows_of(microseconds(rows["time"]))
    inside = placed >= 0
    return placed[inside], rows.filter(pa.array(inside))


def _numbers(rows: pa.Table, name: str) -> Floats:
    return float_values(rows[name]) if name in rows.column_names else np.full(rows.num_rows, np.nan)


def _losses_of_lines(rows: pa.Table) -> Floats:
    losses = _losses(rows["loss"]) if "loss" in rows.column_names else np.full(rows.num_rows, np.nan)
    if "signature" in rows.column_names:
        is_no_number = pc.is_in(rows["signature"].cast(pa.string()), value_set=pa.array(_signatures_of_no_number()))
        losses[np.asarray(is_no_number.to_numpy(), dtype=bool)] = np.inf
    return losses


def _losses(column: pa.ChunkedArray) -> Floats:
    values = float_values(column).copy()
    is_said = np.asarray(pc.is_valid(column).to_numpy(), dtype=bool)
    values[is_said & ~np.isfinite(values)] = np.inf
    return values


@cache
def _signatures_of_no_number() -> Sequence[str]:
    """Return the signatures of lines that say that a loss or a gradient is no number."""
    return [rule.id for rule in read_rules() if rule.category == "numerical_anomaly" and rule.level == "error"]


# -- which job held which node as a whole, at each grid time --


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
