"""What is left to do after an incident, and the incident in two sentences.

Suspicions are called so: that a node tested well before anything was repaired may mean that it should have been left.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from statistics import median

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.fault import FirstAction
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.identity import listed
from ops_pipelines.core.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.notes import KeptNote, NoteState
from ops_pipelines.core.overlap import Certainty, tell, what_to_do
from ops_pipelines.core.policy import Mode
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report.numbers import counted, span_words
from ops_pipelines.review.chain import Chain, gpu_hours_words
from ops_pipelines.review.cost import REPAIRS_OF_NODES, Cost, Milestone, MilestoneKind, Victim, done_at, drained_at

# -- an incident in two sentences --


_LONGEST_CAUSE = 220


def headline_of(
    incident: Incident,
    records: Collection[ActionRecord],
    milestones: Sequence[Milestone],
    victims: Collection[Victim],
    cost: Cost,
) -> str:
    """Return what happened, what was done, and what was lost."""
    reached = {each.kind: each for each in milestones}
    noticed = reached[MilestoneKind.NOTICED]
    cause = _cause(incident)
    after = span_words(noticed.since_began_seconds)
    parts = [f"{_where(incident)}: {cause}, noticed {'at once' if after == '0 s' else f'after {after}'}."]
    parts.append(_deeds(records, victims))
    twice = sorted({each.later.job for each in incident.overlaps if each.certainty is not Certainty.EXCLUDED})
    if twice:
        parts.append(f"There were, or may have been, two copies of {listed([f'job {job}' for job in twice])} at once.")
    if incident.state is IncidentState.MERGED:
        parts.append(f"It was {incident.note}." if incident.note else "It was part of another incident.")
    returned = reached.get(MilestoneKind.RETURNED)
    if returned is not None:
        parts.append(f"Back in service after {span_words(returned.since_began_seconds)}.")
    elif incident.closed_at is not None and incident.state is IncidentState.RESOLVED:
        parts.append(
            f"Over after {span_words((incident.closed_at - reached[MilestoneKind.BEGAN].at).total_seconds())}."
        )
    if any(each.held_at is not None for each in victims):
        parts.append(f"Jobs lost {gpu_hours_words(cost.lost)} GPU-hours.")
    elif victims and cost.not_counted:
        parts.append(f"{counted(len(victims), 'job')} ran on it; what was lost is not known.")
    return " ".join(each for each in parts if each)


def standing_of(incident: Incident, *, waiting_plan: str | None, mode: Mode) -> str:
    """Return status now and what comes next, in one sentence."""
    if waiting_plan is not None:
        return f"{waiting_plan} waits for somebody's yes."
    match incident.state:
        case IncidentState.OPEN if incident.is_watched:
            return "It is only watched: its evidence is too weak to act on."
        case IncidentState.OPEN if mode is Mode.OBSERVE:
            return "Nothing is done by us: the mode is observe."
        case IncidentState.OPEN:
            return "Its plan has not started yet."
        case IncidentState.ACTING:
            return "Its plan is being carried out."
        case IncidentState.VERIFYING:
            return "The node proves itself; then it is returned to service."
        case IncidentState.PROBATION:
            return "The node is in service as last choice, and watched until its probation is over."
        case IncidentState.IN_REPAIR:
            return "The node waits for repair by hands."
        case IncidentState.ESCALATED:
            return f"A person has it: {asked_of_person(incident)}"
        case IncidentState.MERGED:
            return f"Nothing is left here: {incident.note}"
        case _:
            return f"It is over: {_clipped(incident.note)}" if incident.note else "It is over."


def _where(incident: Incident) -> str:
    if incident.suspect is not None:
        return str(incident.suspect)
    names = sorted(incident.nodes)
    if not names:
        jobs = [f"job {each.job}" for each in sorted(incident.victims)]
        return listed(jobs) or "The cluster"
    return listed([str(each) for each in names])


def _cause(incident: Incident) -> str:
    cause = incident.cause if incident.hypothesis is None else incident.hypothesis.statement
    return _clipped(cause).rstrip(".")


def _clipped(text: str) -> str:
    """Return a text on one line, no longer than a head line bears: the tests of a healed node fill a page."""
    told = " ".join(text.split())
    return told if len(told) <= _LONGEST_CAUSE else f"{told[: _LONGEST_CAUSE - 1]}…"


def _deeds(records: Collection[ActionRecord], victims: Collection[Victim]) -> str:
    """Return what was done, as one sentence about the autopilot."""
    done = [each.action.verb for each in records if each.took_effect]
    words: list[str] = []
    if Verb.DRAIN in done:
        words.append("took the node out of service")
    moved = sum(each.held_at is not None for each in victims)
    if Verb.RELEASE in done and moved:
        words.append(f"moved {counted(moved, 'job')}")
    elif moved:
        words.append(f"stopped {counted(moved, 'job')}")
    words += [said for verb, said in _REPAIRS.items() if verb in done]
    if not words and Verb.PAGE_HUMAN in done:
        return "We touched nothing and paged a person."
    if not words and Verb.NOTIFY_OWNER in done:
        return "We notified the owner and touched nothing."
    if Verb.PAGE_HUMAN in done:
        words.append("paged a person")
    if not words:
        return "Nothing was done by us."
    return f"We {', '.join(words[:-1])}{' and ' if len(words) > 1 else ''}{words[-1]}."


_REPAIRS = {
    Verb.RESET_GPU: "reset the GPU",
    Verb.REBOOT: "rebooted it",
    Verb.POWER_ON: "power-cycled it",
    Verb.REIMAGE: "installed it again",
}


# -- what is left to do after an incident, or worth a look --


HISTORY = timedelta(days=90)
"""How far back earlier incidents of a node count. Assumption: as far as the repair report looks."""
_FEWEST_ALIKE = 5
"""Below this many incidents of the same rule nothing is called usual."""
_SLOW_RATIO, _SLOW_AT_LEAST = 2.0, timedelta(seconds=60)
_LONG_WAIT = timedelta(minutes=15)
"""Assumption: an approval that takes longer is worth asking whether the plan should need one."""


class Urgency(Enum):
    """How soon a person should do it."""

    NOW = "now"
    """It does not move until somebody does it."""
    SOON = "soon"
    """Worth doing within days."""
    REVIEW = "review"
    """Worth a look: something went otherwise than it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """One thing that a person still has to do, or look at."""

    urgency: Urgency
    what: str
    why: str
    command: str = ""
    """What to type; empty where there is nothing to type."""


