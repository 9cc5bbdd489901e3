"""Performs one action: before-entry, command, witness, after-entry. Never sends twice what may have happened.

Whether an action may be begun is judged by `domain.guardrails.judge` inside the ledger's transaction; what the world
says of it afterwards by `domain.returning.verification`. This module only moves between the two.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.domain.action import (
    MESSAGES,
    NOT_NEEDED,
    Action,
    ActionRecord,
    Outcome,
    OutcomeKind,
    Verb,
    Witness,
    reservation_of,
    witness_limit,
)
from ops_pipelines.domain.guardrails.judge import (
    NEEDS_EYES,
    Authority,
    ClusterFacts,
    Patience,
    Refusal,
    are_stale,
    expected_loss,
    is_moot,
    judge,
)
from ops_pipelines.domain.identity import ActionKey, PlanId
from ops_pipelines.domain.incident import Incident, IncidentState
from ops_pipelines.domain.node_health.health_gates import suite_named
from ops_pipelines.domain.observation import JobState, JobStatus, NodeInspection
from ops_pipelines.domain.returning.verification import Scene, testify
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.job_facts import merge_jobs, read_job_facts
from ops_pipelines.flow.lease import Lease
from ops_pipelines.frames.telemetry import is_any_fresh
from ops_pipelines.ports.ledger import AUTOPILOT, AlreadyBegun, Begun, LedgerState
from ops_pipelines.ports.notifier import Audience, Message
from ops_pipelines.ports.source_error import SourceError, SourceRefused

_AT_ONCE = frozenset(
    {
        Verb.DRAIN,
        Verb.HOLD,
        Verb.RESERVE,
        Verb.UNRESERVE,
        Verb.EXCLUDE,
        Verb.RELEASE,
        Verb.PUT_LAST,
        Verb.PUT_BACK,
        Verb.RESUME,
        Verb.DECLARE_DOWN,
        Verb.FENCE,
        Verb.CHECK,
    }
)
"""Verbs whose effect shows within the command: not seen means not sent, and sending again changes nothing."""
_HARMLESS_TWICE = frozenset({Verb.POWER_ON, Verb.CHECK})
"""Verbs that change nothing where they took effect already (port `Fleet`); unsent, they leave nothing to witness."""
_RESEND_SHARE = 4
"""A slow act that was never marked sent is sent again after this share (1/n) of its witness limit without a trace.
# Assumption: a node that was told to reboot has stopped answering within a quarter of the limit (5 of 20 minutes)."""
NO_LEASE = Refusal(
    guardrail="lease",
    reason="the right to act has run out or went to another process; the next run takes the current one",
    patience=Patience.WAIT,
)


class Stage(Enum):
    """How far an action is."""

    DONE = "done"
    """Witnessed, or it lost its object."""
    UNDER_WAY = "under_way"
    """Sent; the witness has yet to appear."""
    WAITING = "waiting"
    """Not begun: a guardrail says later."""
    FAILED = "failed"
    """It cannot come to a good end without a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an action is, and why."""

    stage: Stage
    reason: str


def perform(
    action: Action,
    cluster: Cluster,
    *,
    plan: PlanId | None,
    lease: Lease,
    actor: str = AUTOPILOT,
    judged_on: Incident | None = None,
) -> Progress:
    """Bring an action one step further and return at once.

    Call it again until the stage is neither UNDER_WAY nor WAITING. Called after a crash it reads the witness of
    what was begun, and sends again only what provably did not happen. Where the caller's verdict rests on an incident
    as it read it, `judged_on` is that: with new evidence in the ledger nothing is begun.
    """
    facts = read_facts({action.verb}, cluster)
    moot = is_moot(action, facts) or _why_told(action, facts)
    known = next((record for record in facts.records if record.action.key == action.key), None)
    if known is None and moot is not None:
        return Progress(stage=Stage.DONE, reason=f"{NOT_NEEDED}{moot}")
    token = lease.token(cluster.ledger, cluster.clock.now())
    if token is None:
        return Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE))
    record = known if known is not None else _new_record(action, cluster, facts, plan=plan)

    shown = over_by(facts)

    def guard(state: LedgerState) -> Refusal | None:
        if judged_on is not None and judged_on not in state.incidents:
            return Refusal(
                guardrail="evidence", reason="new evidence came in; it is judged anew", patience=Patience.WAIT
            )
        return judge_on(state, action, plan, facts, cluster, shown=shown, actor=actor)

    begun = cluster.ledger.begin(record, guard=guard, lease_token=token, actor=actor, now=cluster.clock.now())
    if isinstance(begun, Refusal):
        stage = Stage.WAITING if begun.patience is Patience.WAIT else Stage.FAILED
        return Progress(stage=stage, reason=words_of(begun))
    if isinstance(begun, Begun):
        return _send(begun.record, cluster, facts, actor=actor)

    def begin_again(record: ActionRecord, after: int) -> Begun | AlreadyBegun | Refusal:
        now = cluster.clock.now()
        return cluster.ledger.begin_again(record, after=after, guard=guard, lease_token=token, actor=actor, now=now)

    return _follow_up(begun.record, cluster, facts, begin_again=begin_again, actor=actor)


