"""What a finding that joins an incident makes of it: evidence and victims, a culprit more, a stronger response.

Pure: one incident and one finding in, the incident out. Which incident a finding joins is `belonging`.
"""

from dataclasses import replace
from datetime import datetime

from ops_pipelines.core.fault import Family
from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance, climb, joined_by
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.domain.diagnosis.board import is_touched
from ops_pipelines.domain.diagnosis.response import gpus_to_reset, raised_response, response_of
from ops_pipelines.domain.diagnosis.standing import is_relapse
from ops_pipelines.domain.diagnosis.world import Roster


def joined(incident: Incident, finding: Finding, *, roster: Roster, at: datetime) -> Incident:
    """Return the incident with one more finding; the same incident where it holds that evidence already."""
    if _is_silence_after_acting(incident, finding):
        finding = replace(finding, is_secondary=True)
    findings = joined_by(incident, finding)
    if findings is incident.findings:
        return incident
    with_evidence = replace(
        incident,
        victims=incident.victims | roster.victims_of(finding)
        if incident.state is IncidentState.OPEN
        else incident.victims,
        findings=findings,
        changed_at=at,
    )
    if finding.is_secondary or (incident.nodes and finding.node not in incident.nodes and not incident.is_mass_event):
        return with_evidence  # Damage elsewhere makes nobody a culprit: only its victims are added.
    is_owner_of_nodes = bool(incident.nodes) and finding.node != NO_NODE
    with_culprit = replace(
        with_evidence,
        nodes=incident.nodes | {finding.node} if is_owner_of_nodes else incident.nodes,
        gpus=incident.gpus | ({finding.gpu} if finding.gpu is not None and is_owner_of_nodes else frozenset()),
    )
    if incident.is_mass_event:
        return with_culprit
    return _with_response(with_culprit, finding, before=incident.findings, at=at)


def _with_response(incident: Incident, finding: Finding, *, before: tuple[Finding, ...], at: datetime) -> Incident:
    """Let a joined finding change the response; once we act, a node that vanishes is our own doing.

    The plan in force is superseded by what it does not cover: a stronger event, or one on another GPU.
    """
    if not is_touched(incident):
        return replace(incident, response=raised_response(incident.findings))
    if is_relapse(incident, finding):
        return climb(incident, IncidentEvent.RELAPSED, why=finding.explanation, at=at)
    if finding.is_lasting or incident.state in (IncidentState.PROBATION, IncidentState.IN_REPAIR):
        return incident
    response = response_of(each for each in incident.findings if not each.is_lasting)
    is_another_gpu = incident.response is Response.RESET_GPU and bool(
        gpus_to_reset(incident.findings) - gpus_to_reset(before)
    )
    if response <= incident.response and not is_another_gpu:
        return incident
    if incident.state in (IncidentState.ACTING, IncidentState.VERIFYING):
        incident = advance(
            incident,
            IncidentEvent.SUPERSEDED,
            at=at,
            note=f"new evidence asks for more: {finding.explanation}",
        )
    return replace(incident, response=max(response, incident.response))


def _is_silence_after_acting(incident: Incident, finding: Finding) -> bool:
    """Return whether a node fell silent once we had begun with another fault of it: a reboot, and no second cause.

    One on probation is not being restarted by anybody: its silence is a fault.
    """
    return (
        finding.family is Family.SILENCE
        and is_touched(incident)
        and incident.state is not IncidentState.PROBATION
        and not incident.is_mass_event
        and all(each.family is not Family.SILENCE or each.is_secondary for each in incident.findings)
    )
