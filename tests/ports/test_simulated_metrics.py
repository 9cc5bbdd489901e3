"""The metrics contract on the twin."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from ops_pipelines.core.sources import Query
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from tests.ports.metrics_contract import MetricsContract, MetricsWorld, newest, read
from tests.simulator.small_cluster import SERVICE, TRAINING, SmallCluster


class SimulatedMetricsWorld:
    def __init__(self, directory: Path) -> None:
        self.cluster = SmallCluster(directory, TRAINING, SERVICE)
        self.metrics = SimulatedMetrics(self.cluster.twin)
        self.queries: Sequence[Query] = ()
        self.history_begins_at: datetime = self.cluster.clock.now()
        self.cluster.clock.wait(63.0)

    def now(self) -> datetime:
        return self.cluster.clock.now()

    def let_pass(self, seconds: float) -> None:
        self.cluster.clock.wait(seconds)


class TestSimulatedMetrics(MetricsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> MetricsWorld:
        return SimulatedMetricsWorld(tmp_path)

    def test_the_beginning_itself_is_the_first_time(self, world: MetricsWorld) -> None:
        begins = world.history_begins_at

        assert {point.at for point in read(world, begins.replace(hour=begins.hour - 1), begins)} == {begins}

    def test_what_is_still_to_come_is_not_told(self, world: MetricsWorld) -> None:
        later = newest(world).replace(hour=23)

        assert {point.at for point in read(world, newest(world), later)} == {newest(world)}
        assert read(world, later, later) == []

    def test_a_range_that_is_off_the_grid_is_an_error_of_the_caller(self, world: MetricsWorld) -> None:
        with pytest.raises(ValueError, match="whole steps"):
            read(world, world.now(), world.now())
