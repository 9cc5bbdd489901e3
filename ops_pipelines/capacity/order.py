"""The rows of the order table: GPUs, and storage, power, cooling and links that run full; what can be put up.

What is drawn is the peak that is not exceeded with 95 %, from outlooks where there are any. What nobody stated limits
nothing, and that is reported.

The date is the first short day less the days from order to service. Further resources (storage, power, cooling, links)
are `expansion`'s, by the same rules.

The same rules as for nodes (`order`): the line is the limit times the ratio of it that may be used. Links are not
enlarged by steps unless someone states how: then a line without an order says when they are full.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum

from ops_pipelines.capacity.chances import Tail, first_short
from ops_pipelines.capacity.model import OrderLine, Resource, SeriesKey, SeriesLimit, SeriesOutlook, against, percent
from ops_pipelines.capacity.need import MOST_ORDERED, Need, TypeWeek, days_to_serve, fewest, sku_days
from ops_pipelines.core.money import Cents
from ops_pipelines.teams.projects import CapacityPolicy, RackRoom, Sku, StoreExpansion

# -- how many nodes of a SKU can be put up --


DRAWN_LEVEL = 0.95
"""A rack's draw is its peak at this level."""
_WATTS_A_KW = 1000
_NAMED_AT_MOST = 3


class Bound(Enum):
    """What lets no further node in."""

    PLACES = "free places"
    RACK_WATTS = "the power of racks"
    ROOM_WATTS = "the power of the room"
    UNKNOWN = "nothing that was stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What fits of one SKU."""

    sku: str
    nodes: int | None
    """None: nobody stated any room."""
    binds: Bound
    by_rack: Mapping[str, int]
    """Before the room's own limit is held against their sum."""
    doubts: tuple[str, ...]
    """What was not stated or measured, and what is in its place."""
    nodes_in_room: int | None = None
    """What the room's power alone lets in, wherever they are; None: not stated or not known."""


def drawn_watts(outlooks: Sequence[SeriesOutlook], *, weeks: int) -> dict[str, float]:
    """Return the highest draw of the next weeks at `DRAWN_LEVEL` by rack; those of which nothing is known are missing.

    Under the empty name is the room, where such a series is kept.
    """
    return {
        each.key.name: max(week.at(DRAWN_LEVEL) for week in each.weeks[:weeks])
        for each in outlooks
        if each.key.kind is Resource.RACK_WATTS and each.weeks[:weeks]
    }


def find_room(
    sku: Sku, *, racks: Sequence[RackRoom], drawn: Mapping[str, float], room_limit_watts: float | None = None
) -> Room:
    """Return how many nodes of the SKU fit, and what binds; `drawn` is what `drawn_watts` returns."""
    if not 0 < sku.watts_per_node < math.inf:
        raise ValueError(f"{sku.sku} draws {sku.watts_per_node:g} W a node; expected more than 0")
    words: list[str] = []
    places = {each.rack: min(each.free_nodes, sku.nodes_per_rack) for each in racks}
    fit = {each.rack: min(places[each.rack], _within(each.limit_watts, drawn.get(each.rack), sku)) for each in racks}
    unmeasured = sorted(each.rack for each in racks if each.limit_watts is not None and each.rack not in drawn)
    if unmeasured:
        words.append(f"what {_named(unmeasured)} draw is not known and counted as 0")
    unlimited = sorted(each.rack for each in racks if each.limit_watts is None)
    if unlimited:
        words.append(f"what {_named(unlimited)} may draw nobody stated, so only places limit there")
    in_room = _in_room(sku, racks, drawn, room_limit_watts, words)
    if racks:
        nodes, binds = sum(fit.values()), Bound.PLACES
        if nodes < sum(places.values()):
            binds = Bound.RACK_WATTS
        if in_room is not None and in_room < nodes:
            nodes, binds = in_room, Bound.ROOM_WATTS
    elif in_room is not None:
        nodes, binds = in_room, Bound.ROOM_WATTS
        words.append("free places nobody stated")
    else:
        return Room(sku=sku.sku, nodes=None, binds=Bound.UNKNOWN, by_rack={}, doubts=tuple(words))
    return Room(sku=sku.sku, nodes=nodes, binds=binds, by_rack=fit, doubts=tuple(words), nodes_in_room=in_room)


