"""What is left of a repair where policy.yaml forbids a part of it: what leaves the cluster better, then a person.

Nothing is begun that could not be brought to its end: a job is held only where everything up to its release is allowed.
Whose yes each act needs is `guardrails.consents`'; what a repair consists of is `repair_steps`'.
"""

from collections.abc import Sequence
from dataclasses import replace

from ops_pipelines.core.action import JOB_VERBS, Action, Verb
from ops_pipelines.core.plan import Moment
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.domain.guardrails.consents import CLASS_OF, needs_yes
from ops_pipelines.domain.repair.job_moves import MOVED, ActionMaker
from ops_pipelines.domain.repair.repair_steps import Situation

_GIVES_BACK = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.UNRESERVE})


def within_consents(situation: Situation, policy: Policy) -> Situation:
    """Return the repair with every job left running that may not be moved, or could not be let go on a silent node.

    What an earlier plan holds is still owed its release.
    """
    forbidden = next((kind for kind in _needed_to_move(situation) if _is_forbidden(kind, policy)), None)
    if forbidden is None:
        return situation
    reason = policy.says_of(forbidden)
    staying = (
        replace(each, moment=Moment.JOB_END, until=None, reason=reason) if each.moment in MOVED else each
        for each in situation.timings
    )
    return replace(situation, timings=tuple(staying), spares={})


def drain_first(actions: Sequence[Action], policy: Policy) -> tuple[Action, ...]:
    """Return the acts with the drain before the holds, where it needs nobody's yes and a hold does.

    Otherwise the jobs of a silent node are held first, because a drain may have to wait for budget; a yes takes longer.
    """
    drains = tuple(each for each in actions if each.verb is Verb.DRAIN)
    waits = any(each.verb is Verb.HOLD and needs_yes(each, policy, among=actions) for each in actions)
    if not waits or any(needs_yes(each, policy) for each in drains):
        return tuple(actions)
    return (*drains, *(each for each in actions if each.verb is not Verb.DRAIN))


def up_to_forbidden(actions: Sequence[Action], situation: Situation, policy: Policy) -> tuple[Action, ...]:
    """Return the acts before the first forbidden one, and a page that names it in place of the rest.

    Only where they take the node out of service: a broken node that goes on taking work is not better for having had
    a job moved off it. What an earlier plan holds on a silent node stays held, and the page says so.
    """
    number = next((index for index, each in enumerate(actions) if is_forbidden(each, policy)), None)
    if number is None:
        return tuple(actions)
    before = list(actions[:number])
    let_go = {each.attempt for each in before if each.verb is Verb.RELEASE}
    kept = [
        each for each in before if each.verb not in JOB_VERBS or each.attempt in let_go or _is_of_staying(each, before)
    ]
    if not any(each.verb is Verb.DRAIN for each in kept) and not situation.is_foreign:
        kept = []
    forbidden = actions[number]
    owed = [attempt.job for attempt in situation.held if attempt not in let_go]
    still_held = f" Still held by an earlier plan, to be released by you: job {', '.join(owed)}." if owed else ""
    done = "It is drained; " if any(each.verb is Verb.DRAIN for each in kept) else ""
    asked = f"{forbidden.verb.value.replace('_', ' ')} of {forbidden.target}"
    text = (
        f"{situation.node.node}: {situation.incident.cause}. {done}{policy.says_of(CLASS_OF[forbidden.verb])}, "
        f"so {asked} is left to you.{still_held}"
    )
    return (*kept, ActionMaker(situation.incident).page(text))


def is_forbidden(action: Action, policy: Policy) -> bool:
    """Return whether a plan must not hold this act: what gives back is never forbidden, nor are messages."""
    kind = None if action.verb in _GIVES_BACK else CLASS_OF.get(action.verb)
    return kind is not None and _is_forbidden(kind, policy)


def _is_of_staying(action: Action, before: Sequence[Action]) -> bool:
    """Return whether an act on a job is a word to the owner of one that is not moved: that stays true."""
    return action.verb is Verb.NOTIFY_OWNER and not any(
        each.verb is Verb.HOLD and each.attempt == action.attempt for each in before
    )


def _needed_to_move(situation: Situation) -> tuple[ActionClass, ...]:
    return (ActionClass.MOVE_JOBS, ActionClass.POWER) if situation.is_fenced_by_power else (ActionClass.MOVE_JOBS,)


def _is_forbidden(kind: ActionClass, policy: Policy) -> bool:
    return policy.consent_to(kind) is Consent.FORBID
