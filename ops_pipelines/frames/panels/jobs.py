"""What jobs say of themselves -> the layer of jobs: steps, loss, and how many lines they wrote, at each grid time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import parse_job_id
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.frames.logs.matching import read_rules
from ops_pipelines.frames.panels.grid import Floats, Grid, Ints, codes_of, float_values
from ops_pipelines.frames.panels.panel import Layer, Part
from ops_pipelines.frames.panels.rows import begins_with
from ops_pipelines.lake.hours import microseconds

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
    # A loss that is no number is said of its own step only: the next one may be well.
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
    """Return the newest value of each column at each row, as long as no other is said."""
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
