"""The ledger's contract on PostgreSQL, and what only a server does: restart, vanish, and answer too late.

The server is a throw-away one, or the database that OPS_PIPELINES_TEST_POSTGRES_URL names, emptied each time.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, make_url, text
from sqlalchemy.exc import ProgrammingError

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import AlreadyBegun, Begun, LedgerError, LedgerState
from ops_pipelines.core.proof import ActProof
from ops_pipelines.resources.backup import BackupError, make_backup
from ops_pipelines.resources.config.cluster_config import ClusterConfig, LedgerConfig
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.ledger.copying import copy_out, put_in
from ops_pipelines.resources.ledger.database import LedgerDatabase
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.tables import documents, metadata
from ops_pipelines.resources.restoring import restore_ledger
from ops_pipelines_lab.drills.postgres_server import PostgresServer
from tests.lab.postgres_server import CommitBreaker, start_server
from tests.ports.ledger_samples import NO_LIMIT, NOW, SECOND, begin, drain, fill, observation, outcome, record, take_in
from tests.resources.ledger_audit_contract import change
from tests.resources.ledger_identity_contract import LedgerIdentityContract
from tests.resources.sql_ledger_contract import SqlLedgerContract
from tests.shell.desk import CLUSTER_YAML, POLICY_YAML

pytestmark = pytest.mark.live


def emptied(url: str) -> str:
    """Drop the schema `public` of a database and make it again."""
    change(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return url


_LAYOUT = text(
    "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public' "
    "UNION SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' "
    "UNION SELECT version_num FROM alembic_version ORDER BY 1"
)


def as_made(url: str, layout: list[str]) -> str:
    """Bring a database to where a new ledger is; `layout` is how the first test of the module found it made.

    Rows are deleted where nothing but rows was changed: migrations for each test would double the time.
    """
    if layout:
        engine = create_engine(url)
        try:
            with engine.begin() as connection:
                if list(connection.execute(_LAYOUT).scalars()) == layout:
                    names = ", ".join(table.name for table in metadata.sorted_tables)
                    connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY"))
                    return url
        except ProgrammingError:  # a table that a test dropped
            pass
        finally:
            engine.dispose()
    SqlLedger(emptied(url)).close()
    if not layout:
        engine = create_engine(url)
        with engine.begin() as connection:
            layout += connection.execute(_LAYOUT).scalars()
        engine.dispose()
    return url


@pytest.fixture(scope="module")
def layout() -> list[str]:
    """Return where the layout of a ledger just made is kept, once it is known."""
    return []


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with start_server(databases=["ledger"]) as server:
        yield server


class TestPostgresLedger(SqlLedgerContract):
    @pytest.fixture
    def url(self, request: pytest.FixtureRequest, layout: list[str]) -> str:
        named = os.environ.get("OPS_PIPELINES_TEST_POSTGRES_URL")
        url = named or request.getfixturevalue("server").url("ledger")
        return as_made(url, layout) if "ledger" in request.fixturenames else emptied(url)

    def test_url_without_a_driver_means_psycopg2(self, url: str) -> None:
        SqlLedger(url.replace("postgresql+psycopg2://", "postgresql://")).close()

    def test_table_dropped_behind_our_back_is_an_error(self, ledger: SqlLedger, url: str) -> None:
        change(url, "DROP TABLE evidence")

        with pytest.raises(LedgerError, match="a table of the ledger is gone"):
            take_in(ledger, observation("1"))


class TestIdentityOnPostgres(LedgerIdentityContract):
    @pytest.fixture
    def url(self, server: PostgresServer) -> str:
        return emptied(server.url("ledger"))

    def test_copy_that_cannot_be_put_in_leaves_what_was_there(self, used: SqlLedger, url: str, tmp_path: Path) -> None:
        copied = copy_out(url, tmp_path / "copy.sqlite")
        assert copied is not None
        change(f"sqlite:///{copied.file}", "CREATE TABLE zebras (name TEXT)", "INSERT INTO zebras VALUES ('a')")
        begin(used, drain(1))
        before = used.found()

        with pytest.raises(LedgerError, match="cannot be put there"):
            put_in(copied.file, url)

        assert (used.found(), used.verify_chain().problem, used.why_refused()) == (before, "", None)

    def test_backup_is_restored_and_accepted(self, used: SqlLedger, url: str, tmp_path: Path) -> None:
        config = backed_up(url, tmp_path)
        begin(used, drain(1))
        emptied(url)
        later = NOW + 3600 * SECOND

        done = restore_ledger(
            tmp_path / "backup", config, actor="ada", nodes=(), overwrite=False, as_it_was=False, now=later
        )

        assert (done.lost_count, done.is_paused) == (None, True)  # Seen just when it was backed up: nobody knows.
        assert (used.why_refused(), used.verify_chain().problem, used.found().head_seq) == (None, "", 12)

    @pytest.mark.parametrize("table", ["evidence", "leases", "alembic_version"])
    def test_damaged_ledger_is_replaced_when_told(self, used: SqlLedger, url: str, tmp_path: Path, table: str) -> None:
        config = backed_up(url, tmp_path)
        used.close()
        change(url, f"DROP TABLE {table}")
        restore = partial(
            restore_ledger, tmp_path / "backup", config, actor="ada", nodes=(), as_it_was=False, now=NOW + 3600 * SECOND
        )

        with pytest.raises(BackupError, match=r"damaged .*--overwrite"):
            restore(overwrite=False)
        done = restore(overwrite=True)

        ledger = SqlLedger(url)
        assert (done.kept_aside, ledger.verify_chain().problem) == ((), "")
        ledger.close()


def backed_up(url: str, directory: Path) -> ClusterConfig:
    """Back up a ledger to a directory `backup` in this one."""
    cluster_file = directory / "cluster.yaml"
    cluster_file.write_text(CLUSTER_YAML)
    (directory / "policy.yaml").write_text(POLICY_YAML)
    config = replace(read_cluster(cluster_file), ledger=LedgerConfig(url=url), state_directory=directory)
    make_backup(directory / "backup", config, cluster_file=cluster_file, with_lake=False, now=NOW)
    return config


class TestPostgresThatFails:
    """Always on a throw-away server: nobody else's is restarted."""

    @pytest.fixture
    def url(self, server: PostgresServer) -> str:
        return emptied(server.url("ledger"))

    @pytest.fixture
    def ledger(self, url: str) -> Iterator[SqlLedger]:
        ledger = SqlLedger(url)
        yield ledger
        ledger.close()

    def test_ledger_works_on_after_a_restart_and_has_every_line(
        self, ledger: SqlLedger, server: PostgresServer
    ) -> None:
        fill(ledger)
        before = ledger.read_state(NOW)

        server.restart()

        assert ledger.read_state(NOW) == before
        assert ledger.verify_chain().problem == ""
        assert take_in(ledger, observation("new")) == 1

    def test_every_call_is_an_error_while_the_server_is_down_and_works_when_it_is_back(
        self, ledger: SqlLedger, server: PostgresServer
    ) -> None:
        server.kill()
        for _ in range(2):
            with pytest.raises(LedgerError, match="the server does not answer; check the URL"):
                ledger.read_state(NOW)
            with pytest.raises(LedgerError, match="the server does not answer; check the URL"):
                begin(ledger, drain(1))

        server.start()

        assert isinstance(begin(ledger, drain(1)), Begun)
        assert len(ledger.read_state(NOW).records) == 1

    def test_restart_in_the_middle_of_a_transaction_leaves_no_half_of_it(
        self, url: str, server: PostgresServer
    ) -> None:
        database = LedgerDatabase(url)

        with pytest.raises(LedgerError, match="the server went away"):
            write_around(database, server.restart)

        with database.read() as connection:
            assert connection.execute(text("SELECT count(*) FROM documents")).scalar() == 0
        database.close()

    def test_restart_while_an_action_is_judged_lets_it_begin_later(
        self, ledger: SqlLedger, server: PostgresServer
    ) -> None:
        def guard(act: ActionRecord, state: LedgerState) -> ActProof | None:
            server.restart()
            return act.proof

        with pytest.raises(LedgerError, match="the server went away"):
            ledger.begin(record(drain(1)), guard=guard, lease_token=None, actor="autopilot", now=NOW)

        assert ledger.read_state(NOW).head_seq == 0
        assert isinstance(begin(ledger, drain(1)), Begun)

    def test_commit_whose_success_nobody_heard_of_is_found_when_asked_again(self, ledger: SqlLedger, url: str) -> None:
        is_deaf: list[bool] = []

        with closing(CommitBreaker(url, after=lambda: bool(is_deaf))) as breaker:
            deaf = SqlLedger(breaker.url)
            is_deaf.append(True)
            with pytest.raises(LedgerError, match="the server went away"):
                begin(deaf, drain(1))
            again = begin(ledger, drain(1))
            with pytest.raises(LedgerError, match="the server went away"):
                deaf.finish(drain(1).key, outcome(), actor="autopilot")
            ledger.finish(drain(1).key, outcome(), actor="autopilot")
            with pytest.raises(LedgerError, match="the server went away"):
                take_in(deaf, observation("1"))
            new_count = take_in(ledger, observation("1"))

        assert isinstance(again, AlreadyBegun)
        assert new_count == 0
        assert len(ledger.entries(after=0, limit=NO_LIMIT)) == 2
        assert ledger.verify_chain().problem == ""

    def test_connection_has_limits_at_both_ends(self, url: str) -> None:
        database = LedgerDatabase(url)
        with database.read() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            ours = driver.get_dsn_parameters()
            names = ("statement_timeout", "idle_in_transaction_session_timeout", "tcp_keepalives_idle")
            theirs = [connection.execute(text(f"SHOW {name}")).scalar() for name in names]
        database.close()

        assert [ours[name] for name in ("connect_timeout", "keepalives_idle", "tcp_user_timeout")] == [
            "5",
            "5",
            "10000",
        ]
        assert theirs == ["1min", "1min", "5"]

    def test_limit_in_the_url_wins(self, url: str) -> None:
        database = LedgerDatabase(f"{url}?connect_timeout=7&options=-c%20statement_timeout%3D3s")
        with database.read() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            ours = driver.get_dsn_parameters()["connect_timeout"]
            theirs = connection.execute(text("SHOW statement_timeout")).scalar()
        database.close()

        assert (ours, theirs) == ("7", "3s")

    def test_statement_that_takes_too_long_is_an_error(self, url: str) -> None:
        database = LedgerDatabase(url)

        with pytest.raises(LedgerError, match="did not do it in time"):
            sleep_too_long(database)

        database.close()

    @pytest.mark.parametrize(
        ("part", "words"),
        [
            pytest.param({"password": "wrong"}, "refuses user or password", id="password"),
            pytest.param({"database": "nowhere"}, "no such database", id="database"),
        ],
    )
    def test_wrong_url_is_an_error_that_says_what_is_wrong(self, url: str, part: dict[str, str], words: str) -> None:
        wrong = make_url(url).set(**part).render_as_string(hide_password=False)

        with pytest.raises(LedgerError, match=words):
            SqlLedger(wrong)


def write_around(database: LedgerDatabase, interrupt: Callable[[], None]) -> None:
    with database.write() as connection:
        connection.execute(insert(documents), {"digest": "1", "compressed": b""})
        interrupt()
        connection.execute(insert(documents), {"digest": "2", "compressed": b""})


def sleep_too_long(database: LedgerDatabase) -> None:
    with database.read() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 10"))
        connection.execute(text("SELECT pg_sleep(60)"))
