"""Who may act: the token of the run request, else the lease that runs, else a lease of our own."""

from pathlib import Path

import pytest

from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.simulator.fake_clock import FakeClock


@pytest.fixture
def ledger(tmp_path: Path) -> SqlLedger:
    return SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")


def test_given_token_is_shown_as_it_is_even_when_it_is_outdated(ledger: SqlLedger) -> None:
    now = FakeClock().now()
    ledger.take_lease(holder="code server", ttl=TTL, now=now)

    assert Lease(holder="run", given="outdated").token(ledger, now) == "outdated"
    assert ledger.current_lease(now) != "outdated"


def test_hand_launched_job_uses_the_lease_that_runs(ledger: SqlLedger) -> None:
    now = FakeClock().now()
    token = ledger.take_lease(holder="code server", ttl=TTL, now=now)

    assert Lease(holder="run", given=None).token(ledger, now) == token


@pytest.mark.parametrize("seconds", [TTL.total_seconds(), 3600.0])
def test_hand_launched_job_takes_the_lease_where_none_runs(ledger: SqlLedger, seconds: float) -> None:
    clock = FakeClock()
    before = ledger.take_lease(holder="code server", ttl=TTL, now=clock.now())
    clock.wait(seconds)

    token = Lease(holder="run", given=None).token(ledger, clock.now())

    assert token is not None
    assert token != before
    assert ledger.take_lease(holder="code server", ttl=TTL, now=clock.now()) is None
