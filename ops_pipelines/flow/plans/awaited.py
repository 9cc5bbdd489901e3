"""Which act of a plan in force waits for somebody's yes. Reads the ledger's state alone; asks no system.

A plan that has not begun waits with its first act; one that goes on by itself up to a point, such as a drain that needs
nobody and a reboot that does, waits half-way.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.action import MESSAGES, SOFT, Action, ActionRecord, Verb
from ops_pipelines.core.entries import AUTOPILOT, LedgerState
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.domain.guardrails.consents import needs_yes
from ops_pipelines.domain.guardrails.judge import Authority
from ops_pipelines.flow.acts.judgement import authority_of
from ops_pipelines.flow.plans.in_force import first_act

_ONLY_LETS_GO = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.DECLARE_DOWN, Verb.POWER_ON})
"""Verbs that finish what was begun, and need no yes of their own once it was."""


def waits_for_yes(plan: IncidentPlan, state: LedgerState, policy: Policy) -> bool:
    """Return whether a plan that has not begun waits with its first act for a yes that nobody has given."""
    return needs_yes(first_act(plan), policy, among=plan.actions) and _is_unanswered(plan, state, policy)


def will_wait_for_yes(plan: IncidentPlan, state: LedgerState, policy: Policy) -> bool:
    """Return whether any act of a plan is begun only on a yes that nobody has given, now or further on."""
    needed = any(needs_yes(each, policy, among=plan.actions) for each in plan.actions)
    return needed and _is_unanswered(plan, state, policy)


def _is_unanswered(plan: IncidentPlan, state: LedgerState, policy: Policy) -> bool:
    if policy.mode is Mode.OBSERVE:
        return False
    return authority_of(plan.plan, state, policy, actor=AUTOPILOT) is Authority.AUTOPILOT


def awaited_act(incident: Incident, plan: IncidentPlan, state: LedgerState, policy: Policy) -> Action | None:
    """Return the next act of the plan in force, if it is begun only on a yes that nobody has given; None otherwise.

    `plan` is the one that the incident names. Other guardrails may hold the same act back as well.
    """
    if incident.plan != plan.plan or not _is_unanswered(plan, state, policy):
        return None
    left = _acts_left(incident, plan, state, policy)
    return next((each for each in left if needs_yes(each, policy, among=plan.actions)), None)


def acts_of_return(incident: Incident, records: Sequence[ActionRecord], policy: Policy) -> tuple[Action, ...]:
    """Return what is still to be begun before a repaired node is back: its tests, its mark, its return.

    Which tests is not known here: `suite` says any. Without probation nothing is marked; where tests are forbidden
    none is waited for.
    """
    if incident.state is not IncidentState.VERIFYING or len(incident.nodes) != 1:
        return ()
    (node,) = incident.nodes
    number = incident.plan_count
    begun = {each.action.verb for each in records if _is_of_try(each.action, incident)}
    check = Action(verb=Verb.CHECK, incident=incident.incident, node=node, suite="any", try_number=number)
    acts = [check, *(replace(check, verb=verb, suite="") for verb in (Verb.PUT_LAST, Verb.RESUME))]
    needless = {Verb.PUT_LAST} if policy.durations.probation <= timedelta(0) else set()
    if policy.consent_to(ActionClass.CHECK) is Consent.FORBID:
        needless.add(Verb.CHECK)
    return tuple(each for each in acts if each.verb not in begun | needless)


def _is_of_try(action: Action, incident: Incident) -> bool:
    return action.incident == incident.incident and action.try_number == incident.plan_count


def _acts_left(incident: Incident, plan: IncidentPlan, state: LedgerState, policy: Policy) -> Sequence[Action]:
    """Return the next act of the plan, as far as the ledger tells; of a repaired node the acts of its return."""
    if incident.state is not IncidentState.ACTING:
        return acts_of_return(incident, state.records, policy)
    begun = {each.action.key for each in state.records}
    acts = [each for each in plan.actions if each.verb not in MESSAGES | SOFT | _ONLY_LETS_GO]
    # What was passed over had lost its object: a plan goes on in its order.
    passed = max((number for number, each in enumerate(acts, start=1) if each.key in begun), default=0)
    return acts[passed : passed + 1]
