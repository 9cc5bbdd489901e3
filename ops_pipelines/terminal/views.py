"""The shape of answers about the cluster: diagnoses, incidents with their plans, and the status."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord
from ops_pipelines.core.entries import Approval, Pause
from ops_pipelines.core.fault import Alternative
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.health import Health, Heartbeat, VitalSigns
from ops_pipelines.core.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.core.overlap import Certainty, Overlap, tell, what_to_do
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.testimony import explain_action

# -- what is believed to have broken and what speaks for it --


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


# -- what `incidents` answers --


class PlanStanding(Enum):
    """Where a plan is between thought and deed."""

    WOULD_BE_DONE = "would_be_done"
    """The mode is observe: it is shown and never begun."""
    WAITS_FOR_APPROVAL = "waits_for_approval"
    APPROVED = "approved"
    NEXT = "next"
    """The mode is auto: it begins with the next run."""
    HELD_BACK = "held_back"
    """A guardrail says later; `waits_for` of its incident says why."""
    IN_FORCE = "in_force"
    """It is being carried out."""
    ENDED = "ended"
    """Carried out, given up, or superseded."""
    RECORDED = "recorded"
    """Whether it still holds could not be judged: a system did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """One plan. `approved_by` and `approved_until` are null without an approval that holds now."""

    plan: str
    standing: PlanStanding
    response: str
    reason: str
    steps: tuple[str, ...]
    effects: tuple[str, ...]
    rejected_alternatives: tuple[str, ...]
    approved_by: str | None
    approved_until: datetime | None
    left_to: str
    """The reason of somebody else's drain that the node is left to; empty where its repair is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    """One incident. `waits_for` says why nothing is done now, `plan` what is, was or would be done; null if unknown."""

    incident: str
    state: str
    response: str
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    victims: tuple[str, ...]
    what: str
    note: str
    opened_at: datetime
    changed_at: datetime
    closed_at: datetime | None
    open_for_seconds: float
    waits_for: str | None
    plan: PlanView | None
    diagnosis: DiagnosisView
    overlaps: tuple[str, ...]
    """Jobs of which two copies ran, or may have run, at once: from when to when, how sure, where they save."""
    next_step: str
    """What will be done, or why nothing is, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsView:
    """The answer of `incidents`; `problems` names what could not be read."""

    cluster: str
    taken_at: datetime
    incidents: tuple[IncidentView, ...] | None
    """None where the ledger or its place is not known."""
    problems: tuple[str, ...]


def view_plan(plan: IncidentPlan, *, standing: PlanStanding, approval: Approval | None) -> PlanView:
    """Return a plan as it is shown."""
    return PlanView(
        plan=plan.plan,
        standing=standing,
        response=plan.response.name.lower(),
        reason=plan.reason,
        steps=tuple(_explain_step(action) for action in plan.actions),
        effects=plan.effects,
        rejected_alternatives=plan.rejected_alternatives,
        approved_by=None if approval is None else approval.actor,
        approved_until=None if approval is None else approval.expires_at,
        left_to=plan.left_to,
    )


def _explain_step(action: Action) -> str:
    return f"{explain_action(action)}: {action.text}" if action.verb in MESSAGES else explain_action(action)


def view_incident(incident: Incident, *, plan: PlanView | None, waits_for: str | None, now: datetime) -> IncidentView:
    """Return an incident as it is shown."""
    return IncidentView(
        incident=incident.incident,
        state=incident.state.value,
        response=incident.response.name.lower(),
        nodes=tuple(sorted(incident.nodes)),
        gpus=tuple(sorted(incident.gpus)),
        victims=tuple(attempt.job for attempt in sorted(incident.victims)),
        what=incident.cause,
        note=incident.note,
        opened_at=incident.opened_at,
        changed_at=incident.changed_at,
        closed_at=incident.closed_at,
        open_for_seconds=((incident.closed_at or now) - incident.opened_at).total_seconds(),
        waits_for=waits_for,
        plan=plan,
        diagnosis=view_diagnosis(incident),
        overlaps=tuple(_tell_overlap(each, now) for each in incident.overlaps),
        next_step=_next_step(incident, plan, waits_for),
    )


def _tell_overlap(overlap: Overlap, now: datetime) -> str:
    told = tell(overlap, now=now)
    return told if overlap.certainty is Certainty.EXCLUDED else f"{told}. {what_to_do(overlap)}"


