"""Tests on nodes in the database: a ledger of the version before gains their table, a changed row is not believed."""

import sqlite3
from pathlib import Path

import pytest

from ops_pipelines.core.entries import LedgerDamaged, LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.resources.ledger.database import KNOWN_VERSIONS
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.ports.ledger_check_contract import node_check
from tests.resources.ledger_audit_contract import change
from tests.resources.test_ledger_heartbeat import make_version

GPU003 = NodeName("gpu003")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_ledger_of_the_version_before_keeps_what_it_holds_and_gains_tests_on_nodes(url: str, tmp_path: Path) -> None:
    make_version(url, "0003")
    change(
        url,
        "INSERT INTO cursors VALUES ('kernel_log', 'line:17', '2026-03-01T12:00:00.000000Z')",
        "INSERT INTO heartbeats VALUES ('fault_sensor', '2026-03-01T12:00:00.000000Z', 'a:1', '', 'auto', '{}', 1)",
    )

    ledger = SqlLedger(url)
    ledger.keep_check(node_check(), is_well=True)

    assert ledger.cursor("kernel_log") == "line:17"
    assert [beat.name for beat in ledger.heartbeats()] == ["fault_sensor"]
    assert ledger.checks(GPU003, limit=9) == ((node_check(), True),)
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(KNOWN_VERSIONS[-1],)]


def test_document_of_another_check_is_not_believed(url: str) -> None:
    ledger = SqlLedger(url)
    ledger.keep_check(node_check("k-1"), is_well=False)
    of_another = ledger.keep_check(node_check("k-2"), is_well=False)
    change(url, "UPDATE node_checks SET digest = :digest WHERE key = 'k-1'", digest=of_another)

    with pytest.raises(LedgerDamaged, match="tests k-1 of a node were changed"):
        ledger.checks(GPU003, limit=9)

    ledger.close()


def test_verdict_that_was_turned_behind_our_back_is_not_believed(url: str) -> None:
    ledger = SqlLedger(url)
    ledger.keep_check(node_check(), is_well=False)
    change(url, "UPDATE node_checks SET is_well = 1")

    with pytest.raises(LedgerDamaged, match="changed after they were kept"):
        ledger.checks(GPU003, limit=9)

    ledger.close()


def test_check_whose_document_is_gone_is_an_error(url: str) -> None:
    ledger = SqlLedger(url)
    ledger.keep_check(node_check(), is_well=False)
    change(url, "DELETE FROM documents")

    with pytest.raises(LedgerError, match="there is no document"):
        ledger.checks(GPU003, limit=9)

    ledger.close()
