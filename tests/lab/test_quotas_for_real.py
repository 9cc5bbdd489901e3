"""The quotas contract, and what only Slurm does with limits, on a real Slurm with slurmdbd."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.scheduler import QuotasHalfApplied, TypedLimits
from ops_pipelines.resources.commands import CommandAnswer, RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.quotas import SlurmQuotas
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from tests.lab.slurm_server import start_cluster
from tests.ports.quotas_contract import (
    SOON_SECONDS,
    HeldJobsContract,
    HeldJobsWorld,
    QuotasContract,
    QuotasWorld,
    limit,
    limits,
    undone,
)

pytestmark = pytest.mark.live

ACCOUNTS = (TeamName("platform"), TeamName("product"), TeamName("research"))
LETS_ALL_PASS = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
return slurm
"""
GIVES_EACH_A_TYPE = LETS_ALL_PASS.replace(
    "  return slurm.SUCCESS\n",
    """\
  for _, field in ipairs({"tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket"}) do
    local asked = job_desc[field]
    if asked ~= nil then
      job_desc[field] = string.gsub(asked, "gpu([:=])(%d+)", "gpu:h100%1%2")
    end
  end
  return slurm.SUCCESS
""",
    1,
)


class SlurmQuotasWorld:
    """Fits QuotasWorld and HeldJobsWorld."""

    def __init__(self, cluster: SlurmCluster, *, run: RunCommand = run_scheduler_command) -> None:
        self.cluster = cluster
        self.quotas = SlurmQuotas(clock=SystemClock(), slurm_conf=cluster.settings.slurm_conf, run=run)
        self.accounts = ACCOUNTS
        self.gpus_per_node = cluster.settings.gpus_per_node

    def submit_for(self, account: TeamName, *words: str) -> JobId:
        asked = words or (f"--gres=gpu:{self.gpus_per_node}",)
        argv = ("sbatch", "--parsable", f"--account={account}", "--nodes=1", "--output=/dev/null", *asked)
        return parse_job_id(ask(self.cluster, *argv, "--wrap=exec sleep 600").strip())

    def running(self) -> frozenset[JobId]:
        return self._in("RUNNING")

    def waiting(self) -> frozenset[JobId]:
        return self._in("PENDING")

    def reason_of(self, job: JobId) -> str:
        return ask(self.cluster, "squeue", "--noheader", f"--jobs={job}", "--format=%r").strip()

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        wait_until("the scheduler", predicate, timeout_seconds=timeout_seconds)

    def _in(self, state: str) -> frozenset[JobId]:
        return frozenset(
            JobId(job) for job in ask(self.cluster, "squeue", "--noheader", f"--states={state}", "--format=%i").split()
        )


class DatabaseDyingAtSecond:
    """Fits RunCommand: kills slurmdbd when the second command that modifies is about to be sent."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._modify_count = 0

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        self._modify_count += argv[:3] == ("sacctmgr", "-i", "modify")
        if self._modify_count == 2:
            self._cluster.kill_accounting()
            self._modify_count += 1
        return run_scheduler_command(argv, environment=environment, timeout_seconds=timeout_seconds)


class RestartingClock(SystemClock):
    """Starts slurmdbd again when somebody waits for it."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    def wait(self, seconds: float) -> None:
        self._cluster.start_accounting()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=4) as started:
        yield started


@pytest.fixture
def world(cluster: SlurmCluster) -> SlurmQuotasWorld:
    lift_limits(cluster)
    return SlurmQuotasWorld(cluster)


class TestSlurmQuotas(QuotasContract):
    @pytest.fixture
    def world(self, cluster: SlurmCluster) -> QuotasWorld:
        lift_limits(cluster)
        return SlurmQuotasWorld(cluster)


class TestSlurmHeldJobs(HeldJobsContract):
    @pytest.fixture
    def world(self, cluster: SlurmCluster) -> HeldJobsWorld:
        lift_limits(cluster)
        cluster.clear()
        return SlurmQuotasWorld(cluster)


def test_slurm_says_that_the_account_holds_the_job_and_heeds_what_is_kept(
    cluster: SlurmCluster, world: SlurmQuotasWorld
) -> None:
    cluster.clear()
    world.quotas.apply([limit("research", None, 4)])

    held = world.submit_for(TeamName("research"))

    world.wait_until(lambda: world.reason_of(held) == "AssocGrpGRES", SOON_SECONDS)
    world.wait_until(lambda: not world.quotas.read().unheeded, SOON_SECONDS)


