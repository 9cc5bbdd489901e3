"""The ports of one cluster in one hand: what a pass over the cluster is given. Holds, decides nothing."""

from dataclasses import dataclass

from ops_pipelines.clock import Clock
from ops_pipelines.domain.decision import Rules
from ops_pipelines.domain.identity import Digest
from ops_pipelines.ports.bundles import Bundles, Recollection
from ops_pipelines.ports.fleet import Fleet
from ops_pipelines.ports.job_facts import JobFacts
from ops_pipelines.ports.ledger import Ledger
from ops_pipelines.ports.logs import Logs
from ops_pipelines.ports.notifier import Notifier
from ops_pipelines.ports.scheduler import Scheduler
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
    bundles: Bundles | None = None
    """None keeps no evidence beside the ledger."""
    recollection: Recollection | None = None
    """None where no lines and metrics of the past are kept."""
    job_facts: JobFacts | None = None
    """None where nothing is learned of jobs beside what the scheduler says."""
