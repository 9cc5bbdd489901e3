"""What a rollout owes the cluster when nodes have soaked, or when it is over: nothing is left marked, nobody kept off.

Asked in each pass, and for a day after the end: what the scheduler did not take then is given back later.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.action import Action, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import cause_of
from ops_pipelines.core.observation import JobStatus
from ops_pipelines.core.plan import Order
from ops_pipelines.core.rollout import FINAL, NodeStage, Rollout, RolloutNode, is_canary
from ops_pipelines.domain.lifecycle.gang_cap import gang_cap
from ops_pipelines.remediate.acts.facts import Lease
from ops_pipelines.remediate.acts.perform import perform

OWED_FOR = timedelta(days=1)


def owing(cluster: Cluster) -> tuple[Rollout, ...]:
    """Return the rollouts of the last day that are over and still owe something."""
    over = cluster.ledger.rollouts(final_since=cluster.clock.now() - OWED_FOR)
    return tuple(
        each
        for each in over
        if each.state in FINAL
        and (
            each.kept_off or each.booking or marked_canaries(each, cluster.ledger.rollout_nodes(each.rollout), cluster)
        )
    )


def marked_canaries(rollout: Rollout, nodes: Collection[RolloutNode], cluster: Cluster) -> tuple[RolloutNode, ...]:
    """Return the canaries that are still chosen last although their wave was good, or nothing more comes."""
    found: list[RolloutNode] = []
    for node in nodes:
        is_at_work = node.stage is NodeStage.UPDATED or (node.stage is NodeStage.SOAKING and rollout.state in FINAL)
        if not is_at_work or not is_canary(node, rollout):
            continue
        done = [
            each.action.verb
            for each in cluster.ledger.records_on(cause_of(rollout.rollout), node.node)
            if each.action.verb in (Verb.PUT_LAST, Verb.PUT_BACK)
            and each.outcome is not None
            and each.outcome.kind is OutcomeKind.DONE
        ]
        # Of any pass: who set out for its way back and was given out of hand again still has the mark of the first.
        if done and done[-1] is Verb.PUT_LAST:
            found.append(node)
    return tuple(found)


def put_back_canaries(rollout: Rollout, nodes: Collection[RolloutNode], cluster: Cluster, *, lease: Lease) -> None:
    """Let canaries be chosen like any other node again. Raises as `perform`."""
    for node in marked_canaries(rollout, nodes, cluster):
        put_back = Action(
            verb=Verb.PUT_BACK, incident=cause_of(rollout.rollout), node=node.node, try_number=node.try_number
        )
        perform(Order(action=put_back, behind=rollout.plan), cluster, lease=lease)


def keep_wide_jobs_off(
    rollout: Rollout, nodes: Collection[RolloutNode], jobs: Collection[JobStatus], cluster: Cluster, *, lease: Lease
) -> Rollout:
    """Keep wide waiting jobs off nodes that soak, let them on afterwards; return the rollout as it is then.

    What we are about to exclude is in the ledger before it is sent, and stays there until it was taken back: after a
    crash between the two nobody is kept off without a trace. Raises SourceError, LedgerError.
    """
    cap = gang_cap(
        rollout,
        nodes,
        tuple(jobs),
        limits=cluster.rules.policy.rollouts,
        gpus_per_node=cluster.rules.topology.gpus_per_node,
    )
    before = {
        job: tuple(sorted({*rollout.kept_off.get(job, ()), *cap.kept_off.get(job, ())}))
        for job in {*cap.kept_off, *cap.let_on}
    }
    rollout = _remember(replace(rollout, kept_off=before), rollout, cluster)
    for job, off in cap.keep_off.items():
        lease.require(cluster.ledger, cluster.clock.now())
        cluster.scheduler.exclude(job, off)
    for job, on in cap.let_on.items():
        lease.require(cluster.ledger, cluster.clock.now())
        cluster.scheduler.readmit(job, on)
    return _remember(replace(rollout, kept_off=cap.kept_off), rollout, cluster)


def _remember(after: Rollout, before: Rollout, cluster: Cluster) -> Rollout:
    if after == before:
        return before
    cluster.ledger.change_rollout(after, (), actor=AUTOPILOT, now=cluster.clock.now())
    return after
