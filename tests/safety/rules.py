"""What must never be done, as data: one rule, one function, named as the guardrail that should have stopped it.

Here stand the rules of every command: who may send it, to what, and how often; those of drains, repairs, jobs and
returns stand in `rules_of_*`. A rule rests on the truth, except where the truth could not be known: the scheduler's
answer was bent, or changed after it was read. Then it rests on what the sender was reported last.
"""

from collections.abc import Mapping

from ops_pipelines.core.action import MESSAGES, ActionRecord, Verb
from ops_pipelines.core.identity import ActionKey, is_rollout
from ops_pipelines.core.plan import STEPS
from ops_pipelines.core.policy import ActionClass, Consent, Mode
from tests.safety.rules_of_drains import NEEDS_OUR_DRAIN, RULES_OF_DRAINS
from tests.safety.rules_of_isolation import RULES_OF_ISOLATION
from tests.safety.rules_of_jobs import RULES_OF_JOBS
from tests.safety.rules_of_repairs import RULES_OF_REPAIRS
from tests.safety.rules_of_returns import RULES_OF_RETURNS
from tests.safety.rules_of_rollouts import RULES_OF_ROLLOUTS, finishes_update
from tests.safety.scene import KNOWLEDGE_LASTS, PERSON, Orders, Rule, Scene

__all__ = ["NEEDS_OUR_DRAIN", "PERSON", "RULES", "Orders", "Scene"]

ONLY_ONCE = frozenset({Verb.REBOOT, Verb.POWER_OFF, Verb.RESET_GPU, Verb.REIMAGE})
"""Verbs that do harm the second time, whatever became of the answer to the first."""


def _mode(scene: Scene) -> str | None:
    return "the operator only observes" if scene.orders.policy.mode is Mode.OBSERVE and not scene.is_by_hand else None


def _pause(scene: Scene) -> str | None:
    return "a person has paused the autopilot" if scene.state.pause is not None and not scene.is_by_hand else None


_CLASSES: Mapping[ActionClass, frozenset[Verb]] = {
    ActionClass.ISOLATE: frozenset({Verb.DRAIN, Verb.PUT_LAST, Verb.RESERVE}),
    ActionClass.MOVE_JOBS: frozenset(
        {Verb.HOLD, Verb.MARK, Verb.UNMARK, Verb.FENCE, Verb.EXCLUDE, Verb.UNRESERVE, Verb.RELEASE}
    ),
    ActionClass.RESET_GPU: frozenset({Verb.RESET_GPU}),
    ActionClass.REBOOT: frozenset({Verb.REBOOT}),
    ActionClass.POWER: frozenset({Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.POWER_ON}),
    ActionClass.REIMAGE: frozenset({Verb.REIMAGE}),
    ActionClass.CHECK: frozenset({Verb.CHECK}),
    ActionClass.RETURN_NODE: frozenset({Verb.RESUME, Verb.PUT_BACK}),
    ActionClass.UPDATE: frozenset({Verb.INSTALL, Verb.RELOAD_DRIVER}),
}
"""As the operator is notified in docs/APPROVALS.md."""
_GIVES_BACK: Mapping[Verb, Verb | None] = {
    Verb.FENCE: Verb.HOLD,
    Verb.EXCLUDE: Verb.HOLD,
    Verb.RELEASE: Verb.HOLD,
    Verb.UNMARK: Verb.MARK,
    Verb.DECLARE_DOWN: Verb.POWER_OFF,
    Verb.POWER_ON: Verb.POWER_OFF,
    Verb.PUT_BACK: Verb.PUT_LAST,
    Verb.UNRESERVE: Verb.RESERVE,
}
"""What is brought to its end without a new yes, once the same cause has started the other."""


def _consent_to(kind: ActionClass, scene: Scene) -> Consent:
    policy = scene.orders.policy
    return policy.consents.get(kind, Consent.APPROVE if policy.mode is Mode.APPROVE else Consent.AUTO)


def _classes_of(verb: Verb, scene: Scene) -> tuple[ActionClass, ...]:
    """Return the classes of an act and of what must follow it: a silent node's job is released by the power switch.

    All that a rollout does is of one class.
    """
    if scene.record is not None and is_rollout(scene.record.action.incident):
        return (ActionClass.UPDATE,)
    own = next(each for each, verbs in _CLASSES.items() if verb in verbs)
    nodes, job = scene.told.nodes, scene.told_job
    is_cut_off = job is not None and any(name in nodes and not nodes[name].is_responding for name in job.nodes)
    if verb in (Verb.HOLD, Verb.MARK) and is_cut_off:
        return (own, ActionClass.POWER)
    return (own, ActionClass.MOVE_JOBS) if verb is Verb.RESERVE else (own,)


def _is_given_back(scene: Scene) -> bool:
    action = None if scene.record is None else scene.record.action
    begun = None if action is None else _GIVES_BACK.get(action.verb)
    return action is not None and any(
        each.action.verb is begun
        and each.action.incident == action.incident
        and (each.action.attempt == action.attempt if begun in (Verb.HOLD, Verb.MARK, Verb.RESERVE) else True)
        for each in scene.state.records
    )


