"""Where evidence comes from and where it is kept: logs, metrics, accounting, the lake; and what fails there.

A `SourceError` is a system that we asked: unavailable (it did not answer; whether a command took effect is unknown),
refused (it answered no: the command took no effect), nonsense (it answered something that cannot be believed; nothing
was taken from it). The lake is one directory an hour and table, files that appear whole or not at all. What is learned
of jobs is kept between processes: reading it never fails, what cannot be read is as if nothing had been learned.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from itertools import pairwise
from typing import Protocol, runtime_checkable

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.plan import RestartCosts

# -- what a port raises when the system behind it does not do what was asked --


class SourceError(RuntimeError):
    """A system that we asked did not do what was asked. The message says which, what it stated, and what to check."""


class SourceUnavailable(SourceError):
    """No answer within the limit, or the command could not be started. Whether it took effect is unknown."""


class SourceRefused(SourceError):
    """The system answered no. Nothing changed there."""


class SourceNonsense(SourceError):
    """The answer could not be believed (unparsable, or a shape never seen). Nothing was taken from it."""


# -- log lines from nodes, in order, with a cursor that survives restarts and rotation --


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line, unbelieved. `node` is None where the source cannot tell which node wrote it."""

    node: str | None
    written_at: datetime | None
    """When the line says it was written, UTC; None if it does not say."""
    position: str
    """Where it is in its source; unique within the source and stable over restarts."""
    text: str
    job: str | None = None
    """The job that wrote it, where the source knows: the name of its output file, a label."""
    written_by: str | None = None
    """The user who owns the file that it is in. Anybody may give a file the name of any job: empty is an owner
    without a name, or a link to a file of another name; None, a source that does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """New lines, and the cursor to give next time. No line is left out and none comes twice for one cursor."""

    lines: tuple[LogLine, ...]
    cursor: str
    notes: tuple[str, ...] = ()
    """What went wrong on the way without losing the rest: a file truncated, a file that vanished."""


class Logs(Protocol):
    """Reads new kernel log lines."""

    @property
    def source(self) -> str:
        """Return the stable name under which cursor and evidence are kept, such as `kernel_log`."""
        ...

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        """Return at most `max_lines` lines after `cursor`; None means from the beginning of what is kept.

        An unreadable cursor raises SourceNonsense, an unreadable source SourceUnavailable. A last line
        without a line end is not returned before it is complete.
        """
        ...


@runtime_checkable
class Growing(Protocol):
    """Logs that can be glanced at between two readings, for next to nothing."""

    def has_grown(self) -> bool:
        """Return whether what was read last is longer, shorter or gone by now; False where that is not known."""
        ...


# -- metrics of GPUs --


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one series. Labels and value are as the source gave them; the value may be NaN."""

    metric: str
    labels: Mapping[str, str]
    value: float
    sampled_at: datetime
    """When the source took it; in a Prometheus range answer, the grid time."""


class Telemetry(Protocol):
    """Reads the newest samples."""

    def read_samples(self, at: datetime) -> tuple[Sample, ...]:
        """Return, for each series of the watched GPU metrics, its value at the grid time at or before `at`.

        A series without a value in the source's look-back (5 minutes in Prometheus) is not in the answer.
        Raises SourceUnavailable or SourceNonsense.
        """
        ...


# -- metrics of every layer over an interval of time --


class BodyKind(Enum):
    RANGE_ANSWER = "range_answer"
    """JSON of Prometheus' /api/v1/query_range, a matrix."""
    EXPOSITION = "exposition"
    """The Prometheus text format, as exporters write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked of a store. `column` names the quantity where the answer has no series name of its own."""

    promql: str
    table: str | None = None
    column: str | None = None
    """None: the answer's series carry their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer, whole: bounded in size, and never half of one series at one time."""

    kind: BodyKind
    body: bytes
    source: str
    """A name for people and rejected rows: `prometheus`, `exporter gpu001:9400`."""
    start: datetime
    end: datetime
    """The grid times that it covers, both inclusive."""
    query: Query | None = None
    node: str | None = None
    """The node that was asked, where the body itself may not say so (direct scrape, NVML)."""
    notes: tuple[str, ...] = ()
    """Warnings of the source: the answer may lack series."""


class MetricSource(Protocol):
    """Reads metrics on a grid of whole steps."""

    @property
    def source(self) -> str:
        """Return a stable name: `prometheus`, `exporters`, `nvml`, `simulator`."""
        ...

    @property
    def has_history(self) -> bool:
        """Return whether the past can be asked for; exporters know only now."""
        ...

    def read_range(
        self, queries: Sequence[Query], *, start: datetime, end: datetime, step_seconds: int
    ) -> Iterator[Page]:
        """Yield the answers for the grid times from `start` to `end`, both inclusive and whole multiples of the step.

        A source without history answers for one grid time only (`start == end`) and passes queries over. Each page is
        dropped by the caller before the next is asked for, so memory holds one. Raises SourceUnavailable after its
        retries, or SourceNonsense; what was yielded before is whole.
        """
        ...


