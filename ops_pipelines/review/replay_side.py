"""One policy's side of a replay, and what would be started under it on one snapshot.

The plans are `remediate.decide.decide`'s. Whether a plan may start is judged as `remediate.gate` does it: on its
first act, without any approval. Of the acts behind it only what the policy itself says is known.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, MESSAGES, SOFT, Action, ActionRecord, Verb
from ops_pipelines.core.identity import ActionKey, IncidentId, PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan, Moment, Rules, Snapshot, TouchedJob
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.remediate.decide import Decision, cluster_facts, decide
from ops_pipelines.remediate.gate import first_act
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import judge

# -- what would be started under a policy on one snapshot --


SAID_BY_POLICY = frozenset({"mode", "consent", "approval"})
"""Guardrails that are known before an act's turn comes: they are the policy's own words, and are asked first."""


class Standing(Enum):
    """What becomes of an incident's plan."""

    BEGUN = "begun"
    WAITS_FOR_APPROVAL = "waits_for_approval"
    HELD = "held"
    """A guardrail says no to its first act, or there is no plan at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is done about one incident at one moment."""

    incident: Incident
    plan: IncidentPlan | None
    standing: Standing
    begun: tuple[Action, ...] = ()
    """The acts that it begins by itself."""
    after_approval: tuple[Action, ...] = ()
    """The acts that follow a person's approval of the plan."""
    once_free: tuple[Action, ...] = ()
    """Of a plan that is held: the acts that it begins by itself once the guardrail releases."""
    refusal: Refusal | None = None
    """Why nothing, or nothing more, is done."""

    @property
    def why_not(self) -> str:
        """Return why nothing, or nothing more, is done; empty where nothing is held back."""
        return "" if self.refusal is None else f"{self.refusal.guardrail}: {self.refusal.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Courses:
    """One decision, and what follows from it by itself."""

    decision: Decision
    by_incident: Mapping[IncidentId, Course]

    def plan_marks(self) -> frozenset[tuple[str, ...]]:
        """Return what makes two decisions do the same: plans with their standing, and the guardrails that hold back."""
        return frozenset(
            (
                name,
                course.standing.value,
                "" if course.plan is None else course.plan.plan,
                "" if course.refusal is None else course.refusal.guardrail,
                *(() if course.plan is None else (each.moment.value for each in course.plan.timings)),
            )
            for name, course in self.by_incident.items()
        )


def courses_of(snapshot: Snapshot, rules: Rules) -> Courses:
    """Return what is decided on a snapshot under `rules`, and what of it is started."""
    decision = decide(snapshot, rules)
    present = {each.incident: each for each in (*snapshot.incidents, *decision.incidents)}
    found = {
        name: Course(incident=present[name], plan=None, standing=Standing.HELD, refusal=refusal)
        for name, refusal in decision.refusals
    }
    facts = cluster_facts(snapshot, rules)
    for plan in decision.plans:
        course = _course_of(plan, present[plan.incident], facts, rules)
        found[plan.incident] = course
        if course.standing is Standing.BEGUN:
            # What this plan begins with is spent for the next one, as when plans are put in force.
            intended = ActionRecord(action=first_act(plan), plan=plan.plan, begun_at=facts.taken_at)
            facts = replace(facts, records=(*facts.records, intended))
    return Courses(decision=decision, by_incident=found)


