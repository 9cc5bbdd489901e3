"""Forecasts of peaks: how often the 90 % bound holds, what it costs, how far off the days are, how fast it is.

Made-up series have a truth that is known (`bench.forecast_series`); Helios Earth and Philly are public traces
(`../shared/data`, left out where absent). Each method is beside the others under the same calibration. Peers stand
beside it where they are installed. Run it with `python -m bench.forecast`; it returns 1 where a promise is broken.
"""

import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.forecast_peers import compare
from bench.forecast_peers import lines as peer_lines
from bench.forecast_series import MadeUp, day_to_day, make_up
from bench.forecast_weeks import by_distance, is_kept
from bench.forecast_weeks import lines as week_lines
from ops_pipelines.capacity.forecast.backtest import Backtest, backtest
from ops_pipelines.capacity.forecast.methods import COMBINED, LAST_VALUE, SEASONAL_NAIVE
from ops_pipelines.capacity.forecast.recorded_peaks import read_peaks
from ops_pipelines.capacity.forecast.windows import DailyPeaks, judged_origins

DATA = Path(__file__).parents[2] / "shared" / "data"
PUBLIC = (
    ("helios_earth", "UTC"),
    ("helios_earth", "Asia/Shanghai"),
    ("philly", "UTC"),
    ("philly", "America/Los_Angeles"),
)
_SEED = 2_026
"""Of the numbers in the docs. The model was worked out on seed 1."""
_SERIES, _DAYS, _AHEAD = 520, 1_275, 182
_LEAST_WINDOWS = 2_000
_HELD = (0.88, 0.92)
_MOST_OF_NAIVE, _MOST_OF_BEST, _MOST_OF_BEST_PUBLIC = 0.80, 0.95, 1.02
_MOST_SECONDS, _MOST_BYTES, _MOST_IMPORT_SECONDS = 60.0, 1_000_000_000, 0.3


def _say(words: str) -> None:
    Console(highlight=False).print(words, markup=False, soft_wrap=True)


def main() -> int:
    kept = [_made_up(), _weeks(), *_public(), _speed(), _import()]
    _peers()
    return 0 if all(kept) else 1


def _made_up() -> bool:
    drawn = make_up(series_count=_SERIES, day_count=_DAYS, seed=_SEED)
    series = DailyPeaks(
        names=tuple(f"team-{number}" for number in range(_SERIES)),
        first_day=date(2023, 1, 1),
        gpus=drawn.gpus,
        cap_gpus=drawn.cap_gpus,
    )
    found = backtest(series, horizon_days=_AHEAD)
    _table(f"{_SERIES} made-up series, {_AHEAD} days ahead, day to day {day_to_day(drawn.gpus):.2f} of the mean", found)
    ours, wql = found.pooled, {name: each.wql or 0.0 for name, each in found.methods.items()}
    of_naive, of_best = wql[COMBINED] / wql[SEASONAL_NAIVE], wql[COMBINED] / min(wql[SEASONAL_NAIVE], wql[LAST_VALUE])
    _say(
        f"WQL {of_naive:.3f} of seasonal naive's (promised {_MOST_OF_NAIVE}), {of_best:.3f} of the better simple one's"
    )
    _say(f"who knows each team's lasting level at the origin, and nothing after it: {_frozen_truth(drawn):.3f} of MAE")
    return (
        ours.origins >= _LEAST_WINDOWS
        and _HELD[0] <= (ours.peak_coverage_90 or 0.0) <= _HELD[1]
        and of_naive <= _MOST_OF_NAIVE
        and of_best <= _MOST_OF_BEST
        and _is_tighter(found)
    )


def _frozen_truth(drawn: MadeUp) -> float:
    """Return the absolute error of the last week's truth, reported again and again, over seasonal naive's."""
    truth = naive = 0.0
    week = np.arange(_AHEAD) % 7
    for origin in judged_origins(_DAYS, horizon_days=_AHEAD):
        came = drawn.gpus[origin : origin + _AHEAD]
        is_there = ~np.isnan(came).any(axis=0) & ~np.isnan(drawn.gpus[origin - 7])
        past = slice(origin - 7, origin)
        truth += float(np.abs(came - drawn.lasting[past][week])[:, is_there].sum())
        naive += float(np.abs(came - drawn.gpus[past][week])[:, is_there].sum())
    return truth / naive


