"""Performs one action: before-entry, command, witness, after-entry. Never sends twice what may have happened.

Whether an action may be started is judged by `judgement` inside the ledger's transaction; commands and their witnesses
are `verbs`'. This module only moves between the two, and writes the page or the notice that an act is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.action import (
    MARKS,
    MESSAGES,
    NOT_NEEDED,
    OVERLAP,
    Action,
    ActionRecord,
    Outcome,
    OutcomeKind,
    Urgency,
    Verb,
    Witness,
    witness_limit,
)
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, AlreadyBegun, Begun, LedgerState
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.notes import (
    ON_CALL,
    Audience,
    Link,
    Message,
    Severity,
    body_of,
    names_of,
    places,
    subject_of,
    sureness,
)
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.plan import Order
from ops_pipelines.core.proof import SECOND_OPINION, ActProof, Patience, Refusal, wait
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, expected_loss, is_taken_by_its_fault
from ops_pipelines.remediate.guardrails.judge import is_moot
from ops_pipelines.remediate.judgement import (
    NO_LEASE,
    ActJudge,
    Lease,
    Verdicts,
    read_facts,
    words_of,
)
from ops_pipelines.remediate.verbs import inspect_node, look, send_command, testify

_AT_ONCE = frozenset(
    {
        Verb.DRAIN,
        Verb.HOLD,
        Verb.MARK,
        Verb.UNMARK,
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
        Verb.INSTALL,
    }
)
"""Verbs whose effect shows within the command: not seen means not sent, and sending again changes nothing."""
_HARMLESS_TWICE = frozenset({Verb.POWER_ON, Verb.CHECK, Verb.INSTALL})
"""Verbs that change nothing where they took effect already (port `Fleet`); unsent, they leave nothing to witness."""
NOT_SENT_AGAIN = "not sent again: "
"""Begins what is stated of an act that provably did not happen, and that a guardrail forbids by now."""
_LANDS_WITHIN = timedelta(minutes=2)
"""# Assumption: a slurmctld that is behind carries out within this time what its client was killed over."""
_SHOWN_FAULT_COUNT = 5
_RESEND_SHARE = 4
"""A slow act that was never marked sent is sent again after this share (1/n) of its witness limit without a trace.
# Assumption: a node that was ordered to reboot stopped answering within a quarter of the limit (5 of 20 minutes)."""


class Stage(Enum):
    """How far an action is."""

    DONE = "done"
    """Witnessed, or it lost its object."""
    UNDER_WAY = "under_way"
    """Sent; the witness has yet to appear."""
    WAITING = "waiting"
    """Not started: a guardrail says later."""
    FAILED = "failed"
    """It cannot come to a good end without a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an action is, and why."""

    stage: Stage
    reason: str


def perform(
    order: Order,
    cluster: Cluster,
    *,
    lease: Lease,
    actor: str = AUTOPILOT,
    judged_on: Incident | None = None,
    looked_at: datetime | None = None,
) -> Progress:
    """Bring what was ordered one step further and return at once.

    Call it again until the stage is neither UNDER_WAY nor WAITING. Called after a crash it reads the witness of
    what was started, and sends again only what provably did not happen. Where the caller's verdict rests on an incident
    as it read it, `judged_on` is that: with new evidence in the ledger nothing is started; and `looked_at` is when it
    looked at what else it rests on, which grows as old as the facts themselves may.
    """
    action = order.action
    facts = read_facts({action.verb}, cluster)
    facts = facts if looked_at is None else replace(facts, taken_at=min(facts.taken_at, looked_at))
    moot = is_moot(action, facts) or _why_told(action, facts)
    known = next((record for record in facts.records if record.action.key == action.key), None)
    if known is None and moot is not None:
        return Progress(stage=Stage.DONE, reason=f"{NOT_NEEDED}{moot}")
    token = lease.token(cluster.ledger, cluster.clock.now())
    if token is None:
        return Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE))
    record = known if known is not None else new_record(action, cluster, facts, plan=order.plan)

    judge = ActJudge(facts, cluster, actor=actor)

    def guard(_: ActionRecord, state: LedgerState) -> Refusal | ActProof | None:
        if judged_on is not None and judged_on not in state.incidents:
            return wait("evidence", "new evidence came in; it is judged again")
        return judge.judge(action, order.plan, state)

    now = cluster.clock.now()
    verdicts = Verdicts(guard, facts, cluster, token=token, given_at=now)
    begun = cluster.ledger.begin(record, guard=guard, lease_token=token, actor=actor, now=now)
    if isinstance(begun, Refusal):
        tell_of_faults({action: begun}, cluster, lease=lease)
        stage = Stage.WAITING if begun.patience is Patience.WAIT else Stage.FAILED
        return Progress(stage=stage, reason=words_of(begun))
    if isinstance(begun, Begun):
        return _send(begun.record, cluster, facts, sending=0, verdicts=verdicts, actor=actor)

    def begin_again(record: ActionRecord, after: int) -> Begun | AlreadyBegun | Refusal:
        now = cluster.clock.now()
        again = cluster.ledger.begin_again(record, after=after, guard=guard, lease_token=token, actor=actor, now=now)
        if isinstance(again, Refusal):
            tell_of_faults({action: again}, cluster, lease=lease)
        return again

    return _follow_up(begun.record, cluster, facts, begin_again=begin_again, verdicts=verdicts, actor=actor)


