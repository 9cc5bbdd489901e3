"""Commands for the node itself: its checks, the gates of jobs, and what is installed on it."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import ExitCode, at_the_edge, complain

# -- `ops-pipelines node-check` --


if TYPE_CHECKING:
    from ops_pipelines.core.identity import ActionKey, NodeName
    from ops_pipelines.core.node_tests import NodeCheck, Suite

_DIRECTORY = Path("/var/lib/ops_pipelines/checks")
_SHORTEST_LIMIT = 1.0
EXIT_NO_RESULT, EXIT_REFUSED = 4, 77

gates_app = typer.Typer(
    help="The limits by which a tested node is judged.", no_args_is_help=True, rich_markup_mode=None
)


@at_the_edge
def node_check(
    suite: Annotated[
        str | None, typer.Option(help="The suite of tests, as in catalogue/verification_suites.csv; default: general.")
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option("--test", help="A test, or several joined by commas, in place of a suite.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="The node's name in the cluster (default: the host name up to its first dot).")
    ] = None,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=_SHORTEST_LIMIT, help="What the whole check may take.")
    ] = 10_500.0,
    start: Annotated[
        bool, typer.Option("--start", help="Begin in the background under --key, and return at once.")
    ] = False,
    key: Annotated[str | None, typer.Option(help="32 digits 0-9a-f; the same key starts one check.")] = None,
    result: Annotated[
        str | None, typer.Option(metavar="KEY", help="Print what the check under this key found.")
    ] = None,
    state: Annotated[Path, typer.Option(metavar="DIR", help="Where checks under a key keep their files.")] = _DIRECTORY,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Test the node that this runs on; change nothing.

    A tool that is not installed, or does not come to its end, is reported as not run, never as passed. Best run as
    root: part of what it looks at is hidden from others. Tests that load the hardware are not run beside a job.

    \b
    Exit codes: 0 every required test passed; 1 a test failed; 3 nothing failed, and a required test was not run, or
    one whose tool is here came to no end; 2 wrong usage; 70 the check itself broke; 75 another check runs here: ask
    again later. --start: 0 started, or started before; 77 refused, such as a suite that this version does not know.
    --result: 0 it is printed, whatever it says; 4 `running`, or `none` under this key.

    \b
    JSON: node, key, suite, started_at, finished_at, gpu_models [text], tests [test, result (passed, failed, not_run),
    `said`, seconds, is_absent (not run: its tool is not here), measurements [name, value, unit, gpu or null]],
    serials [part, serial, model, firmware]; and, if NVML can be read, boot_id, booted_at, inspected_at, chassis_serial,
    gpus and failures as `inspect` prints them.
    """
    with _own_exit_code():
        _do(suite, test, node, limit=limit, start=start, key=key, result=result, state=state, as_json=json)


@contextlib.contextmanager
def _own_exit_code() -> Iterator[None]:
    """End with a code of its own if the check breaks: Python's own, 1, would say that a test failed."""
    import traceback

    from ops_pipelines.resources.node.checks import CheckExit

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except Exception as problem:  # Of whatever kind: what is our own fault must not read as a failed test.
        complain(traceback.format_exc())
        raise typer.Exit(CheckExit.CRASHED) from problem


def _do(
    suite: str | None,
    test: list[str] | None,
    node: str | None,
    *,
    limit: float,
    start: bool,
    key: str | None,
    result: str | None,
    state: Path,
    as_json: bool,
) -> None:
    if result is not None:
        if start or suite is not None or test:
            raise _usage("--result is alone: it starts nothing")
        _print_result(result, state)
        return
    if start and key is None:
        raise _usage("--start wants --key: the result is asked for by it")
    try:
        chosen = _choose(suite, test)
        name = _name_of(node)
    except ValueError as problem:
        raise _usage(str(problem), code=EXIT_REFUSED if start else ExitCode.USAGE) from problem
    if start and key is not None:
        _start(key, name, chosen, limit=limit, state=state)
        return
    _run(name, chosen, key=key, limit=limit, state=state, as_json=as_json)


