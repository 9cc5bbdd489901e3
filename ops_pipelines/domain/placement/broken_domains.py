"""Whole NVLink domains that a small job broke up although broken ones had room for it.

A domain is a chassis where NVLink ends there, and a rack of NVL72. Whole is one of which every GPU is free and offered.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import NodeName, Place
from ops_pipelines.domain.placement.occupancy import Occupancy, could_take
from ops_pipelines.domain.placement.room import Room
from ops_pipelines.domain.placement.standing import Absence, Machine, Stay, needed


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDomain:
    """One small job took a piece out of a whole domain."""

    stay: Stay
    domain: str
    domain_gpu_count: int
    elsewhere: tuple[str, ...]
    """Nodes of domains that were broken already and had room for it."""


def find_broken_domains(
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence] = (),
    start: datetime,
    end: datetime,
) -> tuple[BrokenDomain, ...]:
    """Return the starts in [start, end) that broke a domain and need not have, by time."""
    occupancy = Occupancy(machines)
    room = Room(occupancy, _domain_of)
    members: defaultdict[str, list[NodeName]] = defaultdict(list)
    for machine in occupancy.machines.values():
        members[_domain_of(machine.place)].append(machine.node)
    found = []
    for change in occupancy.play(stays, absences, until=end):
        stay = change.started
        if stay is not None and stay.gpu_count > 0 and change.at >= start:
            broken = _broken_by(stay, occupancy, room, members)
            if broken is not None:
                found.append(broken)
        room.touch(change.nodes)
    return tuple(found)


def _domain_of(place: Place) -> str:
    return place.nvlink_domain


def _broken_by(
    stay: Stay, occupancy: Occupancy, room: Room, members: Mapping[str, list[NodeName]]
) -> BrokenDomain | None:
    own = [node for node in stay.gpus if node in occupancy.machines]
    domains = {_domain_of(occupancy.machines[node].place) for node in own}
    if len(domains) != 1:
        return None
    domain = domains.pop()
    if domain in room.broken:
        return None
    size = sum(occupancy.machines[node].gpu_count for node in members[domain])
    if stay.gpu_count >= size:
        return None
    model = occupancy.machines[own[0]].place.model
    need = max(needed(gpus) for gpus in stay.gpus.values())
    counts = room.counts(gpus=need, partition=stay.partition, model=model)
    # A gang stays within one domain: pieces in several would be a worse place, not a better one.
    better = min((name for name in counts.keys() & room.broken.keys() if counts[name] >= len(own)), default=None)
    if better is None:
        return None
    fits = [
        node
        for node in members[better]
        if could_take(occupancy, node, gpus=need, partition=stay.partition, model=model)
    ]
    return BrokenDomain(stay=stay, domain=domain, domain_gpu_count=size, elsewhere=tuple(fits[: len(own)]))
