"""The methods by name: exponential smoothing in a bank of settings, Theta, and their weighted combination.

A bank goes through the days once and remembers where it stood at each origin, so that a backtest costs no more than a
forecast. Which setting speaks for a series is chosen by its own errors a week ahead, up to the origin and not beyond.

The line goes through at most a year before the origin. Levels and weekdays are `smoothing`'s.

Only windows that were over at the origin count. A series with few of them weighs methods as the pool does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ops_pipelines.capacity.forecast.windows import Floats, Places

# -- exponential smoothing of all series at once, in a bank of settings --


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
    """Where the chosen setting of each series is on the evening before an origin."""

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


# -- the Theta method for all series at once --


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


# -- the weighted combination --


_POOL_WORTH = 30.0
"""Windows that a series needs before its own errors count as much as the pool's."""
_SHARPNESS = 60.0
"""Weights go with errors to this power: a method 5 % worse than another counts a nineteenth of it."""
_MEMORY_A_WINDOW = 0.97
"""By the origin: what is left of an older window's weight."""
_LEAST_ERROR = 0.01
"""Relative to the mean of all methods: no luck makes one infinitely good."""
MOST_WEIGHED = 150
"""Windows that are worth a look: the next older one would count a hundredth."""


def weigh_methods(errors: Floats) -> Floats:
    """Return (method, series), each series' weights summing to 1, from errors by (window, method, series).

    Windows are in their order and over; NaN is a window that a series has no error in.
    """
    _, methods, series = errors.shape
    is_there = ~np.isnan(errors)
    worth = _MEMORY_A_WINDOW ** np.arange(len(errors))[::-1, None, None]
    count = (worth * is_there).sum(axis=0)
    own = (worth * np.where(is_there, errors, 0.0)).sum(axis=0) / np.maximum(count, 1e-9)
    typical = own.mean(axis=0)
    is_known = (count.min(axis=0, initial=np.inf) > 0) & (typical > 0)
    if not is_known.any():
        return np.full((methods, series), 1.0 / methods)
    relative = np.where(is_known, own / np.where(is_known, typical, 1.0), 0.0)
    pooled = relative[:, is_known].mean(axis=1)[:, None]
    count = np.where(is_known, count, 0.0)
    mixed = np.maximum((count * relative + _POOL_WORTH * pooled) / (count + _POOL_WORTH), _LEAST_ERROR)
    # The best as 1, so that no power is too small to divide by.
    weights = (mixed / mixed.min(axis=0)) ** -_SHARPNESS
    return np.asarray(weights / weights.sum(axis=0))


# -- the methods by name --


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