def _named(racks: Sequence[str]) -> str:
    return ", ".join(racks) if len(racks) <= _NAMED_AT_MOST else f"{racks[0]} and {len(racks) - 1} more racks"


def _within(limit_watts: float | None, drawn: float | None, sku: Sku) -> int:
    """Return how many nodes the watts between draw and limit feed; what is not limited feeds a whole rack."""
    if limit_watts is None:
        return sku.nodes_per_rack
    return max(0, math.floor((limit_watts - (drawn or 0.0)) / sku.watts_per_node))


def _in_room(
    sku: Sku,
    racks: Sequence[RackRoom],
    drawn: Mapping[str, float],
    room_limit_watts: float | None,
    words: list[str],
) -> int | None:
    """Return how many nodes the room feeds; None: nobody stated what it may draw, or what it draws is not known."""
    if room_limit_watts is None:
        words.append("what all racks together may draw nobody stated")
        return None
    known = drawn.get("")
    if known is None:
        parts = [watts for rack, watts in drawn.items() if rack]
        if not parts:
            words.append("what the room draws is not known, so its limit is not held against them")
            return None
        # Racks do not peak at the same hour, so their sum is rather too much; those that nobody measures are missing.
        known = math.fsum(parts)
        words.append(
            f"the room's draw is taken for the sum of the {len(parts)} racks that are measured, "
            f"{known / _WATTS_A_KW:.0f} kW"
        )
    return _within_room(room_limit_watts, known, sku)


def _within_room(limit_watts: float, drawn: float, sku: Sku) -> int:
    return max(0, math.floor((limit_watts - drawn) / sku.watts_per_node))


# -- the row of the order table for one type of GPU --


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """How many nodes of a SKU may be put up."""

    nodes: int
    bound_by: str
    """What limits it first: places, a rack's power, the room's power."""
    nodes_in_room: int | None = None
    """What the room's power alone lets in: new places and racks do not help beyond it. None: not known."""
    doubts: tuple[str, ...] = ()
    """What was not stated or measured of the room, and what is in its place."""


def order_line(
    need: Need,
    weeks: Sequence[TypeWeek],
    *,
    series: SeriesKey,
    policy: CapacityPolicy,
    as_of: date,
    room: Mapping[str, Places],
) -> OrderLine:
    """Return the row of the table for one type of GPU, with its reasons; `room` says by SKU what may be put up."""
    gpu_type = series.gpu_type
    if need.short_from is None:
        return OrderLine(
            what=need.sku.sku if need.sku else gpu_type,
            gpu_type=gpu_type,
            series=series,
            short_from=None,
            order_by=None,
            is_overdue=False,
            earliest_relief=need.in_service_on,
            count=0,
            cents=None,
            why=f"{gpu_type}: {_calm_words(weeks, policy)}",
        )
    words = [_short_words(weeks, need.short_from, policy)]
    if need.sku is None:
        words.append(f"no SKU is stated for {gpu_type}: state one in capacity.yaml to get a number and a date")
        return OrderLine(
            what=gpu_type, gpu_type=gpu_type, series=series, short_from=need.short_from, order_by=None,
            is_overdue=False, earliest_relief=None, count=0, cents=None, why="; ".join(words),
        )  # fmt: skip
    sku = need.sku
    words.append(_enough_words(need, sku, weeks, policy))
    days = sku_days(sku, policy)
    order_by = None
    if days is None:
        words.append(f"no lead time of {sku.sku} is known, so no date can be named: state it in capacity.yaml")
    else:
        order_by = need.short_from - timedelta(days=days)
        words.append(_lead_words(sku, policy, days))
        words.extend(_before_relief(weeks, need, policy))
    words.extend(_room_words(need, sku, room.get(sku.sku)))
    return OrderLine(
        what=sku.sku,
        gpu_type=gpu_type,
        series=series,
        short_from=need.short_from,
        order_by=order_by,
        is_overdue=order_by is not None and order_by < as_of,
        earliest_relief=need.in_service_on,
        count=need.nodes,
        cents=Cents(need.nodes * sku.node_cents) if need.is_enough else None,
        why="; ".join(words),
    )


