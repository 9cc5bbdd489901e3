"""What `explain` and `diagnose` answer: what broke, why we believe so, and what will be done; keys and documents.

One incident on a page, of the ledger or found again in recorded time. Its diagnosis and its plan are shown as
`incidents` beside this module has them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.fault import FIRST_STEPS
from ops_pipelines.core.identity import JobId, listed
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.record import BundleError, SavedBundle
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.bundle import began_at
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Keys, fields_of, soft, strong
from ops_pipelines.report.numbers import counted, duration, moment
from ops_pipelines.terminal.incidents import (
    NAMES_SHOWN,
    Diagnosis,
    Sighting,
    action_json,
    diagnosis_of,
    incident_json,
    plan_effects,
    sightings_of,
    state_of,
)
from ops_pipelines.terminal.outlook import IncidentOutlook, Outlook, PlanStanding, entries_of

_LOOK_BACK = timedelta(days=30)
_SIGHTINGS_SHOWN, _JOBS_SHOWN, _REASONS_SHOWN = 8, 5, 4
_OF_ONE_RULE_SHOWN = 2
"""A switch that fails is the same line on each of its nodes."""


# -- `explain`: what broke, why we believe so, and what will be done, on one page --


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer of `explain`."""

    cluster: str
    taken_at: datetime
    shown: IncidentOutlook
    victims: tuple[tuple[JobId, JobStatus | None], ...]
    """The jobs that suffer, with what the scheduler shows of them; None: it does not know them any more."""
    actions: tuple[ActionRecord, ...]
    bundles: tuple[SavedBundle, ...]
    related: tuple[tuple[Incident, str], ...]
    """Other incidents, and what the two have to do with each other."""
    problems: tuple[str, ...]


def explain_incident(incident: Incident, cluster: Cluster) -> Explanation:
    """Return the explanation of an incident. What a system did not answer is left out, and `problems` names it."""
    outlook = Outlook(cluster)
    problems = list(outlook.problems)
    entries = entries_of(incident, cluster.ledger)
    jobs: Mapping[JobId, JobStatus] = {}
    if incident.victims:
        try:
            jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
        except SourceError as problem:
            problems.append(str(problem))
    bundles: Sequence[SavedBundle] = ()
    if cluster.bundles is not None:
        try:
            bundles = cluster.bundles.of(incident.incident)
        except BundleError as problem:
            problems.append(str(problem))
    now = cluster.clock.now()
    others = cluster.ledger.incidents_since(min(now, incident.opened_at) - _LOOK_BACK)
    return Explanation(
        cluster=cluster.name,
        taken_at=now,
        shown=outlook.view(incident, entries=entries),
        victims=tuple((attempt.job, jobs.get(attempt.job)) for attempt in sorted(incident.victims)),
        actions=tuple(cluster.ledger.records(incident.incident)),
        bundles=tuple(bundles),
        related=tuple(_related(incident, others)),
        problems=tuple(dict.fromkeys(problems)),
    )


def _related(incident: Incident, others: Iterable[Incident]) -> Iterator[tuple[Incident, str]]:
    """Yield what was merged into this incident or it into, and what is open on the same nodes."""
    for other in others:
        shared = sorted(incident.nodes & other.nodes)
        if other.incident == incident.incident:
            continue
        if _names(other.note, incident):
            yield other, other.note
        elif _names(incident.note, other):
            yield other, f"this one is {incident.note}"
        elif shared and other.is_open:
            yield other, f"open on the same node: {listed(shared, at_most=NAMES_SHOWN)}"


def _names(note: str, incident: Incident) -> bool:
    return incident.incident in note.replace(",", " ").replace(".", " ").replace(";", " ").split()


def explanation_json(found: Explanation) -> Keys:
    incident = found.shown.incident
    return {
        "cluster": found.cluster,
        "taken_at": found.taken_at,
        "incident": incident_json(found.shown),
        "began_at": began_at(incident),
        "victims": [
            {
                "job": name,
                "state": None if job is None else job.state,
                "gpu_count": None if job is None else job.gpu_count,
                "nodes": [] if job is None else sorted(job.nodes),
            }
            for name, job in found.victims
        ],
        "sightings": sightings_of(incident),
        "actions": [action_json(each) for each in found.actions],
        "bundles": [
            {
                **fields_of(each, "reason saved_at place"),
                "sha256": each.digest,
                "is_in_ledger": each.digest == incident.bundle,
                **fields_of(each, "files missing"),
            }
            for each in found.bundles
        ],
        "related": [{**fields_of(other, "incident state"), "why": why} for other, why in found.related],
        "problems": found.problems,
    }


