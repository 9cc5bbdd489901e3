"""How many nodes of a SKU can be put up: places, what racks may draw, what the room may draw. Decides nothing else.

What is drawn is the peak that is not exceeded with 95 %, from outlooks where there are any. What nobody stated limits
nothing, and that is said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.domain.capacity.outlook import SeriesOutlook
from ops_pipelines.domain.capacity.resources import Resource
from ops_pipelines.teams.projects import RackRoom, Sku

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
    """What was not stated or measured, and what stands in its place."""
    nodes_in_room: int | None = None
    """What the room's power alone lets in, wherever they stand; None: not stated or not known."""


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
