"""The only reader of the wall clock. Everybody else takes `now`, or a `Clock`."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Reports the time and lets it pass. Tests and the simulator bring their own."""

    def now(self) -> datetime:
        """Return the present time, aware and in UTC."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after `seconds`; 0 or less returns at once."""
        ...


class SystemClock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def wait(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
