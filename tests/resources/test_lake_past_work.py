"""Jobs of the past out of the lake: its contract, aggregated days, the running hour, and what is damaged."""

from datetime import timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.sources import LakeError, PastWork
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.past_work import LakePastWork
from ops_pipelines.resources.lake.retention import Housekeeper, RetentionSettings
from tests.ports.past_work_contract import (
    ALLOCATIONS,
    END,
    HOUR,
    HOURS,
    MINUTE,
    NOON,
    STEPS,
    PastWorkContract,
    allocations,
    steps,
)
from tests.simulator.fake_clock import FakeClock

KEPT = {"job_allocations": ALLOCATIONS, "application_telemetry": STEPS}


@pytest.fixture
def lake(tmp_path: Path) -> ParquetLake:
    """Give a lake of three closed hours."""
    lake = ParquetLake(tmp_path)
    for hour in HOURS:
        for table, rows in KEPT.items():
            of_hour = [each for each in rows if hour <= each["time"] < hour + HOUR]
            lake.close_hour(table, hour, filled=TABLES[table].from_rows(of_hour))
    return lake


@pytest.fixture
def past(lake: ParquetLake) -> PastWork:
    return LakePastWork(lambda: lake)


class TestClosedHours(PastWorkContract):
    """The contract on files of hours that are over."""


class TestOpenHours(PastWorkContract):
    """The contract on files of cycles: nobody has closed these hours."""

    @pytest.fixture
    def lake(self, tmp_path: Path) -> ParquetLake:
        lake = ParquetLake(tmp_path)
        for table, rows in KEPT.items():
            for at in sorted({each["time"] for each in rows}):
                lake.write_cycle(table, TABLES[table].from_rows([each for each in rows if each["time"] == at]), at=at)
        return lake


def test_lake_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    past = LakePastWork(lambda: ParquetLake(tmp_path / "nowhere"))

    assert allocations(past, "gpu001") == set()
    assert steps(past, "1") == set()


def test_days_that_are_aggregated_are_read_as_means_of_five_minutes_and_only_so(
    lake: ParquetLake, past: PastWork
) -> None:
    clock = FakeClock()
    clock.wait((NOON + timedelta(days=3) - clock.now()).total_seconds())
    Housekeeper(lake, settings=RetentionSettings(), clock=clock).keep()

    found = cast("pa.Table", past.steps(jobs=[JobId("1")], start=NOON, end=END))

    assert found.num_rows == 3 * 2
    assert set(found["step_seconds"].to_pylist()) == {2.0}


def test_running_hour_is_read_beside_those_that_are_over(lake: ParquetLake, past: PastWork) -> None:
    at = END + 2 * MINUTE
    row = {"node": "gpu001", "device": "job:1", "time": at, "step_seconds": 3.0}
    lake.write_cycle("application_telemetry", TABLES["application_telemetry"].from_rows([row]), at=at)

    assert steps(past, "1", start=END - HOUR, end=at) == steps(past, "1", start=END - HOUR)
    assert ("job:1", at) in steps(past, "1", start=END - HOUR, end=at + MINUTE)


def test_damaged_file_is_told(lake: ParquetLake, past: PastWork) -> None:
    Path(str(lake.path_of_hour("job_allocations", NOON))).write_bytes(b"no parquet")

    with pytest.raises(LakeError, match="job_allocations cannot be read"):
        allocations(past, "gpu001")
