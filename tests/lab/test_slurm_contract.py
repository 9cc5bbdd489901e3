"""The scheduler contract, and what only Slurm does, on a real Slurm."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import JobAttempt, JobId, NodeName, parse_job_id
from ops_pipelines.core.observation import JobState, JobStatus, Workload
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from tests.lab.slurm_server import start_cluster
from tests.ports.scheduler_contract import LONG_ENOUGH, SOON_SECONDS, SchedulerContract, SchedulerWorld

pytestmark = pytest.mark.live

SLEEP = "exec sleep 600"


class SlurmWorld:
    """A real cluster behind the real adapter."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self._scheduler = SlurmScheduler(clock=SystemClock(), slurm_conf=cluster.settings.slurm_conf)

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        return self.cluster.node_names

    @property
    def partition(self) -> str:
        return "batch"

    def now(self) -> datetime:
        return SystemClock().now()

    def submit(
        self, *, name: str, node_count: int, workload: Workload, time_limit: timedelta = LONG_ENOUGH, comment: str = ""
    ) -> JobId:
        jobs = self.cluster.settings.directory / "jobs"
        return self.cluster.submit_training(
            name=name,
            node_count=node_count,
            comment=f"workload={workload.value} {comment}",
            checkpoint=jobs / "checkpoint",
            time_limit=time_limit,
        )

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        wait_until("the scheduler", predicate, timeout_seconds=timeout_seconds)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=4) as started:
        yield started