def _course_of(plan: IncidentPlan, incident: Incident, facts: ClusterFacts, rules: Rules) -> Course:
    first = _judge(first_act(plan), incident, facts, rules, Authority.AUTOPILOT)
    after_yes, stop_after_yes = _begun_by(plan, incident, facts, rules, Authority.APPROVED_PLAN)
    if first is not None and first.guardrail == "approval":
        return Course(
            incident=incident,
            plan=plan,
            standing=Standing.WAITS_FOR_APPROVAL,
            after_approval=after_yes,
            refusal=first,
        )
    if first is not None:
        free, stop = _begun_by(plan, incident, facts, rules, Authority.AUTOPILOT)
        return Course(
            incident=incident,
            plan=plan,
            standing=Standing.HELD,
            once_free=free,
            after_approval=after_yes if stop is not None and stop.guardrail == "approval" else (),
            refusal=first,
        )
    begun, stop = _begun_by(plan, incident, facts, rules, Authority.AUTOPILOT)
    return Course(
        incident=incident,
        plan=plan,
        standing=Standing.BEGUN,
        begun=begun,
        after_approval=after_yes if stop is not None and stop.guardrail == "approval" else (),
        refusal=stop or stop_after_yes,
    )


def _begun_by(
    plan: IncidentPlan, incident: Incident, facts: ClusterFacts, rules: Rules, authority: Authority
) -> tuple[tuple[Action, ...], Refusal | None]:
    """Return the acts up to the first that the policy does not allow, and why it does not."""
    begun: list[Action] = []
    for action in plan.actions:
        refusal = _judge(action, incident, facts, rules, authority)
        if refusal is None or refusal.guardrail not in SAID_BY_POLICY:
            begun.append(action)
        elif action.verb not in SOFT | MESSAGES:
            return tuple(begun), refusal
    return tuple(begun), None


def _judge(
    action: Action, incident: Incident, facts: ClusterFacts, rules: Rules, authority: Authority
) -> Refusal | None:
    return judge(
        action,
        facts,
        policy=rules.policy,
        topology=rules.topology,
        authority=authority,
        origin=incident.nodes,
    )


# -- one policy's side of a replay --


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTime:
    """The first time that a side begins an act."""

    at: datetime
    action: Action
    plan: IncidentPlan
    incident: Incident
    other_why: str
    """Why the other side does not begin it then; empty where it does."""

    @property
    def moment(self) -> Moment | None:
        """Return when the job of the act is interrupted; None for acts that interrupt none."""
        if self.action.verb is not Verb.HOLD:
            return None
        return next((each.moment for each in self.plan.timings if each.attempt == self.action.attempt), None)

    @property
    def lost_gpu_hours(self) -> float | None:
        """Return what the job of a hold is expected to lose; None where nobody knows, or for other acts."""
        job = self._held_job
        return None if job is None else job.lost_gpu_hours

    @property
    def team(self) -> str:
        """Return the account whose job a hold interrupts; empty where nobody knows, or for other acts."""
        job = self._held_job
        return "" if job is None else job.account

    @property
    def _held_job(self) -> TouchedJob | None:
        if self.action.verb is not Verb.HOLD or self.plan.proof is None or self.action.attempt is None:
            return None
        job = self.action.attempt.job
        return next((each for each in self.plan.proof.jobs if each.job == job), None)


