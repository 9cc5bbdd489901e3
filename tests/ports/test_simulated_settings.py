"""The scheduler-settings contract on the twin, and on answers that Slurm 22.05 was seen to print."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from ops_pipelines.core.scheduler import SchedulerSettings
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.slurm.quotas import SlurmSettings
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import SimulatedSettings, Twin
from tests.ports.scheduler_settings_contract import SchedulerSettingsContract, SettingsWorld
from tests.simulator.fake_clock import FakeClock

RECORDED = Path(__file__).parents[1] / "data" / "slurm"
ANSWERS = {
    "config": "scontrol-config-22.05-fair-share-and-preemption.txt",
    "partition": "scontrol-partitions-22.05-gpus-billed-and-free.txt",
    "qos": "sacctmgr-qos-22.05-one-preempts-the-others.txt",
}


class SettingsTwin:
    """Four nodes without jobs."""

    def __init__(self, directory: Path) -> None:
        self._clock = FakeClock()
        scenario = Scenario(nodes=cluster_nodes(4), durations=SHORT_DURATIONS)
        self.settings: SchedulerSettings = SimulatedSettings(
            Twin.create(directory, scenario, seed=7, clock=self._clock)
        )
        self.partitions = frozenset(scenario.partitions)

    def now(self) -> datetime:
        return self._clock.now()


class RecordedSlurm:
    """Fits RunCommand: prints what was recorded."""

    partitions = frozenset({"batch", "billed", "typed", "empty"})

    def __init__(self) -> None:
        self._clock = FakeClock()
        self.settings: SchedulerSettings = SlurmSettings(clock=self._clock, run=self)

    def now(self) -> datetime:
        return self._clock.now()

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        (name,) = (name for word, name in ANSWERS.items() if word in argv)
        return CommandAnswer(returncode=0, stdout=(RECORDED / name).read_text(), stderr="")


class TestSimulatedSettings(SchedulerSettingsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SettingsWorld:
        return SettingsTwin(tmp_path / "twin")


class TestRecordedSlurmSettings(SchedulerSettingsContract):
    @pytest.fixture
    def world(self) -> SettingsWorld:
        return RecordedSlurm()
