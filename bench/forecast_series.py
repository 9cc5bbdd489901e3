"""Made-up daily peaks with a truth that is known: trends, steps, weeks, years, launches, caps, new and near-idle teams.

The noise is that of the public traces: there a day's peak differs from the day's before by 0.37 (Helios Earth) and 0.40
(Philly) of a team's mean, in the median of the teams; `day_to_day` says what it is here. Levels are spread over two
orders of magnitude. The truth of a day is what its peak would be without noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ops_pipelines.capacity.forecast.windows import Hierarchy

Floats = NDArray[np.float64]
WEEK = 7
YEAR = 365


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeUp:
    gpus: Floats
    """(day, series); NaN before a team is there."""
    lasting: Floats
    """The same without noise and launches: what continues, caps included."""
    cap_gpus: Floats
    """Infinite where a team has none."""


def make_up(*, series_count: int, day_count: int, seed: int) -> MadeUp:
    drawn = [_series(np.random.default_rng([seed, number]), day_count=day_count) for number in range(series_count)]
    return MadeUp(
        gpus=np.stack([each.gpus[:, 0] for each in drawn], axis=1),
        lasting=np.stack([each.lasting[:, 0] for each in drawn], axis=1),
        cap_gpus=np.array([each.cap_gpus[0] for each in drawn]),
    )


def day_to_day(gpus: Floats) -> float:
    """Return the median over series of the mean change from a day to the next, relative to their mean."""
    change = np.nanmean(np.abs(np.diff(gpus, axis=0)), axis=0)
    return float(np.median(change / np.nanmean(gpus, axis=0)))


def _series(draw: np.random.Generator, *, day_count: int) -> MadeUp:
    if draw.random() < 0.06:
        return _near_idle(draw, day_count=day_count)
    lasting = np.exp(draw.normal(np.log(60), 1.1) + _trend(draw, day_count) + _steps(draw, day_count))
    lasting *= np.exp(_year(draw, day_count)) * _week(draw, day_count)
    gpus = lasting * np.exp(_noise(draw, day_count)) * _launches(draw, day_count)
    cap = float(np.quantile(gpus, draw.uniform(0.6, 0.95))) if draw.random() < 0.2 else np.inf
    gpus = np.minimum(gpus, cap)
    if draw.random() < 0.15:
        gpus[: draw.integers(60, day_count - 300)] = np.nan
    return MadeUp(
        gpus=np.round(gpus, 2)[:, None],
        lasting=np.minimum(lasting, cap)[:, None],
        cap_gpus=np.array([np.round(cap, 2)]),
    )


def _near_idle(draw: np.random.Generator, *, day_count: int) -> MadeUp:
    gpus = np.where(draw.random(day_count) < 0.06, draw.integers(1, 8, day_count), 0).astype(np.float64)
    return MadeUp(gpus=gpus[:, None], lasting=np.zeros((day_count, 1)), cap_gpus=np.array([np.inf]))


def _trend(draw: np.random.Generator, day_count: int) -> Floats:
    """A slope that changes once in two years: growth of 12 % a year, give or take 25 %."""
    turns = np.sort(draw.integers(0, day_count, draw.poisson(day_count / 700)))
    slopes = draw.normal(0.12, 0.25, len(turns) + 1) / YEAR
    return np.cumsum(slopes[np.searchsorted(turns, np.arange(day_count), side="right")])


def _steps(draw: np.random.Generator, day_count: int) -> Floats:
    steps = np.zeros(day_count)
    for day in draw.integers(0, day_count, draw.poisson(day_count / 600)):
        steps[day:] += draw.choice([1, 1, -1]) * draw.uniform(0.15, 0.6)
    return steps


def _year(draw: np.random.Generator, day_count: int) -> Floats:
    height = draw.uniform(0.05, 0.25) if draw.random() < 0.4 else 0.0
    return height * np.sin(2 * np.pi * (np.arange(day_count) / YEAR + draw.random()))


def _week(draw: np.random.Generator, day_count: int) -> Floats:
    days = 1 + draw.normal(0, 0.04, WEEK)
    days[5:] -= draw.uniform(0, 0.5) * draw.integers(0, 2)
    return np.asarray(days[(np.arange(day_count) + draw.integers(0, WEEK)) % WEEK])


def _launches(draw: np.random.Generator, day_count: int) -> Floats:
    """Some weeks of much more, once in a year and a half."""
    factor = np.ones(day_count)
    for day in draw.integers(0, day_count, draw.poisson(day_count / 500)):
        factor[day : day + draw.integers(7, 40)] *= draw.uniform(1.3, 2.2)
    return factor


def _noise(draw: np.random.Generator, day_count: int) -> Floats:
    kept, size = draw.uniform(0.2, 0.7), draw.uniform(0.28, 0.68)
    fresh = draw.normal(0, size * np.sqrt(1 - kept**2), day_count)
    noise = np.zeros(day_count)
    for day in range(1, day_count):
        noise[day] = kept * noise[day - 1] + fresh[day]
    return noise


def hierarchy(series: Sequence[str], sums: Mapping[str, Sequence[str]]) -> Hierarchy:
    """Return which of the series each sum has."""
    return Hierarchy(names=tuple(sums), is_member=np.array([[name in own for name in series] for own in sums.values()]))
