"""What `incidents` and `show` answer: the diagnosis of each incident, the keys of JSON, and the documents.

Keys are a contract with the scripts of operators. What would be done now is `outlook`'s, one incident on a page
`explain`'s; how the cluster and the program are doing is `status`'s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Entry
from ops_pipelines.core.fault import Alternative
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.identity import listed
from ops_pipelines.core.incident import PAGED, Incident, IncidentState
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Keys, Mood, fields_of, soft, toned
from ops_pipelines.report.numbers import duration, moment
from ops_pipelines.terminal.outlook import IncidentOutlook, Outlook, PlanOutlook, PlanStanding, entries_of
from ops_pipelines.terminal.status import gist_of

_MOODS = {
    IncidentState.OPEN.value: Mood.WARN,
    IncidentState.ESCALATED.value: Mood.BAD,
    IncidentState.RESOLVED.value: Mood.GOOD,
    "failed": Mood.BAD,
    "unknown": Mood.BAD,
    "done": Mood.GOOD,
}
NAMES_SHOWN = 6
_CULPRITS_SHOWN = 4


# -- what is believed to have broken, and the evidence for it --


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is believed to have broken; its fields are keys of JSON. Only `cause` and `culprits` are known of incidents
    of older versions: then `confidence` is null, and `confidence_words` says so."""

    cause: str
    """One sentence."""
    culprits: tuple[str, ...]
    """The parts, the likeliest first."""
    places: tuple[str, ...]
    """Where to go: the nodes of the culprits, and the names of those that are wider than a node."""
    at_fault: str | None = None
    family: str | None = None
    first_action: str | None = None
    confidence: float | None = None
    confidence_words: str
    affected_nodes: tuple[str, ...] = ()
    """Victims: nodes without a fault of their own."""
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    settled_by: str | None = None

    @property
    def sureness(self) -> str:
        """Return how sure we are, in words and as a number where it is known."""
        return self.confidence_words + ("" if self.confidence is None else f" ({self.confidence:.0%})")

    @property
    def shown_culprits(self) -> str:
        return listed(self.culprits, at_most=NAMES_SHOWN) or "not known yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Alike evidence; its fields are keys of JSON."""

    first_at: datetime
    last_at: datetime
    count: int
    where: str
    rule: str
    says: str
    line: str
    """The newest of it as it was read; empty where it was no line."""


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