def follow_ups_of(
    incident: Incident,
    chain: Chain,
    records: Collection[ActionRecord],
    checks: Sequence[tuple[NodeCheck, bool]],
    earlier: Collection[Incident],
    *,
    waiting_plan: str | None,
    notes: Collection[KeptNote] = (),
) -> tuple[FollowUp, ...]:
    """Return what is left to do. `earlier` are incidents of before; `waiting_plan` is one that waits for approval."""
    found = [
        *_now(incident, records, waiting_plan=waiting_plan),
        *_parts(incident),
        *_offender(incident, earlier),
        *_doubts(incident, chain, records, checks),
        *_slowness(incident, chain, earlier),
        *_untold(notes),
    ]
    order = list(Urgency)
    return tuple(sorted(found, key=lambda each: order.index(each.urgency)))


def _now(incident: Incident, records: Collection[ActionRecord], *, waiting_plan: str | None) -> Iterator[FollowUp]:
    for overlap in incident.overlaps:
        if overlap.certainty is not Certainty.EXCLUDED:
            yield FollowUp(
                urgency=Urgency.NOW,
                what=what_to_do(overlap),
                why=tell(overlap, now=overlap.seen_at),
            )
    if incident.state is IncidentState.ESCALATED:
        yield FollowUp(
            urgency=Urgency.NOW,
            what=asked_of_person(incident),
            why="it was handed to a person; the autopilot touches nothing of it any more",
            command=f'ops-pipelines close {incident.incident} --reason "what was done"',
        )
    if incident.state is IncidentState.IN_REPAIR:
        yield FollowUp(
            urgency=Urgency.NOW,
            what=f"mend {listed(sorted(incident.nodes))}, then say so",
            why=f"no repair of ours helped ({len(incident.tries)} tried); the node waits for hands",
            command=f"ops-pipelines repair report {incident.incident}",
        )
    if waiting_plan is not None:
        yield FollowUp(
            urgency=Urgency.NOW,
            what=f"approve {waiting_plan}, or leave it",
            why="policy asks a person before this is started",
            command=f"ops-pipelines approve {waiting_plan}",
        )
    for each in records:
        if each.outcome is not None and each.outcome.kind is OutcomeKind.UNKNOWN:
            yield FollowUp(
                urgency=Urgency.NOW,
                what=f"look whether this happened: {explain_action(each.action)}",
                why=each.outcome.witness,
            )
    if incident.is_open:
        return
    released = {each.action.attempt for each in records if each.action.verb is Verb.RELEASE and each.outcome}
    for moved in incident.recoveries:
        if moved.attempt not in released and moved.resumed_at is None and not moved.ended_as:
            yield FollowUp(
                urgency=Urgency.NOW,
                what=f"look at job {moved.attempt.job}: it was held, and nobody saw it released",
                why="the incident ended first",
            )


def _parts(incident: Incident) -> Iterator[FollowUp]:
    hypothesis = incident.hypothesis
    asks_for_part = hypothesis is not None and hypothesis.first_action is FirstAction.RMA
    if (incident.response is Response.RETURN_TO_VENDOR or asks_for_part) and len(incident.nodes) == 1:
        culprits = () if hypothesis is None else hypothesis.culprits
        parts = listed([str(each) for each in culprits]) or listed(sorted(incident.nodes))
        yield FollowUp(
            urgency=Urgency.SOON,
            what=f"have the part replaced: {parts}",
            why="the fault asks for hands; the report for the vendor has serials and tests",
            command=f"ops-pipelines repair report {incident.incident}",
        )


