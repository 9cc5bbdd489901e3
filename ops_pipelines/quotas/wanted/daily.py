"""Hours of `gpu_demand` -> local days, and what each team ran in their hours.

A day is one of the cluster's zone (`lake.local_days`). Days at the edges may be parts of days; their sums say of how
many hours. In an hour that was computed a team without a row wanted nothing; of one that no team has, nothing is known.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.core.lake import Rows
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.lake.local_days import days_of
from ops_pipelines.quotas.demand import DemandDay
from ops_pipelines.quotas.today import Served
from ops_pipelines.quotas.wanted.recorded import Floats, Whole

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

    Where nobody computed an hour, nobody knows what was wanted: it is left out, and a day without any, too.
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


COLUMNS = ("team", "gpu_type", "time", "gpus_running_avg", "gpus_ran_last")


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
