"""`gpu_demand`: for each hour, team and type of GPU, what ran, waited and was requested, with notes.

An attempt on nodes of two types weighs in both, by its nodes. Intervals are half-open, in microseconds. Sums of whole
GPUs and microseconds stay below 2**53, where floats are exact. Rows are `attempts`', types and waits `spans`', days
`daily`'s.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ops_pipelines.core.identity import listed
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.lake.quantities import Refused
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.attempts import NEVER, Attempts, in_microseconds, read_attempts
from ops_pipelines.quotas.recorded import Floats, Whole
from ops_pipelines.quotas.spans import (
    COUNTS,
    UNTOLD,
    GpuTypes,
    Waits,
    Wasted,
    WithRunning,
    find_waits,
    read_waste,
    shares_of,
    with_running,
)
from ops_pipelines.report.numbers import counted

# -- intervals of time with a weight -> means and maxima by hour, exact --


HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """The hours of an interval of time: `count` of them from `begin`, in microseconds since 1970."""

    begin: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.count * HOUR


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeighedIntervals:
    """A row each: in `group` something weighs `weight` within [begin, end)."""

    group: Whole
    weight: Floats
    begin: Whole
    end: Whole

    def within(self, hours: Hours) -> "WeighedIntervals":
        """Return the parts that lie in the hours, from their begin on."""
        begin, end = np.maximum(self.begin, hours.begin), np.minimum(self.end, hours.end)
        keep = begin < end
        return WeighedIntervals(
            group=self.group[keep],
            weight=self.weight[keep],
            begin=begin[keep] - hours.begin,
            end=end[keep] - hours.begin,
        )

    def take(self, places: NDArray[np.bool_]) -> "WeighedIntervals":
        """Return these rows."""
        return WeighedIntervals(
            group=self.group[places], weight=self.weight[places], begin=self.begin[places], end=self.end[places]
        )

    def counted(self) -> "WeighedIntervals":
        """Return the same intervals, each with a weight of 1."""
        return replace(self, weight=np.ones(len(self.weight)))

    def amounts(self, hours: Hours) -> Floats:
        """Return weight times hours of each row, as far as it lies within."""
        lasted = np.minimum(self.end, hours.end) - np.maximum(self.begin, hours.begin)
        found: Floats = np.where(lasted > 0, lasted, 0) * self.weight / HOUR
        return found


def means(stretches: WeighedIntervals, *, hours: Hours, group_count: int) -> Floats:
    """Return the time-weighted mean by group and hour."""
    inside = stretches.within(hours)
    first, last = inside.begin // HOUR, inside.end // HOUR
    # From its first hour on an interval weighs whole hours, up to that in which it ends; what is too much is taken off.
    whole = _levels(inside, first=first, last=last, hours=hours, group_count=group_count) * HOUR
    ends = _summed(inside.group, first, -inside.weight * (inside.begin - first * HOUR), hours, group_count)
    ends += _summed(inside.group, last, inside.weight * (inside.end - last * HOUR), hours, group_count)
    found: Floats = np.maximum((whole + ends)[:, : hours.count], 0.0) / HOUR
    return found


def at_the_end(stretches: WeighedIntervals, *, hours: Hours, group_count: int) -> Floats:
    """Return by group and hour what weighs in the hour's last moment."""
    inside = stretches.within(hours)
    levels = _levels(inside, first=inside.begin // HOUR, last=inside.end // HOUR, hours=hours, group_count=group_count)
    return np.maximum(levels[:, : hours.count], 0.0)


def maxima(stretches: WeighedIntervals, *, hours: Hours, group_count: int) -> Floats:
    """Return by group and hour the most that weighs at one time."""
    inside = stretches.within(hours)
    boundaries = np.arange(hours.count) * HOUR
    group = np.concatenate((inside.group, inside.group, np.repeat(np.arange(group_count), hours.count)))
    time = np.concatenate((inside.begin, inside.end, np.tile(boundaries, group_count)))
    weight = np.concatenate((inside.weight, -inside.weight, np.zeros(group_count * hours.count)))
    order = np.lexsort((time, group))
    group, time, weight = group[order], time[order], weight[order]
    level = np.round(np.cumsum(weight), 9)
    # What begins and ends at one moment is never there together: only the level after all of a moment counts.
    is_last = np.append((np.diff(group) != 0) | (np.diff(time) != 0), True)
    counts = is_last & (time < hours.count * HOUR)
    cell = group[counts] * hours.count + time[counts] // HOUR
    # Each cell has the event of its beginning, so that none is empty.
    starts = np.flatnonzero(np.append(True, np.diff(cell) != 0)) if len(cell) else np.zeros(0, np.int64)
    highest = np.maximum.reduceat(level[counts], starts) if len(cell) else np.zeros(0)
    return np.maximum(highest, 0.0).reshape(group_count, hours.count)


def _levels(inside: WeighedIntervals, *, first: Whole, last: Whole, hours: Hours, group_count: int) -> Floats:
    steps = _summed(inside.group, first, inside.weight, hours, group_count)
    steps -= _summed(inside.group, last, inside.weight, hours, group_count)
    return np.round(np.cumsum(steps, axis=1), 9).astype(np.float64)


def _summed(group: Whole, hour: Whole, weight: Floats, hours: Hours, group_count: int) -> Floats:
    """Return sums of weights by group and hour, with one hour more for what ends with the last."""
    width = hours.count + 1
    sums = np.bincount(group * width + hour, weights=weight, minlength=group_count * width)
    return sums.astype(np.float64).reshape(group_count, width)


# -- attempts and their waits as weighed intervals of time, numbered by team and type of GPU --


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """What ran and what waited: `group` counts in `groups`."""

    groups: tuple[tuple[TeamName, GpuType], ...]
    """By team and type: all that any attempt names, whenever it was."""
    running: WeighedIntervals
    waiting: WeighedIntervals
    """A row for each wait, in their order."""


def weigh(attempts: Attempts, waits: Waits, *, types: GpuTypes) -> Weighed:
    """Return intervals that weigh the GPUs of attempts and waits. What has no end lasts for ever."""
    teams = attempts.texts["account"]
    names, kinds = sorted(teams.words), types.names
    place_of = {name: place for place, name in enumerate(names)}
    rank = np.array([place_of[word] for word in teams.words], np.int64) * len(kinds)
    run_of, kind, share = _split(attempts, types)
    ran_as = rank[teams.codes[run_of]] + kind
    partitions = attempts.texts["partition"]
    wanted = np.array([kinds.index(types.wanted_in(word)) for word in partitions.words], np.int64)
    waited_as = rank[teams.codes[waits.of]] + wanted[partitions.codes[waits.of]]
    present, group = np.unique(np.concatenate((ran_as, waited_as)), return_inverse=True)
    return Weighed(
        groups=tuple((TeamName(names[each // len(kinds)]), kinds[each % len(kinds)]) for each in present.tolist()),
        running=WeighedIntervals(
            group=group[: len(ran_as)],
            weight=attempts.gpus[run_of] * share,
            begin=attempts.started[run_of],
            end=attempts.ended[run_of],
        ),
        waiting=WeighedIntervals(
            group=group[len(ran_as) :], weight=attempts.gpus[waits.of], begin=waits.begin, end=waits.end
        ),
    )


def _split(attempts: Attempts, types: GpuTypes) -> tuple[Whole, Whole, Floats]:
    """Return a row for each attempt and type: the attempt, the type and its share."""
    ran = np.flatnonzero(attempts.started != NEVER)
    hosts = attempts.texts["nodes"]
    kinds = types.names
    shares = [sorted((kinds.index(name), amount) for name, amount in each.items()) for each in shares_of(hosts, types)]
    width = max((len(each) for each in shares), default=1)
    kind = np.zeros((len(shares), width), np.int64)
    part = np.zeros((len(shares), width))
    for place, each in enumerate(shares):
        for column, (number, amount) in enumerate(each):
            kind[place, column], part[place, column] = number, amount
    codes = hosts.codes[ran]
    of = np.repeat(ran, width)
    share = part[codes].reshape(-1)
    is_there = share > 0
    return of[is_there], kind[codes].reshape(-1)[is_there], share[is_there]


# -- what of the demand does not count, could not be reported, or was put right --


_MOST_NAMES = 5


def about_waits(waits: Waits, why_not: Sequence[str], *, gpu_hours: Floats) -> list[str]:
    """Return what does not count, by why, with the GPU-hours of each within the interval."""
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for why, amount in zip(why_not, gpu_hours.tolist(), strict=True):
        if why != COUNTS and amount > 0:
            sums[why] += amount
            counts[why] += 1
    found = [
        f"not counted: {sums[why]:.1f} GPU-hours of {counted(counts[why], 'wait')} ({why})"
        for why in sorted(sums, key=lambda each: (-sums[each], each))
    ]
    for reason, count in waits.unknown_reasons.items():
        found.append(
            f"{counted(count, 'wait')} counted, though nobody knows the reason {reason!r}: add it to wait_reasons"
        )
    if waits.stale:
        found.append(f"{counted(waits.stale, 'row')} of waiting jobs passed over: later rows say that the jobs ran")
    return found


def about_attempts(attempts: Attempts, running: WithRunning) -> list[str]:
    """Return what was put right of single attempts."""
    found = []
    if attempts.refused:
        reasons = Counter(each.reason for each in attempts.refused)
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        found.append(f"{counted(len(attempts.refused), 'row')} of {attempts.read} refused: {listed}")
    if attempts.overlapping:
        found.append(f"two attempts at once, the earlier ended where the later starts: {_some(attempts.overlapping)}")
    if attempts.contradicting:
        found.append(f"one attempt reported in two ways, the later end counted: {_some(attempts.contradicting)}")
    if attempts.unclear_arrays:
        found.append(f"arrays whose waiting tasks are not all listed: {_some(attempts.unclear_arrays)}")
    if running.unseen:
        ended = counted(running.unseen, "attempt")
        found.append(f"{ended} without an end taken as ended after the last hour with allocations")
    if running.alone:
        found.append(f"{counted(running.alone, 'attempt')} known from allocations alone: their waits are not reported")
    return found


def about_types(weighed: Weighed, types: GpuTypes, *, running: Floats, waiting: Floats) -> list[str]:
    """Return what is of no type though the cluster has several; the numbers are GPU-hours a row."""
    if types.only is not None and not types.by_node:
        return []
    untold = [kind == UNTOLD for _, kind in weighed.groups]
    found = []
    for what, group, amounts, where in (
        ("ran", weighed.running.group, running, "nodes"),
        ("waited", weighed.waiting.group, waiting, "partition"),
    ):
        amount = sum(each for number, each in zip(group.tolist(), amounts.tolist(), strict=True) if untold[number])
        if amount > 0:
            found.append(f"{amount:.1f} GPU-hours {what} of no known type: no type is reported for their {where}")
    return found


def about_waste(beyond: Iterable[tuple[TeamName, GpuType, float]], *, nobody: float) -> list[str]:
    """Return what verdicts say and cannot be: idle GPUs of nobody, and more than ran."""
    found = [f"{nobody:.1f} idle GPU-hours of rows without an account are in no team"] if nobody > 0 else []
    for team, kind, amount in beyond:
        named = f"{team} ({kind})" if kind else team
        found.append(f"{named}: verdicts say {amount:.1f} idle GPU-hours more than it ran; bounded by what ran")
    return found


def _some(names: Sequence[str]) -> str:
    return listed(names, at_most=_MOST_NAMES)


# -- `gpu_demand` --


_TABLE = TABLES["gpu_demand"]
NUMBERS = tuple(column.name for column in _TABLE.columns if column.name not in _TABLE.sort_order)
"""Columns beside time, team and gpu_type. `gpus_ran_last`: what ran in the hour's last moment."""
SCHEMA: pa.Schema = _TABLE.arrow()


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRules:
    """What is known of the cluster, and what counts as demand."""

    types: GpuTypes = field(default_factory=GpuTypes)
    caps: Mapping[tuple[TeamName, GpuType], float] = field(default_factory=dict)
    """Hard caps of teams: a job that asks for more never runs."""
    installed: Mapping[GpuType, float] = field(default_factory=dict)
    """What the cluster has; empty: not known. All of it under `` where types are not separated."""
    waste_bound_ratio: float = 0.0
    """Up to this share of what a team runs, GPUs that do nothing are taken off its demand. 0: only reported."""

    def __post_init__(self) -> None:
        if not 0 <= self.waste_bound_ratio <= 1:
            raise ValueError(f"waste_bound_ratio is {self.waste_bound_ratio}; expected 0 to 1")

    def most(self, team: TeamName, kind: GpuType) -> float:
        """Return the most GPUs that one job of a team can ever get."""
        there = np.inf
        if self.installed:
            is_told = kind != UNTOLD and UNTOLD not in self.installed
            there = self.installed.get(kind, 0.0) if is_told else sum(self.installed.values())
        return min(self.caps.get((team, kind), np.inf), there)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HourlyDemand:
    """The demand of an interval of whole hours."""

    table: pa.Table
    """Rows of SCHEMA by team, type and time: each hour for each team and type that any attempt names."""
    refused: tuple[Refused, ...]
    """Rows of accounting that were not believed."""
    notes: tuple[str, ...]
    """What does not count and why, and what could not be reported."""


def read_demand(
    accounting: pa.Table,
    *,
    allocations: pa.Table,
    efficiency: pa.Table,
    start: datetime,
    end: datetime,
    rules: DemandRules | None = None,
) -> HourlyDemand:
    """Return the demand in [start, end), both whole hours.

    `accounting`, `allocations`, `efficiency`: rows of job_accounting, job_allocations and gpu_efficiency, in any order:
    all attempts that overlap the interval, and all jobs that wait in it. Who waits still is in `accounting` alone.
    """
    rules = rules or DemandRules()
    hours = _hours(start, end)
    running = with_running(accounting, allocations)
    attempts = read_attempts(running.attempts)
    waits = find_waits(attempts)
    weighed = weigh(attempts, waits, types=rules.types)
    why_not = _why_not(weighed, waits.why_not, rules=rules)
    wasted, nobody = read_waste(efficiency, types=rules.types)
    numbers, beyond = _numbers(weighed, why_not, hours=hours, wasted=wasted, bound=rules.waste_bound_ratio)
    ran, waited = weighed.running.amounts(hours), weighed.waiting.amounts(hours)
    return HourlyDemand(
        table=_table(weighed, numbers, hours=hours),
        refused=attempts.refused,
        notes=(
            *about_waits(waits, why_not, gpu_hours=waited),
            *about_attempts(attempts, running),
            *about_types(weighed, rules.types, running=ran, waiting=waited),
            *about_waste(beyond, nobody=nobody),
        ),
    )


def _hours(start: datetime, end: datetime) -> Hours:
    begin, until = in_microseconds(start), in_microseconds(end)
    if begin % HOUR or until % HOUR or begin >= until:
        raise ValueError(f"{start} to {end}; expected whole hours, the end after the start")
    return Hours(begin=begin, count=(until - begin) // HOUR)


def _why_not(weighed: Weighed, reasons: Sequence[str], *, rules: DemandRules) -> Sequence[str]:
    """Return why each wait is no demand: also what no quota can start, because there is or may not be so much."""
    most = [rules.most(team, kind) for team, kind in weighed.groups]
    return [
        why
        if why != COUNTS or gpus <= most[group]
        else f"asks for more than the {most[group]:g} {weighed.groups[group][1] or 'GPUs'} that "
        f"{weighed.groups[group][0]} can ever have"
        for why, group, gpus in zip(
            reasons, weighed.waiting.group.tolist(), weighed.waiting.weight.tolist(), strict=True
        )
    ]


def _numbers(
    weighed: Weighed, why_not: Sequence[str], *, hours: Hours, wasted: Wasted, bound: float
) -> tuple[dict[str, Floats], list[tuple[TeamName, GpuType, float]]]:
    """Return each number by group and hour, and for each group the idle GPU-hours that are more than ran."""
    count = len(weighed.groups)
    pending = weighed.waiting.take(np.array([why == COUNTS for why in why_not], np.bool_))
    ran = means(weighed.running, hours=hours, group_count=count)
    waited = means(pending, hours=hours, group_count=count)
    idle, beyond = _bounded(wasted, ran, weighed=weighed, hours=hours)
    return {
        "gpus_running_avg": ran,
        "gpus_pending_avg": waited,
        "gpus_pending_max": maxima(pending, hours=hours, group_count=count),
        "gpus_demand_avg": ran + waited - np.minimum(idle, bound * ran),
        "gpus_wasted_avg": idle,
        "jobs_running_avg": means(weighed.running.counted(), hours=hours, group_count=count),
        "gpus_ran_last": at_the_end(weighed.running, hours=hours, group_count=count),
    }, beyond


def _bounded(
    wasted: Wasted, ran: Floats, *, weighed: Weighed, hours: Hours
) -> tuple[Floats, list[tuple[TeamName, GpuType, float]]]:
    """Return idle GPUs by group and hour, never more than ran, and what was more."""
    places = {group: place for place, group in enumerate(weighed.groups)}
    idle = np.zeros_like(ran)
    beyond: dict[tuple[TeamName, GpuType], float] = {}
    for (team, kind, time), gpus in wasted.items():
        hour = (in_microseconds(time) - hours.begin) // HOUR
        if 0 <= hour < hours.count:
            place = places.get((team, kind))
            more = gpus if place is None else max(0.0, gpus - float(ran[place, hour]))
            if place is not None:
                idle[place, hour] = gpus - more
            if more > _ROUNDING:
                beyond[team, kind] = beyond.get((team, kind), 0.0) + more
    return idle, [(*group, more) for group, more in sorted(beyond.items())]


_ROUNDING = 1e-6
"""GPU-hours: less is how floats add up."""


def _table(weighed: Weighed, numbers: Mapping[str, Floats], *, hours: Hours) -> pa.Table:
    count = len(weighed.groups)
    group = np.repeat(np.arange(count), hours.count)
    teams = pa.array([team for team, _ in weighed.groups], pa.string())
    kinds = pa.array([kind for _, kind in weighed.groups], pa.string())
    times = hours.begin + np.tile(np.arange(hours.count), count) * HOUR
    return pa.table(
        {
            "team": teams.take(pa.array(group)),
            "gpu_type": kinds.take(pa.array(group)),
            "time": pa.array(times, pa.timestamp("us", tz="UTC")),
            **{name: pa.array(numbers[name].reshape(-1)) for name in NUMBERS},
        },
        schema=SCHEMA,
    )
