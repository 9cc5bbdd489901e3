"""What stands together fails together: incidents of nodes that one part explains become one incident of that part.

Which part that is, is `shared_cause`. Only what is young and untouched is gathered; what a node or its GPU says of
itself stays its own.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.incident import Incident, IncidentState, fold
from ops_pipelines.core.policy import MassEvent
from ops_pipelines.domain.diagnosis.board import Board, is_touched
from ops_pipelines.domain.diagnosis.shared_cause import (
    GATHERED_FAMILIES,
    MIN_EXPLAINED,
    SharedPlace,
    explains,
    find_shared_place,
)

_SLOW_TO_SPREAD = {Family.HEAT: timedelta(minutes=15)}
"""Heat rises over minutes; links and power go within one sample."""


def spreads_within(family: Family, mass_event: MassEvent) -> timedelta:
    """Return how far apart the same trouble of a shared part begins on its nodes."""
    return _SLOW_TO_SPREAD.get(family, mass_event.window)


def gather_shared_causes(board: Board) -> None:
    """Turn young, untouched incidents of nodes that one switch, rack or feed explains into one of that part."""
    for family in GATHERED_FAMILIES:
        young = _young_of(family, board)
        wide = [each for each in board.incidents.values() if _is_spreading_wide(each, family, board)]
        nodes = [node for each in (*young, *wide) for node in each.nodes]
        shared = find_shared_place(family, nodes, board.world.topology)
        if shared is None or any(each.suspect == shared.suspect for each in wide):
            continue
        parts = [
            each
            for each in young
            if each.nodes <= shared.nodes and _is_all_explained(each, shared, family, board.world.topology)
        ]
        inner = [each for each in wide if len(each.nodes & shared.nodes) >= MIN_EXPLAINED * len(each.nodes)]
        if inner:
            _widen(inner, parts, shared, board)
            continue
        found = board.open_wide(
            fold(finding for each in parts for finding in each.findings),
            nodes=shared.nodes,
            victims=frozenset(victim for each in parts for victim in each.victims),
            note=_note(shared),
            suspect=shared.suspect,
        )
        for each in parts:
            board.merge(each, into=found)


def _widen(inner: list[Incident], parts: list[Incident], shared: SharedPlace, board: Board) -> None:
    """Blame the wider part in the incident that first blamed a narrower one: two dark racks are their feed."""
    first, *others = sorted(inner, key=lambda each: (each.state is IncidentState.OPEN, each.incident))
    absorbed = [*parts, *(each for each in others if each.state is IncidentState.OPEN)]
    board.put(
        replace(
            first,
            suspect=shared.suspect,
            nodes=first.nodes | shared.nodes,
            victims=first.victims | {victim for each in absorbed for victim in each.victims},
            findings=fold((*first.findings, *(finding for each in absorbed for finding in each.findings))),
            changed_at=board.world.now,
            note=_note(shared),
        )
    )
    for each in absorbed:
        board.merge(each, into=first)


def _note(shared: SharedPlace) -> str:
    return f"{len(shared.nodes)} of {shared.node_count} nodes of {shared.suspect} show the same trouble"


def _young_of(family: Family, board: Board) -> list[Incident]:
    """Return the untouched incidents of one node each whose trouble of a family began when the newest of them did."""
    onsets = {
        incident.incident: onset
        for incident in board.incidents.values()
        if not is_touched(incident)
        and incident.suspect is None
        and not incident.is_mass_event
        and len(incident.nodes) == 1
        and not any(board.world.is_changing(node) for node in incident.nodes)
        and (onset := _onset_of(incident, family)) is not None
    }
    newest = max(onsets.values(), default=board.world.now)
    window = spreads_within(family, board.world.mass_event)
    return [board.incidents[key] for key, onset in onsets.items() if newest - onset <= window]


def _onset_of(incident: Incident, family: Family) -> datetime | None:
    """Return when the newest trouble of a family began on an incident's node; None if it has none."""
    return max(
        (
            finding.found_at
            for finding in incident.findings
            if finding.family is family and not finding.is_secondary and _shows(finding, family)
        ),
        default=None,
    )


def _shows(finding: Finding, family: Family) -> bool:
    """Return whether a finding shows trouble of a family: metrics that stop may be the exporter's, and show no rack."""
    return finding.response in REPAIRS if family is Family.SILENCE else finding.response is not Response.MONITOR


def _is_spreading_wide(incident: Incident, family: Family, board: Board) -> bool:
    """Return whether much trouble of a family was blamed on a shared part, or on nobody yet, a moment ago."""
    return (
        incident.is_mass_event
        and (incident.state is IncidentState.OPEN or (incident.suspect is not None and incident.is_open))
        and any(finding.family is family and not finding.is_secondary for finding in incident.findings)
        and board.world.now - incident.last_seen_at <= spreads_within(family, board.world.mass_event)
    )


def _is_all_explained(incident: Incident, shared: SharedPlace, family: Family, topology: Topology) -> bool:
    """Return whether a shared part explains all that an incident rests on: what it does not stays its own."""
    return all(
        explains(shared.suspect, family, finding, topology)
        for finding in incident.findings
        if not finding.is_secondary and finding.response is not Response.MONITOR
    )
