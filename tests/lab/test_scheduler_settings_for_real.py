"""The scheduler-settings contract on a real Slurm with slurmdbd."""

from collections.abc import Iterator
from datetime import datetime

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.scheduler import SchedulerSettings
from ops_pipelines.resources.slurm.quotas import SlurmSettings
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from tests.lab.slurm_server import start_cluster
from tests.ports.scheduler_settings_contract import SchedulerSettingsContract, SettingsWorld

pytestmark = pytest.mark.live


class SlurmSettingsWorld:
    """Fits SettingsWorld."""

    partitions = frozenset({"batch"})

    def __init__(self, cluster: SlurmCluster) -> None:
        self.settings: SchedulerSettings = SlurmSettings(clock=SystemClock(), slurm_conf=cluster.settings.slurm_conf)

    def now(self) -> datetime:
        return SystemClock().now()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=1) as started:
        yield started


class TestSlurmSettings(SchedulerSettingsContract):
    @pytest.fixture
    def world(self, cluster: SlurmCluster) -> SettingsWorld:
        return SlurmSettingsWorld(cluster)


def test_a_real_slurm_shows_its_qos(cluster: SlurmCluster) -> None:
    read = SlurmSettingsWorld(cluster).settings.read()

    assert (read.unread, "normal" in read.qos) == ((), True)
