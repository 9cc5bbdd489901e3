"""Series of all resources -> what each will be at most, week by week; what is said of none, and why.

GPUs of all teams and types are one pool, so that they learn from each other. Every further resource is a pool of its
own, in hundredths of each series' highest day of four weeks: the forecast is made for counts of GPUs, in which bytes
and watts would look endless, and a disk that was emptied idle. What of the installed GPUs is out or stranded is not
foretold: supply is drawn from how it was.
"""

from collections.abc import Mapping
from datetime import date, timedelta

import numpy as np

from ops_pipelines.domain.capacity.outlook import LEVELS, SeriesOutlook, WeekPeak
from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.frames.forecast.by_week import LEAST_DAYS, WEEK_DAYS, WeekForecast, forecast_weeks
from ops_pipelines.frames.forecast.daily_peaks import IDLE_BELOW_GPUS, RECENT_DAYS, DailyPeaks, Floats
from ops_pipelines.frames.forecast.sums import Hierarchy
from ops_pipelines.frames.peaks.history import PeakHistory, ResourceHistory

_NOT_TOLD = frozenset({Resource.GPUS_OUT, Resource.GPUS_STRANDED})
_HUNDRED = 100.0
_MOST_TIMES_RECENT = 20.0
"""Of further resources: higher days of the past count as so many times the recent peak; else they drown the pool."""
Outlooks = tuple[tuple[SeriesOutlook, ...], int, tuple[str, ...]]


def outlooks_of(history: PeakHistory, *, weeks: int, first_day: date) -> Outlooks:
    """Return the outlooks by key, how many weeks ahead that of GPUs is measured, and notes.

    Weeks begin with `first_day`, which is the day after the last that is known; a resource whose days end earlier is
    told of in a note, and nothing is foretold of it. Without GPUs no week is vouched for.
    """
    found: list[SeriesOutlook] = []
    notes: list[str] = []
    vouched = 0
    for each in history.resources:
        if each.resource in _NOT_TOLD:
            continue
        ends = each.series.day(each.series.day_count)
        if ends != first_day:
            notes.append(
                f"{each.resource.value}: its days end before {ends}; expected them up to {first_day}, and nothing is "
                "foretold: materialise daily_peaks there"
            )
            found += [_untold(each, key) for key in (*each.keys, *each.sums)]
            continue
        scale = _scale(each)
        told = _forecast(each, scale=scale, weeks=weeks)
        if each.resource is Resource.GPUS:
            vouched = told.vouched_weeks
        if each.series.day_count < LEAST_DAYS:
            notes.append(
                f"{each.resource.value}: {each.series.day_count} days are known, and nothing is foretold; expected "
                f"{LEAST_DAYS} or more"
            )
        found += _outlooks(each, told, scale=scale)
    return tuple(sorted(found, key=lambda each: each.key)), vouched, tuple(notes)


def _scale(history: ResourceHistory) -> Floats:
    """Return what one unit of the forecast is, for each series and then each sum."""
    count = len(history.keys) + len(history.sums)
    if history.resource is Resource.GPUS:
        return np.ones(count)
    gpus = history.series.gpus
    known = np.where(np.isnan(gpus), 0.0, gpus)
    ever, recent = known.max(axis=0, initial=0.0), known[-RECENT_DAYS:].max(axis=0, initial=0.0)
    highest = np.where(recent > 0, recent, ever)
    return np.asarray(np.where(highest > 0, highest / _HUNDRED, 1.0))


def _forecast(history: ResourceHistory, *, scale: Floats, weeks: int) -> WeekForecast:
    own = scale[: len(history.keys)]
    gpus = history.series.gpus / own
    series = DailyPeaks(
        names=tuple(_name(key) for key in history.keys),
        first_day=history.series.first_day,
        gpus=gpus if history.resource is Resource.GPUS else np.minimum(gpus, _MOST_TIMES_RECENT * _HUNDRED),
        cap_gpus=history.series.cap_gpus / own,
    )
    return forecast_weeks(series, weeks=weeks, levels=LEVELS, tree=_tree(history), summed_gpus=history.summed)


def _tree(history: ResourceHistory) -> Hierarchy | None:
    if not history.sums:
        return None
    is_member = np.zeros((len(history.sums), len(history.keys)), dtype=bool)
    for number, places in enumerate(history.members):
        is_member[number, list(places)] = True
    return Hierarchy(names=tuple(_name(key) for key in history.sums), is_member=is_member)


def _name(key: SeriesKey) -> str:
    return "\x1f".join((key.gpu_type, key.name))


def _outlooks(history: ResourceHistory, told: WeekForecast, *, scale: Floats) -> list[SeriesOutlook]:
    found = []
    for place, key in enumerate((*history.keys, *history.sums)):
        peaks = told.peaks[:, :, place] * scale[place]
        known = not np.isnan(peaks).any()
        own = (*history.notes.get(key, ()), *_treated(history, told, place=place))
        if history.resource is not Resource.GPUS:
            own += _held_down(history.series.gpus[:, place] / scale[place])
        found.append(
            SeriesOutlook(
                key=key,
                treatment=told.treatments[place].value,
                weeks=_weeks(peaks, told) if known else (),
                notes=own,
            )
        )
    return found


def _weeks(peaks: Floats, told: WeekForecast) -> tuple[WeekPeak, ...]:
    # Two levels may differ by a rounding alone: what is told never falls.
    rising = np.maximum.accumulate(peaks, axis=0)
    return tuple(
        WeekPeak(
            first_day=told.first_day + timedelta(days=WEEK_DAYS * week),
            quantiles=tuple(rising[:, week].tolist()),
            is_vouched=week < told.vouched_weeks,
        )
        for week in range(peaks.shape[1])
    )


def _treated(history: ResourceHistory, told: WeekForecast, *, place: int) -> tuple[str, ...]:
    known = _WORDS if history.resource is Resource.GPUS else _WORDS_OF_OTHERS
    words = known.get(told.treatments[place].value)
    return () if words is None else (words,)


def _held_down(hundredths: Floats) -> tuple[str, ...]:
    count = int((hundredths > _MOST_TIMES_RECENT * _HUNDRED).sum())
    times = f"{_MOST_TIMES_RECENT:g} times the highest day of the last four weeks"
    return (f"days above {times} are counted as that: {count}",) if count else ()


_WORDS: Mapping[str, str] = {
    "short": "fewer than 14 days are known: the width is that of all series",
    "new": "first demand less than four weeks ago: methods are weighed as for all series",
    "near_idle": f"below {IDLE_BELOW_GPUS:g} GPUs for four weeks: told from what quiet series sometimes ask for",
    "zero": "nothing was ever wanted",
    "no_days": "no day is known: nothing is foretold",
}
_WORDS_OF_OTHERS: Mapping[str, str] = {
    "short": _WORDS["short"],
    "new": "first use less than four weeks ago: methods are weighed as for all series",
    "near_idle": "nothing for four weeks: told from what quiet series sometimes take",
    "zero": "nothing was ever used",
    "no_days": _WORDS["no_days"],
}


def _untold(history: ResourceHistory, key: SeriesKey) -> SeriesOutlook:
    return SeriesOutlook(key=key, treatment="no_days", weeks=(), notes=history.notes.get(key, ()))
