"""Dagster's SQLite files over kept connections: what one process or thread writes the others see at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef
from dagster._core.scheduler.instigation import InstigatorType, TickData, TickStatus
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage

from ops_pipelines.resources.dagster_sqlite import KeptSqliteStorage


def tick(number: int) -> TickData:
    return TickData(
        instigator_origin_id="origin",
        instigator_name="fault_sensor",
        instigator_type=InstigatorType.SENSOR,
        status=TickStatus.SKIPPED,
        timestamp=time.time() + number,
        selector_id="selector",
    )


def count_ticks(storage: DagsterSqliteStorage) -> int:
    return len(storage.schedule_storage.get_ticks("origin", "selector"))


def forget_ticks_half_way(storage: KeptSqliteStorage) -> None:
    with storage._schedule_storage.connect() as connection:
        connection.exec_driver_sql("DELETE FROM job_ticks")
        raise RuntimeError("in the middle of it")


def test_what_is_written_here_dagsters_own_storage_sees_and_the_other_way_round(tmp_path: Path) -> None:
    kept, own = KeptSqliteStorage.from_local(str(tmp_path)), DagsterSqliteStorage.from_local(str(tmp_path))

    kept.schedule_storage.create_tick(tick(1))
    own.schedule_storage.create_tick(tick(2))

    assert (count_ticks(kept), count_ticks(own)) == (2, 2)


def test_a_transaction_that_fails_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    kept = KeptSqliteStorage.from_local(str(tmp_path))
    kept.schedule_storage.create_tick(tick(1))

    with pytest.raises(RuntimeError):
        forget_ticks_half_way(kept)
    kept.schedule_storage.create_tick(tick(2))

    assert count_ticks(kept) == 2


def test_more_threads_than_connections_are_kept_all_write(tmp_path: Path) -> None:
    kept = KeptSqliteStorage.from_local(str(tmp_path))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda number: kept.schedule_storage.create_tick(tick(number)), range(60)))

    assert count_ticks(kept) == 60


def test_a_storage_that_was_given_back_leaves_no_connection_and_opens_anew_when_asked(tmp_path: Path) -> None:
    kept = KeptSqliteStorage.from_local(str(tmp_path))
    kept.schedule_storage.create_tick(tick(1))

    kept.dispose()

    assert not list(tmp_path.glob("**/schedules.db-wal"))  # the last one to leave folds it in
    assert count_ticks(kept) == 1


def test_runs_of_one_instance_are_seen_by_the_next_process_of_it(tmp_path: Path) -> None:
    settings = {
        "storage": {
            "custom": {
                "module": "ops_pipelines.resources.dagster_sqlite",
                "class": "KeptSqliteStorage",
                "config": {"base_dir": str(tmp_path)},
            }
        }
    }
    ref = InstanceRef.from_dir(str(tmp_path), overrides=settings)
    with dg.DagsterInstance.from_ref(ref) as first, dg.DagsterInstance.from_ref(ref) as second:
        first.add_run(dg.DagsterRun(job_name="remediate"))
        first.daemon_cursor_storage.set_cursor_values({"key": "told"})

        assert [run.job_name for run in second.get_runs()] == ["remediate"]
        assert second.daemon_cursor_storage.get_cursor_values({"key"}) == {"key": "told"}