def test_a_database_killed_in_the_middle_leaves_each_change_old_or_new_and_says_which(
    cluster: SlurmCluster, world: SlurmQuotasWorld
) -> None:
    batch = [limit("platform", None, 8), limit("product", None, 16), limit("research", None, 24)]
    breaking = SlurmQuotas(
        clock=RestartingClock(cluster),
        slurm_conf=cluster.settings.slurm_conf,
        run=DatabaseDyingAtSecond(cluster),
    )

    with pytest.raises(QuotasHalfApplied) as stopped:
        breaking.apply(batch)

    assert limits(world) == {"platform": 8, "product": None, "research": None}
    assert [change.account for change in stopped.value.are_in] == ["platform"]
    assert [change.account for change in stopped.value.are_not_in] == ["product", "research"]
    world.quotas.apply(batch)
    assert limits(world) == {"platform": 8, "product": 16, "research": 24}
    world.quotas.apply(undone(batch))
    assert limits(world) == dict.fromkeys(ACCOUNTS)


def test_a_qos_with_a_limit_takes_the_place_of_the_accounts_and_is_warned_of(
    cluster: SlurmCluster, world: SlurmQuotasWorld
) -> None:
    cluster.clear()
    world.quotas.apply([limit("research", None, 4)])
    try:
        ask(cluster, "sacctmgr", "-i", "modify", "qos", "where", "name=normal", "set", "GrpTRES=gres/gpu=8")

        job = world.submit_for(TeamName("research"))

        world.wait_until(lambda: job in world.running(), SOON_SECONDS)
        assert any("QOS normal has GrpTRES" in warning for warning in world.quotas.probe().warnings)
    finally:
        ask(cluster, "sacctmgr", "-i", "modify", "qos", "where", "name=normal", "set", "GrpTRES=gres/gpu=-1")


def test_the_probe_says_of_typed_limits_what_jobs_then_meet(cluster: SlurmCluster, world: SlurmQuotasWorld) -> None:
    script = cluster.settings.etc / "job_submit.lua"
    script.write_text(LETS_ALL_PASS)
    cluster.clear()
    with types_counted(cluster):
        probe = world.quotas.probe()
        ask(cluster, "sacctmgr", "-i", "modify", "account", "name=research", "set", "GrpTRES=gres/gpu:h100=4")
        passing = world.submit_for(TeamName("research"))
        world.wait_until(lambda: passing in world.running(), SOON_SECONDS)
        assert probe.typed_limits is TypedLimits.NOT_HELD
        assert probe.counted_types == {GpuType("h100")}

        ask(cluster, "scancel", passing)
        script.write_text(GIVES_EACH_A_TYPE)

        assert world.quotas.probe().typed_limits is TypedLimits.HELD
        world.quotas.apply([limit("research", 4, 5, "h100")])
        for words in (("--gres=gpu:8",), ("--gpus=8",), ("--gpus-per-task=8", "--ntasks=1")):
            held = world.submit_for(TeamName("research"), *words)
            world.wait_until(lambda held=held: world.reason_of(held) == "AssocGrpGRES", SOON_SECONDS)
        world.quotas.apply([limit("research", 5, None, "h100")])
        world.wait_until(lambda: not world.waiting(), SOON_SECONDS)
        assert ask(cluster, "squeue", "--noheader", "--name=quota-probe") == ""


@contextmanager
def types_counted(cluster: SlurmCluster) -> Iterator[None]:
    """Let slurmctld count GPUs by type and ask job_submit.lua, and have it as it was afterwards."""
    file = cluster.settings.slurm_conf
    before = file.read_text()
    counted = before.replace("AccountingStorageTRES=gres/gpu\n", "AccountingStorageTRES=gres/gpu,gres/gpu:h100\n")
    file.write_text(f"{counted}JobSubmitPlugins=lua\n")
    try:
        cluster.restart_controller()
        yield
    finally:
        file.write_text(before)
        cluster.restart_controller()


def lift_limits(cluster: SlurmCluster) -> None:
    names = f"name={','.join(ACCOUNTS)}"
    ask(cluster, "sacctmgr", "-i", "modify", "account", "where", names, "set", "GrpTRES=gres/gpu=-1", "Fairshare=1")


def ask(cluster: SlurmCluster, *argv: str) -> str:
    return subprocess.run(
        argv, env=cluster.client_environment, capture_output=True, text=True, timeout=SOON_SECONDS, check=True
    ).stdout