# -- what jobs used and wait for --


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingPage:
    """One answer, whole: the attempts and steps of [start, end), or the jobs that wait at `start`, which is `end`."""

    body: bytes
    """Text of sacct with its header, times in UTC without zone; `lake.formats.sacct` reads it. No row is possible.
    Of jobs that wait it may be the scheduler's own listing as JSON; `lake.accounting.read_waiting` reads both."""
    source: str
    """A name for people and rejected rows: `sacct`, `simulator`."""
    start: datetime
    end: datetime


class Accounting(Protocol):
    """Reads what the scheduler keeps of attempts.

    A job that was requeued has one row for each of its attempts, distinguished by their starts. What reads an interval
    yields pages that follow each other in time, and raises ValueError if `start` is not before `end`. All raise
    SourceUnavailable or SourceNonsense (what was yielded before is whole).
    """

    @property
    def source(self) -> str:
        """Return a stable name: `sacct`, `simulator`."""
        ...

    def read_attempts(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield the attempts that ended in [start, end).

        Each is in exactly one page, that of its end, whatever way an interval is cut.
        """
        ...

    def read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield the attempts that ran at any time in [start, end), and those that ended in it without having run.

        Each is in exactly one page. One that has not ended has no end; jobs that only wait are left out.
        """
        ...

    def read_waiting(self, *, at: datetime) -> Iterator[AccountingPage]:
        """Yield the jobs that wait now, held ones too: since when, for how many GPUs, of which account, and why.

        `at` is now, and is in the page: a scheduler does not know who waited earlier. A requeued job waits again;
        an array's waiting tasks may be one row, `30_[3-15%3]`. What runs, or still ends, is left out.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a job says of itself in the comment that accounting keeps. A user's words: for reports, not for acts."""

    workload: Workload = Workload.UNKNOWN
    checkpointed_at: datetime | None = None
    saves_nothing: bool = False
    """It says that it keeps no checkpoints: an interruption throws everything away."""


ReadComment = Callable[[str], Declared]
"""Returns what a comment says; never raises."""


def says_nothing(comment: str) -> Declared:
    """Return what is known of a job whose comment nobody can read."""
    return Declared()


# -- what was learned of jobs beside the scheduler --


TIMES_KEPT = 6
"""Checkpoints remembered of a job: five gaps, of which the middle one is not moved by one evaluation or one restart."""


class JobFactsError(RuntimeError):
    """What was learned cannot be kept: disk full, no right. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSeen:
    """What the lines of one job stated of its checkpoints."""

    times: tuple[datetime, ...] = ()
    """When the newest of them were complete, oldest first."""
    saving_since: datetime | None = None
    """A save that stops the training has started: it is complete when the next step is seen."""
    staged_at: datetime | None = None
    """A save continues beside the training: it is complete when the next one is notified."""

    @property
    def checkpointed_at(self) -> datetime | None:
        """When the newest checkpoint was complete; None while none was."""
        return self.times[-1] if self.times else None

    @property
    def every(self) -> timedelta | None:
        """How far apart the last ones were: the median gap; None before there were two."""
        if len(self.times) < 2:
            return None
        gaps = sorted(later - earlier for earlier, later in pairwise(self.times))
        return (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFactsReading:
    """Everything learned, at one instant."""

    costs: RestartCosts = RestartCosts()
    checkpoints: Mapping[JobId, CheckpointSeen] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Why something that was learned cannot be read, one sentence each."""


class JobFacts(Protocol):
    """Keeps what was learned of jobs."""

    def read(self) -> JobFactsReading:
        """Return what is kept; never raises."""
        ...

    def keep_checkpoints(self, checkpoints: Mapping[JobId, CheckpointSeen]) -> None:
        """Keep these in place of all that was kept, whole or not at all. Raises JobFactsError. One writer at a time."""
        ...

    def keep_costs(self, costs: RestartCosts) -> None:
        """Keep these in place of what was kept, whole or not at all. Raises JobFactsError. One writer at a time."""
        ...


# -- the live cycle as seen from the code server --


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNews:
    """How the child is."""

    is_running: bool
    note: str
    """What its last cycle stated, or why it does not run."""


class LiveCycle(Protocol):
    """Runs beside the code server as long as somebody tends it."""

    def tend(self) -> LiveNews:
        """Start the child if it does not run, tell it that it is requested, and return its news. Never waits.

        A child that is not tended for a minute ends by itself, as does one whose code server is gone.
        """
        ...


# -- the lake --


SO_FAR = "so_far"
"""The part of a cycle that holds what a store reported of an hour that was not over."""


class LakeError(RuntimeError):
    """The lake cannot be written or read: disk full, no right, a damaged file. The message says what to do."""


@runtime_checkable
class Rows(Protocol):
    """Rows of one table, as `lake` computes them (an Arrow table)."""

    @property
    def num_rows(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeHour:
    """What a source says of an hour when it is asked for all of it."""

    rows: Rows | None
    """None where it has none."""
    retold: frozenset[datetime] = frozenset()
    """The times at which live cycles asked the same source, and of which it has reported all now: it may have taken
    back what it stated then (a series that had ended), or have it no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What was computed of an hour from other tables: it takes the place of all that was computed before."""

    rows: Rows | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFile:
    """What a site expects of one table, as it is in a file."""

    path: str
    table: str
    """What the file is named after."""
    text: str = ""
    problem: str = ""
    """Why the file could not be read; empty: it could."""


class Lake(Protocol):
    """Keeps tables by hour. Rows are sorted by key and time, one row per key and time, without a time of arrival.

    Nothing half-written is ever read: a file is written under a name that readers pass over, then renamed. Times are
    UTC; `hour` is the start of the hour.
    """

    def write_cycle(self, table: str, rows: Rows, *, at: datetime, part: str = "") -> None:
        """Keep the rows of one cycle as `cycle=<at>.parquet` (`cycle=<at>-<part>.parquet`) in the hour of `at`.

        The same cycle written again replaces the file. In an hour that is closed already, the rows are merged into it.
        """
        ...

    def read_hour(self, table: str, hour: datetime) -> Rows:
        """Return the rows of an hour: those of `hour.parquet` if it is there, else of all cycle files, merged."""
        ...

    def read(self, table: str, *, start: datetime, end: datetime, columns: Sequence[str] | None = None) -> Rows:
        """Return the rows with start <= time < end, sorted by key and time; only `columns` if they are given.

        Raises KeyError for a column that the table does not have.
        """
        ...

    def close_hour(
        self, table: str, hour: datetime, *, filled: Rows | None = None, retold: Collection[datetime] = ()
    ) -> Rows:
        """Compact an hour into `hour.parquet` and return its rows: what was kept, overlaid by `filled` cell by cell.

        What cycles (those without a part, or of part SO_FAR) kept of the times `retold` is passed over (`WholeHour`).

        Deterministic: the same rows give the same bytes. Calling it again with the same rows changes nothing.
        """
        ...

    def replace_hour(self, table: str, hour: datetime, rows: Rows | None) -> Rows:
        """Make `rows` all that an hour holds, close it, and return them in order."""
        ...

    def add(self, table: str, rows: Rows) -> Mapping[datetime, int]:
        """Merge rows of any time into their hours (late data, files from outside); return the rows added per hour.

        Rows that are there already change nothing.
        """
        ...

    def write_page(self, table: str, hour: datetime, html: str) -> str:
        """Keep a page for people beside an hour; return where it is."""
        ...

    def fold(self, now: datetime) -> None:
        """Put what older cycles of hours that are not closed wrote into few files; the same rows are read as before."""
        ...

    def tidy(self, now: datetime) -> None:
        """Remove what readers no longer open: cycles of hours that were closed an hour ago, abandoned temporaries."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What keeping house did."""

    aggregated: tuple[str, ...]
    """Files of aggregates that were written."""
    deleted: tuple[str, ...]
    deleted_bytes: int
    kept_open: tuple[str, ...] = ()
    """Days that have served their time and stay, as `gpu_telemetry 2026-11-20`: an hour of them was never filled."""
    late_row_count: int = 0
    """Rows that came to an hour whose samples were gone: only what the aggregates lacked was taken from them."""


class LakeKeeper(Protocol):
    """Keeps the lake small, as cluster.yaml says."""

    def keep(self) -> Kept:
        """Aggregate settled days, delete what has served its time. Raises LakeError; repeating is safe."""
        ...


# -- what was kept of jobs --


class PastWork(Protocol):
    """Reports of jobs of the past, up to about an hour ago. Both raise LakeError."""

    def allocations(self, *, nodes: Collection[NodeName], start: datetime, end: datetime) -> Rows:
        """Return the rows of `job_allocations` of these nodes in the hours of [start, end).

        The same row may come twice. No node gives no row.
        """
        ...

    def steps(self, *, jobs: Collection[JobId], start: datetime, end: datetime) -> Rows:
        """Return `node`, `device` (`job:<id>`), `time` and `step_seconds` of these jobs in [start, end).

        Samples, or means of five minutes where samples are aggregated already. No job gives no row.
        """
        ...
