"""Demand as Dagster fills it: from a small twin on which a job waits, by the hour and by the local day."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.definitions import defs as load_definitions
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines_lab.simulator.accounting import SimulatedAccounting
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.flow.fake_store import observatory_on, topology_of
from tests.ports.lake_samples import cells
from tests.shell.lake_runs import Run, fill, lake_definitions
from tests.simulator.fake_clock import BEGINNING, FakeClock

NOW = datetime(2026, 1, 2, 1, 30, tzinfo=UTC)
LAST = datetime(2026, 1, 2, 2, tzinfo=UTC)
"""The hour that is over when it is filled."""
ASSETS = ["job_accounting", "job_allocations", "gpu_demand"]
AGREED = Agreements(
    parents={TeamName("science"): None, TeamName("silent"): None},
    contracts=(Contract(terms=Terms(team=TeamName("science"), guarantee=0.0), valid_from=date(2026, 1, 1)),),
)


def job(name: str, account: str, nodes: int) -> JobSpec:
    return JobSpec(name=name, user="u", account=account, workload=Workload.TRAINING, node_count=nodes)


class Simulated:
    """Four nodes: research holds three from half past one on, science asks for two at a quarter to three."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.clock.set_back((BEGINNING - NOW).total_seconds())
        scenario = Scenario(nodes=cluster_nodes(4), durations=SHORT_DURATIONS)
        self.twin = Twin.create(directory / "twin", scenario, seed=7, clock=self.clock)
        self.twin.submit(job("wide", "research", 3))
        self.clock.wait(75 * 60)
        self.waiting = self.twin.submit(job("waits", "science", 2))
        self.clock.wait(17 * 60)
        base = observatory_on(
            directory / "lake",
            SimulatedMetrics(self.twin),
            clock=self.clock,
            scheduler=SimulatedScheduler(self.twin),
            topology=topology_of("gpu001", "gpu002", "gpu003", "gpu004"),
        )
        self.observatory: Observatory = replace(base, accounting=SimulatedAccounting(self.twin))

    @property
    def lake(self) -> ParquetLake:
        assert isinstance(self.observatory.lake, ParquetLake)
        return self.observatory.lake

    def fill(self, *hours: datetime, agreements: Agreements | None = AGREED) -> Run:
        return fill(self.observatory, *hours, clock=self.clock, assets=ASSETS, agreements=agreements)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated(tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="module")
def run(simulated: Simulated) -> Run:
    return simulated.fill(LAST)


def test_an_hour_says_who_ran_and_who_waited(simulated: Simulated, run: Run) -> None:
    assert run.is_success, run.errors

    found = {
        team: numbers
        for team, *numbers in cells(
            simulated.lake.read_hour("gpu_demand", LAST),
            *("team", "gpus_running_avg", "gpus_pending_avg", "gpus_demand_avg", "gpus_ran_last"),
        )
    }

    assert found == {
        "research": [24.0, 0.0, 24.0, 24.0],
        "science": [0.0, 4.0, 4.0, 0.0],
        "silent": [0.0, 0.0, 0.0, 0.0],
    }


def test_the_hour_passes_its_checks_and_a_team_that_nobody_declared_is_named(run: Run) -> None:
    assert run.checks["gpu_demand", "hard_gates"]
    assert run.checks["gpu_demand", "expected_data"]
    assert not run.checks["gpu_demand", "teams_are_declared"]
    assert [record.data for record in run.metadata("gpu_demand")["not_in_teams_file"].records] == [  # type: ignore[attr-defined]
        {"team": "research"}
    ]


def test_without_a_file_of_teams_nobody_is_named(simulated: Simulated) -> None:
    run = simulated.fill(LAST, agreements=None)

    assert run.is_success, run.errors
    assert run.checks["gpu_demand", "teams_are_declared"]


def test_a_wait_that_has_ended_since_is_the_same_when_the_hour_is_filled_again(tmp_path: Path) -> None:
    simulated = Simulated(tmp_path)
    first = simulated.fill(LAST)
    before = cells(simulated.lake.read_hour("gpu_demand", LAST))

    simulated.twin.command(EntryKind.CANCEL, job=simulated.waiting)
    simulated.clock.wait(3600)
    second = simulated.fill(LAST, LAST + HOUR)

    assert first.is_success, first.errors
    assert second.is_success, second.errors
    assert cells(simulated.lake.read_hour("gpu_demand", LAST)) == before
    # It gave up two minutes into the next hour.
    (waited,) = (
        pending
        for team, pending in cells(simulated.lake.read_hour("gpu_demand", LAST + HOUR), "team", "gpus_pending_avg")
        if team == "science"
    )
    assert waited == pytest.approx(16 * 2 / 60, abs=0.1)


def test_a_day_is_summed_with_a_picture_and_what_is_missing(simulated: Simulated, run: Run) -> None:
    simulated.clock.set_back(-timedelta(days=1).total_seconds())
    with dg.DagsterInstance.ephemeral() as instance:
        definitions = lake_definitions(simulated.observatory, clock=simulated.clock, agreements=AGREED)
        done = definitions.resolve_job_def("sum_demand").execute_in_process(
            instance=instance,
            partition_key="2026-01-02",
            asset_selection=[dg.AssetKey("gpu_demand_daily")],
            raise_on_error=False,
        )
    (stored,) = done.get_asset_materialization_events()
    shown = {name: value.value for name, value in stored.materialization.metadata.items()}

    assert done.success
    assert shown["day"] == "2026-01-02, 24 hours, UTC"
    assert shown["missing_hour_count"] == 23
    assert str(shown["demand"]).startswith("![GPU-hours of a day by team](data:image/")
    assert "24 GPU-hours ran" in str(shown["demand"])
    assert {record.data["team"]: record.data["pending_gpu_hours"] for record in shown["teams"].records} == {  # type: ignore[union-attr]
        "research": 0.0,
        "science": 4.0,
    }


@pytest.mark.parametrize("hour", [1, 13])
def test_the_day_before_is_summed_twice(hour: int) -> None:
    repository = load_definitions().get_repository_def()
    with dg.instance_for_test() as instance:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=datetime(2026, 11, 21, hour, 25, tzinfo=UTC),
            repository_def=repository,
        )
        requests = repository.get_schedule_def("demand_schedule").evaluate_tick(context).run_requests or ()

    assert [(each.partition_key, each.run_key) for each in requests] == [("2026-11-20", f"2026-11-20 at {hour:02}")]
