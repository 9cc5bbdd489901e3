"""Whether what an incident rests on still holds: all of it gone, gone for most nodes, or shown still.

Compares evidence with the conditions that hold now, without any waiting. How long it must stay away is `closing`.
"""

from collections.abc import Iterable, Mapping

from ops_pipelines.domain.diagnosis.response import by_urgency
from ops_pipelines.domain.fault import Component
from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.meaning.finding import REPAIRS, Finding
from ops_pipelines.domain.observation import CONDITION_SOURCES, Observation, Signal

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
