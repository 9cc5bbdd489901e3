"""Many nodes that look broken within moments are one incident, which pages and touches nothing.

The guard against acting on a cluster whose trouble is elsewhere. Where its nodes stand is only a suspicion here; a part
that explains them is blamed by `gathering`. What breaks on its nodes once a person was paged is no part of it: such
nodes are drained within the budget, and the page is renewed (`domain.repair.aftermath`).
"""

from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, fold
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.domain.diagnosis.board import Board, is_touched
from ops_pipelines.domain.diagnosis.shared_cause import MIN_EXPLAINED, wide_suspect
from ops_pipelines.domain.diagnosis.world import World

RENEWED_EVERY = timedelta(minutes=2)
"""A mass event pages anew this often at most, and not before. Assumption: whoever has it reads no faster."""


def merge_mass_event(board: Board) -> None:
    """Turn many young, untouched node incidents into one that only pages."""
    world = board.world
    young = [incident for incident in board.incidents.values() if _is_young(incident, world)]
    apart = frozenset(node for incident in young for node in incident.nodes)
    wide = [incident for incident in board.incidents.values() if _is_young_wide(incident, world)]
    nodes = apart | {node for incident in wide for node in incident.nodes}
    is_another_story = len(apart) > (1 - MIN_EXPLAINED) * len(nodes)
    if len(nodes if is_another_story else apart) < world.mass_event.min_node_count:
        return
    merged = (*young, *wide) if is_another_story else young
    untouched = [incident for incident in merged if not is_touched(incident)]
    if not untouched:
        return
    place = world.topology.shared_place(nodes)
    suspicion = f"all stand at {place}" if place else "they share neither rack nor leaf switch"
    seconds = world.mass_event.window.total_seconds()
    mass = board.open_wide(
        fold(finding for incident in untouched for finding in incident.findings),
        nodes=frozenset(node for incident in untouched for node in incident.nodes),
        victims=frozenset(victim for incident in untouched for victim in incident.victims),
        note=f"{len(nodes)} nodes look broken within {seconds:.0f} s; {suspicion}",
    )
    for incident in untouched:
        board.merge(incident, into=mass)


def with_struck(incident: Incident, finding: Finding, world: World) -> Incident:
    """Return a mass event that a finding has joined, with the node noted if its fault is new, and hard.

    Whatever comes before its page, within the window of its first evidence, is the storm itself, which touches nothing.
    """
    is_over = finding.found_at - incident.opened_at > world.mass_event.window
    is_new = is_over or incident.state is IncidentState.ESCALATED
    if not (incident.is_mass_event and incident.suspect is None and is_new and is_hard(finding)):
        return incident
    return replace(incident, struck=incident.struck | {finding.node})


def is_hard(finding: Finding) -> bool:
    """Return whether a finding is an event of a node's own part that calls for a repair, by itself.

    Conditions come and go with the network and with our own eyes: of these a mass event is mostly made.
    """
    return (
        finding.response in REPAIRS
        and not finding.is_lasting
        and not finding.is_secondary
        and finding.node != NO_NODE
        and wide_suspect(finding) is None
    )


def renew_mass_events(board: Board) -> None:
    """Open again what a person has, where nodes that still take jobs broke anew: at most once in two minutes."""
    drained = {node.node for node in board.world.nodes if node.is_drained}
    for incident in list(board.incidents.values()):
        if not is_renewal_due(incident, now=board.world.now):
            continue
        renewed = incident.struck - drained
        if not renewed:
            board.put(replace(incident, struck=frozenset()))  # Out of service: who drained them has them in hand.
            continue
        note = f"{len(renewed)} of its nodes broke anew after the storm"
        opened = advance(incident, IncidentEvent.STRUCK_ANEW, at=board.world.now, note=note)
        board.put(replace(opened, struck=frozenset(), renewed=renewed, renewed_at=board.world.now))


def is_renewal_due(incident: Incident, *, now: datetime) -> bool:
    """Return whether a decision would open a mass event again, or let go of what it was struck by."""
    is_early = now - (incident.renewed_at or incident.opened_at) < RENEWED_EVERY
    return incident.state is IncidentState.ESCALATED and bool(incident.struck) and not is_early


def is_still_spreading(incident: Incident, world: World) -> bool:
    """Return whether an open mass event got a finding within the window; later faults stand for themselves."""
    if not incident.is_open or not incident.is_mass_event or incident.suspect is not None:
        return False
    last_found_at = max(finding.found_at for finding in incident.findings)
    return world.now - last_found_at <= world.mass_event.window


def _is_young(incident: Incident, world: World) -> bool:
    """Return whether a node of the cluster began to look broken within the window; being repaired counts, too.

    One whose versions are being changed does not: it restarts because we told it to.
    """
    return (
        not any(world.is_changing(node) for node in incident.nodes)
        and incident.state in (IncidentState.OPEN, IncidentState.ACTING)
        and incident.suspect is None
        and any(world.topology.knows(node) for node in incident.nodes)
        and incident.response in (*REPAIRS, Response.PAGE)
        and bool(incident.findings)
        and world.now - min(finding.found_at for finding in incident.findings) <= world.mass_event.window
    )


def _is_young_wide(incident: Incident, world: World) -> bool:
    """Return whether a part that nodes share was blamed moments ago: more of them may tell another story."""
    return (
        incident.suspect is not None
        and incident.is_mass_event
        and incident.state is IncidentState.OPEN
        and world.now - incident.began_at <= world.mass_event.window
    )
