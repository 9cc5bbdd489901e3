"""Lines of one long job -> how often it saves, how long that takes, and whether it saves at all."""

from datetime import datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.domain.advice.work import Saves
from ops_pipelines.frames.advice.work import LongRun
from ops_pipelines.observe.logs.matching import CheckpointLine, LineKind, is_progress
from ops_pipelines.review.job_runs import JobLines

_SAME_SAVE = timedelta(seconds=30)
"""Lines of several ranks that tell of one save come this close. Assumption."""
_SAVE_AT_MOST = timedelta(hours=1)
"""A save that takes longer has lost its beginning or its end."""
_BESIDE = frozenset({LineKind.SCHEDULED, LineKind.STAGED})
_ENDS = (LineKind.SAVED, LineKind.SAVING, LineKind.STAGED)
"""Which lines mark a save: the surest kind that the job tells."""


def read_saves(lines: JobLines, run: LongRun) -> Saves:
    """Return what the lines of this job tell."""
    told = lines.told.get(run.job, ())
    own = [rows.filter(pc.equal(rows["job"], run.job)) for rows in lines.rows.values()]
    own = [rows for rows in own if rows.num_rows]
    marks = _marks(told)
    return Saves(
        has_lines=bool(own),
        is_training=any(_has_steps(rows) for rows in own),
        save_count=len(marks),
        intervals_hours=tuple((later - earlier) / timedelta(hours=1) for earlier, later in pairwise(marks)),
        save_seconds=_save_seconds(told),
        is_asynchronous=any(each.kind in _BESIDE for each in told),
        node_count=run.node_count,
        longest_hours=run.held_hours,
    )


def _has_steps(rows: pa.Table) -> bool:
    return bool(pc.any(pc.fill_null(is_progress(rows), False)).as_py())


def _marks(told: tuple[CheckpointLine, ...]) -> list[datetime]:
    """Return when each save was told, once."""
    for kind in _ENDS:
        marks: list[datetime] = []
        for each in told:
            if each.kind is kind and (not marks or each.at - marks[-1] > _SAME_SAVE):
                marks.append(each.at)
        if marks:
            return marks
    return []


def _save_seconds(told: tuple[CheckpointLine, ...]) -> tuple[float, ...]:
    """Return how long saves took of which the first line and the first word of completion are told."""
    found: list[float] = []
    begun: datetime | None = None
    for each in told:
        if each.kind in {LineKind.SAVING, LineKind.SCHEDULED, LineKind.STAGED}:
            begun = begun or each.at
        elif each.kind is LineKind.SAVED and begun is not None:
            if timedelta(0) < each.at - begun <= _SAVE_AT_MOST:
                found.append((each.at - begun).total_seconds())
            begun = None
    return tuple(found)
