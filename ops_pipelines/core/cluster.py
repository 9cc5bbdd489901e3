"""The ports of one cluster, and those that fill the lake, each in one value; and the machines past the scheduler.

A pass keeps the rules that it was given; the next one is given those that hold then. Machines: power, reboot, GPU
reset, tests, installation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Protocol

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import ActionKey, Digest, NodeName, PciAddress, Topology
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.notes import Notifier, Outbox, Silencer, TellRules
from ops_pipelines.core.objectives import Objective
from ops_pipelines.core.observation import NodeInspection, PowerState
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import ConfigTrouble, Fallback
from ops_pipelines.core.record import ApprovalLinks, Bundles, PageShelf, Recollection, RolloutFiles
from ops_pipelines.core.release import Component
from ops_pipelines.core.rollout import InstallOrder, InstallReport
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import (
    Accounting,
    JobFacts,
    Lake,
    Logs,
    MetricSource,
    PastWork,
    Query,
    ReadComment,
    SuiteFile,
    Telemetry,
    says_nothing,
)

# -- what a policy's plans need of the machines and the site does not offer --


class SiteMeans(Enum):
    """What is done to a machine past the scheduler; the value is what cluster.yaml names under `fleet`."""

    INSPECT = "inspect"
    CHECK = "start_check and read_check"
    POWER = "power_off, power_on and power_state, or redfish"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot, or reboot_by: slurm"
    REIMAGE = "reimage"


# -- the machines themselves, past the scheduler --


NOT_OFFERED = "no command is configured for"
"""How a refusal begins that says that the site offers no such act; every other refusal is a node's or a command's."""


class Fleet(Protocol):
    """Acts on machines.

    Raises as `Scheduler` does. Commands return when accepted, not when finished: the witness is read with
    `inspect` or `power_state`. Asking twice for a reboot reboots twice: the caller holds the idempotency key.
    """

    def inspect(self, node: NodeName) -> NodeInspection:
        """Return what a check on the node itself finds now; raise SourceUnavailable if the node does not answer."""
        ...

    def reset_gpu(self, node: NodeName, gpu: PciAddress) -> None:
        """Reset one GPU. Refused while a process uses it, or if the node has no such GPU."""
        ...

    def reboot(self, node: NodeName, *, reason: str) -> None:
        """Restart a node that answers and runs no job. The drain survives the reboot."""
        ...

    def reimage(self, node: NodeName, *, reason: str) -> None:
        """Have a drained, idle node installed again by the site's own means; refused where none is configured."""
        ...

    def start_check(self, node: NodeName, *, suite: str, tests: Collection[str], key: ActionKey) -> None:
        """Start tests on the node and return at once; the result lies on the node under `key`.

        Asking again under the same key starts nothing new. Refused with `NOT_OFFERED` where no such command is
        configured, and unavailable while another check runs on the node: asked again, it begins after that.
        """
        ...

    def read_check(self, node: NodeName, *, key: ActionKey) -> NodeCheck | None:
        """Return what the tests under `key` found; None while they run, or if none were started under it.

        Raises SourceUnavailable if the node does not answer.
        """
        ...

    def read_versions(self, node: NodeName) -> Mapping[Component, str]:
        """Return the versions that *run* on the node now, of the components that it can tell.

        Of firmware the active one, never a staged one. What it cannot tell is missing, never empty. Raises
        SourceUnavailable if neither the node nor its BMC answers.
        """
        ...

    def start_install(self, node: NodeName, order: InstallOrder, *, key: ActionKey) -> None:
        """Start one step of a release and return at once; what became of it lies under `key`.

        Asking again under the same key starts nothing that was started before: it begins the next part of what
        `read_install` calls waiting. Refused with `NOT_OFFERED` where no means is configured for a change, where a
        hash does not fit, and while a process uses the GPUs; unavailable while another installation runs there.
        """
        ...

    def read_install(self, node: NodeName, *, key: ActionKey) -> InstallReport | None:
        """Return how far the installation under `key` is; None if none was started under it. Begins nothing.

        Raises SourceUnavailable if anyone who installs does not answer.
        """
        ...

    def reload_driver(self, node: NodeName) -> None:
        """Load the installed GPU driver again. Refused while a process uses a GPU."""
        ...

    def power_off(self, node: NodeName) -> None:
        """Cut the power, reachable or not. Afterwards no process of the node is left."""
        ...

    def power_on(self, node: NodeName) -> None:
        """Give power; a node that is on stays on."""
        ...

    def power_state(self, node: NodeName) -> PowerState:
        """Return whether the node has power, as its power switch (BMC) says; UNKNOWN if the switch cannot tell."""
        ...


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
    """Whether scheduler and nodes are simulated: nobody's jobs are at stake."""
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
    """None where no Alertmanager is notified of planned work."""
    approval_links: ApprovalLinks | None = None
    """None where `serve` in cluster.yaml names no key or no address: then no message carries a link."""
    rollout_files: RolloutFiles | None = None
    """Releases and calendars; None where nothing is rolled out."""
    outbox: Outbox | None = None
    """Where messages wait for their channel; None where nobody is notified but by the pages of plans."""
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
