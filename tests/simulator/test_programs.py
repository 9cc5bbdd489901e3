"""Programs of jobs: checkpoints that take time, warm-up, ages, time limits, bugs, and services that must continue."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Checkpointing, JobState, Workload
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines_lab.simulator.accounting import SimulatedAccounting
from ops_pipelines_lab.simulator.ground_truth import (
    read_broken_minimums,
    read_losses,
    read_lost_gpu_hours,
    read_serving,
)
from ops_pipelines_lab.simulator.jobs import EndCause, Job
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import Bug, JobSpec, Scenario, cluster_nodes, with_checkpoint_age
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import GPU1, GPU2, SESSION, TRAINING, SmallCluster

SLOW_SAVES = replace(TRAINING, checkpoint_save_seconds=2.0, warm_up_seconds=3.0)
REPLICA = JobSpec(
    name="chat",
    user="product-serving",
    account="product",
    workload=Workload.INFERENCE,
    service="chat",
    min_serving_count=2,
)


# -- checkpoints --


@pytest.mark.parametrize(
    ("seconds", "step_count", "saved_count"),
    [
        pytest.param(3.0, 0, 0, id="warmed up, nothing done"),
        pytest.param(13.0, 20, 0, id="an interval done, saving begins"),
        pytest.param(14.9, 20, 0, id="just before it is saved: nothing done meanwhile"),
        pytest.param(15.0, 20, 20, id="saved"),
        pytest.param(16.0, 22, 20, id="continues"),
        pytest.param(27.0, 40, 40, id="second"),
    ],
)
def test_checkpoint_counts_when_it_is_complete(
    tmp_path: Path, seconds: float, step_count: int, saved_count: int
) -> None:
    cluster = SmallCluster(tmp_path, SLOW_SAVES)

    cluster.clock.wait(seconds)

    progress = cluster.progress(cluster.jobs[0])
    assert (progress.step_count, progress.checkpointed_step_count) == (step_count, saved_count)
    expected = None if not saved_count else BEGINNING + timedelta(seconds=3 + 12 * (saved_count // 20))
    assert progress.checkpointed_at == expected


@given(
    work=st.integers(1, 60),
    interval=st.integers(1, 15),
    save=st.integers(0, 5),
    warm_up=st.integers(0, 5),
    phase=st.integers(0, 19),
)
def test_job_completes_when_exactly_its_work_is_done(
    work: int, interval: int, save: int, warm_up: int, phase: int
) -> None:
    spec = replace(
        TRAINING,
        work_seconds=float(work),
        checkpoint_interval_seconds=float(interval),
        checkpoint_save_seconds=float(save),
        warm_up_seconds=float(warm_up),
        checkpoint_phase_seconds=float(phase % (interval + save)),
    )
    job = Job(job=JobId("1"), spec=spec, submitted_at=BEGINNING, eligible_at=BEGINNING)
    job.state, job.started_at = JobState.RUNNING, BEGINNING

    finishes_at = job.finishes_at()

    assert finishes_at is not None
    assert job.fresh_work(finishes_at) == timedelta(seconds=work)
    assert job.fresh_work(finishes_at - timedelta(seconds=0.5)) < timedelta(seconds=work)
    assert job.checkpointed_work(finishes_at) <= job.fresh_work(finishes_at)


@pytest.mark.parametrize("age_minutes", [1.0, 55.0])
@pytest.mark.parametrize("save_seconds", [0.0, 40.0])
def test_checkpoint_has_the_age_that_was_asked_for(tmp_path: Path, age_minutes: float, save_seconds: float) -> None:
    cluster = SmallCluster(tmp_path / "unused")
    hourly = replace(TRAINING, checkpoint_interval_seconds=3600.0, checkpoint_save_seconds=save_seconds)
    job = with_checkpoint_age(hourly, age_seconds=60 * age_minutes, after_seconds=7200.0)
    scenario = Scenario(nodes=cluster_nodes(2), initial_jobs=(job,))
    past = timedelta(hours=2)
    cluster.use(Twin.create(tmp_path / "twin", scenario, seed=7, clock=cluster.clock, past=past))

    found = cluster.job(JobId("1001"))

    assert found.checkpointed_at is not None
    assert cluster.clock.now() - found.checkpointed_at == timedelta(minutes=age_minutes)
    cluster.scheduler.hold(JobId("1001"))
    expected = (60 * age_minutes) / 3600 * 16
    assert read_lost_gpu_hours(cluster.twin).unsaved == pytest.approx(expected)


@pytest.mark.parametrize(
    ("age_seconds", "after_seconds"),
    [pytest.param(3600.0, 9000.0, id="a whole interval"), pytest.param(600.0, 600.0, id="older than the job")],
)
def test_impossible_age_of_a_checkpoint_is_refused(age_seconds: float, after_seconds: float) -> None:
    hourly = replace(TRAINING, checkpoint_interval_seconds=3600.0)

    with pytest.raises(ValueError, match="cannot have a checkpoint"):
        with_checkpoint_age(hourly, age_seconds=age_seconds, after_seconds=after_seconds)


def test_each_interrupted_attempt_costs_its_warm_up_too(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, SLOW_SAVES)
    cluster.clock.wait(16.0)

    cluster.scheduler.hold(cluster.jobs[0])

    (loss,) = read_losses(cluster.twin)
    assert loss.warm_up_gpu_hours == pytest.approx(3 * 16 / 3600)
    assert loss.unsaved_gpu_hours == pytest.approx(1 * 16 / 3600)
    assert read_lost_gpu_hours(cluster.twin).total == pytest.approx(4 * 16 / 3600)


@pytest.mark.parametrize(
    ("fields", "checkpointing", "every"),
    [
        pytest.param({}, Checkpointing.UNKNOWN, None, id="says nothing"),
        pytest.param({"checkpointing": Checkpointing.YES}, Checkpointing.YES, timedelta(seconds=10), id="says so"),
        pytest.param(
            {"checkpointing": Checkpointing.NO, "checkpoint_interval_seconds": None}, Checkpointing.NO, None, id="none"
        ),
        pytest.param({"declared_interval_seconds": 60.0}, Checkpointing.UNKNOWN, timedelta(minutes=1), id="says wrong"),
    ],
)
def test_job_is_listed_with_what_it_declares(
    tmp_path: Path, fields: dict[str, object], checkpointing: Checkpointing, every: timedelta | None
) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, **fields))  # type: ignore[arg-type]  # rows of different fields

    found = cluster.job(cluster.jobs[0])

    assert (found.checkpointing, found.checkpoint_every) == (checkpointing, every)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"checkpointing": Checkpointing.NO}, id="none and some"),
        pytest.param({"checkpointing": Checkpointing.YES, "checkpoint_interval_seconds": None}, id="some and none"),
        pytest.param({"checkpoint_phase_seconds": 10.0}, id="a whole interval ahead"),
        pytest.param({"min_serving_count": 1}, id="minimum of no service"),
        pytest.param({"warm_up_seconds": -1.0}, id="warm before its start"),
        pytest.param({"time_limit_seconds": 0.0}, id="no time"),
    ],
)
def test_contradictory_job_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pretrain"):
        replace(TRAINING, **fields)  # type: ignore[arg-type]  # rows of different fields


# -- limits and partitions --


def test_attempt_ends_at_its_time_limit(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, time_limit_seconds=60.0))
    (job,) = cluster.jobs
    cluster.clock.wait(59.9)
    before = cluster.job(job)

    cluster.clock.wait(1.1)

    assert (before.state, before.ends_by) == (JobState.RUNNING, BEGINNING + timedelta(seconds=60))
    assert (cluster.job(job).state, cluster.job(job).ends_by) == (JobState.TIMEOUT, None)


def test_job_starts_only_in_its_partition(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path / "unused")
    first, second = cluster_nodes(2)
    nodes = (first, replace(second, partitions=("batch", "debug")))
    job = replace(TRAINING, node_count=1, partition="debug")
    scenario = Scenario(nodes=nodes, initial_jobs=(job, job))
    cluster.use(Twin.create(tmp_path / "twin", scenario, seed=7, clock=cluster.clock))

    found = {job: (status.state, set(status.nodes)) for job, status in _by_id(cluster).items()}

    assert found == {JobId("1001"): (JobState.RUNNING, {GPU2}), JobId("1002"): (JobState.PENDING, set())}
    assert cluster.node(GPU2).partitions == {"batch", "debug"}
    with pytest.raises(SourceRefused, match="invalid partition"):
        cluster.twin.submit(replace(job, partition="big"))


def _by_id(cluster: SmallCluster) -> dict[JobId, object]:
    return {status.job: status for status in cluster.scheduler.read_jobs()}


def test_reservation_that_was_replaced_does_not_end_its_successor(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    now = cluster.clock.now()
    cluster.scheduler.reserve([GPU1], name="INC-7", until=now + timedelta(seconds=10))
    cluster.scheduler.reserve([GPU1], name="INC-7", until=now + timedelta(seconds=20))

    cluster.clock.wait(19.9)
    before = cluster.truth(GPU1).reserved_as
    cluster.clock.wait(0.1)

    assert (before, cluster.truth(GPU1).reserved_as) == ("INC-7", None)


# -- bugs --


def test_program_that_requeues_itself_crashes_again_and_again(tmp_path: Path) -> None:
    spec = replace(TRAINING, bug=Bug.CRASHES, bug_after_seconds=5.0, requeues_itself=True)
    cluster = SmallCluster(tmp_path, spec)

    cluster.clock.wait(8.0 * 10)

    status = cluster.job(cluster.jobs[0])
    assert status.restart_count == 10
    assert {loss.cause for loss in read_losses(cluster.twin)} == {EndCause.CRASHED_AND_REQUEUED}
    assert sum("Xid" in text for text in cluster.log_texts()) == 10
    assert cluster.truth(GPU1).is_well
    (page,) = SimulatedAccounting(cluster.twin).read_attempts(start=BEGINNING, end=BEGINNING + timedelta(minutes=1))
    assert page.body.count(b"REQUEUED") == 7


def test_held_crash_loop_stands_still(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, bug=Bug.CRASHES, requeues_itself=True))
    cluster.clock.wait(3.0)

    cluster.scheduler.hold(cluster.jobs[0])
    cluster.clock.wait(100.0)

    assert (cluster.job(cluster.jobs[0]).state, cluster.job(cluster.jobs[0]).restart_count) == (JobState.PENDING, 1)


def test_program_without_a_requeue_fails_once(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, bug=Bug.CRASHES, bug_after_seconds=5.0))

    cluster.clock.wait(100.0)

    assert cluster.job(cluster.jobs[0]).state is JobState.FAILED


def test_fault_follows_the_job_from_node_to_node(tmp_path: Path) -> None:
    spec = replace(TRAINING, node_count=1, bug=Bug.LOSES_GPU, bug_after_seconds=5.0)
    cluster = SmallCluster(tmp_path, spec)
    (job,) = cluster.jobs
    for _ in range(3):
        cluster.clock.wait(5.0)
        (bad,) = cluster.job(job).nodes
        cluster.scheduler.drain([bad], reason="INC-7")
        cluster.scheduler.requeue(job)
        cluster.clock.wait(4.0)

    broken = [node for node in cluster.twin.scenario.nodes if not cluster.truth(node.name).is_healthy]

    assert len(broken) == 3


# -- services --


def test_minimum_counts_replicas_that_serve_and_names_what_broke_it(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, REPLICA, REPLICA, REPLICA)
    first, second, third = cluster.jobs
    cluster.scheduler.hold(first)
    at_minimum = read_broken_minimums(cluster.twin)

    cluster.scheduler.hold(second)

    assert [change.serving_count for change in read_serving(cluster.twin)] == [3, 2, 1]
    assert at_minimum == ()
    (broken,) = read_broken_minimums(cluster.twin)
    assert (broken.service, broken.serving_count, broken.min_serving_count) == ("chat", 1, 2)
    assert broken.cause is EntryKind.HOLD
    assert cluster.job(third).service == "chat"


def test_fault_and_owner_break_no_minimum_of_ours_and_a_hung_replica_is_none(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, REPLICA, REPLICA, REPLICA)
    first, second, _ = cluster.jobs
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)
    cluster.twin.command(EntryKind.CANCEL, job=second)

    cluster.scheduler.hold(first)

    assert [change.serving_count for change in read_serving(cluster.twin)] == [3, 2, 1]
    assert read_broken_minimums(cluster.twin) == ()


def test_moved_replica_serves_again_when_it_has_warmed_up(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, *[replace(REPLICA, warm_up_seconds=10.0)] * 3)
    cluster.clock.wait(60.0)
    cluster.scheduler.requeue(cluster.jobs[0])

    cluster.clock.wait(60.0)

    changes = [(change.at - BEGINNING, change.serving_count) for change in read_serving(cluster.twin)]
    seconds = [(round(passed.total_seconds()), count) for passed, count in changes]
    assert seconds == [(0, 0), (10, 3), (60, 2), (74, 3)]


def test_cluster_without_services_keeps_no_account_of_them(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, SESSION)
    cluster.clock.wait(60.0)

    assert read_serving(cluster.twin) == ()
