"""Series by resource, ready to be forecast; week by week as they were, and the forecast of each.

Which rows count is `believed_rows`' to say, how days are treated `read_series`'; weeks as they were are untreated: for
pictures, for judging forecasts, and for how demand runs within a week.

GPUs of all teams and types are one pool, so that they learn from each other. Every further resource is a pool of its
own, in hundredths of each series' highest day of four weeks: the forecast is made for counts of GPUs, in which bytes
and watts would look endless, and a disk that was emptied idle. GPUs out or stranded are not forecast: supply is drawn
from how they were.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from ops_pipelines.capacity.believed_rows import BelievedRows, believe_rows
from ops_pipelines.capacity.chances import DayProfile
from ops_pipelines.capacity.forecast.by_week import LEAST_DAYS, WEEK_DAYS, WeekForecast, forecast_weeks
from ops_pipelines.capacity.forecast.windows import IDLE_BELOW_GPUS, RECENT_DAYS, DailyPeaks, Floats, Hierarchy
from ops_pipelines.capacity.model import LEVELS, Resource, SeriesKey, SeriesOutlook, WeekPeak
from ops_pipelines.capacity.read_series import Asked, read_series
from ops_pipelines.core.proposal import GpuType

# -- rows of `daily_peaks` -> what is reported of days as they were --


if TYPE_CHECKING:
    import pyarrow as pa

PROFILE_DAYS = 91
_WEEK = 7
_HOURS = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekShape:
    """How all teams together requested one type of GPU in the last 13 weeks."""

    profile: DayProfile | None
    """None: no whole week is known."""
    waited_ratio: float | None
    """Of what was requested, so much waited, in the mean. None: not known."""


class RecordedDays:
    """The believed days before one day."""

    def __init__(self, rows: "pa.Table", *, until: date, zone: ZoneInfo) -> None:
        self._until = until
        self._rows: BelievedRows = believe_rows(rows, until=until, zone=zone)

    def known_days(self) -> frozenset[date]:
        """Return the days of which anything is known that teams requested."""
        places = [place for place, key in enumerate(self._rows.keys) if key.resource == Resource.GPUS.value]
        days = np.unique(self._rows.day[np.isin(self._rows.series, places)])
        return frozenset(date.fromordinal(each) for each in days.tolist())

    def weekly_peaks(
        self, *, anchor: date, resources: Collection[Resource], least_days: int
    ) -> Mapping[SeriesKey, tuple[tuple[date, float], ...]]:
        """Return the peaks of weeks that are over, oldest first; weeks begin so that one begins on `anchor`.

        A week of which fewer than `least_days` are known is left out.
        """
        whole = self._rows.day < anchor.toordinal() + (self._until - anchor).days // _WEEK * _WEEK
        week = (self._rows.day - anchor.toordinal()) // _WEEK
        found = {}
        for place, key in enumerate(self._rows.keys):
            if key.kind not in resources:
                continue
            own = (self._rows.series == place) & whole
            weeks, inverse, counts = np.unique(week[own], return_inverse=True, return_counts=True)
            peaks = np.zeros(len(weeks))
            np.maximum.at(peaks, inverse, self._rows.columns["peak"][own])
            told = tuple(
                (anchor + timedelta(days=_WEEK * number), peak)
                for number, peak, count in zip(weeks.tolist(), peaks.tolist(), counts.tolist(), strict=True)
                if count >= least_days
            )
            if told:
                found[key] = told
        return found

    def week_shapes(self) -> Mapping[GpuType, WeekShape]:
        """Return how all teams together want GPUs within a week, by type."""
        first = self._until.toordinal() - PROFILE_DAYS
        found = {}
        for place, key in enumerate(self._rows.keys):
            if key.resource != Resource.GPUS.value or key.name:
                continue
            own = (self._rows.series == place) & (self._rows.day >= first)
            columns = {name: values[own] for name, values in self._rows.columns.items()}
            by_day = np.full(PROFILE_DAYS, np.nan)
            by_day[self._rows.day[own] - first] = columns["peak"]
            found[key.gpu_type] = WeekShape(
                profile=_profile(by_day.reshape(-1, _WEEK), columns), waited_ratio=_waited(columns)
            )
        return found


def _profile(weeks: Floats, columns: Mapping[str, Floats]) -> DayProfile | None:
    """Return the mean shape of whole weeks: days by their height, whichever weekday they are."""
    whole = weeks[~np.isnan(weeks).any(axis=1)]
    whole = whole[whole.max(axis=1, initial=0.0) > 0] if len(whole) else whole
    peak, near = columns["peak"], columns["near_peak_hours"]
    told = ~np.isnan(near) & (near > 0) & (peak > 0)
    if not len(whole) or not told.any():
        return None
    ranked = -np.sort(-whole, axis=1)
    ratios = (ranked / ranked[:, :1]).mean(axis=0)
    near_hours = min(_HOURS, float(near[told].mean()))
    return DayProfile(
        near_peak_hours=near_hours,
        day_ratios=(1.0, *(min(1.0, each) for each in ratios[1:].tolist())),
        rest_ratio=_rest_ratio(peak[told], columns["mean"][told], near_hours),
    )


def _rest_ratio(peak: Floats, mean: Floats, near_hours: float) -> float | None:
    """Return demand of the hours that are not near the peak over the peak; None where all hours are near it."""
    rest_hours = _HOURS - near_hours
    if rest_hours < 1:
        return None
    # Hours near the peak are counted as at it, so the others make up what is missing to the mean.
    found = (_HOURS * float(mean.sum() / peak.sum()) - near_hours) / rest_hours
    return min(1.0, max(0.0, found))


def _waited(columns: Mapping[str, Floats]) -> float | None:
    waiting, mean = columns["waiting_mean"], columns["mean"]
    told = ~np.isnan(waiting) & ~np.isnan(mean)
    wanted = float(mean[told].sum())
    return min(1.0, float(waiting[told].sum()) / wanted) if wanted > 0 else None


# -- rows of `daily_peaks` -> series by resource, ready to be forecast --


if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceHistory:
    """All series of one resource, day by day; days that are missing are filled or left out as notes say."""

    resource: Resource
    keys: tuple[SeriesKey, ...]
    """Of the columns of `series`, in their order; without sums."""
    series: DailyPeaks
    sums: tuple[SeriesKey, ...] = ()
    """Keys of all teams together, by type of GPU; for other resources nothing."""
    members: tuple[tuple[int, ...], ...] = ()
    """Of each sum: the places of its members among `keys`."""
    summed: Floats | None = None
    """(day, sum): daily maxima of the sums, as recorded; None where there are no sums."""
    limits: Mapping[SeriesKey, float]
    """What held last: a size, a rate, watts; who is not named has no known limit."""
    near_peak_hours: Mapping[SeriesKey, float]
    """Hours a day within 10 % of the day's peak: mean of the last 13 weeks."""
    idle_ratio: Mapping[SeriesKey, float]
    """Share of what ran on which nothing ran: mean of the last 13 weeks; GPUs alone."""
    means: Mapping[SeriesKey, tuple[float, ...]]
    """Means of the last 365 days or fewer, oldest first: what supply is drawn from (GPUS_OUT, GPUS_STRANDED), and what
    racks draw."""
    notes: Mapping[SeriesKey, tuple[str, ...]]
    """What was done to whose days, what of them is censored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeakHistory:
    """Everything that is known of a cluster's daily peaks."""

    resources: tuple[ResourceHistory, ...]
    notes: tuple[str, ...]
    """Of all: days that are missing altogether, a changed time zone."""

    def of(self, resource: Resource) -> ResourceHistory | None:
        return next((each for each in self.resources if each.resource is resource), None)


