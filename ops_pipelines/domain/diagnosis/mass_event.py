"""Many nodes that look broken within moments are one incident, which pages and touches nothing.

The guard against acting on a cluster whose trouble is elsewhere. Where its nodes stand is only a suspicion here; a part
that explains them is blamed by `gathering`.
"""

from ops_pipelines.domain.diagnosis.board import Board, is_touched
from ops_pipelines.domain.diagnosis.shared_cause import MIN_EXPLAINED
from ops_pipelines.domain.diagnosis.world import World
from ops_pipelines.domain.incident import Incident, IncidentState, fold
from ops_pipelines.domain.meaning.finding import REPAIRS, Response


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
