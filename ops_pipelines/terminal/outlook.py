"""What would be done now for each incident: its plan, whether that plan is pending approval, in force or ended, and why
nothing is done where nothing is.

Values and the ledger's answers alone; `incidents` beside this module says how they are printed and their JSON keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import MESSAGES, Action
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Approval, Entry, EntryKind, LedgerState
from ops_pipelines.core.identity import IncidentId, PlanId
from ops_pipelines.core.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.overlap import Certainty, Overlap, tell, what_to_do
from ops_pipelines.core.plan import IncidentPlan, Snapshot
from ops_pipelines.core.policy import Mode
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.decide import plan_all
from ops_pipelines.remediate.due import awaited_act, waiting_moment
from ops_pipelines.remediate.gate import first_act
from ops_pipelines.remediate.guardrails.consents import needs_yes
from ops_pipelines.remediate.verbs import explain_action
from ops_pipelines.report.numbers import moment


class PlanStanding(Enum):
    """Where a plan is between thought and deed."""

    WOULD_BE_DONE = "would_be_done"
    """The mode is observe: it is shown and never started."""
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
class PlanOutlook:
    """One plan, and where it is."""

    recorded: IncidentPlan
    standing: PlanStanding
    approval: Approval | None
    """The one that holds now."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Return its acts in words; messages with what they say."""
        return tuple(
            f"{explain_action(each)}: {each.text}" if each.verb in MESSAGES else explain_action(each)
            for each in self.recorded.actions
        )

    @property
    def words(self) -> str:
        """Return where it is, in words."""
        if self.standing is PlanStanding.APPROVED and self.approval is not None:
            return f"approved by {self.approval.actor} until {moment(self.approval.expires_at)}"
        words = self.standing.value.replace("_", " ")
        return f"{words} (the mode is observe)" if self.standing is PlanStanding.WOULD_BE_DONE else words


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOutlook:
    """One incident, why nothing is done for it now, and the plan that is, was or would be done; None if unknown."""

    incident: Incident
    plan: PlanOutlook | None
    waits_for: str | None
    now: datetime

    @property
    def open_for(self) -> timedelta:
        return (self.incident.closed_at or self.now) - self.incident.opened_at

    @property
    def overlaps(self) -> tuple[str, ...]:
        """Return the jobs of which two copies ran, or may have run, at once: from when to when, and how sure."""
        return tuple(_overlap_words(each, self.now) for each in self.incident.overlaps)

    @property
    def next_step(self) -> str:
        """Return what will be done, or why nothing is, in one sentence."""
        incident, plan = self.incident, self.plan
        match incident.state:
            case IncidentState.RESOLVED:
                return f"nothing: resolved ({incident.note})"
            case IncidentState.MERGED:
                return f"nothing here: {incident.note}"
            case IncidentState.ESCALATED:
                return f"by you: {asked_of_person(incident)}"
            case IncidentState.VERIFYING:
                return "the node is tested; then it is returned to service"
            case IncidentState.PROBATION:
                return "in service as last choice; well through its probation, it is like any other again"
            case IncidentState.IN_REPAIR:
                return f"by you: repair it, then `ops-pipelines repair done {incident.incident}`"
            case IncidentState.ACTING | IncidentState.OPEN:
                pass
        steps = "" if plan is None else plan.steps[0]
        if plan is not None and len(plan.steps) > 1:
            steps += f" and {len(plan.steps) - 1} more step{'s' if len(plan.steps) > 2 else ''}"
        if plan is not None and plan.recorded.left_to:
            steps += f"; the node is left to the person who drained it ({plan.recorded.left_to})"
        if self.waits_for is not None:
            return f"{steps or 'nothing yet'}; waits for {self.waits_for}"
        if plan is None:
            return "not known: what would be done now could not be worked out"
        if plan.standing is PlanStanding.WOULD_BE_DONE:
            return f"nothing, the mode is observe; in another mode: {steps}"
        return f"{steps}; {plan.standing.value.replace('_', ' ')}"


def _overlap_words(overlap: Overlap, now: datetime) -> str:
    words = tell(overlap, now=now)
    return words if overlap.certainty is Certainty.EXCLUDED else f"{words}. {what_to_do(overlap)}"


