"""When an incident is over without our doing: it cleared, was put right by others, was never more than a word.

Each reason is one pass over the board. Whether conditions still hold is `standing`; what our own repairs come to is
`remediate`.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import DETECTOR_SOURCE, Observation
from ops_pipelines.diagnose.explanation import JOB_SIGNALS
from ops_pipelines.diagnose.hypothesis import is_repetition
from ops_pipelines.diagnose.incidents import (
    Board,
    Standing,
    has_cleared,
    is_mostly_over,
    is_shown,
    standing_of,
    still_broken,
)

_QUIET = timedelta(minutes=10)
"""What detectors saw must stay away for so long before its incident closes: what flaps is one incident."""
_QUIET_OF_VERDICTS = timedelta(hours=6)
"""So, and longer, what is judged over hours of attempts: one more success tips it for a while."""
_SAID_ONLY = timedelta(hours=1)
"""Log lines that blame a shared part end with nothing: when none came for so long, it is over."""
WATCHED = timedelta(minutes=30)
"""Evidence too weak to act on is forgotten after this long."""
_SETTLES = timedelta(minutes=30)
"""How much longer than the others' recovery a node may take before it counts as broken by itself. Assumption: a boot
with a file system check takes a quarter of an hour."""
_WITH_NOBODY_OR_A_PERSON = (IncidentState.OPEN, IncidentState.ESCALATED)
"""States in which silence may end an incident: we have nothing under way."""


def is_clearing_due(incident: Incident, conditions: Collection[Observation], *, now: datetime) -> bool:
    """Return whether a decision would change an incident because its conditions are gone, or back.

    Mirrors `close_what_cleared`, `split_what_stays` and `close_what_was_only_watched`: what is due and changes nothing
    would be due for ever.
    """
    present = {standing_of(condition) for condition in conditions}
    is_gone, is_nearly_gone = has_cleared(incident, present), is_mostly_over(incident, present)
    if _is_forgotten(incident, present, now=now):
        return True
    if incident.quiet_since is not None:
        if is_gone:
            return now - incident.quiet_since >= quiet_of(incident)
        return not is_nearly_gone or now - incident.quiet_since >= _SETTLES
    return is_gone or is_nearly_gone


def quiet_of(incident: Incident) -> timedelta:
    """Return how long what an incident rests on must stay away before it closes; verdicts over many hours waver."""
    signals = {observation.signal for finding in incident.findings for observation in finding.evidence}
    return _QUIET_OF_VERDICTS if signals & JOB_SIGNALS else _QUIET


# -- ended by others --


def close_what_was_returned(board: Board) -> None:
    """Close what a person has ended by returning the node, before new faults there are placed."""
    for key in sorted(board.world.returned & board.incidents.keys()):
        incident = board.incidents[key]
        if incident.state in (IncidentState.ESCALATED, IncidentState.IN_REPAIR):
            board.clear(incident, note="a person took the node back into service")


def close_what_was_restarted(board: Board) -> None:
    """Close what we only watched being put right: the node was restarted after the last evidence, and is well."""
    by_name = {node.node: node for node in board.world.nodes}
    for incident in list(board.incidents.values()):
        if incident.state is not IncidentState.OPEN or incident.plan_count > 0 or len(incident.nodes) != 1:
            continue
        if incident.response not in REPAIRS or is_repetition(incident.findings):
            continue  # A restart is not what these call for.
        (name,) = incident.nodes
        node = by_name.get(name)
        if node is None or node.booted_at is None or node.is_drained or not node.is_responding:
            continue
        is_over = node.booted_at > incident.last_seen_at and board.world.now - node.booted_at >= _QUIET
        if is_over and not is_shown(incident.findings, board.present):
            board.clear(incident, note="the node was restarted since, and nothing was seen after it")


def close_what_nobody_was_told(board: Board) -> None:
    """Close application errors whose owner could not be told in time: the job is gone, or we only observe."""
    for incident in list(board.incidents.values()):
        is_waiting = incident.state is IncidentState.OPEN and incident.response is Response.NOTIFY_OWNER
        if is_waiting and board.world.now - incident.opened_at > board.world.waiting_limit:
            board.clear(incident, note="its owner was not told in time; no node is at fault")


# -- gone by itself --


def close_what_cleared(board: Board) -> None:
    """Close incidents that rest on lasting conditions alone once none of these holds any more.

    What detectors saw must stay away for a while first: a condition that comes and goes is one incident.
    """
    for incident in list(board.incidents.values()):
        if incident.state not in _WITH_NOBODY_OR_A_PERSON or not incident.findings:
            continue
        is_gone = has_cleared(incident, board.present)
        if is_gone and _may_flap(incident) and not _is_quiet(incident, now=board.world.now):
            if incident.quiet_since is None:
                board.put(replace(incident, quiet_since=board.world.now))
        elif is_gone:
            board.clear(incident, note="cleared by itself: the condition no longer holds")
        elif incident.quiet_since is not None and not is_mostly_over(incident, board.present):
            board.put(replace(incident, quiet_since=None))


def split_what_stays(board: Board) -> None:
    """Give the few nodes that stay broken incidents of their own once the wide fault is over for all others."""
    for incident in list(board.incidents.values()):
        if (
            incident.suspect is None
            or not incident.is_mass_event
            or incident.state not in _WITH_NOBODY_OR_A_PERSON
            or not is_mostly_over(incident, board.present)
        ):
            continue
        if incident.quiet_since is None:
            board.put(replace(incident, quiet_since=board.world.now))
            continue
        if board.world.now - incident.quiet_since < _SETTLES:
            continue
        stays = still_broken(incident, board.present)
        board.clear(incident, note=f"over for all but {', '.join(sorted(stays))}")
        for node in sorted(stays):
            board.open(stays[node], nodes=frozenset({node}), victims=board.roster.attempts_on(node))


def _may_flap(incident: Incident) -> bool:
    return any(
        observation.source == DETECTOR_SOURCE for finding in incident.findings for observation in finding.evidence
    )


def _is_quiet(incident: Incident, *, now: datetime) -> bool:
    return incident.quiet_since is not None and now - incident.quiet_since >= quiet_of(incident)


# -- never more than a word --


def close_what_was_only_watched(board: Board) -> None:
    """Close what was too weak to trouble anybody, and was not seen again."""
    for incident in list(board.incidents.values()):
        if _is_forgotten(incident, board.present, now=board.world.now):
            note = "too weak to act on, and not seen again" if incident.is_watched else "not said again for an hour"
            board.clear(incident, note=note)


def _is_forgotten(incident: Incident, present: set[Standing], *, now: datetime) -> bool:
    """Return whether what was never more than said was not said again for long: too weak, or of a shared part."""
    if incident.state not in _WITH_NOBODY_OR_A_PERSON:
        return False
    is_said_only = incident.suspect is not None and not any(finding.is_lasting for finding in incident.findings)
    is_weak = incident.state is IncidentState.OPEN and incident.is_watched
    if not (is_weak or is_said_only) or is_shown(incident.findings, present):
        return False
    return now - max(incident.last_seen_at, incident.opened_at) > (WATCHED if is_weak else _SAID_ONLY)
