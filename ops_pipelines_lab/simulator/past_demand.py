"""A past of `gpu_demand` that never was: weeks of hours for the accounts of the demo's cluster. Plain rows, seeded.

The twin can account only for what it ran, which is hours; quotas look back for weeks. Decides nothing, and knows no
quota: what runs is what a pretended quota of each team lets run, the rest waits. Writing the rows is the drills'.

What is in it, so that there is something to find: days and nights, weekends, a holiday on which nobody works, one team
that wants more than it has from its launch on, and one that holds GPUs on which nothing runs.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

_HOUR = timedelta(hours=1)
_JOB_GPUS = 8
"""What a job takes on average: whole nodes."""
Row = dict[str, object]
"""One row of `gpu_demand`, by the names of its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamHabit:
    """How one team wants GPUs."""

    team: str
    quota: int
    """What it was let run in this past."""
    base: float
    """GPUs wanted on a night."""
    by_day: float
    """So many more in the middle of a working day."""
    on_weekends_ratio: float = 0.4
    """Of `by_day`, what is left on weekends."""
    idle_ratio: float = 0.0
    """Share of what it runs on which nothing runs."""
    holds_quota: bool = False
    """It keeps its whole quota busy with jobs, needed or not."""
    launch_gpus: float = 0.0
    """So many more from the launch on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPlan:
    """What happens in the past."""

    habits: Sequence[TeamHabit]
    launch_days_before: int = 5
    """The launch is on the local day so many days before the last hour."""
    holiday_days_before: int = 10
    noise_ratio: float = 0.08
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    gpu_type: str = ""

    def __post_init__(self) -> None:
        if not self.habits:
            raise ValueError("there are no teams; expected at least one")


DEMO_PLAN = PastPlan(
    habits=(
        TeamHabit(team="platform", quota=48, base=16, by_day=40),
        # Services that run whatever the hour, on more than they need.
        TeamHabit(team="product", quota=144, base=120, by_day=24, idle_ratio=0.35, holds_quota=True),
        TeamHabit(team="research", quota=240, base=150, by_day=60, on_weekends_ratio=0.7),
        # It trains a model from the launch on, and starves.
        TeamHabit(team="science", quota=80, base=50, by_day=30, launch_gpus=72),
    )
)
"""The accounts of the demo and its 512 GPUs."""


def past_demand(plan: PastPlan, *, end: datetime, weeks: int, seed: int) -> Iterator[Row]:
    """Yield the rows of the hours of so many weeks before `end`, hour by hour, teams in their order.

    The same arguments give the same rows. Raises ValueError for no whole hour, or no week.
    """
    if weeks < 1 or (end.minute, end.second, end.microsecond) != (0, 0, 0):
        raise ValueError(f"{weeks} weeks before {end}; expected 1 or more, before a whole hour")
    last = (end - _HOUR).astimezone(plan.zone).date()
    launch, holiday = (last - timedelta(days=back) for back in (plan.launch_days_before, plan.holiday_days_before))
    for number in range(weeks * 7 * 24):
        hour = end - (weeks * 7 * 24 - number) * _HOUR
        for habit in sorted(plan.habits, key=lambda each: each.team):
            chance = random.Random(f"{seed} {habit.team} {hour.timestamp():.0f}")
            wanted = wanted_at(habit, hour, plan=plan, launch=launch, holiday=holiday)
            yield demand_row(habit, hour, wanted=wanted * (1 + plan.noise_ratio * chance.uniform(-1, 1)), plan=plan)


def wanted_at(habit: TeamHabit, hour: datetime, *, plan: PastPlan, launch: date, holiday: date) -> float:
    """Return what a team wants in the mean of an hour, before chance."""
    local = hour.astimezone(plan.zone)
    day = local.date()
    # From 0 at three in the morning to 1 at three in the afternoon.
    share = 0.5 - 0.5 * math.cos((local.hour - 3) / 24 * 2 * math.pi)
    if day == holiday:
        share = 0.0
    elif day.weekday() >= 5:
        share *= habit.on_weekends_ratio
    return habit.base + habit.by_day * share + (habit.launch_gpus if day >= launch else 0.0)


def demand_row(habit: TeamHabit, hour: datetime, *, wanted: float, plan: PastPlan) -> Row:
    """Return the row of an hour: up to its quota a team runs what it wants, the rest waits."""
    running = float(habit.quota) if habit.holds_quota else min(wanted, float(habit.quota))
    pending = max(0.0, wanted - running)
    return {
        "team": habit.team,
        "gpu_type": plan.gpu_type,
        "time": hour,
        "gpus_running_avg": running,
        "gpus_pending_avg": pending,
        "gpus_pending_max": pending * 1.25,
        "gpus_demand_avg": running + pending,
        "gpus_wasted_avg": running * habit.idle_ratio,
        "jobs_running_avg": running / _JOB_GPUS,
        "gpus_ran_last": math.floor(running),
    }
