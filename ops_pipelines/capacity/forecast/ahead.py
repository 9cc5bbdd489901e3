"""Recorded peaks of teams, and a backtest of how well the next days of them would have been forecast.

Recorded days are local days. A day counts with three quarters of its hours. One with fewer is missing: at a team's
edges it is left out, between others it is carried from the day before; after a gap of more than two weeks the team
starts again. Hours recorded twice, negative and endless numbers refuse the file (`quotas.recorded`).

Windows that are judged never overlap; each is forecast from the days before it, and calibrated on windows that were
over when it started. A measure without anything to divide by is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ops_pipelines.capacity.forecast.methods import COMBINED, METHODS, WEEK
from ops_pipelines.capacity.forecast.outlook import Outlook, Rolled, roll
from ops_pipelines.capacity.forecast.windows import (
    LEAST_DAYS,
    WHOLE_RATIO,
    DailyPeaks,
    Floats,
    Places,
    Treatment,
    edges,
    fill,
    judged_origins,
    look_renamed,
    without_caps,
)
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.lake.local_days import LocalDay, days_of
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


# -- how good forecasts were, in numbers --


DAY_QUANTILES = (0.1, 0.5, 0.9)
BOUND = 0.9
_LEAST_PEAK_GPUS = 0.5
"""A bound over a peak of nothing is no ratio."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """One window of all series; NaN where a series was not there."""

    origin: int
    came: Floats
    """(day, series), in GPUs, as all here."""
    told: Floats
    """(quantile, day, series) for `DAY_QUANTILES`."""
    bound: Floats
    """(series): of the window's peak."""
    weekly_change: Floats
    """(series): mean distance of a day before the origin from the one a week earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    mase: float | None
    wql: float | None
    peak_coverage_90: float | None
    bound_to_peak_ratio: float | None
    """Median over windows with a peak."""
    origins: int
    """Windows that were judged, of all series together."""


def measure(windows: Sequence[Judged], *, columns: Places) -> Measured:
    """Return the measures over the given series."""
    scaled: list[Floats] = []
    covered: list[Floats] = []
    ratios: list[Floats] = []
    lost = wanted = 0.0
    for each in windows:
        came, told = each.came[:, columns], each.told[:, :, columns]
        is_there = ~np.isnan(told[0, 0]) & ~np.isnan(came).any(axis=0)
        came, told = came[:, is_there], told[:, :, is_there]
        bound, change = each.bound[columns][is_there], each.weekly_change[columns][is_there]
        peak = came.max(axis=0)
        missed = np.abs(came - told[DAY_QUANTILES.index(0.5)]).mean(axis=0)
        scaled.append(missed[change > 0] / change[change > 0])
        covered.append((bound >= peak).astype(np.float64))
        is_peak = peak > _LEAST_PEAK_GPUS
        ratios.append(bound[is_peak] / peak[is_peak])
        lost += sum(
            2 * float(_pinball(came - told[row], quantile=quantile)) for row, quantile in enumerate(DAY_QUANTILES)
        ) / len(DAY_QUANTILES)
        wanted += float(came.sum())
    return Measured(
        mase=_mean(scaled),
        wql=lost / wanted if wanted else None,
        peak_coverage_90=_mean(covered),
        bound_to_peak_ratio=_median(ratios),
        origins=sum(map(len, covered)),
    )


def weekly_change(gpus: Floats) -> Floats:
    """Return each series' mean distance from a week earlier; NaN where no two such days are known."""
    change = np.abs(gpus[WEEK:] - gpus[:-WEEK])
    is_known = ~np.isnan(change)
    count = is_known.sum(axis=0)
    return np.where(count, np.where(is_known, change, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def clustered_interval(covered: Sequence[Floats]) -> tuple[float, float] | None:
    """Return the 95 % interval of a coverage from flags by (window date, series): series of one date share their luck.

    Student's t on the linearised ratio, a cluster a date. None with fewer than two dates.
    """
    known = [each for each in covered if len(each)]
    if len(known) < 2:
        return None
    total = sum(map(len, known))
    coverage = sum(float(each.sum()) for each in known) / total
    off = np.array([float(each.sum()) - coverage * len(each) for each in known])
    count = len(known)
    error = float(np.sqrt(count / (count - 1) * np.square(off).sum())) / total
    reach = _student(count - 1) * error
    return max(0.0, coverage - reach), min(1.0, coverage + reach)


_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}


def _student(freedom: int) -> float:
    """Return t of 97.5 %; beyond ten degrees a good approximation of it."""
    return _STUDENT.get(freedom, 1.96 + 2.4 / freedom + 3.0 / freedom**2)


def _pinball(over: Floats, *, quantile: float) -> Floats:
    return np.asarray(np.where(over > 0, quantile * over, (quantile - 1) * over).sum())


def _mean(parts: Sequence[Floats]) -> float | None:
    joined = np.concatenate(parts) if parts else np.zeros(0)
    return float(joined.mean()) if len(joined) else None


def _median(parts: Sequence[Floats]) -> float | None:
    joined = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.median(joined)) if len(joined) else None


