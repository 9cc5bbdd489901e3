"""Carries out what the scheduler does at once, many at a time: drains, marks on jobs, and marks taken off.

A storm takes a handful of transactions and as few commands as it has reasons. The same before-entry, command, witness
and after-entry as `perform`, judged one by one. What does not end here (no answer, no flag yet, started earlier) is
left to `perform`, which reads its witness and may send it again: a drain twice is a drain.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb, Witness
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT, Begun, LedgerState
from ops_pipelines.core.identity import ActionKey, JobId, NodeName
from ops_pipelines.core.observation import JobStatus, NodeStatus
from ops_pipelines.core.plan import Order
from ops_pipelines.core.proof import ActProof, Patience, Refusal
from ops_pipelines.core.sources import SourceError, SourceRefused
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.judgement import (
    NO_LEASE,
    ActJudge,
    FreshFacts,
    Lease,
    Verdicts,
    read_facts,
    words_of,
)
from ops_pipelines.remediate.perform import Progress, Stage, new_record, tell_of_faults
from ops_pipelines.remediate.verbs import Scene, send_marks, testify

AT_ONCE_COUNT = 1_000
"""So many are judged on one reading of the cluster: some seconds' worth, within the lease of 15 s."""
COMMANDS_AT_ONCE_COUNT = 100
"""So many commands are sent under one lease.
# Assumption: a busy slurmctld takes ten a second from our senders together, and judging again takes the rest of it."""
_SENDER_COUNT = 4
_ENOUGH_FOR_THREADS = 8


def carry_out_together(
    orders: Sequence[Order], cluster: Cluster, *, lease: Lease, fresh: FreshFacts | None = None
) -> Mapping[ActionKey, Progress]:
    """Begin the acts, send them, read back once what came of them, and return how far each came.

    `fresh` is what the caller has read of the cluster, and done nothing to since: the first acts are judged on it while
    it serves, all others on a reading of their own. Raises SourceError if the scheduler does not list its nodes and
    jobs; then nothing was started.
    """
    progress: dict[ActionKey, Progress] = {}
    for number, batch in enumerate(_batches(orders)):
        if number:
            lease.renew(cluster.ledger, cluster.clock.now())
        token = lease.token(cluster.ledger, cluster.clock.now())
        if token is None:
            progress |= {each.action.key: Progress(stage=Stage.WAITING, reason=words_of(NO_LEASE)) for each in batch}
            continue
        verbs = {order.action.verb for order in batch}
        if fresh is not None and fresh.still_serve(verbs, now=cluster.clock.now()):
            facts = fresh.facts
        else:
            facts = read_facts(verbs, cluster)
        fresh = None  # What this batch does to the cluster shows in no reading before it.
        begun, others, verdicts, refused = _begin(batch, facts, cluster, token=token)
        not_taken: dict[ActionKey, str] = {}
        withheld: dict[ActionKey, Refusal] = {}
        _send(begun, facts, cluster, verdicts, not_taken=not_taken, withheld=withheld)
        sent = [record for record in begun if record.action.key not in withheld]
        late = {key: Progress(stage=Stage.WAITING, reason=words_of(why)) for key, why in withheld.items()}
        progress |= others | late | read_back(sent, cluster, refused=not_taken)
        tell_of_faults(refused, cluster, lease=lease)  # Nobody waits for a page.
    return progress


def _batches(orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    """Yield the acts in their order, so many at a time as are judged and sent within one lease."""
    batch: list[Order] = []
    commands: set[tuple[Verb, str]] = set()
    for order in orders:
        command = (order.action.verb, order.action.text)
        is_full = len(batch) == AT_ONCE_COUNT or len(commands | {command}) > COMMANDS_AT_ONCE_COUNT
        if batch and is_full:
            yield batch
            batch, commands = [], set()
        batch.append(order)
        commands.add(command)
    if batch:
        yield batch


def _begin(
    orders: Sequence[Order], facts: ClusterFacts, cluster: Cluster, *, token: str
) -> tuple[list[ActionRecord], dict[ActionKey, Progress], Verdicts, dict[Action, Refusal]]:
    """Write the before-entries; return those that may be sent, what is to be reported of the others, the verdicts, and
    why some were refused."""
    judge = ActJudge(facts, cluster)

    def guard(record: ActionRecord, state: LedgerState) -> Refusal | ActProof | None:
        return judge.judge(record.action, record.plan, state)

    records = [new_record(order.action, cluster, facts, plan=order.plan) for order in orders]
    now = cluster.clock.now()
    verdicts = Verdicts(guard, facts, cluster, token=token, given_at=now)
    answers = cluster.ledger.begin_all(records, guard=guard, lease_token=token, actor=AUTOPILOT, now=now)
    begun: list[ActionRecord] = []
    others: dict[ActionKey, Progress] = {}
    refused: dict[Action, Refusal] = {}
    for record, answer in zip(records, answers, strict=True):
        if isinstance(answer, Begun):
            begun.append(answer.record)
        elif isinstance(answer, Refusal):
            refused[record.action] = answer
            stage = Stage.WAITING if answer.patience is Patience.WAIT else Stage.FAILED
            others[record.action.key] = Progress(stage=stage, reason=words_of(answer))
        else:
            others[record.action.key] = Progress(stage=Stage.UNDER_WAY, reason="started before; its witness is next")
    return begun, others, verdicts, refused


def _send(
    begun: Sequence[ActionRecord],
    facts: ClusterFacts,
    cluster: Cluster,
    verdicts: Verdicts,
    *,
    not_taken: dict[ActionKey, str],
    withheld: dict[ActionKey, Refusal],
) -> None:
    """Send one command a verb and reason.

    `not_taken` gets what the scheduler refused, with its words; `withheld` what was not sent, because its verdict was
    taken back between the before-entry and the command.
    """
    alike: dict[tuple[Verb, str], list[ActionRecord]] = {}
    for record in begun:
        alike.setdefault((record.action.verb, record.action.text), []).append(record)

    def send(group: Sequence[ActionRecord]) -> None:
        late = verdicts.taken_back(group, sending=0)
        for key in late:
            cluster.ledger.withhold(key, sending=0, actor=AUTOPILOT, now=cluster.clock.now())
        withheld.update(late)
        actions = [record.action for record in group if record.action.key not in late]
        try:
            if not actions:
                pass
            elif actions[0].verb is Verb.DRAIN:
                nodes = [action.node for action in actions if action.node is not None]
                cluster.scheduler.drain(nodes, reason=actions[0].text)
            else:
                send_marks(actions, cluster, facts)
        except SourceRefused as problem:
            if len(actions) == 1:
                not_taken[actions[0].key] = str(problem)
            else:  # One bad node must not cost the others their drain.
                for record in group:
                    if record.action.key not in late:
                        send([record])
        except SourceError:
            pass  # No answer is not a no.

    if len(alike) < _ENOUGH_FOR_THREADS:
        for group in alike.values():
            send(group)
    else:
        with ThreadPoolExecutor(_SENDER_COUNT) as senders:
            list(senders.map(send, alike.values()))


def read_back(
    begun: Sequence[ActionRecord], cluster: Cluster, *, refused: Mapping[ActionKey, str]
) -> dict[ActionKey, Progress]:
    """Read acts back in one answer, and write down what came of each; what does not show yet stays open.

    `refused` are those that the scheduler did not take, with its words.
    """
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
