"""How likely and by how much the peak of a week exceeds what is usable. Demand and supply are taken as independent.

GPU-hours follow a profile of the week: hours near each day's peak, and how high each day's peak is beside the week's.
Hours near a peak count as at the peak; the others count with `rest_ratio`, or not at all where it is not known: then
hours short are told too small where a shortage is deep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ops_pipelines.domain.capacity.outlook import SupplyPoint, SupplyWeek, WeekPeak
from ops_pipelines.domain.capacity.plan import ShortWeek
from ops_pipelines.domain.capacity.tails import Tail, chance_short, mean_short

_DAYS = 7
_HOURS = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DayProfile:
    """How demand runs within a week, over its peak."""

    near_peak_hours: float
    """Of a day: hours within 10 % of the day's peak."""
    day_ratios: tuple[float, ...] = (1.0,) * _DAYS
    """Each day's peak over the week's; the highest is 1."""
    rest_ratio: float | None = None
    """Demand of the day's other hours over its peak; None: not known, they are counted neither short nor idle."""

    def __post_init__(self) -> None:
        if not 0 < self.near_peak_hours <= _HOURS:
            raise ValueError(f"{self.near_peak_hours:g} hours near the peak of a day; expected more than 0, at most 24")
        if len(self.day_ratios) != _DAYS or max(self.day_ratios) != 1 or min(self.day_ratios) < 0:
            raise ValueError(f"ratios of days are {self.day_ratios}; expected seven of 0 to 1, the highest 1")
        if self.rest_ratio is not None and not 0 <= self.rest_ratio <= 1:
            raise ValueError(f"other hours want {self.rest_ratio:g} of the peak; expected 0 to 1, or nothing")

    @property
    def parts(self) -> tuple[tuple[float, float], ...]:
        """Return hours of the week and their demand over the week's peak; equal ones together, rising."""
        hours: dict[float, float] = {}
        for ratio in self.day_ratios:
            hours[ratio] = hours.get(ratio, 0.0) + self.near_peak_hours
            if self.rest_ratio is not None and self.near_peak_hours < _HOURS:
                rest = ratio * self.rest_ratio
                hours[rest] = hours.get(rest, 0.0) + _HOURS - self.near_peak_hours
        return tuple((hours[ratio], ratio) for ratio in sorted(hours))

    @property
    def counted_hours(self) -> float:
        """Return how many hours of a week are counted at all."""
        return math.fsum(hours for hours, _ in self.parts)


def short_hours(tail: Tail, points: Sequence[SupplyPoint], profile: DayProfile, *, demand_ratio: float = 1.0) -> float:
    """Return the GPU-hours of one week that are wanted and not there, in the mean."""
    return math.fsum(
        hours * mean_short(tail, points, demand_ratio=ratio * demand_ratio) for hours, ratio in profile.parts
    )


def judge_week(peak: WeekPeak, supply: SupplyWeek, profile: DayProfile) -> ShortWeek:
    """Return how short the week is. Raises ValueError if the two are not of the same week."""
    if peak.first_day != supply.first_day:
        raise ValueError(
            f"demand of the week of {peak.first_day} and supply of the week of {supply.first_day}; expected one week"
        )
    tail = Tail(peak)
    return ShortWeek(
        gpu_type=supply.gpu_type,
        first_day=peak.first_day,
        shortage_probability=chance_short(tail, supply.points),
        expected_short_gpus=mean_short(tail, supply.points),
        expected_short_gpu_hours=short_hours(tail, supply.points, profile),
    )


def first_short(is_short: Sequence[bool], *, least_short_weeks: int) -> int | None:
    """Return the first short week of which, with the three after it, so many are short; None: there is none.

    Near the end of the horizon fewer weeks are known: then all that are known must be, at most so many.
    """
    for place, short in enumerate(is_short):
        ahead = is_short[place : place + 4]
        if short and sum(ahead) >= min(least_short_weeks, len(ahead)):
            return place
    return None
