"""Conformal quantiles: how far past windows ended above what was predicted, in each series' own measure, pooled.

A score is (what came - what was predicted) / scale. The bound for the next window is what was predicted plus the
scores' quantile times the scale, with the correction for a finite pool. Recent windows weigh most, so that the bound
follows a cluster that changes. What is predicted, and with which scale, is `peak_model`'s.
"""

from collections.abc import Sequence

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import Floats


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
