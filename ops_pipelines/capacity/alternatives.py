"""What can be done about a type of GPU that runs short, and what each way out would do and cost. Five, and nothing.

Buying and renting add to what is usable; changed quotas and taken advice lower the peaks. Each says what it rests on;
a ratio that nobody measured is an assumption, and called one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction

from ops_pipelines.capacity.chances import DayProfile, chance_short, short_hours
from ops_pipelines.capacity.model import SupplyPoint, percent
from ops_pipelines.capacity.need import Need, TypeWeek, fewest
from ops_pipelines.capacity.plan import Alternative, Way
from ops_pipelines.capacity.supply import points_with_more
from ops_pipelines.core.money import Cents, to_cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.teams.projects import CapacityPolicy, Sku

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
    # Without a lead time nobody knows when: what it does is told as if it served from the first short week on.
    since = need.in_service_on or need.short_from
    gpus = need.nodes * sku.gpus_per_node
    worst, hours = _outcome(weeks, means.profile, _Change(since=since, installed=gpus))
    end = weeks[-1].first_day + timedelta(days=7)
    served = 0 if since is None else max(0, (end - max(since, weeks[0].first_day)).days)
    monthly = Fraction(sku.node_cents, sku.amortized_months) + sku.support_cents_per_month
    late = "" if need.in_service_on else "; no lead time is known: told as if it served from the first short week on"
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
