"""The forecast: quantiles of the peak of the next days, for each series and each sum, for windows of several lengths.

What was learned, how windows are laid and how bounds are calibrated is in the modules below. A window so long that none
of its length is over yet is refused by name: its bound would be a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from ops_pipelines.frames.forecast.daily_peaks import DailyPeaks, Floats, Treatment
from ops_pipelines.frames.forecast.methods import COMBINED, METHODS
from ops_pipelines.frames.forecast.outlook import Outlook
from ops_pipelines.frames.forecast.rolling import roll
from ops_pipelines.frames.forecast.sums import Hierarchy, hold_between, with_sums
from ops_pipelines.frames.forecast.windows import lay_origins

WEEK_DAYS, MONTH_DAYS, QUARTER_DAYS = 7, 30, 91
QUANTILES = (0.5, 0.8, 0.9, 0.95)
_MOST_WINDOWS = 26
"""What is older counts less than a ten-millionth of the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPeaks:
    """What is expected of one series or sum."""

    name: str
    treatment: Treatment
    peak_gpus: Mapping[int, tuple[float, ...]]
    """By window length in days: the peak at each quantile, in longer windows never lower; nothing without days."""
    weights: Mapping[str, float]
    """What each method counts in the shortest window; nothing for sums, which add up their members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakForecast:
    first_day: date
    """Of every window."""
    quantiles: tuple[float, ...]
    series: tuple[SeriesPeaks, ...]
    """The series in their order, then the sums."""
    refused: tuple[str, ...]
    """Windows that nothing is said of, and why."""


def forecast_peaks(
    series: DailyPeaks,
    *,
    horizon_days: Sequence[int] = (WEEK_DAYS, MONTH_DAYS, QUARTER_DAYS),
    quantiles: Sequence[float] = QUANTILES,
    tree: Hierarchy | None = None,
    summed_gpus: Floats | None = None,
) -> PeakForecast:
    """Return the peaks of windows that begin on the day after the last.

    `summed_gpus` are daily maxima of the tree's sums (`sums.with_sums`). A cap that a series has been above already is
    no cap. Raises ValueError for quantiles or windows that are none.
    """
    _check(horizon_days, quantiles)
    whole = series if tree is None else with_sums(series, tree, summed_gpus=summed_gpus)
    cap = whole.caps_at(whole.day_count)
    by_window: dict[int, Floats] = {}
    weights: Floats | None = None
    refused: list[str] = []
    for days in sorted(set(horizon_days)):
        origins = lay_origins(whole.day_count, horizon_days=days, most_windows=_MOST_WINDOWS)
        number = len(origins.places) - 1
        if not origins.over_at(number):
            refused.append(
                f"no peak of {days} days: {whole.day_count} days are known, and no window of that length after a first "
                f"week is over; expected {days + WEEK_DAYS} days or more"
            )
            continue
        rolled = roll(whole, horizon_days=days, keep=(COMBINED,), tree=tree, most_windows=_MOST_WINDOWS)
        found = Outlook(rolled, method=COMBINED, number=number).peak_quantiles(quantiles)
        found = np.minimum(found, cap)
        if tree is not None:
            own = len(series.names)
            found[:, own:] = hold_between(found[:, :own], found[:, own:], tree)
        # Of two windows from one day on the longer holds the shorter.
        by_window[days] = np.maximum(found, by_window[max(by_window)]) if by_window else found
        weights = rolled.weights if weights is None else weights
    return PeakForecast(
        first_day=whole.day(whole.day_count),
        quantiles=tuple(quantiles),
        series=tuple(
            _told(name, treatment, place, by_window=by_window, weights=weights)
            for place, (name, treatment) in enumerate(zip(whole.names, whole.treatments(), strict=True))
        ),
        refused=tuple(refused),
    )


def _told(
    name: str, treatment: Treatment, place: int, *, by_window: Mapping[int, Floats], weights: Floats | None
) -> SeriesPeaks:
    is_known = not any(np.isnan(each[:, place]).any() for each in by_window.values())
    is_weighed = is_known and weights is not None and place < weights.shape[1]
    own = weights[:, place].tolist() if weights is not None and is_weighed else None
    return SeriesPeaks(
        name=name,
        treatment=treatment,
        peak_gpus={days: tuple(each[:, place].tolist()) for days, each in by_window.items()} if is_known else {},
        weights={} if own is None else dict(zip(METHODS, own, strict=True)),
    )


def _check(horizon_days: Sequence[int], quantiles: Sequence[float]) -> None:
    if not horizon_days or min(horizon_days) < 1:
        raise ValueError(
            f"windows of {list(horizon_days)} days were asked for; expected one or more of 1 day or longer"
        )
    if not quantiles or list(quantiles) != sorted(set(quantiles)) or not 0 < quantiles[0] <= quantiles[-1] < 1:
        raise ValueError(f"the quantiles {list(quantiles)} were asked for; expected rising ones above 0 and below 1")
