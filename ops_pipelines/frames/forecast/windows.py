"""Windows of days: where forecasts begin, which of them are over at which other, and what was seen before each.

Origins lie a fixed step apart and end with the last day known, so that the windows that are judged, a horizon apart,
are among them and never overlap.
"""

from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import LEAST_DAYS, RECENT_DAYS, Floats

_FIRST_ORIGIN = 7
_STEPS_A_WINDOW = 13
"""Of long windows, calibration looks at so many starts a window: more are hardly new, and cost time."""
_PAST_DAYS = (7, 28, 182)
"""Of which the maxima are told to whoever predicts a peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Places of days at which a forecast begins: the first day that is not known."""

    places: tuple[int, ...]
    step_days: int
    horizon_days: int

    @property
    def lag(self) -> int:
        """How many origins earlier a window must begin to be over at an origin."""
        return -(-self.horizon_days // self.step_days)

    def over_at(self, number: int) -> int:
        """Return how many of the first windows were over when that origin came."""
        return max(0, number - self.lag + 1)


def lay_origins(
    day_count: int, *, horizon_days: int, most_windows: int | None = None, step_days: int | None = None
) -> Origins:
    """Return the origins of all windows, or of the newest, up to the one that begins after the last day.

    `step_days` apart; None: so far that there are `_STEPS_A_WINDOW` of them in a window.
    """
    if horizon_days < 1:
        raise ValueError(f"a window of {horizon_days} days was asked for; expected 1 or more")
    most = max(1, horizon_days // _STEPS_A_WINDOW)
    step = step_days or next(each for each in range(most, 0, -1) if horizon_days % each == 0)
    begin = day_count - max(0, day_count - _FIRST_ORIGIN) // step * step
    if most_windows is not None:
        begin = max(begin, day_count - most_windows * horizon_days)
    return Origins(places=tuple(range(begin, day_count + 1, step)), step_days=step, horizon_days=horizon_days)


def judged_origins(day_count: int, *, horizon_days: int) -> tuple[int, ...]:
    """Return where windows begin that do not overlap and end with the last day.

    Each has two weeks before it, and one other window that was over when it began: nothing is calibrated otherwise.
    """
    least = max(LEAST_DAYS, _FIRST_ORIGIN + horizon_days)
    return tuple(range(day_count - horizon_days, least - 1, -horizon_days))[::-1]


def window_maxima(values: Floats, *, origins: Origins) -> Floats:
    """Return (origin, series): the peak of each window that is over, NaN for others and where a day is not known."""
    found = np.full((len(origins.places), values.shape[1]), np.nan)
    for number, place in enumerate(origins.places):
        if place + origins.horizon_days <= len(values):
            found[number] = values[place : place + origins.horizon_days].max(axis=0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """What was seen of each series before one origin, in roots; 0 where nothing was."""

    maxima: Floats
    """(past of 7, 28, 182 days, series)."""
    recent_peak: Floats
    """Of four weeks."""
    spread: Floats
    """Standard deviation over as many days as the window, four weeks at least, half a year at most."""
    change: Floats
    """Mean change from day to day over eight weeks."""


def look_back(values: Floats, *, origin: int, horizon_days: int) -> Seen:
    past = values[:origin]
    long = min(max(horizon_days, RECENT_DAYS), _PAST_DAYS[-1])
    maxima = np.stack([_largest(past[-days:]) for days in _PAST_DAYS])
    return Seen(
        maxima=maxima,
        recent_peak=maxima[1],
        spread=np.sqrt(_mean(np.square(past[-long:] - _mean(past[-long:])))),
        change=_mean(np.abs(np.diff(past[-2 * RECENT_DAYS :], axis=0))),
    )


def _largest(days: Floats) -> Floats:
    return np.asarray(np.where(np.isnan(days), 0.0, days).max(axis=0, initial=0.0))


def _mean(days: Floats) -> Floats:
    is_there = ~np.isnan(days)
    return np.asarray(np.where(is_there, days, 0.0).sum(axis=0) / np.maximum(is_there.sum(axis=0), 1))
