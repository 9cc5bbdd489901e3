"""The report on one incident as a document: what happened, why, what it cost, what is left to do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import listed
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Mood, Number, code, soft, strong
from ops_pipelines.report.numbers import counted, moment, percent, span_words
from ops_pipelines.review.chain import ReportedPlan, gpu_hours_words
from ops_pipelines.review.cost import REPAIRS_OF_NODES, MilestoneKind, Victim
from ops_pipelines.review.follow_ups import FollowUp, Urgency
from ops_pipelines.review.incident_picture import draw_incident
from ops_pipelines.review.incident_report import IncidentReport
from ops_pipelines.review.timeline import EventKind, EventLane, StoryEvent

_KEY_EVENTS_AT_EACH_END = 12
_KEY_SIGNS = 5
"""A mass event is the same sign on every node."""
_EVENTS_AT_EACH_END = 40
"""How it began and how it ended is what a reader asks for; the chain at the end has every line."""
_WORTH_A_TILE = 0.005
"""GPU-hours: less is reported as none."""
_LINES_AT_MOST = 2_000
_JOBS_AT_MOST = 50
_NAMES_AT_MOST = 16
_TURNING = frozenset(each.value for each in REPAIRS_OF_NODES | {Verb.DRAIN, Verb.POWER_OFF, Verb.RESUME})
_URGENCIES: Mapping[Urgency, tuple[str, Mood]] = {
    Urgency.NOW: ("now", Mood.BAD),
    Urgency.SOON: ("within days", Mood.WARN),
    Urgency.REVIEW: ("worth a look", Mood.SOFT),
}
_WENT_WRONG = frozenset({EventKind.FAILED, EventKind.UNKNOWN, EventKind.REFUSED, EventKind.TESTED_ILL})
_EXPLAINED = _WENT_WRONG | {EventKind.CHANGED, EventKind.STOPPED}
_MOODS: Mapping[EventKind, Mood] = {
    **dict.fromkeys(_WENT_WRONG, Mood.BAD),
    **dict.fromkeys((EventKind.REFUSED, EventKind.UNDER_WAY), Mood.WARN),
    **dict.fromkeys((EventKind.APPROVED, EventKind.TESTED_WELL, EventKind.GOES_ON), Mood.GOOD),
}


def incident_document(report: IncidentReport) -> doc.Document:
    """Return everything that a person reads of an incident, what is left to do first."""
    return doc.Document(
        title=report.incident,
        cluster=report.cluster,
        about=moment(report.began_at) + (f" to {moment(report.closed_at)}" if report.closed_at else ", still open"),
        state=doc.Span(text=report.state.replace("_", " ")),
        home="",
        command=f"ops-pipelines report {report.incident}",
        now=report.written_at,
        blocks=doc.sections(
            doc.Note(words=strong(report.headline)),
            doc.Note(words=report.standing, mood=Mood.WARN if report.is_open else Mood.SOFT),
            doc.Numbers(numbers=tuple(_numbers(report))),
            doc.under("What is left to do", _list([_follow_up(each) for each in report.follow_ups], empty="Nothing.")),
            _timeline(report),
            _what_happened(report),
            _evidence(report),
            _decision(report),
            _blast_radius(report.plans),
            _waits(report),
            _cost(report),
            _approvals(report),
            doc.under("Related incidents", _list(_related(report))) if report.related else None,
            doc.under("Not known", _list(report.not_known)) if report.not_known else None,
            _ledger(report),
        ),
    )


def _numbers(report: IncidentReport) -> Iterator[Number]:
    """Yield the numbers of the head, of those that this incident has."""
    cost, until = report.cost, report.closed_at or report.written_at
    (noticed,) = (each for each in report.milestones if each.kind is MilestoneKind.NOTICED)
    yield Number(value=span_words(noticed.since_began_seconds), about="until noticed")
    if report.drained_at is not None:
        out = span_words(max(0.0, ((report.returned_at or until) - report.drained_at).total_seconds()))
        still = "" if report.returned_at is not None else " so far"
        yield Number(value=out + still, about=f"{listed(report.nodes, at_most=1)} out of service")
    if moved := [each for each in report.victims if each.held_at is not None]:
        stops = [(each.resumed_at or until) - each.stopped_at for each in moved if each.stopped_at is not None]
        longest = span_words(max(timedelta(0), *stops).total_seconds())
        yield Number(value=counted(len(moved), "job"), about=f"moved; stood still for {longest} at most")
        mood = Mood.BAD if cost.lost >= 1 else None
        yield Number(value=gpu_hours_words(cost.lost), about="GPU-hours lost by jobs", mood=mood)
    elif report.victims:
        yield Number(value=str(len(report.victims)), about="jobs on it, none moved")
    if cost.out_of_service:
        yield Number(value=gpu_hours_words(cost.out_of_service), about="GPU-hours out of service")
    if cost.saved is not None and abs(cost.saved) >= _WORTH_A_TILE:
        mood = Mood.GOOD if cost.saved > 0 else None
        yield Number(value=gpu_hours_words(cost.saved), about="GPU-hours saved by timing, expected", mood=mood)
    if report.sureness is not None:
        yield Number(value=percent(report.sureness, digits=0), about="sure of the cause")
    if todo := sum(each.urgency is Urgency.NOW for each in report.follow_ups):
        yield Number(value=str(todo), about="waiting for you", mood=Mood.WARN)


# -- blocks that sections share --


def _list(items: Sequence[doc.Words], *, empty: str = "") -> doc.Block:
    return doc.Items(items=items, at_most=_LINES_AT_MOST) if items else doc.Note(words=empty)


def _headed(title: str, items: Sequence[doc.Words], *, empty: str = "") -> tuple[doc.Block, ...]:
    """Return a small heading and its list; nothing where nothing is listed and nothing is stated instead."""
    return (doc.Heading(text=title, level=3), _list(items, empty=empty)) if items or empty else ()


def _table(
    heads: str, rows: Sequence[doc.Row | tuple[doc.Cell, ...]], *, empty: str = "", at_most: int = _LINES_AT_MOST
) -> doc.Table:
    return doc.Table(columns=doc.columns_of(heads), rows=rows, empty=empty, at_most=at_most)


def _with(text: str, aside: str) -> doc.Words:
    return (text, soft(f" {aside}")) if aside else text


def _at(time: datetime) -> str:
    return f"{time:%d %b %H:%M:%S}"


# -- what is left to do, and what happened --


def _follow_up(each: FollowUp) -> doc.Words:
    urgency, mood = _URGENCIES[each.urgency]
    command = (": ", code(each.command)) if each.command else ()
    return strong(f"{urgency}:", mood), f" {each.what} ", soft(f"({each.why})"), *command


def _timeline(report: IncidentReport) -> tuple[doc.Block, ...]:
    picture = draw_incident(report)
    shows = "evidence, decisions, people, acts, jobs and the node; the table below says the same"
    about = "The numbers are those of the table. Pale bands between // are quiet times, drawn shorter than they were."
    rows: list[tuple[doc.Cell, ...]] = [
        (each.number, each.kind.value, _at(each.at), "" if each.number == 1 else span_words(each.took_seconds),
         span_words(each.since_began_seconds))
        for each in report.milestones
    ]  # fmt: skip
    return doc.under(
        "Timeline",
        doc.Chart(title=f"Timeline of {report.incident}: {shows}", image=picture.wide, narrow=picture.narrow),
        doc.Legend(parts=(about,)),
        _table("No.:count|Reached|At (UTC)|Took:seconds|In all:seconds", rows),
    )


def _what_happened(report: IncidentReport) -> tuple[doc.Block, ...]:
    signs = [each for each in report.events if each.kind is EventKind.SEEN]
    other_signs = set(map(id, signs[_KEY_SIGNS:]))
    key_events = [each for each in report.events if _is_key_event(each) and id(each) not in other_signs]
    signs_left = f"{len(other_signs)} more signs of the same time are under Evidence and among all events."
    left = "events in between are left out; the ledger at the end has them."
    return doc.under(
        "What happened",
        _ends(key_events, at_each=_KEY_EVENTS_AT_EACH_END, draw=_key_items, left="more in between …"),
        doc.Note(words=signs_left, mood=Mood.SOFT) if other_signs else None,
        doc.Fold(
            summary=f"All {len(report.events)} events, with every act and its witness",
            is_printed=False,
            blocks=_ends(report.events, at_each=_EVENTS_AT_EACH_END, draw=_events_table, left=left),
        ),
    )


def _ends(
    events: Sequence[StoryEvent], *, at_each: int, draw: Callable[[Sequence[StoryEvent]], doc.Block], left: str
) -> tuple[doc.Block, ...]:
    """Return how it began and how it ended, and how many are between; few events whole."""
    middle = len(events) - 2 * at_each
    if middle <= 0:
        return (draw(events),)
    return draw(events[:at_each]), doc.Note(words=f"… {middle} {left}", mood=Mood.SOFT), draw(events[-at_each:])


def _is_key_event(event: StoryEvent) -> bool:
    """Return whether an event belongs into the short story: what turned it, and nothing that only carried it out."""
    if event.lane is EventLane.ACT:
        return event.kind is not EventKind.DONE or event.verb in _TURNING
    return event.kind not in (EventKind.TOLD, EventKind.NOTED)


def _key_items(events: Sequence[StoryEvent]) -> doc.Block:
    """Return events as a list, each with its day where that is another than before."""
    days = [None, *(each.at.date() for each in events)]
    return _list([
        _key_item(each, f"{each.at:%H:%M:%S}" if day == each.at.date() else _at(each.at))
        for day, each in zip(days, events, strict=False)
    ])  # fmt: skip


def _key_item(event: StoryEvent, at: str) -> doc.Words:
    words: list[str | doc.Span] = [soft(at), " "]
    if event.kind in _WENT_WRONG:
        words += [strong(f"{event.kind.value}:", Mood.BAD), " "]
    elif event.kind is EventKind.APPROVED:
        words += [strong(f"{event.who}:", Mood.GOOD), " "]
    words.append(event.what)
    if event.kind in (EventKind.TESTED_WELL, EventKind.UNDER_WAY, EventKind.NOT_NEEDED):
        words.append(f", {event.kind.value}")
    if event.lane is not EventLane.EVIDENCE and event.detail and event.kind in _EXPLAINED:
        words.append(soft(f" ({doc.clipped(event.detail, at_most=160)})"))
    return tuple(words)


def _events_table(events: Sequence[StoryEvent]) -> doc.Table:
    return _table("Time (UTC)|What:words|Result|Who", [_event_row(each) for each in events])


def _event_row(event: StoryEvent) -> tuple[doc.Cell, ...]:
    lasted = 0.0 if event.until is None else (event.until - event.at).total_seconds()
    return (
        _with(_at(event.at), f"for {span_words(lasted)}" if lasted >= 0.5 else ""),
        _with(event.what, event.detail),
        doc.toned(event.kind.value, _MOODS.get(event.kind)),
        event.who,
    )


# -- why, and what it cost --


def _evidence(report: IncidentReport) -> tuple[doc.Block, ...]:
    sure = "" if report.sureness is None else f"({percent(report.sureness, 0)} sure; at fault: {report.at_fault}, "
    named = (
        ("Culprit", report.culprits, 8),
        ("Nodes", report.nodes if len(report.nodes) > 1 else (), _NAMES_AT_MOST),
        ("Suffering, with no fault of their own", report.affected_nodes, _NAMES_AT_MOST),
    )
    others: list[doc.Words] = [
        (f"{percent(each.confidence, 0)}: {each.statement} ", soft(f"(less likely: {each.why_less_likely})"))
        for each in report.alternatives
    ]
    kept: list[doc.Words] = [
        (f"{each.reason}, {moment(each.saved_at)}: ", code(each.place),
         soft(f" sha256 {each.sha256[:16]}{', as in the ledger' if each.is_in_ledger else ''}"))
        for each in report.kept_evidence
    ]  # fmt: skip
    return doc.under(
        "Evidence",
        doc.Note(words=_with(report.what_broke, sure and f"{sure}family: {report.family})")),
        [doc.Note(words=f"{title}: {listed(names, at_most=most)}") for title, names, most in named if names],
        _headed("For it", report.evidence_for),
        _headed("Against it", report.evidence_against, empty="Nothing that was found."),
        _headed("What else it could have been", others),
        doc.Note(words=f"What would settle it: {report.settled_by}") if report.settled_by else None,
        _headed("Kept", kept),
    )


def _decision(report: IncidentReport) -> tuple[doc.Block, ...]:
    rejected = list(dict.fromkeys(each for plan in report.plans for each in plan.rejected_alternatives))
    useless = [f"{each.repair}, ended {moment(each.ended_at)}: {each.why}" for each in report.useless_repairs]
    return doc.sections(
        doc.Heading(text="Why this decision"),
        None if report.plans else doc.Note(words="No plan was made."),
        *(_plan(each) for each in report.plans),
        _headed("Tried, without help", useless),
        doc.under("Alternatives rejected", _list(rejected, empty="None is recorded.")),
    )


def _plan(plan: ReportedPlan) -> tuple[doc.Block, ...]:
    instead = f" (the fault alone calls for {plan.called_for}; what is below on the ladder was tried)"
    asides = ("" if plan.called_for == plan.response else instead, "" if plan.is_begun else " never started")
    steps = doc.Items(items=plan.steps, is_ordered=True, at_most=_LINES_AT_MOST)
    return doc.sections(
        doc.Note(words=(strong(plan.plan), f", {moment(plan.made_at)}: {plan.response}", *map(soft, asides))),
        _list(plan.effects) if plan.effects else None,
        [doc.Note(words=(f"Job {each.job}, {each.moment}: ", soft(each.reason))) for each in plan.timings],
        doc.Fold(summary=counted(len(plan.steps), "step"), blocks=(steps,)),
    )


def _blast_radius(plans: Sequence[ReportedPlan]) -> tuple[doc.Block, ...]:
    proven = [each for each in plans if each.lost_gpu_hours is not None]
    nothing = doc.Note(words="No plan touched a node or a job.")
    return doc.sections(doc.Heading(text="Blast radius"), *map(_radius, proven), None if proven else nothing)


def _radius(plan: ReportedPlan) -> tuple[doc.Block, ...]:
    lost = gpu_hours_words(plan.lost_gpu_hours or 0.0)
    touched = f"teams: {'; '.join(plan.teams)}" if plan.teams else "no team is touched"
    rows: list[tuple[doc.Cell, ...]] = [
        (each.what, f"{each.stays_count:,} of {each.total_count:,}", each.limit or "none") for each in plan.remaining
    ]
    return doc.sections(
        doc.Note(words=(strong(plan.plan), f" was computed to lose {lost} GPU-hours by our acts; {touched}")),
        _list(plan.touched_jobs) if plan.touched_jobs else None,
        doc.Note(words=f"Breaks: {'; '.join(plan.violations)}", mood=Mood.BAD) if plan.violations else None,
        _table("Part|Stays in service:count|Limit:words", rows),
    )


def _waits(report: IncidentReport) -> tuple[doc.Block, ...]:
    rows: list[tuple[doc.Cell, ...]] = [
        (each.who, each.waited_for, _at(each.began_at),
         f"{span_words(each.seconds)}{'' if each.ended_at else ', no end seen'}")
        for each in report.waits
    ]  # fmt: skip
    refused = [
        f"{moment(each.at)}: {each.act}, by {each.guardrail.replace('_', ' ')}: {each.reason}"
        for each in report.refusals
    ]
    heads = "Who|Waited for:words|From (UTC)|How long:seconds"
    return doc.under(
        "Who waited for whom", _table(heads, rows, empty="Nobody waited."), _headed("Refused by a guardrail", refused)
    )


def _cost(report: IncidentReport) -> tuple[doc.Block, ...]:
    cost = report.cost
    expected = "(expected when decided)"
    sums: list[tuple[doc.Words, float | None]] = [
        ("Work thrown away by the fault", cost.by_fault),
        ("Work thrown away by our acts", cost.by_our_acts),
        ("Jobs that stood still", cost.waiting),
        (_with("Capacity out of service", "(drain to return, less what jobs still did there)"), cost.out_of_service),
        (_with("Saved against moving every job at once", expected), cost.saved),
        (_with("Saved against leaving every job under the fault", expected), cost.saved_against_nothing),
    ]
    rows = [doc.Row(cells=(words, gpu_hours_words(hours))) for words, hours in sums if hours is not None]
    rows.insert(3, doc.Row(cells=("Lost by jobs", gpu_hours_words(cost.lost)), role=doc.RowRole.SUM))
    left = f"Not counted: {'; '.join(cost.not_counted)}."
    heads = "Job|Owner|GPUs:count|What became of it:words|Lost work:gpu_hours|Stood still:gpu_hours"
    victims = _table(heads, [_victim_row(each) for each in report.victims], at_most=_JOBS_AT_MOST)
    return doc.under(
        "Cost",
        _table("What|GPU-hours:gpu_hours", rows),
        doc.Note(words=left, mood=Mood.SOFT) if cost.not_counted else None,
        (doc.Heading(text="Jobs and their owners", level=3), victims) if report.victims else None,
    )


def _victim_row(each: Victim) -> tuple[doc.Cell, ...]:
    by_fault, by_us, waiting = each.lost_by_fault_gpu_hours, each.lost_by_us_gpu_hours, each.waiting_gpu_hours
    return (
        _with(each.job, each.name),
        _with(each.user or "not known", f"of {each.account}" if each.account else ""),
        each.gpu_count or None,
        each.fate,
        "not known" if by_fault is None or by_us is None else gpu_hours_words(by_fault + by_us),
        "not known" if waiting is None else gpu_hours_words(waiting),
    )


# -- who, and the record --


def _approvals(report: IncidentReport) -> tuple[doc.Block, ...]:
    given = [
        f"{each.actor}{f' by {each.via}' if each.via else ''}, {moment(each.given_at)}, to {each.plan}"
        + (f", good until {moment(each.expires_at)}" if each.expires_at else "")
        for each in report.approvals
    ]
    nobody = "Nobody was asked: policy let the autopilot act on its own, or nothing was done."
    return doc.under("Who approved", _list(given, empty=nobody))


def _related(report: IncidentReport) -> list[doc.Words]:
    return [(f"{each.incident} ", soft(each.state.replace("_", " ")), f": {each.why}") for each in report.related]


def _ledger(report: IncidentReport) -> tuple[doc.Block, ...]:
    rows: list[tuple[doc.Cell, ...]] = [
        (each.seq, _at(each.written_at), each.kind.replace("_", " "), each.actor, each.what, code(each.entry_hash[:12]))
        for each in report.lines
    ]
    return doc.under(
        "The ledger, line by line",
        doc.Fold(
            summary=f"{len(rows)} lines; the hash of each covers the line before it",
            is_printed=False,
            blocks=(_table("Line:count|Written (UTC)|Kind|Actor|What:words|Hash:name", rows),),
        ),
        doc.Note(words=(code("ops-pipelines audit verify"), " proves the ledger whole.")),
    )
