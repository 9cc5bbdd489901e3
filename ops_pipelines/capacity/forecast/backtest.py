"""How well the next days would have been forecast: a backtest of the forecast, and its measures.

Windows that are judged never overlap; each is forecast from the days before it, and calibrated on windows that were
over when it started. A measure without anything to divide by is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ops_pipelines.capacity.forecast.methods import COMBINED, METHODS, WEEK
from ops_pipelines.capacity.forecast.outlook import Outlook, Rolled, roll
from ops_pipelines.capacity.forecast.windows import (
    LEAST_DAYS,
    DailyPeaks,
    Floats,
    Places,
    Treatment,
    judged_origins,
    look_back,
)

# -- how good forecasts were, in numbers --


DAY_QUANTILES = (0.1, 0.5, 0.9)
BOUND = 0.9
_LEAST_PEAK_GPUS = 0.5
"""A bound over a peak of nothing is no ratio."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """One window of all series; NaN where a series was not there."""

    origin: int
    came: Floats
    """(day, series), in GPUs, as all here."""
    told: Floats
    """(quantile, day, series) for `DAY_QUANTILES`."""
    bound: Floats
    """(series): of the window's peak."""
    weekly_change: Floats
    """(series): mean distance of a day before the origin from the one a week earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    mase: float | None
    wql: float | None
    peak_coverage_90: float | None
    bound_to_peak_ratio: float | None
    """Median over windows with a peak."""
    origins: int
    """Windows that were judged, of all series together."""


def measure(windows: Sequence[Judged], *, columns: Places) -> Measured:
    """Return the measures over the given series."""
    scaled: list[Floats] = []
    covered: list[Floats] = []
    ratios: list[Floats] = []
    lost = wanted = 0.0
    for each in windows:
        came, told = each.came[:, columns], each.told[:, :, columns]
        is_there = ~np.isnan(told[0, 0]) & ~np.isnan(came).any(axis=0)
        came, told = came[:, is_there], told[:, :, is_there]
        bound, change = each.bound[columns][is_there], each.weekly_change[columns][is_there]
        peak = came.max(axis=0)
        missed = np.abs(came - told[DAY_QUANTILES.index(0.5)]).mean(axis=0)
        scaled.append(missed[change > 0] / change[change > 0])
        covered.append((bound >= peak).astype(np.float64))
        is_peak = peak > _LEAST_PEAK_GPUS
        ratios.append(bound[is_peak] / peak[is_peak])
        lost += sum(
            2 * float(_pinball(came - told[row], quantile=quantile)) for row, quantile in enumerate(DAY_QUANTILES)
        ) / len(DAY_QUANTILES)
        wanted += float(came.sum())
    return Measured(
        mase=_mean(scaled),
        wql=lost / wanted if wanted else None,
        peak_coverage_90=_mean(covered),
        bound_to_peak_ratio=_median(ratios),
        origins=sum(map(len, covered)),
    )


def weekly_change(gpus: Floats) -> Floats:
    """Return each series' mean distance from a week earlier; NaN where no two such days are known."""
    change = np.abs(gpus[WEEK:] - gpus[:-WEEK])
    is_known = ~np.isnan(change)
    count = is_known.sum(axis=0)
    return np.where(count, np.where(is_known, change, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def clustered_interval(covered: Sequence[Floats]) -> tuple[float, float] | None:
    """Return the 95 % interval of a coverage from flags by (window date, series): series of one date share their luck.

    Student's t on the linearised ratio, a cluster a date. None with fewer than two dates.
    """
    known = [each for each in covered if len(each)]
    if len(known) < 2:
        return None
    total = sum(map(len, known))
    coverage = sum(float(each.sum()) for each in known) / total
    off = np.array([float(each.sum()) - coverage * len(each) for each in known])
    count = len(known)
    error = float(np.sqrt(count / (count - 1) * np.square(off).sum())) / total
    reach = _student(count - 1) * error
    return max(0.0, coverage - reach), min(1.0, coverage + reach)


_STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}


def _student(freedom: int) -> float:
    """Return t of 97.5 %; beyond ten degrees a good approximation of it."""
    return _STUDENT.get(freedom, 1.96 + 2.4 / freedom + 3.0 / freedom**2)


def _pinball(over: Floats, *, quantile: float) -> Floats:
    return np.asarray(np.where(over > 0, quantile * over, (quantile - 1) * over).sum())


def _mean(parts: Sequence[Floats]) -> float | None:
    joined = np.concatenate(parts) if parts else np.zeros(0)
    return float(joined.mean()) if len(joined) else None


def _median(parts: Sequence[Floats]) -> float | None:
    joined = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.median(joined)) if len(joined) else None


# -- a backtest --


class TooShort(ValueError):
    """No window can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSeries:
    team: str
    treatment: Treatment
    measured: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOfThumb:
    """So many times the highest day of four weeks: the rule that a forecast must beat.

    It has what no forecast has: the factor is the least with which it would have held as often as the forecast did.
    """

    times: float | None
    """None: no factor would have; where nothing was requested for four weeks it bounds by nothing."""
    bound_to_peak_ratio: float | None
    """Median over windows with a peak."""


def rule_of_thumb(series: DailyPeaks, windows: Sequence[Judged]) -> RuleOfThumb:
    """Return the rule that would have held as many of these windows as their bounds did."""
    told = []
    for each in windows:
        highest = look_back(series.gpus, origin=each.origin, horizon_days=len(each.came)).recent_peak
        row = np.stack([each.came.max(axis=0), each.bound, highest])
        told.append(row[:, ~np.isnan(row).any(axis=0)])
    came, bound, seen = np.concatenate(told, axis=1)
    held = int((bound >= came).sum())
    needed = np.sort(np.where(came > 0, came / np.where(seen > 0, seen, np.nan), 0.0))  # NaN is sorted last
    times = float(needed[held - 1]) if held else 0.0
    if np.isnan(times):
        return RuleOfThumb(times=None, bound_to_peak_ratio=None)
    is_peak = came > _LEAST_PEAK_GPUS
    return RuleOfThumb(times=times, bound_to_peak_ratio=_median([times * seen[is_peak] / came[is_peak]]))


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
    rule: RuleOfThumb


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
        rule=rule_of_thumb(series, windows[COMBINED]),
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
