"""The scheduler contract, and what only Slurm does, on a real Slurm."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.domain.observation import Workload
from ops_pipelines.drills.daemon_processes import wait_until
from ops_pipelines.drills.slurm_cluster import SlurmCluster
from ops_pipelines.ports.scheduler import Scheduler
from ops_pipelines.resources.slurm import SlurmScheduler
from tests.lab.slurm_server import start_cluster
from tests.ports.scheduler_contract import SchedulerContract, SchedulerWorld

pytestmark = pytest.mark.live


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

    def submit(self, *, name: str, node_count: int, workload: Workload) -> JobId:
        comment = f"workload={workload.value}"
        jobs = self.cluster.settings.directory / "jobs"
        return self.cluster.submit_training(
            name=name, node_count=node_count, comment=comment, checkpoint=jobs / "checkpoint"
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
