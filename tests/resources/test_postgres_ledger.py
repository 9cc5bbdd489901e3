"""The ledger's contract on PostgreSQL: the database that OPS_PIPELINES_TEST_POSTGRES_URL names, emptied each time."""

import os

import pytest

from ops_pipelines.resources.sql_ledger import SqlLedger
from tests.resources.ledger_audit_contract import change
from tests.resources.sql_ledger_contract import SqlLedgerContract

POSTGRES_URL = os.environ.get("OPS_PIPELINES_TEST_POSTGRES_URL", "")
if not POSTGRES_URL and os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
    raise RuntimeError(
        "OPS_PIPELINES_TEST_POSTGRES_URL names no PostgreSQL, and OPS_PIPELINES_REQUIRE_SERVERS asks for one"
    )
if not POSTGRES_URL:
    pytest.skip("OPS_PIPELINES_TEST_POSTGRES_URL names no PostgreSQL to test on", allow_module_level=True)

pytestmark = pytest.mark.live


class TestPostgresLedger(SqlLedgerContract):
    """Every test drops the schema `public` of that database and makes it again."""

    @pytest.fixture
    def url(self) -> str:
        change(POSTGRES_URL, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        return POSTGRES_URL

    def test_url_without_a_driver_means_psycopg2(self, url: str) -> None:
        SqlLedger(url.replace("postgresql+psycopg2://", "postgresql://")).close()
