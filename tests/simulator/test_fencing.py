"""Split brain: when a second copy of a job appears, and which order of commands keeps it from appearing."""

from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, NodeState, PowerState
from ops_pipelines_lab.simulator.ground_truth import read_split_brains
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS
from tests.simulator.small_cluster import GPU1, GPU2, GPU3, TRAINING, SmallCluster

SOON_SLURMD_TIMEOUT = replace(SHORT_DURATIONS, slurmd_timeout_seconds=10.0)


def test_job_stays_held_when_slurm_itself_gives_up_the_node(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, durations=SOON_SLURMD_TIMEOUT)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    cluster.clock.wait(3.0)

    cluster.scheduler.hold(job)
    cluster.clock.wait(5.0)
    still = cluster.job(job)
    cluster.clock.wait(30.0)

    assert still.state is JobState.COMPLETING
    assert cluster.node(GPU1).state is NodeState.DOWN
    assert (cluster.job(job).state, cluster.job(job).is_held) == (JobState.PENDING, True)
    assert len(cluster.progress(job).writers) == 1, "the orphan on the dead node continues"
    assert read_split_brains(cluster.twin) == ()


def test_declaring_an_unreachable_node_down_starts_a_second_writer(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    cluster.clock.wait(3.0)

    cluster.scheduler.declare_down(GPU1, reason="not fenced")
    cluster.clock.wait(5.0)

    assert cluster.job(job).state is JobState.RUNNING
    assert cluster.job(job).nodes == {GPU2, GPU3}
    assert len(cluster.progress(job).writers) == 2
    assert len(read_split_brains(cluster.twin)) == 1


def test_slurmd_timeout_alone_starts_a_second_writer(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, durations=SOON_SLURMD_TIMEOUT)
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)

    cluster.clock.wait(30.0)

    assert cluster.node(GPU1).state is NodeState.DOWN
    assert len(cluster.progress(cluster.jobs[0]).writers) == 2


def test_start_guard_keeps_the_second_writer_back_until_the_node_has_no_power(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, durations=SOON_SLURMD_TIMEOUT, has_start_guard=True)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)

    cluster.clock.wait(60.0)
    kept_back = cluster.job(job).state
    cluster.fleet.power_off(GPU1)
    cluster.clock.wait(15.0)

    assert kept_back is JobState.PENDING
    assert cluster.job(job).state is JobState.RUNNING
    assert read_split_brains(cluster.twin) == ()


def test_start_guard_lets_a_restart_go_ahead_when_the_silent_node_answers_again(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING, durations=SOON_SLURMD_TIMEOUT, has_start_guard=True)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, seconds=40.0)

    cluster.clock.wait(35.0)
    kept_back = cluster.job(job).state
    cluster.clock.wait(25.0)

    assert kept_back is JobState.PENDING
    assert cluster.job(job).state is JobState.RUNNING
    assert read_split_brains(cluster.twin) == ()


def test_releasing_a_held_job_whose_node_was_only_declared_down_starts_a_second_writer(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    cluster.clock.wait(3.0)
    cluster.scheduler.hold(job)
    cluster.scheduler.declare_down(GPU1, reason="not fenced")
    cluster.clock.wait(2.0)

    cluster.scheduler.release(job)
    cluster.clock.wait(5.0)

    assert len(read_split_brains(cluster.twin)) == 1


def test_power_off_kills_the_orphan_and_release_is_then_safe(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NODE_UNREACHABLE, GPU1)
    cluster.clock.wait(3.0)

    _hold_fence_exclude_release(cluster, job, GPU1)
    cluster.clock.wait(5.0)

    assert cluster.job(job).state is JobState.RUNNING
    assert GPU1 not in cluster.job(job).nodes
    assert len(cluster.progress(job).writers) == 1
    assert read_split_brains(cluster.twin) == ()


def test_orphan_is_killed_when_its_node_answers_again(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, seconds=20.0)
    cluster.clock.wait(3.0)
    cluster.scheduler.hold(job)
    cluster.clock.wait(10.0)
    during = cluster.job(job).state

    cluster.clock.wait(10.0)

    assert during is JobState.COMPLETING
    assert cluster.job(job).state is JobState.PENDING
    assert cluster.progress(job).writers == frozenset()


def test_partition_shorter_than_a_ping_leaves_no_job_completing_for_ever(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path, TRAINING)
    (job,) = cluster.jobs
    cluster.clock.wait(0.1)
    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, seconds=1.5)

    cluster.scheduler.hold(job)
    cluster.clock.wait(3.0)

    assert cluster.job(job).state is JobState.PENDING


def test_job_launched_on_a_node_that_just_died_hangs_and_is_requeued_when_the_node_is_back(tmp_path: Path) -> None:
    cluster = SmallCluster(tmp_path)
    cluster.clock.wait(0.1)
    cluster.twin.inject(FaultKind.NETWORK_PARTITION, GPU1, seconds=1.0)

    job = cluster.twin.submit(TRAINING)
    launched = cluster.progress(job)
    cluster.clock.wait(7.0)

    assert (launched.state, launched.is_hung) == (JobState.RUNNING, True)
    assert (cluster.job(job).state, cluster.job(job).restart_count) == (JobState.RUNNING, 1)
    assert not cluster.progress(job).is_hung


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.floats(0.0, 40.0),
    noticed_after=st.floats(0.0, 30.0),
    released_after=st.floats(0.0, 20.0),
    fault=st.sampled_from([FaultKind.NODE_UNREACHABLE, FaultKind.GPU_FELL_OFF_BUS, FaultKind.UNCORRECTABLE_ECC]),
    slurmd_timeout_seconds=st.sampled_from([3.0, 12.0, 300.0]),
)
def test_hold_fence_exclude_release_never_lets_two_copies_write(
    tmp_path: Path,
    before: float,
    noticed_after: float,
    released_after: float,
    fault: FaultKind,
    slurmd_timeout_seconds: float,
) -> None:
    durations = replace(SHORT_DURATIONS, slurmd_timeout_seconds=slurmd_timeout_seconds)
    number = len(list(tmp_path.iterdir()))
    cluster = SmallCluster(tmp_path / str(number), TRAINING, durations=durations)
    (job,) = cluster.jobs
    cluster.clock.wait(before)
    cluster.twin.inject(fault, GPU1, gpu=None if fault is FaultKind.NODE_UNREACHABLE else 2)
    # Slurm's own time-out may come first and do the harm: the order protects only what is held before.
    cluster.clock.wait(min(noticed_after, slurmd_timeout_seconds - 2.5))

    _hold_fence_exclude_release(cluster, job, GPU1)
    cluster.clock.wait(released_after)

    assert read_split_brains(cluster.twin) == ()
    assert len(cluster.progress(job).writers) <= 1
    assert GPU1 not in cluster.job(job).nodes


def _hold_fence_exclude_release(cluster: SmallCluster, job: JobId, node: NodeName) -> None:
    cluster.scheduler.drain([node], reason="INC-7")
    cluster.scheduler.hold(job)
    if not cluster.truth(node).answers:
        cluster.fleet.power_off(node)
        assert cluster.fleet.power_state(node) is PowerState.OFF
        cluster.scheduler.declare_down(node, reason="INC-7 powered off")
    cluster.clock.wait_until(lambda: cluster.job(job).state not in HAS_PROCESSES, 60.0)
    cluster.scheduler.exclude(job, [node])
    cluster.scheduler.release(job)