def explanation_document(found: Explanation) -> doc.Document:
    """Return the page: its first lines answer what, who and what next; the rest is there to check it."""
    shown = found.shown
    incident, diagnosis = shown.incident, diagnosis_of(shown.incident)
    plan = shown.plan if shown.plan is not None and shown.plan.standing is not PlanStanding.ENDED else None
    others = [
        f"{each.confidence:.0%} {each.statement}; less likely: {each.why_less_likely}"
        for each in diagnosis.alternatives
    ]
    return doc.Document(
        title=incident.incident,
        state=state_of(incident),
        cluster=found.cluster,
        about="",
        command=f"ops-pipelines explain {incident.incident}",
        now=found.taken_at,
        blocks=doc.sections(
            doc.Heading(text="What broke"),
            doc.Note(words=strong(diagnosis.cause)),
            doc.Fields(rows=_who(found, diagnosis)),
            doc.Heading(text="Why we believe so"),
            _reasons(incident, diagnosis),
            doc.Heading(text="Evidence against it"),
            _listed(diagnosis.evidence_against, empty="none was found"),
            _under("What else it could be", others),
            _under("What would settle it", [diagnosis.settled_by] if diagnosis.settled_by else []),
            doc.Heading(text="What will be done"),
            doc.Note(words=shown.next_step),
            () if plan is None else (doc.Items(items=plan.steps, is_ordered=True), plan_effects(plan)),
            doc.Note(words=f"`ops-pipelines approve {plan.recorded.plan}` asks for your approval")
            if plan is not None and plan.standing is PlanStanding.WAITS_FOR_APPROVAL
            else None,
            doc.Heading(text="What was done"),
            _listed([_deed(each) for each in found.actions], empty="nothing yet"),
            _under("Related incidents", list(_related_lines(found))),
            doc.Heading(text="Evidence kept"),
            _listed(list(_bundle_lines(found)), empty="no bundle; what the ledger holds is above"),
        ),
    )


def _who(found: Explanation, diagnosis: Diagnosis) -> Mapping[str, doc.Words]:
    incident, began = found.shown.incident, began_at(found.shown.incident)
    at_fault = "" if diagnosis.at_fault is None else f"; at fault: {diagnosis.at_fault}, family: {diagnosis.family}"
    opened = "" if incident.opened_at == began else f"; opened {_clock(incident.opened_at)}"
    lasted = duration((incident.closed_at or found.taken_at) - began)
    nodes = diagnosis.affected_nodes
    return {
        "sure": f"{diagnosis.sureness}{at_fault}",
        "culprit": diagnosis.shown_culprits,
        "victims": _victims_words(found),
        "nodes": f"{counted(len(nodes), 'node')}: {listed(nodes, at_most=NAMES_SHOWN)}" if nodes else "",
        "since": f"{moment(began)}{opened}; lasts {lasted}"
        if incident.is_open
        else f"{moment(began)}{opened}; {lasted}",
        "copies": "; ".join(found.shown.overlaps),
        "next": found.shown.next_step,
    }


def _victims_words(found: Explanation) -> str:
    if not found.victims:
        return "no job is known to suffer"
    counts = [job.gpu_count for _, job in found.victims if job is not None]
    gpus = f", {sum(counts)} GPUs" if counts else ""
    gpus += " known" if counts and len(counts) < len(found.victims) else ""
    jobs = [name if job is None else f"{name} ({job.state.value})" for name, job in found.victims]
    return f"{counted(len(jobs), 'job')}{gpus}: {listed(jobs, at_most=_JOBS_SHOWN)}"


def _reasons(incident: Incident, diagnosis: Diagnosis) -> tuple[doc.Block, ...]:
    """Return the reasons, then what was read, without saying a thing twice."""
    reasons = diagnosis.evidence_for
    fresh = [each for each in sightings_of(incident) if each.line or each.count > 1 or not _is_in(each, reasons)]
    shown = _examples(fresh)[:_SIGHTINGS_SHOWN]
    rest = len(fresh) - len(shown)
    if not reasons and not fresh:
        return (doc.Note(words=f"no evidence is recorded: {incident.note}"),)
    return doc.sections(
        doc.Items(items=reasons, sign="+"),
        doc.Items(items=[_sighting_words(each, is_said=_is_in(each, reasons)) for each in shown]),
        doc.Note(words=f"and {rest} more; `ops-pipelines show {incident.incident}` lists all") if rest else None,
    )


def _examples(sightings: Iterable[Sighting]) -> list[Sighting]:
    """Return the first few of each rule, in their order."""
    seen: Counter[str] = Counter()
    found = []
    for each in sightings:
        seen[each.rule] += 1
        if seen[each.rule] <= _OF_ONE_RULE_SHOWN:
            found.append(each)
    return found


def _is_in(sighting: Sighting, reasons: Sequence[str]) -> bool:
    return any(sighting.says in sentence for sentence in reasons)


