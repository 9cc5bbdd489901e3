"""The methods by name, and the path that each of them sees from an origin. What is made of the paths, others say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import Floats
from ops_pipelines.frames.forecast.smoothing import DAMPED, WEEK, WEEKLY, State, states
from ops_pipelines.frames.forecast.theta import theta_path

LAST_VALUE = "last_value"
SEASONAL_NAIVE = "seasonal_naive"
METHODS = (LAST_VALUE, SEASONAL_NAIVE, "damped_trend", "theta", "exponential_smoothing", "recent_median")
COMBINED = "combined"
"""What the program uses: not a method, but their weighted mean."""
_MEDIAN_WEEKS = 13


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitted:
    """What the methods learned of all series, at all origins."""

    values: Floats
    """In roots, a row a day."""
    damped: Mapping[int, State]
    weekly: Mapping[int, State]

    def paths(self, origin: int, *, day_count: int) -> Floats:
        """Return (method, day, series): the days from `origin` on; NaN where a series has none before it."""
        last = self.values[origin - 1]
        weekly = self.weekly[origin]
        found = np.stack(
            [
                np.broadcast_to(last, (day_count, len(last))),
                _last_week(self.values, origin=origin, day_count=day_count),
                self.damped[origin].path(day_count),
                theta_path(self.values, state=weekly, day_count=day_count),
                weekly.path(day_count),
                _recent_median(self.values, origin=origin, day_count=day_count),
            ]
        )
        return np.where(np.isnan(last), np.nan, np.maximum(found, 0.0))


def fit(values: Floats, *, origins: Sequence[int]) -> Fitted:
    """Return what the methods learn from roots of daily maxima before each origin."""
    return Fitted(
        values=values,
        damped=states(values, settings=DAMPED, origins=origins),
        weekly=states(values, settings=WEEKLY, origins=origins),
    )


def _last_week(values: Floats, *, origin: int, day_count: int) -> Floats:
    """Return the week before the origin again and again; the last value where a series has no such day."""
    last = values[origin - 1]
    week = np.full((WEEK, len(last)), np.nan)
    known = values[max(0, origin - WEEK) : origin]
    week[WEEK - len(known) :] = known
    repeated = week[np.arange(day_count) % WEEK]
    return np.where(np.isnan(repeated), last, repeated)


def _recent_median(values: Floats, *, origin: int, day_count: int) -> Floats:
    """Return the median of each weekday over a quarter; a launch of some weeks does not move it."""
    week_count = min(_MEDIAN_WEEKS, origin // WEEK)
    weeks = values[origin - WEEK * week_count : origin].reshape(week_count, WEEK, values.shape[1])
    last = values[origin - 1]
    if not week_count:
        return np.asarray(np.tile(last, (day_count, 1)))
    # Days that are absent rank last; the middle is that of the days that are there.
    ranked = np.sort(weeks, axis=0)
    count = (~np.isnan(weeks)).sum(axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, week_count - 1)
    middle = (np.take_along_axis(ranked, low[None], axis=0)[0] + np.take_along_axis(ranked, high[None], axis=0)[0]) / 2
    repeated = np.asarray(middle[np.arange(day_count) % WEEK])
    return np.asarray(np.where(np.isnan(repeated), last, repeated))
