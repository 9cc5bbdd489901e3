"""Which lanes the picture of an incident has, and what is a bar or a mark on each; `report.pictures.story` draws it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ops_pipelines.core.action import JOB_VERBS, Verb
from ops_pipelines.report.pictures.story import Mark, StoryBar, StoryLane, StoryPicture, StoryRow, Tint, story_picture
from ops_pipelines.review.cost import REPAIRS_OF_NODES, Victim
from ops_pipelines.review.incident_report import IncidentReport
from ops_pipelines.review.timeline import EventKind, EventLane, StoryEvent

_KEY: Mapping[Tint, str] = {
    Tint.GREEN: "well, or yes",
    Tint.YELLOW: "faulty, or waits",
    Tint.ORANGE: "stopped, refused or failed",
    Tint.GREY: "out of service, or noted",
    Tint.BLUE: "plan, act, test",
    Tint.PINK: "repair",
    Tint.SKY: "watched, or reported",
    Tint.INK: "evidence, or nobody knows",
}
_LEAST_SPAN = timedelta(seconds=1)
_REPAIRS = frozenset(each.value for each in REPAIRS_OF_NODES | {Verb.POWER_OFF, Verb.DECLARE_DOWN})
_OF_JOBS = frozenset(each.value for each in JOB_VERBS)
_TINTS = {
    EventKind.APPROVED: Tint.GREEN,
    EventKind.TOLD: Tint.SKY,
    EventKind.PLANNED: Tint.BLUE,
    EventKind.REFUSED: Tint.ORANGE,
    EventKind.FAILED: Tint.ORANGE,
    EventKind.OVERLAPPED: Tint.ORANGE,
    EventKind.UNKNOWN: Tint.INK,
    EventKind.UNDER_WAY: Tint.YELLOW,
    EventKind.CHANGED: Tint.GREY,
    EventKind.NOTED: Tint.GREY,
    EventKind.NOT_NEEDED: Tint.GREY,
    EventKind.SEEN: Tint.INK,
    EventKind.SENT_AGAIN: Tint.YELLOW,
    EventKind.TESTED_WELL: Tint.GREEN,
    EventKind.TESTED_ILL: Tint.ORANGE,
}


def draw_incident(report: IncidentReport) -> StoryPicture:
    """Return the picture of an incident from its beginning to its end, or to the time of the report."""
    end = max(report.closed_at or report.written_at, report.began_at + _LEAST_SPAN)
    lanes = (
        StoryLane(title="evidence", rows=(_marks(report, EventLane.EVIDENCE),)),
        StoryLane(title="decisions", rows=(_marks(report, EventLane.DECISION),)),
        StoryLane(title="people", rows=(_people(report, end),)),
        StoryLane(title="acts", rows=tuple(_acts(report, end))),
        StoryLane(title="jobs", rows=tuple(_job(each, report, end) for each in report.victims if each.held_at)),
        StoryLane(title=_node_title(report), rows=(_node(report, end),)),
    )
    return story_picture(
        lanes,
        milestones={each.number: each.at for each in report.milestones},
        key=_KEY,
        begins_at=report.began_at,
        ends_at=end,
    )


def _marks(report: IncidentReport, lane: EventLane) -> StoryRow:
    events = [each for each in report.events if each.lane is lane]
    return StoryRow(
        name="",
        bars=tuple(
            StoryBar(begins_at=each.at, ends_at=each.until, tint=Tint.GREY)
            for each in events
            if each.until is not None and each.until > each.at
        ),
        marks=tuple(Mark(at=each.at, tint=_TINTS.get(each.kind, Tint.GREY)) for each in events),
    )


def _people(report: IncidentReport, end: datetime) -> StoryRow:
    row = _marks(report, EventLane.PEOPLE)
    waits = tuple(
        StoryBar(begins_at=each.began_at, ends_at=each.ended_at or end, tint=Tint.YELLOW, word="waits for approval")
        for each in report.waits
        if each.who.startswith("PLAN-")
    )
    hands = tuple(
        StoryBar(begins_at=each.began_at, ends_at=each.ended_at or end, tint=Tint.YELLOW, word="waits for hands")
        for each in report.waits
        if each.who == "the node"
    )
    return StoryRow(name="", bars=(*waits, *hands), marks=row.marks)


def _acts(report: IncidentReport, end: datetime) -> Iterator[StoryRow]:
    acts = [each for each in report.events if each.lane is EventLane.ACT]
    of_jobs = [each for each in acts if each.verb in _OF_JOBS]
    of_nodes = [each for each in acts if each.verb not in _OF_JOBS]
    for name, events in (("acts on nodes", of_nodes), ("acts on jobs", of_jobs)):
        if events:
            yield StoryRow(name=name, bars=tuple(_act(each, end) for each in events))


def _act(event: StoryEvent, end: datetime) -> StoryBar:
    tint = _TINTS.get(event.kind, Tint.PINK if event.verb in _REPAIRS else Tint.BLUE)
    return StoryBar(begins_at=event.at, ends_at=event.until or end, tint=tint, word=event.verb.replace("_", " "))


def _job(victim: Victim, report: IncidentReport, end: datetime) -> StoryRow:
    moments: Sequence[tuple[datetime | None, Tint, str]] = (
        (report.began_at, Tint.GREEN, "runs"),
        (victim.stopped_at, Tint.ORANGE, "stopped"),
        (victim.resumed_at, Tint.SKY, "runs again"),
        (victim.progressed_at, Tint.GREEN, "continues"),
    )
    known = [(at, tint, word) for at, tint, word in moments if at is not None]
    ends = [*(at for at, _, _ in known[1:]), end]
    return StoryRow(
        name=f"job {victim.job}",
        bars=tuple(
            StoryBar(begins_at=at, ends_at=until, tint=tint, word=word)
            for (at, tint, word), until in zip(known, ends, strict=True)
            if until > at
        ),
    )


def _node_title(report: IncidentReport) -> str:
    return report.nodes[0] if len(report.nodes) == 1 else f"{len(report.nodes)} nodes"


def _node(report: IncidentReport, end: datetime) -> StoryRow:
    if not report.nodes:
        return StoryRow(name="")
    faulty_until = report.drained_at or report.returned_at or end
    bars = [StoryBar(begins_at=report.began_at, ends_at=faulty_until, tint=Tint.YELLOW, word="faulty, in service")]
    if report.drained_at is not None:
        out_until = report.returned_at or end
        bars.append(StoryBar(begins_at=report.drained_at, ends_at=out_until, tint=Tint.GREY, word="out of service"))
    bars += [
        StoryBar(begins_at=each.at, ends_at=each.until or end, tint=Tint.PINK, word=each.verb.replace("_", " "))
        for each in report.events
        if each.verb in _REPAIRS and each.kind is EventKind.DONE
    ]
    tests = [each for each in report.events if each.kind in (EventKind.TESTED_WELL, EventKind.TESTED_ILL)]
    bars += [
        StoryBar(begins_at=each.at, ends_at=each.until or each.at, tint=_TINTS[each.kind], word="tests")
        for each in tests
    ]
    if report.returned_at is not None and end > report.returned_at:
        bars.append(StoryBar(begins_at=report.returned_at, ends_at=end, tint=Tint.SKY, word="in service, watched"))
    return StoryRow(name="", bars=tuple(bars))
