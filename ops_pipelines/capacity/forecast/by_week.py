"""Peaks week by week: the quantiles of each coming week's peak, each distance calibrated on past weeks as far ahead.

A plan asks when something runs short, so it needs every week of a year. One pass over the days serves all distances.
A distance of which too few weeks are over is not
vouched for: from there on the width grows as `_GROWTH` says, and the forecast reports from where on.

A plan is made from sums. They are forecast from their own days and scored by themselves: added up, their members'
medians lie below a sum's, and a sum is steadier than any of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from ops_pipelines.capacity.forecast.methods import COMBINED
from ops_pipelines.capacity.forecast.outlook import MethodForecast, Outlook, Rolled, roll
from ops_pipelines.capacity.forecast.windows import (
    DailyPeaks,
    Flags,
    Floats,
    Hierarchy,
    Origins,
    Treatment,
    root,
    squared,
    with_sums,
)
from ops_pipelines.capacity.model import LEVELS

WEEK_DAYS = 7
MOST_WEEKS = 104
LEAST_DAYS = 28
_LEAST_TOLD_WEEKS = 3
"""With fewer weeks over, which is before `LEAST_DAYS` are known, nothing is reported."""
_LEAST_PAST_WEEKS = 13
"""So many weeks of a distance must be over before it counts as measured."""
_LEAST_PAST_PEAKS = 40
"""And so many peaks, of all series together."""
_HALF_LIFE_DAYS = 91.0
"""A single week is little: past weeks of a near distance count half after a quarter, not after a week."""
_GROWTH = 0.25
"""Width grows with this power of the distance where nothing measures it. On made-up series it grows with 0.1."""
_NEIGHBOUR_WEEKS = 2
"""Widths of so many distances before and after are averaged: each alone is measured on few weeks."""
_JUDGED_WEEKS = 13
"""Methods are weighed by a quarter's days, or a quarter of what is known: of whole years there are never enough."""
_MIDDLE = 0.5
_ROUNDING = 1e-9
_MOST_CELLS = 60_000
"""Origins times series: beyond, origins lie two or four weeks apart, which are hardly fewer and cost half."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeekForecast:
    """What each week's peak will be."""

    first_day: date
    """Of the first week."""
    names: tuple[str, ...]
    """The series in their order, then the sums."""
    treatments: tuple[Treatment, ...]
    levels: tuple[float, ...]
    peaks: Floats
    """(level, week, series), never falling with the level; NaN for a series of which nothing can be stated."""
    vouched_weeks: int
    """So many weeks ahead the width is measured; the others are drawn further."""


def forecast_weeks(
    series: DailyPeaks,
    *,
    weeks: int,
    levels: Sequence[float] = LEVELS,
    tree: Hierarchy | None = None,
    summed_gpus: Floats | None = None,
) -> WeekForecast:
    """Return the peaks of so many weeks from the day after the last.

    `summed_gpus` are daily maxima of the tree's sums (`sums.with_sums`). Raises ValueError for levels or weeks that are
    none.
    """
    _check(weeks, levels)
    whole = series if tree is None else with_sums(series, tree, summed_gpus=summed_gpus)
    passed = pass_over(whole, weeks=weeks)
    number = len(passed.origins.places) - 1
    vouched = vouched_at(passed, number=number, weeks=weeks)
    peaks = told_at(passed, whole, number=number, weeks=weeks, levels=levels, vouched=vouched, tree=tree)
    return WeekForecast(
        first_day=whole.day(whole.day_count),
        names=whole.names,
        treatments=whole.treatments(),
        levels=tuple(levels),
        peaks=peaks,
        vouched_weeks=vouched,
    )


