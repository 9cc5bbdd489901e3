"""What is counted for capacity, quarters, expected series as points, and probabilities in words.

A distribution of peaks is its quantiles on a fixed grid of levels; between two a straight line, beyond the ends flat.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum

from ops_pipelines.core.proposal import GpuType

# -- what is counted for capacity --


class Resource(Enum):
    """What a series is of. Its unit is the base unit; what stands behind `name` of a series is said at each."""

    GPUS = "gpus"
    """Wanted: running and pending. Name: the team; empty: all teams together."""
    GPUS_OUT = "gpus_out"
    """Installed and not in service, as the mean of a day. Name: `broken`, `maintenance`; empty: both."""
    GPUS_STRANDED = "gpus_stranded"
    """In service and free, but not to be had by jobs of whole nodes, as the mean of a day. Name: empty."""
    STORAGE_BYTES = "storage_bytes"
    """In use. Name: the file system; limit: its size."""
    NETWORK_RATIO = "network_ratio"
    """Of the links' rate, of the busiest tenth of them. Name: the leaf switch, or empty: the whole fabric; limit: 1."""
    RACK_WATTS = "rack_watts"
    """Drawn. Name: the rack; limit: what it may draw."""
    COOLING_WATTS = "cooling_watts"
    """Heat that is carried off. Name: what cools, or empty: the whole room; limit: what it can carry."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SeriesKey:
    """Which series: text alone, so that series have an order."""

    resource: str
    """A value of `Resource`."""
    gpu_type: GpuType = GpuType("")
    name: str = ""

    @property
    def kind(self) -> Resource:
        return Resource(self.resource)


# -- quarters of the calendar year, by name --


QUARTER_MONTHS = (1, 4, 7, 10)
"""The months that begin a quarter."""
_NAME = re.compile(r"([0-9]{4})Q([1-4])", re.ASCII)


def quarter_of(day: date) -> str:
    """Return the quarter in which a day lies."""
    return f"{day.year:04}Q{(day.month - 1) // 3 + 1}"


def first_day_of(quarter: str) -> date:
    """Return the first day of a quarter; raise ValueError where the name is none."""
    named = _NAME.fullmatch(quarter)
    if named is None or named[1] == "0000":
        raise ValueError(f"{quarter[:40]!r} names no quarter; expected a year and a quarter, as 2026Q4")
    return date(int(named[1]), 3 * int(named[2]) - 2, 1)


def quarter_before(quarter: str) -> str:
    """Return the quarter before; raise ValueError where the name is none, or before the first year."""
    first = first_day_of(quarter)
    if first == date.min:
        raise ValueError(f"there is no quarter before {quarter}")
    return quarter_of(first - timedelta(days=1))


# -- what is expected of one series week by week --


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
    """Value of `capacity.forecast.windows.Treatment`: ordinary, new, short, near_idle, zero, no_days."""
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


# -- probabilities and shares in words --


_NEAR = 0.01


def percent(ratio: float) -> str:
    """Return a share as percent; what is neither nothing nor all is not called so."""
    if 0 < ratio <= 0.005:
        return "below 1 %"
    if 0.995 <= ratio < 1:
        return "above 99 %"
    return f"{100 * ratio:.0f} %"


def chance_of_short(probability: float) -> str:
    """Return how likely a week is short; beyond the outermost levels of a peak nothing is told apart."""
    if probability < LEVELS[0]:
        return f"at most {percent(LEVELS[0])}"
    if probability > LEVELS[-1]:
        return f"at least {percent(LEVELS[-1])}"
    return percent(probability)


def against(ratio: float, limit: float) -> str:
    """Return a probability and the limit it is held against, such as `with 10.3 %, limit 10 %`.

    The limit is told as people wrote it.
    """
    is_near = abs(ratio - limit) < _NEAR or not _NEAR <= limit <= 1 - _NEAR
    told = f"{100 * ratio:.4g} %" if is_near else percent(ratio)
    return f"with {told}, limit {100 * limit:g} %"
