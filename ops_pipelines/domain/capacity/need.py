"""When a type of GPU runs short, what would be bought, and the fewest of it that keep the policy's limit.

Lead times are rounded up to whole days, and what arrives within a week counts from the next one on: the safe side. What
the answer looks like in the table is `order`'s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ops_pipelines.domain.capacity.outlook import SupplyWeek
from ops_pipelines.domain.capacity.shortage import first_short
from ops_pipelines.domain.capacity.supply import points_with_more
from ops_pipelines.domain.capacity.tails import Tail, chance_short
from ops_pipelines.teams.projects import CapacityPolicy, LeadTime, Sku

MOST_ORDERED = 100_000
"""Of nodes or steps: no more are looked for."""
_ROUNDING_DAYS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeWeek:
    """Demand and supply of one type of GPU in one week, ready for being asked."""

    first_day: date
    tail: Tail
    supply: SupplyWeek

    def chance_with(self, gpus: float) -> float:
        """Return how likely the week is short with so many more GPUs installed."""
        return chance_short(self.tail, points_with_more(self.supply, gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one type of GPU needs, before a price is put on it."""

    short_from: date | None
    """First day of the first week that counts as short; None: not within the horizon."""
    sku: Sku | None
    """What would be bought; None: no SKU is stated for the type."""
    nodes: int
    is_enough: bool
    """False: not even `MOST_ORDERED` of them keep the limit; `nodes` is 0."""
    in_service_on: date | None
    """If it is ordered on the forecast's day; None: no lead time is known."""


def days_to_serve(lead_time: LeadTime, *, quantile: float, more_days: int = 0) -> int:
    """Return the days from an order to service, in whole days, rounded up."""
    # A stated 90 % point comes back from its curve with a rounding error, which is no day.
    return math.ceil(lead_time.days_at(quantile) - _ROUNDING_DAYS) + more_days


def sku_days(sku: Sku, policy: CapacityPolicy) -> int | None:
    """Return the days from an order to service of a SKU; None: no lead time is known."""
    if sku.lead_time is None:
        return None
    return days_to_serve(sku.lead_time, quantile=policy.lead_time_quantile, more_days=sku.rack_days + sku.burn_in_days)


def find_need(weeks: Sequence[TypeWeek], skus: Sequence[Sku], *, policy: CapacityPolicy, as_of: date) -> Need:
    """Return the first short week, what to buy, and the fewest nodes with which no later week is short.

    Bought is what is in time and cheapest for a GPU; where nothing is in time, what is there first; a SKU without lead
    time comes last. Weeks count from the first in which it can serve; where that is beyond the horizon, the last week.
    """
    limit = policy.shortage_probability_max
    place = first_short([each.chance_with(0) > limit for each in weeks], least_short_weeks=policy.least_short_weeks)
    short_from = None if place is None else weeks[place].first_day
    sku = _choose(skus, policy=policy, as_of=as_of, needed_on=short_from)
    days = None if sku is None else sku_days(sku, policy)
    in_service_on = None if days is None else as_of + timedelta(days=days)
    if sku is None or short_from is None:
        return Need(short_from=short_from, sku=sku, nodes=0, is_enough=True, in_service_on=in_service_on)
    judged = [each for each in weeks if each.first_day >= (in_service_on or short_from)] or list(weeks[-1:])
    nodes = fewest(lambda count: all(each.chance_with(count * sku.gpus_per_node) <= limit for each in judged))
    return Need(
        short_from=short_from,
        sku=sku,
        nodes=nodes or 0,
        is_enough=nodes is not None,
        in_service_on=in_service_on,
    )


def fewest(is_enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number that is enough, where more is never less; None: not even `MOST_ORDERED` are."""
    if is_enough(0):
        return 0
    too_few, high = 0, 1
    while not is_enough(high):
        if high == MOST_ORDERED:
            return None
        too_few, high = high, min(2 * high, MOST_ORDERED)
    while high - too_few > 1:
        middle = (too_few + high) // 2
        if is_enough(middle):
            high = middle
        else:
            too_few = middle
    return high


def _choose(skus: Sequence[Sku], *, policy: CapacityPolicy, as_of: date, needed_on: date | None) -> Sku | None:
    def rank(sku: Sku) -> tuple[int, int, float, str]:
        days = sku_days(sku, policy)
        price = sku.node_cents / sku.gpus_per_node
        if days is None:
            return 2, 0, price, sku.sku
        if needed_on is None or as_of + timedelta(days=days) <= needed_on:
            return 0, 0, price, sku.sku
        return 1, days, price, sku.sku

    return min(skus, key=rank, default=None)
