"""The scheduler contract on the twin."""

from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS
from tests.ports.scheduler_contract import SchedulerContract, SchedulerWorld
from tests.simulator.simulated_world import SimulatedWorld


class TestSimulatedScheduler(SchedulerContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SchedulerWorld:
        return SimulatedWorld(tmp_path)


def test_limits_are_those_by_which_the_twin_gives_nodes_up(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    limits = world.scheduler.read_limits()

    assert limits.silence_limit == timedelta(seconds=SHORT_DURATIONS.slurmd_timeout_seconds)
    assert limits.ping_interval == timedelta(seconds=SHORT_DURATIONS.ping_interval_seconds)
