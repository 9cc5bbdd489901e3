"""From one origin: the quantiles of a window's peak, calibrated on the windows before.

What a forecast learns from, a backtest and a forecast alike take from here; they differ in the origins that they ask
about. At no origin is anything used of the days after it, except as what came.

A score is (what came - what was predicted) / scale. The bound for the next window is what was predicted plus the
scores' quantile times the scale, with the correction for a finite pool. Recent windows weigh most, so that the bound
follows a cluster that changes. What is predicted, and with which scale, is `peak_model`'s.

The place is a linear mix of what the combination sees at most and of past maxima. The scale is a mix of the series' own
past errors, its spread and its day-to-day change. Both are drawn towards a plain prior where windows are few.
Everything is in roots and relative to a power of the recent level: the one under which past errors are most alike.

Near-idle series are a pool of their own, whose peaks stand in for each other in GPUs; all others are one pool, with
errors relative to what their series promises. Each method is calibrated alike; the combination alone has the regression
for its peak's place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.capacity.forecast.methods import COMBINED, METHODS, MOST_WEIGHED, fit, weigh_methods
from ops_pipelines.capacity.forecast.windows import (
    IDLE_BELOW_GPUS,
    DailyPeaks,
    Flags,
    Floats,
    Origins,
    Places,
    Seen,
    lay_origins,
    look_back,
    root,
    squared,
    window_maxima,
)

# -- all that was known, forecast and then came true at each origin --


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MethodForecast:
    """What one method, or the combination, saw at each origin, in roots."""

    paths: NDArray[np.float32]
    """(origin, day, series)."""
    peaks: Floats
    """(origin, series): the highest day of the path."""
    errors: Floats
    """(origin, series): the mean distance of path and days; NaN where the window is not over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rolled:
    """One pass; arrays by (origin, series), in roots."""

    origins: Origins
    values: Floats
    """By (day, series)."""
    came: Floats
    """The peak of each window; NaN where it is not over."""
    is_known: Flags
    """Whether the series was there before the origin."""
    is_idle: Flags
    seen: tuple[Seen, ...]
    last: Floats
    foreseen: Mapping[str, MethodForecast]
    weights: Floats
    """(method, series) of the last origin."""

    @property
    def level(self) -> Floats:
        """The recent peak and a little more: nothing is relative to 0."""
        return np.stack([each.recent_peak for each in self.seen]) + 1.0


def roll(
    series: DailyPeaks,
    *,
    horizon_days: int,
    keep: Sequence[str],
    step_days: int | None = None,
    judged_days: int | None = None,
) -> Rolled:
    """Return what was forecast at all origins by the methods named in `keep`.

    Origins lie `step_days` apart. Methods are weighed by the first `judged_days` of their paths; None: by all of them.
    Paths of methods that nobody keeps are forgotten as soon as they are weighed: they are most of the memory.
    """
    values = root(series.gpus)
    judged = judged_days or horizon_days
    origins = lay_origins(len(values), horizon_days=horizon_days, step_days=step_days)
    weighed = Origins(places=origins.places, step_days=origins.step_days, horizon_days=judged)
    fitted = fit(values, origins=origins.places)
    came = window_maxima(values, origins=origins)
    paths = {name: np.zeros((len(came), horizon_days, len(series.names)), dtype=np.float32) for name in keep}
    errors = np.full((len(came), len(METHODS), len(series.names)), np.nan)
    weights = np.zeros((len(METHODS), len(series.names)))
    combined_errors = np.full(came.shape, np.nan)
    seen: list[Seen] = []
    for number, place in enumerate(origins.places):
        seen.append(look_back(values, origin=place, horizon_days=horizon_days))
        each = fitted.paths(place, day_count=horizon_days)
        over = weighed.over_at(number)
        weights = weigh_methods(errors[max(0, over - MOST_WEIGHED) : over])
        every = {**dict(zip(METHODS, each, strict=True)), COMBINED: np.einsum("ms,mds->ds", weights, each)}
        for name in keep:
            paths[name][number] = every[name]
        if place + judged <= len(values):
            days = values[place : place + judged]
            errors[number] = [np.abs(every[name][:judged] - days).mean(axis=0) for name in METHODS]
            combined_errors[number] = np.abs(every[COMBINED][:judged] - days).mean(axis=0)
    by_name = {**{name: errors[:, place] for place, name in enumerate(METHODS)}, COMBINED: combined_errors}
    last = np.stack([values[place - 1] for place in origins.places])
    return Rolled(
        origins=origins,
        values=values,
        came=came,
        is_known=~np.isnan(last),
        is_idle=np.stack([np.square(each.recent_peak) for each in seen]) < IDLE_BELOW_GPUS,
        seen=tuple(seen),
        last=last,
        foreseen={
            name: MethodForecast(paths=kept, peaks=kept.max(axis=1).astype(np.float64), errors=by_name[name])
            for name, kept in paths.items()
        },
        weights=weights,
    )


