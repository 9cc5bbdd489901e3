"""Capacity as values: series and quarters, peaks by week, and the forecast, plan and report of a quarter.

A distribution of peaks is its quantiles on a fixed grid of levels; between two a straight line, beyond the ends flat.
Reports are kept as JSON and shown as pages; every number has its unit in its name.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum

from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import PlannedProject

# -- what is counted for capacity --


class Resource(Enum):
    """What a series is of. Its unit is the base unit; what is behind `name` of a series is reported at each."""

    GPUS = "gpus"
    """Requested: running and pending. Name: the team; empty: all teams together."""
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
"""The levels at which peaks of weeks are given."""


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
    """Nothing where nothing can be stated; `notes` say why."""
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
    """Return how likely a week is short; beyond the outermost levels of a peak no difference is shown."""
    if probability < LEVELS[0]:
        return f"at most {percent(LEVELS[0])}"
    if probability > LEVELS[-1]:
        return f"at least {percent(LEVELS[-1])}"
    return percent(probability)


def against(ratio: float, limit: float) -> str:
    """Return a probability and the limit it is held against, such as `with 10.3 %, limit 10 %`.

    The limit is reported as people wrote it.
    """
    is_near = abs(ratio - limit) < _NEAR or not _NEAR <= limit <= 1 - _NEAR
    told = f"{100 * ratio:.4g} %" if is_near else percent(ratio)
    return f"with {told}, limit {100 * limit:g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityForecast:
    """What will be requested and what will be usable, week by week: the asset `capacity_forecast`."""

    cluster: str
    quarter: str
    """Such as 2026Q4: the quarter in which it is made."""
    as_of: date
    """The first local day that was not known."""
    timezone: str
    outlooks: tuple[SeriesOutlook, ...]
    """As the past alone has it. GPUs by team and of all teams (`name` empty), and the further resources."""
    with_projects: tuple[SeriesOutlook, ...]
    """GPUs of all teams, by type, with planned projects: the fan."""
    supply: tuple[SupplyWeek, ...]
    projects: tuple[PlannedProject, ...]
    vouched_weeks: int
    """So many weeks ahead the width is measured on past windows."""
    notes: tuple[str, ...]
    """What was done to inputs, what is censored, what is assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortWeek:
    """One week of one type of GPU."""

    gpu_type: GpuType
    first_day: date
    shortage_probability: float
    """That the week's peak exceeds what is usable."""
    expected_short_gpus: float
    """At the peak: mean of demand less supply where that is above 0."""
    expected_short_gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderLine:
    """What is to be ordered of one thing, by when; the row of the table that a director reads."""

    what: str
    """SKU, or what is enlarged."""
    gpu_type: GpuType | None
    """None: storage, power, cooling, links."""
    series: SeriesKey
    short_from: date | None
    """First day of the first week in which the policy's limit is passed; None: not within the horizon."""
    order_by: date | None
    """None: nothing to order, or no lead time is known; `why` says which."""
    is_overdue: bool
    """The date lies before the forecast's."""
    earliest_relief: date | None
    """If it is ordered today, so early it is in service, with the policy's lead-time quantile."""
    count: int
    """Nodes, or steps."""
    cents: Cents | None
    """None: no price is known."""
    why: str
    """In words and numbers."""


class Way(Enum):
    """What can be done about a shortage."""

    NOTHING = "nothing"
    BUY = "buy"
    CLOUD = "burst to cloud"
    BRIDGE = "buy, cloud until then"
    QUOTAS = "quota change"
    EFFICIENCY = "efficiency advice taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What one way out would do for one type of GPU over the horizon."""

    gpu_type: GpuType
    way: Way
    gpus: float
    """Bought, rented at most, moved, or saved; where nodes are bought and others rented until then, what is bought."""
    worst_shortage_probability: float
    """Of the weeks of the horizon from when it takes effect."""
    short_gpu_hours: float
    """Expected, over the horizon."""
    cents: Cents | None
    """Over the horizon; None: no price is known."""
    takes_effect_on: date | None
    said: str
    """What it rests on, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretRow:
    """One number of nodes that might be ordered, and what it is expected to cost."""

    gpu_type: GpuType
    nodes: int
    short_gpu_hours: float
    idle_gpu_hours: float
    cents_by_ratio: tuple[Cents, ...]
    """Expected cost of both at each of the policy's ratios, over the horizon."""
    regret_by_ratio: tuple[Cents, ...]
    """Over the best row's at that ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshLine:
    """One batch of hardware against its replacement."""

    asset: str
    racks: tuple[str, ...]
    gpu_type: GpuType
    gpus: int
    age_months: float | None
    failures_per_node_year: float | None
    """Incidents that took a node out; None: nothing was recorded."""
    fleet_failures_per_node_year: float | None
    watts_per_gpu: float | None
    cents_per_work_hour: float | None
    """Keeping it: energy, support, hours lost to failures and what is still to be paid off, for the work that one of
    its GPUs does in an hour; in cents. None: no prices."""
    replacement: str
    """SKU; empty: none is named for its type."""
    replacement_cents_per_work_hour: float | None
    """For the same work, capex included."""
    is_due: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLimit:
    """What a further resource may not pass, in the unit of its series."""

    series: SeriesKey
    limit: float
    """Size, rate or watts."""
    usable: float
    """The part of it that may be used; passing it counts as short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What follows from a forecast: the asset `capacity_plan`."""

    cluster: str
    quarter: str
    as_of: date
    currency: str
    """Empty: no prices are stated."""
    short_weeks: tuple[ShortWeek, ...]
    orders: tuple[OrderLine, ...]
    """Most urgent first."""
    alternatives: tuple[Alternative, ...]
    regret: tuple[RegretRow, ...]
    refresh: tuple[RefreshLine, ...]
    shortage_probability_max: float
    regret_ratios: tuple[float, ...]
    notes: tuple[str, ...]
    limits: tuple[SeriesLimit, ...] = ()
    """Of each further resource that was judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundHeld:
    """How one past bound did: stated in an earlier forecast of a week that is over."""

    key: SeriesKey
    first_day: date
    lead_weeks: int
    """How many weeks ahead it was reported; 1 is the next."""
    median: float
    bound_90: float
    peak: float

    @property
    def is_held(self) -> bool:
        return self.peak <= self.bound_90


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """How the last forecast did."""

    quarter: str
    as_of: date
    is_kept: bool
    """False: nothing was kept from then; made now from the days before `as_of` alone, as it would have been."""
    bounds: tuple[BoundHeld, ...]
    """Weeks that are over by now."""
    coverage_ratio: float | None
    """Share of 90 % bounds that held; None: no week is over."""
    changes: tuple[str, ...]
    """What is different in this quarter's plan, in words: dates, orders, projects, supply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReport:
    """All that the page shows."""

    forecast: CapacityForecast
    plan: CapacityPlan
    hindsight: Hindsight | None
    """None: there is no quarter before this one, or too little was known then."""
    history: tuple[tuple[SeriesKey, tuple[tuple[date, float], ...]], ...]
    """Weekly peaks of the past, by the first day of each week; for pictures."""
    headline: tuple[str, ...]
    """At most four sentences: what a director must know."""
    assumptions: tuple[str, ...]
