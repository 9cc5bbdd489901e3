"""The lake's assets as Dagster runs them: hours one by one, many in one run, the running one, and what blocks what."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster._core.definitions.partitions.context import partition_loading_context

from ops_pipelines.assets.hours import HOURS as PARTITIONS
from ops_pipelines.assets.hours import hour_of_key, key_of_hour
from ops_pipelines.core.cluster import HOUR, Observatory
from ops_pipelines.lake.schema import TELEMETRY_TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines_lab.simulator.accounting import SimulatedAccounting
from ops_pipelines_lab.simulator.adapters import SimulatedLogs, SimulatedScheduler
from ops_pipelines_lab.simulator.exporter import SimulatedMetrics
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.flow.fake_store import FakeStore, Point, observatory_on, topology_of
from tests.ports.lake_samples import cells
from tests.shell.lake_runs import Run, files_below, fill
from tests.simulator.fake_clock import BEGINNING, FakeClock
from tests.simulator.small_cluster import SESSION, TRAINING

NOW = datetime(2026, 1, 2, 1, 30, tzinfo=UTC)
"""Partitions end with the wall clock, so the clock of these tests is in its past."""
RUNNING = datetime(2026, 1, 2, 1, tzinfo=UTC)
HOURS = [RUNNING - 3 * HOUR, RUNNING - 2 * HOUR, RUNNING - HOUR]
"""A midnight lies among them."""
MEANING = ("inventory", "gpu_efficiency", "monitoring_coverage")
LAKE_ASSETS = {
    *TELEMETRY_TABLES,
    *("job_accounting", "job_allocations", "job_steps", "job_logs", "kernel_events"),
    *MEANING,
    "gpu_demand",
}


def clock_at(now: datetime) -> FakeClock:
    clock = FakeClock()
    clock.set_back((BEGINNING - now).total_seconds())
    return clock


class Simulated:
    """A twin of four nodes with a past of some hours, and lakes that are filled from it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = clock_at(NOW)
        scenario = Scenario(nodes=cluster_nodes(4), durations=SHORT_DURATIONS, initial_jobs=(TRAINING, SESSION))
        past = NOW - HOURS[0]
        self.twin = Twin.create(directory / "twin", scenario, seed=7, clock=self.clock, past=past)

    def observatory(self, name: str) -> Observatory:
        base = observatory_on(
            self.directory / name,
            SimulatedMetrics(self.twin),
            clock=self.clock,
            scheduler=SimulatedScheduler(self.twin),
            step_seconds=60,
            kernel_logs=(SimulatedLogs(self.twin),),
            topology=topology_of("gpu001", "gpu002", "gpu003", "gpu004"),
        )
        return replace(base, accounting=SimulatedAccounting(self.twin))

    def fill(self, name: str, *hours: datetime, assets: list[str] | None = None) -> Run:
        return fill(self.observatory(name), *hours, clock=self.clock, assets=assets)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated(tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="module")
def one_run(simulated: Simulated) -> Run:
    return simulated.fill("one-run", *HOURS)


@pytest.fixture(scope="module")
def hour_by_hour(simulated: Simulated) -> list[Run]:
    return [simulated.fill("hour-by-hour", hour) for hour in HOURS[1:]]


def test_an_hour_fills_every_asset_and_judges_it(hour_by_hour: list[Run]) -> None:
    run = hour_by_hour[-1]

    assert run.is_success, run.errors
    assert set(run.stored) == LAKE_ASSETS
    assert set(run.checks) == {
        *((name, check) for name in LAKE_ASSETS for check in ("hard_gates", "expected_data")),
        ("gpu_demand", "teams_are_declared"),
    }
    assert [name for name, passed in run.checks.items() if name[1] == "hard_gates" and not passed] == []


def test_an_hour_tells_its_counts_and_shows_a_small_picture(hour_by_hour: list[Run]) -> None:
    shown = hour_by_hour[-1].metadata("gpu_telemetry")

    assert shown["row_count"] == 4 * 8 * 60
    (records,) = (record.data for record in shown["records_of_all_layers"].records)
    assert records["read"] == records["accepted"] + records["ignored"] + records["rejected"] > 0
    assert 0 < len(str(shown["picture"])) < 1000
    assert "sources_say" not in shown