def tell_of_faults(refused: Mapping[Action, Refusal], cluster: Cluster, *, lease: Lease) -> None:
    """Page once about acts that every guardrail let pass and the second opinion contradicts: one of us is wrong.

    One page for an incident and what is stated, however many acts: a check that is broken contradicts all of them.
    """
    ours = {act: refusal for act, refusal in refused.items() if refusal.guardrail == SECOND_OPINION}
    if not ours:
        return
    first, *_ = ours
    checks = sorted({refusal.reason.split(":")[0] for refusal in ours.values()})
    shown = "; ".join(
        f"{act.verb.value} of {act.target} for {act.incident}: {refusal.reason}"
        for act, refusal in list(ours.items())[:_SHOWN_FAULT_COUNT]
    )
    more = len(ours) - _SHOWN_FAULT_COUNT
    page = Action(
        verb=Verb.PAGE_HUMAN,
        incident=first.incident,
        text=f"Not started: {shown}{f'; and {more} more' if more > 0 else ''}. This is a fault of the autopilot: do "
        "what is needed by hand, and report it.",
        part=f"proof {' '.join(checks)}",
    )
    send_once(page, cluster, lease=lease)


def send_once(message: Action, cluster: Cluster, *, lease: Lease) -> None:
    """Send a message, unless the ledger shows that it went out."""
    if not any(each.action.key == message.key and each.outcome for each in cluster.ledger.records(message.incident)):
        perform(Order(action=message), cluster, lease=lease)


def _why_told(action: Action, facts: ClusterFacts) -> str | None:
    """Return why an owner is not notified: each plan of an incident has its own notices, often with the same text."""
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
    return "the owner was notified of the same already" if is_told else None


def new_record(action: Action, cluster: Cluster, facts: ClusterFacts, *, plan: PlanId | None) -> ActionRecord:
    """Return the before-entry; of a restart it keeps what the witness will be compared with, of a mark what was."""
    record = ActionRecord(action=action, plan=plan, begun_at=cluster.clock.now())
    job = None if action.attempt is None else facts.jobs.get(action.attempt.job)
    if job is not None and action.verb in (Verb.HOLD, Verb.MARK):
        record = replace(record, attempt_nodes=job.nodes, gpu_count=job.gpu_count)
        if action.verb is Verb.MARK:
            return replace(record, priority=job.priority)
        lost = None if is_taken_by_its_fault(action, job, facts) else expected_loss(job, facts)
        return replace(record, checkpointed_at=job.checkpointed_at, lost_gpu_hours=lost)
    if action.verb in (Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON, Verb.REIMAGE) and action.node is not None:
        inspection, status = inspect_node(action.node, cluster), facts.nodes.get(action.node)
        return replace(
            record,
            boot_id_before=None if inspection is None else inspection.boot_id,
            booted_before=None if status is None else status.booted_at,
        )
    return record