def _choose(suite: str | None, tests: Sequence[str] | None) -> "Suite":
    from ops_pipelines.core.node_tests import BY_HAND, Suite, parse_test_name, suite_for, suite_named
    from ops_pipelines.resources.catalogue_files import read_suites

    if suite is not None and tests:
        raise ValueError("give --suite or --test, not both")
    if tests:
        names = tuple(dict.fromkeys(parse_test_name(name) for word in tests for name in word.split(",")))
        return Suite(name=BY_HAND, families=frozenset(), tests=names, required=frozenset(names))
    return suite_for((), read_suites()) if suite is None else suite_named(suite, read_suites())


def _name_of(node: str | None) -> "NodeName":
    import platform

    from ops_pipelines.core.identity import parse_node_name

    return parse_node_name(node or platform.node().split(".", 1)[0])


def _run(node: "NodeName", suite: "Suite", *, key: str | None, limit: float, state: Path, as_json: bool) -> None:
    import secrets

    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.node_tests import parse_check_key
    from ops_pipelines.resources.fleet.documents import check_to_json
    from ops_pipelines.resources.node.checks import exit_code_of, run_check

    try:
        known = parse_check_key(key or secrets.token_hex(16))
    except ValueError as problem:
        raise _usage(str(problem)) from problem
    with _alone(known, node, suite, limit=limit, state=state):
        check = run_check(node, suite.tests, key=known, suite=suite.name, clock=SystemClock(), limit_seconds=limit)
    if as_json:
        typer.echo(check_to_json(check))
    else:
        _print_table(check)
    raise typer.Exit(exit_code_of(check, suite.required))


@contextlib.contextmanager
def _alone(key: "ActionKey", node: "NodeName", suite: "Suite", *, limit: float, state: Path) -> Iterator[None]:
    """Let no other check run beside tests that load the hardware."""
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.node_tests import LOAD_TESTS
    from ops_pipelines.resources.node.checks import AnotherCheckRuns, CheckExit, CheckRuns

    with contextlib.ExitStack() as stack:
        if LOAD_TESTS & set(suite.tests):
            runs = CheckRuns(state.absolute(), clock=SystemClock())
            guard = runs.alone(key, node=node, suite=suite.name, tests=suite.tests, limit_seconds=limit)
            try:
                stack.enter_context(guard)
            except AnotherCheckRuns as problem:
                raise _usage(str(problem), code=CheckExit.BUSY) from problem
            except OSError as problem:
                # Somebody without rights on it: what another check does to the GPUs shows in NVML all the same.
                complain(f"{state} cannot be used: {problem}. Whether another check runs was not looked at")
        yield


def _start(key: str, node: "NodeName", suite: "Suite", *, limit: float, state: Path) -> None:
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.node_tests import parse_check_key
    from ops_pipelines.resources.node.checks import AnotherCheckRuns, CheckExit, CheckRuns

    try:
        known = parse_check_key(key)
        runs = CheckRuns(state.absolute(), clock=SystemClock())
        is_new = runs.start(known, node=node, suite=suite.name, tests=suite.tests, limit_seconds=limit)
    except AnotherCheckRuns as problem:
        raise _usage(str(problem), code=CheckExit.BUSY) from problem
    except ValueError as problem:
        raise _usage(str(problem), code=EXIT_REFUSED) from problem
    except OSError as problem:
        raise _usage(f"{state} cannot be used: {problem}. Check its owner and mode", code=EXIT_REFUSED) from problem
    typer.echo("started" if is_new else "started before")


def _print_result(key: str, state: Path) -> None:
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.core.node_tests import parse_check_key
    from ops_pipelines.resources.fleet.documents import check_to_json
    from ops_pipelines.resources.node.checks import CheckRuns

    try:
        known = parse_check_key(key)
    except ValueError as problem:
        raise _usage(str(problem)) from problem
    try:
        check = CheckRuns(state.absolute(), clock=SystemClock()).read(known)
    except KeyError as problem:
        typer.echo("none")
        raise typer.Exit(EXIT_NO_RESULT) from problem
    except (ValueError, OSError) as problem:
        raise _usage(f"the files of {known} in {state} make no sense: {problem}", code=ExitCode.NO_ANSWER) from problem
    if check is None:
        typer.echo("running")
        raise typer.Exit(EXIT_NO_RESULT)
    typer.echo(check_to_json(check))


