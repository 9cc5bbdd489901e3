"""What was learned of jobs, kept in memory, for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.core.sources import CheckpointSeen, JobFactsError, JobFactsReading


@dataclass(kw_only=True)
class FakeJobFacts:
    """Counts what was kept; `is_full`: nothing can be kept."""

    reading: JobFactsReading = field(default_factory=JobFactsReading)
    keep_count: int = 0
    is_full: bool = False

    def read(self) -> JobFactsReading:
        return self.reading

    def keep_checkpoints(self, checkpoints: Mapping[JobId, CheckpointSeen]) -> None:
        if self.is_full:
            raise JobFactsError("job_checkpoints.json cannot be written: the disk is full")
        self.keep_count += 1
        self.reading = replace(self.reading, checkpoints=dict(checkpoints))

    def keep_costs(self, costs: RestartCosts) -> None:
        self.keep_count += 1
        self.reading = replace(self.reading, costs=costs)
