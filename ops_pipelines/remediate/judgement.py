"""The right to act, the fresh state that acts are judged on, and the judgement inside the ledger's transaction.

The code server holds the lease and gives its token to the runs it starts; a job launched where no code server runs
takes the lease for itself. Each other holder starts a new epoch, and the token is of one epoch: a process that was
suspended after its before-entry finds its token outdated and sends nothing. The gap that remains is between that look
and the start of the command itself.

The guardrails themselves are `remediate.guardrails`'. Here is what they cannot know: whose plan is in force, who
approved it, and how old the facts are. What bears witness of an act is `verbs`'.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import DESTRUCTIVE_VERBS, MESSAGES, Action, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, Guard, LedgerConflict, LedgerState
from ops_pipelines.core.identity import ActionKey, IncidentId, NodeName, PlanId, cause_of, digest_of, is_rollout
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import PowerState
from ops_pipelines.core.policy import ActionClass, Consent, Policy
from ops_pipelines.core.proof import SECOND_OPINION, ActProof, Authority, Refusal, never, wait
from ops_pipelines.core.rollout import Rollout, RolloutState
from ops_pipelines.core.sources import SourceError
from ops_pipelines.lake.telemetry import is_any_fresh
from ops_pipelines.observe.job_facts import merge_jobs, read_job_facts
from ops_pipelines.remediate.act_proof import Sight, prove_act
from ops_pipelines.remediate.guardrails.consents import AFTER_RETURN, is_underway, needs_yes
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, nodes_in_trouble, stricken_nodes
from ops_pipelines.remediate.guardrails.judge import NEEDS_EYES, are_stale, judge
from ops_pipelines.remediate.job_moves import nodes_in_doubt
from ops_pipelines.remediate.timeliness import in_force, read_lateness

TTL = timedelta(seconds=15)
"""Three missed sensor turns of 5 s; every command's own limit is below a third of it."""


class Lease:
    """A token to act with. `given` is the token of a run request; without one the current lease is used, or taken."""

    def __init__(self, *, holder: str, given: str | None) -> None:
        self._holder = holder
        self._given = given

    def token(self, ledger: Ledger, now: datetime) -> str | None:
        """Return the token to show; an outdated one is shown as it is, and refused."""
        if self._given is not None:
            return self._given
        return ledger.current_lease(now) or ledger.take_lease(holder=self._holder, ttl=TTL, now=now)

    def renew(self, ledger: Ledger, now: datetime) -> None:
        """Extend the lease if this process holds it: many acts take longer than it lasts. Another's is left alone."""
        held = ledger.held_lease(now)
        if held is not None and held.holder == self._holder:
            ledger.take_lease(holder=self._holder, ttl=TTL, now=now)

    def require(self, ledger: Ledger, now: datetime) -> None:
        """Raise LedgerConflict where the right to act is gone: to be asked right before what is sent beside acts."""
        token = self.token(ledger, now)
        if token is None or not is_current(token, ledger, now):
            raise LedgerConflict(
                "the right to act ran out or went to another process; nothing was sent, and who has it continues"
            )


def is_current(token: str | None, ledger: Ledger, now: datetime) -> bool:
    """Return whether a token still gives the right to send; None is a person's word, which needs no lease."""
    return token is None or token == ledger.current_lease(now)