def read_history(
    rows: "pa.Table",
    *,
    until: date,
    zone: ZoneInfo,
    holidays: Iterable[date] = (),
) -> PeakHistory:
    """Return what rows of `daily_peaks` tell of the days before `until`; no resources where none is believed.

    `zone`: that of now. `holidays`: taken as the same weekday a week before, where that was higher.
    """
    believed = believe_rows(rows, until=until, zone=zone)
    asked = Asked(until=until, holidays=frozenset(holidays))
    refused: dict[SeriesKey, list[str]] = defaultdict(list)
    for fault in believed.faults:
        refused[fault.key].append(fault.words)
    resources = []
    for resource in Resource:
        found = read_series(resource, believed, asked)
        if found is None:
            continue
        notes = {}
        for key in (*found.keys, *found.sums):
            own = (*refused.pop(key, ()), *found.notes.pop(key, ()))
            if own:
                notes[key] = own
        for key, words in found.notes.items():
            refused[key] += words
        resources.append(
            ResourceHistory(
                resource=resource,
                keys=found.keys,
                series=found.series,
                sums=found.sums,
                members=found.members,
                summed=found.summed,
                limits=found.limits,
                near_peak_hours=found.near_peak_hours,
                idle_ratio=found.idle_ratio,
                means=found.means,
                notes=notes,
            )
        )
    return PeakHistory(resources=tuple(resources), notes=tuple(_of_all(believed, refused, asked=asked, zone=zone)))


