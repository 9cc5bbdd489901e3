"""The peak of a window, and how far off it tends to be: two small regressions over the windows of all series.

The place is a linear mix of what the combination sees at most and of past maxima. The scale is a mix of the series'
own past errors, its spread and its day-to-day change. Both are drawn towards a plain prior where windows are few.
Everything is in roots and relative to a power of the recent level: the one under which past errors are most alike.
"""

from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import Flags, Floats

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
