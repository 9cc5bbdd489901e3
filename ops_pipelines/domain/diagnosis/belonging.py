"""Which open incident a new finding belongs to: the repair on its node, what explains it, or the same trouble lately.

Only asks: what joining changes is `joining`, what opens instead is `placing`.
"""

from datetime import timedelta

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import REPAIRS, Finding, Response
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.domain.diagnosis.board import Board
from ops_pipelines.domain.diagnosis.explanation import DAMAGE_FAMILIES, cause_of, incident_of_job, is_explained_by
from ops_pipelines.domain.diagnosis.mass_event import is_still_spreading
from ops_pipelines.domain.diagnosis.response import is_repetition
from ops_pipelines.domain.diagnosis.standing import is_shown_again

_SAME_TROUBLE = timedelta(minutes=30)
"""Evidence on one node this close together is one incident: two faults at once are rare (Meta RSC: 3 to 5 %)."""
_APART_FAMILIES = frozenset({Family.SOFTWARE, Family.DISK})
"""Trouble that lasts for weeks beside everything else: it joins only its own kind."""


def home_of(finding: Finding, board: Board) -> Incident | None:
    """Return the open incident that a finding belongs to, None if it starts its own."""
    on_node = [incident for incident in board.incidents.values() if incident.is_open and finding.node in incident.nodes]
    repairs = [
        incident
        for incident in on_node
        if (incident.response in REPAIRS or (incident.is_mass_event and incident.suspect is None))
        # A node on probation works: what a program there does wrong is a story of its own.
        and (
            incident.state is not IncidentState.PROBATION
            or _speaks_of_node(finding)
            or is_shown_again(incident, finding)
        )
    ]
    wide = [incident for incident in board.incidents.values() if is_explained_by(incident, finding, board)]
    if wide and all(each.state is IncidentState.PROBATION for each in repairs):
        return wide[0]  # What a whole switch does to it says nothing against a node on probation.
    if repairs and finding.family not in _APART_FAMILIES and not is_repetition([finding]):
        return repairs[0]
    if wide:
        return wide[0]
    # What lasts on a node on probation, and is no repair, is a story of its own: else nobody would hear of it.
    on_node = [incident for incident in on_node if incident.state is not IncidentState.PROBATION]
    if finding.is_secondary or (finding.family in DAMAGE_FAMILIES and finding.node == NO_NODE):
        return cause_of(finding, board, but=None) or incident_of_job(finding, board)
    if finding.response in REPAIRS:
        return _home_of_repair(finding, on_node, board)
    if finding.response is Response.NOTIFY_OWNER:
        return cause_of(finding, board, but=None)
    return _same_trouble(finding, on_node)


def _home_of_repair(finding: Finding, on_node: list[Incident], board: Board) -> Incident | None:
    """Return where a call for a repair belongs: what spreads over many nodes, else what waits on this one."""
    mass = [incident for incident in board.incidents.values() if is_still_spreading(incident, board.world)]
    if mass:
        return mass[0]  # The cause is likely the same: nothing new is acted on while it spreads.
    waiting = [
        incident
        for incident in on_node
        if incident.state is IncidentState.OPEN and incident.suspect is None and _may_be_one(incident, finding)
    ]
    return waiting[0] if waiting else None


def _same_trouble(finding: Finding, on_node: list[Incident]) -> Incident | None:
    """Return the incident of a node that has the same trouble: by its rule, by its time or by its kind."""
    own = [incident for incident in on_node if incident.suspect is None]
    same_rule = [incident for incident in own if any(each.rule == finding.rule for each in incident.findings)]
    if same_rule:
        return same_rule[0]
    close = [
        incident
        for incident in own
        if incident.state is IncidentState.OPEN  # A person who was paged once must hear of other trouble, too.
        and _may_be_one(incident, finding)
        and (
            abs(finding.found_at - incident.last_seen_at) <= _SAME_TROUBLE
            or any(each.family is finding.family and not each.is_secondary for each in incident.findings)
        )
    ]
    return close[0] if close else None


def _speaks_of_node(finding: Finding) -> bool:
    """Return whether a finding is about the node and its parts, and not about what runs there."""
    is_event = finding.response is Response.PAGE and (not finding.is_lasting or finding.family is Family.SILENCE)
    return not finding.is_secondary and (finding.response in REPAIRS or is_event)


def _may_be_one(incident: Incident, finding: Finding) -> bool:
    """Return whether trouble of these kinds on one node can be one: what lasts for weeks joins its own kind only."""
    families = {each.family for each in incident.findings}
    if finding.family in _APART_FAMILIES or families <= _APART_FAMILIES:
        return finding.family in families
    return True
