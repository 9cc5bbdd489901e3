"""Heartbeats in the database: a ledger of the version before gains their table, a mode from the future is an error."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.policy import Mode
from ops_pipelines.resources.ledger.database import migrate
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.ports.ledger_heartbeat_contract import beat
from tests.ports.ledger_samples import NOW
from tests.resources.ledger_audit_contract import change


def test_ledger_of_the_version_before_keeps_what_it_holds_and_gains_heartbeats(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    make_version(url, "0001")
    change(url, "INSERT INTO cursors VALUES ('kernel_log', 'line:17', '2026-03-01T12:00:00.000000Z')")

    ledger = SqlLedger(url)
    beat(ledger)

    assert ledger.cursor("kernel_log") == "line:17"
    assert [each.mode for each in ledger.heartbeats()] == [Mode.AUTO]
    ledger.close()


def test_heartbeat_with_a_mode_that_this_program_does_not_know_is_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = SqlLedger(url)
    ledger.beat(name="fault_sensor", holder="a:1", note="", mode=Mode.AUTO, answers={}, now=NOW)
    change(url, "UPDATE heartbeats SET mode = 'reckless'")

    with pytest.raises(LedgerError, match=r"fault_sensor names a mode 'reckless'.*another version"):
        ledger.heartbeats()

    ledger.close()


def make_version(url: str, version: str) -> None:
    """Make the tables of one schema version, as the program of that time did."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection, version)
    engine.dispose()