class Outlook:
    """The ledger's state and, for each incident that waits, the plan that would be made now or why there is none."""

    def __init__(self, cluster: Cluster) -> None:
        """Read it. A scheduler that does not answer is named in `problems`; then no plan is known to hold."""
        self._cluster = cluster
        self.problems: tuple[str, ...] = ()
        self._present: Mapping[IncidentId, IncidentPlan | Refusal] = {}
        self.state: LedgerState = cluster.ledger.read_state(cluster.clock.now())
        if any(incident.state is IncidentState.OPEN for incident in self.state.incidents):
            try:
                self._present = _plan_now(cluster, self.state)
            except SourceError as problem:
                self.problems = (str(problem),)

    def present(self, incident: IncidentId) -> IncidentPlan | Refusal | None:
        """Return what would be done now, or why not; None if that is not known."""
        return self._present.get(incident)

    def approval(self, plan: PlanId) -> Approval | None:
        """Return the approval of a plan that lasts longest, None if none holds now."""
        given = [approval for approval in self.state.approvals if approval.plan == plan]
        return max(given, key=lambda approval: approval.expires_at, default=None)

    def awaited(self, incident: IncidentId) -> Action | None:
        """Return the act of a plan in force that is pending approval; None if none is."""
        known = next((each for each in self.state.incidents if each.incident == incident), None)
        plan = None if known is None or known.plan is None else self._cluster.ledger.plan(known.plan)
        if known is None or plan is None:
            return None
        return awaited_act(known, plan, self.state, self._cluster.rules.policy)

    def view(self, incident: Incident, *, entries: tuple[Entry, ...] = ()) -> IncidentOutlook:
        """Return an incident with its plan.

        Without a plan that would be made now, the newest one recorded in `entries` is shown, with its standing.
        """
        plan, waits_for = self._plan_of(incident, entries)
        return IncidentOutlook(incident=incident, plan=plan, waits_for=waits_for, now=self._cluster.clock.now())

    def _plan_of(self, incident: Incident, entries: tuple[Entry, ...]) -> tuple[PlanOutlook | None, str | None]:
        """Return the plan of an incident, and why nothing is done for it now."""
        if incident.state is not IncidentState.OPEN:
            awaited = self.awaited(incident.incident)
            if awaited is not None:
                asked = self._recorded(incident.plan, PlanStanding.WAITS_FOR_APPROVAL)
                return asked, f"approval of {explain_action(awaited)}"
            if incident.state is IncidentState.ACTING:
                in_force = self._recorded(incident.plan, PlanStanding.IN_FORCE)
                return in_force, waiting_moment(incident, self._cluster)
            return self._recorded(incident.plan, PlanStanding.ENDED), None
        present = self.present(incident.incident)
        newest = _newest_plan(entries)
        if isinstance(present, Refusal):
            return self._recorded(newest, PlanStanding.HELD_BACK), f"{present.guardrail}: {present.reason}"
        if present is None:
            return self._recorded(newest, PlanStanding.RECORDED), None
        plan = self._recorded(present.plan, self._standing_of(present))
        return plan, self._why_not_begun(plan)

    def _standing_of(self, plan: IncidentPlan) -> PlanStanding:
        policy = self._cluster.rules.policy
        if policy.mode is Mode.OBSERVE:
            return PlanStanding.WOULD_BE_DONE
        if self.approval(plan.plan) is not None:
            return PlanStanding.APPROVED
        is_asked_for = needs_yes(first_act(plan), policy, among=plan.actions)
        return PlanStanding.WAITS_FOR_APPROVAL if is_asked_for else PlanStanding.NEXT

    def _why_not_begun(self, plan: PlanOutlook | None) -> str | None:
        if plan is None:
            return "the next run, which records its plan"
        if plan.standing is PlanStanding.WAITS_FOR_APPROVAL:
            return "approval"
        if plan.standing is not PlanStanding.WOULD_BE_DONE and self.state.pause is not None:
            return "the end of the pause"
        return None

    def _recorded(self, plan: PlanId | None, standing: PlanStanding) -> PlanOutlook | None:
        """Return a recorded plan; a plan that is not in the ledger yet cannot be approved and is not shown."""
        recorded = None if plan is None else self._cluster.ledger.plan(plan)
        if recorded is None:
            return None
        return PlanOutlook(recorded=recorded, standing=standing, approval=self.approval(recorded.plan))


def entries_of(incident: Incident, ledger: Ledger) -> tuple[Entry, ...]:
    """Return the lines of the chain about one incident, in order; the decisions that they followed are left out."""
    return tuple(each for each in ledger.entries_about(incident.incident) if each.incident == incident.incident)


def _newest_plan(entries: tuple[Entry, ...]) -> PlanId | None:
    for entry in reversed(entries):
        if entry.kind is EntryKind.PLAN:
            return PlanId(str(json.loads(entry.body)["plan"]))
    return None


def _plan_now(cluster: Cluster, state: LedgerState) -> Mapping[IncidentId, IncidentPlan | Refusal]:
    """Return what the domain would plan now.

    A pause is left out, because it hides which plan would be next, and so are the metrics: no plan that begins with a
    drain depends on them, and both are judged again before each act.
    """
    nodes = cluster.scheduler.read_nodes()
    jobs = cluster.scheduler.read_jobs()
    snapshot = Snapshot(
        taken_at=cluster.clock.now(),
        rules_digest=cluster.rules_digest,
        ledger_head=state.head_seq,
        evidence_through=state.decided_through,
        observations=(),
        conditions=(),
        nodes=nodes,
        jobs=jobs,
        telemetry=(),
        is_telemetry_available=True,
        incidents=state.incidents,
        incident_count=state.incident_count,
        records=state.records,
        is_paused=False,
        owned=state.owned,
    )
    plans, refusals = plan_all((), snapshot, cluster.rules)
    return {plan.incident: plan for plan in plans} | dict(refusals)
