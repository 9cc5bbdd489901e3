"""Which waiting jobs are kept off nodes that soak: a wide one would lose all its nodes' work with the first. Pure.

Only canaries are spared wide jobs. Later waves are too large for it: wide jobs would find no place at all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.rollout import FINAL, Direction, NodeStage, Rollout, RolloutNode, is_canary

_NEW = frozenset({NodeStage.RETURNING, NodeStage.SOAKING})
_MOST_JOBS = 50
"""# Assumption: whoever waits behind so many wide jobs does not start while canaries soak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangCap:
    """What has to be asked of the scheduler so that nodes that soak carry narrow jobs only."""

    keep_off: Mapping[JobId, tuple[NodeName, ...]]
    """Waiting jobs, and the nodes that each is to be kept off from now on."""
    let_on: Mapping[JobId, tuple[NodeName, ...]]
    """Waiting jobs that we kept off nodes which soak no more."""
    kept_off: Mapping[JobId, tuple[NodeName, ...]]
    """What the rollout remembers when both are done; jobs that started or ended are forgotten."""


def gang_cap(
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    jobs: Sequence[JobStatus],
    *,
    limits: RolloutLimits,
    gpus_per_node: int,
) -> GangCap:
    """Return what changes. A node that the job's owner excluded was never ours to give back."""
    soaking = {each.node for each in nodes if _is_new_canary(each, rollout)}
    keep_off: dict[JobId, tuple[NodeName, ...]] = {}
    let_on: dict[JobId, tuple[NodeName, ...]] = {}
    kept_off: dict[JobId, tuple[NodeName, ...]] = {}
    waiting = [job for job in jobs if job.state is JobState.PENDING]
    wide = [job for job in waiting if job.gpu_count > limits.gang_cap_node_count * gpus_per_node]
    for job in waiting:
        ours = frozenset(rollout.kept_off.get(job.job, ()))
        over = sorted((ours - soaking) & job.excluded_nodes)
        if over:
            let_on[job.job] = tuple(over)
        if ours & soaking:
            kept_off[job.job] = tuple(sorted(ours & soaking))
    for job in wide[:_MOST_JOBS]:
        new = sorted(soaking - job.excluded_nodes)
        if new:
            keep_off[job.job] = tuple(new)
            kept_off[job.job] = tuple(sorted({*kept_off.get(job.job, ()), *new}))
    return GangCap(keep_off=keep_off, let_on=let_on, kept_off=kept_off)


def _is_new_canary(node: RolloutNode, rollout: Rollout) -> bool:
    # One that a person ended leaves its canaries as they are: nobody watches them any more.
    is_watched = rollout.state not in FINAL and is_canary(node, rollout)
    return is_watched and node.stage in _NEW and node.direction is Direction.FORWARD
