"""The lake: one directory an hour and table, files that appear whole or not at all."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from ops_pipelines.core.identity import JobId, NodeName

# -- the lake --


SO_FAR = "so_far"
"""The part of a cycle that holds what a store told of an hour that was not over."""


class LakeError(RuntimeError):
    """The lake cannot be written or read: disk full, no right, a damaged file. The message says what to do."""


@runtime_checkable
class Rows(Protocol):
    """Rows of one table, as `lake` computes them (an Arrow table)."""

    @property
    def num_rows(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a source says of an hour when it is asked for all of it."""

    rows: Rows | None
    """None where it has none."""
    retold: frozenset[datetime] = frozenset()
    """The times at which live cycles asked the same source, and of which it has told all now: it may have taken back
    what it said then (a series that had ended), or have it no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What was computed of an hour from other tables: it takes the place of all that was computed before."""

    rows: Rows | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFile:
    """What a site expects of one table, as it stands in a file."""

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

        What cycles (those without a part, or of part SO_FAR) kept of the times `retold` is passed over (see `Told`).

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
    """Tells of jobs of the past, up to about an hour ago. Both raise LakeError."""

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
