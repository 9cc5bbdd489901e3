"""Series for tests of forecasts: a level, weekdays and noise, and nothing else."""

from datetime import date

import numpy as np

from ops_pipelines.capacity.forecast.windows import DailyPeaks, Floats, without_caps

FIRST_DAY = date(2026, 1, 1)


def steady(*, day_count: int, series_count: int, seed: int = 3) -> Floats:
    draw = np.random.default_rng(seed)
    levels = draw.uniform(20, 200, series_count)
    weekdays = np.where(np.arange(day_count)[:, None] % 7 < 5, 1.0, 0.6)
    return np.asarray(levels * weekdays * np.exp(draw.normal(0, 0.2, (day_count, series_count))))


def named(gpus: Floats) -> DailyPeaks:
    return without_caps([f"team-{number}" for number in range(gpus.shape[1])], FIRST_DAY, gpus)
