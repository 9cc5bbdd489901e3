"""Recorded peaks of teams from a Parquet file: their highest hour of each local day.

A day counts with three quarters of its hours. One with fewer is missing: at a team's edges it is left out, between
others it is carried from the day before; after a gap of more than two weeks the team starts again. Hours recorded
twice, negative and endless numbers refuse the file (`quotas.recorded`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ops_pipelines.capacity.forecast.windows import (
    WHOLE_RATIO,
    DailyPeaks,
    Floats,
    edges,
    fill,
    look_renamed,
    without_caps,
)
from ops_pipelines.core.periods import LocalDay, days_of
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.quotas.recorded import RecordedRows, RefusedDemand, read_rows

_HOUR = 3600
# Assumption: no team wants more; with numbers near the largest float sums overflow.
_MOST_GPUS = 1e9
_READ = ("hour_ts", "team", "gpus_demand_avg")
_NOT_READ = ("capacity_gpus", "gpus_running_avg")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedPeaks:
    series: DailyPeaks
    notes: tuple[str, ...]
    """What was done to days and teams, and what looks as if a person should say something."""


def read_peaks(path: Path, *, timezone: str, renamed: Mapping[str, str] | None = None) -> RecordedPeaks:
    """Return what the file says; `renamed` has the old name of a team by its new one. Raises RefusedDemand."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise RefusedDemand(path.name, [f"{timezone!r} is no time zone; expected one such as Asia/Shanghai"]) from exc
    if not path.exists():
        fault = "there is no such file; expected a Parquet file with hour_ts, team, gpus_demand_avg"
        raise RefusedDemand(path.name, [fault])
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as exc:
        raise RefusedDemand(path.name, [f"no Parquet file that can be read: {exc}"]) from exc
    return peaks_of(table, zone=zone, name=path.name, renamed=renamed or {})


def peaks_of(table: pa.Table, *, zone: ZoneInfo, name: str, renamed: Mapping[str, str]) -> RecordedPeaks:
    """Return what a table with the columns of such a file says; `name` is for messages."""
    absent = [column for column in _READ if column not in table.column_names]
    if absent:
        found = ", ".join(table.column_names[:20]) or "none"
        raise RefusedDemand(name, [f"the column {each} is missing; found {found}" for each in absent])
    rows = read_rows(_needed(table), name=name)
    if rows.demand.max() > _MOST_GPUS:
        fault = f"gpus_demand_avg is {rows.demand.max():g} in one row; expected at most {_MOST_GPUS:g} GPUs in each"
        raise RefusedDemand(name, [fault])
    begin = int(rows.hour.min())
    hours = range(begin, int(rows.hour.max()) + _HOUR, _HOUR)
    demand = np.full((len(hours), len(rows.teams)), np.nan)
    demand[(rows.hour - begin) // _HOUR, rows.team] = rows.demand
    teams, demand, notes = _join(rows, demand, renamed=renamed, name=name)
    days = days_of(hours, zone=zone)
    maxima, part_notes = _daily(demand, days, teams=teams)
    filled, done = fill(
        maxima, [each.day for each in days], no_day="no day has three quarters of its hours; nothing is forecast"
    )
    if not len(filled) or np.isnan(filled).all():
        raise RefusedDemand(name, ["no day has three quarters of its hours; expected whole days of demand"])
    first, after = edges(filled)
    filled = filled[first:after]
    gap_notes = [f"{teams[each.column]}: {each.words}" for each in done]
    hints = [
        f"{teams[pair.new]} begins where {teams[pair.old]} ends, and is of its size; if it is the same team, "
        f"say so: --renamed {teams[pair.old]}={teams[pair.new]}"
        for pair in look_renamed(filled)
    ]
    return RecordedPeaks(
        series=without_caps(teams, days[first].day, filled),
        notes=(*notes, *part_notes, *gap_notes, *hints),
    )


def _needed(table: pa.Table) -> pa.Table:
    """Return the columns that are read; those that the rows' judge expects beside them are 0."""
    needed = table.select(list(_READ))
    nothing = pa.array(np.zeros(table.num_rows))
    for column in _NOT_READ:
        needed = needed.append_column(column, nothing)
    return needed


def _join(
    rows: RecordedRows, demand: Floats, *, renamed: Mapping[str, str], name: str
) -> tuple[list[TeamName], Floats, list[str]]:
    """Return teams and hours with the old names' hours added to the new ones'."""
    teams = list(rows.teams)
    unknown = [each for pair in renamed.items() for each in pair if each not in teams]
    chained = [old for old in renamed.values() if old in renamed]
    twice = [old for old in set(renamed.values()) if list(renamed.values()).count(old) > 1]
    faults = [f"{each!r} was renamed, but is no team of the file" for each in unknown]
    faults += [f"{each!r} is an old and a new name; expected the last name for each old one" for each in chained]
    faults += [f"{each!r} is the old name of two teams; expected one" for each in sorted(twice)]
    if faults:
        raise RefusedDemand(name, faults)
    notes = []
    for new, old in renamed.items():
        one, other = teams.index(TeamName(new)), teams.index(TeamName(old))
        is_missing = np.isnan(demand[:, one]) & np.isnan(demand[:, other])
        demand[:, one] = np.where(is_missing, np.nan, np.nan_to_num(demand[:, one]) + np.nan_to_num(demand[:, other]))
        notes.append(f"{old} is {new}: their hours are one series")
    kept = [place for place, team in enumerate(teams) if team not in renamed.values()]
    return [teams[place] for place in kept], demand[:, kept], notes


def _daily(demand: Floats, days: Sequence[LocalDay], *, teams: Sequence[TeamName]) -> tuple[Floats, list[str]]:
    """Return (day, team): the maximum of each day that has enough hours."""
    maxima = np.full((len(days), len(teams)), np.nan)
    partial = np.zeros(len(teams), dtype=np.int64)
    for place, day in enumerate(days):
        hours = demand[day.first : day.after]
        is_there = ~np.isnan(hours)
        is_whole = is_there.sum(axis=0) >= WHOLE_RATIO * day.whole
        maxima[place] = np.where(is_whole, np.where(is_there, hours, 0.0).max(axis=0), np.nan)
        partial += is_there.any(axis=0) & ~is_whole
    notes = [
        f"{team}: {count} day{'s' if count > 1 else ''} with less than three quarters of the hours left out"
        for team, count in zip(teams, partial.tolist(), strict=True)
        if count
    ]
    if len(teams) > 1 and len(notes) == len(teams) and len(set(partial.tolist())) == 1:
        notes = [notes[0].replace(teams[0], "every team", 1)]
    return maxima, notes
