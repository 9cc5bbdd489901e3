"""The job that keeps the lake small: what the settings say is done once a day, and nothing else."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.core.sources import Kept
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.retention import Housekeeper, RetentionSettings
from tests.ports.lake_samples import HOUR, gpu, table
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.shell.definitions_on import definitions_on
from tests.simulator.fake_clock import FakeClock

OLD = HOUR


@pytest.fixture
def lake(tmp_path: Path) -> ParquetLake:
    lake = ParquetLake(tmp_path / "lake")
    lake.close_hour("gpu_telemetry", OLD, filled=table(gpu("gpu001", 15.0, power_watts=300.0)))
    return lake


def keep(lake: ParquetLake, directory: Path, settings: RetentionSettings) -> tuple[bool, Kept]:
    clock = FakeClock()
    clock.wait((OLD + timedelta(days=10) - clock.now()).total_seconds())
    keeper = Housekeeper(lake, settings=settings, clock=clock)
    seen = [keeper.keep()]
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions_on(SmallAutopilot(directory).cluster, lake_keeper=keeper).resolve_job_def("keep_lake")
        return job.execute_in_process(instance=instance).success, seen[0]


def test_old_hours_are_aggregated_and_their_samples_deleted(lake: ParquetLake, tmp_path: Path) -> None:
    is_success, kept = keep(lake, tmp_path, RetentionSettings(raw_days=1))

    assert is_success
    assert sorted(kept.aggregated) == [f"gpu_telemetry_{suffix}/date=2026-11-21/day.parquet" for suffix in ("1h", "5m")]
    assert lake.hours("gpu_telemetry") == []


def test_without_settings_everything_is_kept(lake: ParquetLake, tmp_path: Path) -> None:
    _, kept = keep(lake, tmp_path, RetentionSettings())

    assert replace(kept, aggregated=()) == Kept(aggregated=(), deleted=(), deleted_bytes=0)
    assert lake.hours("gpu_telemetry") == [OLD]
