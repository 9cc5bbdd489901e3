"""Who may act on a node, and whose approval an act needs before it is started.

A rollout has a node from the drain that it begins until the return that is seen. Before that the node is anybody's: a
fault is seen to before an update. Whose approval a rollout needs, and whether it is over, is asked where the ledger is
read (`remediate.judgement`); how many nodes rollouts may have out is `budgets`'.

What was started with consent is brought to its end without a new one: nothing that we hold waits for approval to be
released. What becomes of a plan that would need what is forbidden is `remediate.planning`'s.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

from ops_pipelines.core.action import Action, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId, NodeName, RolloutId, cause_of, is_rollout
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import Authority, Refusal, never, wait
from ops_pipelines.core.rollout import is_owned_by, is_return
from ops_pipelines.remediate.guardrails.facts import (
    Case,
    ClusterFacts,
    drain_owner,
    held_and_not_released,
    is_begun,
    is_cut_off,
    is_holding,
    mark_on,
    still_waits,
)

# -- who may act on a node --


_OF_ROLLOUTS_ALONE = frozenset({Verb.INSTALL, Verb.RELOAD_DRIVER})
_OF_ROLLOUTS = _OF_ROLLOUTS_ALONE | {
    Verb.DRAIN,
    Verb.REBOOT,
    Verb.POWER_OFF,
    Verb.POWER_ON,
    Verb.CHECK,
    Verb.PUT_LAST,
    Verb.PUT_BACK,
    Verb.RESUME,
    Verb.EXCLUDE,
}
"""All that a rollout ever does: it takes no job away."""
AFTER_RETURN = frozenset({Verb.PUT_LAST, Verb.PUT_BACK, Verb.EXCLUDE})
"""What a rollout still does for a node that works again: last choice, wide jobs kept off, like any other in the end."""


def judge_owner(case: Case, names: Collection[NodeName]) -> Refusal | None:
    """Return why an act would be a second cause's on one of these nodes, all that it touches."""
    if is_rollout(case.action.incident):
        return _judge_rollout(case)
    if case.action.verb in _OF_ROLLOUTS_ALONE:
        return never("owned", f"{case.action.verb.value} belongs to rollouts; {case.action.incident} is none")
    for name in names:
        holder = holder_of(name, case.facts)
        if holder is not None:
            what = case.action.verb.value.replace("_", " ")
            return wait("owned", f"{name} is being updated by {holder}; {what} waits until it works again")
    return None


def _judge_rollout(case: Case) -> Refusal | None:
    action, facts = case.action, case.facts
    cause, name = action.incident, action.node
    if name is None or action.verb not in _OF_ROLLOUTS:
        return never("owned", f"a rollout never begins {action.verb.value.replace('_', ' ')}; {cause} is one")
    is_at_work = action.verb in AFTER_RETURN and name not in facts.owned
    if not is_at_work and not is_owned_by(cause, name, facts.owned):
        return never("owned", f"{name} is not in hand of {cause}")
    other = _at_work_on(name, facts, but=cause)
    if other is not None:
        return wait("owned", f"{other} is at work on {name}; {cause} continues there when that is over")
    trouble = facts.in_trouble.get(name)
    if trouble is not None and action.verb is Verb.DRAIN and not is_underway(cause, name, facts):
        return wait("owned", f"{trouble} is open on {name}; a fault is seen to before an update")
    return None


def holder_of(name: NodeName, facts: ClusterFacts) -> RolloutId | None:
    """Return the rollout that really has a node: it began its drain there, and has not been seen to return it since.

    One that only means to take the node, and whose drain still waits, has nothing yet.
    """
    rollout = facts.owned.get(name)
    return None if rollout is None else taken_nodes({name: rollout}, facts.records).get(name)


def taken_nodes(owned: Mapping[NodeName, RolloutId], records: Collection[ActionRecord]) -> Mapping[NodeName, RolloutId]:
    """Return the nodes that rollouts really have, of those that they mean to take."""
    return {name: rollout for name, rollout in owned.items() if _has_taken(cause_of(rollout), name, records)}