def _calm_words(weeks: Sequence[TypeWeek], policy: CapacityPolicy) -> str:
    if not weeks:
        return "nothing is known of its demand or supply"
    worst = max(weeks, key=lambda each: (each.chance_with(0), -each.first_day.toordinal()))
    over = sum(each.chance_with(0) > policy.shortage_probability_max for each in weeks)
    single = (
        f"; {over} single {'week is' if over == 1 else 'weeks are'} above the limit, fewer than count" if over else ""
    )
    return (
        f"not short within {len(weeks)} weeks; the worst is that of {worst.first_day} "
        f"{against(worst.chance_with(0), policy.shortage_probability_max)}{single}"
    )


def _short_words(weeks: Sequence[TypeWeek], short_from: date, policy: CapacityPolicy) -> str:
    first = next(each for each in weeks if each.first_day == short_from)
    return (
        f"peak demand exceeds {first.supply.mean_gpus:.0f} usable GPUs "
        f"{against(first.chance_with(0), policy.shortage_probability_max)}, in the week of {short_from}"
    )


def _enough_words(need: Need, sku: Sku, weeks: Sequence[TypeWeek], policy: CapacityPolicy) -> str:
    if not need.is_enough:
        return (
            f"not even {MOST_ORDERED} nodes keep the limit: too little of what is installed is usable; mend that first"
        )
    start = need.in_service_on or need.short_from
    if start is not None and all(each.first_day < start for each in weeks):
        holds = "holds" if need.nodes == 1 else "hold"
        return (
            f"{_nodes(need.nodes)} {holds} the last week; an order of today serves only from {start}, after the horizon"
        )
    if not need.nodes:
        return f"no week from {start} on is short, nothing that is ordered now helps before: see the alternatives"
    keep = "keeps" if need.nodes == 1 else "keep"
    return f"{_nodes(need.nodes)} of {sku.gpus_per_node} GPUs {keep} every week from {start} on within it"


def _lead_words(sku: Sku, policy: CapacityPolicy, days: int) -> str:
    return (
        f"{days} days from order to service: delivery within {days - sku.rack_days - sku.burn_in_days} with "
        f"{percent(policy.lead_time_quantile)}, {sku.rack_days} to put up, {sku.burn_in_days} of burn-in"
    )


def _before_relief(weeks: Sequence[TypeWeek], need: Need, policy: CapacityPolicy) -> list[str]:
    relief = need.in_service_on
    if relief is None:
        return []
    early = [
        each.first_day
        for each in weeks
        if each.first_day < relief and each.chance_with(0) > policy.shortage_probability_max
    ]
    if not early:
        return []
    return [before_relief(early, relief)]


def before_relief(early: Sequence[date], relief: date) -> str:
    """Return which weeks are short before anything can arrive; `early` has their first days, one or more."""
    if len(early) == 1:
        return f"the week from {early[0]} on is short before anything can arrive on {relief}"
    return f"{len(early)} weeks from {early[0]} to {early[-1]} are short before anything can arrive on {relief}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _room_words(need: Need, sku: Sku, places: Places | None) -> list[str]:
    if not need.nodes:
        return []
    if places is None:
        return ["whether there is room is not known: state `racks` in capacity.yaml"]
    if places.nodes >= need.nodes:
        return [f"there is room for all of them ({places.nodes})", *places.doubts]
    needed_on = max(filter(None, (need.short_from, need.in_service_on))) - timedelta(
        days=sku.rack_days + sku.burn_in_days
    )
    words = [f"fits {max(0, places.nodes)} of {need.nodes} nodes; the rest needs {places.bound_by} by {needed_on}"]
    in_room = places.nodes_in_room
    # Where the room binds first, the sentence before has stated so.
    if in_room is not None and in_room < need.nodes and places.bound_by != Bound.ROOM_WATTS.value:
        words.append(f"the room's power feeds no more than {in_room} of them, wherever they are")
    return [*words, *places.doubts]


# -- storage, power, cooling and links that run full --


_TIB = 2.0**40
_SAID = {
    Resource.STORAGE_BYTES: "file system",
    Resource.NETWORK_RATIO: "links of",
    Resource.RACK_WATTS: "power of rack",
    Resource.COOLING_WATTS: "cooling of",
}


def expansion_of(key: SeriesKey, expansions: Sequence[StoreExpansion]) -> StoreExpansion | None:
    """Return how a series is enlarged; None: nobody stated. The first that names it, as stated."""
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