def test_many_hours_in_one_run_are_the_same_files_as_one_by_one(
    simulated: Simulated, one_run: Run, hour_by_hour: list[Run]
) -> None:
    assert one_run.is_success, one_run.errors
    assert all(run.is_success for run in hour_by_hour)
    together, apart = (files_below(simulated.directory / name) for name in ("one-run", "hour-by-hour"))

    assert len(apart) == 2 * len(LAKE_ASSETS)
    assert [path for path in apart if together[path] != apart[path]] == []


def test_many_hours_in_one_run_tell_the_rows_of_all(one_run: Run) -> None:
    shown = one_run.metadata("gpu_telemetry")

    assert (shown["row_count"], shown["hour_count"]) == (3 * 4 * 8 * 60, 3)
    assert 0 < len(str(shown["picture"])) < 1000


def test_what_is_downstream_is_given_the_hours_of_its_partition(simulated: Simulated, one_run: Run) -> None:
    lake = ParquetLake(simulated.directory / "one-run")

    for hour in HOURS:
        assert {at for (at,) in cells(lake.read_hour("inventory", hour), "time")} == {hour}
        held = cells(lake.read_hour("gpu_efficiency", hour), "job", "time")
        assert {at for _, at in held} == {hour}
        assert any(job for job, _ in held)


def test_the_running_hour_is_stored_beside_its_cycles_and_not_closed(simulated: Simulated) -> None:
    run = simulated.fill("running", RUNNING, assets=["gpu_telemetry", "node_telemetry"])
    lake = ParquetLake(simulated.directory / "running")

    assert run.is_success, run.errors
    assert {path.rsplit("/", 1)[1] for path in files_below(simulated.directory / "running")} == {
        "cycle=20260102T010000Z-so_far.parquet"
    }
    assert lake.read_hour("gpu_telemetry", RUNNING).num_rows == 4 * 8 * 31


def test_a_part_of_the_telemetry_can_be_filled_alone(simulated: Simulated, one_run: Run) -> None:
    run = simulated.fill("part", HOURS[1], assets=["fabric_telemetry", "storage_telemetry"])
    part, whole = (files_below(simulated.directory / name) for name in ("part", "one-run"))

    assert run.is_success, run.errors
    assert set(run.stored) == {"fabric_telemetry", "storage_telemetry"}
    assert {path.split("/", 1)[0] for path in part} == {"fabric_telemetry", "storage_telemetry"}
    assert all(whole[path] == content for path, content in part.items())


def test_an_hour_before_anything_was_there_is_empty_and_no_failure(simulated: Simulated) -> None:
    before = HOURS[0] - 5 * HOUR

    run = simulated.fill("before", before, assets=[*TELEMETRY_TABLES, "job_allocations", *MEANING])

    assert run.is_success, run.errors
    assert run.metadata("gpu_telemetry")["row_count"] == 0


# -- on a store whose points a test writes --


def store_of(clock: FakeClock, **series: float) -> FakeStore:
    """Return a store of one GPU with steady values in the three hours."""
    store = FakeStore(clock=clock)
    labels = {"Hostname": "gpu001", "UUID": "GPU-a", "gpu": "0", "pci_bus_id": "00000000:18:00.0"}
    times = [HOURS[0] + number * timedelta(minutes=1) for number in range(180)]
    for name, value in series.items():
        store.add(f"DCGM_FI_DEV_{name}", labels, [Point(at=at, value=value, known_at=at) for at in times])
    return store


def observatory_of(tmp_path: Path, store: FakeStore, clock: FakeClock) -> Observatory:
    twin = Twin.create(
        tmp_path / "twin", Scenario(nodes=cluster_nodes(1), durations=SHORT_DURATIONS), seed=7, clock=clock
    )
    return observatory_on(
        tmp_path / "lake",
        store,
        clock=clock,
        scheduler=SimulatedScheduler(twin),
        step_seconds=60,
        topology=topology_of("gpu001"),
    )


