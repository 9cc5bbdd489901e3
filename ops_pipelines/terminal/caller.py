"""Who calls, which cluster they mean, and which incident: what every command begins with.

Imports nothing heavy at the top: `--help` passes through here.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import ExitCode, complain

if TYPE_CHECKING:
    from ops_pipelines.core.cluster import Cluster
    from ops_pipelines.core.incident import Incident

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
