"""Carries out what the scheduler does at once, many at a time: drains, marks on jobs, and marks taken off.

A storm takes a handful of transactions and as few commands as it has reasons. The same before-entry, command, witness
and after-entry as `perform`, judged one by one. What does not end here (no answer, no flag yet, begun earlier) is left
to `perform`, which reads its witness and may send it again: a drain twice is a drain.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from ops_pipelines.domain.action import Action, ActionRecord, Outcome, OutcomeKind, Verb, Witness
from ops_pipelines.domain.guardrails.judge import ClusterFacts, Patience, Refusal
from ops_pipelines.domain.identity import ActionKey, JobId, NodeName, PlanId
from ops_pipelines.domain.observation import JobStatus, NodeStatus
from ops_pipelines.domain.returning.testimony import Scene, testify
from ops_pipelines.flow.acts.commands import send_marks
from ops_pipelines.flow.acts.fresh_facts import over_by, read_facts
from ops_pipelines.flow.acts.judgement import NO_LEASE, judge_on, why_too_late, words_of
from ops_pipelines.flow.acts.perform import Progress, Stage, new_record
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.timeliness import read_lateness
from ops_pipelines.ports.ledger import AUTOPILOT, Begun, LedgerState
from ops_pipelines.ports.source_error import SourceError, SourceRefused

AT_ONCE_COUNT = 1_000
"""So many are judged on one reading of the cluster: some seconds' worth, within the lease of 15 s."""
_SENDER_COUNT = 4
_ENOUGH_FOR_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One act, of a plan or of the reflex itself."""

    action: Action
    plan: PlanId | None = None


def carry_out_together(orders: Sequence[Order], cluster: Cluster, *, lease: Lease) -> Mapping[ActionKey, Progress]:
    """Begin the acts, send them, read back once what came of them, and return how far each came.

    Raises SourceError if the scheduler does not list its nodes and jobs; then nothing was begun.
    """
    progress: dict[ActionKey, Progress] = {}
    for start in range(0, len(orders), AT_ONCE_COUNT):
        batch = orders[start : start + AT_ONCE_COUNT]
        token = lease.token(cluster.ledger, cluster.clock.now())
        if token is None:
            progress |= {each.action.key: Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE)) for each in batch}
            continue
        facts = read_facts({order.action.verb for order in batch}, cluster)
        begun, others = _begin(batch, facts, cluster, token=token)
        told = _send(begun, facts, cluster, token=token)
        sent = [record for record in begun if record.action.key not in told.withheld]
        late = {key: Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE)) for key in told.withheld}
        progress |= others | late | _read_back(sent, told.refused, cluster)
    return progress


def _begin(
    orders: Sequence[Order], facts: ClusterFacts, cluster: Cluster, *, token: str
) -> tuple[list[ActionRecord], dict[ActionKey, Progress]]:
    """Write the before-entries; return those that may be sent, and what is to be said of the others."""
    shown, lateness = over_by(facts), read_lateness(cluster.ledger, cluster.clock.now())

    def guard(record: ActionRecord, state: LedgerState) -> Refusal | None:
        return judge_on(
            state, record.action, record.plan, facts, cluster, shown=shown, lateness=lateness, actor=AUTOPILOT
        )

    now = cluster.clock.now()
    records = [new_record(order.action, cluster, facts, plan=order.plan) for order in orders]
    answers = cluster.ledger.begin_all(records, guard=guard, lease_token=token, actor=AUTOPILOT, now=now)
    begun: list[ActionRecord] = []
    others: dict[ActionKey, Progress] = {}
    for record, answer in zip(records, answers, strict=True):
        if isinstance(answer, Begun):
            begun.append(record)
        elif isinstance(answer, Refusal):
            stage = Stage.WAITING if answer.patience is Patience.WAIT else Stage.FAILED
            others[record.action.key] = Progress(stage=stage, reason=words_of(answer))
        else:
            others[record.action.key] = Progress(stage=Stage.UNDER_WAY, reason="begun before; its witness is next")
    return begun, others


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What did not go out, or was not taken. No answer is not a no."""

    refused: Mapping[ActionKey, str]
    """What the scheduler refused, with its words."""
    withheld: frozenset[ActionKey] = frozenset()
    """What was not sent: the lease went, or too much time, between the before-entries and the commands."""


