"""What teams have announced, and the hardware that comes and goes, as a site states them.

What all of them together add to a week's peak, as a distribution and not as one number, is `project_mix`'s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from statistics import NormalDist

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType, TeamName

# -- what a team has stated it will need, from one day to another --


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One project of one team, for one type of GPU."""

    name: str
    team: TeamName
    gpus: float
    """What it will want while it lasts."""
    begins_on: date
    """A local day, as `ends_on`."""
    ends_on: date | None = None
    """The first day without it; None: no end is known."""
    gpu_type: GpuType = GpuType("")
    probability: float = 1.0
    """How likely it comes about as stated."""

    def __post_init__(self) -> None:
        if isinstance(self.begins_on, datetime) or isinstance(self.ends_on, datetime):
            raise ValueError(f"{self.words} has a time of day; expected days")
        if self.ends_on is not None and self.ends_on <= self.begins_on:
            raise ValueError(
                f"{self.words} begins on {self.begins_on} and ends on {self.ends_on}; expected an end on a later day"
            )
        if not self.gpus > 0 or math.isinf(self.gpus):
            raise ValueError(f"{self.words} wants {self.gpus:g} GPUs; expected more than 0, or leave it out")
        if not 0 < self.probability <= 1:
            raise ValueError(
                f"{self.words} has probability {self.probability:g}; expected more than 0, at most 1, or leave it out"
            )

    @property
    def words(self) -> str:
        """What it is called in messages."""
        return f"project {self.name} of {self.team}"

    def is_on(self, day: date) -> bool:
        """Return whether the project continues, on this day."""
        return self.begins_on <= day and (self.ends_on is None or day < self.ends_on)

    def expected_gpus(self, day: date) -> float:
        """Return what it wants on this day, on average over whether it comes about."""
        return self.gpus * self.probability if self.is_on(day) else 0.0


# -- demand that the past cannot tell --


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProject:
    """One project of one team, for one type of GPU."""

    name: str
    team: TeamName
    gpu_type: GpuType = GpuType("")
    gpus: float
    """What it will want once it has ramped up."""
    starts_on: date
    """A local day, as `ends_on`."""
    ramp_days: int = 0
    """So many days after its start it wants all of it; in between a straight line."""
    ends_on: date | None = None
    """The first day without it; None: no end is known."""
    probability: float = 1.0
    """How likely it comes about as stated."""

    def __post_init__(self) -> None:
        for day in (self.starts_on, self.ends_on):
            if isinstance(day, datetime):
                raise ValueError(f"{self.words} has a time of day; expected days")
        if self.ends_on is not None and self.ends_on <= self.starts_on:
            raise ValueError(
                f"{self.words} starts on {self.starts_on} and ends on {self.ends_on}; expected an end on a later day"
            )
        if not self.gpus > 0 or math.isinf(self.gpus):
            raise ValueError(f"{self.words} wants {self.gpus:g} GPUs; expected more than 0, or leave it out")
        if self.ramp_days < 0:
            raise ValueError(f"{self.words} ramps up in {self.ramp_days} days; expected 0 or more")
        if self.ends_on is not None and self.ramp_days > (self.ends_on - self.starts_on).days:
            raise ValueError(f"{self.words} ends before it has ramped up; expected a shorter ramp or a later end")
        if not 0 < self.probability <= 1:
            raise ValueError(
                f"{self.words} has probability {self.probability:g}; expected more than 0, at most 1, or leave it out"
            )

    @property
    def words(self) -> str:
        """What it is called in messages."""
        return f"project {self.name} of {self.team}"

    def gpus_on(self, day: date) -> float:
        """Return what it wants on this day, if it comes about; on the first day of a ramp the first part of it."""
        if day < self.starts_on or (self.ends_on is not None and day >= self.ends_on):
            return 0.0
        if (day - self.starts_on).days >= self.ramp_days:
            return self.gpus
        return self.gpus * ((day - self.starts_on).days + 1) / (self.ramp_days + 1)

    def most_in_week(self, first_day: date) -> float:
        """Return the most that it wants on a day of the week that begins on `first_day`, if it comes about."""
        return max(self.gpus_on(first_day + timedelta(days=number)) for number in range(7))


# -- what can be bought, how long it takes, what comes and what goes --


