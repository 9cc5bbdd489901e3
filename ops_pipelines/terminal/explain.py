"""`ops-pipelines explain`: what stands behind an incident, as values and as print."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.fault import FIRST_STEPS, FirstAction
from ops_pipelines.core.identity import listed
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.record import BundleError, SavedBundle
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.bundle import began_at
from ops_pipelines.report.numbers import moment
from ops_pipelines.report.terminal import printable
from ops_pipelines.terminal.outlook import Outlook, entries_of
from ops_pipelines.terminal.tables import ActionView, duration_text, style_of, view_action
from ops_pipelines.terminal.views import (
    DiagnosedTimeView,
    DiagnosisView,
    IncidentView,
    PlanStanding,
    PlanView,
    SightingView,
    view_sightings,
)

# -- what `explain` answers --


_NAMES_LISTED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimView:
    """One job that suffers. Null is what the scheduler no longer tells."""

    job: str
    state: str | None
    gpu_count: int | None
    nodes: tuple[str, ...]


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


def view_victims(incident: Incident, jobs: Iterable[JobStatus]) -> tuple[VictimView, ...]:
    """Return the jobs that suffer, with what the scheduler says of the same attempt."""
    known = {job.job: job for job in jobs}
    found = []
    for attempt in sorted(incident.victims):
        job = known.get(attempt.job)
        found.append(
            VictimView(
                job=attempt.job,
                state=None if job is None else job.state.value,
                gpu_count=None if job is None else job.gpu_count,
                nodes=() if job is None else tuple(sorted(job.nodes)),
            )
        )
    return tuple(found)


def view_related(incident: Incident, others: Iterable[Incident]) -> tuple[RelatedView, ...]:
    """Return what was merged into this incident or it into, and what is open on the same nodes."""
    found = []
    for other in others:
        if other.incident == incident.incident:
            continue
        shared = sorted(incident.nodes & other.nodes)
        if _names(other.note, incident):
            why = other.note
        elif _names(incident.note, other):
            why = f"this one is {incident.note}"
        elif shared and other.is_open:
            why = f"open on the same node: {listed(shared, at_most=_NAMES_LISTED)}"
        else:
            continue
        found.append(RelatedView(incident=other.incident, state=other.state.value, why=why))
    return tuple(found)


def _names(note: str, incident: Incident) -> bool:
    return incident.incident in note.replace(",", " ").replace(".", " ").replace(";", " ").split()


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


# -- explains one incident on one page --


_LOOK_BACK = timedelta(days=30)
_SIGHTINGS_SHOWN, _NAMES_SHOWN, _JOBS_SHOWN, _REASONS_SHOWN = 8, 6, 5, 4
_OF_ONE_RULE_SHOWN = 2
"""A switch that fails is the same line on each of its nodes."""


def explain(incident: Incident, cluster: Cluster) -> ExplanationView:
    """Return the explanation of an incident. What a system did not tell is left out, and `problems` names it."""
    outlook = Outlook(cluster)
    problems = list(outlook.problems)
    entries = entries_of(incident, cluster.ledger)
    jobs: tuple[JobStatus, ...] = ()
    if incident.victims:
        try:
            jobs = cluster.scheduler.read_jobs()
        except SourceError as problem:
            problems.append(str(problem))
    bundles: tuple[BundleView, ...] = ()
    if cluster.bundles is not None:
        try:
            kept = cluster.bundles.of(incident.incident)
            bundles = tuple(view_bundle(each, incident=incident) for each in kept)
        except BundleError as problem:
            problems.append(str(problem))
    now = cluster.clock.now()
    others = cluster.ledger.incidents_since(min(now, incident.opened_at) - _LOOK_BACK)
    return ExplanationView(
        cluster=cluster.name,
        taken_at=now,
        incident=outlook.view(incident, entries=entries),
        began_at=began_at(incident),
        victims=view_victims(incident, jobs),
        sightings=view_sightings(incident),
        actions=tuple(view_action(record) for record in cluster.ledger.records(incident.incident)),
        bundles=bundles,
        related=view_related(incident, others),
        problems=tuple(dict.fromkeys(problems)),
    )


def print_explanation(out: Console, view: ExplanationView) -> None:
    """Print the page: its first lines answer what, who and what next; the rest is there to check it."""
    incident, diagnosis = view.incident, view.incident.diagnosis
    head = Text(f"{printable(incident.incident)}  {incident.state}", style=style_of(incident.state))
    head.append(f"  since {moment(view.began_at)}, {duration_text(_lasted(view))}", style="not bold default")
    out.print(head)
    _section(out, "What broke")
    _item(out, "", f"{diagnosis.cause}", style="bold")
    _fields(out, _who(view))
    _section(out, "Why we believe so")
    _print_reasons(out, view)
    _section(out, "What speaks against it")
    for sentence in diagnosis.evidence_against:
        _item(out, "-", sentence)
    if not diagnosis.evidence_against:
        _item(out, "", "nothing that was found")
    if diagnosis.alternatives:
        _section(out, "What else it could be")
        for each in diagnosis.alternatives:
            _item(out, f"{each.confidence:.0%}", f"{each.statement}; less likely: {each.why_less_likely}")
    if diagnosis.settled_by:
        _section(out, "What would settle it")
        _item(out, "", diagnosis.settled_by)
    _section(out, "What will be done")
    _item(out, "", incident.next_step)
    if incident.plan is not None and incident.plan.standing is not PlanStanding.ENDED:
        _print_plan(out, incident.plan)
    _section(out, "What was done")
    for action in view.actions:
        _item(out, _clock(action.begun_at), _deed(action))
    if not view.actions:
        _item(out, "", "nothing yet")
    if view.related:
        _section(out, "Related incidents")
        _print_related(out, view)
    _section(out, "Evidence kept")
    for bundle in view.bundles:
        _print_bundle(out, bundle)
    # What cannot be had is said once, of the newest: in the earlier ones it lacks, too, or there was no time for it.
    for sentence in max(view.bundles, key=lambda each: each.saved_at).missing if view.bundles else ():
        _item(out, "missing", sentence, style="dim")
    if not view.bundles:
        _item(out, "", "no bundle; what the ledger holds is above")


def print_diagnosed(out: Console, view: DiagnosedTimeView) -> None:
    """Print what recorded time shows: one paragraph an incident, in the order in which they began."""
    _item(out, "", f"{view.cluster}, recorded from {moment(view.since)} to {moment(view.at)}")
    if not view.incidents:
        _item(out, "", "no incident in what was recorded; what nobody recorded cannot be called healthy")
    for each in sorted(view.incidents, key=lambda incident: (incident.began_at, incident.incident)):
        until = "" if each.closed_at is None else f" to {_clock(each.closed_at)}"
        _section(out, f"{each.incident}  {'' if until else 'since '}{_clock(each.began_at)}{until}")
        _item(out, "", each.diagnosis.cause, style="bold")
        _item(out, "sure    ", _sureness(each.diagnosis))
        _item(out, "culprit ", listed(each.diagnosis.culprits, at_most=_NAMES_SHOWN) or "nobody knows yet")
        if each.victims:
            _item(out, "victims ", f"{_counted(len(each.victims), 'job')}: {listed(each.victims, at_most=_JOBS_SHOWN)}")
        for sentence in each.diagnosis.evidence_for[:_REASONS_SHOWN]:
            _item(out, "+", sentence)
        for sentence in each.diagnosis.evidence_against[:_REASONS_SHOWN]:
            _item(out, "-", sentence)
        if each.diagnosis.first_action is not None:
            _item(out, "first   ", FIRST_STEPS[FirstAction(each.diagnosis.first_action)])
    if view.gaps:
        _section(out, "Not recorded")
        for gap in view.gaps:
            _item(out, "-", gap)


def _print_reasons(out: Console, view: ExplanationView) -> None:
    """Print the reasons, then what was read, without saying a thing twice."""
    reasons = view.incident.diagnosis.evidence_for
    for sentence in reasons:
        _item(out, "+", sentence)
    fresh = [each for each in view.sightings if each.line or each.count > 1 or not _is_told(each, reasons)]
    shown = _examples(fresh)[:_SIGHTINGS_SHOWN]
    for sighting in shown:
        _print_sighting(out, sighting, is_told=_is_told(sighting, reasons))
    if len(fresh) > len(shown):
        rest = len(fresh) - len(shown)
        _item(out, "", f"and {rest} more; `ops-pipelines show {view.incident.incident}` lists all")
    if not reasons and not fresh:
        _item(out, "", f"no evidence is recorded: {view.incident.note}")


def _examples(sightings: Iterable[SightingView]) -> list[SightingView]:
    """Return the first few of each rule, in their order."""
    seen: Counter[str] = Counter()
    found = []
    for each in sightings:
        seen[each.rule] += 1
        if seen[each.rule] <= _OF_ONE_RULE_SHOWN:
            found.append(each)
    return found


def _print_related(out: Console, view: ExplanationView) -> None:
    """Print one line an incident; those that became part of this one in a single line."""
    part = f"part of {view.incident.incident}"
    parts = [each.incident for each in view.related if each.why == part]
    if len(parts) > 1:
        _item(out, "", f"{len(parts)} became part of this one: {parts[0]} to {parts[-1]}")
    for related in view.related:
        if len(parts) < 2 or related.why != part:
            _item(out, related.incident, f"{related.state}: {related.why}")


def _is_told(sighting: SightingView, reasons: Sequence[str]) -> bool:
    return any(sighting.says in sentence for sentence in reasons)


def _print_plan(out: Console, plan: PlanView) -> None:
    for number, step in enumerate(plan.steps, start=1):
        _item(out, f"{number}.", step)
    for effect in plan.effects:
        _item(out, "effect", effect)
    for alternative in plan.rejected_alternatives:
        _item(out, "not", alternative)
    if plan.standing is PlanStanding.WAITS_FOR_APPROVAL:
        _item(out, "", f"`ops-pipelines approve {plan.plan}` asks for your yes")


def _lasted(view: ExplanationView) -> timedelta:
    return (view.incident.closed_at or view.taken_at) - view.began_at


def _sureness(diagnosis: DiagnosisView) -> str:
    if diagnosis.confidence is None:
        return diagnosis.confidence_words
    return f"{diagnosis.confidence_words} ({diagnosis.confidence:.0%})"


def _who(view: ExplanationView) -> Iterable[tuple[str, str]]:
    incident, diagnosis = view.incident, view.incident.diagnosis
    at_fault = "" if diagnosis.at_fault is None else f"; at fault: {diagnosis.at_fault}, family: {diagnosis.family}"
    yield "sure", f"{_sureness(diagnosis)}{at_fault}"
    yield "culprit", listed(diagnosis.culprits, at_most=_NAMES_SHOWN) or "nobody knows yet"
    if view.victims:
        counts = [each.gpu_count for each in view.victims if each.gpu_count is not None]
        gpus = f", {sum(counts)} GPUs" if counts else ""
        gpus += " known" if counts and len(counts) < len(view.victims) else ""
        jobs = [f"{each.job}{f' ({each.state})' if each.state else ''}" for each in view.victims]
        yield "victims", f"{_counted(len(view.victims), 'job')}{gpus}: {listed(jobs, at_most=_JOBS_SHOWN)}"
    else:
        yield "victims", "no job is known to suffer"
    if diagnosis.affected_nodes:
        nodes = diagnosis.affected_nodes
        yield "", f"{_counted(len(nodes), 'node')}: {listed(nodes, at_most=_NAMES_SHOWN)}"
    opened = incident.opened_at
    yield "since", moment(view.began_at) + ("" if opened == view.began_at else f"; opened {_clock(opened)}")
    for told in incident.overlaps:
        yield "copies", told
    yield "next", incident.next_step


def _print_sighting(out: Console, sighting: SightingView, *, is_told: bool) -> None:
    when = _clock(sighting.first_at)
    if sighting.count > 1:
        when += "" if _clock(sighting.last_at) == when else f" to {_clock(sighting.last_at)}"
        when += f", {sighting.count} times"
    said = "" if is_told else f": {sighting.says}"
    _item(out, "", f"{when}  {sighting.where}  {sighting.rule}{said}")
    if sighting.line:
        _item(out, "  |", sighting.line, style="dim")


def _deed(action: ActionView) -> str:
    witness = f", {action.witness}" if action.witness else ""
    return f"{action.action}: {action.outcome or 'under way'}{witness}"


def _print_bundle(out: Console, bundle: BundleView) -> None:
    kept = "; sha256 as in the ledger" if bundle.is_in_ledger else ""
    _item(out, "", f"{bundle.reason}, {moment(bundle.saved_at)}: {', '.join(bundle.files)}{kept}")
    _item(out, " ", bundle.place)


def _section(out: Console, title: str) -> None:
    out.print(Text(f"\n{title}", style="bold"))


def _item(out: Console, mark: str, text: str, *, style: str = "") -> None:
    """Print a text indented by two, behind a mark; further lines stand below the text."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    if mark:
        grid.add_column(overflow="fold")
        grid.add_row(Text(mark, style=style), Text(printable(text), style=style))
    else:
        grid.add_row(Text(printable(text), style=style, no_wrap=False, overflow="fold"))
        grid.columns[0].no_wrap = False
    out.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _fields(out: Console, fields: Iterable[tuple[str, str]]) -> None:
    for name, value in fields:
        _item(out, f"{name:<8}", value)


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %H:%M:%S}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