class TestSlurmScheduler(SchedulerContract):
    @pytest.fixture
    def world(self, cluster: SlurmCluster) -> SchedulerWorld:
        cluster.clear()
        return SlurmWorld(cluster)

    def test_limits_are_those_of_the_running_slurm(self, cluster: SlurmCluster) -> None:
        limits = SlurmWorld(cluster).scheduler.read_limits()

        assert limits.silence_limit == timedelta(seconds=cluster.settings.slurmd_timeout_seconds)
        assert limits.answer_limit == timedelta(seconds=10)
        assert not limits.is_every_down_node_returned
        assert limits.is_requeue_the_default

    # -- arrays --

    def test_moved_array_task_keeps_its_name_and_no_other_task_is_touched(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        array = sbatch(cluster, "--array=0-2", "--gres=gpu:8")
        tasks = [parse_job_id(f"{array}_{number}") for number in range(3)]
        world.wait_until(lambda: all(state_of(world, task) is JobState.RUNNING for task in tasks), SOON_SECONDS)
        before = {job.job: job for job in world.scheduler.read_jobs()}
        moved = tasks[2]  # Slurm gave it the number of the array itself
        (bad,) = before[moved].nodes

        world.scheduler.hold(moved)
        world.wait_until(lambda: state_of(world, moved) is JobState.PENDING, SOON_SECONDS)
        world.scheduler.exclude(moved, [bad])
        world.scheduler.release(moved)
        world.wait_until(lambda: state_of(world, moved) is JobState.RUNNING, SOON_SECONDS)

        after = {job.job: job for job in world.scheduler.read_jobs()}
        assert (after[moved].restart_count, after[moved].excluded_nodes) == (1, {bad})
        assert bad not in after[moved].nodes
        assert [after[task] for task in tasks[:2]] == [before[task] for task in tasks[:2]]

    def test_waiting_tasks_of_an_array_are_refused_by_either_name(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        array = sbatch(cluster, "--array=0-3%1", "--gres=gpu:8")
        task = parse_job_id(f"{array}_0")
        world.wait_until(lambda: state_of(world, task) is JobState.RUNNING, SOON_SECONDS)
        before = world.scheduler.read_jobs()

        for name in (array, parse_job_id(f"{array}_waiting"), parse_job_id(f"{array}_2")):
            with pytest.raises(SourceRefused):
                world.scheduler.hold(name)

        assert {job.job: job for job in world.scheduler.read_jobs()} == {job.job: job for job in before}

    # -- heterogeneous jobs --

    def test_heterogeneous_job_moves_as_a_whole_whichever_component_is_named(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        job = sbatch(cluster, "--gres=gpu:8", ":", "-N1", "--gres=gpu:4")
        component = parse_job_id(str(int(job) + 1))
        world.wait_until(lambda: state_of(world, job) is JobState.RUNNING, SOON_SECONDS)
        before = job_of(world, job)
        bad = sorted(before.nodes)

        world.scheduler.hold(component)
        world.wait_until(lambda: state_of(world, job) is JobState.PENDING, SOON_SECONDS)
        held = job_of(world, job)
        world.scheduler.exclude(component, bad)
        world.scheduler.release(component)
        world.wait_until(lambda: state_of(world, job) is JobState.RUNNING, SOON_SECONDS)

        after = job_of(world, job)
        assert (len(bad), before.gpu_count, held.is_held) == (2, 12, True)
        assert after.excluded_nodes == before.nodes
        assert not after.nodes & before.nodes
        assert (len(after.nodes), after.gpu_count, after.is_held) == (2, 12, False)

    # -- marks --

    def test_marks_name_one_task_and_the_leader_alone(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        array = sbatch(cluster, "--array=0-1", "--gres=gpu:8")
        task, other = (parse_job_id(f"{array}_{number}") for number in (1, 0))  # the last one has the array's number
        whole = sbatch(cluster, "--gres=gpu:8", ":", "-N1", "--gres=gpu:4")
        component = parse_job_id(str(int(whole) + 1))
        jobs = (task, other, whole)
        world.wait_until(lambda: all(state_of(world, job) is JobState.RUNNING for job in jobs), SOON_SECONDS)
        before = {job: job_of(world, job) for job in jobs}

        world.scheduler.mark([attempt_of(world, task), replace(attempt_of(world, whole), job=component)])
        marked = {job: job_of(world, job).is_held for job in jobs}
        world.scheduler.unmark({task: None, component: None})

        assert marked == {task: True, other: False, whole: True}
        assert {job: job_of(world, job) for job in jobs} == before

    def test_priority_of_an_administrator_is_brought_back_and_a_users_hold_is_let_be(
        self, cluster: SlurmCluster
    ) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        urgent, held = (sbatch(cluster, "--gres=gpu:8") for _ in range(2))
        jobs = (urgent, held)
        world.wait_until(lambda: all(state_of(world, job) is JobState.RUNNING for job in jobs), SOON_SECONDS)
        ask(cluster, "scontrol", "update", f"JobId={urgent}", "Priority=4294960000")
        before = {job: job_of(world, job).priority for job in jobs}

        world.scheduler.mark([attempt_of(world, job) for job in jobs])
        ask(cluster, "scontrol", "uhold", held)
        world.scheduler.unmark(before)

        assert before[urgent] == 4294960000
        assert (job_of(world, urgent).priority, job_of(world, urgent).is_held) == (4294960000, False)
        assert (job_of(world, held).is_held, job_of(world, held).is_held_by_user) == (True, True)

    def test_marked_job_of_a_node_that_slurm_gives_up_waits_held(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        job = sbatch(cluster, "--gres=gpu:8")
        world.wait_until(lambda: state_of(world, job) is JobState.RUNNING, SOON_SECONDS)
        (node,) = job_of(world, job).nodes
        world.scheduler.mark([attempt_of(world, job)])

        ask(cluster, "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        world.wait_until(lambda: state_of(world, job) is JobState.PENDING, SOON_SECONDS)
        waits = job_of(world, job)
        world.scheduler.release(job)

        assert waits.is_held
        world.wait_until(lambda: state_of(world, job) is JobState.RUNNING, SOON_SECONDS)

    # -- what Slurm forgets --

    def test_reconfigured_slurm_forgets_who_was_put_last_and_it_can_be_done_again(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = SlurmWorld(cluster)
        node = cluster.node_names[0]
        world.scheduler.put_last(node)

        ask(cluster, "scontrol", "reconfigure")

        world.wait_until(lambda: not any(each.is_last_choice for each in world.scheduler.read_nodes()), SOON_SECONDS)
        world.scheduler.put_last(node)
        assert [each.node for each in world.scheduler.read_nodes() if each.is_last_choice] == [node]


def ask(cluster: SlurmCluster, *argv: str) -> str:
    return subprocess.run(
        argv, env=cluster.client_environment, capture_output=True, text=True, timeout=SOON_SECONDS, check=True
    ).stdout


def sbatch(cluster: SlurmCluster, *words: str) -> JobId:
    """Submit a job that sleeps, with its own words and a script from the command line."""
    answer = ask(cluster, "sbatch", "--parsable", "--requeue", "--output=/dev/null", *words, f"--wrap={SLEEP}")
    return parse_job_id(answer.strip())


def job_of(world: SlurmWorld, job: JobId) -> JobStatus:
    return next(status for status in world.scheduler.read_jobs() if status.job == job)


def attempt_of(world: SlurmWorld, job: JobId) -> JobAttempt:
    attempt = job_of(world, job).attempt
    assert attempt is not None
    return attempt


def state_of(world: SlurmWorld, job: JobId) -> JobState | None:
    return next((status.state for status in world.scheduler.read_jobs() if status.job == job), None)
