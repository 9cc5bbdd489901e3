"""What sharing out and accounting need in one place: settings of policy.yaml, agreements, prices, cluster and lake.

Holds, decides nothing. The defaults of the settings are here, each with its source. `Assumption`: a choice of ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from zoneinfo import ZoneInfo

from ops_pipelines.clock import Clock
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.policy import NotConfigured
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.record import StatementFiles
from ops_pipelines.core.scheduler import Quotas, SchedulerSettings
from ops_pipelines.core.sources import Lake
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.price import InstalledNode, PriceModel
from ops_pipelines.teams.projects import CapacityPolicy, CapacitySettings, PlannedProject

# -- by what quotas are moved --


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceSettings:
    """Limits of the daily rebalancing, from policy.yaml. Their defaults are chosen in docs/QUOTAS.md."""

    half_life_hours: float = 9.0
    """An hour so long past counts half: queues last for hours, last week says little of today."""
    window_days: int = 14
    """What is older counts for nothing."""
    spread_ratio: float = 0.15
    """Tomorrow wants what an hour of the past requested, so much more, or so much less: each is as likely."""
    least_gain_ratio: float = 0.05
    """A GPU moves only if it is requested in so much more of the time where it goes: the dead band."""
    step_cap_ratio: float = 0.10
    """GPUs that move in a day, of all teams together, over capacity."""
    agreeing_days: int = 2
    """A quota shrinks only if it was found too large on so many ..."""
    looked_at_days: int = 3
    """... of the last so many days; while fewer are known, on all of them."""

    def __post_init__(self) -> None:
        if not self.half_life_hours > 0:
            raise ValueError(f"half_life_hours is {self.half_life_hours}; expected more than 0")
        if not 0 < self.step_cap_ratio <= 1:
            raise ValueError(f"step_cap_ratio is {self.step_cap_ratio}; expected more than 0, at most 1")
        for name in ("least_gain_ratio", "spread_ratio"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more, below 1")
        if not 1 <= self.agreeing_days <= self.looked_at_days <= self.window_days:
            raise ValueError(
                f"agreeing_days {self.agreeing_days}, looked_at_days {self.looked_at_days}, window_days "
                f"{self.window_days}; expected at least 1 and none larger than the next"
            )


# -- what policy.yaml says under `quotas` --


class LimitsOn(Enum):
    """Which limits are set in the scheduler: what this cluster can hold, so cluster.yaml says it."""

    TOTAL = "total"
    """One for each team, on GPUs of every type together."""
    PER_TYPE = "per_type"
    """One for each team and type; only where the scheduler holds jobs to them that name no type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFreeze:
    """An operator's order that no quota moves."""

    name: str
    begins_at: datetime
    ends_at: datetime | None
    """None: until the order is taken back. After its end quotas roll back to what was agreed."""

    def __post_init__(self) -> None:
        for at in (self.begins_at, self.ends_at):
            if at is not None and at.utcoffset() is None:
                raise ValueError(f"{self.name} has {at}, a time without a zone; write 2026-12-24T00:00:00Z")
        if self.ends_at is not None and self.ends_at <= self.begins_at:
            raise ValueError(f"{self.name} ends at {self.ends_at}, and begins at {self.begins_at}; expected it later")

    def holds_at(self, at: datetime) -> bool:
        return self.begins_at <= at and (self.ends_at is None or at < self.ends_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPolicy:
    """Limits of everything that is done with quotas. The defaults hold where policy.yaml says nothing."""

    rebalance: RebalanceSettings = field(default_factory=RebalanceSettings)
    slack_max_ratio: float = 0.05
    """Quotas leave the GPUs of the largest rack free, but no more than this share of what is installed."""
    waste_bound_ratio: float = 0.0
    """Up to this share of what a team runs, idle GPUs are taken off its demand. 0: they are only reported."""
    demand_max_age: timedelta = timedelta(hours=3)
    """Without demand newer than this nothing is proposed."""
    known_hour_min_ratio: float = 0.9
    """Without so many of the last days' hours nothing is proposed."""
    sets_fairshare: bool = False
    """Whether a team's share among its siblings follows its quota, too."""
    freezes: tuple[QuotaFreeze, ...] = ()

    def __post_init__(self) -> None:
        for name in ("slack_max_ratio", "waste_bound_ratio", "known_hour_min_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"quotas.{name} is {getattr(self, name)}; expected 0 to 1")
        if self.demand_max_age <= timedelta(0):
            raise ValueError(f"quotas.demand_max_age_hours must be above 0; found {self.demand_max_age}")

    def freeze_at(self, at: datetime) -> QuotaFreeze | None:
        """Return the freeze that holds; None if none does."""
        return next((each for each in self.freezes if each.holds_at(at)), None)


# -- what counts as worth saying --


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSettings:
    """What is reported of a GPU that stays idle, step by step. Off unless policy.yaml turns it on.

    The steps are Job Defense Shield's (Princeton): warnings at 60 and 105 minutes, the end at 120. Evidence comes by
    the hour here, so that the second warning is reported at 120 minutes and the last step at 180.
    """

    is_on: bool = False
    first_warning_after: timedelta = timedelta(minutes=60)
    second_warning_after: timedelta = timedelta(minutes=120)
    release_after: timedelta = timedelta(minutes=180)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.first_warning_after < self.second_warning_after < self.release_after:
            raise ValueError(
                "advice.idle_ladder: expected first_warning_after_minutes, second_warning_after_minutes and "
                "release_after_minutes above 0 and each later than the one before; found "
                f"{_minutes(self.first_warning_after)}, {_minutes(self.second_warning_after)}, "
                f"{_minutes(self.release_after)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings:
    """All thresholds. A rule speaks at its threshold, and is silent on the side of doubt."""

    tells_teams: bool = True
    """Whether teams get the weekly message; without it, advice is shown and kept only."""
    per_team_count: int = 3
    """At most so many a team and week."""
    quiet_weeks: int = 4
    """The same is not stated again so long, unless it got worse."""
    worse_ratio: float = 1.25
    """Assumption: a measure that grew by a quarter got worse."""
    followed_ratio: float = 0.5
    """Assumption: a measure that fell to half or less was acted on."""
    least_gain_gpu_hours: float = 8.0
    """Assumption: less than an H100 node's hour in a week is worth nobody's reading."""
    least_gain_bytes: int = 10 * 2**40
    """Assumption: less than 10 TiB frees nothing that anybody notices on a parallel file system."""
    least_seen_ratio: float = 0.5
    """Assumption: of what was held, this share must have been measured, or the use of it is not known."""

    idle_grace: timedelta = timedelta(minutes=15)
    """A job so young may still load. Assumption."""
    idle_least_hours: float = 2.0
    """Idle so long on end: Job Defense Shield acts after 120 minutes."""
    warm_up: timedelta = timedelta(hours=1)
    """In its first hour a job fills caches. Assumption."""
    stall_least_ratio: float = 0.25
    """Of the measured time. As the rule work_comes_in_bursts: more than checkpoints and evaluations take."""
    communication_least_ratio: float = 0.5
    communication_gain_ratio: float = 0.15
    """Assumption: what overlapping and better placement give back of communication-bound time."""
    small_batch_least_ratio: float = 0.5
    small_batch_most_memory_ratio: float = 0.5
    """With more device memory in use than this a larger batch may not fit. Assumption."""
    sm_target_ratio: float = 0.5
    """DCGM user guide: SM activity below 0.5 is likely ineffective."""
    straggler_least_ratio: float = 0.1
    """Assumption: of the measured time."""
    straggler_low_ratio: float = 0.05
    straggler_loss_ratio: float = 0.1
    """MegaScale (arXiv 2402.15627): straggling hosts are about 10 % slower."""
    lesser_types: Mapping[GpuType, GpuType] = field(default_factory=dict)
    """Which type would do for light work on another; empty: nobody stated, and nothing is reported of types."""
    light_most_utilisation_ratio: float = 0.2
    light_most_memory_bytes: float = 10e9
    """Job Defense Shield, "too powerful": at most 20 % busy and 10 GB on one GPU."""

    memory_least_unneeded_ratio: float = 0.5
    """Assumption: of the memory asked for, in every attempt."""
    memory_margin_ratio: float = 1.2
    """Assumption: so much above the most that was ever used is advised."""
    least_attempt_count: int = 5
    """Assumption: ended attempts that limits are judged by."""
    wall_time_least_factor: float = 4.0
    """Assumption: the time limit over the longest attempt."""
    wall_time_gain_ratio: float = 0.25
    """Assumption: of the time waited, what a shorter limit saves by back-fill."""

    unsaved_least_hours: float = 12.0
    """Assumption: an attempt so long is worth saving."""
    interval_least_factor: float = 2.0
    """Young's optimum is flat: at half or double of it a quarter more is lost, which is where advice begins."""
    least_failure_count: int = 3
    """With fewer failures of nodes the mean time between them is not known."""
    least_interval_count: int = 4
    """Times between saves that an interval is judged by. Assumption."""

    stale_after: timedelta = timedelta(days=90)
    unused_after: timedelta = timedelta(days=180)
    """Assumption: nobody read it for so long."""
    ladder: LadderSettings = field(default_factory=LadderSettings)

    def __post_init__(self) -> None:
        for name in _RATIOS:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"advice.{name} is {getattr(self, name)}; expected 0 to 1")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"advice.{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("least_gain_gpu_hours", "least_gain_bytes", "idle_least_hours", "unsaved_least_hours"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"advice.{name} is {getattr(self, name)}; expected 0 or more")
        for name in ("worse_ratio", "wall_time_least_factor", "interval_least_factor", "memory_margin_ratio"):
            if not getattr(self, name) > 1:
                raise ValueError(f"advice.{name} is {getattr(self, name)}; expected more than 1")
        for name in ("idle_grace", "warm_up"):
            if getattr(self, name) < timedelta(0):
                raise ValueError(f"advice.{name} is negative; expected 0 or more")
        for name in ("stale_after", "unused_after"):
            if getattr(self, name) <= timedelta(0):
                raise ValueError(f"advice.{name}_days must be above 0; expected a day or more")
        if self.straggler_low_ratio > self.straggler_loss_ratio:
            raise ValueError("advice.straggler_low_ratio is above straggler_loss_ratio; expected it not above")
        same = sorted(kind for kind, lesser in self.lesser_types.items() if kind == lesser)
        if same:
            raise ValueError(f"advice.lesser_types names {same[0]} as lesser than itself; expected another type")


_RATIOS = (
    "followed_ratio", "least_seen_ratio", "stall_least_ratio", "communication_least_ratio", "communication_gain_ratio",
    "small_batch_least_ratio", "small_batch_most_memory_ratio", "sm_target_ratio", "straggler_least_ratio",
    "straggler_low_ratio", "straggler_loss_ratio", "light_most_utilisation_ratio", "memory_least_unneeded_ratio",
    "wall_time_gain_ratio",
)  # fmt: skip
_COUNTS = ("per_team_count", "quiet_weeks", "least_attempt_count", "least_failure_count", "least_interval_count")


def _minutes(length: timedelta) -> str:
    return f"{length.total_seconds() / 60:g}"


class NoTeams(NotConfigured):
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
    """How the scheduler is set up; None: nobody reports."""
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
    """Whether cluster.yaml names the file; what is the matter with it is reported in `projects_trouble`."""
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
