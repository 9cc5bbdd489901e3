"""The part of the command line that deals with the lake: files from outside into it, questions to it, its retention.

Mounted by `cli`. What is computed is in the subjects and in `resources`.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.observe.imports import FileKind
from ops_pipelines.terminal.edge import AnswerFormat, ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from ops_pipelines.resources.config.cluster_config import ClusterConfig

CLUSTER_VARIABLE = "OPS_PIPELINES_CLUSTER"
DEFAULT_CLUSTER_FILE = Path("cluster.yaml")
ClusterFile = Annotated[
    Path | None,
    typer.Option("--cluster", envvar=CLUSTER_VARIABLE, help="The cluster.yaml that names nodes and lake."),
]
LakeDirectory = Annotated[
    str | None, typer.Option("--lake", help="Directory or URL of the lake; left out, that of cluster.yaml.")
]
telemetry_app = typer.Typer(help="Ask the lake, and keep it small.", no_args_is_help=True, rich_markup_mode=None)


@at_the_edge
def ingest(
    kind: Annotated[FileKind, typer.Argument(help="What the file is.", case_sensitive=False)],
    file: Annotated[str, typer.Argument(help="The file (gzipped or not), a directory or tar archive, or - for stdin.")],
    lake: LakeDirectory = None,
    cluster_file: ClusterFile = None,
    node: Annotated[str | None, typer.Option(help="The node of records that name none.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(help="The time (UTC) of records that state none; left out, when the file was last changed."),
    ] = None,
) -> None:
    """Take a file from outside into the lake, and count what became of its records.

    Needs no cluster.yaml if --lake is given; with one, rows of nodes that it does not name are marked unknown_node.
    Taking the same file in again changes nothing.

    \b
    JSON on standard output: read, accepted, rejected {reason: records}, ignored, tables {name: rows}; read =
    accepted + rejected + ignored. What was rejected is in the lake's table rejected_rows, with the reason.
    Ends with 2 where records were rejected and none was accepted: then the file is not of this kind.
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.lake.quantities import WrongKind
    from ops_pipelines.observe import imports as intake
    from ops_pipelines.resources.files import UnreadableFile, read_document
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

    config = _find_config(cluster_file)
    url = _lake_url(lake, config)
    try:
        document = read_document(file, at=None if at is None else at.replace(tzinfo=UTC), now=SystemClock().now())
        parsed = intake.ingest(
            document,
            kind=kind,
            lake=ParquetLake(url),
            known_nodes=None if config is None else config.topology.places,
            node=node,
        )
    except (WrongKind, UnreadableFile) as problem:
        complain(f"{file}: {problem}")
        raise typer.Exit(ExitCode.USAGE) from problem
    told = {
        "read": parsed.read,
        "accepted": parsed.accepted,
        "rejected": parsed.reasons,
        "ignored": parsed.ignored,
        "tables": {name: rows.num_rows for name, rows in sorted(parsed.tables.items())},
    }
    typer.echo(json.dumps(told))
    if parsed.reasons and not parsed.accepted:
        most = max(parsed.reasons, key=lambda reason: parsed.reasons[reason])
        complain(f"{file}: nothing was taken in as {kind.value}; {parsed.reasons[most]} of {parsed.read}: {most}")
        raise typer.Exit(ExitCode.USAGE)


def _find_config(cluster_file: Path | None) -> "ClusterConfig | None":
    """Return the cluster that was named, else that of the working directory, else None."""
    from ops_pipelines.resources.config.cluster_file import read_cluster

    if cluster_file is None and not DEFAULT_CLUSTER_FILE.exists():
        return None
    return read_cluster((cluster_file or DEFAULT_CLUSTER_FILE).absolute())


def _lake_url(lake: str | None, config: "ClusterConfig | None") -> str:
    if lake is not None:
        return lake if "://" in lake else os.path.abspath(lake)  # noqa: PTH100 -- may not exist yet, and is no Path
    if config is None:
        complain("there is no cluster.yaml here to say where the lake is; give --lake DIR, or --cluster FILE")
        raise typer.Exit(ExitCode.USAGE)
    return config.lake.url


@telemetry_app.command()
@at_the_edge
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the tables of the lake; `telemetry tables` lists them.")],
    lake: LakeDirectory = None,
    cluster_file: ClusterFile = None,
    form: Annotated[AnswerFormat, typer.Option("--format", help="How the answer is written.")] = AnswerFormat.TABLE,
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 1000,
    timeout_seconds: Annotated[float, typer.Option(min=1, help="Give up after this long.")] = 120.0,
) -> None:
    """Ask the lake in SQL (DuckDB). Reads only: files outside the lake cannot be reached.

    Each table is a view; `date` (a date, as '2026-11-21') and `hour` (a whole number, as 7), both in UTC, tell DuckDB
    which files it need not open.
    """
    from ops_pipelines.resources.lake.query import QueryRefused
    from ops_pipelines.terminal.telemetry import run_query

    url = _lake_url(lake, _find_config(cluster_file))
    try:
        answer = run_query(url, sql, form=form, limit=limit, timeout_seconds=timeout_seconds, width=_terminal_width())
    except QueryRefused as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.USAGE) from problem
    typer.echo(answer)


@telemetry_app.command()
@at_the_edge
def tables(lake: LakeDirectory = None, cluster_file: ClusterFile = None) -> None:
    """List what the lake holds: rows, hours, newest row and size of every table."""
    from ops_pipelines.terminal.telemetry import describe

    typer.echo(describe(_lake_url(lake, _find_config(cluster_file)), width=_terminal_width()))


@telemetry_app.command()
@at_the_edge
def retain(
    lake: LakeDirectory = None,
    cluster_file: ClusterFile = None,
    raw_days: Annotated[int | None, typer.Option(min=1, help="Keep every sample so long.")] = None,
    five_minute_days: Annotated[int | None, typer.Option(min=1, help="Keep 5-minute aggregates so long.")] = None,
    hourly_days: Annotated[int | None, typer.Option(min=1, help="Keep hourly aggregates so long.")] = None,
    record_days: Annotated[
        int | None, typer.Option(min=1, help="Keep rejected rows, lines of jobs and kernel events so long.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Aggregate old hours to 5 minutes and an hour, and delete what has served its time.

    What is left out is taken from `lake` in cluster.yaml; what is in neither is kept for good. Raw samples are
    deleted only after their aggregates are written.
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.resources.config.cluster_config import LakeConfig
    from ops_pipelines.resources.lake.retention import RetentionSettings
    from ops_pipelines.terminal.telemetry import preview_retain, run_retain

    config = _find_config(cluster_file)
    kept = LakeConfig(url="") if config is None else config.lake
    settings = RetentionSettings(
        raw_days=raw_days or kept.raw_days,
        five_minute_days=five_minute_days or kept.five_minute_days,
        hourly_days=hourly_days or kept.hourly_days,
        record_days=record_days or kept.record_days,
    )
    act = preview_retain if dry_run else run_retain
    typer.echo(act(_lake_url(lake, config), now=SystemClock().now(), settings=settings))


def _terminal_width() -> int:
    from shutil import get_terminal_size

    return get_terminal_size((120, 40)).columns
