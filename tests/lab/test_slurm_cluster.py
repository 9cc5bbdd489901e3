"""The throw-away Slurm itself: it starts, breaks, mends and leaves nothing behind."""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, JobStatus, NodeState, NodeStatus
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.commands import run_command
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler
from ops_pipelines_lab.drills import slurm_cluster
from ops_pipelines_lab.drills.daemon_processes import born_at, find_processes, wait_until
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster, SlurmClusterError, open_cluster
from ops_pipelines_lab.drills.slurm_cluster_files import NODE_MARK, SlurmClusterSettings
from ops_pipelines_lab.drills.writer_watch import (
    WRITE_LOG_SUFFIX,
    TwoWritersError,
    Write,
    WriterWatch,
    find_overlaps,
    read_writes,
)
from tests.lab.slurm_server import start_cluster

SOON_SECONDS = 60.0
"""Far above what anything here needs; never asserted on."""
QUIET = "--output=/dev/null"
"""sbatch writes into the directory that it is called from, otherwise."""


class Drill:
    """A clean cluster and the adapter that reads it."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.scheduler = SlurmScheduler(
            clock=SystemClock(),
            slurm_conf=cluster.settings.slurm_conf,
            checkpoint_roots=[cluster.settings.directory / "jobs"],
        )

    def node(self, name: NodeName) -> NodeStatus:
        return next(node for node in self.scheduler.read_nodes() if node.node == name)

    def job(self, job: JobId) -> JobStatus:
        return next(status for status in self.scheduler.read_jobs() if status.job == job)

    def checkpoint(self, name: str) -> Path:
        return self.cluster.settings.directory / "jobs" / name

    def writes(self, name: str) -> tuple[Write, ...]:
        """Return who wrote a checkpoint, and when."""
        return read_writes(self.checkpoint(f"{name}{WRITE_LOG_SUFFIX}").read_text())

    def train(self, name: str, *, node_count: int = 1) -> JobStatus:
        """Start a job that checkpoints five times a second, and return it once it has written."""
        checkpoint = self.checkpoint(name)
        checkpoint.unlink(missing_ok=True)
        self.checkpoint(f"{name}{WRITE_LOG_SUFFIX}").unlink(missing_ok=True)
        job = self.cluster.submit_training(
            name=name,
            node_count=node_count,
            comment=f"workload=training ckpt={checkpoint}",
            checkpoint=checkpoint,
            step_seconds=0.2,
            steps_per_checkpoint=1,
        )
        wait_until("a checkpoint", checkpoint.exists, timeout_seconds=SOON_SECONDS)
        return self.job(job)


def wait(what: str, is_so: Callable[[], bool]) -> None:
    wait_until(what, is_so, timeout_seconds=SOON_SECONDS)


@pytest.fixture(scope="module")
def started() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=3) as cluster:
        yield cluster


@pytest.fixture
def drill(started: SlurmCluster) -> Drill:
    # First what ends jobs: Slurm waits for a node that is gone as long as for one that is silent.
    for node in started.node_names:
        started.power_on_node(node)
    started.clear()
    return Drill(started)


# -- without a server --


def test_missing_programs_are_named_as_debian_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(slurm_cluster, "_PATH", str(tmp_path))

    with pytest.raises(
        SlurmClusterError, match=r"apt-get install .*mariadb-server munge slurm-client slurmctld slurmd"
    ):
        SlurmCluster(SlurmClusterSettings(directory=tmp_path / "c")).start()

    assert not (tmp_path / "c").exists()


def test_directory_without_a_cluster_is_neither_opened_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")

    with pytest.raises(SlurmClusterError, match="holds no cluster"):
        open_cluster(tmp_path)
    with pytest.raises(SlurmClusterError, match="holds no cluster"):
        SlurmCluster(SlurmClusterSettings(directory=tmp_path)).delete()

    assert (tmp_path / "precious").exists()


def test_stopping_what_never_started_is_no_error(tmp_path: Path) -> None:
    SlurmCluster(SlurmClusterSettings(directory=tmp_path / "none")).stop()

    assert not (tmp_path / "none").exists()


# -- the whole cluster --


@pytest.mark.live
def test_starting_a_running_cluster_changes_nothing(drill: Drill) -> None:
    before = drill.train("undisturbed")

    drill.cluster.start()

    after = drill.job(before.job)
    assert (after.state, after.attempt, after.restart_count) == (JobState.RUNNING, before.attempt, 0)


@pytest.mark.live
def test_running_cluster_refuses_other_settings(drill: Drill) -> None:
    settings = drill.cluster.settings
    other = SlurmClusterSettings(directory=settings.directory, node_count=7, first_port=settings.first_port)

    with pytest.raises(SlurmClusterError, match="other settings"):
        SlurmCluster(other).start()


@pytest.mark.live
def test_stop_leaves_no_process_and_start_brings_the_nodes_back(drill: Drill) -> None:
    drill.train("ended by stop", node_count=2)
    conf = str(drill.cluster.settings.slurm_conf)

    drill.cluster.stop()
    left = find_processes(lambda env: env.get("SLURM_CONF") == conf)
    drill.cluster.start()

    assert left == {}
    assert drill.cluster.is_running()
    assert {node.node for node in drill.scheduler.read_nodes()} == set(drill.cluster.node_names)


# -- single nodes --


@pytest.mark.live
def test_killed_node_looks_dead_while_its_job_still_writes(drill: Drill) -> None:
    (node,) = drill.train("orphan").nodes

    drill.cluster.kill_node(node)

    wait("Slurm to miss the node", lambda: not drill.node(node).is_responding)
    seen = drill.checkpoint("orphan").read_text()
    wait("the orphan to write", lambda: drill.checkpoint("orphan").read_text() != seen)
    assert drill.cluster.is_powered(node)


@pytest.mark.live
def test_job_of_a_killed_node_stays_held_when_slurm_gives_the_node_up(drill: Drill) -> None:
    """Hold before fence: the hold works on an unreachable node, and outlives the node's being set DOWN."""
    job = drill.train("held")
    (node,) = job.nodes
    drill.cluster.kill_node(node)

    drill.scheduler.hold(job.job)

    wait("Slurm to set the node down", lambda: drill.node(node).state is NodeState.DOWN)
    wait("the job to be given up", lambda: drill.job(job.job).state is JobState.PENDING)
    assert drill.job(job.job).is_held


