"""Jobs on the twin: starting, checkpoints, requeue with a hold, and what an interruption costs."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.observation import JobState
from ops_pipelines.core.sources import SourceRefused
from ops_pipelines_lab.simulator.ground_truth import read_losses, read_lost_gpu_hours
from ops_pipelines_lab.simulator.jobs import EndCause
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, GPU4, SERVICE, SESSION, TRAINING, SmallCluster


@pytest.mark.parametrize(
    ("seconds", "checkpoints"),
    [
        pytest.param(9.99, 0, id="just before the first"),
        pytest.param(10.0, 1, id="exactly at the first"),
        pytest.param(19.99, 1, id="just before the second"),
        pytest.param(25.0, 2, id="between"),
    ],
)
def test_training_checkpoints_at_its_interval(tmp_path: Path, seconds: float, checkpoints: int) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    cluster.clock.wait(seconds)

    progress = cluster.progress(cluster.jobs[0])
    assert progress.step_count == int(seconds / 0.5)
    assert progress.checkpointed_step_count == 20 * checkpoints
    expected = BEGINNING + timedelta(seconds=10 * checkpoints) if checkpoints else None
    assert progress.checkpointed_at == cluster.job(cluster.jobs[0]).checkpointed_at == expected


def test_hung_job_makes_no_steps_and_no_checkpoints(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(15.0)

    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU2, gpu=0)
    cluster.clock.wait(100.0)

    progress = cluster.progress(cluster.jobs[0])
    assert (progress.is_hung, progress.step_count, progress.checkpointed_step_count) == (True, 30, 20)
    assert cluster.job(cluster.jobs[0]).state is JobState.RUNNING


@pytest.mark.parametrize(("command", "expected"), [(EntryKind.CANCEL, True), (EntryKind.REQUEUE, False)])
def test_job_that_completes_has_ended_for_good_if_nothing_brings_it_back(
    tmp_path: Path, command: EntryKind, expected: bool
) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.clock.wait(15.0)
    while_it_runs = cluster.progress(job).has_ended_for_good

    cluster.twin.command(command, job=job)
    completing = cluster.progress(job)
    cluster.clock.wait(60.0)

    assert completing.state is JobState.COMPLETING
    assert (while_it_runs, completing.has_ended_for_good) == (False, expected)
    assert cluster.progress(job).has_ended_for_good is expected


def test_hung_training_shows_full_utilisation_without_power_or_tensor_work(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.clock.wait(30.0)
    busy = cluster.metric("DCGM_FI_DEV_POWER_USAGE", GPU1)

    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU2, gpu=0)
    cluster.clock.wait(5.0)

    assert set(cluster.metric("DCGM_FI_DEV_GPU_UTIL", GPU1).values()) == {100.0}
    assert max(cluster.metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", GPU1).values()) == 0.0
    assert max(cluster.metric("DCGM_FI_DEV_POWER_USAGE", GPU1).values()) < 0.5 * min(busy.values())


def test_held_job_completes_through_kill_wait_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.clock.wait(15.0)
    first = cluster.job(job)

    cluster.scheduler.hold(job)
    completing = cluster.job(job)
    cluster.clock.wait(1.0)
    held = cluster.job(job)
    cluster.clock.wait(60.0)
    cluster.scheduler.release(job)
    again = cluster.job(job)
    cluster.clock.wait(5.0)

    assert (completing.state, completing.is_held, completing.nodes) == (JobState.COMPLETING, True, first.nodes)
    assert (held.state, held.is_held, held.restart_count) == (JobState.PENDING, True, 1)
    assert (again.state, again.started_at) == (JobState.RUNNING, BEGINNING + timedelta(seconds=76))
    assert cluster.progress(job).step_count == 20 + 10


def test_released_job_waits_out_the_requeue_delay(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.scheduler.hold(job)
    cluster.clock.wait(1.0)

    cluster.scheduler.release(job)
    cluster.clock.wait(2.75)
    waiting = cluster.job(job)
    cluster.clock.wait(0.25)

    assert waiting.state is JobState.PENDING
    assert cluster.job(job).state is JobState.RUNNING


def test_requeued_job_starts_elsewhere_when_its_node_is_drained(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.scheduler.drain([GPU1], reason="INC-7")

    cluster.scheduler.requeue(job)
    cluster.clock.wait(4.0)

    assert cluster.job(job).nodes == {GPU2, GPU3}


def test_job_without_end_of_work_completes_when_its_work_is_done(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, work_seconds=30.0))
    (job,) = cluster.jobs

    cluster.clock.wait(29.9)
    before = cluster.job(job).state
    cluster.clock.wait(0.1)

    assert (before, cluster.job(job).state) == (JobState.RUNNING, JobState.COMPLETED)
    assert cluster.job(job).ended_at == BEGINNING + timedelta(seconds=30)
    assert read_losses(cluster.twin) == ()


def test_ended_job_is_forgotten_after_min_job_age(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, work_seconds=30.0))

    cluster.clock.wait(30.0 + 299.0)
    known = cluster.scheduler.read_jobs()
    cluster.clock.wait(1.0)

    assert len(known) == 1
    assert cluster.scheduler.read_jobs() == ()


def test_lost_gpu_hours_are_the_unsaved_work_and_the_hung_time(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.clock.wait(16.0)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)
    cluster.clock.wait(9.0)
    hanging = read_lost_gpu_hours(cluster.twin)

    cluster.scheduler.hold(job)
    cluster.clock.wait(60.0)

    (loss,) = read_losses(cluster.twin)
    assert loss.cause is EndCause.REQUEUED
    assert loss.unsaved_gpu_hours == pytest.approx(16 * 6 / 3600)
    assert loss.hung_gpu_hours == pytest.approx(16 * 9 / 3600)
    lost = read_lost_gpu_hours(cluster.twin)
    assert (lost.unsaved, lost.hung) == pytest.approx((hanging.unsaved, hanging.hung))
    assert lost.by_cause[EndCause.REQUEUED] == pytest.approx(lost.total)


def test_service_loses_only_the_time_in_which_it_hung(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, SERVICE)
    cluster.clock.wait(1000.0)
    cluster.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=0)
    cluster.clock.wait(9.0)

    cluster.scheduler.hold(cluster.jobs[0])

    (loss,) = read_losses(cluster.twin)
    assert (loss.unsaved_gpu_hours, loss.hung_gpu_hours) == pytest.approx((0.0, 16 * 9 / 3600))


@pytest.mark.parametrize("kind", [EntryKind.HOLD, EntryKind.REQUEUE])
def test_session_must_not_be_requeued(tmp_path: Path, kind: EntryKind) -> None:
    cluster = SmallCluster(tmp_path, SESSION)
    before = cluster.job(cluster.jobs[0])

    with pytest.raises(SourceRefused, match="must not be requeued"):
        cluster.twin.command(kind, job=cluster.jobs[0])

    assert cluster.job(cluster.jobs[0]) == before


@pytest.mark.parametrize("kind", [EntryKind.HOLD, EntryKind.REQUEUE, EntryKind.RELEASE, EntryKind.EXCLUDE])
def test_ended_job_refuses_every_command(tmp_path: Path, kind: EntryKind) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    cluster.twin.command(EntryKind.CANCEL, job=cluster.jobs[0])
    cluster.clock.wait(1.0)
    before = cluster.job(cluster.jobs[0])

    with pytest.raises(SourceRefused, match="already ended"):
        cluster.twin.command(kind, job=cluster.jobs[0], nodes=(GPU1,))

    assert before.state is JobState.CANCELLED
    assert cluster.job(cluster.jobs[0]) == before


def test_refused_command_is_journalled_as_refused(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)

    with pytest.raises(SourceRefused):
        cluster.scheduler.exclude(cluster.jobs[0], [GPU1])

    (entry,) = cluster.twin.entries()
    assert entry.kind is EntryKind.EXCLUDE
    assert entry.refusal is not None
    assert "no longer pending" in entry.refusal


# -- where jobs go --


def test_small_jobs_leave_whole_nodes_whole(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, SESSION, SESSION, replace(SESSION, gpus_per_node=4))

    assert {next(iter(cluster.job(job).nodes)) for job in cluster.jobs} == {GPU4}
    assert cluster.node(GPU4).gpu_in_use_count == 6


def test_wide_job_that_waits_is_not_starved_by_small_ones(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, node_count=3, work_seconds=50.0))
    wide = cluster.twin.submit(replace(TRAINING, node_count=4))
    small = cluster.twin.submit(replace(SESSION, work_seconds=500.0))

    cluster.clock.wait(50.0)

    assert cluster.job(wide).state is JobState.RUNNING
    assert cluster.job(small).state is JobState.PENDING


def test_job_too_wide_for_the_cluster_keeps_nobody_waiting(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    giant = cluster.twin.submit(replace(TRAINING, node_count=99))

    small = cluster.twin.submit(SESSION)

    assert cluster.job(giant).state is JobState.PENDING
    assert cluster.job(small).state is JobState.RUNNING


def test_higher_priority_starts_first(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, node_count=4, work_seconds=20.0))
    low = cluster.twin.submit(replace(TRAINING, node_count=4))
    high = cluster.twin.submit(replace(TRAINING, node_count=4, priority=10))

    cluster.clock.wait(20.0)

    assert cluster.job(high).state is JobState.RUNNING
    assert cluster.job(low).state is JobState.PENDING


# -- commands at odd moments --


def test_hold_while_completing_catches_the_job_before_it_starts_again(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.scheduler.requeue(job)
    cluster.clock.wait(0.5)

    cluster.scheduler.hold(job)
    cluster.clock.wait(60.0)

    assert (cluster.job(job).state, cluster.job(job).restart_count) == (JobState.PENDING, 1)


def test_release_while_completing_lets_it_start_after_the_requeue_delay(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.scheduler.hold(job)

    cluster.scheduler.release(job)
    cluster.clock.wait(4.0)

    assert cluster.job(job).started_at == BEGINNING + timedelta(seconds=4)


def test_requeue_of_a_pending_job_changes_nothing(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.scheduler.hold(job)
    cluster.clock.wait(1.0)
    before = cluster.job(job)

    cluster.scheduler.requeue(job)

    assert cluster.job(job) == before


def test_session_on_a_node_given_up_ends_as_node_fail(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, SESSION)
    (job,) = cluster.jobs
    cluster.fleet.power_off(GPU4)

    cluster.scheduler.declare_down(GPU4, reason="INC-7")

    assert cluster.job(job).state is JobState.NODE_FAIL
    assert cluster.job(job).ended_at == cluster.clock.now()


def test_drained_nodes_job_goes_on_to_its_end(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, work_seconds=30.0))
    cluster.scheduler.drain([GPU1, GPU2], reason="INC-7")

    cluster.clock.wait(30.0)

    assert cluster.job(cluster.jobs[0]).state is JobState.COMPLETED


def test_work_saved_by_earlier_attempts_counts_towards_the_end(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, replace(TRAINING, work_seconds=30.0))
    (job,) = cluster.jobs
    cluster.clock.wait(25.0)
    cluster.scheduler.requeue(job)

    cluster.clock.wait(1.0 + 3.0 + 10.0)

    # 20 s were in the checkpoint; the other 10 s follow the restart at 29 s.
    assert cluster.job(job).state is JobState.COMPLETED
    assert cluster.job(job).ended_at == BEGINNING + timedelta(seconds=39)