CHEAP = frozenset({Verb.DRAIN})
"""Facts for a drain do not ask for the metrics: enough for who needs the jobs only."""
_SWITCHES_AT_ONCE = 4
"""Ten at once starved each other on a busy host: each is a program of the site's, and none answered in its time."""
_SWITCHES_FOR = timedelta(seconds=4)
"""How long switches are asked: the tick that asks must not be late for the next fault."""
_PASSED_ON_FOR = timedelta(seconds=2)
"""What was read to put a plan in force also serves its first act, if keeping the evidence did not take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshFacts:
    """Facts that were read for acts of some verbs, handed on from who judged first to who judges next."""

    facts: ClusterFacts
    verbs: frozenset[Verb]

    def still_serve(self, verbs: Collection[Verb], *, now: datetime) -> bool:
        """Return whether acts of these verbs may be judged on them: they were read for such, and a moment ago."""
        # A clock that was set back leaves an age that nobody knows.
        return self.verbs.issuperset(verbs) and abs(now - self.facts.taken_at) <= _PASSED_ON_FOR


def read_facts(verbs: Collection[Verb], cluster: Cluster, *, state: LedgerState | None = None) -> ClusterFacts:
    """Return the fresh state that actions of these verbs are judged on; raise SourceError if the scheduler is silent.

    The metrics are asked for only where a verb needs eyes: the answer may be large. `state` is what the caller has just
    read of the ledger.
    """
    # The ledger first: a drain that is done by then shows in the nodes. For one that is done later see `ActJudge`.
    state = cluster.ledger.read_state(cluster.clock.now()) if state is None else state
    # Nothing of the cluster is judged of a page: it goes out although the scheduler is silent.
    needs_scheduler = not {Verb.PAGE_HUMAN}.issuperset(verbs)
    asked_at = cluster.clock.now()  # What was true when it was asked for may be over when the answer is here.
    nodes = cluster.scheduler.read_nodes() if needs_scheduler else ()
    jobs = cluster.scheduler.read_jobs() if needs_scheduler else ()
    learned = read_job_facts(cluster.job_facts)
    now = cluster.clock.now()
    facts = ClusterFacts(
        nodes={node.node: node for node in nodes},
        jobs={job.job: job for job in merge_jobs(jobs, learned, now=now)},
        records=state.records,
        is_telemetry_available=NEEDS_EYES.isdisjoint(verbs) or _can_see(cluster),
        is_paused=state.pause is not None,
        taken_at=asked_at,
        costs=learned.costs,
        hazards=cluster.rules.catalogue.hazards,
        stricken=stricken_nodes(state.incidents, state.records, cluster.rules.catalogue.hazards),
        owned=state.owned,
        in_trouble=nodes_in_trouble(state.incidents),
        in_begun_waves=nodes_in_begun_waves(state),
    )
    in_doubt = nodes_in_doubt(facts) if Verb.UNMARK in verbs else frozenset()
    return replace(facts, without_power=_without_power(in_doubt, cluster)) if in_doubt else facts


def _without_power(nodes: Collection[NodeName], cluster: Cluster) -> frozenset[NodeName]:
    """Return which of some nodes have no power, as far as switches answer; of many, others are the first to be asked.

    Those for whom there was no time are asked by a later look.
    """
    began_at = cluster.clock.now()

    def is_off(node: NodeName) -> bool:
        if cluster.clock.now() - began_at >= _SWITCHES_FOR:
            return False
        try:
            return cluster.fleet.power_state(node) is PowerState.OFF
        except SourceError:
            return False

    # Another order in each look: by turns of the clock the looks' own rhythm could leave the same ones out for ever.
    asked = sorted(nodes, key=lambda node: digest_of(node, began_at.isoformat()))
    with ThreadPoolExecutor(_SWITCHES_AT_ONCE) as pool:
        return frozenset(name for name, off in zip(asked, pool.map(is_off, asked), strict=True) if off)


def nodes_in_begun_waves(state: LedgerState) -> frozenset[NodeName]:
    """Return the nodes of every wave that an open rollout has started."""
    return frozenset(
        name
        for rollout in state.rollouts
        for wave in rollout.waves
        if wave.number <= rollout.wave
        for name in wave.nodes
    )


def _can_see(cluster: Cluster) -> bool:
    now = cluster.clock.now()
    try:
        samples = cluster.telemetry.read_samples(now)
    except SourceError:
        return False
    return is_any_fresh(samples, at=now, stale_after=cluster.rules.policy.durations.telemetry_stale_after)


NO_LEASE = wait("lease", "the right to act has run out or went to another process; the next run takes the current one")
_OVERTAKEN = wait("before_entry", "another process continued with this act meanwhile; its witness is read again")
_VERDICT_LASTS = timedelta(seconds=1)
"""# Assumption: nothing of ours is decided, carried out and undone within a second."""


