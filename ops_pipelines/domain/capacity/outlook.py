"""What is expected of one series week by week, and what will be usable: distributions as points. Values.

A distribution of peaks is its quantiles on a fixed grid of levels; between two a straight line, beyond the ends flat.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from ops_pipelines.core.proposal import GpuType
from ops_pipelines.domain.capacity.resources import SeriesKey

LEVELS = (0.01, 0.025, *(round(0.05 * number, 2) for number in range(1, 20)), 0.975, 0.99)
"""The levels at which peaks of weeks are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekPeak:
    """The peak of one series in one week, as a distribution."""

    first_day: date
    """A local day; the week has seven."""
    quantiles: tuple[float, ...]
    """At `LEVELS`, never falling; in the resource's unit."""
    is_vouched: bool
    """Whether past windows of this distance were over, so that the width is measured; False: drawn further."""

    def at(self, level: float) -> float:
        """Return the peak that is not exceeded with this probability."""
        place = bisect_right(LEVELS, level)
        if place == 0:
            return self.quantiles[0]
        if place == len(LEVELS):
            return self.quantiles[-1]
        below, above = LEVELS[place - 1], LEVELS[place]
        share = (level - below) / (above - below)
        return self.quantiles[place - 1] * (1 - share) + self.quantiles[place] * share


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOutlook:
    """One series, week by week."""

    key: SeriesKey
    treatment: str
    """Value of `frames.forecast.daily_peaks.Treatment`: ordinary, new, short, near_idle, zero, no_days."""
    weeks: tuple[WeekPeak, ...]
    """Nothing where nothing can be said; `notes` say why."""
    notes: tuple[str, ...] = ()
    """What was done to its days, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyPoint:
    """One of the amounts of GPUs that may be usable in a week."""

    gpus: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyWeek:
    """What will be usable of one type of GPU in one week."""

    gpu_type: GpuType
    first_day: date
    installed: float
    """With what has come by then and without what has gone, each as likely as it is."""
    points: tuple[SupplyPoint, ...]
    """Probabilities add up to 1, amounts rise."""

    @property
    def mean_gpus(self) -> float:
        return sum(each.gpus * each.probability for each in self.points)


def by_key(outlooks: Sequence[SeriesOutlook]) -> dict[SeriesKey, SeriesOutlook]:
    return {each.key: each for each in outlooks}
