"""Whether what an incident rests on still holds: all of it gone, gone for most nodes, or shown still.

Compares evidence with the conditions that hold now, without any waiting. How long it must stay away is `closing`.
"""

from collections.abc import Iterable, Mapping

from ops_pipelines.core.fault import Component, FirstAction
from ops_pipelines.core.finding import ISOLATED_FOR, REPAIRS, Finding, Response
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import CONDITION_SOURCES, Observation, Signal
from ops_pipelines.domain.diagnosis.response import by_urgency

_STAYS = 0.25
"""When no more than this share of a wide fault's nodes is still broken, those few have faults of their own."""

Standing = tuple[Signal, NodeName, Component | None, JobId | None, str | None]


def standing_of(observation: Observation) -> Standing:
    """Return what makes two observations the same condition, whenever each began."""
    return observation.signal, observation.node, observation.component, observation.job, observation.signature


def is_shown(findings: Iterable[Finding], present: set[Standing]) -> bool:
    """Return whether any condition that any of the findings rests on holds now."""
    return any(standing_of(observation) in present for finding in findings for observation in finding.evidence)


def is_over(finding: Finding, present: set[Standing]) -> bool:
    """Return whether a finding rests on conditions alone, none of which holds any more."""
    return all(
        observation.source in CONDITION_SOURCES and standing_of(observation) not in present
        for observation in finding.evidence
    )


def has_cleared(incident: Incident, present: set[Standing]) -> bool:
    """Return whether an incident rests on lasting conditions alone, none of which holds any more.

    Never of a repair that we have begun: a person or the verification ends it, not silence.
    """
    if incident.plan_count > 0 and not incident.is_mass_event and incident.response in REPAIRS:
        return False
    lasting = [finding for finding in incident.findings if not finding.is_secondary or finding.is_lasting]
    if incident.suspect is not None and any(finding.is_lasting for finding in lasting):
        # What a switch or a feed did to its nodes is over when they are well again, whatever they logged meanwhile.
        lasting = [finding for finding in lasting if finding.is_lasting]
    return bool(lasting) and all(finding.is_lasting for finding in lasting) and not is_shown(lasting, present)


def is_mostly_over(incident: Incident, present: set[Standing]) -> bool:
    """Return whether a wide fault is over for all but a few of its nodes."""
    if incident.suspect is None or not incident.is_mass_event:
        return False
    if any(finding.response in REPAIRS and not finding.is_lasting for finding in incident.findings):
        return False
    return 0 < len(still_broken(incident, present)) <= max(1, _STAYS * len(incident.nodes))


def still_broken(incident: Incident, present: set[Standing]) -> Mapping[NodeName, Finding]:
    """Return the nodes of a wide fault that still show it, each with the most urgent of what it shows."""
    return {
        finding.node: finding
        for finding in sorted(incident.findings, key=by_urgency, reverse=True)
        if finding.node in incident.nodes and is_shown([finding], present)
    }


_RELAPSING = frozenset({FirstAction.DRAIN_INSPECT, FirstAction.RMA, FirstAction.RESET_FABRIC})
"""What would only be looked at on any other node counts against one on probation."""


def isolates(finding: Finding) -> bool:
    """Return whether a finding is of the kind for which a node is isolated, taken alone."""
    return finding.first_action in ISOLATED_FOR and not finding.is_secondary


def is_shown_again(incident: Incident, finding: Finding) -> bool:
    """Return whether a finding shows again what a node was isolated for: the same rule, on the same part."""
    return (
        incident.response is Response.ISOLATE
        and isolates(finding)
        and any(
            (each.rule, each.node, each.component, each.gpu)
            == (finding.rule, finding.node, finding.component, finding.gpu)
            for each in incident.findings
        )
    )


def is_relapse(incident: Incident, finding: Finding) -> bool:
    """Return whether something happened on a node on probation that says that it is not well after all.

    Events count at once; a condition is judged by how long it lasts (`verification.judge_probation`). What a program
    or a job did wrong says nothing of the node.
    """
    return (
        incident.state is IncidentState.PROBATION
        and incident.returned_at is not None
        and finding.found_at > incident.returned_at
        and finding.node in incident.nodes
        and not finding.is_secondary
        and not finding.is_lasting
        and (finding.response in REPAIRS or finding.first_action in _RELAPSING or is_shown_again(incident, finding))
        and finding.confidence >= _BELIEVED
    )


_BELIEVED = 0.6
"""As for raising an incident (`diagnosis.RAISED_AT`)."""