@pytest.mark.live
def test_power_off_leaves_no_process_of_the_node_and_touches_no_other(drill: Drill) -> None:
    first, second = drill.train("first"), drill.train("second")
    (node,) = first.nodes

    drill.cluster.power_off_node(node)

    conf = str(drill.cluster.settings.slurm_conf)
    assert not find_processes(lambda env: env.get("SLURM_CONF") == conf and env.get(NODE_MARK) == node)
    assert not find_processes(lambda env: env.get("SLURM_CONF") == conf and env.get("SLURMD_NODENAME") == node)
    assert not drill.cluster.is_powered(node)
    assert drill.job(second.job).attempt == second.attempt
    seen = drill.checkpoint("second").read_text()
    wait("the other job to write", lambda: drill.checkpoint("second").read_text() != seen)


@pytest.mark.live
def test_power_off_ends_an_orphan_that_outlived_its_slurmd(drill: Drill) -> None:
    """The worst case: slurmd is long gone, and its slurmstepd and the job's processes continue writing."""
    (node,) = drill.train("orphan").nodes
    drill.cluster.kill_node(node)
    orphans = drill.cluster.find_processes_of(node)
    seen = drill.writes("orphan")
    wait("the orphan to write", lambda: len(drill.writes("orphan")) > len(seen))

    drill.cluster.power_off_node(node)

    writers = {write.writer.pid for write in drill.writes("orphan")}
    assert writers <= orphans.keys(), "the orphan that writes was not among the node's processes"
    assert [pid for pid, born in orphans.items() if born_at(pid) == born] == []
    assert drill.cluster.find_processes_of(node) == {}
    written = drill.checkpoint("orphan").stat().st_mtime_ns
    other = drill.train("witness of time").job
    assert drill.job(other).state is JobState.RUNNING
    assert drill.checkpoint("orphan").stat().st_mtime_ns == written


@pytest.mark.live
def test_declaring_a_silent_node_down_before_its_fence_makes_two_writers_and_the_watch_sees_them(drill: Drill) -> None:
    """Why down is no fence. It also shows that the watch can fail."""
    job = drill.train("torn")
    (node,) = job.nodes
    watch = WriterWatch(drill.checkpoint("torn").parent)
    watch.start()
    drill.cluster.kill_node(node)

    drill.scheduler.declare_down(node, reason="INC-1 looks dead")

    wait("a second writer", lambda: len({write.writer for write in drill.writes("torn")}) > 1)
    wait("the first to continue", lambda: bool(find_overlaps(drill.writes("torn"))))
    watch.stop()
    with pytest.raises(TwoWritersError, match=f"on {node}"):
        watch.refuse_two_writers()


