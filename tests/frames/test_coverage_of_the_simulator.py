"""Two hours of the simulated cluster: nothing is missing while all is well, and what breaks is one line each."""

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ops_pipelines.lake.metrics.pages import combine, read_page
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.lake.schema import TABLES, TELEMETRY_TABLES
from ops_pipelines.observe.coverage import list_missing, measure_coverage
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.simulator.small_cluster import GPU1, GPU3, TRAINING, SmallCluster

STEP = timedelta(minutes=5)
HOUR = timedelta(hours=1)


class WatchedCluster:
    """A small cluster and what is known of its coverage."""

    def __init__(self, directory: Path) -> None:
        self.cluster = SmallCluster(directory, TRAINING)
        self.metrics = SimulatedMetrics(self.cluster.twin)
        now = self.cluster.clock.now()
        self.hour = (now + HOUR).replace(minute=0, second=0, microsecond=0)
        self.cluster.clock.wait((self.hour - now).total_seconds())
        self.known = TABLES["monitoring_coverage"].arrow().empty_table()

    def watch_an_hour(self) -> list[dict[str, object]]:
        self.cluster.clock.wait(HOUR.total_seconds())
        self.known = measure_coverage(
            self._read(self.hour),
            inventory=TABLES["inventory"].arrow().empty_table(),
            before=self.known,
            hour=self.hour,
            step_seconds=int(STEP.total_seconds()),
            topology=self.cluster.twin.scenario.topology,
        )
        self.hour += HOUR
        return list_missing(self.known)

    def _read(self, hour: datetime) -> dict[str, pa.Table]:
        names = NodeNames([node.name for node in self.cluster.twin.scenario.nodes])
        pages = self.metrics.read_range((), start=hour, end=hour + HOUR - STEP, step_seconds=int(STEP.total_seconds()))
        tables = combine([read_page(page, names=names).parsed for page in pages]).tables
        return {name: rows for name, rows in tables.items() if name in TELEMETRY_TABLES}


@pytest.fixture
def watched(tmp_path: Path) -> WatchedCluster:
    return WatchedCluster(tmp_path)


def test_nothing_is_missing_of_a_healthy_cluster(watched: WatchedCluster) -> None:
    assert watched.watch_an_hour() == []
    assert watched.watch_an_hour() == []


def test_a_fallen_gpu_and_a_dead_node_are_one_line_each(watched: WatchedCluster) -> None:
    watched.watch_an_hour()
    watched.cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=3)
    watched.cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU3)

    lines = watched.watch_an_hour()

    assert [(line["what"], str(line["where"]).split()[0], line["because"]) for line in lines] == [
        ("everything", GPU3, "node silent: nothing comes"),
        ("gpu_telemetry of a device", GPU1, "GPU missing: 7 others of the node report"),
    ]
