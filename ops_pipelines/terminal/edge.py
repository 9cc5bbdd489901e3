"""The edge of the command line: errors with an addressee become one message and an exit code.

Imports nothing heavy: every command passes through here, `--help` too.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import wraps
from typing import ParamSpec

import typer

P = ParamSpec("P")


class ExitCode(IntEnum):
    """What a script may rely on. `--help` shows the meanings."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NO_ANSWER = 3
    REFUSED = 4
    DAMAGED = 5


def at_the_edge(command: Callable[P, None]) -> Callable[P, None]:
    """Turn the errors that have an addressee into one message on standard error and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (RuntimeError, ValueError) as problem:
            code = _exit_code_of(problem)
            if code is None:
                raise
            complain(str(problem))
            raise typer.Exit(code) from problem

    return run


def _exit_code_of(problem: Exception) -> ExitCode | None:
    from ops_pipelines.core.entries import LedgerConflict, LedgerDamaged, LedgerError
    from ops_pipelines.core.lake import LakeError
    from ops_pipelines.core.policy import PolicyError
    from ops_pipelines.core.record import StatementFilesError
    from ops_pipelines.core.sources import SourceError
    from ops_pipelines.costs.gather_usage import NothingYet
    from ops_pipelines.quotas.changes import ApplyRefused
    from ops_pipelines.remediate.by_hand import ByHandRefused
    from ops_pipelines.resources.backup import BackupError
    from ops_pipelines.simulator.twin import TwinError
    from ops_pipelines.teams.desk import NoTeams

    if isinstance(problem, PolicyError | NoTeams | StatementFilesError):
        return ExitCode.USAGE
    if isinstance(problem, LedgerDamaged):
        return ExitCode.DAMAGED
    if isinstance(problem, LedgerConflict):
        return ExitCode.REFUSED  # It answered: somebody else came first, and nothing was changed.
    if isinstance(problem, SourceError | LedgerError | LakeError | TwinError):
        return ExitCode.NO_ANSWER
    return ExitCode.REFUSED if isinstance(problem, ApplyRefused | BackupError | ByHandRefused | NothingYet) else None


def end_with(problems: Iterable[str]) -> None:
    """Name what did not answer and end with the exit code for it."""
    named = list(problems)
    for problem in named:
        complain(problem)
    if named:
        raise typer.Exit(ExitCode.NO_ANSWER)


def complain(message: str) -> None:
    from ops_pipelines.report.terminal import printable

    for line in message.splitlines():
        typer.echo(printable(line), err=True)