def _consent(scene: Scene) -> str | None:
    if scene.is_by_hand or scene.record is None or _is_given_back(scene) or finishes_update(scene):
        return None
    classes = _classes_of(scene.record.action.verb, scene)
    forbidden = [kind.value for kind in classes if _consent_to(kind, scene) is Consent.FORBID]
    return f"policy.yaml forbids {forbidden[0]}" if forbidden else None


def _approval(scene: Scene) -> str | None:
    """Judge an act by the yeses to its plan: one that holds now, or one on which something was started that needed
    it."""
    if scene.is_by_hand or scene.record is None or _is_given_back(scene) or finishes_update(scene):
        return None
    if all(_consent_to(kind, scene) is not Consent.APPROVE for kind in _classes_of(scene.record.action.verb, scene)):
        return None
    plan, at = scene.record.plan, scene.command.said_at
    given = () if plan is None else scene.orders.approved.get(plan, ())
    if any(since <= at < until for since, until in given):
        return None
    begun = [each.begun_at for each in scene.state.records if each.plan == plan and _needed_a_yes(each, scene)]
    if any(since <= each < until for each in begun for since, until in given):
        return None
    first = min(begun, default=at)
    return f"{plan} was started at {first}, outside of its approval" if given else f"nobody approved {plan}"


def _needed_a_yes(record: ActionRecord, scene: Scene) -> bool:
    """Return whether an act of a plan was, or may have been, started on somebody's yes."""
    if record.action.verb in MESSAGES:
        return False
    kinds = [each for each, verbs in _CLASSES.items() if record.action.verb in verbs]
    kinds += [ActionClass.POWER] if record.action.verb is Verb.HOLD else []
    return any(_consent_to(kind, scene) is Consent.APPROVE for kind in kinds)


def _known_node(scene: Scene) -> str | None:
    node = scene.command.node
    return f"{node} is not declared" if node is not None and not scene.orders.topology.knows(node) else None


def _untouchable(scene: Scene) -> str | None:
    is_listed = scene.command.node in scene.orders.policy.untouchable_nodes
    return f"the operator wants {scene.command.node} left alone" if is_listed else None


def _known_job(scene: Scene) -> str | None:
    job = scene.command.job
    return f"the scheduler lists no job {job}" if job is not None and scene.told_job is None else None


def _lease(scene: Scene) -> str | None:
    tokens, process = scene.orders.tokens, scene.command.process
    if process in tokens and tokens[process] != scene.lease:
        return "another process holds the lease, or nobody does"
    return None


def _before_entry(scene: Scene) -> str | None:
    if scene.command.verb is Verb.UNRESERVE and "ROLL-" in scene.command.reason:
        return None  # What was announced for a wave is taken back: nothing is done to anybody.
    return "the ledger has no before-entry of it" if scene.record is None else None


def _twice(scene: Scene) -> str | None:
    if scene.record is None:
        return None
    key: ActionKey = scene.record.action.key
    count = sum(record is not None and record.action.key == key for _, record in scene.accepted)
    # A reset that helped nothing cannot be distinguished from one that never came, and a second one harms nobody.
    allowed = 1 if scene.command.verb is Verb.RESET_GPU and scene.record.sent_at is None else 0
    if count > allowed and scene.command.verb in ONLY_ONCE:
        return "the cluster has taken it already"
    return "it was accepted and marked as sent" if count and scene.record.sent_at is not None else None


def _fresh_reading(scene: Scene) -> str | None:
    told, at = scene.told, scene.command.at
    ages = [at - read_at for read_at in (told.nodes_at, told.jobs_at) if read_at is not None]
    is_fresh = len(ages) == 2 and max(ages) <= KNOWLEDGE_LASTS
    return None if is_fresh else "nodes and jobs were read too long ago"


def _executed_without_proof(scene: Scene) -> str | None:
    record = scene.record
    if record is None or record.action.verb in MESSAGES:
        return None
    if record.proof is None or record.proof.contradictions or record.proof.act != record.action.key:
        return "nobody has proved the act, or its proof contradicts it"
    if scene.plan is not None and scene.proof is None:
        return f"nobody has proved {scene.plan.plan}"
    if scene.plan is None and record.action.verb in STEPS and not is_rollout(record.action.incident):
        return "no plan has it"
    return None if scene.proof is None else "; ".join(scene.proof.contradictions) or None


RULES: Mapping[str, Rule] = {
    "mode": _mode,
    "pause": _pause,
    "consent": _consent,
    "approval": _approval,
    "known_node": _known_node,
    "untouchable": _untouchable,
    "known_job": _known_job,
    **RULES_OF_REPAIRS,
    **RULES_OF_DRAINS,
    **RULES_OF_JOBS,
    **RULES_OF_RETURNS,
    **RULES_OF_ISOLATION,
    **RULES_OF_ROLLOUTS,
    "lease": _lease,
    "before_entry": _before_entry,
    "twice": _twice,
    "fresh_reading": _fresh_reading,
    "executed_without_proof": _executed_without_proof,
}
"""Named as the guardrail that stops it; the three limits of `drain_budget` by their keys in policy.yaml."""
