"""A clock for tests: time passes only when somebody waits."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

BEGINNING = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


class FakeClock:
    """Starts at BEGINNING. `wait` returns at once, later."""

    def __init__(self) -> None:
        self._now = BEGINNING

    def now(self) -> datetime:
        return self._now

    def wait(self, seconds: float) -> None:
        self._now += timedelta(seconds=max(0.0, seconds))

    def set_back(self, seconds: float) -> None:
        """Step backwards, as a corrected wall clock does."""
        self._now -= timedelta(seconds=seconds)

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        """Let time pass in steps of 0.25 s until `predicate` holds; raise TimeoutError after `timeout_seconds`."""
        deadline = self._now + timedelta(seconds=timeout_seconds)
        while not predicate():
            if self._now >= deadline:
                raise TimeoutError(f"still not so after {timeout_seconds} s of simulated time")
            self.wait(0.25)
