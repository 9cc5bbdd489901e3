"""A backtest: what the program, and each method alike calibrated, would have said of windows that are over.

Windows that are judged never overlap; each is foretold from days before it and calibrated on windows that were over
when it began. What the numbers mean is `measures`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import LEAST_DAYS, DailyPeaks, Floats, Treatment
from ops_pipelines.frames.forecast.measures import (
    BOUND,
    DAY_QUANTILES,
    Judged,
    Measured,
    clustered_interval,
    measure,
    weekly_change,
)
from ops_pipelines.frames.forecast.methods import COMBINED, METHODS
from ops_pipelines.frames.forecast.outlook import Outlook
from ops_pipelines.frames.forecast.rolling import Rolled, roll
from ops_pipelines.frames.forecast.windows import judged_origins


class TooShort(ValueError):
    """No window can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSeries:
    team: str
    treatment: Treatment
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    pooled: Measured
    """Of what the program uses: the combination, all series together."""
    methods: Mapping[str, Measured]
    """The combination among them."""
    series: tuple[MeasuredSeries, ...]
    """Of the combination."""
    window_days: tuple[int, ...]
    """Places of the days on which the windows begin."""
    interval: tuple[float, float] | None
    """95 % of the pooled coverage, clustered by window date."""


def backtest(series: DailyPeaks, *, horizon_days: int) -> Backtest:
    """Return how good forecasts would have been. Raises TooShort where no window can be judged."""
    judged = judged_origins(series.day_count, horizon_days=horizon_days)
    if not judged or not series.names:
        raise TooShort(
            f"{series.day_count} days of {len(series.names)} series are there; expected one series and "
            f"{LEAST_DAYS + horizon_days} days: two weeks, and a window of {horizon_days} days to judge"
        )
    names = (*METHODS, COMBINED)
    rolled = roll(series, horizon_days=horizon_days, keep=names)
    windows = {name: [_judge(series, rolled, method=name, origin=origin) for origin in judged] for name in names}
    everyone = np.arange(len(series.names))
    methods = {name: measure(windows[name], columns=everyone) for name in names}
    return Backtest(
        pooled=methods[COMBINED],
        methods=methods,
        series=tuple(
            MeasuredSeries(
                team=team, treatment=treatment, measured=measure(windows[COMBINED], columns=everyone[[place]])
            )
            for place, (team, treatment) in enumerate(zip(series.names, series.treatments(), strict=True))
        ),
        window_days=judged,
        interval=clustered_interval([covered_of(each) for each in windows[COMBINED]]),
    )


def covered_of(window: Judged) -> Floats:
    """Return a 1 for each series whose peak the bound held, a 0 for the others that were there."""
    is_there = ~np.isnan(window.bound) & ~np.isnan(window.came).any(axis=0)
    return np.asarray((window.bound >= window.came.max(axis=0))[is_there], dtype=np.float64)


def _judge(series: DailyPeaks, rolled: Rolled, *, method: str, origin: int) -> Judged:
    outlook = Outlook(rolled, method=method, number=rolled.origins.places.index(origin))
    cap = series.caps_at(origin)
    return Judged(
        origin=origin,
        came=series.gpus[origin : origin + rolled.origins.horizon_days],
        told=np.minimum(outlook.day_quantiles(DAY_QUANTILES), cap),
        bound=np.minimum(outlook.peak_quantiles([BOUND])[0], cap),
        weekly_change=weekly_change(series.gpus[:origin]),
    )
