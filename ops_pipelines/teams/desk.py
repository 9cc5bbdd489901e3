"""All that sharing out and accounting need, in one hand: what was agreed, prices, limits, the cluster and its lake.

Holds, decides nothing. As `core.cluster` for what acts on nodes, and `core.cluster` for what fills the lake.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from ops_pipelines.clock import Clock
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.lake import Lake
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.quota_limits import Quotas
from ops_pipelines.core.record import StatementFiles
from ops_pipelines.core.scheduler import SchedulerSettings
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.price import InstalledNode, PriceModel
from ops_pipelines.teams.projects import CapacityPolicy, CapacitySettings, PlannedProject
from ops_pipelines.teams.settings import AdviceSettings, LimitsOn, QuotaPolicy


class NoTeams(RuntimeError):
    """cluster.yaml lacks what is asked for here: says which key, and what to write there."""


@dataclass(frozen=True, kw_only=True)
class TeamsDesk:
    """What is known of teams, and where it is read and written."""

    cluster: Cluster
    observatory: Observatory
    agreements: Agreements | None
    """None: cluster.yaml names no file of teams."""
    agreements_trouble: str = ""
    """What is the matter with that file, though something holds; empty: nothing is."""
    policy: QuotaPolicy = field(default_factory=QuotaPolicy)
    quotas: Quotas | None = None
    """None: the scheduler keeps no limits that could be read or set."""
    limits_on: LimitsOn = LimitsOn.TOTAL
    """Which limits are set there."""
    settings: SchedulerSettings | None = None
    """How the scheduler is set up; None: nobody tells."""
    prices: PriceModel | None = None
    """None: cluster.yaml has no `prices`; then hours are counted and nothing is charged."""
    statements: StatementFiles | None = None
    """Where statements are kept; None keeps none."""
    installed: tuple[InstalledNode, ...] = ()
    """The register of nodes: what was bought, from when until when."""
    gpu_type_of: Mapping[NodeName, GpuType] = field(default_factory=dict)
    """Of each node, where cluster.yaml names one; the others have ``."""
    advice: AdviceSettings = field(default_factory=AdviceSettings)
    read_listing: Callable[[], bytes] | None = None
    """The listing of files that policy.yaml names under `advice`; None: it names none. Raises OSError, ValueError."""
    capacity: CapacitySettings | None = None
    """What can be bought, comes and goes; None: cluster.yaml names no file `capacity`, or it was never right."""
    is_capacity_named: bool = False
    """Whether cluster.yaml names the file; what is the matter with it is told in `projects_trouble`."""
    capacity_policy: CapacityPolicy = field(default_factory=CapacityPolicy)
    projects: tuple[PlannedProject, ...] = ()
    """All planned demand, of projects.yaml and of teams.yaml."""
    projects_trouble: str = ""
    """What is the matter with these files, though something holds; empty: nothing is."""
    plan_files: StatementFiles | None = None
    """Where reports of quarters are kept; None keeps none."""

    @property
    def lake(self) -> Lake:
        return self.observatory.lake

    @property
    def clock(self) -> Clock:
        return self.cluster.clock

    @property
    def zone(self) -> ZoneInfo:
        """The zone in which days and months begin."""
        return ZoneInfo("UTC" if self.agreements is None else self.agreements.timezone)

    def agreed(self) -> Agreements:
        """Return what was agreed; raise NoTeams where nothing was."""
        if self.agreements is None:
            raise NoTeams(
                "cluster.yaml names no file of teams; write `teams: teams.yaml`, and the file (docs/QUOTAS.md)"
            )
        return self.agreements

    def limits(self) -> Quotas:
        """Return where limits are read and set; raise NoTeams where there are none."""
        if self.quotas is None:
            raise NoTeams("this scheduler keeps no limits; quotas are proposed, and cannot be applied")
        return self.quotas

    def priced(self) -> PriceModel:
        """Return the prices; raise NoTeams where none are stated."""
        if self.prices is None:
            raise NoTeams("cluster.yaml has no `prices`; without them nothing can be charged (docs/COST.md)")
        return self.prices