def _why_told(action: Action, facts: ClusterFacts) -> str | None:
    """Return why an owner is not told: each plan of an incident has its own notices, and they often say the same."""
    if action.verb is not Verb.NOTIFY_OWNER:
        return None
    is_told = any(
        record.action.verb is Verb.NOTIFY_OWNER
        and (record.action.incident, record.action.attempt) == (action.incident, action.attempt)
        and record.action.text == action.text
        and record.outcome is not None
        and record.outcome.kind is OutcomeKind.DONE
        for record in facts.records
    )
    return "the owner was told the same already" if is_told else None


def read_facts(verbs: Collection[Verb], cluster: Cluster) -> ClusterFacts:
    """Return the fresh state that actions of these verbs are judged on; raise SourceError if the scheduler is silent.

    The metrics are asked for only where a verb needs eyes: the answer may be large.
    """
    # The ledger first: a drain that is done by then shows in the nodes. See `judge_on` for one that is done later.
    state = cluster.ledger.read_state(cluster.clock.now())
    # Nothing of the cluster is judged of a page: it goes out although the scheduler is silent.
    needs_scheduler = not {Verb.PAGE_HUMAN}.issuperset(verbs)
    nodes = cluster.scheduler.read_nodes() if needs_scheduler else ()
    jobs = cluster.scheduler.read_jobs() if needs_scheduler else ()
    learned = read_job_facts(cluster.job_facts)
    now = cluster.clock.now()
    return ClusterFacts(
        nodes={node.node: node for node in nodes},
        jobs={job.job: job for job in merge_jobs(jobs, learned, now=now)},
        records=state.records,
        is_telemetry_available=NEEDS_EYES.isdisjoint(verbs) or _can_see(cluster),
        is_paused=state.pause is not None,
        taken_at=now,
        costs=learned.costs,
        hazards=cluster.rules.catalogue.hazards,
    )


def _can_see(cluster: Cluster) -> bool:
    now = cluster.clock.now()
    try:
        samples = cluster.telemetry.read_samples(now)
    except SourceError:
        return False
    return is_any_fresh(samples, at=now, stale_after=cluster.rules.policy.durations.telemetry_stale_after)


def authority_of(plan: PlanId | None, state: LedgerState, *, actor: str) -> Authority:
    """Return on whose word an action of `plan` would be begun.

    A plan of which an act was begun on somebody's yes is finished after the yes has expired: half a plan is worse than
    either end. One that was only put in force has done nothing yet, and needs a new yes.
    """
    if actor != AUTOPILOT:
        return Authority.PERSON
    if plan is not None and (
        any(approval.plan == plan for approval in state.approvals)
        or any(record.plan == plan and record.action.verb not in MESSAGES for record in state.records)
    ):
        return Authority.APPROVED_PLAN
    return Authority.AUTOPILOT


