"""Nodes and jobs as the pretended scheduler lists them: its beliefs in the words of the port."""

from datetime import datetime, timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.jobs import Job
from ops_pipelines_lab.simulator.world import World


def node_status(world: World, node: Node, gpu_in_use_count: int) -> NodeStatus:
    """Return how the scheduler sees a node."""
    record = world.controller.records[node.name]
    if record.is_down:
        state = NodeState.DOWN
    elif gpu_in_use_count == 0:
        state = NodeState.IDLE
    else:
        state = NodeState.ALLOCATED if gpu_in_use_count == len(node.gpus) else NodeState.MIXED
    return NodeStatus(
        node=node.name,
        state=state,
        is_drained=record.is_drained,
        is_responding=record.is_responding,
        reason=record.reason,
        reason_set_at=record.reason_set_at,
        booted_at=record.booted_at,
        gpu_count=len(node.gpus),
        gpu_in_use_count=gpu_in_use_count,
        partitions=world.controller.partitions_of(node.name),
        is_last_choice=record.is_last_choice,
        reserved_as=(
            world.controller.reservations.name_of(node.name)
            or world.controller.reservations.booking_of(node.name, at=world.now)
        ),
    )


def _nodes(job: Job) -> frozenset[NodeName]:
    if job.state is JobState.PENDING:
        return frozenset()
    return frozenset(job.allocation or job.last_nodes)


def job_status(job: Job, now: datetime) -> JobStatus:
    """Return how the scheduler sees a job."""
    spec = job.spec
    interval_seconds = spec.declared_interval_seconds
    if interval_seconds is None and spec.checkpointing is Checkpointing.YES:
        interval_seconds = spec.checkpoint_interval_seconds
    ends_by = None
    if spec.time_limit_seconds is not None and job.started_at is not None and job.is_running:
        ends_by = job.started_at + timedelta(seconds=spec.time_limit_seconds)
    return JobStatus(
        job=job.job,
        state=job.state,
        is_held=job.is_held,
        is_requeueable=job.spec.is_requeueable,
        name=job.spec.name,
        user=job.spec.user,
        account=job.spec.account,
        workload=job.spec.workload,
        nodes=_nodes(job),
        gpu_count=job.gpu_count,
        started_at=job.started_at,
        ended_at=job.ended_at,
        restart_count=job.restart_count,
        excluded_nodes=frozenset(job.excluded),
        checkpointed_at=job.checkpointed_at(now),
        checkpointing=spec.checkpointing,
        checkpoint_every=None if interval_seconds is None else timedelta(seconds=interval_seconds),
        partition=spec.partition,
        ends_by=ends_by,
        service=spec.service,
        min_serving_count=spec.min_serving_count,
        checkpoint=spec.checkpoint,
    )
