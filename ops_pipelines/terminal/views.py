"""What the command line answers, as values in the shape of its JSON.

Field names of the views are the JSON keys: renaming one breaks the scripts of operators. Printing them for people
belongs to `tables`, reading the cluster to `outlook` and `cli`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING

from ops_pipelines.domain.action import MESSAGES, Action, ActionRecord
from ops_pipelines.domain.health import Health, Heartbeat, VitalSigns
from ops_pipelines.domain.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.domain.meaning.finding import Finding
from ops_pipelines.domain.repair.remediation import IncidentPlan
from ops_pipelines.domain.returning.verification import explain_action
from ops_pipelines.ports.bundles import SavedBundle
from ops_pipelines.ports.ledger import Approval, ChainVerdict, Entry, EntryKind, Pause

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeView:
    """Another explanation of the same evidence."""

    statement: str
    confidence: float
    why_less_likely: str


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
    alternatives: tuple[AlternativeView, ...]
    settled_by: str | None


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
    next_step: str
    """What will be done, or why nothing is, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsView:
    """The answer of `incidents`; `problems` names what could not be read."""

    cluster: str
    taken_at: datetime
    incidents: tuple[IncidentView, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseView:
    actor: str
    since: datetime
    reason: str


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
class StatusView:
    """The answer of `status`. What a system did not tell is null, and `problems` says so."""

    cluster: str
    taken_at: datetime
    health: HealthView
    mode: str
    """What the policy file says."""
    paused: PauseView | None
    is_autopilot_alive: bool
    """Whether some process holds the lease, without which nothing is begun."""
    nodes_by_state: Mapping[str, int] | None
    jobs_by_state: Mapping[str, int] | None
    open_incidents_by_state: Mapping[str, int]
    actions_by_outcome: Mapping[str, int]
    """Begun in the last 24 hours; `open` counts those without an outcome."""
    waiting_evidence_count: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceView:
    source: str
    position: str
    observed_at: datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    rule: str
    node: str
    response: str
    found_at: datetime
    explanation: str
    source: str
    evidence: tuple[EvidenceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """One action begun. Its `outcome` is `done`, `failed`, `unknown`, or null while its witness is awaited."""

    action: str
    plan: str | None
    begun_at: datetime
    sent_at: datetime | None
    finished_at: datetime | None
    outcome: str | None
    witness: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    seq: int
    written_at: datetime
    kind: str
    actor: str
    what: str
    entry_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryView:
    """The answer of `show`: one incident from its findings to its last ledger entry."""

    cluster: str
    taken_at: datetime
    incident: IncidentView
    findings: tuple[FindingView, ...]
    actions: tuple[ActionView, ...]
    entries: tuple[EntryView, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimView:
    """One job that suffers. Null is what the scheduler no longer tells."""

    job: str
    state: str | None
    gpu_count: int | None
    nodes: tuple[str, ...]


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
class BundleView:
    """Where the evidence of one moment is kept. `is_in_ledger`: the chain holds the sha256 of its manifest."""

    reason: str
    saved_at: datetime
    place: str
    sha256: str
    is_in_ledger: bool
    files: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedView:
    incident: str
    state: str
    why: str
    """What the two have to do with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationView:
    """The answer of `explain`: what broke, why we believe so, and what will be done."""

    cluster: str
    taken_at: datetime
    incident: IncidentView
    began_at: datetime
    """When the first evidence was seen, which may be before the incident was opened."""
    victims: tuple[VictimView, ...]
    sightings: tuple[SightingView, ...]
    actions: tuple[ActionView, ...]
    bundles: tuple[BundleView, ...]
    related: tuple[RelatedView, ...]
    problems: tuple[str, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """The answer of `audit verify`. `first_broken_seq` is null and `problem` empty where the chain is whole."""

    cluster: str
    is_whole: bool
    entry_count: int
    head_hash: str
    first_broken_seq: int | None
    problem: str


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
    )


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
        next_step=_next_step(incident, plan, waits_for),
    )


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
        alternatives=tuple(
            AlternativeView(statement=each.statement, confidence=each.confidence, why_less_likely=each.why_less_likely)
            for each in hypothesis.alternatives
        ),
        settled_by=hypothesis.settled_by,
    )


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
    if waits_for is not None:
        return f"{steps or 'nothing yet'}; waits for {waits_for}"
    if plan is None:
        return "not known: what would be done now could not be worked out"
    if plan.standing is PlanStanding.WOULD_BE_DONE:
        return f"nothing, the mode is observe; in another mode: {steps}"
    return f"{steps}; {plan.standing.value.replace('_', ' ')}"


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


def view_bundle(bundle: SavedBundle, *, incident: Incident) -> BundleView:
    """Return a bundle as it is shown."""
    return BundleView(
        reason=bundle.reason,
        saved_at=bundle.saved_at,
        place=bundle.place,
        sha256=bundle.digest,
        is_in_ledger=bundle.digest == incident.bundle,
        files=bundle.files,
        missing=bundle.missing,
    )


def view_findings(incident: Incident) -> tuple[FindingView, ...]:
    """Return the findings of an incident, oldest first, each with its evidence."""
    return tuple(
        FindingView(
            rule=finding.rule,
            node=finding.node,
            response=finding.response.name.lower(),
            found_at=finding.found_at,
            explanation=finding.explanation,
            source=finding.source,
            evidence=tuple(
                EvidenceView(source=each.source, position=each.position, observed_at=each.observed_at, text=each.text)
                for each in finding.evidence
            ),
        )
        for finding in sorted(incident.findings, key=lambda finding: finding.found_at)
    )


def view_action(record: ActionRecord) -> ActionView:
    """Return an action as it is shown."""
    outcome = record.outcome
    return ActionView(
        action=explain_action(record.action),
        plan=record.plan,
        begun_at=record.begun_at,
        sent_at=record.sent_at,
        finished_at=None if outcome is None else outcome.finished_at,
        outcome=None if outcome is None else outcome.kind.value,
        witness=None if outcome is None else outcome.witness,
    )


def view_entry(entry: Entry) -> EntryView:
    """Return a line of the chain with what it says in a few words, empty where this program has none for it."""
    return EntryView(
        seq=entry.seq,
        written_at=entry.written_at,
        kind=entry.kind.value,
        actor=entry.actor,
        what=_gist(entry),
        entry_hash=entry.entry_hash,
    )


def view_pause(pause: Pause) -> PauseView:
    return PauseView(actor=pause.actor, since=pause.since, reason=pause.reason)


def view_audit(verdict: ChainVerdict, *, cluster: str) -> AuditView:
    return AuditView(
        cluster=cluster,
        is_whole=verdict.first_broken_seq is None and not verdict.problem,
        entry_count=verdict.entry_count,
        head_hash=verdict.head_hash,
        first_broken_seq=verdict.first_broken_seq,
        problem=verdict.problem,
    )


def count_words(words: Iterable[str]) -> Mapping[str, int]:
    """Return how often each word comes, in the order of the alphabet."""
    return dict(sorted(Counter(words).items()))


def to_json(view: "DataclassInstance") -> str:
    """Return a view as JSON in ASCII, in which no control character of an untrusted text is left as such."""
    return json.dumps(asdict(view), indent=2, ensure_ascii=True, default=_to_plain)


def _explain_step(action: Action) -> str:
    return f"{explain_action(action)}: {action.text}" if action.verb in MESSAGES else explain_action(action)


def _gist(entry: Entry) -> str:
    """Return what the body says, by the names of its fields; a body of another version gives fewer words, no error."""
    try:
        body = json.loads(entry.body)
    except ValueError:
        return "its body is no JSON: run `ops-pipelines audit verify`"
    if not isinstance(body, dict):
        return ""
    if entry.kind is EntryKind.INCIDENT:
        return f"{body.get('state', '')}: {body.get('note', '')}"
    if entry.kind is EntryKind.PLAN:
        return f"{body.get('plan', '')}: {len(body.get('actions', ()))} step(s)"
    if entry.kind is EntryKind.APPROVAL:
        return f"{body.get('plan', '')} until {body.get('expires_at', '')}"
    words = []
    action, outcome, refusal = body.get("action"), body.get("outcome"), body.get("refusal")
    if isinstance(action, dict):
        attempt = action.get("attempt")
        job = f"job {attempt.get('job')}" if isinstance(attempt, dict) else ""
        parts = (str(action.get("verb", "")).replace("_", " "), job, action.get("node"), action.get("gpu"))
        words.append(" ".join(str(part) for part in parts if part))
    if isinstance(outcome, dict):
        words.append(f"{outcome.get('kind', '')}: {outcome.get('witness', '')}")
    if isinstance(refusal, dict):
        words.append(str(refusal.get("reason", "")))
    return ", ".join(words)


def _to_plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no form in JSON")
