"""The ports that fill the lake, in one hand: what the live cycle and the hourly assets are given. Decides nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ops_pipelines.clock import Clock
from ops_pipelines.domain.objectives import Objective
from ops_pipelines.domain.topology import Topology
from ops_pipelines.ports.accounting import Accounting, ReadComment, says_nothing
from ops_pipelines.ports.lake import Lake
from ops_pipelines.ports.logs import Logs
from ops_pipelines.ports.metrics import MetricSource, Query
from ops_pipelines.ports.scheduler import Scheduler

HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Observatory:
    """Every source of one cluster that the lake is filled from, and the lake."""

    name: str
    metrics: Sequence[MetricSource]
    queries: Sequence[Query]
    """What a store of metrics is asked for; sources without a query language pass them over."""
    accounting: Accounting | None
    """None where no accounting is kept."""
    kernel_logs: Sequence[Logs]
    job_logs: Sequence[Logs]
    scheduler: Scheduler
    lake: Lake
    topology: Topology
    clock: Clock
    step: timedelta
    """The grid: whole seconds. Samples are read at whole multiples of it since 1970."""
    release: Mapping[str, str] = field(default_factory=dict)
    """The versions that cluster.yaml declares: the driver's under `driver`, of firmware under the part's model."""
    objectives: tuple[Objective, ...] = ()
    """What was promised to teams."""
    read_comment: ReadComment = says_nothing
    """What a job's comment says of it; never raises."""

    @property
    def step_seconds(self) -> int:
        return int(self.step.total_seconds())

    def grid_time(self, at: datetime) -> datetime:
        """Return the grid time at or before `at`."""
        seconds = int(at.timestamp())
        return datetime.fromtimestamp(seconds - seconds % self.step_seconds, UTC)


def hour_of(at: datetime) -> datetime:
    """Return the start of the hour that `at` lies in."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
