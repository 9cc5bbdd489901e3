"""When a type of GPU runs short, what to buy and what that costs, and what else could be done.

Lead times are rounded up to whole days, and what arrives within a week counts from the next one on: the safe side. How
this looks in the table is `order`'s.

Idle is what is bought, usable and not used; short is demand above what is usable; both over the same hours of the weeks
from which an order of today serves. The price of an idle GPU-hour is the SKU's: price over its months, and support,
without energy. The lowest cost is where ratio / (1 + ratio) of the peaks are served.

Buying and renting add to what is usable; changed quotas and followed advice lower the peaks. Each states what it rests
on; a ratio that was never measured is an assumption, and called one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction

from ops_pipelines.capacity.chances import (
    DayProfile,
    Tail,
    chance_short,
    first_short,
    points_with_more,
    short_hours,
    usable_ratio,
)
from ops_pipelines.capacity.model import Alternative, RegretRow, SupplyPoint, SupplyWeek, Way, percent
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


ASSUMED_FOLLOWED_RATIO = 0.5
"""Of the GPUs that advice would save, so many are saved where nobody measured what came of advice."""
ADVICE_DAYS = 28
"""Until advice shows: jobs that run are not changed."""
_DAYS_A_MONTH = Fraction(365, 12)
_OF_A_CLOUD = "paid for only when used; assumes that the cloud has them on the day and that jobs and data can go there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What is known of one type of GPU beside its demand and supply."""

    profile: DayProfile
    movable_ratio: float | None = None
    """Of a peak: GPUs of work that may wait until it is over, or that ran on what was borrowed. None: not measured."""
    idle_ratio: float | None = None
    """Of what runs: GPUs on which nothing runs. None: not measured."""
    followed_ratio: float | None = None
    """Of what advice would save, so much was saved in the past. None: not measured."""
    cloud_cents_per_gpu_hour: Cents | None = None
    """None: not offered."""

    def __post_init__(self) -> None:
        for what, ratio in (
            ("may wait", self.movable_ratio), ("is idle", self.idle_ratio), ("is followed", self.followed_ratio),
        ):  # fmt: skip
            if ratio is not None and not 0 <= ratio <= 1:
                raise ValueError(f"a share of {ratio:g} {what}; expected 0 to 1, or nothing where nobody measured it")


