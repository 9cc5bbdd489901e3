"""Carries out drains, many at a time: a storm takes a handful of transactions and as few commands as it has reasons.

The same before-entry, command, witness and after-entry as `perform`, judged one by one. What does not end here
(no answer, no flag yet, begun earlier) is left to `perform`, which reads its witness and may send it again: a drain
twice is a drain.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from ops_pipelines.domain.action import Action, ActionRecord, Outcome, OutcomeKind, Witness
from ops_pipelines.domain.guardrails.judge import Patience, Refusal
from ops_pipelines.domain.identity import ActionKey, NodeName, PlanId
from ops_pipelines.domain.observation import NodeStatus
from ops_pipelines.domain.returning.testimony import Scene, testify
from ops_pipelines.flow.acts.fresh_facts import over_by, read_facts
from ops_pipelines.flow.acts.judgement import NO_LEASE, judge_on, words_of
from ops_pipelines.flow.acts.perform import Progress, Stage
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.lease import Lease
from ops_pipelines.ports.ledger import AUTOPILOT, Begun, LedgerState
from ops_pipelines.ports.source_error import SourceError, SourceRefused

AT_ONCE_COUNT = 1_000
"""So many are judged on one reading of the cluster: some seconds' worth, within the lease of 15 s."""
_SENDER_COUNT = 4
_ENOUGH_FOR_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """One drain of one plan."""

    action: Action
    plan: PlanId


def drain_together(orders: Sequence[DrainOrder], cluster: Cluster, *, lease: Lease) -> Mapping[ActionKey, Progress]:
    """Begin the drains, send them, read their flags back once, and return how far each came.

    Raises SourceError if the scheduler does not list its nodes and jobs; then nothing was begun.
    """
    progress: dict[ActionKey, Progress] = {}
    for start in range(0, len(orders), AT_ONCE_COUNT):
        batch = orders[start : start + AT_ONCE_COUNT]
        token = lease.token(cluster.ledger, cluster.clock.now())
        if token is None:
            progress |= {each.action.key: Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE)) for each in batch}
            continue
        begun, others = _begin(batch, cluster, token=token)
        refused = _send(begun, cluster)
        progress |= others | _read_back(begun, refused, cluster)
    return progress


def _begin(
    orders: Sequence[DrainOrder], cluster: Cluster, *, token: str
) -> tuple[list[ActionRecord], dict[ActionKey, Progress]]:
    """Write the before-entries; return those that may be sent, and what is to be said of the others."""
    facts = read_facts({order.action.verb for order in orders}, cluster)
    shown = over_by(facts)

    def guard(record: ActionRecord, state: LedgerState) -> Refusal | None:
        return judge_on(state, record.action, record.plan, facts, cluster, shown=shown, actor=AUTOPILOT)

    now = cluster.clock.now()
    records = [ActionRecord(action=order.action, plan=order.plan, begun_at=now) for order in orders]
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


def _send(begun: Sequence[ActionRecord], cluster: Cluster) -> dict[ActionKey, str]:
    """Send one command a reason; return what the scheduler refused, with its words. No answer is not a no."""
    by_reason: dict[str, list[Action]] = {}
    for record in begun:
        by_reason.setdefault(record.action.text, []).append(record.action)
    groups = list(by_reason.values())
    if len(groups) < _ENOUGH_FOR_THREADS:
        answers = [_send_group(group, cluster) for group in groups]
    else:
        with ThreadPoolExecutor(_SENDER_COUNT) as senders:
            answers = list(senders.map(lambda group: _send_group(group, cluster), groups))
    return {key: words for answer in answers for key, words in answer.items()}


def _send_group(group: Sequence[Action], cluster: Cluster) -> dict[ActionKey, str]:
    nodes = [action.node for action in group if action.node is not None]
    try:
        cluster.scheduler.drain(nodes, reason=group[0].text)
    except SourceRefused as problem:
        if len(group) > 1:  # One bad node must not cost the others their drain.
            return {key: words for action in group for key, words in _send_group([action], cluster).items()}
        return {group[0].key: str(problem)}
    except SourceError:
        return {}
    return {}


def _read_back(
    begun: Sequence[ActionRecord], refused: Mapping[ActionKey, str], cluster: Cluster
) -> dict[ActionKey, Progress]:
    """Read every flag back in one answer, and write down what came of each; what does not show yet stays open."""
    nodes: dict[NodeName, NodeStatus] = {}
    with suppress(SourceError):
        nodes = {node.node: node for node in cluster.scheduler.read_nodes()} if begun else {}
    outcomes: dict[ActionKey, Outcome] = {}
    progress: dict[ActionKey, Progress] = {}
    now = cluster.clock.now()
    for record in begun:
        key = record.action.key
        node = nodes.get(record.action.node) if record.action.node is not None else None
        testimony = testify(record, Scene(node=node))
        if testimony.witness is Witness.DONE and node is not None:
            outcomes[key] = Outcome(
                kind=OutcomeKind.DONE, witness=testimony.seen, finished_at=now, witnessed_at=node.reason_set_at
            )
            progress[key] = Progress(stage=Stage.DONE, reason=testimony.seen)
        elif key in refused:
            outcomes[key] = Outcome(kind=OutcomeKind.FAILED, witness=refused[key], finished_at=now)
            progress[key] = Progress(stage=Stage.FAILED, reason=refused[key])
        else:
            progress[key] = Progress(stage=Stage.UNDER_WAY, reason=testimony.seen)
    if outcomes:
        cluster.ledger.finish_all(outcomes, actor=AUTOPILOT)
    return progress
