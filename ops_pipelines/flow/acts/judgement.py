"""On whose word an act would be begun, and why it must not be, on facts just read and the ledger as it is by then.

Runs inside the ledger's transaction. The guardrails themselves are `domain.guardrails`'; here stands what they cannot
know: whose plan is in force, who said yes, and how old the facts are.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from ops_pipelines.domain.action import MESSAGES, Action, ActionRecord, Verb
from ops_pipelines.domain.guardrails.consents import needs_yes
from ops_pipelines.domain.guardrails.facts import nodes_in_trouble
from ops_pipelines.domain.guardrails.judge import Authority, ClusterFacts, Patience, Refusal, are_stale, judge
from ops_pipelines.domain.guardrails.ownership import AFTER_RETURN, is_underway
from ops_pipelines.domain.identity import ActionKey, IncidentId, PlanId, cause_of, is_rollout
from ops_pipelines.domain.incident import IncidentState
from ops_pipelines.domain.lifecycle.rollout import Rollout, RolloutState
from ops_pipelines.domain.policy import ActionClass, Consent, Policy
from ops_pipelines.flow.acts.fresh_facts import nodes_in_begun_waves
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.timeliness import Lateness, in_force
from ops_pipelines.ports.ledger import AUTOPILOT, LedgerState

NO_LEASE = Refusal(
    guardrail="lease",
    reason="the right to act has run out or went to another process; the next run takes the current one",
    patience=Patience.WAIT,
)


def authority_of(plan: PlanId | None, state: LedgerState, policy: Policy, *, actor: str) -> Authority:
    """Return on whose word an action of `plan` would be begun.

    A plan of which an act was begun on somebody's yes is finished after the yes has expired: half a plan is worse than
    either end. One that was only put in force, or has done only what needs nobody's yes, needs a new one. Of a rollout
    the yes that it keeps counts: how far that reaches is judged apart.
    """
    if actor != AUTOPILOT:
        return Authority.PERSON
    if plan is None:
        return Authority.AUTOPILOT
    if any(approval.plan == plan for approval in state.approvals) or any(
        each.plan == plan and each.yes_by for each in state.rollouts
    ):
        return Authority.APPROVED_PLAN
    past = [each for each in state.past_approvals if each.plan == plan]
    own = [record for record in state.records if record.plan == plan]
    was_begun = any(
        # What was begun before anybody said yes was not begun on it.
        any(each.given_at <= record.begun_at < each.expires_at for each in past)
        and (needs_yes(record.action, policy) or _waits_for_power(record, own, policy))
        for record in own
    )
    return Authority.APPROVED_PLAN if was_begun else Authority.AUTOPILOT


def _waits_for_power(record: ActionRecord, own: Sequence[ActionRecord], policy: Policy) -> bool:
    """Return whether a record is of a hold that may have been begun on the yes to the power switch, and still holds."""
    return (
        record.action.verb is Verb.HOLD
        and policy.consent_to(ActionClass.POWER) is Consent.APPROVE
        and not any(each.action.verb is Verb.RELEASE and each.action.attempt == record.action.attempt for each in own)
    )


def judge_on(
    state: LedgerState,
    action: Action,
    plan: PlanId | None,
    facts: ClusterFacts,
    cluster: Cluster,
    *,
    shown: Collection[ActionKey],
    lateness: Lateness | None,
    actor: str,
) -> Refusal | None:
    """Return why `action` must not be begun on these facts and the ledger as it is inside the transaction.

    `shown` are the acts that were over before the nodes were read (`fresh_facts.over_by`). A drain that somebody else
    finished since does not show in them: it counts as under way. `lateness` is what was read of ours just before.
    """
    incident = next((each for each in state.incidents if each.incident == action.incident), None)
    is_in_force = incident is None or (incident.plan == plan and incident.state is not IncidentState.OPEN)
    if plan is not None and not is_in_force and action.verb not in MESSAGES:
        return Refusal(guardrail="plan_in_force", reason="another plan has taken its place", patience=Patience.WAIT)
    records = tuple(
        replace(record, outcome=None)
        if record.action.verb is Verb.DRAIN and record.outcome is not None and record.action.key not in shown
        else record
        for record in state.records
    )
    stale = are_stale(facts, cluster.clock.now())
    if stale is not None and action.verb not in MESSAGES:
        return stale
    current = replace(
        facts,
        records=records,
        is_paused=state.pause is not None,
        owned=state.owned,
        in_trouble=nodes_in_trouble(state.incidents),
        in_begun_waves=nodes_in_begun_waves(state),
    )
    if is_rollout(action.incident) and action.verb not in MESSAGES:
        refusal = _why_not_of_rollout(action, plan, _rollout_of(action.incident, state), current)
        if refusal is not None:
            return refusal
    # A mark is what keeps a second copy from starting while we are late.
    policy = in_force(cluster.rules.policy, None if action.verb is Verb.MARK else lateness)
    topology = cluster.rules.topology
    authority = authority_of(plan, state, policy, actor=actor)
    origin = frozenset() if incident is None else incident.nodes
    refusal = judge(action, current, policy=policy, topology=topology, authority=authority, origin=origin)
    if refusal is not None and refusal.guardrail == "approval" and policy is not cluster.rules.policy:
        return replace(refusal, reason="we are late, so auto is approve for now, and nobody has approved this plan yet")
    return refusal


def why_too_late(facts: ClusterFacts, cluster: Cluster, *, token: str) -> Refusal | None:
    """Return why an act that was begun must not be sent any more; to be asked right before its command.

    A process may have stood still since its before-entry: the lease may have gone, and where its code server kept the
    lease for it, the cluster is not what it was.
    """
    held = cluster.ledger.held_lease(cluster.clock.now())
    now = cluster.clock.now()  # Reading took its time, too.
    if held is None or held.token != token or held.expires_at <= now:
        return NO_LEASE
    return are_stale(facts, now)


def _rollout_of(cause: IncidentId, state: LedgerState) -> Rollout | None:
    return next((each for each in state.rollouts if cause_of(each.rollout) == cause), None)


def _why_not_of_rollout(
    action: Action, plan: PlanId | None, rollout: Rollout | None, facts: ClusterFacts
) -> Refusal | None:
    """Return why a rollout may not begin an act: it is over, its plan is another, nobody said yes to the node's wave.

    The mark of a node is taken off also when the rollout is over; a node that was begun is finished in every state.
    """
    if rollout is None:
        reason = f"{action.incident} is over, or there is no such rollout"
        is_mark_taken_off = action.verb is Verb.PUT_BACK
        return None if is_mark_taken_off else Refusal(guardrail="plan_in_force", reason=reason, patience=Patience.NEVER)
    if plan != rollout.plan:
        return Refusal(
            guardrail="plan_in_force",
            reason=f"the plan of {rollout.rollout} is {rollout.plan}",
            patience=Patience.NEVER,
        )
    if action.node is None or action.verb in AFTER_RETURN or is_underway(action.incident, action.node, facts):
        return None
    if rollout.state is not RolloutState.RUNNING:
        reason = f"{rollout.rollout} is {rollout.state.value}; no other node is begun"
        return Refusal(guardrail="plan_in_force", reason=reason, patience=Patience.WAIT)
    wave = next((each.number for each in rollout.waves if action.node in each.nodes), rollout.wave)
    if wave > rollout.yes_through:
        reason = f"{action.node} is of wave {wave} of {rollout.rollout}, and nobody has said yes to that yet"
        return Refusal(guardrail="approval", reason=reason, patience=Patience.WAIT)
    return None


def words_of(refusal: Refusal) -> str:
    """Return a refusal as a person reads it: the rule, then its reason."""
    return f"{refusal.guardrail}: {refusal.reason}"
