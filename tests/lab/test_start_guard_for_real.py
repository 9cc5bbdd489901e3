"""The start guard on a real Slurm: no second copy, and no cluster that has stopped, whatever is broken around it."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus
from ops_pipelines.resources.slurm.guard.installation import JUDGE, SETTINGS
from ops_pipelines.resources.slurm.guard.start_guard import MARK, let_pass, read_settings, record_paths, status
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from ops_pipelines_lab.drills.writer_watch import WRITE_LOG_SUFFIX, find_overlaps, read_writes
from tests.lab.slurm_server import start_cluster

pytestmark = pytest.mark.live

SOON_SECONDS = 240.0
"""Far above what anything here needs; never asserted on."""
_WRITES_OF_TWO_SECONDS = 20


class Guarded:
    """A clean cluster of four nodes whose slurmctld runs the start guard."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.guard = cluster.settings.guard
        # Of its own: an orphan of the test before may still write.
        self._jobs = Path(tempfile.mkdtemp(prefix="jobs-", dir=cluster.settings.directory))
        self._scheduler = SlurmScheduler(clock=SystemClock(), slurm_conf=cluster.settings.slurm_conf)

    def run(self, *argv: str, seconds: float = SOON_SECONDS) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            env=self.cluster.client_environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def checkpoint(self, name: str) -> Path:
        return self._jobs / name

    def train(self, name: str, *options: str, node_count: int = 1) -> JobId:
        """Submit a training and return once it saves."""
        job = self.cluster.submit_training(
            name=name,
            node_count=node_count,
            comment="workload=training",
            checkpoint=self.checkpoint(name),
            step_seconds=0.2,
            steps_per_checkpoint=1,
            options=options,
        )
        self.wait(f"{name} to save", lambda: self.checkpoint(name).exists() and bool(self.job(job).nodes))
        return job

    def job(self, job: JobId) -> JobStatus:
        return next(each for each in self._scheduler.read_jobs() if each.job == job)

    def unguarded(self) -> str:
        """Return why the autopilot thinks that restarts are not guarded."""
        return self._scheduler.read_limits().unguarded

    def node_of(self, job: JobId) -> NodeName:
        (node,) = self.job(job).nodes
        return node

    def lose(self, node: NodeName) -> None:
        """Kill the node's slurmd, and let Slurm give the node up at once: its jobs' processes continue."""
        self.cluster.kill_node(node)
        assert self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost").returncode == 0

    def is_pending_held(self, job: JobId) -> bool:
        found = self.job(job)
        return found.state is JobState.PENDING and found.is_held

    def goes_on_away_from(self, name: str, node: NodeName) -> bool:
        return any(write.writer.node != node for write in self.writes(name))

    def writes(self, name: str) -> tuple:  # type: ignore[type-arg] # writes of the log
        log = self.checkpoint(f"{name}{WRITE_LOG_SUFFIX}")
        return read_writes(log.read_text()) if log.exists() else ()

    def comment_of(self, job: JobId) -> str:
        shown = self.run("scontrol", "show", "job", job).stdout
        return next((line.strip() for line in shown.splitlines() if "AdminComment" in line), "")

    def wait(self, what: str, is_so, *, seconds: float = SOON_SECONDS) -> None:  # type: ignore[no-untyped-def] # predicate
        wait_until(what, is_so, timeout_seconds=seconds, every_seconds=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=4, is_guarded=True) as running:
        yield running


@pytest.fixture
def guarded(cluster: SlurmCluster) -> Iterator[Guarded]:
    cluster.start()
    cluster.clear()
    cluster.settings.guard.write()  # A test before this one broke it.
    yield Guarded(cluster)
    cluster.settings.guard.write()


def test_a_silent_nodes_job_starts_elsewhere_only_after_its_power_is_off(guarded: Guarded) -> None:
    job = guarded.train("silent")
    node = guarded.node_of(job)

    guarded.cluster.kill_node(node)
    guarded.wait("Slurm to give the node up and the guard to hold", lambda: guarded.is_pending_held(job))
    held_for = guarded.comment_of(job)
    wrote_when_held = guarded.writes("silent")[-1].at_microseconds
    guarded.wait("the orphan to continue", lambda: guarded.writes("silent")[-1].at_microseconds > wrote_when_held)
    guarded.cluster.power_off_node(node)
    guarded.wait("the job to continue", lambda: guarded.goes_on_away_from("silent", node))

    assert MARK in held_for
    assert f"{node} still runs" in held_for
    assert find_overlaps(guarded.writes("silent")) == ()


def test_a_node_that_answers_without_the_job_lets_it_go(guarded: Guarded) -> None:
    job = guarded.train("requeued")

    assert guarded.run("scontrol", "requeue", job).returncode == 0
    guarded.wait(
        "a second attempt", lambda: len({write.writer.restart_count for write in guarded.writes("requeued")}) > 1
    )

    assert find_overlaps(guarded.writes("requeued")) == ()


