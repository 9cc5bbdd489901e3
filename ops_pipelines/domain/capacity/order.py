"""The row of the order table for one type of GPU: what, how many, by when, and why in words and numbers.

The date is the first short day less the days from order to service. Further resources (storage, power, cooling, links)
are `expansion`'s, by the same rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ops_pipelines.core.money import Cents
from ops_pipelines.domain.capacity.chance_words import against, percent
from ops_pipelines.domain.capacity.need import MOST_ORDERED, Need, TypeWeek, sku_days
from ops_pipelines.domain.capacity.plan import OrderLine
from ops_pipelines.domain.capacity.resources import SeriesKey
from ops_pipelines.domain.capacity.room import Bound
from ops_pipelines.teams.projects import CapacityPolicy, Sku


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """How many nodes of a SKU may be put up."""

    nodes: int
    bound_by: str
    """What limits it first: places, a rack's power, the room's power."""
    nodes_in_room: int | None = None
    """What the room's power alone lets in: new places and racks do not help beyond it. None: not known."""
    doubts: tuple[str, ...] = ()
    """What was not stated or measured of the room, and what stands in its place."""


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
    # Where the room binds first, the sentence before has said so.
    if in_room is not None and in_room < need.nodes and places.bound_by != Bound.ROOM_WATTS.value:
        words.append(f"the room's power feeds no more than {in_room} of them, wherever they stand")
    return [*words, *places.doubts]
