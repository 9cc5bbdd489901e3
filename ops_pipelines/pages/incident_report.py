"""The page of one incident and its picture: what happened, why, what it cost, what is left to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import JOB_VERBS, Verb
from ops_pipelines.core.identity import listed
from ops_pipelines.report.document import Mood, Number
from ops_pipelines.report.html import render
from ops_pipelines.report.numbers import percent, span_words
from ops_pipelines.report.pictures.story import Mark, StoryBar, StoryLane, StoryPicture, StoryRow, Tint, story_picture
from ops_pipelines.review.chain import counted, gpu_hours_words
from ops_pipelines.review.cost import REPAIRS_OF_NODES, MilestoneKind, Victim
from ops_pipelines.review.follow_ups import Urgency
from ops_pipelines.review.incident_report import IncidentReport
from ops_pipelines.review.timeline import EventKind, EventLane, StoryEvent

# -- which lanes an incident's picture has --


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


# -- the page of one incident --


_KEY_EVENTS_AT_EACH_END = 12
_KEY_SIGNS = 5
"""A mass event is the same sign on every node."""
_EVENTS_AT_EACH_END = 40
"""How it began and how it ended is what a reader asks for; the chain at the end has every line."""
_WORTH_A_TILE = 0.005
"""GPU-hours: less is reported as none."""
_LINES_AT_MOST = 2_000
_TEXT_AT_MOST = 2_000


def write_incident_page(report: IncidentReport) -> str:
    """Return the whole HTML page of an incident."""
    picture = draw_incident(report)
    shown = _plain(report)
    signs = [each for each in report.events if each.kind is EventKind.SEEN]
    untold = set(map(id, signs[_KEY_SIGNS:]))
    key_events = [each for each in report.events if is_key_event(each) and id(each) not in untold]
    key_middle = len(key_events) - 2 * _KEY_EVENTS_AT_EACH_END
    events = report.events
    middle = len(events) - 2 * _EVENTS_AT_EACH_END
    return render(
        "incident_report.html",
        {
            "report": shown,
            "tiles": tiles_of(report),
            "picture": picture,
            "first_key_events": _plain(key_events if key_middle <= 0 else key_events[:_KEY_EVENTS_AT_EACH_END]),
            "last_key_events": _plain([] if key_middle <= 0 else key_events[-_KEY_EVENTS_AT_EACH_END:]),
            "sign_left_out_count": len(untold),
            "key_left_out_count": max(0, key_middle),
            "first_events": _plain(events if middle <= 0 else events[:_EVENTS_AT_EACH_END]),
            "last_events": _plain(() if middle <= 0 else events[-_EVENTS_AT_EACH_END:]),
            "left_out_count": max(0, middle),
            "lines": _plain(report.lines[:_LINES_AT_MOST]),
            "left_out_line_count": max(0, len(report.lines) - _LINES_AT_MOST),
            "urgencies": _URGENCIES,
            "span": span_words,
            "gpu_hours": _hours_or_unknown,
        },
    )


def is_key_event(event: StoryEvent) -> bool:
    """Return whether an event belongs into the short story: what turned it, and nothing that only carried it out."""
    if event.lane is EventLane.ACT:
        return event.kind is not EventKind.DONE or event.verb in _TURNING
    return event.kind not in (EventKind.TOLD, EventKind.NOTED)


_TURNING = frozenset(each.value for each in REPAIRS_OF_NODES | {Verb.DRAIN, Verb.POWER_OFF, Verb.RESUME})


def tiles_of(report: IncidentReport) -> Sequence[Number]:
    """Return the numbers of the head of the page, of those that this incident has."""
    reached = {each.kind: each for each in report.milestones}
    moved = [each for each in report.victims if each.held_at is not None]
    tiles = [Number(value=span_words(reached[MilestoneKind.NOTICED].since_began_seconds), about="until noticed")]
    if report.drained_at is not None:
        end = report.returned_at or report.closed_at or report.written_at
        out = span_words(max(timedelta(0), end - report.drained_at).total_seconds())
        still = "" if report.returned_at is not None else " so far"
        tiles.append(Number(value=out + still, about=f"{listed(report.nodes, at_most=1)} out of service"))
    if moved:
        standing = [
            (each.resumed_at or report.closed_at or report.written_at) - each.stopped_at
            for each in moved
            if each.stopped_at is not None
        ]
        longest = span_words(max(timedelta(0), *standing).total_seconds())
        tiles.append(Number(value=counted(len(moved), "job"), about=f"moved; stood still for {longest} at most"))
        is_much = report.cost.lost >= 1
        tiles.append(
            Number(
                value=gpu_hours_words(report.cost.lost),
                about="GPU-hours lost by jobs",
                mood=Mood.BAD if is_much else None,
            )
        )
    elif report.victims:
        tiles.append(Number(value=str(len(report.victims)), about="jobs on it, none moved"))
    if report.cost.out_of_service:
        tiles.append(Number(value=gpu_hours_words(report.cost.out_of_service), about="GPU-hours out of service"))
    if report.cost.saved is not None and abs(report.cost.saved) >= _WORTH_A_TILE:
        tiles.append(
            Number(
                value=gpu_hours_words(report.cost.saved),
                about="GPU-hours saved by timing, expected",
                mood=Mood.GOOD if report.cost.saved > 0 else None,
            )
        )
    if report.sureness is not None:
        tiles.append(Number(value=percent(report.sureness, digits=0), about="sure of the cause"))
    todo = sum(each.urgency is Urgency.NOW for each in report.follow_ups)
    if todo:
        tiles.append(Number(value=str(todo), about="waiting for you", mood=Mood.WARN))
    return tiles


_URGENCIES = {Urgency.NOW.value: "now", Urgency.SOON.value: "within days", Urgency.REVIEW.value: "worth a look"}


def _hours_or_unknown(hours: float | None) -> str:
    return "not known" if hours is None else gpu_hours_words(hours)


def _plain(value: object) -> object:
    """Return a value with its texts on one line, printable and not endless; enums become their words."""
    if isinstance(value, str) and not isinstance(value, Enum):
        flat = " ".join("".join(char if char.isprintable() else " " for char in value).split())
        return flat if len(flat) <= _TEXT_AT_MOST else f"{flat[: _TEXT_AT_MOST - 1]}…"
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)} | _derived(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _derived(value: object) -> dict[str, object]:
    lost = getattr(value, "lost", None)
    return {} if lost is None else {"lost": lost}
