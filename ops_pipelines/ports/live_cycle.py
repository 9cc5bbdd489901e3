"""The live cycle as seen from the code server: a child process that is started, kept alive and listened to."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNews:
    """How the child stands."""

    is_running: bool
    note: str
    """What its last cycle said, or why it does not run."""


class LiveCycle(Protocol):
    """Runs beside the code server as long as somebody tends it."""

    def tend(self) -> LiveNews:
        """Start the child if it does not run, tell it that it is wanted, and return its news. Never waits.

        A child that is not tended for a minute ends by itself, as does one whose code server is gone.
        """
        ...
