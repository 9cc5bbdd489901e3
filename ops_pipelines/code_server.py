"""The code server whose runs are forked from a process that has everything imported: `ops-pipelines code-server`.

Dagster's own (`dagster api grpc`, of which this is a narrow change) gives each run a new interpreter, which spends 4 s
of CPU on imports before the run begins, while a broken node waits. The process that is forked does nothing but fork: it
opens nothing and reads no configuration, so a run finds everything as it is when it begins. It is itself forked from
the code server, which has imported the same by then: what both hold is in memory once.
"""

import gc
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn

from dagster._cli.api import grpc_command
from dagster._grpc import server

from ops_pipelines.sensors.this_process import FORKS_RUNS, call_this_process

LOCATION = "ops_pipelines"
"""Under another name Dagster would take the sensors for new ones."""
IMPORTED = (
    *("ops_pipelines.definitions", "ops_pipelines.wiring", "dagster._grpc.server", "dagster_postgres"),
    *("ops_pipelines.resources.ledger.sql_ledger", "ops_pipelines.resources.slurm.scheduler"),
    *("ops_pipelines.resources.prometheus", "ops_pipelines.resources.lake.parquet_lake"),
    *("ops_pipelines.resources.fleet.command_fleet", "ops_pipelines.resources.fleet.ansible"),
    *("ops_pipelines.resources.fleet.redfish_update", "ops_pipelines.resources.kernel_log"),
    *("ops_pipelines.resources.notifier", "prometheus_api_client", "psycopg2.extras"),
    *("ops_pipelines.report.pictures.incidents", "ops_pipelines.remediate.pictures"),
    *("ops_pipelines.report.html", "ops_pipelines.review.incident_document"),
)
"""What a run that acts imports before it has ended; what is missing here is imported by each run itself."""

_YIELD = 5
"""By how much runs yield to the code server on a busy host: to a third of its share. A drain must not wait for them."""


class ForksRuns(server.DagsterApiServer):
    """Dagster's servicer, but for where its runs come from."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what Dagster's own takes."""
        super().__init__(*args, **kwargs)
        self._mp_ctx = multiprocessing.get_context("forkserver")  # type: ignore[assignment]


def serve(module: str, *, host: str, port: int) -> None:
    """Serve a module's definitions as `dagster api grpc` does, until SIGTERM."""
    fork_server_with(IMPORTED)  # The first run shall not wait for it, and no thread runs yet.
    vars(server)["DagsterApiServer"] = ForksRuns
    where = ["--host", host, "--port", str(port)]
    grpc_command.main(
        args=["--module-name", module, "--location-name", LOCATION, *where], prog_name="ops-pipelines code-server"
    )


def fork_server_with(modules: Iterable[str]) -> None:
    """Import modules, then fork the process that runs are forked from; multiprocessing itself would start a new one.

    If it dies, multiprocessing starts the next one, which then imports the modules for itself.
    """
    multiprocessing.set_forkserver_preload(list(modules))
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # What is imported stays: no collection writes to its pages, which would give each process its own.
    resource_tracker.ensure_running()
    started_by = vars(util)["spawnv_passfds"]
    vars(util)["spawnv_passfds"] = _fork_the_server
    try:
        forkserver.ensure_running()
    finally:
        vars(util)["spawnv_passfds"] = started_by


def _fork_the_server(_: bytes, __: Sequence[str], passed: Sequence[int]) -> int:
    """Return the process id of a fork server that listens on the first of two passed descriptors.

    The second ends once nobody is left who could ask it for a run: it must hold no other end of ours.
    """
    process = os.fork()
    if not process:
        _serve_forks(*passed)
    return process


def _serve_forks(listener: int, alive: int) -> NoReturn:
    """Serve until the code server is gone. What that does as it ends is not this process's to do: hence `_exit`."""
    status = 1
    try:
        call_this_process(FORKS_RUNS)
        os.nice(_YIELD)
        for held in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
            if held not in (0, 1, 2, listener, alive):
                with suppress(OSError):  # That of the listing is closed by now.
                    os.close(held)
        forkserver.main(listener, alive, [])
    except SystemExit:
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)
