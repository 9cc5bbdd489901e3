"""What is really so in the simulated cluster: for live views, end checks and tests, never for the program under test.

Reads only. What the scheduler or the metrics *say* is read through the ports, in `adapters`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import ActionKey, JobAttempt, JobId, NodeName
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, Workload
from ops_pipelines_lab.simulator.hardware import Node
from ops_pipelines_lab.simulator.jobs import EndCause, Job, Loss, ServingChange, SplitBrain
from ops_pipelines_lab.simulator.reservations import Reservation
from ops_pipelines_lab.simulator.twin import Twin
from ops_pipelines_lab.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far one job really is."""

    job: JobId
    name: str
    user: str
    account: str
    workload: Workload
    state: JobState
    is_held: bool
    is_hung: bool
    """It runs and makes no progress, for want of a GPU, a node or a process."""
    has_ended_for_good: bool
    """It is over, or will be once it has completed: it does not start again, whatever is commanded."""
    gpu_count: int
    nodes: tuple[NodeName, ...]
    step_count: int
    """Steps done, those of earlier attempts included as far as they were checkpointed."""
    checkpointed_step_count: int
    """Steps in the newest checkpoint: where a restart would continue."""
    checkpointed_at: datetime | None
    restart_count: int
    writers: frozenset[JobAttempt]
    """Attempts that have processes now. Two of them corrupt a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTruth:
    """What is really so on one node."""

    node: NodeName
    rack: str
    is_powered: bool
    is_up: bool
    """Its kernel runs."""
    answers: bool
    is_healthy: bool
    """It answers, and no GPU has a fault."""
    faults: tuple[str, ...]
    """One sentence each; empty if healthy."""
    boot_count: int
    """1 before the first reboot or power cycle."""
    attempts: frozenset[JobAttempt]
    """Attempts with processes there, whatever the scheduler believes."""
    defects: tuple[str, ...]
    """What is broken until it is cured, shown or not, one sentence each."""
    is_last_choice: bool
    reserved_as: str | None
    running_checks: tuple[ActionKey, ...]

    @property
    def is_well(self) -> bool:
        """Return whether it is healthy and will stay so: no defect waits in it."""
        return self.is_healthy and not self.defects


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGpuHours:
    """GPU time that interruptions wasted up to now, measured and not estimated.

    Counted: work since the last checkpoint when an attempt ended, its warm-up, which the next goes through again, and
    the time in which an attempt hung, running hangs included. Not counted: GPUs that stood idle while a job waited or
    a node was repaired.
    """

    unsaved: float
    hung: float
    by_cause: Mapping[EndCause, float]
    """Of the attempts that have ended."""
    warm_up: float = 0.0

    @property
    def total(self) -> float:
        return self.unsaved + self.hung + self.warm_up


def read_progress(twin: Twin) -> tuple[JobProgress, ...]:
    """Return every job that the scheduler still knows, in the order of submission."""
    with twin.present() as world:
        return tuple(_progress(world, job) for job in world.controller.jobs.values())


def read_nodes(twin: Twin) -> tuple[NodeTruth, ...]:
    """Return every node."""
    with twin.present() as world:
        return tuple(_truth(world, node) for node in world.hardware.nodes.values())


def read_lost_gpu_hours(twin: Twin) -> LostGpuHours:
    """Return what has been lost since the twin began."""
    with twin.present() as world:
        losses, jobs, now = world.controller.losses, world.controller.jobs.values(), world.now
        by_cause = {
            cause: sum((loss.gpu_hours for loss in losses if loss.cause is cause), start=0.0) for cause in EndCause
        }
        hanging = [job for job in jobs if job.hung_at is not None]
        return LostGpuHours(
            unsaved=sum(loss.unsaved_gpu_hours for loss in losses) + sum(job.unsaved_gpu_hours(now) for job in hanging),
            hung=sum(loss.hung_gpu_hours for loss in losses) + sum(job.hung_gpu_hours(now) for job in hanging),
            by_cause=by_cause,
            warm_up=sum(loss.warm_up_gpu_hours for loss in losses),
        )


def read_losses(twin: Twin) -> tuple[Loss, ...]:
    """Return one loss per interrupted attempt, in the order of their ends."""
    with twin.present() as world:
        return tuple(world.controller.losses)


def read_split_brains(twin: Twin) -> tuple[SplitBrain, ...]:
    """Return every moment since the beginning at which a job got a second writer; empty if that never happened."""
    with twin.present() as world:
        return tuple(world.controller.split_brains)


def read_reservations(twin: Twin) -> tuple[Reservation, ...]:
    """Return what is kept free now, in the order of the names."""
    with twin.present() as world:
        return world.controller.reservations.all()


def read_serving(twin: Twin) -> tuple[ServingChange, ...]:
    """Return every change in the number of serving replicas, of each service that any job ever declared."""
    with twin.present() as world:
        return tuple(world.serving.changes)


def read_broken_minimums(twin: Twin) -> tuple[ServingChange, ...]:
    """Return the moments at which a command left a service with less than it declares; empty if that never happened."""
    return tuple(change for change in read_serving(twin) if change.breaks_minimum_by_command)


def _progress(world: World, job: Job) -> JobProgress:
    saved = job.checkpointed_work(world.now)
    done = job.saved_work + job.fresh_work(world.now)
    return JobProgress(
        job=job.job,
        name=job.spec.name,
        user=job.spec.user,
        account=job.spec.account,
        workload=job.spec.workload,
        state=job.state,
        is_held=job.is_held,
        is_hung=job.hung_at is not None,
        has_ended_for_good=job.has_ended_for_good,
        gpu_count=job.gpu_count,
        nodes=tuple(job.allocation) if job.state in HAS_PROCESSES else (),
        step_count=int(done.total_seconds() / job.spec.step_seconds),
        checkpointed_step_count=int(saved.total_seconds() / job.spec.step_seconds),
        checkpointed_at=job.checkpointed_at(world.now),
        restart_count=job.restart_count,
        writers=world.hardware.writers_of(job.job),
    )


def _truth(world: World, node: Node) -> NodeTruth:
    return NodeTruth(
        node=node.name,
        rack=node.rack,
        is_powered=node.is_powered,
        is_up=node.is_up,
        answers=node.answers,
        is_healthy=node.is_healthy,
        faults=tuple(_faults(node)),
        boot_count=node.boot_count,
        attempts=frozenset(node.processes),
        defects=tuple(defect.sentence for defect in world.faults.defects.of(node.name)),
        is_last_choice=world.controller.records[node.name].is_last_choice,
        reserved_as=world.controller.reservations.name_of(node.name),
        running_checks=world.checks.running_on(node),
    )


def _faults(node: Node) -> list[str]:
    found = []
    if not node.is_powered:
        found.append("it has no power")
    elif not node.is_up:
        found.append("it is booting")
    if node.is_wedged:
        found.append("it answers nobody until its power is cut")
    if node.cut_off_until is not None:
        found.append("the network to it is down")
    if node.links_down_until is not None:
        found.append("its links to the fabric are down")
    found += [
        f"the process of job {process.attempt.job} makes no steps"
        for process in node.processes.values()
        if process.is_stopped
    ]
    found += [
        f"the process of job {process.attempt.job} cannot be killed"
        for process in node.processes.values()
        if process.is_unkillable
    ]
    for gpu in node.gpus:
        if not gpu.is_on_bus:
            found.append(f"GPU {gpu.address} has fallen off the bus")
        elif gpu.uncorrectable_ecc_count:
            found.append(f"GPU {gpu.address} has an uncorrectable memory error")
        elif gpu.is_row_remap_pending:
            found.append(f"GPU {gpu.address} has a row of memory to be replaced at its next reset")
        if gpu.is_resetting:
            found.append(f"GPU {gpu.address} is being reset")
    return found
