"""Whose yes an act needs before it is begun, as policy.yaml says by class of act; asked by `judge` both times.

What was begun with consent is brought to its end without a new one: nothing that we hold waits for a yes to be let go.
What becomes of a plan that would need what is forbidden is `domain.repair.consented`'s.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.identity import is_rollout
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import Authority, Refusal, never, wait
from ops_pipelines.domain.guardrails.facts import Case, is_begun, is_cut_off, is_holding, mark_on
from ops_pipelines.domain.guardrails.ownership import AFTER_RETURN, is_underway

CLASS_OF: Mapping[Verb, ActionClass] = {
    Verb.DRAIN: ActionClass.ISOLATE,
    Verb.PUT_LAST: ActionClass.ISOLATE,
    Verb.RESERVE: ActionClass.ISOLATE,
    Verb.HOLD: ActionClass.MOVE_JOBS,
    Verb.MARK: ActionClass.MOVE_JOBS,
    Verb.UNMARK: ActionClass.MOVE_JOBS,
    Verb.FENCE: ActionClass.MOVE_JOBS,
    Verb.EXCLUDE: ActionClass.MOVE_JOBS,
    Verb.UNRESERVE: ActionClass.MOVE_JOBS,
    Verb.RELEASE: ActionClass.MOVE_JOBS,
    Verb.RESET_GPU: ActionClass.RESET_GPU,
    Verb.REBOOT: ActionClass.REBOOT,
    Verb.POWER_OFF: ActionClass.POWER,
    Verb.DECLARE_DOWN: ActionClass.POWER,
    Verb.POWER_ON: ActionClass.POWER,
    Verb.REIMAGE: ActionClass.REIMAGE,
    Verb.INSTALL: ActionClass.UPDATE,
    Verb.RELOAD_DRIVER: ActionClass.UPDATE,
    Verb.CHECK: ActionClass.CHECK,
    Verb.RESUME: ActionClass.RETURN_NODE,
    Verb.PUT_BACK: ActionClass.RETURN_NODE,
}
"""Every verb but messages: people are told in every mode that acts. All that a rollout does is `UPDATE`."""
_LET_GO = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE})
_STRICTNESS = (Consent.AUTO, Consent.APPROVE, Consent.FORBID)


def lacks_consent(case: Case) -> Refusal | None:
    """Return why an act may not be begun on the word that it would be begun on; None if it may.

    A person who acts by hand has said yes already: this binds the autopilot alone.
    """
    if case.authority is Authority.PERSON or _finishes_what_was_begun(case):
        return None
    strictest = max(_classes_needed(case), key=lambda kind: _STRICTNESS.index(case.policy.consent_to(kind)))
    where = case.policy.says_of(strictest)
    match case.policy.consent_to(strictest):
        case Consent.AUTO:
            return None
        case Consent.APPROVE if case.authority is Authority.APPROVED_PLAN:
            return None
        case Consent.APPROVE:
            return wait("approval", f"{where}, and nobody has approved this plan yet")
        case Consent.FORBID if is_rollout(case.action.incident):
            return wait("consent", f"{where}; no other node is begun")
        case Consent.FORBID:
            what = case.action.verb.value.replace("_", " ")
            return never("consent", f"{where}; {what} of {case.action.target} is left to you")


def needs_yes(action: Action, policy: Policy, *, among: Sequence[Action] = ()) -> bool:
    """Return whether an act is begun on somebody's yes only, as far as that shows without the state of the cluster.

    `among` are the acts of its plan: where they let the job go by the power switch, its hold needs the yes to that.
    """
    kind = CLASS_OF.get(action.verb)
    if kind is None:
        return False
    if is_rollout(action.incident):
        return policy.consent_to(ActionClass.UPDATE) is Consent.APPROVE
    needs_power = action.verb is Verb.HOLD and _is_let_go_by_power(action, among)
    kinds = (kind, ActionClass.POWER) if needs_power else (kind,)
    return any(policy.consent_to(each) is Consent.APPROVE for each in kinds)


def _is_let_go_by_power(hold: Action, among: Sequence[Action]) -> bool:
    """Return whether the power switch comes before the release of the job: it is its fence, and no repair."""
    before = takewhile(lambda each: not (each.verb is Verb.RELEASE and each.attempt == hold.attempt), among)
    return any(each.verb is Verb.POWER_OFF for each in before)


def _classes_needed(case: Case) -> tuple[ActionClass, ...]:
    """Return the classes whose consent an act needs: its own, and that of what cannot be left out once it is begun.

    Room is kept free for a move alone. A job of a silent node is let go only when the node's power is cut: who may not
    cut it must not hold the job.
    """
    action = case.action
    if is_rollout(action.incident):
        return (ActionClass.UPDATE,)
    own = CLASS_OF[action.verb]
    if action.verb is Verb.RESERVE:
        return (own, ActionClass.MOVE_JOBS)
    if action.verb in (Verb.HOLD, Verb.MARK) and action.attempt is not None:
        job = case.facts.jobs.get(action.attempt.job)
        if job is not None and is_cut_off(job, case.facts):
            return (own, ActionClass.POWER)
    return (own,)


def _finishes_what_was_begun(case: Case) -> bool:
    """Return whether an act lets go of what this incident holds: a job, room, a node without power, a last choice.

    A rollout brings every node that it has begun to a good end: half an update is worse than either.
    """
    action, facts = case.action, case.facts
    if is_rollout(action.incident):
        is_begun_here = action.node is not None and is_underway(action.incident, action.node, facts)
        return is_begun_here or action.verb in AFTER_RETURN
    if action.verb is Verb.UNRESERVE:
        return True
    if action.verb is Verb.UNMARK:
        return mark_on(action.attempt, facts.records) is not None
    if action.verb in _LET_GO:
        return is_holding(action.incident, action.attempt, facts)
    begun_by = {
        Verb.DECLARE_DOWN: Verb.POWER_OFF,
        Verb.POWER_ON: Verb.POWER_OFF,
        Verb.PUT_BACK: Verb.PUT_LAST,
    }.get(action.verb)
    return (
        begun_by is not None
        and action.node is not None
        and is_begun(facts, verb=begun_by, incident=action.incident, node=action.node)
    )