# -- a backtest --


class TooShort(ValueError):
    """No window can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSeries:
    team: str
    treatment: Treatment
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    pooled: Measured
    """Of what the program uses: the combination, all series together."""
    methods: Mapping[str, Measured]
    """The combination among them."""
    series: tuple[MeasuredSeries, ...]
    """Of the combination."""
    window_days: tuple[int, ...]
    """Places of the days on which the windows begin."""
    interval: tuple[float, float] | None
    """95 % of the pooled coverage, clustered by window date."""


def backtest(series: DailyPeaks, *, horizon_days: int) -> Backtest:
    """Return how good forecasts would have been. Raises TooShort where no window can be judged."""
    judged = judged_origins(series.day_count, horizon_days=horizon_days)
    if not judged or not series.names:
        raise TooShort(
            f"{series.day_count} days of {len(series.names)} series are there; expected one series and "
            f"{LEAST_DAYS + horizon_days} days: two weeks, and a window of {horizon_days} days to judge"
        )
    names = (*METHODS, COMBINED)
    rolled = roll(series, horizon_days=horizon_days, keep=names)
    windows = {name: [_judge(series, rolled, method=name, origin=origin) for origin in judged] for name in names}
    everyone = np.arange(len(series.names))
    methods = {name: measure(windows[name], columns=everyone) for name in names}
    return Backtest(
        pooled=methods[COMBINED],
        methods=methods,
        series=tuple(
            MeasuredSeries(
                team=team, treatment=treatment, measured=measure(windows[COMBINED], columns=everyone[[place]])
            )
            for place, (team, treatment) in enumerate(zip(series.names, series.treatments(), strict=True))
        ),
        window_days=judged,
        interval=clustered_interval([covered_of(each) for each in windows[COMBINED]]),
    )


def covered_of(window: Judged) -> Floats:
    """Return a 1 for each series whose peak the bound held, a 0 for the others that were there."""
    is_there = ~np.isnan(window.bound) & ~np.isnan(window.came).any(axis=0)
    return np.asarray((window.bound >= window.came.max(axis=0))[is_there], dtype=np.float64)


def _judge(series: DailyPeaks, rolled: Rolled, *, method: str, origin: int) -> Judged:
    outlook = Outlook(rolled, method=method, number=rolled.origins.places.index(origin))
    cap = series.caps_at(origin)
    return Judged(
        origin=origin,
        came=series.gpus[origin : origin + rolled.origins.horizon_days],
        told=np.minimum(outlook.day_quantiles(DAY_QUANTILES), cap),
        bound=np.minimum(outlook.peak_quantiles([BOUND])[0], cap),
        weekly_change=weekly_change(series.gpus[:origin]),
    )