# -- conformal quantiles --


def weighted_quantiles(scores: Floats, weights: Floats, *, quantiles: Sequence[float]) -> Floats:
    """Return the scores that each quantile of the weight lies at or below, one more unknown score counted in.

    That one weighs as much as the heaviest and lies above for quantiles over a half, below for those under. A pool too
    small for a quantile gives its largest or smallest score; an empty one 0.
    """
    if not len(scores):
        return np.zeros(len(quantiles))
    order = np.argsort(scores, kind="stable")
    ranked, reached = scores[order], np.cumsum(weights[order])
    whole, extra = float(reached[-1]), float(weights.max())
    last = len(scores) - 1
    found = []
    for quantile in quantiles:
        if quantile < 0.5:
            below = quantile * (whole + extra) - extra
            found.append(ranked[min(last, int(np.searchsorted(reached, below * (1 + 1e-12), side="right")))])
        else:
            above = quantile * (whole + (extra if quantile > 0.5 else 0.0))
            found.append(ranked[min(last, int(np.searchsorted(reached, above * (1 - 1e-12))))])
    return np.array(found)


def recency_weights(ages_days: Floats, *, half_life_days: float) -> Floats:
    return np.asarray(0.5 ** (ages_days / half_life_days))


# -- the peak of a window --


_PLACE_PRIOR_WINDOWS = 0.3
_SCALE_PRIOR_WINDOWS = 50.0
_PARTS = 5
"""Of the past, in the order of time."""
_LEAST_WINDOWS = 60
"""With fewer, the scale is the pool's and the series' own errors alone."""
_OWN_WORTH_WINDOWS = 18.0
"""Whole windows that a series needs before its own errors count as much as the pool's."""
POWERS = (0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """The windows that are over and that a fit may learn from; arrays by (origin, series) of all origins so far.

    The last origin is the one to predict from: nothing of its window is known.
    """

    is_learnt: Flags
    """Whether a window belongs to the pool; never one of the last origin."""
    worth: Floats
    """How much it counts."""
    level: Floats
    """The recent level, in roots, above 0."""


def fit_place(pool: Pool, *, came: Floats, seen: Floats, prior: Floats) -> Floats:
    """Return the predicted value by (origin, series).

    `came` is by (origin, series), `seen` by (origin, series, feature), `prior` the mix of features without any window.
    Past windows are predicted by a fit to the other parts of the past: one that knew them would make errors look small.
    """
    learnt = np.flatnonzero(pool.is_learnt.any(axis=1))
    place = np.asarray(seen @ _mix_place(pool.is_learnt, pool.worth, came=came, seen=seen, prior=prior))
    for part in np.array_split(learnt, min(_PARTS, len(learnt))) if len(learnt) > 1 else ():
        others = pool.is_learnt.copy()
        others[part] = False
        place[part] = seen[part] @ _mix_place(others, pool.worth, came=came, seen=seen, prior=prior)
    return place


def _mix_place(is_learnt: Flags, worth: Floats, *, came: Floats, seen: Floats, prior: Floats) -> Floats:
    if not is_learnt.any():
        return prior
    return _ridge(seen[is_learnt], came[is_learnt], worth[is_learnt], prior=prior, strength=_PLACE_PRIOR_WINDOWS)


def fit_scale(pool: Pool, *, missed: Floats, lag: int, seen: Floats) -> Floats:
    """Return by (origin, series) how far off to expect, from sizes of errors by (origin, series).

    A series' own errors are those of windows that were over at each origin: `lag` origins earlier or more. `seen` has
    further signs of width by (origin, series, sign).
    """
    sizes, worth = missed[pool.is_learnt], pool.worth[pool.is_learnt]
    if not len(sizes):
        return np.ones(missed.shape)
    typical = float(np.median(sizes)) + 1e-9
    own = _own_errors(missed, lag=lag, typical=typical)
    if len(sizes) < _LEAST_WINDOWS:
        return np.maximum(own, 0.1 * typical)
    signs = np.concatenate([np.ones((*own.shape, 1)), own[..., None], seen], axis=-1)
    # One window out of the ordinary must not teach the rest to be wide.
    sizes = np.minimum(sizes, 4 * np.quantile(sizes, 0.75))
    mean = float(np.average(sizes, weights=worth)) + 1e-9
    prior = np.zeros(signs.shape[-1])
    prior[0], prior[1] = 0.2 * mean, 0.8
    mix = _ridge(signs[pool.is_learnt], sizes, worth, prior=prior, strength=_SCALE_PRIOR_WINDOWS)
    return np.clip(signs @ mix, 0.3 * mean, 3.5 * mean)


def choose_power(pool: Pool, *, missed: Floats) -> float:
    """Return the power of the level that errors go with: under which they would be least surprising."""
    sizes, level, worth = missed[pool.is_learnt], pool.level[pool.is_learnt], pool.worth[pool.is_learnt]
    if len(sizes) < _LEAST_WINDOWS:
        return POWERS[0]
    logs = float(np.average(np.log(level), weights=worth))
    surprise = [
        float(np.log(np.average(sizes / level**power, weights=worth) + 1e-12)) + power * logs for power in POWERS
    ]
    return POWERS[int(np.argmin(surprise))]


def _own_errors(missed: Floats, *, lag: int, typical: float) -> Floats:
    """Return each series' mean error up to each origin, mixed with the pool's."""
    is_there = ~np.isnan(missed)
    total = np.cumsum(np.where(is_there, missed, 0.0), axis=0)
    count = np.cumsum(is_there, axis=0).astype(np.float64)
    over = np.zeros_like(total), np.zeros_like(count)
    over[0][lag:], over[1][lag:] = total[: len(total) - lag], count[: len(count) - lag]
    # Windows that overlap are hardly new: `lag` of them count as one.
    worth = over[1] / lag
    mean = over[0] / np.maximum(over[1], 1.0)
    pool_worth = _OWN_WORTH_WINDOWS / lag
    return np.asarray((worth * mean + pool_worth * typical) / (worth + pool_worth))


def _ridge(told: Floats, wanted: Floats, worth: Floats, *, prior: Floats, strength: float) -> Floats:
    """Return the mix of least squares, drawn towards the prior as if by that many windows."""
    weighted = told * worth[:, None]
    squares = weighted.T @ told
    pull = strength * (np.diag(squares) / max(float(worth.sum()), 1e-9) + 1e-6)
    return np.asarray(np.linalg.solve(squares + np.diag(pull), weighted.T @ wanted + pull * prior))


# -- from one origin --


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
        """Return peaks alone, from nothing: who was quiet may ask for what quiet series sometimes ask for."""
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
