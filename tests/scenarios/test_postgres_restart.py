"""PostgreSQL crashes and comes back around the commits of a whole healing, which comes to the same end as without.

The crash is real, the moment is exact: just before a commit, which is then lost, or just after it, when it is done and
nobody hears of it. The run without crashes keeps its ledger on SQLite.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.incident import IncidentState
from ops_pipelines_lab.drills.postgres_server import PostgresServer
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.lab.postgres_server import CommitBreaker, start_server
from tests.scenarios.killed_at_every_step import QUICK, end_of
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.small_cluster import TRAINING

pytestmark = pytest.mark.live

CRASH_RATIO = 1 / 8
"""A crash costs half a second. By chance, not in turn: a pass that fails begins again, and might fail there for
ever."""
MAX_PASS_COUNT = 60


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with start_server(databases=["before", "after"]) as server:
        yield server


@dataclass(kw_only=True)
class Crash:
    """Crashes the server at commits that it draws."""

    server: PostgresServer
    lot: Random
    count: int = 0

    def __call__(self) -> bool:
        is_due = self.lot.random() < CRASH_RATIO
        if is_due:
            self.count += 1
            self.server.restart()
        return is_due


def heal(autopilot: SmallAutopilot) -> int:
    """Let a GPU fall off the bus under a training job, heal that, and return how many passes failed."""
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)
    failed_count = 0
    for _ in range(MAX_PASS_COUNT):
        try:
            autopilot.run_once()
        except LedgerError:  # and nothing else, such as an error of the driver
            failed_count += 1
        incidents = autopilot.incidents()
        if incidents and all(each.state is IncidentState.RESOLVED for each in incidents):
            break
        autopilot.let_pass(3)
    return failed_count


@pytest.mark.parametrize("moment", ["before", "after"])
def test_crashes_around_commits_change_nothing_of_the_end(server: PostgresServer, tmp_path: Path, moment: str) -> None:
    undisturbed = SmallAutopilot(tmp_path / "undisturbed", TRAINING, node_count=3, policy=QUICK)
    heal(undisturbed)
    crash = Crash(server=server, lot=Random(7))

    with closing(CommitBreaker(server.url(moment), **{moment: crash})) as breaker:
        disturbed = SmallAutopilot(tmp_path / "disturbed", TRAINING, node_count=3, policy=QUICK, ledger_url=breaker.url)
        failed_count = heal(disturbed)
        found, expected = end_of(disturbed), end_of(undisturbed)

    assert failed_count == crash.count >= 8
    assert {name: found[name] for name in expected if found[name] != expected[name]} == {}
    assert undisturbed.incident().state is IncidentState.RESOLVED
