"""Jobs of the past out of the lake: the hours, nodes and jobs that were asked for, from samples or from their means."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from ops_pipelines.domain.identity import JobId, NodeName
from ops_pipelines.frames.schema import TABLES
from ops_pipelines.ports.lake import LakeError
from ops_pipelines.ports.past_work import PastWork
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.past_work import LakePastWork
from ops_pipelines.resources.lake.retention import Housekeeper, RetentionSettings
from tests.simulator.fake_clock import FakeClock

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def held(job: str, node: str, hour: datetime) -> dict[str, object]:
    return {"job": job, "attempt": "a", "node": node, "time": hour, "started_at": hour, "node_count": 1}


def step(job: str, at: datetime, seconds: float, *, node: str = "gpu001") -> dict[str, object]:
    return {"node": node, "device": f"job:{job}", "time": at, "step_seconds": seconds}


@pytest.fixture
def lake(tmp_path: Path) -> ParquetLake:
    lake = ParquetLake(tmp_path)
    for number in range(3):
        hour = NOON + number * HOUR
        allocations = TABLES["job_allocations"].from_rows([held("1", "gpu001", hour), held("2", "gpu002", hour)])
        lake.close_hour("job_allocations", hour, filled=allocations)
        told = [step(job, hour + minute * timedelta(minutes=1), 2.0) for job in ("1", "2") for minute in range(10)]
        lake.close_hour("application_telemetry", hour, filled=TABLES["application_telemetry"].from_rows(told))
    return lake


@pytest.fixture
def past(lake: ParquetLake) -> PastWork:
    return LakePastWork(lambda: lake)


def allocations(past: PastWork, *nodes: str, start: datetime = NOON, end: datetime = NOON + 3 * HOUR) -> pa.Table:
    return cast("pa.Table", past.allocations(nodes=[NodeName(node) for node in nodes], start=start, end=end))


def steps(past: PastWork, *jobs: str, start: datetime = NOON, end: datetime = NOON + 3 * HOUR) -> pa.Table:
    return cast("pa.Table", past.steps(jobs=[JobId(job) for job in jobs], start=start, end=end))


def test_allocations_are_those_of_the_nodes_and_of_every_hour_that_is_touched(past: PastWork) -> None:
    found = allocations(past, "gpu001", start=NOON + timedelta(minutes=30), end=NOON + HOUR + timedelta(minutes=1))

    assert found["time"].to_pylist() == [NOON, NOON + HOUR]
    assert set(found["node"].to_pylist()) == {"gpu001"}


def test_nobody_asked_for_is_nobody_told_of(past: PastWork) -> None:
    assert allocations(past).num_rows == 0
    assert steps(past).num_rows == 0


def test_lake_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    past = LakePastWork(lambda: ParquetLake(tmp_path / "nowhere"))

    assert allocations(past, "gpu001").num_rows == 0
    assert steps(past, "1").num_rows == 0


def test_steps_are_those_of_the_jobs_between_the_two_times(past: PastWork) -> None:
    found = steps(past, "1", start=NOON + timedelta(minutes=5), end=NOON + HOUR + timedelta(minutes=1))

    assert found.num_rows == 6
    assert set(found["device"].to_pylist()) == {"job:1"}


def test_days_that_are_aggregated_are_read_as_means_of_five_minutes_and_only_so(
    lake: ParquetLake, past: PastWork
) -> None:
    clock = FakeClock()
    clock.wait((NOON + timedelta(days=3) - clock.now()).total_seconds())
    Housekeeper(lake, settings=RetentionSettings(), clock=clock).keep()

    found = steps(past, "1")

    assert found.num_rows == 3 * 2
    assert set(found["step_seconds"].to_pylist()) == {2.0}


def test_running_hour_is_read_from_its_cycles(lake: ParquetLake, past: PastWork) -> None:
    at = NOON + 3 * HOUR + timedelta(minutes=2)
    lake.write_cycle("application_telemetry", TABLES["application_telemetry"].from_rows([step("9", at, 3.0)]), at=at)

    assert steps(past, "9", end=NOON + 4 * HOUR)["step_seconds"].to_pylist() == [3.0]


def test_damaged_file_is_told(lake: ParquetLake, past: PastWork) -> None:
    Path(str(lake.path_of_hour("job_allocations", NOON))).write_bytes(b"no parquet")

    with pytest.raises(LakeError, match="job_allocations cannot be read"):
        allocations(past, "gpu001")