def authority_of(plan: PlanId | None, state: LedgerState, policy: Policy, *, actor: str) -> Authority:
    """Return on whose word an action of `plan` would be started.

    A plan of which an act was started on somebody's approval is finished after the approval has expired: half a plan is
    worse than either end. One that was only put in force, or has done only what needs nobody's approval, needs a new
    one. Of a rollout the approval that it keeps counts: how far that reaches is judged apart.
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
        # What was started before anybody approved was not started on it.
        any(each.given_at <= record.begun_at < each.expires_at for each in past)
        and (needs_yes(record.action, policy) or _waits_for_power(record, own, policy))
        for record in own
    )
    return Authority.APPROVED_PLAN if was_begun else Authority.AUTOPILOT


def _waits_for_power(record: ActionRecord, own: Sequence[ActionRecord], policy: Policy) -> bool:
    """Return whether a record is of a hold that may have been started on the approval to the power switch, and still
    holds."""
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
        self._shown = frozenset(
            each.action.key for each in facts.records if each.action.verb is Verb.DRAIN and each.outcome is not None
        )
        self._lateness = read_lateness(cluster.ledger, cluster.clock.now())
        self._trouble: tuple[Sequence[Incident], Mapping[NodeName, IncidentId]] = ((), {})

    def judge(self, action: Action, plan: PlanId | None, state: LedgerState) -> Refusal | ActProof | None:
        """Return a refusal, or what the second opinion proved; None is for messages that may go out."""
        cluster, rules = self._cluster, self._cluster.rules
        incident = next((each for each in state.incidents if each.incident == action.incident), None)
        if plan is not None and action.verb not in MESSAGES and not is_rollout(action.incident):
            if incident is None and action.verb in DESTRUCTIVE_VERBS and self._is_over(action.incident):
                return never("plan_in_force", f"{action.incident} is over")
            if incident is not None and (incident.plan != plan or incident.state is IncidentState.OPEN):
                return wait("plan_in_force", "another plan has taken its place")
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

    def _is_over(self, incident: IncidentId) -> bool:
        """Return whether an incident that is not open was once; one that never was has no plan out of force."""
        return self._cluster.ledger.incident(incident) is not None

    def _in_trouble(self, incidents: Sequence[Incident]) -> Mapping[NodeName, IncidentId]:
        """Return the nodes in trouble; the acts of one transaction see the same incidents."""
        if self._trouble[0] is not incidents:
            self._trouble = (incidents, nodes_in_trouble(incidents))
        return self._trouble[1]


def why_too_late(facts: ClusterFacts, cluster: Cluster, *, token: str) -> Refusal | None:
    """Return why nothing that was started must be sent any more: the lease has gone, or the facts are old by now."""
    held = cluster.ledger.held_lease(cluster.clock.now())
    now = cluster.clock.now()  # Reading took its time, too.
    if held is None or held.token != token or held.expires_at <= now:
        return NO_LEASE
    return are_stale(facts, now)


class Verdicts:
    """What was judged in one transaction, to be asked once more right before each command.

    A process may have stood still since its before-entry, however long: the lease may have gone, the cluster may be
    another, and where its code server kept the lease for it, another process may have ended the very act, started
    others or been ordered to pause. Verdicts older than a second are therefore given again, on the ledger as it is by
    then.
    """

    def __init__(self, guard: Guard, facts: ClusterFacts, cluster: Cluster, *, token: str, given_at: datetime) -> None:
        self._guard, self._facts, self._cluster, self._token = guard, facts, cluster, token
        self._given_at = given_at
        self._state: LedgerState | None = None

    def taken_back(self, records: Sequence[ActionRecord], *, sending: int) -> Mapping[ActionKey, Refusal]:
        """Return which of some acts that were started must not be sent any more, and why.

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
    """Return why a rollout may not begin an act: it is over, its plan is another, nobody approved the node's wave.

    The mark of a node is taken off also when the rollout is over; a node that was started is finished in every state.
    """
    if rollout is None:
        reason = f"{action.incident} is over, or there is no such rollout"
        is_mark_taken_off = action.verb is Verb.PUT_BACK
        return None if is_mark_taken_off else never("plan_in_force", reason)
    if plan != rollout.plan:
        return never("plan_in_force", f"the plan of {rollout.rollout} is {rollout.plan}")
    if action.node is None or action.verb in AFTER_RETURN or is_underway(action.incident, action.node, facts):
        return None
    if rollout.state is not RolloutState.RUNNING:
        reason = f"{rollout.rollout} is {rollout.state.value}; no other node is started"
        return wait("plan_in_force", reason)
    wave = next((each.number for each in rollout.waves if action.node in each.nodes), rollout.wave)
    if wave > rollout.yes_through:
        reason = f"{action.node} is of wave {wave} of {rollout.rollout}, and nobody has approved that yet"
        return wait("approval", reason)
    return None


def words_of(refusal: Refusal) -> str:
    """Return a refusal as a person reads it: the rule, then its reason."""
    return f"{refusal.guardrail}: {refusal.reason}"