def _send(
    record: ActionRecord, cluster: Cluster, facts: ClusterFacts, *, sending: int, verdicts: Verdicts, actor: str
) -> Progress:
    """Send the command, if that is still right: time may have passed since the before-entry, however much."""
    action = record.action
    taken_back = {} if action.verb in MESSAGES else verdicts.taken_back([record], sending=sending)
    if taken_back:
        cluster.ledger.withhold(action.key, sending=sending, actor=actor, now=cluster.clock.now())
        return Progress(stage=Stage.WAITING, reason=words_of(taken_back[action.key]))
    receipt = ""
    try:
        if action.verb in MESSAGES:
            receipt = cluster.notifier.send(_message_of(action, cluster, facts))
        else:
            send_command(action, cluster, facts)
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
    verdicts: Verdicts,
    actor: str,
) -> Progress:
    """Read the witness of a started action; send it again only if it provably did not happen and still may."""
    if record.outcome is not None:
        stage = Stage.DONE if record.outcome.kind is OutcomeKind.DONE else Stage.FAILED
        return Progress(stage=stage, reason=record.outcome.witness)
    action = record.action
    if action.verb in MESSAGES:
        if record.sent_at is not None:
            return finish(record, cluster, OutcomeKind.DONE, "the notifier took it", actor=actor)
        # Nobody can tell whether it went out. A message twice is better than a page never sent.
        return _send(record, cluster, facts, sending=0, verdicts=verdicts, actor=actor)
    resent_at = cluster.ledger.resent_at(action.key)  # Read before the witness: who sends between the two is seen.
    testimony = testify(record, look(action, cluster))
    if testimony.witness is Witness.DONE:
        return finish(record, cluster, OutcomeKind.DONE, testimony.seen, actor=actor)
    if testimony.witness is Witness.FAILED:
        return finish(record, cluster, OutcomeKind.FAILED, testimony.seen, actor=actor)
    moot = is_moot(action, facts)
    if moot is not None and action.verb is not Verb.FENCE:  # A fence is waiting: only its witness ends it.
        return finish(record, cluster, OutcomeKind.DONE, f"{NOT_NEEDED}{moot}", actor=actor)
    if _may_send_again(record, testimony.witness, resent_at, cluster):
        begun = begin_again(record, len(resent_at))
        if isinstance(begun, Begun):
            return _send(record, cluster, facts, sending=len(resent_at) + 1, verdicts=verdicts, actor=actor)
        if isinstance(begun, AlreadyBegun):
            return Progress(stage=Stage.UNDER_WAY, reason="somebody else sent it again in this moment")
        if begun.patience is Patience.WAIT:
            return Progress(stage=Stage.WAITING, reason=words_of(begun))
        if action.verb is Verb.MARK and _may_still_land(record, resent_at, cluster):
            return Progress(stage=Stage.UNDER_WAY, reason="not requested any more; the scheduler may still do it")
        return finish(record, cluster, OutcomeKind.FAILED, f"{NOT_SENT_AGAIN}{words_of(begun)}", actor=actor)
    if _is_overdue(record, cluster):
        kind = OutcomeKind.FAILED if testimony.witness is Witness.NOT_DONE else OutcomeKind.UNKNOWN
        limit = witness_limit(action.verb, cluster.rules.policy)
        return finish(
            record, cluster, kind, f"no witness within {limit.total_seconds():.0f} s: {testimony.seen}", actor=actor
        )
    return Progress(stage=Stage.UNDER_WAY, reason=testimony.seen)


def _may_send_again(record: ActionRecord, witness: Witness, resent_at: Sequence[datetime], cluster: Cluster) -> bool:
    """Return whether a command that nobody is known to have accepted is sent once more, however old it is.

    A slow one is given its share of the limit after each time that it may have been sent. What is done in parts is sent
    again for each of them: nothing begins that was not judged again.
    """
    verb = record.action.verb
    if witness is Witness.PARTLY_DONE:
        return not _is_overdue(record, cluster)
    if record.sent_at is not None or (witness is not Witness.NOT_DONE and verb not in _HARMLESS_TWICE):
        return False
    if _was_never_sent(record, resent_at, cluster):
        return True
    if verb is Verb.RESET_GPU and resent_at:
        return False  # A reset that helped nothing looks like one that never came: once more is enough.
    limit = witness_limit(verb, cluster.rules.policy)
    last_sent_at = max((record.begun_at, *resent_at))
    return verb in _AT_ONCE or cluster.clock.now() - last_sent_at > limit / _RESEND_SHARE