def _public() -> list[bool]:
    kept = []
    for name, timezone in PUBLIC:
        file = DATA / name / "hourly_gpu_by_team.parquet"
        if not file.is_file():
            _say(f"\n{name} is left out: the public trace is not here")
            continue
        found = backtest(read_peaks(file, timezone=timezone).series, horizon_days=7)
        _table(f"{name}, days of {timezone}, 7 days ahead", found)
        wql = {method: each.wql or 0.0 for method, each in found.methods.items()}
        of_best = wql[COMBINED] / min(wql[SEASONAL_NAIVE], wql[LAST_VALUE])
        low, high = found.interval or (0.0, 1.0)
        _say(f"WQL {of_best:.3f} of the better simple one's (promised {_MOST_OF_BEST_PUBLIC})")
        kept.append(of_best <= _MOST_OF_BEST_PUBLIC and low <= 0.9 <= high and _is_tighter(found))
    return kept


def _is_tighter(found: Backtest) -> bool:
    naive = found.methods[SEASONAL_NAIVE].bound_to_peak_ratio or 0.0
    return (found.pooled.bound_to_peak_ratio or 0.0) < naive


def _table(title: str, found: Backtest) -> None:
    _say(f"\n{title}\n\n| method | MASE | WQL | 90 % bound held | bound / peak | windows |")
    _say("| --- | --- | --- | --- | --- | --- |")
    for name, each in found.methods.items():
        _say(
            f"| {name} | {each.mase:.3f} | {each.wql:.4f} | {each.peak_coverage_90:.3f} | "
            f"{each.bound_to_peak_ratio:.2f} | {each.origins} |"
        )
    if found.rule.bound_to_peak_ratio is not None:
        _say(
            f"\n{found.rule.times:.2f} times the highest of four weeks, a factor chosen afterwards, would have held as "
            f"often: bound / peak {found.rule.bound_to_peak_ratio:.2f}"
        )
    if found.interval is not None:
        low, high = found.interval
        _say(f"\ncombined holds in {found.pooled.peak_coverage_90:.3f}; 95 % interval {low:.2f} to {high:.2f}, by date")


# --- cost ---------------------------------------------------------------------------------------------------------

_FORECAST = """
import resource, time
from datetime import date
from bench.forecast_series import make_up
from ops_pipelines.capacity.model import LEVELS
from ops_pipelines.capacity.forecast.by_week import forecast_weeks
from ops_pipelines.capacity.forecast.windows import without_caps
gpus = make_up(series_count=500, day_count=1095, seed=7).gpus
series = without_caps([str(number) for number in range(500)], date(2023, 1, 1), gpus)
started = time.perf_counter()
forecast_weeks(series, weeks=52, levels=LEVELS)
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
_IMPORT = """
import time, pandas
started = time.perf_counter()
import ops_pipelines.capacity.forecast.backtest
print(time.perf_counter() - started)
"""


def _speed() -> bool:
    seconds, most = map(float, _run(_FORECAST).split())
    _say(f"\n500 series, 3 years, 52 weeks: {seconds:.1f} s (promised {_MOST_SECONDS:g})")
    _say(f"memory {most / 1e6:.0f} MB (promised {_MOST_BYTES / 1e6:g})")
    return seconds <= _MOST_SECONDS and most <= _MOST_BYTES


def _import() -> bool:
    seconds = min(float(_run(_IMPORT)) for _ in range(3))
    _say(f"import above pandas: {seconds:.2f} s (promised {_MOST_IMPORT_SECONDS:g})")
    return seconds <= _MOST_IMPORT_SECONDS


def _run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


# --- single weeks, and peers ----------------------------------------------------------------------------------------


def _weeks() -> bool:
    teams, sums = by_distance(series_count=_SERIES, day_count=_DAYS, weeks=_AHEAD // 7, seed=_SEED)
    for title, found in (("single weeks ahead", teams), ("single weeks of sums of ten teams", sums)):
        _say(f"\n{title}\n")
        for line in week_lines(found):
            _say(line)
    return is_kept(teams)


def _peers() -> None:
    rows, left_out = compare(series_count=60, day_count=_DAYS, ahead=_AHEAD, seed=_SEED)
    _say("\npeers, one window of 26 weeks\n")
    for line in peer_lines(rows, left_out):
        _say(line)


if __name__ == "__main__":
    sys.exit(main())
