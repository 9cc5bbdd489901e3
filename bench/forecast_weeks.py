"""Single weeks far ahead: how often bounds of a week's peak hold, by distance, on made-up series and sums of them.

From each origin a quarter apart, weeks that were over then are all that is known. Weeks of one distance never overlap.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from bench.forecast_series import hierarchy, make_up
from ops_pipelines.capacity.forecast.by_week import WEEK_DAYS, pass_over, told_at, vouched_at
from ops_pipelines.capacity.forecast.windows import IDLE_BELOW_GPUS, DailyPeaks, with_sums

_QUARTER_WEEKS = 13
_FIRST_DAYS = 270
_TEAMS_OF_A_SUM = 10
HELD = (0.88, 0.92)
LEAST_WEEKS = 2_000
SHOWN = (1, 2, 4, 8, 13, 20, 26)
_LEVELS = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """All weeks that were so many weeks ahead."""

    count: int
    held_ratios: tuple[float, ...]
    """At each of the levels."""
    bound_to_peak_ratio: float
    """Median of the 90 % bound over the peak; of weeks with a peak of a node or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    by_weeks: Mapping[int, Distance]
    every: Distance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    held: NDArray[np.bool_]
    """(level, week that came)."""
    ratios: NDArray[np.float64]


def by_distance(*, series_count: int, day_count: int, weeks: int, seed: int) -> tuple[Held, Held]:
    """Return what held of the series, and of sums of ten of them each."""
    drawn = make_up(series_count=series_count, day_count=day_count, seed=seed)
    names = tuple(f"team-{number}" for number in range(series_count))
    series = DailyPeaks(names=names, first_day=date(2023, 1, 1), gpus=drawn.gpus, cap_gpus=drawn.cap_gpus)
    firsts = range(0, series_count, _TEAMS_OF_A_SUM)
    tree = hierarchy(names, {f"sum-{first}": names[first : first + _TEAMS_OF_A_SUM] for first in firsts})
    whole = with_sums(series, tree)
    is_sum = np.arange(len(whole.names)) >= series_count
    passed = pass_over(whole, weeks=weeks)
    teams: dict[int, list[_Judged]] = {week: [] for week in range(weeks)}
    sums: dict[int, list[_Judged]] = {week: [] for week in range(weeks)}
    for number, place in enumerate(passed.origins.places):
        if place < _FIRST_DAYS or place + weeks * WEEK_DAYS > day_count or (place // WEEK_DAYS) % _QUARTER_WEEKS:
            continue
        vouched = vouched_at(passed, number=number, weeks=weeks)
        told = told_at(passed, whole, number=number, weeks=weeks, levels=_LEVELS, vouched=vouched, tree=tree)
        for week in range(weeks):
            came = whole.gpus[place + week * WEEK_DAYS : place + (week + 1) * WEEK_DAYS].max(axis=0)
            teams[week].append(_judge(came[~is_sum], told[:, week, ~is_sum]))
            sums[week].append(_judge(came[is_sum], told[:, week, is_sum]))
    return _held(teams), _held(sums)


def _judge(came: NDArray[np.float64], told: NDArray[np.float64]) -> _Judged:
    is_there = ~np.isnan(came) & ~np.isnan(told[0])
    is_large = is_there & (came >= IDLE_BELOW_GPUS)
    return _Judged(held=(came <= told)[:, is_there], ratios=told[-1, is_large] / came[is_large])


def _held(judged: Mapping[int, Sequence[_Judged]]) -> Held:
    return Held(
        by_weeks={week + 1: _distance(own) for week, own in judged.items()},
        every=_distance([each for own in judged.values() for each in own]),
    )


def _distance(judged: Sequence[_Judged]) -> Distance:
    held = np.concatenate([each.held for each in judged], axis=1)
    return Distance(
        count=held.shape[1],
        held_ratios=tuple(held.mean(axis=1).tolist()),
        bound_to_peak_ratio=float(np.median(np.concatenate([each.ratios for each in judged]))),
    )


def lines(found: Held) -> list[str]:
    """Return the table."""
    told = ["| weeks ahead | weeks | 10 % held | 50 % held | 90 % bound held | bound / peak |"]
    told.append("| --- | --- | --- | --- | --- | --- |")
    rows = [*((str(week), found.by_weeks[week]) for week in SHOWN if week in found.by_weeks)]
    for name, each in (*rows, (f"all 1 to {max(found.by_weeks)}", found.every)):
        ratios = " | ".join(f"{ratio:.3f}" for ratio in each.held_ratios)
        told.append(f"| {name} | {each.count} | {ratios} | {each.bound_to_peak_ratio:.2f} |")
    return told


def is_kept(found: Held) -> bool:
    """Return what is promised of series: enough weeks, and the 90 % bound as often right as it says."""
    return found.every.count >= LEAST_WEEKS and HELD[0] <= found.every.held_ratios[-1] <= HELD[1]


def main() -> int:
    from rich.console import Console

    teams, sums = by_distance(series_count=520, day_count=1_275, weeks=26, seed=2_026)
    for line in (*lines(teams), "", *lines(sums)):
        Console(highlight=False).print(line, markup=False, soft_wrap=True)
    return 0 if is_kept(teams) else 1


if __name__ == "__main__":
    sys.exit(main())