def is_underway(cause: IncidentId, name: NodeName, facts: ClusterFacts) -> bool:
    """Return whether a rollout has a node already, or has touched its versions: what follows only finishes that."""
    if is_owned_by(cause, name, facts.owned) and _has_taken(cause, name, facts.records):
        return True
    return any(each.action.verb is Verb.INSTALL for each in _records_of(cause, name, facts.records))


def marked_by_rollouts(in_begun_waves: Collection[NodeName], records: Collection[ActionRecord]) -> frozenset[NodeName]:
    """Return the nodes that are last choice because they soak after an update: they are on no probation of repair.

    Records are of a day, and a soak lasts longer: a node of a started wave counts unless a repair marked it since.
    """
    newest: dict[NodeName, ActionRecord] = {}
    for record in records:
        name = record.action.node
        if name is not None and record.action.verb is Verb.PUT_LAST:
            newest[name] = max(newest.get(name, record), record, key=lambda each: each.begun_at)
    by_rollouts = {name for name, record in newest.items() if is_rollout(record.action.incident)}
    return frozenset(by_rollouts | (set(in_begun_waves) - newest.keys()))


def _at_work_on(name: NodeName, facts: ClusterFacts, *, but: IncidentId) -> IncidentId | None:
    """Return another cause that has a node: its drain is there or was just started, or it holds jobs of it."""
    node = facts.nodes.get(name)
    owner = None if node is None else drain_owner(node, facts.records)
    if owner is not None and owner != but:
        return owner
    for record in facts.records:
        other = record.action.incident
        if other == but or record.action.verb is not Verb.DRAIN or record.action.node != name:
            continue
        if record.outcome is None:
            return other
    holders = {each.action.incident for each in facts.records if each.action.verb is Verb.HOLD} - {but}
    return next(
        (
            other
            for other in sorted(holders)
            if any(
                name in hold.attempt_nodes and still_waits(hold, facts) for hold in held_and_not_released(other, facts)
            )
        ),
        None,
    )


def _has_taken(cause: IncidentId, name: NodeName, records: Collection[ActionRecord]) -> bool:
    last = _last_turn(cause, name, records)
    return last is not None and not is_return(last)


def _last_turn(cause: IncidentId, name: NodeName, records: Collection[ActionRecord]) -> ActionRecord | None:
    """Return the newest drain or return of a cause on a node; one that failed changed nothing."""
    turns = [
        each
        for each in _records_of(cause, name, records)
        if each.action.verb in (Verb.DRAIN, Verb.RESUME)
        and (each.outcome is None or each.outcome.kind is not OutcomeKind.FAILED)
    ]
    return max(turns, key=lambda each: (each.begun_at, each.action.try_number), default=None)


def _records_of(cause: IncidentId, name: NodeName, records: Collection[ActionRecord]) -> list[ActionRecord]:
    return [each for each in records if each.action.node == name and each.action.incident == cause]


# -- whose approval an act needs before it is started --


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
"""Every verb but messages: people are notified in every mode that acts. All that a rollout does is `UPDATE`."""
_LET_GO = frozenset({Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE})
_STRICTNESS = (Consent.AUTO, Consent.APPROVE, Consent.FORBID)


def lacks_consent(case: Case) -> Refusal | None:
    """Return why an act may not be started on the word that it would be started on; None if it may.

    A person who acts by hand has approved already: this binds the autopilot alone.
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
            return wait("consent", f"{where}; no other node is started")
        case Consent.FORBID:
            what = case.action.verb.value.replace("_", " ")
            return never("consent", f"{where}; {what} of {case.action.target} is left to you")


def needs_yes(action: Action, policy: Policy, *, among: Sequence[Action] = ()) -> bool:
    """Return whether an act is started on somebody's approval only, as far as that shows without the state of the
    cluster.

    `among` are the acts of its plan: where they let the job go by the power switch, its hold needs the approval to
    that.
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
    """Return the classes whose consent an act needs: its own, and that of what cannot be left out once it is started.

    Room is kept free for a move alone. A job of a silent node is released only when the node's power is cut: who may
    not cut it must not hold the job.
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
    """Return whether an act releases what this incident holds: a job, room, a node without power, a last choice.

    A rollout brings every node that it has started to a good end: half an update is worse than either.
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