def test_work_that_a_qos_preempts_comes_back_by_itself(guarded: Guarded) -> None:
    for words in (("add", "qos", "urgent", "preempt=normal"), ("modify", "user", "set", "qos=normal,urgent")):
        assert guarded.run("sacctmgr", "-i", *words).returncode == 0
    job = guarded.train("preempted", node_count=4)
    # Preempted while its step begins, it may leave processes that Slurm no longer sees; then it is rightly held.
    guarded.wait("every node to have started", lambda: len(guarded.writes("preempted")) >= _WRITES_OF_TWO_SECONDS)

    urgent = guarded.run(
        *("sbatch", "--parsable", "--qos=urgent", "--nodes=4", "--gres=gpu:8", "--output=/dev/null"), "--wrap=sleep 5"
    )
    guarded.wait(
        "a second attempt", lambda: len({write.writer.restart_count for write in guarded.writes("preempted")}) > 1
    )

    assert urgent.returncode == 0
    assert guarded.job(job).restart_count == 1
    assert find_overlaps(guarded.writes("preempted")) == ()


def test_work_that_a_person_held_and_released_starts_again(guarded: Guarded) -> None:
    job = guarded.train("held")

    assert guarded.run("scontrol", "requeuehold", job).returncode == 0
    guarded.wait("the job to be held", lambda: guarded.is_pending_held(job))
    assert guarded.run("scontrol", "release", job).returncode == 0

    guarded.wait("a second attempt", lambda: len({write.writer.restart_count for write in guarded.writes("held")}) > 1)
    assert find_overlaps(guarded.writes("held")) == ()


def test_a_person_lets_a_job_pass(guarded: Guarded) -> None:
    job = guarded.train("passed")
    node = guarded.node_of(job)
    guarded.lose(node)
    guarded.wait("the guard to hold", lambda: guarded.is_pending_held(job))

    let_pass(guarded.guard.settings, job, who="operator", reason="its checkpoints are apart")

    guarded.wait("the job to continue", lambda: guarded.goes_on_away_from("passed", node))


def test_what_somebody_took_over_is_not_let_go(guarded: Guarded) -> None:
    job = guarded.train("taken-over")
    node = guarded.node_of(job)
    guarded.lose(node)
    guarded.wait("the guard to hold", lambda: guarded.is_pending_held(job))

    guarded.run("scontrol", "update", f"JobId={job}", "AdminComment=OPS-12 mine")
    guarded.cluster.power_off_node(node)
    held = guarded.guard.settings.state / "held" / job
    guarded.wait("the guard to forget it", lambda: not held.exists())

    assert guarded.is_pending_held(job)


@pytest.mark.parametrize("broken", ["no interpreter", "no judge", "no settings"])
def test_without_a_verdict_first_starts_go_ahead_and_restarts_are_held(guarded: Guarded, broken: str) -> None:
    job = guarded.train("before")
    node = guarded.node_of(job)
    directory = guarded.guard.directory
    match broken:
        case "no interpreter":
            environment = directory / "start_guard.env"
            environment.write_text(environment.read_text().replace(str(guarded.guard.python), "/nonexistent/python"))
        case "no judge":
            (directory / JUDGE).unlink()
        case _:
            (directory / SETTINGS).write_text("{")

    guarded.train("first-start")
    guarded.lose(node)
    guarded.wait("the restart to be held", lambda: guarded.is_pending_held(job))

    assert not guarded.goes_on_away_from("before", node)


def test_a_full_disk_stops_no_first_start_and_lets_no_restart_through(guarded: Guarded) -> None:
    state = guarded.guard.settings.state
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        _fill(state / "full")
        job = guarded.train("no-room")
        node = guarded.node_of(job)
        guarded.lose(node)
        guarded.wait("the restart to be held", lambda: guarded.is_pending_held(job))

        assert not guarded.goes_on_away_from("no-room", node)
    finally:
        guarded.cluster.cancel_all()
        subprocess.run(["umount", "-l", str(state)], check=True)


def _fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def test_a_controller_that_lost_the_start_knows_the_restart_all_the_same(guarded: Guarded) -> None:
    job = guarded.cluster.submit_training(
        name="lost",
        node_count=1,
        comment="workload=training",
        checkpoint=guarded.checkpoint("lost"),
        step_seconds=0.2,
        steps_per_checkpoint=1,
        options=["--hold"],
    )
    submitted_at = time.time()
    guarded.wait("slurmctld to save the job", lambda: _was_saved_since(guarded, submitted_at))
    guarded.run("scontrol", "release", job)
    guarded.wait("the job to save", lambda: guarded.checkpoint("lost").exists())
    node = guarded.node_of(job)

    guarded.cluster.kill_node(node)
    guarded.cluster.kill_controller()
    guarded.cluster.start_controller()
    guarded.run("scontrol", "release", job)
    guarded.wait(
        "the job to be refused, or known to run",
        lambda: guarded.is_pending_held(job) or guarded.job(job).state is JobState.RUNNING,
    )
    guarded.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
    guarded.wait("the restart to be held", lambda: guarded.is_pending_held(job))

    assert find_overlaps(guarded.writes("lost")) == ()


