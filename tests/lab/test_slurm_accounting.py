"""The accounting contract, and what only slurmdbd does, on a real Slurm."""

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import JobId
from ops_pipelines.core.sources import Accounting, SourceUnavailable
from ops_pipelines.resources.slurm.client import SlurmAccounting
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from tests.lab.slurm_server import start_cluster
from tests.lab.test_slurm_contract import SlurmWorld
from tests.ports.accounting_contract import (
    AccountingContract,
    AccountingWorld,
    read_rows,
)

pytestmark = pytest.mark.live


class AccountedWorld(SlurmWorld):
    """A real cluster with its accounts."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(cluster)
        self._accounting = SlurmAccounting(slurm_conf=cluster.settings.slurm_conf)

    @property
    def accounting(self) -> Accounting:
        return self._accounting

    def now(self) -> datetime:
        return SystemClock().now()

    def cancel(self, job: JobId) -> None:
        subprocess.run(["scancel", job], env=self.cluster.client_environment, check=True, timeout=20)

    def let_pass(self, seconds: float) -> None:
        # Slurm keeps whole seconds, so an attempt must last longer than one to be distinguished from the next.
        ends_at = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= ends_at, seconds + 10)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with start_cluster(node_count=4) as started:
        yield started


class TestSlurmAccounting(AccountingContract):
    @pytest.fixture
    def world(self, cluster: SlurmCluster) -> AccountingWorld:
        cluster.clear()
        return AccountedWorld(cluster)

    def test_a_name_of_two_lines_is_one_attempt(self, cluster: SlurmCluster) -> None:
        cluster.clear()
        world = AccountedWorld(cluster)
        began_at = world.now() - timedelta(seconds=2)
        argv = [
            "sbatch",
            "--parsable",
            "--account=research",
            "--job-name=two\nlines|x",
            "--output=/dev/null",
            "--wrap=true",
        ]
        answer = subprocess.run(
            argv, env=cluster.client_environment, check=True, timeout=20, capture_output=True, text=True
        )

        rows: list[dict[str, object]] = []

        def has_ended() -> bool:
            rows[:] = read_rows(world, start=began_at, end=world.now() + timedelta(minutes=5))
            # A job that ended at once may be in the accounts before its name is: Slurm then calls it so.
            return any(row["job"] == answer.stdout.strip() and row["name"] != "allocation" for row in rows)

        world.wait_until(has_ended, 60)

        assert [row["name"] for row in rows if row["job"] == answer.stdout.strip()] == ["two\\x0alines|x"]

    def test_a_slurmdbd_that_is_gone_is_no_answer(self, cluster: SlurmCluster) -> None:
        world = AccountedWorld(cluster)
        cluster.kill_accounting()
        try:
            with pytest.raises(SourceUnavailable, match="slurmdbd"):
                read_rows(world, start=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2026, 1, 1, 1, tzinfo=UTC))
        finally:
            cluster.start_accounting()
