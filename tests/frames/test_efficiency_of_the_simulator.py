"""An hour of the simulated cluster, read as metrics are read: each load gets the verdict that it should."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.efficiency.verdicts import read_efficiency
from ops_pipelines.lake.metrics.pages import combine, read_page
from ops_pipelines.lake.node_names import NodeNames
from ops_pipelines.lake.schema import TABLES
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from ops_pipelines_lab.simulator.load import Load
from tests.simulator.small_cluster import SESSION, TRAINING, SmallCluster

STEP = timedelta(minutes=5)
EXPECTED = {
    Load.TRAINING: ("tensor_bound", "tensor_pipes"),
    Load.INFERENCE: ("memory_bound", "memory_traffic"),
    Load.BATCH: ("compute_bound", "sms_at_work"),
    Load.INTERACTIVE: ("input_stalled", "starved"),
    Load.INPUT_STALLED: ("input_stalled", "starved"),
    Load.COMMUNICATION_BOUND: ("communication_bound", "fabric_full"),
    Load.HUNG: ("communication_bound", "spinning_collective"),
    Load.IDLE: ("idle", "idle_nothing_runs"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[object, object, object]]:
    """Return (load or '', node) -> verdict, rule, GPUs: one node for each load, one shared by a session, one free."""
    specs = [replace(TRAINING, name=load.value, node_count=1, load=load) for load in EXPECTED]
    cluster = SmallCluster(tmp_path_factory.mktemp("twin"), *specs, SESSION, node_count=len(specs) + 2)
    hour = (cluster.clock.now() + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    cluster.clock.wait((hour - cluster.clock.now()).total_seconds() + 3600)
    names = NodeNames([node.name for node in cluster.twin.scenario.nodes])
    pages = SimulatedMetrics(cluster.twin).read_range(
        (), start=hour, end=hour + timedelta(hours=1) - STEP, step_seconds=int(STEP.total_seconds())
    )
    tables = combine([read_page(page, names=names).parsed for page in pages]).tables
    loads = dict(zip(cluster.jobs, [*(spec.name for spec in specs), SESSION.name], strict=True))
    allocations = TABLES["job_allocations"].from_rows(
        {
            "job": loads[status.job],
            "attempt": "a",
            "node": node,
            "time": hour,
            "started_at": cluster.twin.began_at,
            "gpu_count": 1.0 if loads[status.job] == SESSION.name else 8.0,
        }
        for status in cluster.scheduler.read_jobs()
        for node in status.nodes
    )
    found = read_efficiency(
        tables["gpu_telemetry"], fabric=tables["fabric_telemetry"], allocations=allocations, hour=hour
    )
    return {
        (str(row["job"]), str(row["node"])): (row["verdict"], row["rule"], row["gpu_count"])
        for row in found.to_pylist()
    }


@pytest.mark.parametrize("load", EXPECTED, ids=lambda load: load.value)
def test_each_load_is_read_as_what_it_is(
    verdicts: dict[tuple[str, str], tuple[object, object, object]], load: Load
) -> None:
    (found,) = (value for (job, _), value in verdicts.items() if job == load.value)

    assert found == (*EXPECTED[load], 8)


def test_a_session_has_one_gpu_and_the_others_of_its_node_are_free(
    verdicts: dict[tuple[str, str], tuple[object, object, object]],
) -> None:
    ((node, found),) = ((node, value) for (job, node), value in verdicts.items() if job == SESSION.name)

    assert found == ("input_stalled", "starved", 1)
    assert verdicts["", node] == ("idle", "idle_nothing_runs", 7)
