"""The telemetry contract on the twin."""

from pathlib import Path

import pytest

from tests.ports.telemetry_contract import TelemetryContract, TelemetryWorld
from tests.simulator.simulated_world import SimulatedWorld


class TestSimulatedTelemetry(TelemetryContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> TelemetryWorld:
        return SimulatedWorld(tmp_path)
