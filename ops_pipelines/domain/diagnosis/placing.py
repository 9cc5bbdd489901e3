"""One new finding gets its place: in the incident where it belongs, in one of its own, or nowhere.

Where it belongs is `belonging`; an owner is told once for each attempt, a person once for each fault.
"""

from dataclasses import replace

from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.identity import JobAttempt
from ops_pipelines.core.incident import IncidentState, joined_by
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.domain.diagnosis.belonging import home_of
from ops_pipelines.domain.diagnosis.board import Board
from ops_pipelines.domain.diagnosis.explanation import JOB_SIGNALS
from ops_pipelines.domain.diagnosis.joining import joined
from ops_pipelines.domain.diagnosis.mass_event import with_struck
from ops_pipelines.domain.diagnosis.response import raised_response
from ops_pipelines.domain.diagnosis.shared_cause import wide_suspect
from ops_pipelines.domain.diagnosis.standing import is_over


def place(finding: Finding, board: Board) -> None:
    """Join a finding to the incident where it belongs, or open one for it if it calls for anything.

    What a node shows while a rollout changes it is the rollout's own: it tests the node before it returns it.
    """
    if board.world.is_made_by_change(finding):
        return
    if board.world.is_changing(finding.node):
        _place_on_changing(finding, board)
        return
    home = home_of(finding, board)
    if home is not None:
        after = joined(home, finding, roster=board.roster, at=board.world.now)
        board.put(after if after is home else with_struck(after, finding, board.world))
    elif is_over(finding, board.present):
        return  # A condition that came and went before anybody decided: evidence, but no problem to own.
    elif finding.response is Response.NOTIFY_OWNER or finding.is_secondary:
        _place_application_error(finding, board)
    elif finding.response is not Response.MONITOR:
        suspect = wide_suspect(finding)
        nodes = frozenset() if suspect is not None or finding.node == NO_NODE else frozenset({finding.node})
        board.open(finding, nodes=nodes, victims=board.roster.victims_of(finding), suspect=suspect)


def _place_on_changing(finding: Finding, board: Board) -> None:
    """Keep a condition of a node that is being changed apart: it waits, and ends with the change or is seen to then."""
    if finding.response is Response.MONITOR or is_over(finding, board.present):
        return
    nodes = frozenset({finding.node})
    home = next(
        (each for each in board.incidents.values() if each.state is IncidentState.OPEN and each.nodes == nodes), None
    )
    if home is None:
        board.open(finding, nodes=nodes, victims=frozenset())
    else:
        board.put(joined(home, finding, roster=board.roster, at=board.world.now))


def _place_application_error(finding: Finding, board: Board) -> None:
    if finding.response is Response.MONITOR:
        return
    victims = board.roster.victims_of(finding)
    if not victims:
        # Without an attempt there is nobody to tell: it stays evidence, unless it names the job over many attempts.
        if finding.job is not None and finding.evidence[0].signal in JOB_SIGNALS:
            _join_or_open_job(finding, victims, board)
        return
    for attempt in sorted(victims - board.world.told):
        _join_or_open_job(finding, frozenset({attempt}), board)


def _join_or_open_job(finding: Finding, victims: frozenset[JobAttempt], board: Board) -> None:
    """Join what a program does wrong to the open incident of the same attempt, of its job where none is known."""
    same = [
        incident
        for incident in board.incidents.values()
        if incident.is_open
        and not incident.nodes
        and incident.suspect is None
        and (
            bool(victims & incident.victims)
            or (not victims and any(each.job == finding.job for each in incident.findings))
        )
    ]
    if not same:
        board.open(finding, nodes=frozenset(), victims=victims)
        return
    findings = joined_by(same[0], finding)
    if findings is not same[0].findings:
        board.put(
            replace(
                same[0],
                findings=findings,
                response=max(same[0].response, raised_response(findings)),
                changed_at=board.world.now,
            )
        )
