"""Peers of the forecast on the same made-up series and the same window: statsmodels' damped ETS and Prophet.

Both are optional: who is not installed is left out by name, and nothing of the program depends on them. Each says a
path and, by its own 90 % prediction band, the highest day that it expects; ours says the bound on the window's peak.
The 90 % band is two-sided for Prophet (`interval_width=0.8`: its upper edge is the 90 % quantile) and the 0.9 quantile
of 200 simulated paths for ETS: of their days, and of their maxima, which is what a peak needs.
"""

import importlib
import importlib.util
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from bench.forecast_series import make_up
from ops_pipelines.capacity.forecast.methods import COMBINED
from ops_pipelines.capacity.forecast.outlook import Outlook, roll
from ops_pipelines.capacity.forecast.windows import without_caps

Floats = NDArray[np.float64]
_FIRST_DAY = date(2023, 1, 1)
_PATHS = 200
_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Foretold:
    """One series, one window."""

    days: Floats
    """(quantile of `_QUANTILES`, day)."""
    peak_90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow:
    name: str
    wql_of_naive: float
    """Weighted quantile loss of the days over seasonal naive's, whose quantiles are one number."""
    held_ratio: float
    """How often the bound held the window's peak."""
    bound_to_peak_ratio: float
    series: int
    seconds: float


def compare(*, series_count: int, day_count: int, ahead: int, seed: int) -> tuple[list[PeerRow], list[str]]:
    """Return a row for ours and each peer that is installed, over one window, and who is left out."""
    drawn = make_up(series_count=series_count, day_count=day_count, seed=seed)
    origin = day_count - ahead
    past, came = drawn.gpus[:origin], drawn.gpus[origin:]
    judged = np.flatnonzero(~np.isnan(past[origin - 365]) & (np.nanmin(past, axis=0) > 0)).tolist()
    rows = [_row("ours", past, came, judged, told_by=_ours(past, ahead=ahead))]
    left_out = []
    for name, module, fit in (("statsmodels ETS", "statsmodels", _ets), ("Prophet", "prophet", _prophet)):
        if importlib.util.find_spec(module) is None:
            left_out.append(name)
            continue
        rows.append(_row(name, past, came, judged, told_by=_one_by_one(past, fit=fit, ahead=ahead)))
    return rows, left_out


Teller = Callable[[list[int]], list[Foretold]]


def _row(name: str, past: Floats, came: Floats, judged: list[int], *, told_by: Teller) -> PeerRow:
    begun = time.perf_counter()
    told = told_by(judged)
    seconds = time.perf_counter() - begun
    loss = naive = 0.0
    for each, column in zip(told, judged, strict=True):
        loss += _loss(each.days, came[:, column])
        last_week = past[-7:, column][np.arange(len(came)) % 7]
        naive += _loss(np.stack([last_week] * len(_QUANTILES)), came[:, column])
    peaks = came[:, judged].max(axis=0)
    bounds = np.array([each.peak_90 for each in told])
    return PeerRow(
        name=name,
        wql_of_naive=loss / naive,
        held_ratio=float((peaks <= bounds).mean()),
        bound_to_peak_ratio=float(np.median(bounds / peaks)),
        series=len(judged),
        seconds=seconds,
    )


def _loss(days: Floats, came: Floats) -> float:
    missed = came - days
    levels = np.array(_QUANTILES)[:, None]
    return float(np.maximum(levels * missed, (levels - 1) * missed).sum())


def _ours(past: Floats, *, ahead: int) -> Teller:
    def tell(judged: list[int]) -> list[Foretold]:
        series = without_caps([str(number) for number in range(past.shape[1])], _FIRST_DAY, past)
        rolled = roll(series, horizon_days=ahead, keep=(COMBINED,))
        outlook = Outlook(rolled, method=COMBINED, number=len(rolled.origins.places) - 1)
        days, peaks = outlook.day_quantiles(_QUANTILES), outlook.peak_quantiles((0.9,))
        return [Foretold(days=days[:, :, column], peak_90=float(peaks[0, column])) for column in judged]

    return tell


def _one_by_one(past: Floats, *, fit: Callable[[Floats, int], Foretold], ahead: int) -> Teller:
    return lambda judged: [fit(past[~np.isnan(past[:, column]), column], ahead) for column in judged]


def _ets(past: Floats, ahead: int) -> Foretold:
    smoothing = importlib.import_module("statsmodels.tsa.holtwinters").ExponentialSmoothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of each series that it could not fit to the last digit.
        fitted = smoothing(past, trend="add", damped_trend=True, seasonal="add", seasonal_periods=7).fit()
        paths = np.asarray(
            fitted.simulate(ahead, repetitions=_PATHS, random_state=np.random.default_rng(7)), dtype=np.float64
        )
    days = np.quantile(paths, _QUANTILES, axis=1)
    days[1] = np.asarray(fitted.forecast(ahead))
    return Foretold(days=np.maximum(days, 0.0), peak_90=float(np.quantile(paths.max(axis=0), 0.9)))


def _prophet(past: Floats, ahead: int) -> Foretold:
    for name in ("prophet", "cmdstanpy"):
        logging.getLogger(name).setLevel(logging.ERROR)  # A line for each series.
    frames = importlib.import_module("pandas")
    model = importlib.import_module("prophet").Prophet(interval_width=0.8, uncertainty_samples=_PATHS)
    dates = frames.date_range(_FIRST_DAY, periods=len(past) + ahead)
    model.fit(frames.DataFrame({"ds": dates[: len(past)], "y": past}), seed=7)
    np.random.seed(7)  # Prophet draws its paths from numpy's global state.
    drawn = np.asarray(model.predictive_samples(frames.DataFrame({"ds": dates[len(past) :]}))["yhat"])
    days = np.quantile(drawn, _QUANTILES, axis=1)
    return Foretold(days=np.maximum(days, 0.0), peak_90=float(np.quantile(drawn.max(axis=0), 0.9)))


def lines(rows: list[PeerRow], left_out: list[str]) -> list[str]:
    """Return the table, and who is not in it."""
    told = ["| who | WQL of seasonal naive's | 90 % bound held the peak | bound / peak | series | seconds |"]
    told.append("| --- | --- | --- | --- | --- | --- |")
    told += [
        f"| {row.name} | {row.wql_of_naive:.3f} | {row.held_ratio:.3f} | {row.bound_to_peak_ratio:.2f} | "
        f"{row.series} | {row.seconds:.1f} |"
        for row in rows
    ]
    return told + [f"{name} is left out: it is not installed, and nothing here depends on it" for name in left_out]