@pytest.mark.live
def test_job_of_a_silent_node_runs_elsewhere_from_its_checkpoint_once_fenced(drill: Drill) -> None:
    """Hold, fence, declare down, exclude, release: the order that never makes two writers."""
    job = drill.train("moved")
    (node,) = job.nodes
    drill.cluster.kill_node(node)
    wait("Slurm to miss the node", lambda: not drill.node(node).is_responding)

    drill.scheduler.hold(job.job)
    marked = drill.job(job.job)
    drill.cluster.power_off_node(node)
    drill.scheduler.declare_down(node, reason="INC-1 powered off")
    wait("the attempt to be gone", lambda: drill.job(job.job).state not in HAS_PROCESSES)
    requeued = drill.job(job.job)
    saved = int(drill.checkpoint("moved").read_text())
    drill.scheduler.exclude(job.job, [node])
    drill.scheduler.release(job.job)

    # Progress, not the state alone: 22.05.8 starts a job whose GPUs it lost, too, and that fails at its first step.
    wait("progress", lambda: int(drill.checkpoint("moved").read_text()) > saved)
    again = drill.job(job.job)
    assert (marked.state, marked.is_held) == (JobState.RUNNING, True)
    assert (requeued.state, requeued.is_held) == (JobState.PENDING, True)
    assert node not in again.nodes
    assert again.state is JobState.RUNNING
    assert again.restart_count >= 1


@pytest.mark.live
def test_job_of_an_answering_node_runs_elsewhere_from_its_checkpoint(drill: Drill) -> None:
    job = drill.train("moved")
    (node,) = job.nodes

    drill.scheduler.hold(job.job)
    wait("the attempt to be gone", lambda: drill.job(job.job).state not in HAS_PROCESSES)
    saved = int(drill.checkpoint("moved").read_text())
    drill.scheduler.exclude(job.job, [node])
    drill.scheduler.release(job.job)

    wait("progress", lambda: int(drill.checkpoint("moved").read_text()) > saved)
    again = drill.job(job.job)
    assert node not in again.nodes
    assert again.state is JobState.RUNNING
    # Slurm counts a requeue, not a start: a hold that had to be sent twice, or a launch that failed, counts too.
    assert again.restart_count >= 1


@pytest.mark.live
def test_reboot_past_slurm_keeps_drain_reason_and_time_and_moves_the_boot_time(drill: Drill) -> None:
    node = drill.cluster.node_names[0]
    drill.scheduler.drain([node], reason="INC-7 ours")
    before = drill.node(node)

    drill.cluster.reboot_node(node)

    wait("the node to boot", lambda: (drill.node(node).booted_at or _boot_of(before)) > _boot_of(before))
    after = drill.node(node)
    assert (after.is_drained, after.reason, after.reason_set_at) == (True, "INC-7 ours", before.reason_set_at)
    # DOWN, unless the node was back so soon that Slurm never missed it.
    assert after.state in (NodeState.DOWN, NodeState.IDLE)
    drill.scheduler.resume(node)
    wait("the node to be back", lambda: drill.node(node).state is NodeState.IDLE)
    assert not drill.node(node).is_drained


@pytest.mark.live
def test_reboot_by_slurm_keeps_the_drain_but_changes_its_reason(drill: Drill) -> None:
    node = drill.cluster.node_names[0]
    drill.scheduler.drain([node], reason="INC-7 ours")

    _slurm(drill, "scontrol", "reboot", node)

    changed = "INC-7 ours : reboot issued"
    wait("Slurm to reboot the node", lambda: drill.node(node).reason == changed)
    wait("the node to be back", lambda: drill.node(node).state is NodeState.IDLE)
    assert (drill.node(node).is_drained, drill.node(node).reason) == (True, changed)


@pytest.mark.live
def test_reboot_asap_undrains_a_node_that_was_drained_on_22_05(drill: Drill) -> None:
    """Why the documented command never says ASAP: a newer one keeps the drain, and nobody knows from when on."""
    node = drill.cluster.node_names[0]
    drill.scheduler.drain([node], reason="INC-7 ours")

    _slurm(drill, "scontrol", "reboot", "ASAP", node)

    if _version(drill) < (25, 11):
        wait("the drain to be lost", lambda: not drill.node(node).is_drained)
    else:
        wait("Slurm to reboot the node", lambda: drill.node(node).reason == "INC-7 ours : reboot issued")
        wait("the node to be back", lambda: drill.node(node).state is NodeState.IDLE)
        assert drill.node(node).is_drained