_ENOUGH_DELIVERIES = 5
_NORMAL_90 = 1.2815515655446004
"""The standard normal's quantile of 0.9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadTime:
    """From the order to the delivery, in days: log-normal through its median and its 90 % point, or as it was."""

    median_days: float
    p90_days: float
    seen_days: tuple[float, ...] = ()
    """Past deliveries; five or more take the place of the curve."""

    def __post_init__(self) -> None:
        if not 0 < self.median_days <= self.p90_days < math.inf:
            raise ValueError(
                f"a lead time has median {self.median_days:g} and 90 % point {self.p90_days:g} days; expected more "
                "than 0, and the second no smaller"
            )
        if any(not 0 < each < math.inf for each in self.seen_days):
            raise ValueError("a delivery took 0 days or less; expected more than 0")

    def days_at(self, quantile: float) -> float:
        """Return within how many days an order is there with this probability."""
        if not 0 < quantile < 1:
            raise ValueError(f"a lead time at {quantile:g} was asked for; expected more than 0, less than 1")
        if len(self.seen_days) >= _ENOUGH_DELIVERIES:
            ranked = sorted(self.seen_days)
            return ranked[min(len(ranked) - 1, math.ceil(quantile * (len(ranked) + 1)) - 1)]
        width = math.log(self.p90_days / self.median_days) / _NORMAL_90
        return self.median_days * math.exp(width * NormalDist().inv_cdf(quantile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """One kind of node that can be ordered."""

    sku: str
    gpu_type: GpuType
    gpus_per_node: int
    node_cents: Cents
    """Price of one node, delivered and put up."""
    watts_per_node: float
    """What it draws at most."""
    nodes_per_rack: int
    lead_time: LeadTime | None
    """None: nobody stated; no date can be named for it, and that is reported."""
    rack_days: int = 0
    """Putting up and cabling."""
    burn_in_days: int = 0
    support_cents_per_month: Cents = Cents(0)
    """Of one node."""
    work_ratio: float = 1.0
    """Work of one of its GPUs over that of one of the cluster's present ones of the type it replaces."""
    amortized_months: int = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Nodes that are ordered and come in service on a day."""

    sku: str
    gpu_type: GpuType
    gpus: int
    on: date
    probability: float = 1.0
    """How likely they are in service by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """Nodes that leave the cluster on a day."""

    nodes: tuple[NodeName, ...]
    gpu_type: GpuType
    gpus: int
    on: date


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreExpansion:
    """How a file system, a rack's power or a room's cooling is enlarged."""

    resource: str
    """A value of `Resource`."""
    names: tuple[str, ...]
    """Of the series that it is for; empty: for none."""
    step: float
    """What one order adds, in the resource's unit."""
    step_cents: Cents
    lead_time: LeadTime | None
    usable_ratio: float = 1.0
    """Of the limit, so much may be used: 0.85 for file systems that slow down above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RackRoom:
    """What more may be put up in one rack."""

    rack: str
    free_nodes: int
    """Places."""
    limit_watts: float | None
    """What it may draw; None: nobody stated, and only places limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySettings:
    """All that capacity.yaml says."""

    skus: Sequence[Sku] = ()
    arrivals: Sequence[Arrival] = ()
    retirements: Sequence[Retirement] = ()
    expansions: Sequence[StoreExpansion] = ()
    racks: Sequence[RackRoom] = ()
    room_limit_watts: float | None = None
    """What all racks together may draw; None: nobody stated."""
    cloud_cents_per_gpu_hour: Mapping[GpuType, Cents] = field(default_factory=dict)
    """What a GPU-hour in a cloud costs, with the moving of data; a type that is not named is not offered."""
    holidays: Sequence[date] = ()
    """Days on which less is requested; they teach a forecast nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPolicy:
    """What a site takes for enough: the section `capacity` of policy.yaml."""

    shortage_probability_max: float = 0.10
    """In no week may peak demand exceed what is usable with more than this."""
    horizon_weeks: int = 52
    lead_time_quantile: float = 0.9
    """An order must be there in time with this probability."""
    least_short_weeks: int = 2
    """So many weeks of the next four must be short before a week counts as the first: one bad week is no order."""
    regret_ratios: tuple[float, ...] = (3.0, 5.0, 10.0)
    """What a GPU-hour that is short costs, over one that is idle."""
    refresh_after_months: int = 60
    """Older hardware is due for replacement."""
    network_ratio_max: float = 0.8
    """Above this share of their rate links count as full."""
