"""What was learned of jobs beside the scheduler: when each was last checkpointed, and what an interruption costs here.

Learned by the live cycle (checkpoints) and once a day (costs), kept between processes, and read by whoever decides. A
reading never fails: what cannot be read is as if nothing had been learned, with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Protocol

from ops_pipelines.domain.identity import JobId
from ops_pipelines.domain.steps.timing import RestartCosts

TIMES_KEPT = 6
"""Checkpoints remembered of a job: five gaps, of which the middle one is not moved by one evaluation or one restart."""


class JobFactsError(RuntimeError):
    """What was learned cannot be kept: disk full, no right. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSeen:
    """What the lines of one job said of its checkpoints."""

    times: tuple[datetime, ...] = ()
    """When the newest of them were complete, oldest first."""
    saving_since: datetime | None = None
    """A save that stops the training has begun: it is complete when the next step is seen."""
    staged_at: datetime | None = None
    """A save goes on beside the training: it is complete when the next one is told."""

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
