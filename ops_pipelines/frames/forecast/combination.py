"""The weighted combination: each method weighs what its past windows earned, a series' own errors beside the pool's.

Only windows that were over at the origin count. A series with few of them weighs methods as the pool does.
"""

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import Floats

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
