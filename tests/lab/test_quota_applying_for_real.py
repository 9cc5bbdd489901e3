"""Quotas applied to a real Slurm with slurmdbd: a waiting job starts, what runs continues, and a death is reported."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import JobId, parse_job_id
from ops_pipelines.core.proposal import GpuType, ProposalId, ProposalState
from ops_pipelines.core.scheduler import ALL_TYPES, QuotaChange, Quotas
from ops_pipelines.quotas.apply import apply, preview, undo
from ops_pipelines.quotas.changes import ApplyRefused
from ops_pipelines.resources.slurm.quotas import SlurmQuotas
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler
from ops_pipelines.teams.desk import LimitsOn, TeamsDesk
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from tests.flow.quota_stage import (
    FIRST_LIMITS,
    ME,
    PLATFORM,
    PRODUCT,
    PROPOSED,
    RESEARCH,
    QuotaStage,
    lines,
)
from tests.lab.slurm_server import start_cluster
from tests.lab.test_quotas_for_real import (
    LETS_ALL_PASS,
    DatabaseDyingAtSecond,
    RestartingClock,
    SlurmQuotasWorld,
    ask,
    lift_limits,
    types_counted,
)
from tests.ports.quota_samples import kept, proposal
from tests.ports.quotas_contract import SOON_SECONDS

pytestmark = pytest.mark.live

GPU_TYPE = GpuType("h100")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=4) as started:
        yield started


class RealStage:
    """A desk on a real Slurm. The ledger is a real one, too; the twin beside it is asked nothing."""

    def __init__(self, directory: Path, cluster: SlurmCluster) -> None:
        lift_limits(cluster)
        cluster.clear()
        self.cluster = cluster
        self.world = SlurmQuotasWorld(cluster)
        stage = QuotaStage(directory)
        scheduler = SlurmScheduler(clock=SystemClock(), slurm_conf=cluster.settings.slurm_conf)
        self.desk = replace(
            stage.desk,
            cluster=replace(stage.desk.cluster, scheduler=scheduler, clock=SystemClock()),
            quotas=self.world.quotas,
        )
        self.world.quotas.apply(
            [QuotaChange(account=team, before=None, after=limit) for team, limit in FIRST_LIMITS.items()]
        )

    def with_quotas(self, quotas: Quotas) -> TeamsDesk:
        return replace(self.desk, quotas=quotas)

    def keep(self) -> ProposalId:
        now = self.desk.clock.now()
        made = proposal(*lines(PROPOSED, FIRST_LIMITS), day=now.date(), made_at=now)
        return kept(self.desk.cluster.ledger, made).name

    def keep_typed(self) -> ProposalId:
        """Keep a proposal on a type of GPU, and let limits be set on types."""
        contracts = [replace(each, gpu_type=GPU_TYPE) for each in self.desk.agreed().contracts]
        agreements = replace(self.desk.agreed(), contracts=tuple(contracts))
        self.desk = replace(self.desk, agreements=agreements, limits_on=LimitsOn.PER_TYPE)
        now = self.desk.clock.now()
        made = proposal(*lines(PROPOSED, FIRST_LIMITS, gpu_type=GPU_TYPE), day=now.date(), made_at=now)
        return kept(self.desk.cluster.ledger, made).name

    def limits(self) -> dict[str, int | None]:
        accounts = self.world.quotas.read().accounts
        return {team: accounts[team].limit_of(ALL_TYPES) for team in (PLATFORM, PRODUCT, RESEARCH)}

    def until(self, predicate: Callable[[], bool]) -> None:
        wait_until("the scheduler", predicate, timeout_seconds=SOON_SECONDS)

    def submit(self) -> JobId:
        argv = ("sbatch", "--parsable", "--account=research", "--nodes=1", "--output=/dev/null", "--gres=gpu:8")
        return parse_job_id(ask(self.cluster, *argv, "--wrap=exec sleep 600").strip())


@pytest.fixture
def stage(tmp_path: Path, cluster: SlurmCluster) -> RealStage:
    return RealStage(tmp_path, cluster)


def test_approved_quotas_let_the_waiting_job_start_and_undoing_them_stops_none(stage: RealStage) -> None:
    world = stage.world
    first, second = stage.submit(), stage.submit()
    stage.until(lambda: world.reason_of(second) == "AssocGrpGRES")
    name = stage.keep()
    assert preview(name, stage.desk).hindrances == ()

    applied = apply(name, stage.desk, actor=ME, lease_token=None)

    assert (applied.state, stage.limits()) == (ProposalState.APPLIED, PROPOSED), applied.reason
    stage.until(lambda: {first, second} <= world.running())
    undone = undo(name, stage.desk, actor=ME, lease_token=None)
    third = stage.submit()
    stage.until(lambda: world.reason_of(third) == "AssocGrpGRES")
    assert (undone.state, stage.limits()) == (ProposalState.UNDONE, FIRST_LIMITS), undone.reason
    assert {first, second} <= world.running()
    assert stage.desk.cluster.ledger.verify_chain().problem == ""


def test_database_killed_half_way_is_told_and_the_rest_is_completed(stage: RealStage, cluster: SlurmCluster) -> None:
    name = stage.keep()
    breaking = SlurmQuotas(
        clock=RestartingClock(cluster), slurm_conf=cluster.settings.slurm_conf, run=DatabaseDyingAtSecond(cluster)
    )

    half = apply(name, stage.with_quotas(breaking), actor=ME, lease_token=None)

    assert half.state is ProposalState.HALF_APPLIED, half.reason
    assert "not in: research all GPUs: 8 -> 16" in half.reason
    assert stage.limits() == {**FIRST_LIMITS, PRODUCT: PROPOSED[PRODUCT]}
    completed = apply(name, stage.desk, actor=ME, lease_token=None)
    assert (completed.state, stage.limits()) == (ProposalState.APPLIED, PROPOSED), completed.reason


def test_limits_on_a_type_are_refused_where_jobs_without_a_type_would_pass(
    stage: RealStage, cluster: SlurmCluster
) -> None:
    name = stage.keep_typed()

    with pytest.raises(ApplyRefused, match=r"AccountingStorageTRES = .*no type of GPU is counted apart.*--total"):
        apply(name, stage.desk, actor=ME, lease_token=None)

    (cluster.settings.etc / "job_submit.lua").write_text(LETS_ALL_PASS)
    with types_counted(cluster):
        with pytest.raises(ApplyRefused, match=r"JobSubmitPlugins: --gres=gpu:1 in batch.* stays without a type"):
            apply(name, stage.desk, actor=ME, lease_token=None)
        assert stage.limits() == FIRST_LIMITS
        assert ask(cluster, "squeue", "--noheader") == "", "a job that was tried was left behind"

        applied = apply(name, stage.desk, actor=ME, lease_token=None, limits_on=LimitsOn.TOTAL)

    assert (applied.state, stage.limits()) == (ProposalState.APPLIED, PROPOSED), applied.reason
