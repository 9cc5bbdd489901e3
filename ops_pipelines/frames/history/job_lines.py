"""Rows of `job_logs` around interruptions -> when work was last saved before one, and when it went on after it.

Reads each hour once, and keeps of it only the lines of the jobs that are asked about. Whose file a line stood in is not
known here, so what comes out is for reports, never for decisions (`observe.job_facts` is).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.identity import JobId
from ops_pipelines.observe.logs.matching import CheckpointLine, LineKind, kind_of, read_line_rules

_HOUR = timedelta(hours=1)
_SAVES = frozenset({LineKind.SAVED, LineKind.SAVING, LineKind.STAGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLines:
    """The lines of some jobs in some hours."""

    rows: Mapping[datetime, pa.Table]
    told: Mapping[str, tuple[CheckpointLine, ...]]
    """What they say of checkpoints, by job and time."""

    def before(self, job: str, *, since: datetime, until: datetime) -> tuple[CheckpointLine, ...]:
        """Return what a job told of checkpoints in [since, until]."""
        return tuple(each for each in self.told.get(job, ()) if since <= each.at <= until)

    def tells_of_saves(self, job: str) -> bool:
        """Return whether any line of the job tells of a save: then one that is not told was not made."""
        return any(each.kind in _SAVES for each in self.told.get(job, ()))

    def has_lines(self, job: str, *, since: datetime, until: datetime) -> bool:
        """Return whether the job wrote anything in the hours of [since, until]."""
        return any(
            hour < until and since < hour + _HOUR and pc.any(pc.equal(rows["job"], job)).as_py()
            for hour, rows in self.rows.items()
        )

    def after(self, start: datetime, *, within: timedelta) -> pa.Table | None:
        """Return the lines of the hours of [start, start + within); None where there are none."""
        near = [rows for hour, rows in sorted(self.rows.items()) if start - _HOUR < hour < start + within]
        return pa.concat_tables(near) if near else None


def read_job_lines(read: Callable[[datetime], pa.Table], wanted: Mapping[datetime, Collection[str]]) -> JobLines:
    """Return the lines of jobs in hours: `read` gives rows of `job_logs` of an hour, `wanted` the jobs asked for.

    The rows have `job`, `time` and `text` at least.
    """
    kept: dict[datetime, pa.Table] = {}
    told: dict[str, list[CheckpointLine]] = {}
    for hour in sorted(wanted):
        rows = read(hour)
        if not rows.num_rows:
            continue
        rows = rows.set_column(rows.column_names.index("job"), "job", rows["job"].cast(pa.string()))
        own = rows.filter(
            pc.fill_null(pc.is_in(rows["job"], value_set=pa.array(sorted(wanted[hour]), pa.string())), False)
        )
        if not own.num_rows:
            continue
        kept[hour] = own
        for row in own.filter(_may_tell(own["text"].cast(pa.string()))).select(["job", "time", "text"]).to_pylist():
            kind = kind_of(row["text"])
            if kind is not None:
                told.setdefault(row["job"], []).append(CheckpointLine(job=JobId(row["job"]), at=row["time"], kind=kind))
    return JobLines(
        rows=kept, told={job: tuple(sorted(lines, key=lambda each: each.at)) for job, lines in told.items()}
    )


def _may_tell(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    words = sorted({rule.holds for rule in read_line_rules()})
    may = pc.match_substring(texts, words[0])
    for word in words[1:]:
        may = pc.or_(may, pc.match_substring(texts, word))
    return pc.fill_null(may, False)
