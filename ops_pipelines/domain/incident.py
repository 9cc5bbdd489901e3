"""One problem that we own until it is resolved: its cause, its culprit, its victims, and its life cycle.

Everything that changes an incident's state stands in `TRANSITIONS`; a missing key is the error. How findings
become incidents is in `correlate`; what to do about one belongs to `remediation`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from ops_pipelines.domain.finding import Finding, Response
from ops_pipelines.domain.hypothesis import Hypothesis
from ops_pipelines.domain.identity import IncidentId, JobAttempt, NodeName, PciAddress, PlanId
from ops_pipelines.domain.observation import CONDITION_SOURCES


class IllegalTransitionError(RuntimeError):
    """Our own fault: an incident was asked to do what its state does not allow. Nothing was changed."""


class IncidentState(Enum):
    """Where an incident is in its life."""

    OPEN = "open"
    """Stable. Found; waits for confirmation, for budget or for an approval."""
    ACTING = "acting"
    """Transitional, aims at VERIFYING. The plan's steps are being carried out; survives a crash by witness."""
    VERIFYING = "verifying"
    """Transitional, aims at RESOLVED. Steps done; the node must prove itself before it is returned."""
    ESCALATED = "escalated"
    """Failed for us: a human has it. We touch nothing of it any more."""
    RESOLVED = "resolved"
    """Stable, final. Healed and witnessed, or it cleared by itself."""
    MERGED = "merged"
    """Stable, final. It was part of another incident, named in the note."""


class IncidentEvent(Enum):
    """What can happen to an incident."""

    PLAN_BEGUN = "plan_begun"
    SUPERSEDED = "superseded"
    STEPS_DONE = "steps_done"
    NOTHING_TO_VERIFY = "nothing_to_verify"
    RECOVERED = "recovered"
    NEEDS_HUMAN = "needs_human"
    CLEARED = "cleared"
    JOINED_OTHER = "joined_other"


OPEN_STATES = frozenset({IncidentState.OPEN, IncidentState.ACTING, IncidentState.VERIFYING, IncidentState.ESCALATED})
"""States in which new evidence of the same cause joins the incident instead of opening another."""

TRANSITIONS: Mapping[tuple[IncidentState, IncidentEvent], IncidentState] = {
    (IncidentState.OPEN, IncidentEvent.PLAN_BEGUN): IncidentState.ACTING,
    (IncidentState.OPEN, IncidentEvent.CLEARED): IncidentState.RESOLVED,
    (IncidentState.OPEN, IncidentEvent.JOINED_OTHER): IncidentState.MERGED,
    (IncidentState.OPEN, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.ACTING, IncidentEvent.STEPS_DONE): IncidentState.VERIFYING,
    (IncidentState.ACTING, IncidentEvent.NOTHING_TO_VERIFY): IncidentState.RESOLVED,
    (IncidentState.ACTING, IncidentEvent.SUPERSEDED): IncidentState.OPEN,
    (IncidentState.ACTING, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.VERIFYING, IncidentEvent.RECOVERED): IncidentState.RESOLVED,
    (IncidentState.VERIFYING, IncidentEvent.SUPERSEDED): IncidentState.OPEN,
    (IncidentState.VERIFYING, IncidentEvent.NEEDS_HUMAN): IncidentState.ESCALATED,
    (IncidentState.ESCALATED, IncidentEvent.CLEARED): IncidentState.RESOLVED,
    (IncidentState.ESCALATED, IncidentEvent.RECOVERED): IncidentState.RESOLVED,
}


def next_state(state: IncidentState, event: IncidentEvent) -> IncidentState:
    """Return the state after `event`; raise IllegalTransitionError where the table has no entry."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"an incident that is {state.value} cannot take {event.value}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One problem with one cause."""

    incident: IncidentId
    state: IncidentState
    response: Response
    """The repair that the findings call for; it only grows stronger, unless the driver itself says otherwise."""
    nodes: frozenset[NodeName]
    """The culprits: one node as a rule, many in a mass event, none where only a job is at fault."""
    gpus: frozenset[PciAddress]
    victims: frozenset[JobAttempt]
    """Attempts that ran on the culprits when it began."""
    findings: tuple[Finding, ...]
    opened_at: datetime
    changed_at: datetime
    closed_at: datetime | None = None
    plan: PlanId | None = None
    """The plan being carried out; None before one has begun or after it was superseded."""
    plan_count: int = 0
    """How many plans have begun: the try number of the next one is one more."""
    note: str = ""
    """Why it is where it is, for people."""
    hypothesis: Hypothesis | None = None
    """What broke and why we believe so; None in ledgers of versions that had no word for it."""

    @property
    def is_mass_event(self) -> bool:
        return self.response is Response.PAGE_MASS_EVENT

    @property
    def cause(self) -> str:
        """What is wrong, in one sentence: a logged event says it better than a condition, the fault than the wish."""
        if not self.findings:
            return self.note
        told = min(self.findings, key=_telling_order).explanation
        return f"{len(self.nodes)} nodes look broken at once, such as: {told}" if self.is_mass_event else told

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


def _telling_order(finding: Finding) -> tuple[bool, bool, bool, datetime]:
    is_condition = any(observation.source in CONDITION_SOURCES for observation in finding.evidence)
    return (
        finding.is_lasting and finding.response is Response.PAGE,
        is_condition,
        finding.is_driver_verdict,
        finding.found_at,
    )


def advance(incident: Incident, event: IncidentEvent, *, at: datetime, note: str) -> Incident:
    """Return the incident after `event`; raise IllegalTransitionError if its state does not allow that."""
    state = next_state(incident.state, event)
    is_closing = state in (IncidentState.RESOLVED, IncidentState.MERGED)
    return replace(
        incident,
        state=state,
        changed_at=at,
        closed_at=at if is_closing else incident.closed_at,
        plan=None if event is IncidentEvent.SUPERSEDED else incident.plan,
        note=note,
    )
