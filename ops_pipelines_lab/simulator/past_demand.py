"""A simulated past: weeks of `gpu_demand` for the accounts of the demo's cluster, and more than a year, hour by hour:
demand of teams, what was out, disks, links, watts. Plain rows, seeded; nothing of it ran anywhere.

The twin can account only for what it ran, which is hours; quotas look back for weeks and capacity for a year. Decides
nothing, and knows no quota: what runs is what a simulated quota of each team lets run, the rest waits. Writing the rows
is the drills'; rows of days are counted from these hours by the program itself.

What is in the weeks, so that there is something to find: days and nights, weekends, a holiday on which nobody works,
one team whose demand exceeds what it has from its launch on, and one that holds GPUs on which nothing runs. The year
leads up to them, and ends with them to the byte: teams that grow, a launch, one team that began in spring and one that
hardly comes, a calm end of the year, autumns in which jobs wait; a file system that fills, a rack that draws nearly
what it may.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from ops_pipelines.capacity.model import Resource

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
    """GPUs in demand at night."""
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


_DAYS_A_YEAR = 365.0
_SUMMER = dict.fromkeys((6, 7, 8, 9), 0.93)
"""Months in which people are away."""
_PAPERS = {10: 1.05, 11: 1.05}
"""Months in which papers are due."""
_LULL = ((12, 20), (1, 3))
"""From the first of these days to the second there is little work."""
_LULL_RATIO = 0.8
_QUIET_DAY = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamYear:
    """How one team came to what it wants now."""

    team: str
    year_ago_ratio: float = 1.0
    """Its demand a year before the last weeks over its demand in them; in between a straight line."""
    by_month: Mapping[int, float] = field(default_factory=dict)
    """In these months so much more or less; in others as the year has it."""
    launch_days_before: int | None = None
    """On this day before the last it launched something; None: it did not."""
    before_launch_ratio: float = 1.0
    """Of its demand after the launch, so much was there before."""
    began_days_before: int | None = None
    """It did not exist before; None: it always did."""

    def ratio_on(self, day: date, *, last: date) -> float:
        """Return its demand on a day over its demand in the last weeks; 0 before it began."""
        back = (last - day).days
        if self.began_days_before is not None and back > self.began_days_before:
            return 0.0
        ratio = 1.0 - (1.0 - self.year_ago_ratio) * back / _DAYS_A_YEAR
        if self.launch_days_before is not None and back > self.launch_days_before:
            ratio *= self.before_launch_ratio
        season = _LULL_RATIO if _is_lull(day) else self.by_month.get(day.month, 1.0)
        return max(0.0, ratio * season)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A file system that fills. What it holds grows in a straight line, with a little chance."""

    name: str
    size_bytes: float
    used_ratio: float
    """Now."""
    a_week_ratio: float
    """Of its size, so much more each week."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YearPlan:
    """What happened in the year, beside what `PastPlan` says of its last weeks."""

    teams: Sequence[TeamYear]
    guest: TeamHabit
    """Hardly comes, and not at all in the last weeks."""
    day_count: int = 400
    installed_gpus: int
    stores: Sequence[Store]
    racks: Mapping[str, float]
    """Rack -> watts that it draws when the cluster is busy."""
    rack_limit_watts: float
    idle_watts_ratio: float = 0.45
    """Of these watts, what is drawn when nothing runs."""
    leaves: Sequence[str]
    busy_link_ratio: float = 0.42
    out_gpus: float = 14.0
    """Out of service in the mean."""
    stranded_gpus: float = 6.0
    by_team: Mapping[str, TeamYear] = field(init=False)

    def __post_init__(self) -> None:
        if self.day_count < 1:
            raise ValueError(f"a past of {self.day_count} days; expected 1 or more")
        object.__setattr__(self, "by_team", {each.team: each for each in self.teams})


_PEBIBYTE = 2.0**50
DEMO_YEAR = YearPlan(
    teams=(
        TeamYear(team="platform", year_ago_ratio=0.95),
        TeamYear(team="product", year_ago_ratio=0.98, launch_days_before=250, before_launch_ratio=0.9),
        TeamYear(team="research", year_ago_ratio=0.8, by_month=_SUMMER | _PAPERS),
        TeamYear(
            team="science", year_ago_ratio=0.9, began_days_before=245, launch_days_before=118, before_launch_ratio=0.7
        ),
    ),
    guest=TeamHabit(team="visitors", quota=16, base=0.0, by_day=2.0, on_weekends_ratio=0.0),
    installed_gpus=608,
    stores=(
        # The size and, in the end, the room of the simulated nodes' mount.
        Store(name="scratch", size_bytes=4 * _PEBIBYTE, used_ratio=0.59, a_week_ratio=0.0095),
        Store(name="archive", size_bytes=8 * _PEBIBYTE, used_ratio=0.41, a_week_ratio=0.001),
    ),
    racks={
        "r1": 69_000.0,
        "r2": 68_000.0,
        "r3": 88_500.0,
        "r4": 70_500.0,
        "r5": 66_000.0,
        "r6": 67_500.0,
        "r7": 65_000.0,
        "r8": 62_000.0,
    },
    rack_limit_watts=90_000.0,
    leaves=("leaf1", "leaf2", "leaf3", "leaf4"),
)
"""The 76 nodes of the demo, and its accounts."""


def year_of_demand(plan: PastPlan, year: YearPlan, *, end: datetime, weeks: int, seed: int) -> Iterator[Row]:
    """Yield rows of `gpu_demand` for the hours of the year before `end`, oldest first; the last weeks as `past_demand`.

    The same arguments give the same rows. Raises ValueError as `past_demand`, and where a team is of one plan alone.
    """
    strangers = {each.team for each in plan.habits} ^ {each.team for each in year.teams}
    if strangers:
        raise ValueError(f"{', '.join(sorted(strangers))}: named in one of both plans; expected the same teams in both")
    known_from = end - timedelta(weeks=weeks)
    last = (end - _HOUR).astimezone(plan.zone).date()
    launch, holiday = (last - timedelta(days=back) for back in (plan.launch_days_before, plan.holiday_days_before))
    hour = end - timedelta(days=year.day_count)
    while hour < known_from:
        day = hour.astimezone(plan.zone).date()
        for habit in sorted((*plan.habits, year.guest), key=lambda each: each.team):
            own = year.by_team.get(habit.team)
            ratio = _guest_ratio(day, seed=seed) if own is None else own.ratio_on(day, last=last)
            if ratio <= 0:
                continue
            wanted = ratio * wanted_at(habit, hour, plan=plan, launch=launch, holiday=holiday)
            # Work comes in waves of days; hours alone would leave no week higher than another.
            wave = random.Random(f"{seed} wave {habit.team} {day}").gauss(0.0, plan.noise_ratio)
            chance = random.Random(f"{seed} {habit.team} {hour.timestamp():.0f}").uniform(-1, 1)
            wanted = max(0.0, wanted * (1 + wave + plan.noise_ratio * chance))
            # What a quota held back when there was less of everything is not known: it was as full as now.
            quota = max(1, round(habit.quota * min(1.0, ratio)))
            yield demand_row(replace(habit, quota=quota), hour, wanted=wanted, plan=plan)
        hour += _HOUR
    yield from past_demand(plan, end=end, weeks=weeks, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHour:
    """What everything but demand was in an hour: resource, name -> amount; and what holds it, where that is known."""

    values: Mapping[Resource, Mapping[str, float]]
    limits: Mapping[Resource, Mapping[str, float]]


def site_in(hour: datetime, *, year: YearPlan, running_gpus: float, end: datetime, seed: int) -> SiteHour:
    """Return what was out, stored, sent and drawn in an hour in which so many GPUs ran. The same for the same."""
    chance = random.Random(f"{seed} site {hour.timestamp():.0f}")
    of_day = random.Random(f"{seed} site {hour.date()}")
    weeks_back = (end - hour) / timedelta(weeks=1)
    busy = min(1.0, running_gpus / year.installed_gpus)
    broken = max(0.0, 0.7 * year.out_gpus + 3.0 * of_day.gauss(0, 1))
    maintenance = 0.3 * year.out_gpus * (2.0 if hour.weekday() == 1 else 0.5)
    stored = {
        each.name: each.size_bytes
        * max(0.05, each.used_ratio - each.a_week_ratio * weeks_back + 0.0015 * of_day.uniform(-1, 1))
        for each in year.stores
    }
    racks = {
        name: min(
            year.rack_limit_watts,
            watts * (year.idle_watts_ratio + (1 - year.idle_watts_ratio) * busy) * (1 + 0.01 * chance.uniform(-1, 1)),
        )
        for name, watts in year.racks.items()
    }
    swing = 0.5 - 0.5 * math.cos((hour.hour - 3) / 24 * 2 * math.pi)
    links = {
        name: year.busy_link_ratio * busy * (0.8 + 0.2 * swing) * (1 + 0.05 * chance.uniform(-1, 1))
        for name in year.leaves
    }
    return SiteHour(
        values={
            Resource.GPUS_OUT: {"": broken + maintenance, "broken": broken, "maintenance": maintenance},
            Resource.GPUS_STRANDED: {"": max(0.0, year.stranded_gpus * (1 + 0.3 * of_day.gauss(0, 1)))},
            Resource.STORAGE_BYTES: stored,
            Resource.NETWORK_RATIO: {"": max(links.values(), default=0.0), **links},
            Resource.RACK_WATTS: racks,
            Resource.COOLING_WATTS: {"": sum(racks.values())},
        },
        limits={
            Resource.GPUS_OUT: dict.fromkeys(("", "broken", "maintenance"), float(year.installed_gpus)),
            Resource.STORAGE_BYTES: {each.name: each.size_bytes for each in year.stores},
            Resource.NETWORK_RATIO: dict.fromkeys(("", *links), 1.0),
            Resource.RACK_WATTS: dict.fromkeys(racks, year.rack_limit_watts),
        },
    )


def _is_lull(day: date) -> bool:
    since, until = _LULL
    return (day.month, day.day) >= since or (day.month, day.day) <= until


def _guest_ratio(day: date, *, seed: int) -> float:
    """Return what the guests want over their habit: on most days nothing."""
    return 1.0 if random.Random(f"{seed} guests {day}").random() > _QUIET_DAY else 0.0