def judge_on(
    state: LedgerState,
    action: Action,
    plan: PlanId | None,
    facts: ClusterFacts,
    cluster: Cluster,
    *,
    shown: Collection[ActionKey],
    actor: str,
) -> Refusal | None:
    """Return why `action` must not be begun on these facts and the ledger as it is inside the transaction.

    `shown` are the acts that were over before the nodes were read (`over_by`). A drain that somebody else finished
    since does not show in them: it counts as under way.
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
    current = replace(facts, records=records, is_paused=state.pause is not None)
    rules = cluster.rules
    authority = authority_of(plan, state, actor=actor)
    return judge(action, current, policy=rules.policy, topology=rules.topology, authority=authority)


def over_by(facts: ClusterFacts) -> frozenset[ActionKey]:
    """Return the drains that were over when these facts were read."""
    return frozenset(
        record.action.key for record in facts.records if record.action.verb is Verb.DRAIN and record.outcome is not None
    )


def _new_record(action: Action, cluster: Cluster, facts: ClusterFacts, *, plan: PlanId | None) -> ActionRecord:
    """Return the before-entry; of a restart it keeps what the witness will be compared with."""
    held = None
    if action.verb is Verb.HOLD and action.attempt is not None:
        held = facts.jobs.get(action.attempt.job)
    boot_id = None
    booted_at = None
    if action.verb in (Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE) and action.node is not None:
        inspection = _inspect(cluster, action)
        boot_id = inspection.boot_id if inspection is not None else None
        status = facts.nodes.get(action.node)
        booted_at = status.booted_at if status is not None else None
    return ActionRecord(
        action=action,
        plan=plan,
        begun_at=cluster.clock.now(),
        boot_id_before=boot_id,
        booted_before=booted_at,
        attempt_nodes=frozenset() if held is None else held.nodes,
        gpu_count=0 if held is None else held.gpu_count,
        checkpointed_at=None if held is None else held.checkpointed_at,
        lost_gpu_hours=None if held is None or action.has_ended else expected_loss(held, facts),
    )


def _send(record: ActionRecord, cluster: Cluster, facts: ClusterFacts, *, actor: str) -> Progress:
    action = record.action
    try:
        receipt = _command(action, cluster, facts)
    except SourceRefused as problem:
        if action.verb is Verb.PAGE_HUMAN:
            return Progress(stage=Stage.UNDER_WAY, reason=str(problem))  # A failed page would never be sent again.
        needless = _why_needless(action, cluster)
        if needless is not None:
            return finish(record, cluster, OutcomeKind.DONE, f"{NOT_NEEDED}{needless}", actor=actor)
        return finish(record, cluster, OutcomeKind.FAILED, str(problem), actor=actor)
    except SourceError as problem:
        if action.verb not in MESSAGES and _is_overdue(record, cluster):
            return finish(record, cluster, OutcomeKind.UNKNOWN, f"no answer within the limit: {problem}", actor=actor)
        # No answer is not a no: it may have happened. The witness decides, in this pass and the next ones.
        return Progress(stage=Stage.UNDER_WAY, reason=str(problem))
    cluster.ledger.mark_sent(action.key, actor=actor, now=cluster.clock.now())
    if action.verb in MESSAGES:
        return finish(record, cluster, OutcomeKind.DONE, receipt, actor=actor)
    return Progress(stage=Stage.UNDER_WAY, reason="sent")


def _why_needless(action: Action, cluster: Cluster) -> str | None:
    """Return why a refused command for a job was not needed: the job ended between our look and the command."""
    if action.attempt is None or action.verb in MESSAGES:
        return None
    fresh = read_facts({action.verb}, cluster)
    moot = is_moot(action, fresh)
    job = fresh.jobs.get(action.attempt.job)
    if moot is None and action.verb is Verb.HOLD and job is not None and job.state is JobState.COMPLETING:
        return f"job {job.job} is ending already"
    return moot


def _follow_up(
    record: ActionRecord,
    cluster: Cluster,
    facts: ClusterFacts,
    *,
    begin_again: Callable[[ActionRecord, int], Begun | AlreadyBegun | Refusal],
    actor: str,
) -> Progress:
    """Read the witness of an action that was begun; send it again only if it provably did not happen and still may."""
    if record.outcome is not None:
        stage = Stage.DONE if record.outcome.kind is OutcomeKind.DONE else Stage.FAILED
        return Progress(stage=stage, reason=record.outcome.witness)
    action = record.action
    if action.verb in MESSAGES:
        if record.sent_at is not None:
            return finish(record, cluster, OutcomeKind.DONE, "the notifier took it", actor=actor)
        # Nobody can tell whether it went out. A message twice is better than a page never sent.
        return _send(record, cluster, facts, actor=actor)
    resent_at = cluster.ledger.resent_at(action.key)  # Read before the witness: who sends between the two is seen.
    testimony = testify(record, look(action, cluster))
    if testimony.witness is Witness.DONE:
        return finish(record, cluster, OutcomeKind.DONE, testimony.seen, actor=actor)
    moot = is_moot(action, facts)
    if moot is not None and action.verb is not Verb.FENCE:  # A fence is waiting: only its witness ends it.
        return finish(record, cluster, OutcomeKind.DONE, f"{NOT_NEEDED}{moot}", actor=actor)
    if _may_send_again(record, testimony.witness, resent_at, cluster):
        begun = begin_again(record, len(resent_at))
        if isinstance(begun, Begun):
            return _send(record, cluster, facts, actor=actor)
        if isinstance(begun, AlreadyBegun):
            return Progress(stage=Stage.UNDER_WAY, reason="somebody else sent it again in this moment")
        if begun.patience is Patience.WAIT:
            return Progress(stage=Stage.WAITING, reason=words_of(begun))
        return finish(record, cluster, OutcomeKind.FAILED, f"not sent again: {words_of(begun)}", actor=actor)
    if _is_overdue(record, cluster):
        kind = OutcomeKind.FAILED if testimony.witness is Witness.NOT_DONE else OutcomeKind.UNKNOWN
        limit = witness_limit(action.verb, cluster.rules.policy.durations)
        return finish(
            record, cluster, kind, f"no witness within {limit.total_seconds():.0f} s: {testimony.seen}", actor=actor
        )
    return Progress(stage=Stage.UNDER_WAY, reason=testimony.seen)


def _may_send_again(record: ActionRecord, witness: Witness, resent_at: Sequence[datetime], cluster: Cluster) -> bool:
    """Return whether a command that nobody is known to have accepted is sent once more, however old it is.

    A slow one is given its share of the limit after each time that it may have been sent.
    """
    verb = record.action.verb
    if record.sent_at is not None or (witness is not Witness.NOT_DONE and verb not in _HARMLESS_TWICE):
        return False
    if verb is Verb.RESET_GPU and resent_at:
        return False  # A reset that helped nothing looks like one that never came: once more is enough.
    limit = witness_limit(verb, cluster.rules.policy.durations)
    last_sent_at = max((record.begun_at, *resent_at))
    return verb in _AT_ONCE or cluster.clock.now() - last_sent_at > limit / _RESEND_SHARE


def _is_overdue(record: ActionRecord, cluster: Cluster) -> bool:
    """Return whether the witness should have appeared by now: its limit runs from when the command was accepted."""
    limit = witness_limit(record.action.verb, cluster.rules.policy.durations)
    return cluster.clock.now() - (record.sent_at or record.begun_at) > limit


def words_of(refusal: Refusal) -> str:
    """Return a refusal as a person reads it: the rule, then its reason."""
    return f"{refusal.guardrail}: {refusal.reason}"


def finish(record: ActionRecord, cluster: Cluster, kind: OutcomeKind, witness: str, *, actor: str) -> Progress:
    """Write the outcome, with the time that the scheduler itself gives to a drain."""
    action = record.action
    witnessed_at = None
    if action.verb in (Verb.DRAIN, Verb.DECLARE_DOWN) and kind is OutcomeKind.DONE:
        node = next((each for each in cluster.scheduler.read_nodes() if each.node == action.node), None)
        witnessed_at = node.reason_set_at if node is not None else None
    cluster.ledger.finish(
        action.key,
        Outcome(kind=kind, witness=witness, finished_at=cluster.clock.now(), witnessed_at=witnessed_at),
        actor=actor,
    )
    return Progress(stage=Stage.DONE if kind is OutcomeKind.DONE else Stage.FAILED, reason=witness)


def look(action: Action, cluster: Cluster) -> Scene:
    """Read what bears witness of an action; what cannot be read stays None."""
    try:
        if action.verb in (Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE) and action.attempt is not None:
            wanted = action.attempt.job
            return Scene(job=next((job for job in cluster.scheduler.read_jobs() if job.job == wanted), None))
        if action.verb in (Verb.RESERVE, Verb.UNRESERVE):
            return Scene(nodes=cluster.scheduler.read_nodes())
        if action.verb is Verb.CHECK and action.node is not None:
            return Scene(is_check_over=cluster.fleet.read_check(action.node, key=action.key) is not None)
        if action.verb in (Verb.DRAIN, Verb.DECLARE_DOWN, Verb.RESUME, Verb.PUT_LAST, Verb.PUT_BACK):
            return Scene(node=next((node for node in cluster.scheduler.read_nodes() if node.node == action.node), None))
        if action.verb is Verb.POWER_OFF and action.node is not None:
            return Scene(power=cluster.fleet.power_state(action.node))
    except SourceError:
        return Scene()
    return Scene(inspection=_inspect(cluster, action))


def _inspect(cluster: Cluster, action: Action) -> NodeInspection | None:
    if action.node is None:
        return None
    try:
        return cluster.fleet.inspect(action.node)
    except SourceError:
        return None


def _command(action: Action, cluster: Cluster, facts: ClusterFacts) -> str:
    """Send the command of an action and return the receipt, if the system gives one."""
    scheduler, fleet = cluster.scheduler, cluster.fleet
    match action.verb:
        case Verb.PAGE_HUMAN:
            return cluster.notifier.send(_message(action, Audience.ON_CALL, "operator on call"))
        case Verb.NOTIFY_OWNER:
            return cluster.notifier.send(_message(action, Audience.OWNER, _owner(action, facts)))
        case Verb.FENCE:
            # Hold ends the steps; the fence is waiting until they are seen gone. On a node that was silent the hold
            # only marked the job: if all its nodes answer again, it is requeued now.
            marked = facts.jobs.get(action.attempt.job) if action.attempt is not None else None
            is_marked = marked is not None and marked.state is JobState.RUNNING and marked.is_held
            if marked is not None and is_marked and _do_all_answer(marked, facts):
                scheduler.hold(marked.job)
            return ""
    if action.attempt is not None:
        job = action.attempt.job
        match action.verb:
            case Verb.HOLD:
                scheduler.hold(job)
            case Verb.RELEASE:
                scheduler.release(job)
            case Verb.EXCLUDE if action.node is not None:
                scheduler.exclude(job, [action.node])
            case Verb.RESERVE:
                until = cluster.clock.now() + _room_for(cluster)
                scheduler.reserve(action.spares, name=reservation_of(action), until=until)
            case Verb.UNRESERVE:
                scheduler.unreserve(reservation_of(action))
    elif action.node is not None:
        match action.verb:
            case Verb.DRAIN:
                scheduler.drain([action.node], reason=action.text)
            case Verb.DECLARE_DOWN:
                scheduler.declare_down(action.node, reason=action.text)
            case Verb.RESUME:
                scheduler.resume(action.node)
            case Verb.PUT_LAST:
                scheduler.put_last(action.node)
            case Verb.PUT_BACK:
                scheduler.put_back(action.node)
            case Verb.REIMAGE:
                fleet.reimage(action.node, reason=action.text)
            case Verb.CHECK:
                suite = suite_named(action.suite, cluster.rules.catalogue.suites)
                fleet.start_check(action.node, suite=action.suite, tests=suite.tests, key=action.key)
            case Verb.REBOOT:
                fleet.reboot(action.node, reason=action.text)
            case Verb.POWER_OFF:
                fleet.power_off(action.node)
            case Verb.POWER_ON:
                fleet.power_on(action.node)
            case Verb.RESET_GPU if action.gpu is not None:
                fleet.reset_gpu(action.node, action.gpu)
    return ""


def _room_for(cluster: Cluster) -> timedelta:
    """Return how long spare nodes are kept free at most: what holding and fencing may take."""
    durations = cluster.rules.policy.durations
    return durations.fence_limit + 4 * durations.command_limit + durations.run_patience


def _do_all_answer(job: JobStatus, facts: ClusterFacts) -> bool:
    return all(name in facts.nodes and facts.nodes[name].is_responding for name in job.nodes)


def _owner(action: Action, facts: ClusterFacts) -> str:
    job: JobStatus | None = facts.jobs.get(action.attempt.job) if action.attempt is not None else None
    return job.user if job is not None else "unknown"


def _message(action: Action, audience: Audience, recipient: str) -> Message:
    return Message(
        audience=audience,
        recipient=recipient,
        thread=action.incident,
        title=f"{action.incident}: {'please look' if audience is Audience.ON_CALL else 'your job'}",
        body=action.text,
    )
