"""What jobs used: every attempt that ended in a stretch of time or held nodes in it, as text of the accounting."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ops_pipelines.domain.observation import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingPage:
    """One answer, whole: the attempts and steps of [start, end)."""

    body: bytes
    """Text of sacct with its header, times in UTC without zone; `frames.formats.sacct` reads it. No row is possible."""
    source: str
    """A name for people and rejected rows: `sacct`, `simulator`."""
    start: datetime
    end: datetime


class Accounting(Protocol):
    """Reads what the scheduler keeps of attempts.

    A job that was requeued has one row for each of its attempts, told apart by their starts. Both methods yield pages
    that follow each other in time, raise SourceUnavailable or SourceNonsense (what was yielded before is whole), and
    ValueError if `start` is not before `end`.
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
