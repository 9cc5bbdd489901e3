"""Log lines from nodes, in order, with a cursor that survives restarts and rotation."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line, unbelieved. `node` is None where the source cannot tell which node wrote it."""

    node: str | None
    written_at: datetime | None
    """When the line says it was written, UTC; None if it does not say."""
    position: str
    """Where it stands in its source; unique within the source and stable over restarts."""
    text: str
    job: str | None = None
    """The job that wrote it, where the source knows: the name of its output file, a label."""
    written_by: str | None = None
    """The user who owns the file that it stands in. Anybody may give a file the name of any job: empty is an owner
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
