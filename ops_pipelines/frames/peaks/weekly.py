"""Rows of `daily_peaks` -> what is told of days as they were: which are known, peaks of weeks, the shape of a week.

No treatment: nothing is carried, no holiday is replaced. What forecasts are made from is `history`'s; this is for
pictures, for judging what was said, and for how demand runs within a week.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.domain.capacity.shortage import DayProfile
from ops_pipelines.frames.forecast.daily_peaks import Floats
from ops_pipelines.frames.peaks.believed import BelievedRows, believe_rows

if TYPE_CHECKING:
    import pyarrow as pa

PROFILE_DAYS = 91
_WEEK = 7
_HOURS = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekShape:
    """How all teams together wanted one type of GPU in the last 13 weeks."""

    profile: DayProfile | None
    """None: no whole week is known."""
    waited_ratio: float | None
    """Of what was wanted, so much waited, in the mean. None: not known."""


class RecordedDays:
    """The believed days before one day."""

    def __init__(self, rows: "pa.Table", *, until: date, zone: ZoneInfo) -> None:
        self._until = until
        self._rows: BelievedRows = believe_rows(rows, until=until, zone=zone)

    def known_days(self) -> frozenset[date]:
        """Return the days of which anything is known that teams wanted."""
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
