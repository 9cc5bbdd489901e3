"""The ports of one cluster in one hand: what a pass over the cluster is given. Holds, decides nothing.

A pass keeps the rules that it was given; the next one is given those that hold then.
"""

from dataclasses import dataclass

from ops_pipelines.clock import Clock
from ops_pipelines.domain.guardrails.site_means import SiteMeans
from ops_pipelines.domain.identity import Digest
from ops_pipelines.domain.policy import ConfigTrouble, Fallback
from ops_pipelines.domain.snapshot import Rules
from ops_pipelines.flow.tell_rules import TellRules
from ops_pipelines.ports.bundles import Bundles, Recollection
from ops_pipelines.ports.fleet import Fleet
from ops_pipelines.ports.job_facts import JobFacts
from ops_pipelines.ports.ledger import Ledger
from ops_pipelines.ports.link_seal import ApprovalLinks
from ops_pipelines.ports.logs import Logs
from ops_pipelines.ports.notifier import Notifier
from ops_pipelines.ports.outbox import Outbox
from ops_pipelines.ports.page_shelf import PageShelf
from ops_pipelines.ports.past_work import PastWork
from ops_pipelines.ports.rollout_files import RolloutFiles
from ops_pipelines.ports.scheduler import Scheduler
from ops_pipelines.ports.silencer import Silencer
from ops_pipelines.ports.telemetry import Telemetry


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
