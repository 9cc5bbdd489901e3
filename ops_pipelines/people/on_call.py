"""What the on-call is notified of in one incident: what is asked, what is done without them, and that it is over.

A page that a plan or an escalation sends is an act with a receipt (`remediate.verbs`) and is not reported twice.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, MESSAGES, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import (
    NOT_SENT,
    ON_CALL,
    REPAIR_WORDS,
    Audience,
    KeptNote,
    Lane,
    Note,
    Severity,
    TellRules,
    body_of,
    minutes,
    names_of,
    next_time,
    places,
    quiet_end,
    short_cause,
    subject_of,
    sureness,
)
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import Mode
from ops_pipelines.remediate.verbs import explain_action

_REPAIRING = frozenset({IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.PROBATION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One incident as it is now, with what was reported of it."""

    incident: Incident
    records: Sequence[ActionRecord]
    """Every act of it."""
    in_force: IncidentPlan | None
    proposed: IncidentPlan | None
    """The newest plan that was made and not started; None if none was since the last look."""
    asked: IncidentPlan | None
    """The plan that waits for approval, before its first act or half-way."""
    will_ask: bool
    """Whether the plan in force comes to an act for which somebody's approval is still missing."""
    told: Sequence[KeptNote]
    mode: Mode
    rules: TellRules
    topology: Topology
    now: datetime


def tell_on_call(situation: Situation) -> tuple[Note, ...]:
    """Return the notes for the on-call that are true now; those that were handed in before are known by their key."""
    incident = situation.incident
    if not incident.is_open:
        return _closing(situation)
    if incident.is_watched:
        return ()
    notes = []
    if situation.asked is not None:
        notes.append(_question(situation, situation.asked))
    elif situation.proposed is not None and incident.state is IncidentState.OPEN:
        notes += _proposal(situation, situation.proposed)
    # What continues alone up to a question is reported with the question.
    if situation.in_force is not None and incident.state in _REPAIRING and not situation.will_ask:
        notes += _repair(situation, situation.in_force)
    return tuple(notes)


def _proposal(situation: Situation, plan: IncidentPlan) -> list[Note]:
    """Return what would be done in observe mode. Of what begins by itself nobody hears before it has started."""
    if situation.mode is not Mode.OBSERVE or all(action.verb in MESSAGES for action in plan.actions):
        return []
    incident = situation.incident
    body = body_of(
        [
            *_facts(situation),
            ("What we would do", f"{_repair_words(plan)}: {_steps(plan)}"),
            ("What it costs", "; ".join(plan.effects)),
            ("What you must do", "decide yourself: policy.yaml says mode: observe, so nothing is done"),
        ]
    )
    return [
        _news(
            situation,
            stage=f"would-{plan.response.name.lower()}",
            title=f"{names_of(incident)}: would {_repair_words(plan)}, only observing",
            lines_title="{count} incidents: what we would do, only observing",
            body=body,
            line=f"{incident.incident} {names_of(incident)}: {short_cause(incident)}; would {_repair_words(plan)}",
        )
    ]


def _question(situation: Situation, plan: IncidentPlan) -> Note:
    """Return what is asked: the whole plan, which may have started with what needed nobody."""
    incident = situation.incident
    is_half_way = incident.plan == plan.plan
    without = "without approval it stays as it is" if is_half_way else "without approval nothing is done"
    body = body_of(
        [
            *_facts(situation),
            ("What we ask", f"your approval of {plan.plan}, to {_repair_words(plan)}: {_steps(plan)}"),
            ("So far", "what needed nobody's approval is done; the rest waits" if is_half_way else ""),
            ("What it costs", "; ".join(plan.effects)),
            ("Instead of", "; ".join(plan.rejected_alternatives[:4])),
            ("What you must do", f"approve it (`ops-pipelines approve {plan.plan}`) or see to it; {without}"),
        ]
    )
    return _note(
        situation,
        stage=f"asks-{plan.plan}",
        title=f"{names_of(incident)}: may we {_repair_words(plan)}?",
        lines_title="{count} plans wait for your yes",
        body=body,
        line=f"{plan.plan} for {incident.incident}, {names_of(incident)}: {short_cause(incident)}; "
        f"may we {_repair_words(plan)}?",
        severity=Severity.WARNING,
        lane=Lane.AT_ONCE,
        ready_at=situation.now + situation.rules.group_window,
        likeness="asks",
        plan=plan,
    )


def _facts(situation: Situation) -> list[tuple[str, str]]:
    incident = situation.incident
    return [
        ("What", incident.cause),
        ("Where", places(incident, situation.topology)),
        ("How sure", sureness(incident)),
    ]


def _steps(plan: IncidentPlan) -> str:
    return "; ".join(explain_action(action) for action in plan.actions if action.verb not in MESSAGES)


