"""Storage, power, cooling and links that run full: when, how many steps are needed, and ordered by when.

The same rules as for nodes (`order`): the line is the limit times the ratio of it that may be used. Links are not
enlarged by steps unless someone states how: then a line without an order says when they are full.
"""

import math
from collections.abc import Sequence
from datetime import date, timedelta

from ops_pipelines.core.money import Cents
from ops_pipelines.domain.capacity.chance_words import against, percent
from ops_pipelines.domain.capacity.need import MOST_ORDERED, days_to_serve, fewest
from ops_pipelines.domain.capacity.order import before_relief
from ops_pipelines.domain.capacity.outlook import SeriesOutlook
from ops_pipelines.domain.capacity.plan import OrderLine, SeriesLimit
from ops_pipelines.domain.capacity.resources import Resource, SeriesKey
from ops_pipelines.domain.capacity.shortage import first_short
from ops_pipelines.domain.capacity.tails import Tail
from ops_pipelines.teams.projects import CapacityPolicy, StoreExpansion

_TIB = 2.0**40
_SAID = {
    Resource.STORAGE_BYTES: "file system",
    Resource.NETWORK_RATIO: "links of",
    Resource.RACK_WATTS: "power of rack",
    Resource.COOLING_WATTS: "cooling of",
}


def expansion_of(key: SeriesKey, expansions: Sequence[StoreExpansion]) -> StoreExpansion | None:
    """Return how a series is enlarged; None: nobody said. The first that names it, as stated."""
    return next((each for each in expansions if each.resource == key.resource and key.name in each.names), None)


def usable_limit(
    key: SeriesKey, limit: float, *, expansion: StoreExpansion | None, policy: CapacityPolicy
) -> SeriesLimit:
    """Return how much of a limit may be used. Raises ValueError for what is no limit."""
    if not 0 < limit < math.inf:
        raise ValueError(f"{key.resource} {key.name}: limit {limit:g}; expected more than 0")
    return SeriesLimit(series=key, limit=limit, usable=limit * _usable_ratio(key, expansion, policy))


def expansion_line(
    outlook: SeriesOutlook,
    *,
    limit: SeriesLimit,
    expansion: StoreExpansion | None,
    policy: CapacityPolicy,
    as_of: date,
) -> OrderLine | None:
    """Return when the series passes its limit and what to order; None: not within the horizon."""
    ratio = limit.usable / limit.limit
    weeks = [(each.first_day, Tail(each)) for each in outlook.weeks[: policy.horizon_weeks]]
    chances = [tail.chance_above(limit.usable) for _, tail in weeks]
    most = policy.shortage_probability_max
    place = first_short([each > most for each in chances], least_short_weeks=policy.least_short_weeks)
    if place is None:
        return None
    short_from = weeks[place][0]
    line = f"{_amount(outlook.key, limit.usable)}, which is {percent(ratio)} of its limit"
    words = [f"the peak exceeds {line}, {against(chances[place], most)}, in the week of {short_from}"]
    what = f"{_SAID[outlook.key.kind]} {outlook.key.name or 'the whole cluster'}"
    if expansion is None:
        words.append("nobody stated how it is enlarged: see `expansions` of capacity.yaml")
        return OrderLine(
            what=what, gpu_type=None, series=outlook.key, short_from=short_from, order_by=None, is_overdue=False,
            earliest_relief=None, count=0, cents=None, why="; ".join(words),
        )  # fmt: skip
    days = (
        None if expansion.lead_time is None else days_to_serve(expansion.lead_time, quantile=policy.lead_time_quantile)
    )
    relief = None if days is None else as_of + timedelta(days=days)
    start = relief or short_from
    judged = [tail for day, tail in weeks if day >= start] or [weeks[-1][1]]
    found = fewest(
        lambda count: all(tail.chance_above((limit.limit + count * expansion.step) * ratio) <= most for tail in judged)
    )
    steps = found or 0
    words.append(
        f"not even {MOST_ORDERED} steps are enough"
        if found is None
        else f"{steps} x {_amount(outlook.key, expansion.step)} is enough until the horizon's end"
    )
    if days is None or relief is None:
        words.append("no lead time is known, so no date can be named: state it in capacity.yaml")
    else:
        words.append(f"{days} days from order to service with {percent(policy.lead_time_quantile)}")
        early = [day for (day, _), chance in zip(weeks, chances, strict=True) if day < relief and chance > most]
        if early:
            words.append(before_relief(early, relief))
    order_by = None if days is None else short_from - timedelta(days=days)
    return OrderLine(
        what=what,
        gpu_type=None,
        series=outlook.key,
        short_from=short_from,
        order_by=order_by,
        is_overdue=order_by is not None and order_by < as_of,
        earliest_relief=relief,
        count=steps,
        cents=None if found is None else Cents(steps * expansion.step_cents),
        why="; ".join(words),
    )


def _usable_ratio(key: SeriesKey, expansion: StoreExpansion | None, policy: CapacityPolicy) -> float:
    """Return which share of the limit may be used; for links the policy says it, whatever an expansion has."""
    if key.kind is Resource.NETWORK_RATIO:
        return policy.network_ratio_max
    return 1.0 if expansion is None else expansion.usable_ratio


def _amount(key: SeriesKey, amount: float) -> str:
    if key.kind is Resource.STORAGE_BYTES:
        return f"{amount / _TIB:.1f} TiB"
    if key.kind is Resource.NETWORK_RATIO:
        return f"{100 * amount:.0f} % of the rate"
    return f"{amount / 1000:.1f} kW"
