"""Everything that happened around one incident, in the order of its times, each with its kind.

Words of logs, jobs and people are in it as they came: whoever shows them escapes them.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import MESSAGES, ActionRecord, OutcomeKind
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.node_tests import NodeCheck, TestResult
from ops_pipelines.core.notes import KeptNote, NoteState
from ops_pipelines.core.overlap import Certainty, Overlap, tell, what_to_do
from ops_pipelines.flow.hindsight.story.chain import Chain
from ops_pipelines.remediate.testimony import explain_action

_LONGEST = 600
"""Assumption: what a person reads of one line of a log; the ledger has all of it."""


class EventLane(Enum):
    """Whose event it is."""

    EVIDENCE = "evidence"
    DECISION = "decisions"
    PEOPLE = "people"
    ACT = "acts"
    JOB = "jobs"
    NODE = "node"


class EventKind(Enum):
    """What kind of event it is."""

    SEEN = "seen"
    NOTED = "noted"
    CHANGED = "changed"
    PLANNED = "planned"
    APPROVED = "approved"
    REFUSED = "refused"
    TOLD = "told"
    UNDER_WAY = "under way"
    DONE = "done"
    NOT_NEEDED = "not needed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    SENT_AGAIN = "sent again"
    STOPPED = "stopped"
    RUNS_AGAIN = "runs again"
    OVERLAPPED = "two copies"
    GOES_ON = "goes on"
    TESTED_WELL = "tested well"
    TESTED_ILL = "tested ill"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEvent:
    """One event; `until` is None where it is a moment, or not over."""

    at: datetime
    until: datetime | None
    lane: EventLane
    kind: EventKind
    what: str
    who: str
    """Who did it: the autopilot, a person, the source of a line."""
    detail: str = ""
    """The line, the witness, the reason: the words of others, as they came."""
    verb: str = ""
    """Of an act: what was done, as `Verb` names it; empty of everything else."""


def timeline_of(
    incident: Incident,
    chain: Chain,
    records: Collection[ActionRecord],
    checks: Iterable[tuple[NodeCheck, bool]],
    notes: Iterable[KeptNote] = (),
) -> tuple[StoryEvent, ...]:
    """Return every event by its time. `notes` are what the outbox was handed about it."""
    begun_by = {(line.written_at, line.incident): line.actor for line in chain.lines}
    events = [
        *(_of_finding(each) for each in incident.findings),
        *_of_changes(chain),
        *_of_people(chain),
        *(_of_act(each, begun_by.get((each.begun_at, incident.incident), "")) for each in records),
        *_of_resent(chain, records),
        *(event for each in incident.recoveries for event in _of_recovery(each)),
        *(_of_overlap(each) for each in incident.overlaps),
        *(_of_check(check, is_well) for check, is_well in checks),
        *(_of_note(each) for each in notes),
    ]
    return tuple(sorted(events, key=lambda each: (each.at, _LANES[each.lane])))


_LANES = {lane: place for place, lane in enumerate(EventLane)}


def clipped(text: str) -> str:
    """Return a text on one line, no longer than a person reads."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"


def _of_finding(finding: Finding) -> StoryEvent:
    newest = finding.evidence[-1] if finding.evidence else None
    often = f" ({finding.count} times)" if finding.count > 1 else ""
    where = f"{finding.node}: " if finding.node else ""
    line = "" if newest is None else clipped(newest.text)
    return StoryEvent(
        at=finding.found_at,
        until=finding.last_at,
        lane=EventLane.EVIDENCE,
        kind=EventKind.SEEN,
        what=f"{where}{clipped(finding.explanation)}{often}",
        who=newest.source if newest is not None else finding.source,
        detail="" if line and line in finding.explanation else line,
    )


def _of_changes(chain: Chain) -> Iterator[StoryEvent]:
    for place, each in enumerate(chain.changes):
        is_turn = place > 0 and each.state != IncidentState.ACTING.value
        words = _STATES.get(each.state, each.state.replace("_", " "))
        yield StoryEvent(
            at=each.at,
            until=None,
            lane=EventLane.NODE if each.state in _OF_NODE else EventLane.DECISION,
            kind=EventKind.CHANGED if is_turn else EventKind.NOTED,
            what=words if place > 0 else "incident opened",
            who=each.actor,
            detail=clipped(each.note),
        )
    for made in chain.plans:
        plan = made.plan
        yield StoryEvent(
            at=made.made_at,
            until=None,
            lane=EventLane.DECISION,
            kind=EventKind.PLANNED,
            what=f"{plan.plan}: {plan.response.name.lower().replace('_', ' ')}, {len(plan.actions)} step(s)",
            who="autopilot",
        )
    for refused in chain.refusals:
        yield StoryEvent(
            at=refused.at,
            until=None,
            lane=EventLane.DECISION,
            kind=EventKind.REFUSED,
            what=f"{refused.act} refused by {refused.guardrail.replace('_', ' ')}",
            who=refused.actor,
            detail=clipped(refused.reason),
        )


