"""The edge of the command line: who calls, which cluster they mean, and errors as one message and an exit code."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from enum import Enum, IntEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster
    from ops_pipelines.core.incident import Incident
    from ops_pipelines.report.document import Document, Keys

# -- how an answer is printed --


class AnswerFormat(Enum):
    """How an answer is printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


# -- the edge of the command line --


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
        except typer.Exit:  # itself a RuntimeError
            raise
        except (RuntimeError, ValueError) as problem:
            code = _exit_code_of(problem)
            if code is None:
                raise
            complain(str(problem))
            raise typer.Exit(code) from problem

    return run


def _exit_code_of(problem: Exception) -> ExitCode | None:
    from ops_pipelines.core.entries import LedgerConflict, LedgerDamaged, LedgerError
    from ops_pipelines.core.policy import NotConfigured, PolicyError, RequestRefused
    from ops_pipelines.core.record import StatementFilesError
    from ops_pipelines.core.sources import LakeError, SourceError

    if isinstance(problem, PolicyError | NotConfigured | StatementFilesError):
        return ExitCode.USAGE
    if isinstance(problem, LedgerDamaged):
        return ExitCode.DAMAGED
    if isinstance(problem, LedgerConflict):
        return ExitCode.REFUSED  # It answered: somebody else came first, and nothing was changed.
    if isinstance(problem, SourceError | LedgerError | LakeError):
        return ExitCode.NO_ANSWER
    return ExitCode.REFUSED if isinstance(problem, RequestRefused) else None


def print_answer(values: Callable[[], "Keys"], document: Callable[[], "Document"], *, as_json: bool) -> None:
    """Print an answer: for scripts its values as JSON, for people its document."""
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console, print_document

    if as_json:
        typer.echo(to_json(values()))
    else:
        print_document(console(), document())


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


# -- who calls, which cluster they mean --


ClusterFile = Annotated[
    Path, typer.Option("--cluster", envvar="OPS_PIPELINES_CLUSTER", help="The cluster.yaml of the cluster.")
]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="OPS_PIPELINES_STATE",
        help="The state directory, where cluster.yaml is broken or gone and so cannot name it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
DEFAULT_CLUSTER_FILE = Path("cluster.yaml")
RECENT = timedelta(days=30)


def open_named(ctx: typer.Context, cluster_file: Path, *, state: Path | None = None) -> "Cluster":
    """Return the cluster of `cluster_file`, or the one that the caller of `app` opens by itself (`obj`).

    `state` is where to look for the last good cluster.yaml, if the present one cannot be used.
    """
    from ops_pipelines.core.policy import PolicyError
    from ops_pipelines.wiring import open_cluster

    opener: Callable[[Path], Cluster] = ctx.obj or partial(open_cluster, state_directory=state)
    try:
        return opener(cluster_file.absolute())
    except OSError as problem:
        raise PolicyError(
            f"{cluster_file}: its state directory cannot be used: {problem}. Check owner and mode of the path."
        ) from problem


def who_calls() -> str:
    """Return the user as the operating system knows them; an environment variable can say anything."""
    import os
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def find_incident(name: str, cluster: "Cluster") -> "Incident":
    """Return the incident of that name; refuse an unknown one with the names that come near."""
    from difflib import get_close_matches

    from ops_pipelines.core.identity import IncidentId
    from ops_pipelines.remediate.by_hand import ByHandRefused

    incident = cluster.ledger.incident(IncidentId(name))
    if incident is not None:
        return incident
    known = [each.incident for each in cluster.ledger.incidents_since(cluster.clock.now() - RECENT)]
    near = get_close_matches(name.upper(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`ops-pipelines incidents --all` lists the recent ones"
    raise ByHandRefused(f"there is no incident {name}; {hint}")


def refuse_empty_team(team: str | None) -> None:
    """End the call where a team is asked for and none is named: what nobody holds is no team's."""
    if team is not None and not team.strip():
        complain("--team is empty; name a team, or leave it out for all")
        raise typer.Exit(ExitCode.USAGE)
