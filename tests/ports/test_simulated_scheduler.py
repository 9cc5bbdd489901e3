"""The scheduler contract on the twin."""

from pathlib import Path

import pytest

from tests.ports.scheduler_contract import SchedulerContract, SchedulerWorld
from tests.simulator.simulated_world import SimulatedWorld


class TestSimulatedScheduler(SchedulerContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> SchedulerWorld:
        return SimulatedWorld(tmp_path)
