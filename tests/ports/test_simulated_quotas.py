"""The quotas contract on the twin, and what a limit means to its queue."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines.core.proposal import TeamName
from ops_pipelines_lab.simulator.accounting import SimulatedQuotas
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin
from tests.ports.quotas_contract import HeldJobsContract, HeldJobsWorld, QuotasContract, QuotasWorld, limit, limits
from tests.simulator.fake_clock import FakeClock

ACCOUNTS = (TeamName("platform"), TeamName("product"), TeamName("research"))


class QuotaTwin:
    """Four nodes and three accounts without jobs."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.directory = directory
        scenario = Scenario(nodes=cluster_nodes(4), durations=SHORT_DURATIONS, accounts=ACCOUNTS)
        self.twin = Twin.create(directory, scenario, seed=7, clock=self.clock)
        self.quotas = SimulatedQuotas(self.twin)
        self.accounts = ACCOUNTS
        self.gpus_per_node = scenario.gpus_per_node

    def submit_for(self, account: TeamName, *, gpus: int = 8) -> JobId:
        return self.twin.submit(
            JobSpec(name="j", user="u", account=account, workload=Workload.BATCH, gpus_per_node=gpus)
        )

    def running(self) -> frozenset[JobId]:
        return self._in(JobState.RUNNING)

    def waiting(self) -> frozenset[JobId]:
        return self._in(JobState.PENDING)

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None:
        self.clock.wait_until(predicate, timeout_seconds)

    def _in(self, state: JobState) -> frozenset[JobId]:
        return frozenset(job.job for job in SimulatedScheduler(self.twin).read_jobs() if job.state is state)


class TestSimulatedQuotas(QuotasContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> QuotasWorld:
        return QuotaTwin(tmp_path)


class TestSimulatedHeldJobs(HeldJobsContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> HeldJobsWorld:
        return QuotaTwin(tmp_path)


def test_whoever_attaches_sees_the_same_limits(tmp_path: Path) -> None:
    world = QuotaTwin(tmp_path)
    world.quotas.apply([limit("research", None, 16)])

    other = SimulatedQuotas(Twin.attach(tmp_path, world.clock))

    assert other.read().accounts == world.quotas.read().accounts


def test_an_account_is_known_from_its_first_job(tmp_path: Path) -> None:
    world = QuotaTwin(tmp_path)

    world.submit_for(TeamName("newcomers"))
    world.quotas.apply([limit("newcomers", None, 4)])

    assert world.quotas.read().accounts[TeamName("newcomers")].limits == {"": 4}


def test_a_job_that_its_account_holds_keeps_no_nodes_from_others(tmp_path: Path) -> None:
    world = QuotaTwin(tmp_path)
    world.quotas.apply([limit("research", None, 0)])

    held = [world.submit_for(TeamName("research")) for _ in range(4)]
    others = {world.submit_for(TeamName("product")) for _ in range(4)}

    assert world.running() == others
    assert world.waiting() == set(held)


@settings(max_examples=25)
@given(
    orders=st.lists(
        st.tuples(st.sampled_from(ACCOUNTS), st.one_of(st.none(), st.integers(0, 32)), st.integers(1, 8)), max_size=12
    )
)
def test_no_start_ever_lifts_an_account_above_its_limit(
    tmp_path_factory: pytest.TempPathFactory, orders: list[tuple[TeamName, int | None, int]]
) -> None:
    world = QuotaTwin(tmp_path_factory.mktemp("twin"))
    for account, count, gpus in orders:
        before = limits(world)[account]
        world.quotas.apply([limit(account, before, count)])
        ran = world.running()
        world.submit_for(account, gpus=gpus)

        started = world.running() - ran
        jobs = {job.job: job for job in SimulatedScheduler(world.twin).read_jobs()}
        assert ran <= world.running()
        if started and count is not None:
            assert (
                sum(job.gpu_count for job in jobs.values() if job.account == account and job.job in world.running())
                <= count
            )