def _of_all(
    believed: BelievedRows, refused: Mapping[SeriesKey, Sequence[str]], *, asked: Asked, zone: ZoneInfo
) -> Iterator[str]:
    """Yield notes on no series that is forecast: zones, days of which nothing is known, refusals."""
    for name, (first, last) in believed.other_zones.items():
        yield f"days from {first} to {last} were reported in {name}, not in {zone.key}; joined by their local date"
    if len(believed.day):
        days = np.unique(believed.day)
        gaps = np.flatnonzero(np.diff(days) > 1)
        for one, other in zip(days[gaps].tolist(), days[gaps + 1].tolist(), strict=True):
            yield _missing(one + 1, other)
        if int(days[-1]) + 1 < asked.until.toordinal():
            yield _missing(int(days[-1]) + 1, asked.until.toordinal())
    for key in sorted(refused):
        for words in refused[key]:
            yield f"{' '.join(each for each in (key.resource, key.gpu_type, key.name) if each)}: {words}"


def _missing(first: int, after: int) -> str:
    count = after - first
    days = "1 day" if count == 1 else f"{count} days"
    return f"{days} from {date.fromordinal(first)} on are missing altogether: materialise daily_peaks there"


# -- series of all resources -> what each will be at most, week by week --


_NOT_TOLD = frozenset({Resource.GPUS_OUT, Resource.GPUS_STRANDED})
_HUNDRED = 100.0
_MOST_TIMES_RECENT = 20.0
"""Of further resources: higher days of the past count as so many times the recent peak; else they drown the pool."""
Outlooks = tuple[tuple[SeriesOutlook, ...], int, tuple[str, ...]]


def outlooks_of(history: PeakHistory, *, weeks: int, first_day: date) -> Outlooks:
    """Return the outlooks by key, how many weeks ahead that of GPUs is measured, and notes.

    Weeks begin with `first_day`, which is the day after the last that is known; a resource whose days end earlier is
    stated in a note, and nothing is forecast of it. Without GPUs no week is vouched for.
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
                "forecast: materialise daily_peaks there"
            )
            found += [_untold(each, key) for key in (*each.keys, *each.sums)]
            continue
        scale = _scale(each)
        told = _forecast(each, scale=scale, weeks=weeks)
        if each.resource is Resource.GPUS:
            vouched = told.vouched_weeks
        if each.series.day_count < LEAST_DAYS:
            notes.append(
                f"{each.resource.value}: {each.series.day_count} days are known, and nothing is forecast; expected "
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
    # Two levels may differ by a rounding alone: what is reported never falls.
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
    "near_idle": f"below {IDLE_BELOW_GPUS:g} GPUs for four weeks: forecast from what quiet series sometimes ask for",
    "zero": "nothing was ever requested",
    "no_days": "no day is known: nothing is forecast",
}
_WORDS_OF_OTHERS: Mapping[str, str] = {
    "short": _WORDS["short"],
    "new": "first use less than four weeks ago: methods are weighed as for all series",
    "near_idle": "nothing for four weeks: forecast from what quiet series sometimes take",
    "zero": "nothing was ever used",
    "no_days": _WORDS["no_days"],
}


def _untold(history: ResourceHistory, key: SeriesKey) -> SeriesOutlook:
    return SeriesOutlook(key=key, treatment="no_days", weeks=(), notes=history.notes.get(key, ()))
