"""The one long job: whether it works or stands, for what it stands, and which checkpoint it would go on from.

Time passes here; what happens at an instant is `play`'s. A job that stands goes through its waits one after the other:
some have a length, some end only when something happens (a spare comes back, a person has found the part).
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ops_pipelines_lab.whatif.clock_of_work import Cause, WorkClock

_NEARLY_OVER = 1e-9


@dataclass(slots=True)
class Wait:
    """One thing that the job stands for; without an end of its own `seconds` is infinite."""

    cause: Cause
    seconds: float


@dataclass(slots=True, kw_only=True)
class Training:
    """A job that works until something stops it. Seconds since the begin of the run."""

    clock: WorkClock
    waits: deque[Wait] = field(default_factory=deque)
    interruption_count: int = 0
    """How often it was stopped while it worked."""
    stop_count: int = 0
    """How often it was stopped, or stopped anew while it stood: what was to follow an earlier stop is void."""
    _saved_at: float = 0.0
    _corrupt_since: float | None = None

    def is_running(self) -> bool:
        return not self.waits

    @property
    def until_change(self) -> float:
        """How long until a wait ends by itself; infinite while it works or waits for something to happen."""
        return self.waits[0].seconds if self.waits else math.inf

    @property
    def saved_at(self) -> float:
        """When its newest durable checkpoint was taken."""
        if self.is_running():
            saved = self.clock.regime.saved_seconds(self.clock.run_seconds)
            if saved > 0:
                return self.clock.now - (self.clock.run_seconds - saved)
        return self._saved_at

    def pass_time(self, seconds: float, *, slowdown_ratio: float) -> bool:
        """Let time pass, at most `until_change`; return whether the job has just gone on."""
        if self.is_running():
            self.clock.run(seconds, slowdown_ratio=slowdown_ratio)
            return False
        wait = self.waits[0]
        self.clock.stand(wait.cause, seconds)
        wait.seconds -= seconds
        if wait.seconds > _NEARLY_OVER:
            return False
        self.waits.popleft()
        if self.is_running():
            self.clock.run_seconds = 0.0
        return self.is_running()

    def crash(self, waits: Iterable[Wait]) -> None:
        """It dies, if it worked: what was not saved is lost. Then it stands for `waits`, whatever it stood for."""
        if self.is_running():
            self._saved_at = self.saved_at
            self.clock.die()
            self.interruption_count += 1
        self._stand(waits)

    def stop_saved(self, waits: Iterable[Wait]) -> None:
        """It is stopped as planned, on a checkpoint made for that: no work is lost."""
        if self.is_running():
            self._saved_at = self.clock.now
            self.clock.run_seconds = 0.0
            self.interruption_count += 1
        self._stand(waits)

    def lift(self, cause: Cause) -> bool:
        """What it waits for without an end has come; return whether the job has just gone on."""
        if self.is_running():
            return False
        self.waits = deque(wait for wait in self.waits if wait.cause is not cause or not math.isinf(wait.seconds))
        if self.is_running():
            self.clock.run_seconds = 0.0
        return self.is_running()

    def begin_to_corrupt(self) -> None:
        """From here on it computes garbage: not even what was not yet saved will be of use."""
        if self._corrupt_since is None:
            unsaved = self.clock.regime.unsaved_seconds(self.clock.run_seconds)
            self._corrupt_since = self.clock.productive - unsaved * (1 - self.clock.regime.overhead_ratio)

    def roll_back(self) -> None:
        """What was computed since it was corrupted is thrown away, checkpoints included."""
        if self._corrupt_since is not None:
            self.clock.throw_away(self.clock.productive - self._corrupt_since)
            self.clock.run_seconds = 0.0
            self._corrupt_since = None

    def _stand(self, waits: Iterable[Wait]) -> None:
        self.stop_count += 1
        self.waits = deque(wait for wait in waits if wait.seconds > _NEARLY_OVER)
