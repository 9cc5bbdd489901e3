"""Everything that happened around one incident in the order of time, and who waited for whom.

Words of logs, jobs and people are in it as they came: a renderer escapes them.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import MESSAGES, SOFT, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.node_tests import NodeCheck, TestResult
from ops_pipelines.core.notes import KeptNote, NoteState
from ops_pipelines.core.overlap import Certainty, Overlap, tell, what_to_do
from ops_pipelines.core.plan import JobTiming, Moment
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report.numbers import counted
from ops_pipelines.review.chain import Chain, MadePlan, RefusedAct

# -- everything that happened around one incident, in the order of its times --


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
    GOES_ON = "continues"
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
            what=f"{plan.plan}: {plan.response.name.lower().replace('_', ' ')}, {counted(len(plan.actions), 'step')}",
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
    IncidentState.OPEN.value: "planned again",
    IncidentState.ACTING.value: "plan started",
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
            what=f"approved {each.plan}{way}{until}",
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
        (recovery.progressed_at, EventKind.GOES_ON, f"{job}: a newer checkpoint shows that it continues", ""),
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


# -- who waited for whom --


_SHORTEST_SECONDS = 1.0
"""Below that nobody waited."""
_SOFT_WORDS = tuple(sorted(each.value.replace("_", " ") for each in SOFT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One interval of time in which something could not continue."""

    who: str
    waited_for: str
    began_at: datetime
    ended_at: datetime | None
    """None: it still waits, or nobody saw the end."""
    seconds: float
    """Until now where it lasts."""


def waits_of(
    incident: Incident, chain: Chain, records: Collection[ActionRecord], *, waiting_plan: str | None, now: datetime
) -> tuple[Wait, ...]:
    """Return every wait that the record shows, by when it began; waits of less than a second are none."""
    end = incident.closed_at or now
    found = [
        *_for_yes(chain, waiting_plan=waiting_plan, end=end),
        *_for_guardrails(incident, chain, records, end=end),
        *_for_moments(chain, records, end=end),
        *_for_room(incident, end=end),
        *_for_hands(chain, end=end),
    ]
    kept = (each for each in found if each.seconds >= _SHORTEST_SECONDS)
    return tuple(sorted(kept, key=lambda each: (each.began_at, each.who)))


def plan_waiting_for_yes(
    incident: Incident,
    chain: Chain,
    records: Collection[ActionRecord],
    approvals: Collection[Approval],
    policy: Policy,
) -> str | None:
    """Return the plan that waits for a person now; None if none does. `approvals` are those that hold now.

    One in force may wait half-way: for the approval to its reboot, after its drain.
    """
    if policy.mode is Mode.OBSERVE or incident.state not in (IncidentState.OPEN, IncidentState.ACTING):
        return None
    made = _plan_of(incident, chain)
    if made is None or any(each.plan == made.plan.plan for each in approvals):
        return None
    begun = {each.action.key for each in records}
    owed = (each for each in made.plan.actions if each.key not in begun)
    return str(made.plan.plan) if any(needs_yes(each, policy) for each in owed) else None


def _plan_of(incident: Incident, chain: Chain) -> MadePlan | None:
    if incident.plan is not None:
        return next((each for each in chain.plans if each.plan.plan == incident.plan), None)
    return chain.plans[-1] if chain.plans else None


def _for_yes(chain: Chain, *, waiting_plan: str | None, end: datetime) -> Iterator[Wait]:
    said: set[str] = set()
    for made in chain.plans:
        yes = next((each for each in chain.approvals if each.plan == made.plan.plan), None)
        if yes is not None and yes.plan not in said:
            said.add(yes.plan)
            yield _wait(str(made.plan.plan), f"the approval of {yes.actor}", made.made_at, yes.given_at, end=end)
        elif made.plan.plan == waiting_plan:
            yield _wait(str(made.plan.plan), "somebody's yes", made.made_at, None, end=end)


def _for_guardrails(
    incident: Incident, chain: Chain, records: Collection[ActionRecord], *, end: datetime
) -> Iterator[Wait]:
    first: dict[str, RefusedAct] = {}
    for each in chain.refusals:
        # The wait for approval is reported already, and without what is only a kindness a plan continues.
        if each.guardrail != "approval" and not each.act.startswith(_SOFT_WORDS):
            first.setdefault(each.act, each)
    begun = {explain_action(each.action): each.begun_at for each in reversed(list(records))}
    for act, refused in first.items():
        at = next((at for words, at in begun.items() if words == act and at >= refused.at), None)
        if at is None and not incident.is_open:
            continue  # It was never done: a refusal, and no wait.
        yield _wait(act, f"{refused.guardrail.replace('_', ' ')}: {refused.reason}", refused.at, at, end=end)


def _for_moments(chain: Chain, records: Collection[ActionRecord], *, end: datetime) -> Iterator[Wait]:
    timings: dict[object, JobTiming] = {}
    for made in chain.plans:
        for timing in made.plan.timings:
            timings.setdefault(timing.attempt, timing)
    held = {each.action.attempt: each.begun_at for each in records if each.action.verb is Verb.HOLD}
    for timing in timings.values():
        if timing.moment not in _MOMENTS or not records:
            continue
        begins = min((each.begun_at for each in records), default=timing.decided_at)
        yield _wait(
            f"moving job {timing.attempt.job}", _MOMENTS[timing.moment], begins, held.get(timing.attempt), end=end
        )


_MOMENTS = {
    Moment.NEXT_CHECKPOINT: "its next checkpoint",
    Moment.AFTER_NOTICE: "the end of its owner's notice",
    Moment.JOB_END: "the job's own end",
}


def _for_room(incident: Incident, *, end: datetime) -> Iterator[Wait]:
    for each in incident.recoveries:
        if each.ended_as and each.resumed_at is None:
            continue
        yield _wait(f"job {each.attempt.job}", "its next start", each.held_at, each.resumed_at, end=end)


def _for_hands(chain: Chain, *, end: datetime) -> Iterator[Wait]:
    since: datetime | None = None
    for each in chain.changes:
        if each.state in (IncidentState.IN_REPAIR.value, IncidentState.ESCALATED.value):
            since = since or each.at
        elif since is not None:
            yield _wait("the node", "a person's hands", since, each.at, end=end)
            since = None
    if since is not None:
        yield _wait("the node", "a person's hands", since, None, end=end)


def _wait(who: str, waited_for: str, began: datetime, ended: datetime | None, *, end: datetime) -> Wait:
    until = ended if ended is not None else end
    return Wait(
        who=who,
        waited_for=waited_for,
        began_at=began,
        ended_at=ended,
        seconds=max(0.0, (until - began).total_seconds()),
    )