def pass_over(whole: DailyPeaks, *, weeks: int) -> Rolled:
    """Return the pass that all distances are read from: whole weeks, as many as there are, at every origin.

    Sums are columns like others: their days are known better than their members' are.
    """
    return roll(
        whole,
        horizon_days=weeks * WEEK_DAYS,
        keep=(COMBINED,),
        step_days=_step_weeks(whole) * WEEK_DAYS,
        judged_days=min(weeks, _JUDGED_WEEKS, max(1, whole.day_count // (4 * WEEK_DAYS))) * WEEK_DAYS,
    )


def vouched_at(passed: Rolled, *, number: int, weeks: int) -> int:
    """Return how many weeks ahead past weeks vouch for at an origin."""
    for week in range(weeks):
        over = past_weeks(passed, number=number, week=week)
        peaks = int(passed.is_known[: over // _step_of(passed)].sum()) * _step_of(passed)
        if over < _LEAST_PAST_WEEKS or peaks < _LEAST_PAST_PEAKS:
            return week
    return weeks


def past_weeks(passed: Rolled, *, number: int, week: int) -> int:
    """Return how many weeks at this distance were over at an origin."""
    places = passed.origins.places
    over = sum(place + (week + 1) * WEEK_DAYS <= places[number] for place in places[: number + 1])
    return over * _step_of(passed)


def told_at(
    passed: Rolled,
    whole: DailyPeaks,
    *,
    number: int,
    weeks: int,
    levels: Sequence[float],
    vouched: int,
    tree: Hierarchy | None = None,
) -> Floats:
    """Return (level, week, series) as known at an origin: what was forecast there, under caps, sums among members."""
    apart = None
    if tree is not None:
        apart = np.arange(len(whole.names)) >= len(whole.names) - len(tree.names)
    peaks = peaks_at(passed, number=number, weeks=weeks, levels=(*levels, _MIDDLE), vouched=vouched, apart=apart)
    peaks = np.minimum(peaks, whole.caps_at(passed.origins.places[number]))
    return peaks[:-1] if tree is None else _held(peaks, tree)


def _held(peaks: Floats, tree: Hierarchy) -> Floats:
    """Return peaks, sums between their largest member and all members together; `peaks` has the medians last.

    At no level is a sum's peak below a member's. It may lie above all members' together where those are reported low:
    not all are low in one week. Below the median, all members' medians are the most.
    """
    held, own = peaks[:-1].copy(), tree.is_member.shape[1]
    members = np.where(np.isnan(peaks[:, :, :own]), 0.0, peaks[:, :, :own])
    for number, is_member in enumerate(tree.is_member):
        largest = members[:-1, :, is_member].max(axis=-1)
        together = np.maximum(members[:-1], members[-1:])[:, :, is_member].sum(axis=-1)
        held[:, :, own + number] = np.clip(held[:, :, own + number], largest, together)
    return held


def peaks_at(
    passed: Rolled, *, number: int, weeks: int, levels: Sequence[float], vouched: int, apart: Flags | None = None
) -> Floats:
    """Return (level, week, series) as forecast at an origin, from weeks that were over then alone.

    `apart`: which series are sums, with scores of their own.
    """
    told = max(1, min(weeks, vouched))
    if past_weeks(passed, number=number, week=0) < _LEAST_TOLD_WEEKS:
        return np.full((len(levels), weeks, passed.values.shape[1]), np.nan)
    asked = (*levels, _MIDDLE)
    known = np.stack(
        [
            Outlook(
                _of_week(passed, week),
                method=COMBINED,
                number=number,
                half_life_days=max(_HALF_LIFE_DAYS, (week + 1) * WEEK_DAYS),
            ).peak_quantiles(asked, apart=apart)
            for week in range(told)
        ],
        axis=1,
    )
    roots = root(known)
    paths = passed.foreseen[COMBINED].paths[number].astype(np.float64)
    highest = paths.reshape(weeks, WEEK_DAYS, paths.shape[1]).max(axis=1)
    above = _averaged(roots[-1:] - highest[:told])
    widths = _averaged(roots[:-1] - roots[-1])
    found = np.empty((len(levels), weeks, paths.shape[1]))
    found[:, :told] = highest[:told] + above + widths
    for week in range(told, weeks):
        wider = ((week + 1) / told) ** _GROWTH
        found[:, week] = highest[week] + above[:, -1] + widths[:, -1] * wider
    # A root squared again may fall short of the whole GPUs that it came from.
    return squared(found) * (1 + _ROUNDING)


def _averaged(widths: Floats) -> Floats:
    """Return by (level, week, series) what is averaged over near distances."""
    count = widths.shape[1]
    return np.stack(
        [
            widths[:, max(0, week - _NEIGHBOUR_WEEKS) : week + _NEIGHBOUR_WEEKS + 1].mean(axis=1)
            for week in range(count)
        ],
        axis=1,
    )


def _of_week(passed: Rolled, week: int) -> Rolled:
    """Return the pass as one about a single week at this distance: its own path, and what came of it."""
    since, until = week * WEEK_DAYS, (week + 1) * WEEK_DAYS
    places = passed.origins.places
    came = np.full(passed.came.shape, np.nan)
    for number, place in enumerate(places):
        if place + until <= len(passed.values):
            came[number] = passed.values[place + since : place + until].max(axis=0)
    paths = passed.foreseen[COMBINED].paths[:, since:until]
    seen = MethodForecast(
        paths=paths, peaks=paths.max(axis=1).astype(np.float64), errors=passed.foreseen[COMBINED].errors
    )
    origins = Origins(places=places, step_days=passed.origins.step_days, horizon_days=until)
    return replace(passed, origins=origins, came=came, foreseen={COMBINED: seen})


def _step_weeks(whole: DailyPeaks) -> int:
    cells = whole.day_count // WEEK_DAYS * len(whole.names)
    return next((step for step in (1, 2) if cells // step <= _MOST_CELLS), 4)


def _step_of(passed: Rolled) -> int:
    return passed.origins.step_days // WEEK_DAYS


def _check(weeks: int, levels: Sequence[float]) -> None:
    if not 1 <= weeks <= MOST_WEEKS:
        raise ValueError(f"{weeks} weeks were asked for; expected 1 to {MOST_WEEKS}")
    if not levels or list(levels) != sorted(set(levels)) or not 0 < levels[0] <= levels[-1] < 1:
        raise ValueError(f"the levels {list(levels)} were asked for; expected rising ones above 0 and below 1")
