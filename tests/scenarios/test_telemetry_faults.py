"""A partition that lacks a source is no partition; one that was started and broken off is made whole by the next
run."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import TelemetryConfig, TelemetryKind
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.prometheus import PrometheusMetrics, RangeLimits
from tests.flow.fake_store import FakeStore
from tests.forked import CONTEXT
from tests.scenarios.lake_run_processes import (
    ASSETS,
    HOUR,
    KILLED_ASSET,
    clock_now,
    fill_hour,
    fill_hour_until_killed,
    observatory_of,
    store_of_an_hour,
)
from tests.shell.lake_runs import files_below, fill

FEWEST_STEPS = 3


@pytest.fixture
def store() -> FakeStore:
    return store_of_an_hour(clock_now())


def fill_from(store: FakeStore, root: Path) -> dict[str, bytes]:
    run = fill(observatory_of(root, store), HOUR, clock=store.clock, assets=ASSETS)
    assert run.is_success, run.errors
    return files_below(root)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of an hour that nothing disturbed."""
    return fill_from(store_of_an_hour(clock_now()), tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("failure", "page_count"),
    [
        pytest.param(SourceUnavailable("prometheus did not answer within 10 s"), 0, id="down or slow"),
        pytest.param(SourceUnavailable("prometheus answered HTTP 503"), 1, id="5xx after a part of the answer"),
        pytest.param(SourceNonsense("prometheus answered no Prometheus result"), 1, id="nonsense in the end"),
    ],
)
def test_a_store_that_fails_makes_no_partition_and_the_next_run_makes_the_same(
    tmp_path: Path, store: FakeStore, whole: dict[str, bytes], failure: SourceError, page_count: int
) -> None:
    store.failure, store.pages_before_failure = failure, page_count
    observatory = observatory_of(tmp_path, store)

    run = fill(observatory, HOUR, clock=store.clock, assets=ASSETS)

    assert not run.is_success
    assert run.stored == {}
    assert files_below(tmp_path) == {}
    assert type(failure).__name__ in run.errors["telemetry_of_all_layers"]
    assert str(failure) in run.errors["telemetry_of_all_layers"]
    store.failure = None
    assert fill_from(store, tmp_path) == whole


def test_a_server_that_is_not_there_is_told_by_its_address(tmp_path: Path, store: FakeStore) -> None:
    config = TelemetryConfig(kind=TelemetryKind.PROMETHEUS, url="http://127.0.0.1:9")
    metrics = PrometheusMetrics(config, clock=store.clock, limits=RangeLimits(attempts=2))
    observatory = replace(observatory_of(tmp_path, store), metrics=(metrics,))

    run = fill(observatory, HOUR, clock=store.clock, assets=ASSETS)

    assert run.stored == {}
    assert "SourceUnavailable" in run.errors["telemetry_of_all_layers"]
    assert "http://127.0.0.1:9" in run.errors["telemetry_of_all_layers"]


def test_an_hour_that_was_there_is_untouched_by_a_run_that_fails(
    tmp_path: Path, store: FakeStore, whole: dict[str, bytes]
) -> None:
    fill_from(store, tmp_path)
    store.failure, store.pages_before_failure = SourceUnavailable("connection reset"), 1

    run = fill(observatory_of(tmp_path, store), HOUR, clock=store.clock, assets=ASSETS)

    assert not run.is_success
    assert files_below(tmp_path) == whole


def test_a_warning_of_the_store_is_shown_and_kept(tmp_path: Path, store: FakeStore) -> None:
    store.notes = ("store 2 did not answer",)

    run = fill(observatory_of(tmp_path, store), HOUR, clock=store.clock, assets=ASSETS)

    assert run.is_success
    assert "source says: store 2 did not answer" in run.logged
    said = run.metadata("gpu_telemetry")["sources_say"]
    assert [record.data["warning"] for record in said.records] == ["store 2 did not answer"]


def test_what_a_partial_answer_lacked_is_there_after_a_whole_one(
    tmp_path: Path, store: FakeStore, whole: dict[str, bytes]
) -> None:
    store.notes = ("store 2 did not answer",)
    all_series = store.series
    store.series = all_series[:2]
    fill_from(store, tmp_path)
    assert ParquetLake(tmp_path).read_hour("gpu_telemetry", HOUR).num_rows == 60

    store.notes, store.series = (), all_series

    assert fill_from(store, tmp_path) == whole


def test_two_runs_that_write_one_partition_at_once_end_in_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    processes = [CONTEXT.Process(target=fill_hour, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    assert files_below(tmp_path) == whole


def test_a_run_that_is_killed_anywhere_leaves_nothing_half_written_and_the_next_one_ends_the_same(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    wanted = {path: content for path, content in whole.items() if path.startswith(KILLED_ASSET)}
    step = 0
    while True:
        step += 1
        root = tmp_path / f"lake-{step}"
        process = CONTEXT.Process(target=fill_hour_until_killed, args=(root, step))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        readable = {path: content for path, content in files_below(root).items() if "/.tmp-" not in path}
        assert readable in ({}, wanted)
        assert ParquetLake(root).read_hour(KILLED_ASSET, HOUR).num_rows == (120 if readable else 0)

    again = tmp_path / f"lake-{FEWEST_STEPS}"
    fill_from(store_of_an_hour(clock_now()), again)

    assert step > FEWEST_STEPS
    assert {path: content for path, content in files_below(again).items() if "/.tmp-" not in path} == whole