@dataclass(slots=True, kw_only=True)
class Side:
    """What one policy does, decision by decision."""

    begun: dict[ActionKey, FirstTime] = field(default_factory=dict)
    waiting: dict[PlanId, tuple[Course, str]] = field(default_factory=dict)
    """Plans that are not started, or not to their end, with what held them back: a person's yes may come."""
    approvals: set[PlanId] = field(default_factory=set)
    """Plans that ask a person for an approval."""
    allowed: dict[PlanId, datetime] = field(default_factory=dict)
    """Plans that got one while they waited, and when the first came."""
    held: dict[str, set[IncidentId]] = field(default_factory=dict)
    """By guardrail: the incidents that it kept waiting."""
    incidents: set[IncidentId] = field(default_factory=set)
    """Incidents that it sees open."""

    def take(self, mine: Courses, other: Courses | None, *, at: datetime) -> None:
        """Take note of one decision; `other` is what the other side does at the same moment, None if nobody knows."""
        for name, course in mine.by_incident.items():
            self.incidents.add(name)
            theirs = None if other is None else other.by_incident.get(name)
            self.begin(course, course.begun, at=at, theirs=theirs, is_known=other is not None)
            if course.refusal is not None:
                self.held.setdefault(course.refusal.guardrail, set()).add(name)
            if course.plan is not None and course.refusal is None:
                self.waiting.pop(course.plan.plan, None)
            if course.plan is not None and course.refusal is not None:
                self.waiting[course.plan.plan] = (course, course.refusal.guardrail)
                if course.refusal.guardrail == "approval":
                    self.approvals.add(course.plan.plan)

    def begin(
        self,
        course: Course,
        actions: Collection[Action],
        *,
        at: datetime,
        theirs: Course | None,
        is_known: bool,
    ) -> None:
        """Take note that acts of a course are started."""
        assert course.plan is not None or not actions, "only plans have acts"
        for action in actions:
            if action.key not in self.begun and course.plan is not None:
                self.begun[action.key] = FirstTime(
                    at=at,
                    action=action,
                    plan=course.plan,
                    incident=course.incident,
                    other_why=_why_not(action, course.plan, theirs) if is_known else "",
                )

    def approve(self, plan: PlanId, *, at: datetime) -> None:
        """Take note of a person's approval of a plan that waits for one."""
        waits = self.waiting.get(plan)
        if waits is not None and waits[1] == "approval":
            self.allowed.setdefault(plan, at)

    def use_yes(self, plan: PlanId) -> None:
        """Take note that a plan continued after its yes: what waited is started as of the approval.

        An approval alone begins nothing: it may expire, and it is void when the plan changes.
        """
        waits = self.waiting.get(plan)
        if plan in self.allowed and waits is not None and waits[1] == "approval":
            course, _ = self.waiting.pop(plan)
            self.begin(course, course.after_approval, at=self.allowed[plan], theirs=None, is_known=False)

    def go_on(self, plan: PlanId, *, at: datetime) -> str | None:
        """Take note that a plan that was held back was started after all; return by which guardrail it was held.

        What the policy itself forbids, or asks an approval for, never continues by itself.
        """
        waits = self.waiting.get(plan)
        if waits is None or waits[0].standing is not Standing.HELD or waits[1] in SAID_BY_POLICY:
            return None
        course, guardrail = self.waiting.pop(plan)
        self.begin(course, course.once_free, at=at, theirs=None, is_known=False)
        if course.after_approval:
            self.waiting[plan] = (course, "approval")
            self.approvals.add(plan)
        return guardrail

    def plans(self) -> Iterator[tuple[IncidentPlan, frozenset[ActionKey]]]:
        """Yield each plan of which anything is started, with the keys of what is."""
        keys: dict[PlanId, set[ActionKey]] = {}
        plans: dict[PlanId, IncidentPlan] = {}
        for key, first in self.begun.items():
            plans.setdefault(first.plan.plan, first.plan)
            keys.setdefault(first.plan.plan, set()).add(key)
        for name, plan in plans.items():
            yield plan, frozenset(keys[name])

    def touched(self) -> frozenset[IncidentId]:
        """Return the incidents for which it takes a node or a job away."""
        return frozenset(
            each.incident.incident for each in self.begun.values() if each.action.verb in DESTRUCTIVE_VERBS
        )


def _why_not(action: Action, plan: IncidentPlan, theirs: Course | None) -> str:
    """Return why the other side does not begin this act of `plan`; empty where it does."""
    if theirs is None:
        return "no such incident is open"
    if any(each.key == action.key for each in theirs.begun):
        return ""
    if theirs.plan is None or theirs.standing is not Standing.BEGUN:
        return theirs.why_not
    if any(each.key == action.key for each in theirs.plan.actions):
        return theirs.why_not
    mine = {each.key for each in plan.actions}
    instead = ", ".join(each.verb.value.replace("_", " ") for each in theirs.plan.actions if each.key not in mine)
    return f"another plan: {instead or 'the same'} {'instead' if instead else 'without it'}"