def _offender(incident: Incident, earlier: Collection[Incident]) -> Iterator[FollowUp]:
    for node in sorted(incident.nodes) if len(incident.nodes) <= 3 else ():
        before = [
            each
            for each in earlier
            if node in each.nodes
            and each.incident != incident.incident
            and each.opened_at <= incident.opened_at
            and each.state is not IncidentState.MERGED
            and each.response in REPAIRS
        ]
        if before:
            times = f"{counted(len(before), 'earlier incident')} within {HISTORY.days} days"
            yield FollowUp(
                urgency=Urgency.SOON,
                what=f"{node} is a repeated offender: decide whether it stays in service",
                why=f"{times}: {listed([each.incident for each in before[-4:]])}",
                command="ops-pipelines ladder",
            )


def _doubts(
    incident: Incident, chain: Chain, records: Collection[ActionRecord], checks: Sequence[tuple[NodeCheck, bool]]
) -> Iterator[FollowUp]:
    drained = drained_at(records)
    mended = done_at(records, REPAIRS_OF_NODES)
    well_before = [
        check
        for check, is_well in checks
        if is_well
        and drained is not None
        and check.finished_at >= drained
        and not (mended and mended[0] <= check.finished_at)
    ]
    if well_before and incident.mended_at is None:
        yield FollowUp(
            urgency=Urgency.REVIEW,
            what=f"was it wrong to take {well_before[0].node} out? It tested well before anything was repaired",
            why=f"suite {well_before[0].suite} passed at {well_before[0].finished_at:%H:%M:%S} UTC",
        )
    if incident.state is IncidentState.MERGED and done_at(records, {Verb.DRAIN, Verb.HOLD}):
        yield FollowUp(
            urgency=Urgency.REVIEW,
            what="was it wrong to act? Acts were done before it turned out to be part of another incident",
            why=incident.note,
        )
    for each in records:
        if each.outcome is not None and each.outcome.kind is OutcomeKind.FAILED:
            yield FollowUp(
                urgency=Urgency.REVIEW, what=f"{explain_action(each.action)} failed", why=each.outcome.witness
            )
    if chain.plans and incident.bundle is None and done_at(records, REPAIRS_OF_NODES | {Verb.DRAIN}):
        yield FollowUp(
            urgency=Urgency.REVIEW,
            what="no evidence bundle was kept",
            why="what surrounded the fault can only be read from the ledger and the lake",
        )


def _untold(notes: Collection[KeptNote]) -> Iterator[FollowUp]:
    for kept in notes:
        if kept.state is NoteState.UNDELIVERABLE:
            yield FollowUp(
                urgency=Urgency.SOON,
                what=f"tell {kept.note.recipient} yourself: no channel took the message",
                why=f"{kept.note.line}; {kept.problem}",
                command="ops-pipelines messages",
            )


def _slowness(incident: Incident, chain: Chain, earlier: Collection[Incident]) -> Iterator[FollowUp]:
    rules = {finding.rule for finding in incident.findings}
    took = incident.opened_at - incident.began_at
    usual = [
        (each.opened_at - each.began_at).total_seconds()
        for each in earlier
        if each.incident != incident.incident and rules & {finding.rule for finding in each.findings}
    ]
    if len(usual) >= _FEWEST_ALIKE:
        typical = median(usual)
        if took > _SLOW_AT_LEAST and took.total_seconds() > _SLOW_RATIO * typical:
            yield FollowUp(
                urgency=Urgency.REVIEW,
                what=f"it was noticed after {span_words(took.total_seconds())}, later than usual",
                why=f"half of {len(usual)} incidents of the same signs were noticed within {span_words(typical)}",
            )
    if chain.approvals and chain.plans:
        first = min(chain.approvals, key=lambda each: each.given_at)
        made = min((each.made_at for each in chain.plans if each.plan.plan == first.plan), default=first.given_at)
        if first.given_at - made >= _LONG_WAIT:
            waited = span_words((first.given_at - made).total_seconds())
            yield FollowUp(
                urgency=Urgency.REVIEW,
                what=f"the plan waited {waited} for approval: should this kind of plan need one?",
                why=f"{first.actor} approved {first.plan}",
            )
    unproven = [
        each.attempt.job
        for each in incident.recoveries
        if each.resumed_at is not None and each.progressed_at is None and not each.ended_as and not incident.is_open
    ]
    if unproven:
        yield FollowUp(
            urgency=Urgency.REVIEW,
            what=f"job {listed(unproven)} was not seen beyond its checkpoint before the incident closed",
            why="that it runs proves nothing; its log or its next checkpoint does",
        )
