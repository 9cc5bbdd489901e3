"""All that was known, foreseen and then came true at each origin: one pass over the days, for every method.

What a forecast learns from, a backtest and a forecast alike take from here; they differ in the origins that they ask
about. At no origin is anything used of the days after it, except as what came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.frames.forecast.combination import MOST_WEIGHED, weigh_methods
from ops_pipelines.frames.forecast.daily_peaks import IDLE_BELOW_GPUS, DailyPeaks, Flags, Floats, root
from ops_pipelines.frames.forecast.methods import COMBINED, METHODS, fit
from ops_pipelines.frames.forecast.sums import Hierarchy, add_up_roots
from ops_pipelines.frames.forecast.windows import Origins, Seen, lay_origins, look_back, window_maxima


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foreseen:
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
    foreseen: Mapping[str, Foreseen]
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
    tree: Hierarchy | None = None,
    most_windows: int | None = None,
    step_days: int | None = None,
    judged_days: int | None = None,
) -> Rolled:
    """Return what was foreseen at all origins by the methods named in `keep`; the last columns are the tree's sums.

    Origins lie `step_days` apart. Methods are weighed by the first `judged_days` of their paths; None: by all of them.
    Windows older than `most_windows` windows are not foreseen; days are learned from whatever their age.
    Paths of methods that nobody keeps are forgotten as soon as they are weighed: they are most of the memory.
    """
    values = root(series.gpus)
    judged = judged_days or horizon_days
    origins = lay_origins(len(values), horizon_days=horizon_days, most_windows=most_windows, step_days=step_days)
    weighed = Origins(places=origins.places, step_days=origins.step_days, horizon_days=judged)
    own = values.shape[1] - (0 if tree is None else len(tree.names))
    fitted = fit(values[:, :own], origins=origins.places)
    came = window_maxima(values, origins=origins)
    paths = {name: np.zeros((len(came), horizon_days, len(series.names)), dtype=np.float32) for name in keep}
    errors = np.full((len(came), len(METHODS), len(series.names)), np.nan)
    weights = np.zeros((len(METHODS), own))
    combined_errors = np.full(came.shape, np.nan)
    seen: list[Seen] = []
    for number, place in enumerate(origins.places):
        seen.append(look_back(values, origin=place, horizon_days=horizon_days))
        each = fitted.paths(place, day_count=horizon_days)
        over = weighed.over_at(number)
        weights = weigh_methods(errors[max(0, over - MOST_WEIGHED) : over, :, :own])
        every = {**dict(zip(METHODS, each, strict=True)), COMBINED: np.einsum("ms,mds->ds", weights, each)}
        if tree is not None:
            every = {name: np.concatenate([path, add_up_roots(path, tree)], axis=1) for name, path in every.items()}
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
            name: Foreseen(paths=kept, peaks=kept.max(axis=1).astype(np.float64), errors=by_name[name])
            for name, kept in paths.items()
        },
        weights=weights,
    )