def _was_saved_since(guarded: Guarded, at: float) -> bool:
    state = guarded.cluster.settings.state / "slurmctld" / "job_state"
    return state.exists() and state.stat().st_mtime > at + 0.1


def test_interactive_jobs_start_as_ever(guarded: Guarded) -> None:
    allocated = guarded.run("salloc", "--nodes=1", "--gres=gpu:1", "echo", "allocated")
    stepped = guarded.run("srun", "--mpi=none", "--nodes=1", "--gres=gpu:1", "echo", "stepped")

    assert "allocated" in allocated.stdout
    assert "stepped" in stepped.stdout


def test_a_busy_controller_lets_no_restart_through(guarded: Guarded) -> None:
    job = guarded.train("busy")
    node = guarded.node_of(job)
    guarded.lose(node)
    environment = guarded.guard.directory / "start_guard.env"
    # Its clients find no slurmctld: neither the judge nor the wrapper can hold.
    environment.write_text(
        environment.read_text().replace(guarded.guard.settings.slurm_conf, "/nonexistent/slurm.conf")
    )
    settings = guarded.guard.directory / SETTINGS
    settings.write_text(settings.read_text().replace(guarded.guard.settings.slurm_conf, "/nonexistent/slurm.conf"))

    record = guarded.guard.settings.state / "starts" / str(int(job) % 1000) / job
    guarded.wait("two refusals", lambda: record.read_text().count("refused") >= 2)

    assert not guarded.goes_on_away_from("busy", node)


@pytest.mark.parametrize("broken", ["", "no judge"])
def test_the_task_of_an_array_that_has_the_arrays_own_id_is_held_alone(guarded: Guarded, broken: str) -> None:
    submitted = guarded.run(
        *("sbatch", "--parsable", "--requeue", "--array=1-2", "--gres=gpu:8", "--output=/dev/null"),
        "--wrap=exec sleep 300",
    )
    array = submitted.stdout.strip()
    guarded.wait(
        "both tasks to run", lambda: guarded.run("squeue", "-h", "-t", "R", "-j", array).stdout.count("\n") == 2
    )
    rows = [line.split() for line in guarded.run("squeue", "-h", "-j", array, "-o", "%A %N").stdout.splitlines()]
    (node,) = [name for job, name in rows if job == array]
    (sibling,) = [job for job, _ in rows if job != array]
    if broken:
        (guarded.guard.directory / JUDGE).unlink()  # The wrapper itself holds.

    guarded.lose(NodeName(node))
    guarded.wait(
        "that task to be held",
        lambda: f"{array} PENDING JobHeldAdmin" in guarded.run("squeue", "-h", "-j", array, "-o", "%A %T %r").stdout,
    )
    states = guarded.run("squeue", "-h", "-j", array, "-o", "%A %T %Q").stdout.splitlines()
    (of_sibling,) = [line.split() for line in states if not line.startswith(f"{array} ")]
    comments = guarded.run("scontrol", "show", "job", sibling).stdout
    if not broken:
        guarded.cluster.power_off_node(NodeName(node))
        guarded.wait(
            "that task to continue",
            lambda: f"{array} RUNNING" in guarded.run("squeue", "-h", "-j", array, "-o", "%A %T").stdout,
        )

    assert of_sibling[:2] == [sibling, "RUNNING"]
    assert of_sibling[2] != "0"
    assert MARK not in comments


def test_the_guard_says_that_it_works(guarded: Guarded) -> None:
    guarded.wait("the watch to have looked", lambda: status(guarded.guard.settings)["is_well"] is True)

    assert guarded.unguarded() == ""


def test_a_guard_that_a_running_slurmctld_does_not_ask_is_not_well(guarded: Guarded) -> None:
    """Slurm 22.05 names a first PrologSlurmctld after `scontrol reconfigure`, and runs it after a restart alone; 25.11
    restarts slurmctld itself."""
    guard = guarded.guard

    def problems() -> str:
        return str(status(read_settings(guard.directory / SETTINGS))["problems"])

    guarded.cluster.uninstall_guard()
    guarded.cluster.restart_controller()
    guarded.cluster.install_guard()
    assert guarded.run("scontrol", "reconfigure").returncode == 0
    named = guarded.run("scontrol", "show", "config").stdout
    told = problems()
    asleep = guarded.cluster.submit_sleeping(name="unseen", account="research", node_count=1)
    guarded.wait("it to run", lambda: guarded.job(asleep).state is JobState.RUNNING)
    unseen = record_paths(guard.settings, asleep)
    guarded.cluster.restart_controller()
    seen = guarded.train("seen")

    assert str(guard.wrapper) in named
    is_restarted = guarded.run("scontrol", "--version").stdout.split()[1] >= "25.11"
    assert ("restart slurmctld" in told) is not is_restarted
    assert any(path.exists() for path in unseen) is is_restarted
    assert any(path.exists() for path in record_paths(guard.settings, seen))
    assert "restart slurmctld" not in problems()
