"""Exponential smoothing of all series at once, in a bank of settings: level, damped trend, a weekday's own share.

A bank goes through the days once and remembers where it stood at each origin, so that a backtest costs no more than a
forecast. Which setting speaks for a series is chosen by its own errors a week ahead, up to the origin and not beyond.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import Floats, Places

WEEK = 7
_ERROR_MEMORY = 0.995
"""By the day: errors of half a year ago count two fifths."""
_YOUNG_DAYS = 20
_YOUNG_WEEKS = 4
_TRENDS = ((0.0, 1.0), (0.02, 0.98), (0.005, 0.995))
"""Share of a level's change that the trend takes, and what is left of the trend a day later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    level_share: float
    """Of an error, what the level takes."""
    trend_share: float
    """Of what the level takes, what the trend takes; 0 is no trend."""
    damping: float
    weekday_share: float
    """Of what the level leaves, what the weekday takes; 0 is no weekdays."""


DAMPED = tuple(
    Setting(level_share=level, trend_share=trend, damping=damping, weekday_share=0.0)
    for level in (0.05, 0.15, 0.35, 0.7, 1.0)
    for trend, damping in _TRENDS
)
WEEKLY = tuple(
    Setting(level_share=level, trend_share=trend, damping=damping, weekday_share=weekday)
    for level in (0.03, 0.1, 0.25, 0.5, 0.9)
    for trend, damping in _TRENDS
    for weekday in (0.05, 0.2)
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """Where the chosen setting of each series stands on the evening before an origin."""

    origin: int
    level: Floats
    trend: Floats
    damping: Floats
    weekdays: Floats
    """A row each day of the week, the origin's own at `origin % 7`."""

    def path(self, day_count: int) -> Floats:
        """Return the days from the origin on, a row a day."""
        return self.level + self.trend_path(day_count) + self.weekday_path(day_count)

    def trend_path(self, day_count: int) -> Floats:
        ahead = np.arange(1, day_count + 1)[:, None]
        return self.trend * _damped_sum(self.damping[None], ahead)

    def weekday_path(self, day_count: int) -> Floats:
        return np.asarray(self.weekdays[(self.origin + np.arange(day_count)) % WEEK])


def states(values: Floats, *, settings: Sequence[Setting], origins: Sequence[int]) -> Mapping[int, State]:
    """Return the state at each origin: the place of the first day that is not known yet."""
    wanted = set(origins)
    bank = _Bank(settings, series_count=values.shape[1])
    found: dict[int, State] = {}
    for place in range(max(wanted, default=-1) + 1):
        if place in wanted:
            found[place] = bank.state(place)
        if place < len(values):
            bank.learn(values[place], place=place)
    return found


class _Bank:
    """A row a setting, a column a series."""

    def __init__(self, settings: Sequence[Setting], *, series_count: int) -> None:
        shape = (len(settings), series_count)
        self._level_share = np.array([[each.level_share] for each in settings])
        self._trend_share = np.array([[each.trend_share] for each in settings])
        self._damping = np.array([[each.damping] for each in settings])
        self._weekday_share = np.array([[each.weekday_share] for each in settings])
        self._week_of_trend = _damped_sum(self._damping, np.array([[WEEK]]))
        self._level, self._trend, self._error = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._weekdays, self._told = np.zeros((WEEK, *shape)), np.zeros((WEEK, *shape))
        self._age = np.zeros(series_count)

    def learn(self, today: Floats, *, place: int) -> None:
        is_there = ~np.isnan(today)
        value = np.where(is_there, today, 0.0)
        weekday = place % WEEK
        begins = is_there & (self._age == 0)
        self._level[:, begins] = value[begins]
        is_judged = is_there & (self._age >= 2 * WEEK)
        missed = np.abs(value - self._told[weekday])
        self._error = np.where(is_judged, _ERROR_MEMORY * self._error + missed, self._error)
        self._age += is_there
        expected = self._level + self._damping * self._trend
        error = np.where(is_there, value - expected - self._weekdays[weekday], 0.0)
        # A young series learns as a mean does: the first day's chance would stay for weeks otherwise.
        share = np.maximum(self._level_share, np.where(self._age < _YOUNG_DAYS, 1 / np.maximum(self._age, 1), 0.0))
        self._trend = np.where(is_there, self._damping * self._trend + share * self._trend_share * error, self._trend)
        self._trend = np.where(self._trend_share > 0, self._trend, 0.0)
        self._level = np.where(is_there, expected + share * error, self._level)
        weeks = self._age // WEEK
        young = np.where(weeks < _YOUNG_WEEKS, 1 / (weeks + 2), 0.0)
        self._weekdays[weekday] += np.where(
            self._weekday_share > 0, np.maximum(self._weekday_share, young) * (1 - share) * error, 0.0
        )
        self._told[weekday] = self._level + self._week_of_trend * self._trend + self._weekdays[weekday]

    def state(self, place: int) -> State:
        best = np.argmin(self._error, axis=0)
        column = np.arange(self._level.shape[1])
        return State(
            origin=place,
            level=np.where(self._age > 0, self._level[best, column], np.nan),
            trend=self._trend[best, column],
            damping=self._damping[best, 0],
            weekdays=self._weekdays[:, best, column],
        )


def _damped_sum(damping: Floats, ahead: Places) -> Floats:
    """Return damping + damping^2 + ... with `ahead` terms."""
    left = np.maximum(1 - damping, 1e-12)
    return np.where(damping == 1, ahead, damping * (1 - damping**ahead) / left)
