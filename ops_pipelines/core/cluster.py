"""The ports of one cluster, and those that fill the lake, each in one value.

A pass keeps the rules that it was given; the next one is given those that hold then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import Digest, Topology
from ops_pipelines.core.lake import Lake, PastWork, SuiteFile
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.machines import Fleet, SiteMeans
from ops_pipelines.core.notes import Notifier, Outbox, Silencer, TellRules
from ops_pipelines.core.objectives import Objective
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import ConfigTrouble, Fallback
from ops_pipelines.core.record import ApprovalLinks, Bundles, PageShelf, Recollection, RolloutFiles
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import (
    Accounting,
    JobFacts,
    Logs,
    MetricSource,
    Query,
    ReadComment,
    Telemetry,
    says_nothing,
)

# -- the ports of one cluster in one hand --


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Every port of one cluster, its rules and its clock."""

    name: str
    scheduler: Scheduler
    fleet: Fleet
    telemetry: Telemetry
    logs: tuple[Logs, ...]
    ledger: Ledger
    notifier: Notifier
    clock: Clock
    rules: Rules
    rules_digest: Digest
    is_simulated: bool = False
    """Whether scheduler and nodes are pretended: nobody's jobs are at stake."""
    means: frozenset[SiteMeans] = frozenset(SiteMeans)
    """What the site offers to do to its machines."""
    bundles: Bundles | None = None
    """None keeps no evidence beside the ledger."""
    recollection: Recollection | None = None
    """None where no lines and metrics of the past are kept."""
    past_work: PastWork | None = None
    """None where nobody keeps which jobs ran and how fast: then no rollout is found good."""
    job_facts: JobFacts | None = None
    """None where nothing is learned of jobs beside what the scheduler says."""
    silencer: Silencer | None = None
    """None where no Alertmanager is told of planned work."""
    approval_links: ApprovalLinks | None = None
    """None where `serve` in cluster.yaml names no key or no address: then no message carries a link."""
    rollout_files: RolloutFiles | None = None
    """Releases and calendars; None where nothing is rolled out."""
    outbox: Outbox | None = None
    """Where messages wait for their channel; None where nobody is told but by the pages of plans."""
    tell_rules: TellRules = TellRules()
    page_shelf: PageShelf | None = None
    """Where reports are kept as HTML; None keeps none."""
    troubles: tuple[ConfigTrouble, ...] = ()
    """Configuration that cannot be used now: `rules` are what holds in its place."""
    fallbacks: tuple[Fallback, ...] = ()
    """Why `rules` allow less than policy.yaml says."""
    restart_for: str = ""
    """The file that changed since this process read it, which only a restart takes up; empty: none did."""
    pages_url: str | None = None
    """How people reach the web process, without a slash at its end; None: no message names a page."""


# -- the ports that fill the lake, in one hand --


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
    read_suites: Callable[[], Sequence[SuiteFile]] = tuple
    """What the site expects of its tables, as its files say now; none where there are none. Never raises."""

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