def _send(begun: Sequence[ActionRecord], facts: ClusterFacts, cluster: Cluster, *, token: str) -> _Told:
    """Send one command a verb and reason."""
    alike: dict[tuple[Verb, str], list[Action]] = {}
    for record in begun:
        alike.setdefault((record.action.verb, record.action.text), []).append(record.action)
    groups = list(alike.values())

    def send(group: Sequence[Action]) -> _Told:
        return _send_group(group, facts, cluster, token=token)

    if len(groups) < _ENOUGH_FOR_THREADS:
        answers = [send(group) for group in groups]
    else:
        with ThreadPoolExecutor(_SENDER_COUNT) as senders:
            answers = list(senders.map(send, groups))
    return _both(answers)


def _both(answers: Sequence[_Told]) -> _Told:
    return _Told(
        refused={key: words for each in answers for key, words in each.refused.items()},
        withheld=frozenset(key for each in answers for key in each.withheld),
    )


def _send_group(group: Sequence[Action], facts: ClusterFacts, cluster: Cluster, *, token: str) -> _Told:
    if why_too_late(facts, cluster, token=token) is not None:
        for action in group:
            cluster.ledger.withhold(action.key, sending=0, actor=AUTOPILOT, now=cluster.clock.now())
        return _Told(refused={}, withheld=frozenset(action.key for action in group))
    try:
        if group[0].verb is Verb.DRAIN:
            nodes = [action.node for action in group if action.node is not None]
            cluster.scheduler.drain(nodes, reason=group[0].text)
        else:
            send_marks(group, cluster, facts)
    except SourceRefused as problem:
        if len(group) > 1:  # One bad node must not cost the others their drain.
            return _both([_send_group([action], facts, cluster, token=token) for action in group])
        return _Told(refused={group[0].key: str(problem)})
    except SourceError:
        return _Told(refused={})
    return _Told(refused={})


def _read_back(
    begun: Sequence[ActionRecord], refused: Mapping[ActionKey, str], cluster: Cluster
) -> dict[ActionKey, Progress]:
    """Read all of them back in one answer, and write down what came of each; what does not show yet stays open."""
    nodes: dict[NodeName, NodeStatus] = {}
    jobs: dict[JobId, JobStatus] = {}
    with suppress(SourceError):
        if any(record.action.node is not None for record in begun):
            nodes = {node.node: node for node in cluster.scheduler.read_nodes()}
        if any(record.action.attempt is not None for record in begun):
            jobs = {job.job: job for job in cluster.scheduler.read_jobs()}
    outcomes: dict[ActionKey, Outcome] = {}
    progress: dict[ActionKey, Progress] = {}
    now = cluster.clock.now()
    for record in begun:
        action, key = record.action, record.action.key
        node = None if action.node is None else nodes.get(action.node)
        job = None if action.attempt is None else jobs.get(action.attempt.job)
        testimony = testify(record, Scene(node=node, job=job))
        if testimony.witness is Witness.DONE:
            set_at = None if node is None else node.reason_set_at
            outcomes[key] = Outcome(kind=OutcomeKind.DONE, witness=testimony.seen, finished_at=now, witnessed_at=set_at)
            progress[key] = Progress(stage=Stage.DONE, reason=testimony.seen)
        elif key in refused:
            outcomes[key] = Outcome(kind=OutcomeKind.FAILED, witness=refused[key], finished_at=now)
            progress[key] = Progress(stage=Stage.FAILED, reason=refused[key])
        else:
            progress[key] = Progress(stage=Stage.UNDER_WAY, reason=testimony.seen)
    if outcomes:
        cluster.ledger.finish_all(outcomes, actor=AUTOPILOT)
    return progress
