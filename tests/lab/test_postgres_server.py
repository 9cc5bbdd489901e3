"""The throw-away PostgreSQL itself: it starts, crashes, keeps what was committed, and lets nobody else in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from ops_pipelines_lab.drills import postgres_server
from ops_pipelines_lab.drills.postgres_server import PostgresServer, PostgresServerError, find_closed_directory
from tests.lab.postgres_server import start_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with start_server(databases=["one", "two"]) as server:
        yield server


def ask(url: str, *statements: str) -> list[object]:
    """Run each statement in one transaction and return the rows' first columns of the last."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            answers = [connection.execute(text(statement)) for statement in statements]
            return list(answers[-1].scalars()) if answers[-1].returns_rows else []
    finally:
        engine.dispose()


# -- without a server --


def test_missing_programs_are_named_as_a_debian_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres_server, "_DEBIAN", tmp_path)

    with pytest.raises(PostgresServerError, match="apt-get install --no-install-recommends postgresql"):
        PostgresServer(tmp_path / "server", port=1).start()

    assert not (tmp_path / "server").exists()


def test_the_newest_programs_are_taken_where_none_is_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgres_server, "_DEBIAN", tmp_path)
    for version in ("9", "15", "common"):
        (tmp_path / version / "bin").mkdir(parents=True)
        for name in ("initdb", "pg_ctl", "postgres"):
            (tmp_path / version / "bin" / name).touch()
    (tmp_path / "17" / "bin").mkdir(parents=True)  # a client without a server

    assert postgres_server.find_programs() == tmp_path / "15" / "bin"


def test_stopping_what_never_started_is_no_error(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path / "none", port=1)

    server.stop()
    server.kill()

    assert not server.is_running()
    assert not (tmp_path / "none").exists()


def test_database_name_is_no_place_for_sql() -> None:
    with pytest.raises(ValueError, match="is no database name"):
        PostgresServer(Path("server"), port=1, databases=['one"; DROP DATABASE "two'])


def test_directory_that_the_user_of_root_may_not_enter_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)

    assert find_closed_directory(closed / "state" / "server") == closed


# -- with one --


@pytest.mark.live
def test_what_was_committed_outlives_a_crash_and_what_was_not_does_not(server: PostgresServer) -> None:
    ask(server.url("one"), "CREATE TABLE lines (seq int)", "INSERT INTO lines VALUES (1)")
    engine = create_engine(server.url("one"))
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO lines VALUES (2)"))
        server.restart()
        connection.invalidate()
    engine.dispose()

    assert ask(server.url("one"), "SELECT seq FROM lines") == [1]


@pytest.mark.live
def test_starting_what_runs_changes_nothing(server: PostgresServer) -> None:
    began = ask(server.url("two"), "SELECT pg_postmaster_start_time()")

    server.start()

    assert ask(server.url("two"), "SELECT pg_postmaster_start_time()") == began


@pytest.mark.live
def test_another_object_stops_and_starts_the_same_server(server: PostgresServer) -> None:
    other = PostgresServer(server.directory, port=server.port)

    other.stop()
    was_running = server.is_running()
    other.start()

    assert not was_running
    assert server.is_running()
    assert ask(server.url("two"), "SELECT 1") == [1]


@pytest.mark.live
def test_writes_are_left_to_the_kernel_and_only_loopback_is_listened_on(server: PostgresServer) -> None:
    settings = ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses", "unix_socket_directories")

    found = [ask(server.url("one"), f"SHOW {name}") for name in settings]

    assert found == [["off"], ["on"], ["on"], ["127.0.0.1"], [""]]


@pytest.mark.live
def test_nobody_gets_in_without_the_password(server: PostgresServer) -> None:
    url = server.url_of("one").set(password="guessed").render_as_string(hide_password=False)

    with pytest.raises(OperationalError, match="authentication failed"):
        ask(url, "SELECT 1")