def test_an_hour_that_breaks_a_hard_gate_stops_what_is_downstream(tmp_path: Path) -> None:
    clock = clock_at(NOW)
    store = store_of(clock, FB_USED=90_000.0, FB_TOTAL=80_000.0, GPU_TEMP=40.0)

    run = fill(observatory_of(tmp_path, store, clock), HOURS[0], clock=clock)

    assert not run.is_success
    assert run.checks["gpu_telemetry", "hard_gates"] is False
    assert run.checks["node_telemetry", "hard_gates"] is True
    assert "gpu_telemetry" in run.stored
    assert not {"inventory", "gpu_efficiency", "monitoring_coverage", "gpu_demand"} & set(run.stored)


def test_a_gpu_that_moved_between_two_hours_of_one_run_is_told(tmp_path: Path) -> None:
    clock = clock_at(NOW)
    store = FakeStore(clock=clock)
    for hour, address in zip(HOURS[:2], ("00000000:18:00.0", "00000000:2A:00.0"), strict=True):
        labels = {"Hostname": "gpu001", "UUID": "GPU-a", "gpu": "0", "pci_bus_id": address}
        times = [hour + number * timedelta(minutes=1) for number in range(60)]
        points = [Point(at=at, value=40.0, known_at=at) for at in times]
        store.add("DCGM_FI_DEV_GPU_TEMP", labels, points)

    observatory = observatory_of(tmp_path, store, clock)
    run = fill(observatory, *HOURS[:2], clock=clock, assets=["gpu_telemetry", "inventory"])

    assert run.is_success, run.errors
    moved = run.metadata("inventory")["gpus_that_moved"]
    assert [(record.data["gpu"], record.data["what"]) for record in moved.records] == [("GPU-a", "moved")]


def test_what_goes_missing_in_one_run_is_missing_since_it_was_last_seen(tmp_path: Path) -> None:
    clock = clock_at(NOW)
    store = FakeStore(clock=clock)
    labels = {"Hostname": "gpu001", "UUID": "GPU-a", "gpu": "0"}
    seen = [HOURS[0] + number * timedelta(minutes=1) for number in range(50)]
    store.add("DCGM_FI_DEV_GPU_TEMP", labels, [Point(at=at, value=40.0, known_at=at) for at in seen])

    observatory = observatory_of(tmp_path, store, clock)
    run = fill(observatory, *HOURS[:2], clock=clock, assets=[*TELEMETRY_TABLES, "inventory", "monitoring_coverage"])
    lake = observatory.lake

    assert run.is_success, run.errors
    found = cells(lake.read_hour("monitoring_coverage", HOURS[1]), "node", "device", "missing_since")
    assert ("gpu001", "GPU-a", seen[-1]) in found


def test_rejected_rows_are_kept_in_the_hour_of_their_time_and_closed_with_it(tmp_path: Path) -> None:
    clock = clock_at(NOW)
    store = store_of(clock, GPU_TEMP=-5000.0)
    observatory = observatory_of(tmp_path, store, clock)

    run = fill(observatory, *HOURS, clock=clock, assets=["gpu_telemetry"])

    assert run.is_success, run.errors
    (rejected,) = run.metadata("gpu_telemetry")["rejected_by_reason"].records
    assert rejected.data == {"reason": "out_of_range", "records": 180}
    assert "rejected reason=out_of_range count=60" in run.logged
    for hour in HOURS:
        rejected = cells(observatory.lake.read_hour("rejected_rows", hour), "source", "reason", "time")
        assert len(rejected) == 60
        assert {at.replace(minute=0) for _, _, at in rejected if isinstance(at, datetime)} == {hour}
        assert ParquetLake(tmp_path / "lake").path_of_hour("rejected_rows", hour).exists()


def test_partitions_are_hours_and_the_running_one_is_one_of_them() -> None:
    with partition_loading_context(effective_dt=datetime(2026, 1, 2, 1, 59, 59, tzinfo=UTC)):
        assert PARTITIONS.get_last_partition_key() == "2026-01-02-01:00"

    assert hour_of_key(key_of_hour(RUNNING)) == RUNNING