def _next_step(incident: Incident, plan: PlanView | None, waits_for: str | None) -> str:
    match incident.state:
        case IncidentState.RESOLVED:
            return f"nothing: resolved ({incident.note})"
        case IncidentState.MERGED:
            return f"nothing here: {incident.note}"
        case IncidentState.ESCALATED:
            return f"by you: {asked_of_person(incident)}"
        case IncidentState.VERIFYING:
            return "the node proves itself; then it is returned to service"
        case IncidentState.PROBATION:
            return "in service as last choice; well through its probation, it is like any other again"
        case IncidentState.IN_REPAIR:
            return f"by you: mend it, then `ops-pipelines repair done {incident.incident}`"
        case IncidentState.ACTING | IncidentState.OPEN:
            pass
    steps = "" if plan is None else plan.steps[0]
    if plan is not None and len(plan.steps) > 1:
        steps += f" and {len(plan.steps) - 1} more step{'s' if len(plan.steps) > 2 else ''}"
    if plan is not None and plan.left_to:
        steps += f"; the node is left to whoever drained it ({plan.left_to})"
    if waits_for is not None:
        return f"{steps or 'nothing yet'}; waits for {waits_for}"
    if plan is None:
        return "not known: what would be done now could not be worked out"
    if plan.standing is PlanStanding.WOULD_BE_DONE:
        return f"nothing, the mode is observe; in another mode: {steps}"
    return f"{steps}; {plan.standing.value.replace('_', ' ')}"


# -- what `status` and /healthz answer --


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatView:
    """The last tick of one process that watches. `age_seconds` is negative where its clock is ahead of ours."""

    name: str
    at: datetime
    age_seconds: float
    holder: str
    note: str
    mode: str
    is_lease_held: bool
    failing_sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """How the program itself stands. All but word and reasons is null or empty where the ledger cannot be read."""

    word: str
    """`blind`, `paused`, `observing` or `acting`."""
    reasons: tuple[str, ...]
    mode: str | None
    """The mode that the running autopilot works with, whatever the policy file says since it started."""
    heartbeats: tuple[HeartbeatView, ...]
    newest_evidence_at: datetime | None
    newest_evidence_age_seconds: float | None
    waiting_evidence_count: int | None
    ledger_head: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedJobView:
    """A job that is held for a silent node, so that it starts nowhere else while its processes may still write."""

    job: str
    nodes: tuple[str, ...]
    since: datetime
    incident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The answer of `status`. What a system did not tell is null, and `problems` says so."""

    cluster: str
    taken_at: datetime
    health: HealthView
    mode: str | None
    """What holds by the policy file."""
    paused: Pause | None
    """Shown as the ledger holds it: actor, since, reason."""
    is_autopilot_alive: bool | None
    """Whether some process holds the lease, without which nothing is begun."""
    nodes_by_state: Mapping[str, int] | None
    jobs_by_state: Mapping[str, int] | None
    marked_jobs: tuple[MarkedJobView, ...] | None
    open_incidents_by_state: Mapping[str, int] | None
    actions_by_outcome: Mapping[str, int] | None
    """Begun in the last 24 hours; `open` counts those without an outcome."""
    waiting_evidence_count: int | None
    problems: tuple[str, ...]
    disk_bytes: Mapping[str, int] = field(default_factory=dict)
    """What files here take, by part (`disk_use`); empty where it is not known."""


def view_health(health: Health, signs: VitalSigns | None) -> HealthView:
    """Return the verdict with what it was judged on; without `signs`, which an unreadable ledger does not give."""
    if signs is None:
        return HealthView(
            word=health.word.value,
            reasons=health.reasons,
            mode=None,
            heartbeats=(),
            newest_evidence_at=None,
            newest_evidence_age_seconds=None,
            waiting_evidence_count=None,
            ledger_head=None,
        )
    newest_at = signs.newest_evidence_at
    return HealthView(
        word=health.word.value,
        reasons=health.reasons,
        mode=signs.working_mode.value,
        heartbeats=tuple(_view_heartbeat(beat, signs.taken_at) for beat in signs.heartbeats),
        newest_evidence_at=newest_at,
        newest_evidence_age_seconds=None if newest_at is None else (signs.taken_at - newest_at).total_seconds(),
        waiting_evidence_count=signs.undecided_evidence_count,
        ledger_head=signs.head_seq,
    )


def _view_heartbeat(beat: Heartbeat, now: datetime) -> HeartbeatView:
    return HeartbeatView(
        name=beat.name,
        at=beat.at,
        age_seconds=(now - beat.at).total_seconds(),
        holder=beat.holder,
        note=beat.note,
        mode=beat.mode.value,
        is_lease_held=beat.is_lease_held,
        failing_sources=beat.failing_sources,
    )


def view_marks(marks: Iterable[ActionRecord]) -> tuple[MarkedJobView, ...]:
    """Return the jobs that `marks` hold."""
    return tuple(
        MarkedJobView(
            job=mark.action.attempt.job,
            nodes=tuple(sorted(mark.attempt_nodes)),
            since=mark.begun_at,
            incident=mark.action.incident,
        )
        for mark in marks
        if mark.action.attempt is not None
    )


def count_words(words: Iterable[str]) -> Mapping[str, int]:
    """Return how often each word comes, in the order of the alphabet."""
    return dict(sorted(Counter(words).items()))
