"""The code server whose runs are forked from a process that has everything imported: `ops-pipelines code-server`.

Dagster's own (`dagster api grpc`, of which this is a narrow change) gives each run a new interpreter, which spends 4 s
of CPU on imports before the run begins, while a broken node waits. The process that is forked does nothing but fork: it
opens nothing and reads no configuration, so a run finds everything as it stands when it begins.
"""

import multiprocessing
from multiprocessing import forkserver
from typing import Any

from dagster._cli.api import grpc_command
from dagster._grpc import server

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
    "ops_pipelines.pages.incident_report",
)
"""What a run that acts imports before it has ended; what is missing here is imported by each run itself."""


class ForksRuns(server.DagsterApiServer):
    """Dagster's servicer, but for where its runs come from."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what Dagster's own takes."""
        super().__init__(*args, **kwargs)
        self._mp_ctx = multiprocessing.get_context("forkserver")  # type: ignore[assignment]


def serve(module: str, *, host: str, port: int) -> None:
    """Serve a module's definitions as `dagster api grpc` does, until SIGTERM."""
    multiprocessing.set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()  # The first run shall not wait for it.
    vars(server)["DagsterApiServer"] = ForksRuns
    where = ["--host", host, "--port", str(port)]
    grpc_command.main(
        args=["--module-name", module, "--location-name", LOCATION, *where], prog_name="ops-pipelines code-server"
    )
