"""`gpu_demand`: for each hour, team and type of GPU, what ran, what waited, what was wanted, and what was wasted.

Here the parts are put together, and what does not count, cannot be told or was refused is said in words. Each part
stands in its own module: rows (`attempts`, `unended`), waits (`waits`), types (`gpu_types`), sums (`sweep`), `waste`.
Days are `daily`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.frames.demand.attempts import in_microseconds, read_attempts
from ops_pipelines.frames.demand.gpu_types import UNTOLD, GpuTypes
from ops_pipelines.frames.demand.groups import Weighed, weigh
from ops_pipelines.frames.demand.notes import about_attempts, about_types, about_waits, about_waste
from ops_pipelines.frames.demand.recorded_rows import Floats
from ops_pipelines.frames.demand.sweep import HOUR, Hours, at_the_end, maxima, means
from ops_pipelines.frames.demand.unended import with_running
from ops_pipelines.frames.demand.waits import COUNTS, find_waits
from ops_pipelines.frames.demand.waste import Wasted, read_waste
from ops_pipelines.lake.quantities import Refused
from ops_pipelines.lake.schema import TABLES

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
    """What the cluster has; empty: not known. All of it under `` where types are not told apart."""
    waste_bound_ratio: float = 0.0
    """Up to this share of what a team runs, GPUs that do nothing are taken off its demand. 0: they are only told."""

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
    """The demand of a stretch of whole hours."""

    table: pa.Table
    """Rows of SCHEMA by team, type and time: each hour for each team and type that any attempt names."""
    refused: tuple[Refused, ...]
    """Rows of accounting that were not believed."""
    notes: tuple[str, ...]
    """What does not count and why, and what could not be told."""


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
    all attempts that overlap the stretch, and all jobs that wait in it. Who waits still is in `accounting` alone.
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
