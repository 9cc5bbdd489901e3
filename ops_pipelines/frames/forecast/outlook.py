"""From one origin: the quantiles of a window's peak and of its days, calibrated on the windows that were over by then.

Near-idle series are a pool of their own, whose peaks stand for each other in GPUs; all others are one pool, with errors
relative to what their series promises. Each method is calibrated alike; the combination alone has the regression for
its peak's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.conformal import recency_weights, weighted_quantiles
from ops_pipelines.frames.forecast.daily_peaks import Flags, Floats, Places, squared
from ops_pipelines.frames.forecast.methods import COMBINED
from ops_pipelines.frames.forecast.peak_model import Pool, choose_power, fit_place, fit_scale
from ops_pipelines.frames.forecast.rolling import Rolled

_HALF_LIFE_WINDOWS = 1.0
_WINDOWS_OF_DAYS = 20
"""How many past windows the quantiles of single days are drawn from."""
_NEIGHBOUR_DAYS = 3
_ROUNDING = 1e-9
_LONG_DAYS = 28
_STRIDE_DAYS = 7
"""Of windows longer than four weeks, every seventh day is calibrated and speaks for the six after it."""
_OTHERS_WORTH_WINDOWS = 20.0
"""What all other scores together count for series that are calibrated apart: so many windows that are over just now."""
_MIDDLE_PRIOR_ERRORS = 1_400.0
"""Errors of days before half of a bias that they show is believed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibrated:
    """What a method says at an origin of each series, in roots, less its quantiles."""

    place: Floats
    scale: Floats
    scores: Floats
    worth: Floats


