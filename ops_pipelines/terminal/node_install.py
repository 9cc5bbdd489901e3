"""`ops-pipelines node-install` and `node-versions`: what a rollout asks of a node, on the node itself.

Run there, without a cluster.yaml. What is done is `resources.node`'s; who asks is the fleet.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

if TYPE_CHECKING:
    from ops_pipelines.resources.node.installs import InstallRuns

_DIRECTORY = Path("/var/lib/ops_pipelines/installs")
EXIT_NONE, EXIT_BUSY, EXIT_REFUSED = 4, 75, 77
_GPU_LIMIT_SECONDS = 2.0

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="Where installations keep their files.")]
Key = Annotated[str, typer.Option(help="32 digits 0-9a-f; the same key starts one installation.")]

node_install_app = typer.Typer(
    help="Install on this node what a rollout orders; for the fleet, not for people.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@node_install_app.command()
@at_the_edge
def start(
    order: Annotated[str, typer.Option(help="The order in base64url, as the fleet sends it.")],
    key: Key,
    node: Annotated[str, typer.Option(help="The node's name in the cluster: an order of another node is refused.")],
    limit: Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="What the installation may take.")] = 3_300.0,
    state: State = _DIRECTORY,
) -> None:
    """Begin an installation in the background, and return at once.

    Each artifact is copied and its sha256 compared before anything of it is run. Commands are argument lists; a shell
    among them is refused. What they print is in KEY.log under --state.

    \b
    Exit codes: 0 begun, or begun before; 75 another installation runs here: ask again later; 77 refused: an order that
    makes no sense, or a process that computes on the GPUs.
    """
    from ops_pipelines.core.sources import SourceRefused
    from ops_pipelines.resources.fleet.documents import order_from_word
    from ops_pipelines.resources.fleet.installs import refuse_words
    from ops_pipelines.resources.node.installs import AnotherInstallRuns, GpusBusy

    try:
        plain = order_from_word(order)
        if (plain.node, plain.key) != (node, key):
            raise ValueError(f"the order is of {plain.node} under {plain.key}; check where the command goes")
        refuse_words(plain)
        is_new = _runs(state, node).start(plain, limit_seconds=limit)
    except AnotherInstallRuns as problem:
        raise _end(str(problem), EXIT_BUSY) from problem
    except (ValueError, SourceRefused, GpusBusy) as problem:
        raise _end(str(problem), EXIT_REFUSED) from problem
    except OSError as problem:
        raise _end(f"{state} cannot be used: {problem}. Check its owner and mode", EXIT_REFUSED) from problem
    typer.echo("started" if is_new else "started before")


@node_install_app.command()
@at_the_edge
def result(key: Key, state: State = _DIRECTORY) -> None:
    """Print how far an installation is, as one JSON object.

    \b
    Exit codes: 0 it is printed, whatever it says; 4 `none` was started under this key; 3 its files make no sense.

    \b
    JSON: node, key, state (running, installed, failed), said, progress_ratio or null, changed_at.
    """
    from ops_pipelines.core.node_tests import parse_check_key
    from ops_pipelines.resources.fleet.documents import report_to_json

    try:
        known = parse_check_key(key)
    except ValueError as problem:
        raise _end(str(problem), ExitCode.USAGE) from problem
    try:
        report = _runs(state, "").read(known)
    except (ValueError, OSError) as problem:
        raise _end(f"the files of {known} in {state} make no sense: {problem}", ExitCode.NO_ANSWER) from problem
    if report is None:
        typer.echo("none")
        raise typer.Exit(EXIT_NONE)
    typer.echo(report_to_json(report))


@at_the_edge
def node_versions(
    node: Annotated[
        str | None, typer.Option(help="The node's name in the cluster (default: the host name up to its first dot).")
    ] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="What looking may take.")] = 3.0,
) -> None:
    """Print which versions run on this node, as one JSON object; change nothing.

    What runs, not what is installed: of a daemon only while a process of that very file runs. What cannot be told is
    left out. Best run as root.

    \b
    JSON: node, and a text for each of driver, fabric_manager, imex, cuda, dcgm, nic_driver, nic_firmware, gpu_vbios,
    bios, kernel, container_runtime, slurm, kubernetes that it can tell.
    """
    import platform

    from ops_pipelines.core.identity import parse_node_name
    from ops_pipelines.resources.fleet.documents import versions_to_json
    from ops_pipelines.resources.node.versions import read_versions

    try:
        name = parse_node_name(node or platform.node().split(".", 1)[0])
    except ValueError as problem:
        raise _end(str(problem), ExitCode.USAGE) from problem
    typer.echo(versions_to_json(read_versions(name, limit_seconds=limit), node=name))


def _runs(state: Path, node: str) -> "InstallRuns":
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.identity import parse_node_name
    from ops_pipelines.resources.commands import run_tool
    from ops_pipelines.resources.node.installs import InstallRuns
    from ops_pipelines.resources.node.nvml import read_nvml

    def count_processes() -> int:
        # A driver that does not answer hinders nothing: it may be what is to be mended.
        reading = read_nvml(parse_node_name(node), run_tool, limit_seconds=_GPU_LIMIT_SECONDS)
        return reading.compute_process_count

    return InstallRuns(state.absolute(), clock=SystemClock(), count_processes=count_processes)


def _end(message: str, code: int) -> typer.Exit:
    complain(message)
    return typer.Exit(code)
