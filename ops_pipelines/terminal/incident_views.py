"""What `incidents` answers, as values in the shape of its JSON: incidents, each with its plan and what comes next.

Field names are the JSON keys. Which plan would be made now is `outlook`'s, printing `tables`'.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import MESSAGES, Action
from ops_pipelines.core.entries import Approval
from ops_pipelines.core.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.core.overlap import Certainty, Overlap, tell, what_to_do
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.remediate.testimony import explain_action
from ops_pipelines.terminal.diagnosis_views import DiagnosisView, view_diagnosis


class PlanStanding(Enum):
    """Where a plan is between thought and deed."""

    WOULD_BE_DONE = "would_be_done"
    """The mode is observe: it is shown and never begun."""
    WAITS_FOR_APPROVAL = "waits_for_approval"
    APPROVED = "approved"
    NEXT = "next"
    """The mode is auto: it begins with the next run."""
    HELD_BACK = "held_back"
    """A guardrail says later; `waits_for` of its incident says why."""
    IN_FORCE = "in_force"
    """It is being carried out."""
    ENDED = "ended"
    """Carried out, given up, or superseded."""
    RECORDED = "recorded"
    """Whether it still holds could not be judged: a system did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """One plan. `approved_by` and `approved_until` are null without an approval that holds now."""

    plan: str
    standing: PlanStanding
    response: str
    reason: str
    steps: tuple[str, ...]
    effects: tuple[str, ...]
    rejected_alternatives: tuple[str, ...]
    approved_by: str | None
    approved_until: datetime | None
    left_to: str
    """The reason of somebody else's drain that the node is left to; empty where its repair is ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    """One incident. `waits_for` says why nothing is done now, `plan` what is, was or would be done; null if unknown."""

    incident: str
    state: str
    response: str
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    victims: tuple[str, ...]
    what: str
    note: str
    opened_at: datetime
    changed_at: datetime
    closed_at: datetime | None
    open_for_seconds: float
    waits_for: str | None
    plan: PlanView | None
    diagnosis: DiagnosisView
    overlaps: tuple[str, ...]
    """Jobs of which two copies ran, or may have run, at once: from when to when, how sure, where they save."""
    next_step: str
    """What will be done, or why nothing is, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentsView:
    """The answer of `incidents`; `problems` names what could not be read."""

    cluster: str
    taken_at: datetime
    incidents: tuple[IncidentView, ...] | None
    """None where the ledger or its place is not known."""
    problems: tuple[str, ...]


def view_plan(plan: IncidentPlan, *, standing: PlanStanding, approval: Approval | None) -> PlanView:
    """Return a plan as it is shown."""
    return PlanView(
        plan=plan.plan,
        standing=standing,
        response=plan.response.name.lower(),
        reason=plan.reason,
        steps=tuple(_explain_step(action) for action in plan.actions),
        effects=plan.effects,
        rejected_alternatives=plan.rejected_alternatives,
        approved_by=None if approval is None else approval.actor,
        approved_until=None if approval is None else approval.expires_at,
        left_to=plan.left_to,
    )


def _explain_step(action: Action) -> str:
    return f"{explain_action(action)}: {action.text}" if action.verb in MESSAGES else explain_action(action)


def view_incident(incident: Incident, *, plan: PlanView | None, waits_for: str | None, now: datetime) -> IncidentView:
    """Return an incident as it is shown."""
    return IncidentView(
        incident=incident.incident,
        state=incident.state.value,
        response=incident.response.name.lower(),
        nodes=tuple(sorted(incident.nodes)),
        gpus=tuple(sorted(incident.gpus)),
        victims=tuple(attempt.job for attempt in sorted(incident.victims)),
        what=incident.cause,
        note=incident.note,
        opened_at=incident.opened_at,
        changed_at=incident.changed_at,
        closed_at=incident.closed_at,
        open_for_seconds=((incident.closed_at or now) - incident.opened_at).total_seconds(),
        waits_for=waits_for,
        plan=plan,
        diagnosis=view_diagnosis(incident),
        overlaps=tuple(_tell_overlap(each, now) for each in incident.overlaps),
        next_step=_next_step(incident, plan, waits_for),
    )


def _tell_overlap(overlap: Overlap, now: datetime) -> str:
    told = tell(overlap, now=now)
    return told if overlap.certainty is Certainty.EXCLUDED else f"{told}. {what_to_do(overlap)}"


def _next_step(incident: Incident, plan: PlanView | None, waits_for: str | None) -> str:
    match incident.state:
        case IncidentState.RESOLVED:
            return f"nothing: resolved ({incident.note})"
        case IncidentState.MERGED:
            return f"nothing here: {incident.note}"
        case IncidentState.ESCALATED:
            return f"by you: {asked_of_person(incident)}"
        case IncidentState.VERIFYING:
            return "the node proves itself; then it is returned to service"
        case IncidentState.PROBATION:
            return "in service as last choice; well through its probation, it is like any other again"
        case IncidentState.IN_REPAIR:
            return f"by you: mend it, then `ops-pipelines repair done {incident.incident}`"
        case IncidentState.ACTING | IncidentState.OPEN:
            pass
    steps = "" if plan is None else plan.steps[0]
    if plan is not None and len(plan.steps) > 1:
        steps += f" and {len(plan.steps) - 1} more step{'s' if len(plan.steps) > 2 else ''}"
    if plan is not None and plan.left_to:
        steps += f"; the node is left to whoever drained it ({plan.left_to})"
    if waits_for is not None:
        return f"{steps or 'nothing yet'}; waits for {waits_for}"
    if plan is None:
        return "not known: what would be done now could not be worked out"
    if plan.standing is PlanStanding.WOULD_BE_DONE:
        return f"nothing, the mode is observe; in another mode: {steps}"
    return f"{steps}; {plan.standing.value.replace('_', ' ')}"
