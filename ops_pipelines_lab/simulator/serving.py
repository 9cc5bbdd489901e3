"""How many replicas of each service serve, at every moment at which that changed, and what changed it.

Watches only. A replica serves while its attempt runs, has warmed up and does not hang.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.journal import NOT_COMMANDS, EntryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChange:
    """From `at` on so many replicas serve."""

    at: datetime
    service: str
    serving_count: int
    before_count: int
    min_serving_count: int
    cause: EntryKind | None
    """The entry whose own effect it is; None if it came by itself: a start, an end, a node given up."""

    @property
    def breaks_minimum_by_command(self) -> bool:
        """Return whether a command took replicas away and left less than the service declares."""
        is_command = self.cause is not None and self.cause not in NOT_COMMANDS
        return is_command and self.serving_count < min(self.before_count, self.min_serving_count)


class ServingLog:
    """The changes since the beginning."""

    def __init__(self) -> None:
        self.changes: list[ServingChange] = []
        self._counts: dict[str, int] = {}

    def note(self, jobs: Iterable[Job], at: datetime, cause: EntryKind | None) -> None:
        """Keep what differs from the last time; a cluster without services costs one look at its jobs."""
        serving: dict[str, int] = dict.fromkeys(self._counts, 0)
        minima: dict[str, int] = {}
        for job in jobs:
            if job.spec.service:
                service = job.spec.service
                minima[service] = max(minima.get(service, 0), job.spec.min_serving_count)
                serving[service] = serving.get(service, 0) + job.serves(at)
        for service, count in serving.items():
            before = self._counts.get(service, 0)
            if count != before or service not in self._counts:
                self.changes.append(
                    ServingChange(
                        at=at,
                        service=service,
                        serving_count=count,
                        before_count=before,
                        min_serving_count=minima.get(service, 0),
                        cause=cause,
                    )
                )
        self._counts = serving
