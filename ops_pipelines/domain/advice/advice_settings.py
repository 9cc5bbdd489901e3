"""What counts as worth saying: the thresholds of every rule, how much is said, and the ladder for idle GPUs.

policy.yaml sets them under `advice`; the defaults stand here, each with its source. `Assumption`: a choice of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ops_pipelines.core.proposal import GpuType


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSettings:
    """What is said of a GPU that stays idle, step by step. Off unless policy.yaml turns it on.

    The steps are Job Defense Shield's (Princeton): warnings at 60 and 105 minutes, the end at 120. Evidence comes by
    the hour here, so that the second warning is said at 120 minutes and the last step at 180.
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
    """The same is not said again so long, unless it got worse."""
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
    """Which type would do for light work on another; empty: nobody said, and nothing is said of types."""
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