def _print_table(check: "NodeCheck") -> None:
    from ops_pipelines.report.terminal import printable

    typer.echo(f"{check.node}, suite {check.suite}: {', '.join(check.gpu_models) or 'no GPU that NVML reports'}")
    for run in check.tests:
        typer.echo(
            f"  {run.test:<14} {run.result.value.replace('_', ' '):<8} {run.seconds:8.1f} s  {printable(run.said)}"
        )


@gates_app.command()
@at_the_edge
def lint(
    table: Annotated[Path | None, typer.Argument(help="A table of your own; default: the shipped one.")] = None,
) -> None:
    """Refuse gates that cannot fail or cannot pass, that judge nothing, and units that differ.

    \b
    Exit codes: 0 nothing to complain of; 2 the table cannot be read, or a gate is refused.
    """
    from ops_pipelines.remediate.guardrails.lints import lint_gates
    from ops_pipelines.resources.catalogue_files import GATES_TABLE, parse_gates, shipped_table

    name = f"catalogue/{GATES_TABLE}" if table is None else str(table)
    try:
        text = shipped_table(GATES_TABLE) if table is None else table.read_text(encoding="utf-8")
        gates = parse_gates(text, table=name)
    except (OSError, ValueError) as problem:
        raise _usage(str(problem)) from problem
    faults = lint_gates(gates)
    for fault in faults:
        complain(fault)
    if faults:
        raise typer.Exit(ExitCode.USAGE)
    typer.echo(f"{name}: {len(gates)} gates; each can fail, and can be passed")


def _usage(message: str, *, code: int = ExitCode.USAGE) -> typer.Exit:
    complain(message)
    return typer.Exit(code)


# -- `ops-pipelines node-install` and `node-versions` --


if TYPE_CHECKING:
    from ops_pipelines.resources.node.installs import InstallRuns

_INSTALL_DIRECTORY = Path("/var/lib/ops_pipelines/installs")
EXIT_NONE, EXIT_BUSY = 4, 75
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
    state: State = _INSTALL_DIRECTORY,
) -> None:
    """Begin an installation in the background, and return at once.

    Each artifact is copied and its sha256 compared before anything of it is run. Commands are argument lists; a shell
    among them is refused. What they print is in KEY.log under --state.

    \b
    Exit codes: 0 started, or started before; 75 another installation runs here: ask again later; 77 refused: an order
    that makes no sense, or a process that computes on the GPUs.
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
def result(key: Key, state: State = _INSTALL_DIRECTORY) -> None:
    """Print how far an installation is, as one JSON object.

    \b
    Exit codes: 0 it is printed, whatever it says; 4 `none` was started under this key; 3 its files make no sense.

    \b
    JSON: node, key, state (running, installed, failed), `said`, progress_ratio or null, changed_at.
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

    What runs, not what is installed: of a daemon only while a process of that very file runs. What cannot be reported
    is left out. Best run as root.

    \b
    JSON: node, and a text for each of driver, fabric_manager, imex, cuda, dcgm, nic_driver, nic_firmware, gpu_vbios,
    bios, kernel, container_runtime, slurm, kubernetes that it can tell.
    """
    import platform

    from ops_pipelines.core.identity import parse_node_name
    from ops_pipelines.resources.fleet.documents import versions_to_json
    from ops_pipelines.resources.node.installs import read_versions

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
        # A driver that does not answer hinders nothing: it may be what is to be repaired.
        reading = read_nvml(parse_node_name(node), run_tool, limit_seconds=_GPU_LIMIT_SECONDS)
        return reading.compute_process_count

    return InstallRuns(state.absolute(), clock=SystemClock(), count_processes=count_processes)


def _end(message: str, code: int) -> typer.Exit:
    complain(message)
    return typer.Exit(code)