def _may_still_land(record: ActionRecord, resent_at: Sequence[datetime], cluster: Cluster) -> bool:
    """Return whether a command that got no answer may lie in the scheduler's queue yet: what lands has to be undone."""
    if _was_never_sent(record, resent_at, cluster):
        return False
    return cluster.clock.now() - max((record.begun_at, *resent_at)) <= _LANDS_WITHIN


def _was_never_sent(record: ActionRecord, resent_at: Sequence[datetime], cluster: Cluster) -> bool:
    """Return whether each time that it was to be sent the lease had gone: then nobody has to wait for its witness."""
    return len(cluster.ledger.withheld(record.action.key)) == 1 + len(resent_at)


def _is_overdue(record: ActionRecord, cluster: Cluster) -> bool:
    """Return whether the witness should have appeared by now: its limit runs from when the command was accepted.

    A mark set or taken off that nobody has accepted is never given up: a job would stay held, or be started twice.
    """
    if record.action.verb in MARKS and record.sent_at is None:
        return False
    limit = witness_limit(record.action.verb, cluster.rules.policy)
    return cluster.clock.now() - (record.sent_at or record.begun_at) > limit


def finish(record: ActionRecord, cluster: Cluster, kind: OutcomeKind, witness: str, *, actor: str) -> Progress:
    """Write the outcome, with the time that the scheduler itself gives to a drain, or gave it again."""
    action = record.action
    witnessed_at = None
    is_drain = action.verb in (Verb.DRAIN, Verb.DECLARE_DOWN) and kind is OutcomeKind.DONE
    if is_drain or action.verb is Verb.REBOOT:
        node = next((each for each in cluster.scheduler.read_nodes() if each.node == action.node), None)
        witnessed_at = node.reason_set_at if node is not None else None
    cluster.ledger.finish(
        action.key,
        Outcome(kind=kind, witness=witness, finished_at=cluster.clock.now(), witnessed_at=witnessed_at),
        actor=actor,
    )
    return Progress(stage=Stage.DONE if kind is OutcomeKind.DONE else Stage.FAILED, reason=witness)


def _message_of(action: Action, cluster: Cluster, facts: ClusterFacts) -> Message:
    incident = cluster.ledger.incident(action.incident)
    return _page(action, incident, cluster) if action.verb is Verb.PAGE_HUMAN else _notice(action, incident, facts)


def _page(action: Action, incident: Incident | None, cluster: Cluster) -> Message:
    """Return the page of an act: what a person is needed for, where, how sure we are, and where to look."""
    where = "" if incident is None else f" {names_of(incident)}"
    about = [("What you must do", action.text)]
    if incident is not None:
        about += [
            ("What", incident.cause if incident.cause not in action.text else ""),
            ("Where", places(incident, cluster.rules.topology)),
            ("How sure", sureness(incident)),
        ]
    is_overlap, url = action.part.startswith(OVERLAP), cluster.pages_url
    return Message(
        audience=Audience.ON_CALL,
        recipient=ON_CALL,
        thread=action.incident,
        title=f"{action.incident}{where}: {'two copies of a job at once' if is_overlap else 'please look'}",
        subject="" if incident is None else subject_of(incident),
        body=body_of(about),
        severity=Severity.CRITICAL if action.urgency is Urgency.AT_ONCE else Severity.WARNING,
        key=action.key,
        links=()
        if url is None
        else (Link(label=f"report of {action.incident}", url=f"{url}/incidents/{action.incident}"),),
    )


def _notice(action: Action, incident: Incident | None, facts: ClusterFacts) -> Message:
    """Return the message to the owner of a job. Where the job erred by itself, they are the one who must look."""
    job = None if action.attempt is None else facts.jobs.get(action.attempt.job)
    is_own_error = incident is not None and incident.response is Response.NOTIFY_OWNER
    return Message(
        audience=Audience.OWNER,
        recipient="unknown" if job is None else job.user,
        thread=action.incident,
        title=f"{action.incident}: your {action.target}",
        subject="" if incident is None else subject_of(incident),
        body=" ".join(action.text.split()),
        severity=Severity.WARNING if is_own_error or action.part.startswith(OVERLAP) else Severity.NOTICE,
        key=action.key,
    )