def _sighting_words(sighting: Sighting, *, is_said: bool) -> doc.Words:
    when = _clock(sighting.first_at)
    if sighting.count > 1:
        when += "" if _clock(sighting.last_at) == when else f" to {_clock(sighting.last_at)}"
        when += f", {sighting.count} times"
    says = "" if is_said else f": {sighting.says}"
    return f"{when}  {sighting.where}  {sighting.rule}{says}", soft(f" | {sighting.line}" if sighting.line else "")


def _deed(record: ActionRecord) -> str:
    return f"{_clock(record.begun_at)}  {explain_action(record.action)}: {_deed_outcome(record)}"


def _deed_outcome(record: ActionRecord) -> str:
    outcome = record.outcome
    return "under way" if outcome is None else ", ".join(filter(None, (outcome.kind.value, outcome.witness)))


def _related_lines(found: Explanation) -> Iterator[str]:
    """Yield one line an incident; those that became part of this one in a single line."""
    part = f"part of {found.shown.incident.incident}"
    parts = [other.incident for other, why in found.related if why == part]
    if len(parts) > 1:
        yield f"{len(parts)} became part of this one: {parts[0]} to {parts[-1]}"
    for other, why in found.related:
        if len(parts) < 2 or why != part:
            yield f"{other.incident} {other.state.value}: {why}"


def _bundle_lines(found: Explanation) -> Iterator[str]:
    for each in found.bundles:
        kept = "; sha256 as in the ledger" if each.digest == found.shown.incident.bundle else ""
        yield f"{each.reason}, {moment(each.saved_at)}: {', '.join(each.files)}{kept}; {each.place}"
    # What cannot be had is stated once, of the newest: in the earlier ones it lacks, too, or there was no time for it.
    newest = max(found.bundles, key=lambda each: each.saved_at, default=None)
    for sentence in () if newest is None else newest.missing:
        yield f"missing: {sentence}"


# -- `diagnose`: what recorded time shows --


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedTime:
    """The answer of `diagnose`: what is known of a moment by what was recorded from `since` on."""

    cluster: str
    since: datetime
    at: datetime
    incidents: tuple[Incident, ...]
    """Found again, not owned and not acted on."""
    gaps: tuple[str, ...]
    """What was not recorded."""
    problems: tuple[str, ...]


def diagnosed_json(found: DiagnosedTime) -> Keys:
    return {
        **fields_of(found, "cluster since at"),
        "incidents": [
            {
                "incident": each.incident,
                "state": each.state,
                "nodes": sorted(each.nodes),
                "victims": [attempt.job for attempt in sorted(each.victims)],
                "began_at": began_at(each),
                "closed_at": each.closed_at,
                "diagnosis": diagnosis_of(each),
                "sightings": sightings_of(each),
            }
            for each in found.incidents
        ],
        **fields_of(found, "gaps problems"),
    }


def diagnosed_document(found: DiagnosedTime) -> doc.Document:
    """Return one section an incident, in the order in which they began."""
    silence = "no incident in what was recorded; what nobody recorded cannot be called healthy"
    ordered = sorted(found.incidents, key=lambda each: (began_at(each), each.incident))
    return doc.Document(
        title=found.cluster,
        cluster=found.cluster,
        about="",
        blocks=doc.sections(
            doc.Note(words=f"recorded from {moment(found.since)} to {moment(found.at)}"),
            None if ordered else doc.Note(words=silence),
            [block for each in ordered for block in _diagnosed_blocks(each)],
            _under("Not recorded", found.gaps),
        ),
    )


def _diagnosed_blocks(incident: Incident) -> tuple[doc.Block, ...]:
    diagnosis = diagnosis_of(incident)
    until = "" if incident.closed_at is None else f" to {_clock(incident.closed_at)}"
    jobs = [attempt.job for attempt in sorted(incident.victims)]
    first = next((words for step, words in FIRST_STEPS.items() if step.value == diagnosis.first_action), "")
    return doc.sections(
        doc.Heading(text=f"{incident.incident}  {'' if until else 'since '}{_clock(began_at(incident))}{until}"),
        doc.Note(words=strong(diagnosis.cause)),
        doc.Fields(
            rows={
                "sure": diagnosis.sureness,
                "culprit": diagnosis.shown_culprits,
                "victims": f"{counted(len(jobs), 'job')}: {listed(jobs, at_most=_JOBS_SHOWN)}" if jobs else "",
                "first": first,
            }
        ),
        doc.Items(items=diagnosis.evidence_for[:_REASONS_SHOWN], sign="+"),
        doc.Items(items=diagnosis.evidence_against[:_REASONS_SHOWN]),
    )


# -- words --


def _under(title: str, lines: Sequence[str]) -> tuple[doc.Block, ...]:
    return (doc.Heading(text=title), doc.Items(items=lines)) if lines else ()


def _listed(lines: Sequence[str], *, empty: str) -> doc.Block:
    return doc.Items(items=lines) if lines else doc.Note(words=empty)


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %H:%M:%S}"