@pytest.mark.live
def test_reboot_is_told_to_the_configured_program(drill: Drill, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')"
    listening = SlurmCluster(replace(drill.cluster.settings, on_reboot=(sys.executable, "-c", program, str(told))))

    listening.reboot_node(drill.cluster.node_names[1])

    assert told.read_text() == f"{drill.cluster.node_names[1]}\n"


@pytest.mark.live
def test_unknown_node_is_refused(drill: Drill) -> None:
    with pytest.raises(SlurmClusterError, match="no node of this cluster"):
        drill.cluster.power_off_node(NodeName("gpu999"))


# -- what all nodes share --


@pytest.mark.live
def test_killed_controller_answers_nobody_and_goes_on_where_it_was(drill: Drill) -> None:
    job = drill.train("older than the kill")
    node = min(job.nodes)
    wait("the job to be saved", lambda: _age_seconds(drill.job(job.job)) > 10.0)

    drill.cluster.kill_controller()
    with pytest.raises(SourceUnavailable):
        drill.scheduler.drain([node], reason="INC-1 nobody hears this")
    drill.cluster.start_controller()

    after = drill.job(job.job)
    assert (after.state, after.attempt, after.restart_count) == (JobState.RUNNING, job.attempt, 0)
    assert not drill.node(node).is_drained


@pytest.mark.live
def test_without_accounting_a_node_is_drained_and_a_job_moved(drill: Drill) -> None:
    job = drill.train("unaccounted")
    drill.cluster.kill_accounting()

    drill.scheduler.drain(sorted(job.nodes), reason="INC-1 ours")
    drill.scheduler.hold(job.job)

    wait("the job to be held", lambda: drill.job(job.job).state is JobState.PENDING)
    assert drill.job(job.job).is_held
    assert drill.node(min(job.nodes)).is_drained
    drill.cluster.start_accounting()


@pytest.mark.live
def test_operator_drains_over_a_drain_that_is_there(drill: Drill) -> None:
    node = drill.cluster.node_names[0]
    drill.scheduler.drain([node], reason="ops_pipelines INC-1: ours")

    drill.cluster.drain_as_operator(node, reason="OPS-1 mine")

    assert (drill.node(node).is_drained, drill.node(node).reason) == (True, "OPS-1 mine")


# -- what only Slurm does --


@pytest.mark.live
def test_finished_job_is_not_run_again_by_a_late_hold(drill: Drill) -> None:
    job = drill.train("cancelled")
    _slurm(drill, "scancel", job.job)

    with pytest.raises(SourceRefused):
        drill.scheduler.hold(job.job)

    wait("the job to end", lambda: drill.job(job.job).state is JobState.CANCELLED)


@pytest.mark.live
def test_hold_of_one_array_task_leaves_the_others_running(drill: Drill) -> None:
    array = _slurm(drill, "sbatch", "--parsable", "--array=0-1", "--gres=gpu:1", QUIET, "--wrap=sleep 600").strip()
    tasks = [JobId(f"{array}_{task}") for task in (0, 1)]
    wait("both tasks", lambda: all(_state(drill, task) is JobState.RUNNING for task in tasks))

    drill.scheduler.hold(tasks[1])

    wait("the task to end", lambda: drill.job(tasks[1]).state is JobState.PENDING)
    assert drill.job(tasks[1]).is_held
    assert (drill.job(tasks[0]).state, drill.job(tasks[0]).is_held) == (JobState.RUNNING, False)


@pytest.mark.live
def test_job_that_must_not_be_requeued_is_refused(drill: Drill) -> None:
    job = JobId(_slurm(drill, "sbatch", "--parsable", "--no-requeue", QUIET, "--wrap=sleep 600").strip())
    wait("the job", lambda: _state(drill, job) is JobState.RUNNING)

    with pytest.raises(SourceRefused):
        drill.scheduler.hold(job)

    assert drill.job(job).state is JobState.RUNNING


@pytest.mark.live
def test_checkpoint_time_is_read_from_the_declared_file(drill: Drill) -> None:
    job = drill.train("checkpointed")

    assert drill.job(job.job).checkpointed_at is not None


def _slurm(drill: Drill, *argv: str) -> str:
    """Run one client as an operator or a user would."""
    assert shutil.which(argv[0])
    environment = {**drill.cluster.client_environment, "HOME": str(drill.cluster.settings.directory)}
    answer = run_command(argv, environment=environment, timeout_seconds=30)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def _version(drill: Drill) -> tuple[int, ...]:
    """Return the release that is run: 22, 5 of `slurm-wlm 22.05.8`."""
    return tuple(int(part) for part in _slurm(drill, "scontrol", "--version").split()[1].split(".")[:2])


def _state(drill: Drill, job: JobId) -> JobState | None:
    return next((status.state for status in drill.scheduler.read_jobs() if status.job == job), None)


def _boot_of(node: NodeStatus) -> datetime:
    assert node.booted_at is not None
    return node.booted_at


def _age_seconds(job: JobStatus) -> float:
    assert job.started_at is not None
    return (SystemClock().now() - job.started_at).total_seconds()
