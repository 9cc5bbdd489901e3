"""Windows of the lake: the minutes and machines that were asked for, from open and from closed hours, and no more."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.record import Recalled
from ops_pipelines.core.sources import LakeError
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.past_work import LakeWindow
from tests.domain.builders import NOW, after, ago

HOUR = NOW.replace(minute=0)


def kernel_lines(*written: tuple[str, datetime, str]) -> pa.Table:
    return TABLES["kernel_events"].from_rows(
        {"time": at, "node": node, "source": "kernel_log", "position": f"{node}:{at:%H%M%S}", "text": text}
        for node, at, text in written
    )


def samples(node: str, times: Iterable[datetime]) -> pa.Table:
    return TABLES["gpu_telemetry"].from_rows(
        {"time": at, "node": node, "device": "GPU-1", "driver_version": "570.1", "power_watts": 300.0} for at in times
    )


@pytest.fixture(params=["open", "closed"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ParquetLake:
    lake = ParquetLake(tmp_path)
    written = [("gpu001", after(second), f"line at {second}") for second in (-660, -599, -15, 0, 15, 599, 660)]
    for node, at, text in (*written, ("gpu002", NOW, "a neighbour's")):
        lake.write_cycle(
            "kernel_events",
            kernel_lines((node, at, text)),
            at=after(60) if at < after(60) else at,
            part=node + text[8:],
        )
    for second in (-615, -600, 0, 600):
        lake.write_cycle("gpu_telemetry", samples("gpu001", [after(second)]), at=after(second))
        lake.write_cycle("gpu_telemetry", samples("gpu002", [after(second)]), at=after(second), part="other")
    if request.param == "closed":
        lake.close_hour("kernel_events", HOUR)
        lake.close_hour("gpu_telemetry", HOUR)
    return lake


def recall(
    lake: ParquetLake, *, nodes: Iterable[str] = ("gpu001",), jobs: Iterable[str] = (), max_lines: int = 100
) -> Recalled:
    return LakeWindow(lambda: lake).recall(
        nodes=[NodeName(each) for each in nodes],
        jobs=[JobId(each) for each in jobs],
        start=ago(600),
        end=after(600),
        nearest_to=NOW,
        max_lines=max_lines,
    )


def test_lines_are_those_of_the_window_and_of_its_nodes(lake: ParquetLake) -> None:
    found = recall(lake)

    assert [line.text for line in found.lines] == [f"line at {second}" for second in (-599, -15, 0, 15, 599)]
    assert {line.node for line in found.lines} == {"gpu001"}
    assert found.missing == ()


def test_samples_are_those_of_the_window_and_of_its_nodes(lake: ParquetLake) -> None:
    rows = cast("pa.Table", recall(lake).telemetry)

    assert rows.column("time").to_pylist() == [ago(600), NOW]
    assert set(rows.column("node").to_pylist()) == {"gpu001"}
    assert rows.column("power_watts").to_pylist() == [300.0, 300.0]


def test_of_too_many_lines_those_nearest_to_the_event_stay_and_the_rest_is_counted(lake: ParquetLake) -> None:
    found = recall(lake, max_lines=3)

    assert [line.text for line in found.lines] == ["line at -15", "line at 0", "line at 15"]
    assert found.missing == ("2 of 5 lines: those farthest from the event",)


def test_what_the_lake_lacks_is_named(lake: ParquetLake) -> None:
    found = recall(lake, nodes=["gpu009"], jobs=["42"])

    assert found.lines == ()
    assert [sentence.split(":")[0] for sentence in found.missing] == ["kernel_events", "job_logs", "gpu_telemetry"]


def test_asked_for_nobody_it_says_nothing(lake: ParquetLake) -> None:
    assert recall(lake, nodes=()) == Recalled(lines=(), telemetry=None, missing=())


def test_lines_of_a_job_are_found_wherever_it_ran(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    rows = TABLES["job_logs"].from_rows(
        [
            {"time": ago(1), "source": "out", "position": "1", "node": "gpu007", "job": "42", "text": "loss is nan"},
            {"time": ago(1), "source": "out", "position": "2", "node": "gpu007", "job": "43", "text": "not ours"},
        ]
    )
    lake.write_cycle("job_logs", rows, at=NOW.replace(microsecond=0))

    (line,) = recall(lake, nodes=(), jobs=["42"]).lines

    assert (line.node, line.job, line.text) == ("gpu007", "42", "loss is nan")


def test_window_over_midnight_of_an_hour_reads_both_hours(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    lake.write_cycle(
        "gpu_telemetry", samples("gpu001", [HOUR - timedelta(seconds=15)]), at=HOUR - timedelta(seconds=15)
    )
    lake.close_hour("gpu_telemetry", HOUR - timedelta(hours=1))
    lake.write_cycle("gpu_telemetry", samples("gpu001", [HOUR]), at=HOUR)

    found = LakeWindow(lambda: lake).recall(
        nodes=[NodeName("gpu001")], jobs=(), start=HOUR - timedelta(minutes=1), end=HOUR + timedelta(minutes=1),
        nearest_to=HOUR, max_lines=10,
    )  # fmt: skip

    assert found.telemetry is not None
    assert found.telemetry.num_rows == 2


def test_damaged_file_is_told_as_the_lakes_error(tmp_path: Path) -> None:
    lake = ParquetLake(tmp_path)
    lake.write_cycle("gpu_telemetry", samples("gpu001", [NOW]), at=NOW)
    lake.close_hour("gpu_telemetry", HOUR)
    Path(lake.path_of_hour("gpu_telemetry", HOUR).path).write_bytes(b"no parquet")

    with pytest.raises(LakeError, match="gpu_telemetry cannot be read"):
        recall(lake)
