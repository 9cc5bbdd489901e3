"""Attempts in one table, and hours of `gpu_demand` as local days.

A day is one of the cluster's zone (`core.periods`). Days at the edges may be parts of days; their sums state of how
many hours. In an hour that was computed a team without a row had no demand; of one that no team has, nothing is known.

The lake has attempts when they end; who runs and waits now, the scheduler reports. Where both have one attempt,
`attempts` takes it once. A single large job is no habit: a size counts if it is seen on enough days.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.periods import days_of
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import AccountingPage, Rows
from ops_pipelines.lake.accounting import read_waiting
from ops_pipelines.lake.formats import sacct
from ops_pipelines.lake.quantities import Parsed, Refused
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.demand import DemandDay
from ops_pipelines.quotas.hourly import HOUR, NUMBERS, SCHEMA
from ops_pipelines.quotas.recorded import Floats, Whole
from ops_pipelines.quotas.spans import UNTOLD, GpuTypes
from ops_pipelines.quotas.today import Served

# -- hours of `gpu_demand` -> local days --


_HOUR = timedelta(hours=1)
_SUMS = {
    "running_gpu_hours": "gpus_running_avg",
    "pending_gpu_hours": "gpus_pending_avg",
    "demand_gpu_hours": "gpus_demand_avg",
    "wasted_gpu_hours": "gpus_wasted_avg",
    "job_hours": "jobs_running_avg",
}
DAILY_SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("team", pa.string(), nullable=False),
        pa.field("gpu_type", pa.string(), nullable=False),
        pa.field("hour_count", pa.int64()),
        *(pa.field(name, pa.float64()) for name in _SUMS),
        pa.field("gpus_pending_max", pa.float64()),
    ]
)


def sum_days(hourly: pa.Table, *, start: datetime, end: datetime, zone: ZoneInfo) -> pa.Table:
    """Return for each local day of [start, end), team and type the sums of its hours, in this order."""
    groups, place = _groups(hourly)
    columns = {
        name: _by_hour(hourly, name, place, count=len(groups), start=start, end=end)
        for name in (*_SUMS.values(), "gpus_pending_max")
    }
    rows = []
    for day in days_of(_seconds(start, end), zone=zone):
        of_day = {name: column[:, day.first : day.after] for name, column in columns.items()}
        sums = {name: of_day[column].sum(axis=1).tolist() for name, column in _SUMS.items()}
        most = of_day["gpus_pending_max"].max(axis=1).tolist()
        for number, (team, kind) in enumerate(groups):
            rows.append(
                {
                    "day": day.day,
                    "team": team,
                    "gpu_type": kind,
                    "hour_count": day.hour_count,
                    **{name: amounts[number] for name, amounts in sums.items()},
                    "gpus_pending_max": most[number],
                }
            )
    return pa.Table.from_pylist(rows, schema=DAILY_SCHEMA)


def demand_days(
    hourly: pa.Table, *, start: datetime, end: datetime, zone: ZoneInfo, gpu_type: GpuType
) -> tuple[DemandDay, ...]:
    """Return the local days of [start, end) of one type of GPU, with all teams that have a row of it."""
    of_type = hourly.filter(pc.equal(hourly["gpu_type"], gpu_type))
    groups, place = _groups(of_type)
    teams = [team for team, _ in groups]
    wanted, ran_last = (
        _by_hour(of_type, name, place, count=len(groups), start=start, end=end)
        for name in ("gpus_demand_avg", "gpus_ran_last")
    )
    return tuple(
        DemandDay(
            day=day.day,
            hours=dict(zip(teams, map(tuple, wanted[:, day.first : day.after].tolist()), strict=True)),
            ran_last=dict(zip(teams, ran_last[:, day.after - 1].tolist(), strict=True)),
        )
        for day in days_of(_seconds(start, end), zone=zone)
    )


def known_hours(hourly: pa.Table, *, start: datetime, end: datetime) -> frozenset[datetime]:
    """Return the hours of [start, end) that somebody computed: any team has a row."""
    return frozenset(hour for hour in pc.unique(hourly["time"]).to_pylist() if start <= hour < end)


def refused_of(rejected: pa.Table, *, source: str) -> list[dict[str, object]]:
    """Return which records one source refused, with the reason, by rows of `rejected_rows`."""
    rows = rejected.filter(pc.equal(rejected["source"], source))
    found: list[dict[str, object]] = rows.select(["record", "time", "reason", "detail"]).to_pylist()
    return found


def known_days(
    hourly: pa.Table, *, start: datetime, end: datetime, zone: ZoneInfo, gpu_type: GpuType
) -> tuple[tuple[DemandDay, ...], frozenset[datetime]]:
    """Return the local days of [start, end) without the hours of which no team has a row, and the hours that are known.

    Where nobody computed an hour, nobody knows what was requested: it is left out, and a day without any, too.
    """
    known = known_hours(hourly, start=start, end=end)
    if not known:
        return (), known
    is_known = [start + number * _HOUR in known for number in range((end - start) // _HOUR)]
    whole = demand_days(hourly, start=start, end=end, zone=zone, gpu_type=gpu_type)
    days = []
    for each, place in zip(whole, days_of(_seconds(start, end), zone=zone), strict=True):
        kept = [number for number in range(place.hour_count) if is_known[place.first + number]]
        if not kept:
            continue
        hours = {team: tuple(amounts[number] for number in kept) for team, amounts in each.hours.items()}
        last = start + (place.first + kept[-1]) * _HOUR
        days.append(replace(each, hours=hours, ran_last=_ran_last(hourly, at=last, gpu_type=gpu_type)))
    return tuple(days), known


def _ran_last(hourly: pa.Table, *, at: datetime, gpu_type: GpuType) -> dict[TeamName, float]:
    is_it = pc.and_(
        pc.equal(hourly["gpu_type"], gpu_type), pc.equal(hourly["time"], pa.scalar(at, hourly["time"].type))
    )
    rows = hourly.filter(is_it)
    return dict(zip(map(TeamName, rows["team"].to_pylist()), rows["gpus_ran_last"].to_pylist(), strict=True))


def _seconds(start: datetime, end: datetime) -> range:
    return range(int(start.timestamp()), int(end.timestamp()), int(_HOUR.total_seconds()))


def _groups(hourly: pa.Table) -> tuple[list[tuple[TeamName, GpuType]], Whole]:
    """Return teams and types in their order, and the place of each row's."""
    if not hourly.num_rows:
        return [], np.zeros(0, np.int64)
    teams, kinds = (
        hourly[name].combine_chunks().cast(pa.string()).dictionary_encode() for name in ("team", "gpu_type")
    )
    width = len(kinds.dictionary)
    codes = teams.indices.to_numpy().astype(np.int64) * width + kinds.indices.to_numpy()
    present, place = np.unique(codes, return_inverse=True)
    names = [
        (TeamName(teams.dictionary[code // width].as_py()), GpuType(kinds.dictionary[code % width].as_py()))
        for code in present.tolist()
    ]
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return [names[each] for each in order], rank[place]


def _by_hour(rows: pa.Table, column: str, place: Whole, *, count: int, start: datetime, end: datetime) -> Floats:
    """Return a column by group and hour of [start, end); 0 where there is no row."""
    found = np.zeros((count, (end - start) // _HOUR))
    seconds = rows["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() // 1_000_000
    hours = (seconds - int(start.timestamp())) // int(_HOUR.total_seconds())
    inside = (hours >= 0) & (hours < found.shape[1])
    found[place[inside], hours[inside]] = rows[column].to_numpy()[inside]
    return found


# -- what each team ran in the hours of local days --


DAILY_COLUMNS = ("team", "gpu_type", "time", "gpus_running_avg", "gpus_ran_last")


def served_days(
    hourly: pa.Table, *, start: datetime, end: datetime, zone: ZoneInfo, gpu_type: GpuType
) -> Mapping[date, Served]:
    """Return by local day what each team ran in each of its known hours. `hourly`: COLUMNS of `gpu_demand`."""
    names = ["gpus_demand_avg" if name == "gpus_running_avg" else name for name in hourly.column_names]
    days, _ = known_days(hourly.rename_columns(names), start=start, end=end, zone=zone, gpu_type=gpu_type)
    return {each.day: each.hours for each in days}


def used_gpus(quotas: Rows) -> Mapping[tuple[TeamName, GpuType], float]:
    """Return what rows of `gpu_quotas` say that each team used; who is not named, of that nothing is known."""
    assert isinstance(quotas, pa.Table)
    columns = (quotas[name].to_pylist() for name in ("team", "gpu_type", "used_mean_gpus"))
    return {
        (TeamName(team), GpuType(kind)): used for team, kind, used in zip(*columns, strict=True) if used is not None
    }


# -- rows from the lake and from the scheduler's mouth -> one table of attempts --


ACCOUNTING_COLUMNS = (
    "job", "attempt", "time", "cluster", "account", "partition", "state", "reason", "submitted_at", "eligible_at",
    "started_at", "ended_at", "gpu_count", "nodes",
)  # fmt: skip
ALLOCATION_COLUMNS = (
    "job", "attempt", "node", "time", "account", "partition", "state", "started_at", "ended_at", "gpu_count",
)  # fmt: skip
EFFICIENCY_COLUMNS = ("node", "job", "time", "verdict", "rule", "account", "gpu_count", "held_seconds")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportedAttempts:
    """What the scheduler says now."""

    rows: pa.Table
    """Rows of `job_accounting`."""
    refused: tuple[Refused, ...]
    """Jobs that wait and could not be read. Attempts that could not are refused where the lake is filled with them."""


def read_told(running: Sequence[AccountingPage], waiting: Sequence[AccountingPage]) -> ReportedAttempts:
    """Return the attempts of pages that tell who runs, and the jobs of those that tell who waits."""
    parts: list[Parsed] = [
        *(sacct.parse(page.body, source=page.source, at=page.start) for page in running),
        *(read_waiting(page.body, source=page.source, at=page.start) for page in waiting),
    ]
    tables = [part.tables["job_accounting"] for part in parts if "job_accounting" in part.tables]
    told = [each for part in parts[len(running) :] for each in part.refused]
    rows = [each.select(ACCOUNTING_COLUMNS) for each in tables]
    return ReportedAttempts(rows=pa.concat_tables(rows) if rows else _none(), refused=tuple(told))


def nothing_told() -> ReportedAttempts:
    """Return what is known where nobody was asked."""
    return ReportedAttempts(rows=_none(), refused=())


def join_told(lake: pa.Table, told: ReportedAttempts) -> pa.Table:
    """Return the lake's rows of accounting with what the scheduler says now."""
    return pa.concat_tables([lake.select(ACCOUNTING_COLUMNS).cast(told.rows.schema), told.rows])


def settle_rows(
    demand: pa.Table, *, begin: int, count: int, teams: Collection[TeamName], kinds: Collection[GpuType]
) -> pa.Table:
    """Return the demand of `count` hours from `begin` (microseconds), with the rows that an hour should have.

    Each of the teams has a row for each type in each hour, so that an hour that was computed differs from one that was
    not; who else ran and requested nothing in an hour has none. So an hour is the same whichever others are computed
    with it.
    """
    is_declared = pc.and_(
        pc.is_in(demand["team"], value_set=pa.array(sorted(teams), pa.string())),
        pc.is_in(demand["gpu_type"], value_set=pa.array(sorted(kinds), pa.string())),
    )
    is_empty = np.ones(demand.num_rows, np.bool_)
    for name in NUMBERS:
        is_empty &= demand[name].to_numpy() == 0.0
    kept = demand.filter(pc.or_(is_declared, pa.array(~is_empty)))
    there = set(zip(demand["team"].to_pylist(), demand["gpu_type"].to_pylist(), strict=True))
    absent = [(team, kind) for team in sorted(teams) for kind in sorted(kinds) if (team, kind) not in there]
    times = begin + np.tile(np.arange(count), len(absent)) * HOUR
    added = pa.table(
        {
            "team": pa.array([team for team, _ in absent for _ in range(count)], pa.string()),
            "gpu_type": pa.array([kind for _, kind in absent for _ in range(count)], pa.string()),
            "time": pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            **{name: np.zeros(len(times)) for name in NUMBERS},
        },
        schema=SCHEMA,
    )
    order = [(name, "ascending") for name in ("team", "gpu_type", "time")]
    return pa.concat_tables([kept, added]).sort_by(order)


def active_teams(demand: pa.Table) -> frozenset[TeamName]:
    """Return the teams that ran or waited."""
    is_active = pc.greater(pc.add(demand["gpus_running_avg"], demand["gpus_pending_avg"]), 0.0)
    return frozenset(map(TeamName, pc.unique(demand.filter(is_active)["team"]).to_pylist()))


def _none() -> pa.Table:
    return TABLES["job_accounting"].from_rows(()).select(ACCOUNTING_COLUMNS)


# -- how large the jobs are that a team runs, or waits with, regularly --


ATTEMPT_COLUMNS = ("account", "gpu_count", "nodes", "started_at", "time")
REGULARLY_DAYS = 3
"""# Assumption: what was seen on three days of two weeks comes again."""
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """One job that runs or waits now."""

    team: TeamName
    gpu_type: GpuType
    gpu_count: int
    day: date


def regular_sizes(
    ended: pa.Table, *, now: Iterable[JobSize] = (), types: GpuTypes
) -> Mapping[tuple[TeamName, GpuType], int]:
    """Return the GPUs of the largest job that each team has regularly. `ended`: COLUMNS of `job_accounting`."""
    seen: defaultdict[tuple[TeamName, GpuType, int], set[date]] = defaultdict(set)
    for account, gpus, nodes, day in _ended(ended):
        kind = types.only if types.only is not None else _most_of(types, nodes)
        seen[TeamName(account), kind, gpus].add(datetime.fromtimestamp(day * _DAY_SECONDS, UTC).date())
    for each in now:
        seen[each.team, each.gpu_type, each.gpu_count].add(each.day)
    largest: dict[tuple[TeamName, GpuType], int] = {}
    for (team, kind, gpus), days in seen.items():
        if len(days) >= REGULARLY_DAYS and gpus > 0:
            largest[team, kind] = max(largest.get((team, kind), 0), gpus)
    return largest


def _ended(rows: pa.Table) -> list[tuple[str, int, str, int]]:
    """Return each account, size, host list and day since 1970 of which there is an attempt that ran."""
    is_told = pc.and_(pc.is_valid(rows["started_at"]), pc.is_valid(rows["account"]))
    ran = rows.filter(pc.and_(is_told, pc.greater(rows["gpu_count"], 0)))
    if not ran.num_rows:
        return []
    micros = ran["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    parts = pa.table(
        {
            "account": ran["account"],
            "gpu_count": ran["gpu_count"],
            "nodes": pc.fill_null(ran["nodes"], ""),
            "day": pc.divide(micros, 1_000_000 * _DAY_SECONDS),
        }
    )
    found = parts.group_by(parts.column_names).aggregate([])
    return list(zip(*(found[name].to_pylist() for name in parts.column_names), strict=True))


def _most_of(types: GpuTypes, host_list: str) -> GpuType:
    shares = types.of_nodes(host_list)
    return max(sorted(shares), key=lambda kind: shares[kind], default=UNTOLD)
