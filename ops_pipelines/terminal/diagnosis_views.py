"""What is believed to have broken and what speaks for it, as values in the shape of their JSON.

Here too: an incident that recorded time shows, of which nothing but this is known (`diagnose`). Field names are the
JSON keys. Believing is `diagnose`', printing `explain`'s.
"""

from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.fault import Alternative
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.incident import Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView:
    """What is believed to have broken. Only `cause` and `culprits` are known of incidents of older versions: then
    `confidence` is null, and `confidence_words` says so."""

    cause: str
    """One sentence."""
    culprits: tuple[str, ...]
    """The parts, the likeliest first."""
    places: tuple[str, ...]
    """Where to go: the nodes of the culprits, and the names of those that are wider than a node."""
    at_fault: str | None
    family: str | None
    first_action: str | None
    confidence: float | None
    confidence_words: str
    affected_nodes: tuple[str, ...]
    """Victims: nodes without a fault of their own."""
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    """Shown as the hypothesis has them: statement, confidence, why_less_likely."""
    settled_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SightingView:
    """Alike evidence: when it was first and last seen, how often, where, and what it says."""

    first_at: datetime
    last_at: datetime
    count: int
    where: str
    rule: str
    says: str
    line: str
    """The newest of it as it was read; empty where it was no line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedView:
    """One incident that recorded time shows: found again, not owned and not acted on."""

    incident: str
    state: str
    nodes: tuple[str, ...]
    victims: tuple[str, ...]
    began_at: datetime
    closed_at: datetime | None
    diagnosis: DiagnosisView
    sightings: tuple[SightingView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedTimeView:
    """The answer of `diagnose`: what is known of a moment by what was recorded from `since` on."""

    cluster: str
    since: datetime
    at: datetime
    incidents: tuple[DiagnosedView, ...]
    gaps: tuple[str, ...]
    """What was not recorded."""
    problems: tuple[str, ...]


_CONFIDENCE_WORDS = (
    (0.95, "almost certain"),
    (0.85, "very likely"),
    (0.7, "likely"),
    (0.5, "more likely than not"),
    (0.0, "a guess"),
)
"""From which confidence on which words hold."""


def confidence_words(confidence: float | None) -> str:
    """Return how sure we are, as people say it."""
    if confidence is None:
        return "how sure is not recorded"
    return next((words for least, words in _CONFIDENCE_WORDS if confidence >= least), _CONFIDENCE_WORDS[-1][1])


def view_diagnosis(incident: Incident) -> DiagnosisView:
    """Return what is believed to have broken; of an incident without a hypothesis what its findings alone say."""
    hypothesis = incident.hypothesis
    if hypothesis is None:
        return DiagnosisView(
            cause=incident.cause,
            culprits=tuple(sorted(incident.nodes)),
            places=tuple(sorted(incident.nodes)),
            at_fault=None,
            family=None,
            first_action=None,
            confidence=None,
            confidence_words=confidence_words(None),
            affected_nodes=(),
            evidence_for=tuple(dict.fromkeys(each.explanation for each in incident.findings)),
            evidence_against=(),
            alternatives=(),
            settled_by=None,
        )
    return DiagnosisView(
        cause=hypothesis.statement,
        culprits=tuple(str(each) for each in hypothesis.culprits),
        places=tuple(dict.fromkeys(each.node or str(each) for each in hypothesis.culprits)),
        at_fault=hypothesis.at_fault.value,
        family=hypothesis.family.value,
        first_action=hypothesis.first_action.value,
        confidence=hypothesis.confidence,
        confidence_words=confidence_words(hypothesis.confidence),
        affected_nodes=tuple(sorted(hypothesis.affected_nodes)),
        evidence_for=hypothesis.evidence_for,
        evidence_against=hypothesis.evidence_against,
        alternatives=hypothesis.alternatives,
        settled_by=hypothesis.settled_by,
    )


def view_sightings(incident: Incident) -> tuple[SightingView, ...]:
    """Return the evidence of an incident, alike findings as one, oldest first."""
    alike: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in incident.findings:
        device = finding.component if finding.component is not None else finding.gpu
        where = " ".join(str(each) for each in (finding.node, device) if each)
        if device is not None and finding.node and finding.node in str(device):
            where = str(device)
        where = where or (f"job {finding.job}" if finding.job is not None else "the cluster")
        alike.setdefault((finding.rule, where, finding.explanation, str(finding.job)), []).append(finding)
    sightings = []
    for (rule, where, says, _), group in alike.items():
        newest = max(group, key=lambda finding: finding.last_at or finding.found_at)
        text = newest.evidence[-1].text if newest.evidence else ""
        sightings.append(
            SightingView(
                first_at=min(finding.found_at for finding in group),
                last_at=newest.last_at or newest.found_at,
                count=sum(finding.count for finding in group),
                where=where,
                rule=rule,
                says=says,
                line="" if text == says else text,
            )
        )
    return tuple(sorted(sightings, key=lambda each: (each.first_at, each.where, each.rule)))


def view_diagnosed(incident: Incident) -> DiagnosedView:
    """Return an incident found in recorded time as it is shown."""
    return DiagnosedView(
        incident=incident.incident,
        state=incident.state.value,
        nodes=tuple(sorted(incident.nodes)),
        victims=tuple(attempt.job for attempt in sorted(incident.victims)),
        began_at=min((finding.found_at for finding in incident.findings), default=incident.opened_at),
        closed_at=incident.closed_at,
        diagnosis=view_diagnosis(incident),
        sightings=view_sightings(incident),
    )
