"""The logs contract on the twin."""

from pathlib import Path

import pytest

from tests.ports.logs_contract import LogsContract, LogsWorld
from tests.simulator.simulated_world import SimulatedWorld


class TestSimulatedLogs(LogsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> LogsWorld:
        return SimulatedWorld(tmp_path)