def _repair(situation: Situation, plan: IncidentPlan) -> list[Note]:
    """Return that we are at it: once at once by day, and each higher rung of the ladder in the digest only."""
    if plan.response not in REPAIRS or all(action.verb in MESSAGES for action in plan.actions):
        return []
    if any(action.verb is Verb.PAGE_HUMAN for action in plan.actions):
        return []  # The plan itself notifies them: an isolation asks for somebody's eyes.
    incident = situation.incident
    family = "unknown" if incident.hypothesis is None else incident.hypothesis.family.value
    if incident.tries:
        line = (
            f"{incident.incident} {names_of(incident)}: {len(incident.tries)} repair(s) did not help; "
            f"now we {_repair_words(plan)}"
        )
        return [
            _note(
                situation,
                stage=f"climbs-{len(incident.tries)}",
                title=f"{names_of(incident)}: the repair did not help, now we {_repair_words(plan)}",
                lines_title="",
                body=line,
                line=line,
                severity=Severity.INFO,
                lane=Lane.DIGEST,
                ready_at=next_time(situation.rules.digest_at, situation.rules.zone, situation.now),
                likeness="climbs",
            )
        ]
    return [
        _news(
            situation,
            stage="acts",
            family=family,
            title=f"{names_of(incident)}: we {_repair_words(plan)}",
            lines_title="{count} incidents are being repaired",
            body=body_of(
                [
                    *_facts(situation),
                    ("What we do", f"{_repair_words(plan)}: {_steps(plan)}"),
                    ("What it costs", "; ".join(plan.effects)),
                    ("What you must do", "nothing; you hear of it when it is over, or when it needs you"),
                ]
            ),
            line=f"{incident.incident} {names_of(incident)}: {short_cause(incident)}; we {_repair_words(plan)}",
        )
    ]


def _closing(situation: Situation) -> tuple[Note, ...]:
    """Return that it is over, to who heard of it; who was called hears so at once, also by night."""
    incident = situation.incident
    was_called = any(
        each.action.verb is Verb.PAGE_HUMAN and each.outcome is not None and each.outcome.kind is OutcomeKind.DONE
        for each in situation.records
    )
    heard = [
        each
        for each in situation.told
        if each.note.audience is Audience.ON_CALL and not each.receipt.startswith(NOT_SENT)
    ]
    was_called = was_called or any(each.note.asks_for is not None for each in heard)
    has_heard = was_called or bool(heard)
    if not has_heard and not _has_acted(situation):
        return ()
    lasted = minutes((incident.closed_at or situation.now) - incident.opened_at)
    word = "part of another incident" if incident.state is IncidentState.MERGED else "over"
    line = f"{incident.incident} {names_of(incident)}: {short_cause(incident)}; {word} after {lasted}"
    lane, ready_at = Lane.AT_ONCE, situation.now + situation.rules.group_window
    if not has_heard:
        lane, ready_at = Lane.DIGEST, next_time(situation.rules.digest_at, situation.rules.zone, situation.now)
    elif not was_called and (morning := quiet_end(situation.rules, situation.now)) is not None:
        lane, ready_at = Lane.DIGEST, morning
    return (
        _note(
            situation,
            stage="over",
            title=f"{names_of(incident)}: {word} after {lasted}",
            lines_title="{count} incidents are over",
            body=body_of(
                [("What it was", incident.cause), ("How it ended", incident.note), ("What you must do", "nothing")]
            ),
            line=line,
            severity=Severity.INFO,
            lane=lane,
            ready_at=ready_at,
            likeness="over",
            is_last=True,
        ),
    )


def _has_acted(situation: Situation) -> bool:
    """Return whether we took something away or moved something: what was done unseen is reported in the digest."""
    return any(each.action.verb in DESTRUCTIVE_VERBS and each.outcome is not None for each in situation.records)


def _repair_words(plan: IncidentPlan) -> str:
    return REPAIR_WORDS.get(plan.response, plan.response.name.lower().replace("_", " "))


def _news(
    situation: Situation,
    *,
    stage: str,
    title: str,
    lines_title: str,
    body: str,
    line: str,
    family: str = "",
) -> Note:
    """Return a note that needs nobody: by night it waits for the morning's digest."""
    morning = quiet_end(situation.rules, situation.now)
    stage_word = stage.partition("-")[0]
    return _note(
        situation,
        stage=stage,
        title=title,
        lines_title=lines_title,
        body=body,
        line=line,
        severity=Severity.NOTICE,
        lane=Lane.AT_ONCE if morning is None else Lane.DIGEST,
        ready_at=morning or situation.now + situation.rules.group_window,
        likeness=f"{stage_word} {family}".strip(),
    )


def _note(
    situation: Situation,
    *,
    stage: str,
    title: str,
    lines_title: str,
    body: str,
    line: str,
    severity: Severity,
    lane: Lane,
    ready_at: datetime,
    likeness: str,
    is_last: bool = False,
    plan: IncidentPlan | None = None,
) -> Note:
    incident = situation.incident
    return Note(
        key=f"{incident.incident}/on_call/{stage}",
        audience=Audience.ON_CALL,
        recipient=ON_CALL,
        thread=incident.incident,
        subject=subject_of(incident),
        title=title,
        body=body,
        line=line,
        lines_title=lines_title,
        severity=severity,
        lane=lane,
        likeness=likeness,
        made_at=situation.now,
        ready_at=ready_at,
        asks_for=None if plan is None else plan.plan,
        is_last=is_last,
    )
