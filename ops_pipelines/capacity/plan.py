"""A quarter's plan: what runs short when, what to order by when, what else could be done, what each would cost. Values.

Kept as JSON and shown as a page; every number has its unit in its name.
"""

from dataclasses import dataclass
from datetime import date
from enum import Enum

from ops_pipelines.capacity.model import SeriesKey, SeriesOutlook, SupplyWeek
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import PlannedProject


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityForecast:
    """What will be wanted and what will be usable, week by week: the asset `capacity_forecast`."""

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
    """How one past bound did: said in an earlier forecast of a week that is over."""

    key: SeriesKey
    first_day: date
    lead_weeks: int
    """How many weeks ahead it was said; 1 is the next."""
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
