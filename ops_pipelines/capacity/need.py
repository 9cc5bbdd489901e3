"""When a type of GPU runs short, what would be bought, and what it costs to order too few or too many.

Lead times are rounded up to whole days, and what arrives within a week counts from the next one on: the safe side. What
the answer looks like in the table is `order`'s.

Idle is what is bought and usable and not wanted; short is what is wanted and not there; both over the same hours of the
weeks from which an order of today serves. The price of an idle GPU-hour is the SKU's: price over its months, and
support; energy is not in it, for what is idle draws less. Small where ratio / (1 + ratio) of the peaks are served.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction

from ops_pipelines.capacity.chances import DayProfile, Tail, chance_short, first_short, short_hours
from ops_pipelines.capacity.model import SupplyWeek
from ops_pipelines.capacity.plan import RegretRow
from ops_pipelines.capacity.supply import points_with_more, usable_ratio
from ops_pipelines.core.money import Cents, to_cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import CapacityPolicy, LeadTime, Sku

# -- when a type of GPU runs short, what would be bought --


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


# -- what it costs to order too few or too many nodes, in the mean --


_HOURS_A_MONTH = Fraction(365 * 24, 12)
_STEPS = 12


def cents_per_gpu_hour(sku: Sku) -> Fraction:
    """Return what one GPU of the SKU costs in an hour, used or not; in cents."""
    monthly = Fraction(sku.node_cents, sku.amortized_months) + sku.support_cents_per_month
    return monthly / sku.gpus_per_node / _HOURS_A_MONTH


def counts_around(nodes: int) -> tuple[int, ...]:
    """Return 0, the number itself with its neighbours, and even steps up to twice of it; 0 to 2 for 0."""
    last = max(2, 2 * nodes)
    even = {last * number // _STEPS for number in range(_STEPS + 1)}
    return tuple(sorted(even | {nodes, nodes + 1, max(0, nodes - 1)}))


def regret_rows(
    gpu_type: GpuType,
    weeks: Sequence[TypeWeek],
    sku: Sku,
    profile: DayProfile,
    *,
    nodes: int,
    since: date,
    ratios: Sequence[float],
) -> tuple[RegretRow, ...]:
    """Return a row for each of `counts_around(nodes)`; none where no week begins on `since` or later."""
    judged = [each for each in weeks if each.first_day >= since]
    if not judged:
        return ()
    hour_cents = cents_per_gpu_hour(sku)
    counts = counts_around(nodes)
    short = [
        sum(
            short_hours(week.tail, points_with_more(week.supply, count * sku.gpus_per_node), profile) for week in judged
        )
        for count in counts
    ]
    # Of what is bought and usable, all is used but what does not make a shortage smaller.
    usable_hours = profile.counted_hours * sum(usable_ratio(week.supply) for week in judged)
    idle = [
        max(0.0, count * sku.gpus_per_node * usable_hours - (short[0] - left))
        for count, left in zip(counts, short, strict=True)
    ]
    costs = [
        [hour_cents * (Fraction(unused) + Fraction(ratio) * Fraction(left)) for ratio in ratios]
        for unused, left in zip(idle, short, strict=True)
    ]
    rounded = [[to_cents(each) for each in row] for row in costs]
    best = [min(row[place] for row in rounded) for place in range(len(ratios))]
    return tuple(
        RegretRow(
            gpu_type=gpu_type,
            nodes=count,
            short_gpu_hours=left,
            idle_gpu_hours=unused,
            cents_by_ratio=tuple(row),
            regret_by_ratio=tuple(Cents(each - low) for each, low in zip(row, best, strict=True)),
        )
        for count, left, unused, row in zip(counts, short, idle, rounded, strict=True)
    )