def compare_ways(
    gpu_type: GpuType,
    weeks: Sequence[TypeWeek],
    need: Need,
    means: Means,
    *,
    policy: CapacityPolicy,
    as_of: date,
) -> tuple[Alternative, ...]:
    """Return what each way would do, in the order of `Way`; one that cannot be had is left out, as a cloud unpriced."""
    if not weeks:
        return ()
    nothing = _outcome(weeks, means.profile)
    found = [
        Alternative(
            gpu_type=gpu_type,
            way=Way.NOTHING,
            gpus=0.0,
            worst_shortage_probability=nothing[0],
            short_gpu_hours=nothing[1],
            cents=Cents(0),
            takes_effect_on=None,
            said=f"what is expected over {len(weeks)} weeks if nothing is done; that jobs wait has no price here",
        )
    ]
    bought = None if need.sku is None or not need.is_enough else _buy(gpu_type, weeks, need, need.sku, means)
    if bought is not None:
        found.append(bought)
    if means.cloud_cents_per_gpu_hour is not None:
        found.extend(_rent(gpu_type, weeks, means, means.cloud_cents_per_gpu_hour, nothing[1], policy, as_of))
        if bought is not None:
            found.extend(_bridge(bought, weeks, means, means.cloud_cents_per_gpu_hour, policy, as_of))
    found.append(_move(gpu_type, weeks, means, as_of))
    found.append(_save(gpu_type, weeks, means, as_of))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a way changes, in the weeks that begin from `since` on and before `until`."""

    since: date | None = None
    until: date | None = None
    installed: float = 0.0
    rented: float = 0.0
    less_ratio: float = 0.0

    def acts(self, week: TypeWeek) -> bool:
        return (self.since is None or week.first_day >= self.since) and (
            self.until is None or week.first_day < self.until
        )


def _outcome(weeks: Sequence[TypeWeek], profile: DayProfile, *changes: _Change) -> tuple[float, float]:
    """Return the worst probability of the weeks that anything changes, and the hours short over all weeks.

    A way that takes effect after the last week changes none: the worst is then that of all weeks, as without any.
    """
    chances, hours = [], 0.0
    for week in weeks:
        acting = [each for each in changes if each.acts(week)]
        points = _more(week, math.fsum(each.installed for each in acting), math.fsum(each.rented for each in acting))
        demand = 1 - math.fsum(each.less_ratio for each in acting)
        hours += short_hours(week.tail, points, profile, demand_ratio=demand)
        if acting:
            chances.append(chance_short(week.tail, points, demand_ratio=demand))
    return max(chances, default=max(week.chance_with(0) for week in weeks)), hours


def _more(week: TypeWeek, installed: float, rented: float) -> Sequence[SupplyPoint]:
    """Return what is usable: of what is installed a share is out, what is rented is there."""
    if not installed and not rented:
        return week.supply.points
    return tuple(
        SupplyPoint(gpus=each.gpus + rented, probability=each.probability)
        for each in points_with_more(week.supply, installed)
    )


def _buy(gpu_type: GpuType, weeks: Sequence[TypeWeek], need: Need, sku: Sku, means: Means) -> Alternative:
    # Without a lead time nobody knows when: what it does is computed as if it served from the first short week on.
    since = need.in_service_on or need.short_from
    gpus = need.nodes * sku.gpus_per_node
    worst, hours = _outcome(weeks, means.profile, _Change(since=since, installed=gpus))
    end = weeks[-1].first_day + timedelta(days=7)
    served = 0 if since is None else max(0, (end - max(since, weeks[0].first_day)).days)
    monthly = Fraction(sku.node_cents, sku.amortized_months) + sku.support_cents_per_month
    late = (
        "" if need.in_service_on else "; no lead time is known: computed as if it served from the first short week on"
    )
    return Alternative(
        gpu_type=gpu_type,
        way=Way.BUY,
        gpus=float(gpus),
        worst_shortage_probability=worst,
        short_gpu_hours=hours,
        cents=to_cents(need.nodes * monthly * served / _DAYS_A_MONTH),
        takes_effect_on=need.in_service_on,
        said=(
            f"{need.nodes} nodes of {sku.sku}, in service from {since}; cost is the price over {sku.amortized_months} "
            f"months and support for the {served} days of the horizon in which they serve, without energy{late}"
        ),
    )


def _rent(
    gpu_type: GpuType,
    weeks: Sequence[TypeWeek],
    means: Means,
    price: Cents,
    hours_before: float,
    policy: CapacityPolicy,
    as_of: date,
) -> tuple[Alternative, ...]:
    """Return the way, or nothing where no number that could be rented keeps the limit."""
    enough = _rented_at_most(weeks, policy)
    if enough is None:
        return ()
    gpus = float(enough)
    worst, hours = _outcome(weeks, means.profile, _Change(rented=gpus))
    rented = max(0.0, hours_before - hours)
    way = Alternative(
        gpu_type=gpu_type,
        way=Way.CLOUD,
        gpus=gpus,
        worst_shortage_probability=worst,
        short_gpu_hours=hours,
        cents=to_cents(Fraction(rented) * price),
        takes_effect_on=as_of,
        said=(f"at most {gpus:,.0f} GPUs rented at a time, {rented:,.0f} GPU-hours expected, {_OF_A_CLOUD}"),
    )
    return (way,)


def _rented_at_most(weeks: Sequence[TypeWeek], policy: CapacityPolicy) -> int | None:
    """Return as many GPUs as keep the limit in the worst week: fewer than that are rented in the others."""
    limit = policy.shortage_probability_max
    return fewest(lambda count: all(chance_short(week.tail, _more(week, 0.0, float(count))) <= limit for week in weeks))


def _bridge(
    bought: Alternative,
    weeks: Sequence[TypeWeek],
    means: Means,
    price: Cents,
    policy: CapacityPolicy,
    as_of: date,
) -> tuple[Alternative, ...]:
    """Return the way where nodes would come too late; nothing where no week before them is short, or none after."""
    since = bought.takes_effect_on
    if since is None or bought.cents is None or weeks[-1].first_day < since:
        return ()
    enough = _rented_at_most([each for each in weeks if each.first_day < since], policy)
    if not enough:
        return ()
    worst, hours = _outcome(
        weeks,
        means.profile,
        _Change(until=since, rented=float(enough)),
        _Change(since=since, installed=bought.gpus),
    )
    rented = max(0.0, bought.short_gpu_hours - hours)
    way = Alternative(
        gpu_type=bought.gpu_type,
        way=Way.BRIDGE,
        gpus=bought.gpus,
        worst_shortage_probability=worst,
        short_gpu_hours=hours,
        cents=Cents(bought.cents + to_cents(Fraction(rented) * price)),
        takes_effect_on=as_of,
        said=(
            f"what is bought serves from {since}; until then at most {enough:,} GPUs rented at a time, {rented:,.0f} "
            f"GPU-hours expected, {_OF_A_CLOUD}"
        ),
    )
    return (way,)


def _move(gpu_type: GpuType, weeks: Sequence[TypeWeek], means: Means, as_of: date) -> Alternative:
    ratio = means.movable_ratio or 0.0
    worst, hours = _outcome(weeks, means.profile, _Change(less_ratio=ratio))
    said = (
        "what may wait was not measured, so nothing is counted"
        if means.movable_ratio is None
        else f"work that may wait is {percent(ratio)} of a peak and is moved to hours outside it; every peak "
        "becomes lower by that share, and nothing is lost but time; assumes that the hours outside have room for it"
    )
    return Alternative(
        gpu_type=gpu_type,
        way=Way.QUOTAS,
        gpus=_saved(weeks, ratio),
        worst_shortage_probability=worst,
        short_gpu_hours=hours,
        cents=Cents(0),
        takes_effect_on=as_of,
        said=said,
    )


def _save(gpu_type: GpuType, weeks: Sequence[TypeWeek], means: Means, as_of: date) -> Alternative:
    followed = ASSUMED_FOLLOWED_RATIO if means.followed_ratio is None else means.followed_ratio
    idle = means.idle_ratio or 0.0
    since = as_of + timedelta(days=ADVICE_DAYS)
    worst, hours = _outcome(weeks, means.profile, _Change(since=since, less_ratio=idle * followed))
    source = "assumed" if means.followed_ratio is None else "measured"
    said = (
        "what runs idle was not measured, so nothing is counted"
        if means.idle_ratio is None
        else f"{100 * idle:.1f} % of what runs is idle, and {percent(followed)} of advice is followed ({source}): "
        f"every peak becomes lower by {100 * idle * followed:.1f} %; shows after {ADVICE_DAYS} days (assumed)"
    )
    return Alternative(
        gpu_type=gpu_type,
        way=Way.EFFICIENCY,
        gpus=_saved(weeks, idle * followed),
        worst_shortage_probability=worst,
        short_gpu_hours=hours,
        cents=Cents(0),
        takes_effect_on=since,
        said=said,
    )


def _saved(weeks: Sequence[TypeWeek], ratio: float) -> float:
    """Return how many GPUs the share is of the highest mean peak."""
    return ratio * max(week.tail.mean for week in weeks)
