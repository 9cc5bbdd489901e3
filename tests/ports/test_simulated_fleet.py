"""The fleet contract on the twin."""

from pathlib import Path

import pytest

from tests.ports.fleet_contract import FleetContract, FleetWorld
from tests.simulator.simulated_world import SimulatedWorld


class TestSimulatedFleet(FleetContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> FleetWorld:
        return SimulatedWorld(tmp_path)