class Outlook:
    """One method from one origin of a pass."""

    def __init__(self, rolled: Rolled, *, method: str, number: int, half_life_days: float | None = None) -> None:
        """`half_life_days`: after which a past window counts half; None: the length of one."""
        self._rolled = rolled
        self._foreseen = rolled.foreseen[method]
        self._method = method
        self._number = number
        count = number + 1
        over = rolled.origins.over_at(number)
        self._is_over = np.zeros((count, rolled.values.shape[1]), dtype=bool)
        self._is_over[:over] = (rolled.is_known & ~np.isnan(rolled.came))[:over]
        lag = rolled.origins.lag
        ages = np.asarray((number - lag - np.arange(count)) * rolled.origins.step_days, dtype=np.float64)
        half_life_days = half_life_days or _HALF_LIFE_WINDOWS * rolled.origins.horizon_days
        weights = recency_weights(ages, half_life_days=half_life_days)
        self._worth = np.broadcast_to(weights[:, None], self._is_over.shape)
        self._level = rolled.level[:count]
        self._signs = np.stack([np.stack([each.change, each.spread], axis=-1) for each in rolled.seen[:count]])
        self._pools = [(idle, self._pool_of(is_idle=idle)) for idle in (True, False)]

    def peak_quantiles(self, quantiles: Sequence[float], *, apart: Flags | None = None) -> Floats:
        """Return (quantile, series) in GPUs; NaN for a series that is not there.

        `apart`: series whose scores are their own, the others' counting as a few windows. None: no series is.
        """
        found = np.full((len(quantiles), self._is_over.shape[1]), np.nan)
        for is_idle, pool in self._pools:
            here = self._here(is_idle=is_idle)
            if not here.any():
                continue
            said = self._peak_of_idle(pool) if is_idle else self._peak(pool)
            scores = weighted_quantiles(said.scores, said.worth, quantiles=quantiles)
            found[:, here] = (said.place + scores[:, None] * said.scale)[:, here]
            if apart is not None and (own := here & apart).any():
                worth = _worth_apart(said.worth, np.broadcast_to(apart, pool.is_learnt.shape)[pool.is_learnt])
                scores = weighted_quantiles(said.scores, worth, quantiles=quantiles)
                found[:, own] = (said.place + scores[:, None] * said.scale)[:, own]
        # A root squared again may fall short of the whole GPUs that it came from.
        return squared(found) * (1 + _ROUNDING)

    def day_quantiles(self, quantiles: Sequence[float]) -> Floats:
        """Return (quantile, day, series) in GPUs; NaN for a series that is not there."""
        path = self._foreseen.paths[self._number].astype(np.float64)
        found = np.full((len(quantiles), *path.shape), np.nan)
        for is_idle, pool in self._pools:
            here = self._here(is_idle=is_idle)
            if not here.any():
                continue
            unit = np.ones_like(self._level) if is_idle else self._day_scale(pool)
            over = np.flatnonzero(pool.is_learnt.any(axis=1))
            over = over[:: max(1, len(over) // _WINDOWS_OF_DAYS)]
            for day, offsets in self._day_scores(over, pool=pool, unit=unit, quantiles=quantiles):
                found[:, day : day + self._stride, here] = (offsets[:, None] * unit[-1])[:, None, here]
        return squared(path + found)

    @property
    def _stride(self) -> int:
        return _STRIDE_DAYS if self._rolled.origins.horizon_days > _LONG_DAYS else 1

    def _here(self, *, is_idle: bool) -> Flags:
        at = self._number
        return np.asarray((self._rolled.is_idle[at] == is_idle) & self._rolled.is_known[at])

    def _pool_of(self, *, is_idle: bool) -> Pool:
        alike = self._rolled.is_idle[: self._number + 1] == is_idle
        return Pool(is_learnt=self._is_over & alike, worth=self._worth, level=self._level)

    def _peak_of_idle(self, pool: Pool) -> Calibrated:
        """Return peaks alone, from nothing: whoever was quiet may ask for what quiet series sometimes ask for."""
        count = self._number + 1
        nothing = np.zeros_like(self._foreseen.peaks[:count])
        return self._calibrated(pool, place=nothing, scale=np.ones_like(nothing))

    def _peak(self, pool: Pool) -> Calibrated:
        count = self._number + 1
        came = np.where(self._is_over, self._rolled.came[:count], np.nan)
        plain = self._foreseen.peaks[:count]
        unit = self._level ** choose_power(pool, missed=np.abs(came - plain))
        place = plain
        if self._method == COMBINED:
            place = fit_place(pool, came=came / unit, seen=self._features(unit), prior=_PRIOR) * unit
        signs = self._signs / unit[..., None]
        scale = fit_scale(pool, missed=np.abs(came - place) / unit, lag=self._rolled.origins.lag, seen=signs)
        return self._calibrated(pool, place=place, scale=scale * unit)

    def _calibrated(self, pool: Pool, *, place: Floats, scale: Floats) -> Calibrated:
        scores = (self._rolled.came[: len(place)] - place)[pool.is_learnt] / scale[pool.is_learnt]
        return Calibrated(place=place[-1], scale=scale[-1], scores=scores, worth=pool.worth[pool.is_learnt])

    def _features(self, unit: Floats) -> Floats:
        """Return (origin, series, feature): what the peak's place is mixed from; `_PRIOR` has its order."""
        rolled, count = self._rolled, self._number + 1
        long = 2 if rolled.origins.horizon_days > 100 else 1
        told = [
            rolled.foreseen[COMBINED].peaks[:count],
            rolled.last[:count],
            np.stack([each.maxima[0] for each in rolled.seen[:count]]),
            np.stack([each.maxima[1] for each in rolled.seen[:count]]),
            np.stack([each.maxima[long] for each in rolled.seen[:count]]),
            rolled.foreseen[COMBINED].paths[:count].mean(axis=1).astype(np.float64),
            *np.moveaxis(self._signs, -1, 0),
        ]
        stacked = np.stack([*(each / unit for each in told), np.ones_like(unit)], axis=-1)
        return np.where(np.isnan(stacked), 0.0, stacked)

    def _day_scale(self, pool: Pool) -> Floats:
        count = self._number + 1
        missed = np.where(self._is_over, self._foreseen.errors[:count], np.nan)
        unit = self._level ** choose_power(pool, missed=missed)
        signs = self._signs / unit[..., None]
        return fit_scale(pool, missed=missed / unit, lag=self._rolled.origins.lag, seen=signs) * unit

    def _day_scores(
        self,
        over: Places,
        *,
        pool: Pool,
        unit: Floats,
        quantiles: Sequence[float],
    ) -> list[tuple[int, Floats]]:
        """Return for each day that is calibrated the quantiles of past errors about that day, in units."""
        rolled, horizon = self._rolled, self._rolled.origins.horizon_days
        begins = [rolled.origins.places[number] for number in over]
        if not begins:
            return [(day, np.zeros(len(quantiles))) for day in range(0, horizon, self._stride)]
        came = np.stack([rolled.values[place : place + horizon] for place in begins])
        errors = (came - self._foreseen.paths[over]) / unit[over][:, None]
        found = []
        stride = _NEIGHBOUR_DAYS if horizon > _LONG_DAYS else 1
        for day in range(0, horizon, self._stride):
            near = errors[:, max(0, day - _NEIGHBOUR_DAYS) : day + _NEIGHBOUR_DAYS + 1 : stride]
            is_own = np.broadcast_to(pool.is_learnt[over][:, None], near.shape)
            worth = np.broadcast_to(pool.worth[over][:, None], near.shape)[is_own]
            drawn = near[is_own]
            offsets = weighted_quantiles(drawn, worth, quantiles=quantiles)
            believed = len(drawn) / (len(drawn) + _MIDDLE_PRIOR_ERRORS)
            found.append((day, np.where(np.array(quantiles) == 0.5, offsets * believed, offsets)))
        return found


def _worth_apart(worth: Floats, is_own: Flags) -> Floats:
    others = float(worth[~is_own].sum())
    return np.where(is_own, worth, worth * min(1.0, _OTHERS_WORTH_WINDOWS / max(others, _ROUNDING)))


_PRIOR = np.array([0.3, 0.0, 0.3, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0])
"""Without any window: what the combination sees at most, and the peaks of the last week and of the last four."""
