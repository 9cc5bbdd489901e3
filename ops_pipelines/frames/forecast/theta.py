"""The Theta method for all series at once: the level of a smoothing, half of the straight line's slope, weekdays.

The line goes through at most a year before the origin. Levels and weekdays are `smoothing`'s.
"""

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import Floats
from ops_pipelines.frames.forecast.smoothing import State

_LINE_DAYS = 365
_LEAST_LINE_DAYS = 56
"""A line through less is a line through noise: no slope."""


def theta_path(values: Floats, *, state: State, day_count: int) -> Floats:
    """Return the days from the state's origin on, a row a day."""
    past = values[max(0, state.origin - _LINE_DAYS) : state.origin]
    ahead = np.arange(1, day_count + 1)[:, None]
    return np.asarray(state.level + 0.5 * _slopes(past) * ahead + state.weekday_path(day_count))


def _slopes(past: Floats) -> Floats:
    """Return the change a day of each series' straight line; 0 where it has too few days."""
    is_there = ~np.isnan(past)
    count = is_there.sum(axis=0)
    day = np.arange(len(past), dtype=np.float64)[:, None]
    middle = np.where(is_there, day, 0).sum(axis=0) / np.maximum(count, 1)
    away = np.where(is_there, day - middle, 0.0)
    spread = np.square(away).sum(axis=0)
    found = (away * np.where(is_there, past, 0.0)).sum(axis=0) / np.maximum(spread, 1e-9)
    return np.where(count >= _LEAST_LINE_DAYS, found, 0.0)
