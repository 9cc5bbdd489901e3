"""The ledger's contract on SQLite, in a file and in memory, and what only a file knows: bad paths, full disks, WAL."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert, text

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.proof import Refusal
from ops_pipelines.resources.ledger.copying import copy_out
from ops_pipelines.resources.ledger.database import KNOWN_VERSIONS, LedgerDatabase
from ops_pipelines.resources.ledger.migrations import STEPS
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.tables import documents
from tests.ports.ledger_samples import NOW, begin, drain, observation, take_in
from tests.resources.ledger_audit_contract import change
from tests.resources.ledger_identity_contract import LedgerIdentityContract
from tests.resources.sql_ledger_contract import REPOSITORY, SqlLedgerContract


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "ledger.db"
    SqlLedger(f"sqlite:///{path}").close()
    return path


class TestSqliteLedger(SqlLedgerContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'ledger.db'}"

    @pytest.fixture
    def ledger(self, url: str, tmp_path: Path, migrated: Path) -> Iterator[SqlLedger]:
        shutil.copy(migrated, tmp_path / "ledger.db")  # migrating a file for each test would double the time
        ledger = SqlLedger(url)
        yield ledger
        ledger.close()

    def test_missing_directory_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match=r"directory .*nowhere does not exist; create it"):
            SqlLedger(f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}")

    def test_directory_instead_of_a_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LedgerError, match="is a directory"):
            SqlLedger(f"sqlite:///{tmp_path}")

    def test_file_that_is_no_database_is_an_error_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        path.write_text("a letter\n" * 1000)

        with pytest.raises(LedgerError, match="no SQLite database; check the path"):
            SqlLedger(f"sqlite:///{path}")

        assert path.read_text() == "a letter\n" * 1000

    def test_full_disk_is_an_error_and_nothing_of_the_transaction_stays(self, url: str) -> None:
        full = LedgerDatabase(url)
        with full.read() as connection:
            page_count = connection.execute(text("PRAGMA page_count")).scalar_one()
            connection.execute(text(f"PRAGMA max_page_count = {page_count}"))

        # SQLite says of a database at its page limit what it says of a full disk.
        rows: list[dict[str, str | bytes]] = [
            {"digest": str(number), "compressed": b"x" * 1000} for number in range(1000)
        ]
        with pytest.raises(LedgerError, match="disk is full; make room"):
            insert_all(full, rows)

        with full.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM documents")).scalar() == 0
        full.close()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
    def test_file_without_write_permission_is_an_error(self, url: str, tmp_path: Path) -> None:
        SqlLedger(url).close()
        (tmp_path / "ledger.db").chmod(0o444)
        ledger = SqlLedger(url)

        with pytest.raises(LedgerError, match="may not write"):
            take_in(ledger, observation("1"))

        ledger.close()

    def test_lines_are_on_the_disk_when_a_call_returns(self, ledger: SqlLedger, url: str) -> None:
        database = LedgerDatabase(url)
        with database.read() as connection:
            settings = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
        database.close()

        assert settings == ["wal", 2]  # 2: FULL

    def test_reader_sees_one_state_while_another_writes(self, ledger: SqlLedger, url: str) -> None:
        database = LedgerDatabase(url)
        count = text("SELECT count(*) FROM evidence")
        with database.read() as connection:
            before = connection.execute(count).scalar()
            take_in(ledger, observation("1"))
            during = connection.execute(count).scalar()
        with database.read() as connection:
            after = connection.execute(count).scalar()
        database.close()

        assert (before, during, after) == (0, 0, 1)

    def test_table_dropped_behind_our_back_is_an_error(self, ledger: SqlLedger, url: str) -> None:
        change(url, "DROP TABLE evidence")

        with pytest.raises(LedgerError, match="evidence"):
            take_in(ledger, observation("1"))


class TestIdentityOnSqlite(LedgerIdentityContract):
    @pytest.fixture
    def url(self, tmp_path: Path, migrated: Path) -> str:
        shutil.copy(migrated, tmp_path / "ledger.db")
        return f"sqlite:///{tmp_path / 'ledger.db'}"

    def test_process_that_has_the_deleted_file_open_leaves_it_and_begins_nothing(
        self, used: SqlLedger, tmp_path: Path
    ) -> None:
        (tmp_path / "ledger.db").unlink()

        refusal = begin(used, drain(1))

        assert isinstance(refusal, Refusal)
        assert refusal.guardrail == "ledger"
        assert (used.read_state(NOW).incidents, used.found().head_seq) == ((), 1)  # The refusal.

    def test_plain_copy_of_the_file_lacks_what_stands_in_the_wal(self, used: SqlLedger, tmp_path: Path) -> None:
        copied = copy_out(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "copy.sqlite")
        shutil.copy(tmp_path / "ledger.db", tmp_path / "plain.db")
        plain = SqlLedger(f"sqlite:///{tmp_path / 'plain.db'}")

        assert copied is not None
        assert plain.found().head_seq < copied.found.head_seq == used.found().head_seq
        plain.close()


def test_a_ledger_may_be_in_memory() -> None:
    ledger = SqlLedger("sqlite://")

    begin(ledger, drain(1))

    assert len(ledger.read_state(NOW).records) == 1
    assert ledger.verify_chain().problem == ""
    ledger.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("ledger.db", "cannot be read; write sqlite", id="a path"),
        pytest.param("mysql://u@h/d", "only sqlite and postgresql", id="another database"),
        pytest.param("oracle9://u@h/d", "only sqlite and postgresql", id="no such database"),
    ],
)
def test_url_that_names_no_ledger_is_an_error(url: str, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        SqlLedger(url)


def test_server_that_does_not_answer_is_an_error_without_the_password() -> None:
    with pytest.raises(LedgerError, match="does not answer; check the URL") as caught:
        SqlLedger("postgresql+psycopg2://ops:secret@127.0.0.1:1/ops")

    assert "secret" not in str(caught.value)


def test_program_knows_exactly_the_versions_that_its_migrations_make() -> None:
    assert tuple(STEPS) == KNOWN_VERSIONS


def test_ledger_opens_without_alembic_once_its_tables_are_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    SqlLedger(url).close()
    code = (
        "import sys; from ops_pipelines.resources.ledger.sql_ledger import SqlLedger; "
        f"SqlLedger({url!r}).close(); sys.exit('alembic' in sys.modules)"
    )

    opened = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)

    assert opened.returncode == 0


def insert_all(database: LedgerDatabase, rows: list[dict[str, str | bytes]]) -> None:
    with database.write() as connection:
        connection.execute(insert(documents), rows)
