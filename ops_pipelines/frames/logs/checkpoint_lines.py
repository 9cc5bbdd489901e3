"""Which lines of a job tell that a checkpoint is complete, as catalogue/checkpoint_lines.csv says.

A line that tells of the beginning of a save is no proof of its end: it counts once the training is seen to go on
(`SAVING`), or once the next save is told (`STAGED`). What is remembered of a job is `flow.evidence.job_facts`.
"""

import csv
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.sources import LogLine

PROGRESS_BAR = "train_progress_bar"
"""Loading shards draws the same bar: it shows no step of a training."""


class LineKind(Enum):
    """What a line tells."""

    SAVED = "saved"
    """A checkpoint is complete."""
    SAVING = "saving"
    """A save has begun, or a part of it is written, and the training stands still until it is complete."""
    STAGED = "staged"
    """A save has begun that may go on beside the training; the next one waits for it."""
    SCHEDULED = "scheduled"
    """A save goes on beside the training, and its end will be told."""
    RESUMED = "resumed"
    """A checkpoint was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """One row of the table."""

    id: str
    kind: LineKind
    holds: str
    """Stands in every such line, letter by letter: found sooner than the pattern, and most lines hold none."""
    pattern: re.Pattern[str]
    example: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """What one line of a job tells, and when it was written."""

    job: JobId
    at: datetime
    kind: LineKind


@cache
def read_line_rules() -> tuple[LineRule, ...]:
    """Return the rules of the table in their order; raise ValueError naming a row that cannot be read."""
    text = resources.files("ops_pipelines.catalogue").joinpath("checkpoint_lines.csv").read_text(encoding="utf-8")
    rules: list[LineRule] = []
    for row in csv.DictReader(text.splitlines()):
        try:
            kind, pattern = LineKind(row["kind"]), re.compile(row["pattern"])
        except (ValueError, re.error) as exc:
            raise ValueError(f"checkpoint_lines.csv, {row['id']}: {exc}") from exc
        rules.append(
            LineRule(
                id=row["id"],
                kind=kind,
                holds=row["holds"],
                pattern=pattern,
                example=row["example"],
                source=row["source"],
            )
        )
    return tuple(rules)


def kind_of(text: str) -> LineKind | None:
    """Return what a line tells of a checkpoint, by the first rule that fits; None for nothing."""
    for rule in read_line_rules():
        if rule.holds in text and rule.pattern.search(text) is not None:
            return rule.kind
    return None


def read_checkpoint_lines(rows: pa.Table, *, lines: Sequence[LogLine]) -> tuple[CheckpointLine, ...]:
    """Return what rows of `job_logs` tell of checkpoints, in their order; `lines` are those that the rows are made of.

    A line is a job's only where its source says so (the name of its file, a label), never by its own words. Whether the
    file is the job's own is `flow.evidence.job_facts`' to ask.
    """
    told = rows.filter(_may_tell(rows["text"]))
    if not told.num_rows:
        return ()
    owners = {line.position: line.job for line in lines if line.job is not None}
    found: list[CheckpointLine] = []
    for row in told.select(["position", "time", "text"]).to_pylist():
        # One line of JSON may hold several messages; those after the first are numbered.
        owner = owners.get(row["position"]) or owners.get(str(row["position"]).rpartition("#")[0])
        job = None if owner is None else _job(owner)
        kind = None if job is None else kind_of(row["text"])
        if job is not None and kind is not None:
            found.append(CheckpointLine(job=job, at=row["time"], kind=kind))
    return tuple(found)


def rows_of_lines(rows: pa.Table, lines: Sequence[LogLine]) -> pa.Table:
    """Return the rows of `job_logs` that were made of these lines."""
    positions = {line.position for line in lines}
    # One line of JSON may hold several messages; those after the first are numbered.
    mine = [each in positions or str(each).rpartition("#")[0] in positions for each in rows["position"].to_pylist()]
    return rows if all(mine) else rows.filter(pa.array(mine, pa.bool_()))


def stepping_jobs(rows: pa.Table, jobs: Collection[JobId]) -> frozenset[JobId]:
    """Return those of `jobs` of which rows of `job_logs` show a step of a training."""
    if not jobs:
        return frozenset()
    is_step = pc.and_(is_progress(rows), pc.is_in(rows["job"], value_set=pa.array(sorted(jobs), pa.string())))
    return frozenset(JobId(name) for name in pc.unique(rows.filter(is_step)["job"]).to_pylist())


def is_progress(rows: pa.Table) -> pa.ChunkedArray:
    """Return which rows of `job_logs` state a step of a training, and are no bar."""
    is_bar = pc.fill_null(pc.equal(rows["signature"].cast(pa.string()), PROGRESS_BAR), False)
    return pc.and_(pc.is_valid(rows["step"]), pc.invert(is_bar))


def _may_tell(texts: pa.ChunkedArray) -> pa.Array:
    may = np.zeros(len(texts), dtype=np.bool_)
    for word in sorted({rule.holds for rule in read_line_rules()}):
        holds = pc.fill_null(pc.match_substring(texts, word), False)
        may |= np.asarray(holds.to_numpy(), dtype=np.bool_)
    return pa.array(may)


def _job(name: str) -> JobId | None:
    try:
        return parse_job_id(name)
    except ValueError:
        return None
