"""On whose word an act would be begun, and why it must not be, on facts just read and the ledger as it is by then.

Runs inside the ledger's transaction. The guardrails themselves are `remediate.guardrails`'; here stands what they
cannot know: whose plan is in force, who said yes, and how old the facts are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, Guard, LedgerState
from ops_pipelines.core.identity import ActionKey, IncidentId, NodeName, PlanId, cause_of, is_rollout
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import SECOND_OPINION, ActProof, Authority, Patience, Refusal, wait
from ops_pipelines.core.rollout import Rollout, RolloutState
from ops_pipelines.remediate.act_proof import Sight, prove_act
from ops_pipelines.remediate.acts.facts import nodes_in_begun_waves, over_by
from ops_pipelines.remediate.guardrails.consents import AFTER_RETURN, is_underway, needs_yes
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, nodes_in_trouble
from ops_pipelines.remediate.guardrails.judge import are_stale, judge
from ops_pipelines.remediate.timeliness import in_force, read_lateness

NO_LEASE = Refusal(
    guardrail="lease",
    reason="the right to act has run out or went to another process; the next run takes the current one",
    patience=Patience.WAIT,
)

_OVERTAKEN = Refusal(
    guardrail="before_entry",
    reason="another process went on with this act meanwhile; its witness is read anew",
    patience=Patience.WAIT,
)
_VERDICT_LASTS = timedelta(seconds=1)
"""# Assumption: nothing of ours is decided, carried out and undone within a second."""


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


class ActJudge:
    """Judges acts on facts just read, each on the ledger as it is inside its transaction."""

    def __init__(self, facts: ClusterFacts, cluster: Cluster, *, actor: str = AUTOPILOT) -> None:
        self.facts, self._cluster, self._actor = facts, cluster, actor
        self._sight = Sight(
            node_list=tuple(facts.nodes.values()),
            job_list=tuple(facts.jobs.values()),
            taken_at=facts.taken_at,
            rules=cluster.rules,
            rules_digest=cluster.rules_digest,
            without_power=facts.without_power,
        )
        # Acts that were over before the nodes were read. A drain that somebody else finished since does not show in
        # them: it counts as under way.
        self._shown = over_by(facts)
        self._lateness = read_lateness(cluster.ledger, cluster.clock.now())
        self._trouble: tuple[Sequence[Incident], Mapping[NodeName, IncidentId]] = ((), {})

    def judge(self, action: Action, plan: PlanId | None, state: LedgerState) -> Refusal | ActProof | None:
        """Return a refusal, or what the second opinion proved; None is for messages that may go out."""
        cluster, rules = self._cluster, self._cluster.rules
        incident = next((each for each in state.incidents if each.incident == action.incident), None)
        is_in_force = incident is None or (incident.plan == plan and incident.state is not IncidentState.OPEN)
        if plan is not None and not is_in_force and action.verb not in MESSAGES:
            return Refusal(guardrail="plan_in_force", reason="another plan has taken its place", patience=Patience.WAIT)
        records = tuple(
            replace(record, outcome=None)
            if record.action.verb is Verb.DRAIN and record.outcome is not None and record.action.key not in self._shown
            else record
            for record in state.records
        )
        stale = are_stale(self.facts, cluster.clock.now())
        if stale is not None and action.verb not in MESSAGES:
            return stale
        current = replace(
            self.facts,
            records=records,
            is_paused=state.pause is not None,
            owned=state.owned,
            in_trouble=self._in_trouble(state.incidents),
            in_begun_waves=nodes_in_begun_waves(state),
        )
        if is_rollout(action.incident) and action.verb not in MESSAGES:
            refusal = _why_not_of_rollout(action, plan, _rollout_of(action.incident, state), current)
            if refusal is not None:
                return refusal
        # A mark is what keeps a second copy from starting while we are late.
        policy = in_force(rules.policy, None if action.verb is Verb.MARK else self._lateness)
        authority = authority_of(plan, state, policy, actor=self._actor)
        origin = frozenset() if incident is None else incident.nodes
        refusal = judge(action, current, policy=policy, topology=rules.topology, authority=authority, origin=origin)
        if refusal is not None and refusal.guardrail == "approval" and policy is not rules.policy:
            return replace(
                refusal, reason="we are late, so auto is approve for now, and nobody has approved this plan yet"
            )
        if refusal is not None or action.verb in MESSAGES:
            return refusal
        is_by_hand = authority is Authority.PERSON
        return prove_act(action, self._sight, records=records, is_by_hand=is_by_hand, now=cluster.clock.now())

    def _in_trouble(self, incidents: Sequence[Incident]) -> Mapping[NodeName, IncidentId]:
        """Return the nodes in trouble; the acts of one transaction see the same incidents."""
        if self._trouble[0] is not incidents:
            self._trouble = (incidents, nodes_in_trouble(incidents))
        return self._trouble[1]


def why_too_late(facts: ClusterFacts, cluster: Cluster, *, token: str) -> Refusal | None:
    """Return why nothing that was begun must be sent any more: the lease has gone, or the facts are old by now."""
    held = cluster.ledger.held_lease(cluster.clock.now())
    now = cluster.clock.now()  # Reading took its time, too.
    if held is None or held.token != token or held.expires_at <= now:
        return NO_LEASE
    return are_stale(facts, now)


class Verdicts:
    """What was judged in one transaction, to be asked once more right before each command.

    A process may have stood still since its before-entry, however long: the lease may have gone, the cluster may be
    another, and where its code server kept the lease for it, another process may have ended the very act, begun others
    or been told to pause. Verdicts older than a second are therefore given again, on the ledger as it is by then.
    """

    def __init__(self, guard: Guard, facts: ClusterFacts, cluster: Cluster, *, token: str, given_at: datetime) -> None:
        self._guard, self._facts, self._cluster, self._token = guard, facts, cluster, token
        self._given_at = given_at
        self._state: LedgerState | None = None

    def taken_back(self, records: Sequence[ActionRecord], *, sending: int) -> Mapping[ActionKey, Refusal]:
        """Return which of some acts that were begun must not be sent any more, and why.

        `sending` counts the times that they were to be sent, as `Ledger.withhold` does.
        """
        too_late = why_too_late(self._facts, self._cluster, token=self._token)
        if too_late is not None:
            return dict.fromkeys((each.action.key for each in records), too_late)
        now = self._cluster.clock.now()
        if abs(now - self._given_at) > _VERDICT_LASTS:
            self._state, self._given_at = self._cluster.ledger.read_state(now), now
        if self._state is None:
            return {}
        again = {each.action.key: self._judge_again(each, self._state, sending) for each in records}
        return {key: refusal for key, refusal in again.items() if refusal is not None}

    def _judge_again(self, record: ActionRecord, state: LedgerState, sending: int) -> Refusal | None:
        key = record.action.key
        others = tuple(each for each in state.records if each.action.key != key)
        own = [each for each in state.records if each.action.key == key]
        if any(each.outcome is not None for each in own) or len(self._cluster.ledger.resent_at(key)) > sending:
            return _OVERTAKEN
        # The first time it was judged without its own entry, each further time with it.
        found = self._guard(record, replace(state, records=others) if sending == 0 else state)
        if isinstance(found, ActProof):
            return wait(SECOND_OPINION, "; ".join(found.contradictions)) if found.contradictions else None
        return found


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