_STATES = {
    IncidentState.OPEN.value: "planned anew",
    IncidentState.ACTING.value: "plan begun",
    IncidentState.VERIFYING.value: "repaired, now the node must prove itself",
    IncidentState.PROBATION.value: "back in service, on probation",
    IncidentState.IN_REPAIR.value: "handed over for repair by hands",
    IncidentState.ESCALATED.value: "handed over to a person",
    IncidentState.RESOLVED.value: "resolved",
    IncidentState.MERGED.value: "became part of another incident",
}
_OF_NODE = frozenset({IncidentState.VERIFYING.value, IncidentState.PROBATION.value, IncidentState.IN_REPAIR.value})


def _of_people(chain: Chain) -> Iterator[StoryEvent]:
    for each in chain.approvals:
        way = f" ({each.via})" if each.via else ""
        until = "" if each.expires_at is None else f", good until {each.expires_at:%d %b %H:%M} UTC"
        yield StoryEvent(
            at=each.given_at,
            until=None,
            lane=EventLane.PEOPLE,
            kind=EventKind.APPROVED,
            what=f"yes to {each.plan}{way}{until}",
            who=each.actor,
        )


def _of_act(record: ActionRecord, actor: str) -> StoryEvent:
    outcome = record.outcome
    kind = EventKind.UNDER_WAY
    if outcome is not None:
        kind = _KINDS[outcome.kind] if outcome.was_needed else EventKind.NOT_NEEDED
    is_message = record.action.verb in MESSAGES
    if is_message and kind is EventKind.DONE:
        kind = EventKind.TOLD
    said = clipped(record.action.text) if is_message else ""
    seen = "" if outcome is None else clipped(outcome.witness)
    return StoryEvent(
        at=record.begun_at,
        until=None if outcome is None else outcome.finished_at,
        lane=EventLane.PEOPLE if is_message else EventLane.ACT,
        kind=kind,
        what=explain_action(record.action),
        who=actor or "autopilot",
        detail=said or seen,
        verb=record.action.verb.value,
    )


_KINDS = {
    OutcomeKind.DONE: EventKind.DONE,
    OutcomeKind.FAILED: EventKind.FAILED,
    OutcomeKind.UNKNOWN: EventKind.UNKNOWN,
}


def _of_note(kept: KeptNote) -> StoryEvent:
    note = kept.note
    kind = {NoteState.SENT: EventKind.TOLD, NoteState.UNDELIVERABLE: EventKind.FAILED}.get(
        kept.state, EventKind.UNDER_WAY
    )
    whom = note.audience.value.replace("_", " ")
    return StoryEvent(
        at=kept.sent_at or note.made_at,
        until=None,
        lane=EventLane.PEOPLE,
        kind=kind,
        what=f"message to {whom} {clipped(note.recipient)}: {clipped(note.title)}",
        who="autopilot",
        detail=clipped(kept.problem if kind is EventKind.FAILED else note.line),
    )


def _of_resent(chain: Chain, records: Collection[ActionRecord]) -> Iterator[StoryEvent]:
    acts = {each.action.key: each.action for each in records}
    for at, key in chain.resent:
        act = acts.get(key)
        yield StoryEvent(
            at=at,
            until=None,
            lane=EventLane.ACT,
            kind=EventKind.SENT_AGAIN,
            what=f"{'an act' if act is None else explain_action(act)}: it provably had no effect",
            who="autopilot",
        )


def _of_recovery(recovery: Recovery) -> Iterator[StoryEvent]:
    job = f"job {recovery.attempt.job}, {recovery.gpu_count} GPU(s)"
    saved = recovery.checkpointed_at
    age = "age of its checkpoint not known" if saved is None else f"newest checkpoint of {saved:%H:%M:%S} UTC"
    steps = (
        (recovery.held_at, EventKind.STOPPED, f"{job}: stopped to be moved", age),
        (recovery.resumed_at, EventKind.RUNS_AGAIN, f"{job}: runs again", ""),
        (recovery.progressed_at, EventKind.GOES_ON, f"{job}: a newer checkpoint shows that it goes on", ""),
    )
    for at, kind, what, detail in steps:
        if at is not None:
            yield StoryEvent(
                at=at, until=None, lane=EventLane.JOB, kind=kind, what=what, who="scheduler", detail=detail
            )


def _of_overlap(overlap: Overlap) -> StoryEvent:
    return StoryEvent(
        at=overlap.later.started_at,
        until=overlap.ended_at,
        lane=EventLane.JOB,
        kind=EventKind.OVERLAPPED,
        what=clipped(tell(overlap, now=overlap.seen_at)),
        who="scheduler",
        detail="" if overlap.certainty is Certainty.EXCLUDED else clipped(what_to_do(overlap)),
    )


def _of_check(check: NodeCheck, is_well: bool) -> StoryEvent:
    failed = [f"{each.test}: {each.said}" for each in check.tests if each.result is TestResult.FAILED]
    passed = ", ".join(each.test for each in check.tests if each.result is TestResult.PASSED)
    return StoryEvent(
        at=check.started_at,
        until=check.finished_at,
        lane=EventLane.NODE,
        kind=EventKind.TESTED_WELL if is_well else EventKind.TESTED_ILL,
        what=f"{check.node}: tests of suite {check.suite}",
        who=str(check.node),
        detail=clipped("; ".join(failed) or (f"passed: {passed}" if passed else "no test was run")),
    )
