"""Lanes of runs, on a Dagster instance made from the shipped dagster.yaml and asked through its own queue."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.run_coordinator import SubmitRunContext
from dagster._core.storage.dagster_run import DagsterRun, DagsterRunStatus
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from ops_pipelines.automation import JOBS
from ops_pipelines.run_lanes import ACTING_SIDE_BY_SIDE, RunLane, lane_of
from tests.shell.job_origin import origin_of

ROOT = Path(__file__).resolve().parents[2]
URGENT = "remediate"
OTHERS = {lane_of(name): name for name in [*(job.name for job in JOBS if job.name != URGENT), "__ASSET_JOB"]}
"""One of each lane; that the urgent one has its lane to itself is seen from their keys."""
MORE_THAN_A_LANE_TAKES = 4


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster.yaml").write_text((ROOT / "deploy" / "dagster.yaml").read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def hand_in(instance: dg.DagsterInstance, job_name: str, **tags: str) -> str:
    run = DagsterRun(
        job_name=job_name, status=DagsterRunStatus.NOT_STARTED, tags=tags, remote_job_origin=origin_of(job_name)
    )
    instance.add_run(run)
    context = SubmitRunContext(dagster_run=run, workspace=None)  # type: ignore[arg-type]  # the queue does not look at it
    instance.run_coordinator.submit_run(context)
    return run.run_id


def dequeue(instance: dg.DagsterInstance) -> list[DagsterRun]:
    """Let the daemon's own logic pick what starts now, and start it."""
    config = instance.get_concurrency_config()
    daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)
    picked = daemon._get_runs_to_dequeue(instance, config, fixed_iteration_time=None)  # Dagster offers no public way.
    for run in picked:
        instance.handle_new_event(_started(run))
    return picked


def _started(run: DagsterRun) -> dg.EventLogEntry:
    return dg.EventLogEntry(
        user_message="",
        level="debug",
        run_id=run.run_id,
        error_info=None,
        timestamp=0.0,
        job_name=run.job_name,
        dagster_event=dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name),
    )


@pytest.mark.parametrize(
    "tags", [{}, {"dagster/backfill": "by-hand"}, {"lane": "act"}], ids=["", "back-fill", "forged"]
)
def test_no_number_of_other_runs_keeps_the_one_that_fences_waiting(
    instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    assert set(OTHERS) == set(RunLane) - {RunLane.ACT}
    for job_name in OTHERS.values():
        for _ in range(MORE_THAN_A_LANE_TAKES):
            hand_in(instance, job_name, **tags)
    while dequeue(instance):
        pass

    urgent = hand_in(instance, URGENT)

    assert [run.run_id for run in dequeue(instance)] == [urgent]


def test_kill_switch_waits_for_no_report(instance: dg.DagsterInstance) -> None:
    for _ in range(MORE_THAN_A_LANE_TAKES):
        hand_in(instance, "report_shift")
    for _ in range(2):
        hand_in(instance, URGENT)
    while dequeue(instance):
        pass

    switch = hand_in(instance, "pause_autopilot")

    assert [run.run_id for run in dequeue(instance)] == [switch]


def test_as_many_runs_that_fence_go_side_by_side_as_the_sensor_asks_for(instance: dg.DagsterInstance) -> None:
    handed_in = [hand_in(instance, URGENT) for _ in range(ACTING_SIDE_BY_SIDE + 1)]

    started: list[str] = []
    while batch := dequeue(instance):
        started += [run.run_id for run in batch]

    assert started == handed_in[:ACTING_SIDE_BY_SIDE]


@pytest.mark.parametrize("job_name", ["verify_nodes", "advance_rollouts"])
def test_each_other_lane_that_acts_has_one_run_at_a_time(instance: dg.DagsterInstance, job_name: str) -> None:
    first = hand_in(instance, job_name)
    hand_in(instance, job_name)

    assert [run.run_id for run in dequeue(instance)] == [first]
    assert dequeue(instance) == []


def test_of_what_may_start_in_one_turn_the_one_that_fences_is_first(instance: dg.DagsterInstance) -> None:
    hand_in(instance, "report_shift")
    hand_in(instance, "verify_nodes")
    urgent = hand_in(instance, URGENT)

    assert dequeue(instance)[0].run_id == urgent


def test_every_job_carries_the_lane_that_the_queue_puts_it_into_or_none() -> None:
    """Also where an older dagster.yaml is in force, which does not name our queue."""
    carried = {job.name: job.tags["lane"] for job in JOBS if "lane" in job.tags}

    assert carried == {name: lane_of(name).value for name in carried}
    assert {lane_of(job.name) for job in JOBS} == set(RunLane)
