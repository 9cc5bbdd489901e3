"""What would be begun under a policy on one snapshot, as if each act that is begun came to its end.

The plans are `remediate.decide.decide`'s. Whether a plan may begin is judged as `remediate.plans.gate` does it: on its
first act, on nobody's word. Of the acts behind it only what the policy itself says is known: their world is yet to be.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import IncidentPlan, Rules, Snapshot
from ops_pipelines.core.proof import Authority, Refusal
from ops_pipelines.remediate.decide import Decision, cluster_facts, decide
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.plans.gate import first_act

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
    """The acts that follow a person's yes to the plan."""
    once_free: tuple[Action, ...] = ()
    """Of a plan that is held: the acts that it begins by itself once the guardrail lets go."""
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
    """Return what is decided on a snapshot under `rules`, and what of it is begun."""
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