def diagnosis_of(incident: Incident) -> Diagnosis:
    """Return what is believed to have broken; of an incident without a hypothesis what its findings alone say."""
    hypothesis = incident.hypothesis
    if hypothesis is None:
        return Diagnosis(
            cause=incident.cause,
            culprits=tuple(sorted(incident.nodes)),
            places=tuple(sorted(incident.nodes)),
            confidence_words=confidence_words(None),
            evidence_for=tuple(dict.fromkeys(each.explanation for each in incident.findings)),
        )
    return Diagnosis(
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


def sightings_of(incident: Incident) -> tuple[Sighting, ...]:
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
            Sighting(
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


# -- `incidents` --


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentList:
    """The answer of `incidents`; `problems` names what could not be read."""

    cluster: str
    taken_at: datetime
    incidents: tuple[IncidentOutlook, ...] | None
    """None where the ledger or its place is not known."""
    problems: tuple[str, ...]


def read_incidents(cluster: Cluster, *, closed_within: timedelta | None) -> IncidentList:
    """Return the open incidents, each with its plan; those that changed so lately too, or None: no closed ones."""
    now = cluster.clock.now()
    outlook = Outlook(cluster)
    refused = cluster.ledger.why_refused()
    missing = () if refused is None else (refused.words,)
    chosen = outlook.state.incidents if closed_within is None else cluster.ledger.incidents_since(now - closed_within)
    return IncidentList(
        cluster=cluster.name,
        taken_at=now,
        incidents=tuple(outlook.view(incident) for incident in chosen),
        problems=(*missing, *outlook.problems, *(str(each) for each in cluster.troubles)),
    )


def incidents_without(problem: Exception, cluster_file: Path) -> IncidentList:
    """Return that the incidents are not known, and why."""
    return IncidentList(
        cluster=str(cluster_file), taken_at=SystemClock().now(), incidents=None, problems=(str(problem),)
    )


def incidents_json(found: IncidentList) -> Keys:
    return {
        "cluster": found.cluster,
        "taken_at": found.taken_at,
        "incidents": None if found.incidents is None else [incident_json(each) for each in found.incidents],
        "problems": found.problems,
    }


def incident_json(shown: IncidentOutlook) -> Keys:
    """Return one incident as every answer has it."""
    incident = shown.incident
    return {
        "incident": incident.incident,
        "state": incident.state,
        "response": incident.response.name.lower(),
        "nodes": sorted(incident.nodes),
        "gpus": sorted(incident.gpus),
        "victims": [attempt.job for attempt in sorted(incident.victims)],
        "what": incident.cause,
        "note": incident.note,
        **fields_of(incident, "opened_at changed_at closed_at"),
        "open_for_seconds": shown.open_for.total_seconds(),
        "waits_for": shown.waits_for,
        "plan": None if shown.plan is None else _plan_json(shown.plan),
        "diagnosis": diagnosis_of(incident),
        "overlaps": shown.overlaps,
        "next_step": shown.next_step,
    }


def _plan_json(shown: PlanOutlook) -> Keys:
    plan, approval = shown.recorded, shown.approval
    return {
        "plan": plan.plan,
        "standing": shown.standing,
        "response": plan.response.name.lower(),
        "reason": plan.reason,
        "steps": shown.steps,
        **fields_of(plan, "effects rejected_alternatives"),
        "approved_by": None if approval is None else approval.actor,
        "approved_until": None if approval is None else approval.expires_at,
        "left_to": plan.left_to,
    }


def incidents_document(found: IncidentList) -> doc.Document:
    """Return one row an incident; those that became part of another one as a number."""
    listed_ones = found.incidents or ()
    rows = [each for each in listed_ones if each.incident.state is not IncidentState.MERGED]
    merged_count = len(listed_ones) - len(rows)
    is_asking = any(
        each.plan is not None and each.plan.standing is PlanStanding.WAITS_FOR_APPROVAL for each in listed_ones
    )
    return doc.Document(
        title="Incidents",
        cluster=found.cluster,
        about="",
        command="ops-pipelines incidents",
        now=found.taken_at,
        blocks=doc.sections(
            doc.Table(
                columns=doc.columns_of("Incident:name|State:name|Age:name|Culprits|What, and what is done:words"),
                rows=[
                    (
                        each.incident.incident,
                        state_of(each.incident),
                        duration(each.open_for),
                        culprits_of(each.incident),
                        "; ".join(_situation(each)),
                    )
                    for each in rows
                ],
                at_most=len(rows),
                empty="which incidents are open is not known" if found.incidents is None else "no incidents",
            ),
            doc.Note(words=f"{merged_count} more became part of one of these; `ops-pipelines explain` names them")
            if merged_count
            else None,
            doc.Note(
                words="`ops-pipelines approve PLAN-...` shows a plan and asks for your approval", mood=doc.Mood.SOFT
            )
            if is_asking
            else None,
        ),
    )


def culprits_of(incident: Incident) -> str:
    """Return the culprits by name, the rest by number; an incident without one names its jobs."""
    jobs = tuple(f"job {each.job}" for each in sorted(incident.victims))
    return (
        listed(diagnosis_of(incident).places or tuple(sorted(incident.nodes)) or jobs, at_most=_CULPRITS_SHOWN)
        or "none"
    )


def _situation(shown: IncidentOutlook) -> Iterator[str]:
    incident, plan, diagnosis = shown.incident, shown.plan, diagnosis_of(shown.incident)
    yield diagnosis.cause + ("" if diagnosis.confidence is None else f" ({diagnosis.confidence:.0%} sure)")
    if incident.note.startswith(PAGED):
        yield shown.next_step
    elif incident.note not in (incident.cause, diagnosis.cause):
        yield f"note: {incident.note}"
    if shown.waits_for is not None and shown.waits_for != "approval":  # Its plan says that next.
        yield f"waits for {shown.waits_for}"
    if plan is not None and incident.state is not IncidentState.RESOLVED:
        left_to = plan.recorded.left_to
        does = f"left to the person who drained it ({left_to})" if left_to else _spaced(incident.response.name)
        yield f"{does}, {plan.recorded.plan}: {plan.words}"


# -- one plan --


def plan_blocks(plan: PlanOutlook) -> tuple[doc.Block, ...]:
    """Return every step, every effect and what was rejected."""
    return doc.sections(
        doc.Heading(text=f"Plan {plan.recorded.plan}: {plan.words}"),
        doc.Fields(rows={"why": plan.recorded.reason}),
        doc.Items(items=plan.steps, is_ordered=True),
        plan_effects(plan),
    )


def plan_document(plan: PlanOutlook, *, cluster: str) -> doc.Document:
    """Return one plan by itself, as a person is asked to approve it."""
    title, *blocks = plan_blocks(plan)
    assert isinstance(title, doc.Heading), "a plan begins with its heading"
    return doc.Document(title=doc.plain(title.text), cluster=cluster, about="", blocks=blocks)


def plan_effects(plan: PlanOutlook) -> doc.Items:
    recorded = plan.recorded
    named = [("effect", each) for each in recorded.effects] + [("not", each) for each in recorded.rejected_alternatives]
    return doc.Items(items=[(soft(f"{name}: "), words) for name, words in named])


# -- `show`: one incident from its findings to its last ledger entry --


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The answer of `show`."""

    cluster: str
    taken_at: datetime
    shown: IncidentOutlook
    actions: tuple[ActionRecord, ...]
    entries: tuple[Entry, ...]
    problems: tuple[str, ...]

    @property
    def findings(self) -> Sequence[Finding]:
        """Return the findings, oldest first."""
        return sorted(self.shown.incident.findings, key=lambda finding: finding.found_at)


def read_story(incident: Incident, cluster: Cluster) -> Story:
    """Return one incident from its findings to its last line in the ledger."""
    outlook = Outlook(cluster)
    entries = entries_of(incident, cluster.ledger)
    return Story(
        cluster=cluster.name,
        taken_at=cluster.clock.now(),
        shown=outlook.view(incident, entries=entries),
        actions=tuple(cluster.ledger.records(incident.incident)),
        entries=entries,
        problems=outlook.problems,
    )


def story_json(story: Story) -> Keys:
    return {
        "cluster": story.cluster,
        "taken_at": story.taken_at,
        "incident": incident_json(story.shown),
        "findings": [
            {
                **fields_of(each, "rule node"),
                "response": each.response.name.lower(),
                **fields_of(each, "found_at explanation source"),
                "evidence": [fields_of(piece, "source position observed_at text") for piece in each.evidence],
            }
            for each in story.findings
        ],
        "actions": [action_json(each) for each in story.actions],
        "entries": [
            {**fields_of(each, "seq written_at kind actor"), "what": gist_of(each), "entry_hash": each.entry_hash}
            for each in story.entries
        ],
        "problems": story.problems,
    }


def action_json(record: ActionRecord) -> Keys:
    """Return an action. Its `outcome` is `done`, `failed`, `unknown`, or null while its witness is awaited."""
    outcome = record.outcome
    return {
        "action": explain_action(record.action),
        **fields_of(record, "plan begun_at sent_at"),
        "finished_at": None if outcome is None else outcome.finished_at,
        "outcome": None if outcome is None else outcome.kind,
        "witness": None if outcome is None else outcome.witness,
    }


def story_document(story: Story) -> doc.Document:
    shown = story.shown
    incident, diagnosis = shown.incident, diagnosis_of(shown.incident)
    return doc.Document(
        title=incident.incident,
        state=state_of(incident),
        cluster=story.cluster,
        about="",
        command=f"ops-pipelines show {incident.incident}",
        now=story.taken_at,
        blocks=doc.sections(
            doc.Fields(
                rows={
                    "calls for": _spaced(incident.response.name),
                    "what broke": diagnosis.cause,
                    "sure": "" if diagnosis.confidence is None else diagnosis.sureness,
                    "culprits": ", ".join(diagnosis.culprits or sorted(incident.nodes)) or "no node",
                    "affected": ", ".join(diagnosis.affected_nodes),
                    "GPUs": ", ".join(sorted(incident.gpus)),
                    "victims": ", ".join(f"job {each.job}" for each in sorted(incident.victims)),
                    "opened": moment(incident.opened_at),
                    "closed": "" if incident.closed_at is None else moment(incident.closed_at),
                    "open for": duration(shown.open_for),
                    "note": incident.note,
                    "waits for": shown.waits_for or "",
                    "two copies": "; ".join(shown.overlaps),
                }
            ),
            doc.Heading(text="Findings"),
            [_finding_card(each) for each in story.findings],
            () if shown.plan is None else plan_blocks(shown.plan),
            _actions_blocks(story.actions),
            doc.Heading(text="Ledger"),
            doc.Table(
                columns=doc.columns_of("Seq:count|Written:moment|Who|What:words"),
                rows=[(each.seq, each.written_at, each.actor, _entry_words(each)) for each in story.entries],
                at_most=len(story.entries),
            ),
        ),
    )


def _entry_words(entry: Entry) -> str:
    return ": ".join(filter(None, (_spaced(entry.kind.value), gist_of(entry))))


def _finding_card(finding: Finding) -> doc.Card:
    evidence = enumerate((f"{each.source} {each.position}: {each.text}" for each in finding.evidence), start=1)
    return doc.Card(
        title=f"{moment(finding.found_at)}  {finding.node}  {finding.rule}: {finding.explanation}",
        rows={
            "calls for": _spaced(finding.response.name),
            "rule": finding.source,
            **{f"evidence {number}": words for number, words in evidence},
        },
    )


def _actions_blocks(actions: Sequence[ActionRecord]) -> tuple[doc.Block, ...]:
    if not actions:
        return ()
    rows = [
        (
            each.begun_at, _later(each, each.sent_at),
            _later(each, None if each.outcome is None else each.outcome.finished_at),
            explain_action(each.action), _outcome_words(each),
        )
        for each in actions
    ]  # fmt: skip
    columns = doc.columns_of("Started:moment|Sent:name|Ended:name|Action:words|Outcome and witness:words")
    return doc.Heading(text="Actions"), doc.Table(columns=columns, rows=rows, at_most=len(rows))


def _later(record: ActionRecord, at: datetime | None) -> str:
    return "" if at is None else f"+{(at - record.begun_at).total_seconds():.1f} s"


def _outcome_words(record: ActionRecord) -> tuple[doc.Span | str, ...]:
    outcome = record.outcome
    if outcome is None:
        return ("under way",)
    word = outcome.kind.value
    return toned(word, _MOODS.get(word)), f": {outcome.witness}" if outcome.witness else ""


# -- words --


def state_of(incident: Incident) -> doc.Span:
    return toned(incident.state.value, _MOODS.get(incident.state.value))


def _spaced(name: str) -> str:
    return name.lower().replace("_", " ")
