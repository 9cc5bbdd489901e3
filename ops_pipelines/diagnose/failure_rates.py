"""How often, and how long: rates and means with 95 % intervals, from a few events and the time that could show them.

Arithmetic only. Zero events bound a rate from above; they never make it zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

_TAIL = 0.025
"""Each side of a 95 % interval."""
_ONE_TAIL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Events over exposure, in events an hour."""

    event_count: int
    exposure_hours: float
    low: float
    high: float
    """95 % interval (Garwood); with no event `low` is 0 and `high` the one-sided bound, 3.0 over the exposure."""

    @property
    def mean_hours_between(self) -> float | None:
        """Exposure over events; None without events or exposure: then only `mean_hours_at_least` is known."""
        return self.exposure_hours / self.event_count if self.event_count and self.exposure_hours > 0 else None

    @property
    def mean_hours_at_least(self) -> float | None:
        """The lower end of the mean time between events; None without exposure."""
        return 1.0 / self.high if self.exposure_hours > 0 else None

    @property
    def mean_hours_at_most(self) -> float | None:
        """The upper end; None without events or exposure: nothing bounds it."""
        return 1.0 / self.low if self.low > 0 else None


def rate_of(event_count: int, *, exposure_hours: float) -> Rate:
    """Return the rate of a Poisson process with its exact interval; without exposure nothing is known, 0..inf.

    Raises ValueError for negative numbers.
    """
    if event_count < 0 or exposure_hours < 0 or not math.isfinite(exposure_hours):
        raise ValueError(f"found {event_count} events in {exposure_hours} hours; expected neither below 0")
    if exposure_hours <= 0:
        return Rate(event_count=event_count, exposure_hours=0.0, low=0.0, high=math.inf)
    low, high = count_bounds(event_count)
    return Rate(
        event_count=event_count,
        exposure_hours=exposure_hours,
        low=low / exposure_hours,
        high=high / exposure_hours,
    )


def count_bounds(event_count: int) -> tuple[float, float]:
    """Return between which means a Poisson count lies with 95 % (Garwood); of none, 0 and the one-sided 3.0."""
    if event_count == 0:
        return 0.0, -math.log(_ONE_TAIL)
    return _lower(event_count), _upper(event_count)


def _lower(event_count: int) -> float:
    """Return the mean of which so many events or more come with 2.5 %."""
    from scipy.special import gammaincinv

    return float(gammaincinv(event_count, _TAIL))


def _upper(event_count: int) -> float:
    """Return the mean of which so many events or fewer come with 2.5 %."""
    from scipy.special import gammainccinv

    return float(gammainccinv(event_count + 1, _TAIL))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTime:
    """How long something took on average."""

    count: int
    mean: timedelta
    low: timedelta
    high: timedelta
    """95 % interval of the mean. # Assumption: times to repair are exponential, as MTBF and MTTR models take them."""
    median: timedelta
    longest: timedelta


def mean_time_of(times: Sequence[timedelta]) -> MeanTime | None:
    """Return the mean of some times; None of none."""
    if not times:
        return None
    ordered = sorted(times)
    total = sum(ordered, timedelta())
    mean = total / len(ordered)
    # A sum of n exponential times passes x means just when a Poisson process of mean x has seen fewer than n events.
    low, high = _lower(len(ordered)), _upper(len(ordered) - 1)
    return MeanTime(
        count=len(ordered),
        mean=mean,
        low=total / high,
        high=total / low,
        median=(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2,
        longest=ordered[-1],
    )
