"""What jobs used and wait for: attempts of a stretch of time, and jobs that wait now, as the scheduler tells it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.observation import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingPage:
    """One answer, whole: the attempts and steps of [start, end), or the jobs that wait at `start`, which is `end`."""

    body: bytes
    """Text of sacct with its header, times in UTC without zone; `frames.formats.sacct` reads it. No row is possible.
    Of jobs that wait it may be the scheduler's own listing as JSON; `frames.accounting.read_waiting` reads both."""
    source: str
    """A name for people and rejected rows: `sacct`, `simulator`."""
    start: datetime
    end: datetime


class Accounting(Protocol):
    """Reads what the scheduler keeps of attempts.

    A job that was requeued has one row for each of its attempts, told apart by their starts. What reads a stretch
    yields pages that follow each other in time, and raises ValueError if `start` is not before `end`. All raise
    SourceUnavailable or SourceNonsense (what was yielded before is whole).
    """

    @property
    def source(self) -> str:
        """Return a stable name: `sacct`, `simulator`."""
        ...

    def read_attempts(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield the attempts that ended in [start, end).

        Each is in exactly one page, that of its end, whatever way a stretch is cut.
        """
        ...

    def read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        """Yield the attempts that ran at any time in [start, end), and those that ended in it without having run.

        Each is in exactly one page. One that has not ended has no end; jobs that only wait are left out.
        """
        ...

    def read_waiting(self, *, at: datetime) -> Iterator[AccountingPage]:
        """Yield the jobs that wait now, held ones too: since when, for how many GPUs, of which account, and why.

        `at` is now, and stands in the page: a scheduler does not know who waited earlier. A requeued job waits again;
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
