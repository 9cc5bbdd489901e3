"""By what demand is counted: types of GPU, caps and what is installed, as the desk of teams has them at a time."""

from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import HOUR
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.frames.demand.hourly import DemandRules

_AT_ONCE = timedelta(days=7)
"""Bounds memory."""
_NO_TYPE = GpuType("")


def stretches_of(
    desk: TeamsDesk, *, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, "DemandRules"]]:
    """Yield stretches of whole hours for which the same was agreed and installed, none too long."""
    hours = [start + number * HOUR for number in range((end - start) // HOUR)]
    for (caps, installed), same in groupby(hours, key=lambda hour: (_caps(desk, hour), installed_at(desk, hour))):
        some = list(same)
        step = _AT_ONCE // HOUR
        for first in range(0, len(some), step):
            part = some[first : first + step]
            yield part[0], part[-1] + HOUR, _rules(desk, caps=dict(caps), installed=dict(installed), at=part[-1])


def _rules(
    desk: TeamsDesk,
    *,
    caps: Mapping[tuple[TeamName, GpuType], float],
    installed: Mapping[GpuType, float],
    at: datetime,
) -> "DemandRules":
    from ops_pipelines.frames.demand.gpu_types import GpuTypes, partition_types
    from ops_pipelines.frames.demand.hourly import DemandRules

    by_node = {node: kind for node, kind in desk.gpu_type_of.items() if kind}
    by_partition: Mapping[str, GpuType] = {}
    if len(set(by_node.values())) > 1:
        rows = desk.lake.read("inventory", start=at, end=at + HOUR, columns=("node", "partitions"))
        by_partition = partition_types(rows, by_node)
    return DemandRules(
        types=GpuTypes(by_node=by_node, by_partition=by_partition),
        caps=caps,
        installed=installed,
        waste_bound_ratio=desk.policy.waste_bound_ratio,
    )


def _caps(desk: TeamsDesk, hour: datetime) -> tuple[tuple[tuple[TeamName, GpuType], float], ...]:
    """Return the most that each team may ever have, where that is bounded, by its own terms and those above it."""
    if desk.agreements is None:
        return ()
    return _caps_on(desk.agreements, hour.astimezone(desk.zone).date())


def _caps_on(agreed: Agreements, day: date) -> tuple[tuple[tuple[TeamName, GpuType], float], ...]:
    found = []
    for kind in sorted(agreed.gpu_types):
        terms = {each.team: each for each in agreed.terms_on(day, kind)}
        for team in sorted(terms):
            most, above = terms[team].most, terms[team].parent
            while above is not None:
                most, above = min(most, terms[above].most), terms[above].parent
            if most != float("inf"):
                found.append(((team, kind), most))
    return tuple(found)


def installed_at(desk: TeamsDesk, hour: datetime) -> tuple[tuple[GpuType, float], ...]:
    counts: dict[GpuType, float] = {}
    for each in desk.installed:
        if each.since <= hour and (each.until is None or hour < each.until):
            counts[each.gpu_type] = counts.get(each.gpu_type, 0.0) + each.gpu_count
    return tuple(sorted(counts.items()))


def kinds_of(desk: TeamsDesk) -> frozenset[GpuType]:
    """Return the types that the cluster's nodes have."""
    found = {kind for kind in desk.gpu_type_of.values() if kind}
    is_told = all(desk.gpu_type_of.get(node) for node in desk.observatory.topology.places)
    return frozenset(found if found and is_told else {*found, _NO_TYPE})


def declared_teams(agreed: Agreements | None) -> frozenset[TeamName]:
    """Return the teams that jobs are charged to; organisations ask for nothing themselves."""
    return frozenset() if agreed is None else frozenset(agreed.parents) - agreed.organisations
