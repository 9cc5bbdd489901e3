"""Dagster's PostgreSQL tables over kept connections: who writes, who sees it, and a server that comes back."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef
from sqlalchemy import create_engine, make_url, text

from ops_pipelines_lab.drills.postgres_server import PostgresServer
from tests.lab.postgres_server import start_server

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with start_server(databases=["kept"]) as server:
        yield server


def opened(server: PostgresServer, directory: Path, *, is_ours: bool) -> dg.DagsterInstance:
    url = make_url(server.url("kept"))
    parts = {
        "scheme": url.drivername,
        "hostname": url.host,
        "port": url.port,
        "username": url.username,
        "password": url.password,
        "db_name": url.database,
    }
    config = {"postgres_db": {key: part for key, part in parts.items() if part is not None}}
    ours = {"custom": {"module": "ops_pipelines.resources.dagster_postgres", "class": "KeptPostgresStorage"}}
    storage = {"custom": {**ours["custom"], "config": config}} if is_ours else {"postgres": config}
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(directory), overrides={"storage": storage}))


def add_run(instance: dg.DagsterInstance) -> str:
    return instance.add_run(dg.DagsterRun(job_name="remediate")).run_id


def connection_count(server: PostgresServer) -> int:
    """How many connections the server was ever asked for."""
    with create_engine(server.url("kept")).connect() as connection:
        deadline = time.monotonic() + 10.0
        before = -1
        while True:  # what a session that just ended did is counted a moment later
            connection.execute(text("SELECT pg_stat_clear_snapshot()"))
            now = connection.execute(
                text("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")
            ).scalar_one()
            if now == before or time.monotonic() > deadline:
                return int(now)
            before = now
            connection.execute(text("SELECT pg_sleep(0.6)"))


def test_what_is_written_here_dagsters_own_storage_sees_and_the_other_way_round(
    server: PostgresServer, tmp_path: Path
) -> None:
    with opened(server, tmp_path, is_ours=True) as ours, opened(server, tmp_path, is_ours=False) as dagsters:
        runs = {add_run(ours), add_run(dagsters)}

        assert runs <= {run.run_id for run in ours.get_runs()}
        assert runs <= {run.run_id for run in dagsters.get_runs()}


def test_instances_that_come_and_go_share_their_connections(server: PostgresServer, tmp_path: Path) -> None:
    with opened(server, tmp_path, is_ours=True) as instance:
        add_run(instance)
    before = connection_count(server)

    for _ in range(20):  # as the code server opens one for each tick
        with opened(server, tmp_path, is_ours=True) as instance:
            add_run(instance)

    assert connection_count(server) - before <= 2  # those that counted


def test_more_threads_than_connections_are_kept_all_write(server: PostgresServer, tmp_path: Path) -> None:
    with opened(server, tmp_path, is_ours=True) as instance:
        before = instance.get_runs_count()

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda _: add_run(instance), range(36)))

        assert instance.get_runs_count() == before + 36


def test_after_a_restart_of_the_server_the_next_statement_finds_a_new_connection(
    server: PostgresServer, tmp_path: Path
) -> None:
    with opened(server, tmp_path, is_ours=True) as instance:
        run = add_run(instance)

        server.restart()

        assert instance.get_run_by_id(run) is not None
