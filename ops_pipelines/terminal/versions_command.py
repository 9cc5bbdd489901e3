"""`ops-pipelines versions`: which version of what every node runs, and where that is not what it should be."""

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, open_named
from ops_pipelines.terminal.edge import at_the_edge, end_with


@at_the_edge
def versions(ctx: typer.Context, cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE, json: AsJson = False) -> None:
    """Show which versions run, and who runs another than it should. Asks every node; changes nothing.

    \b
    JSON: cluster, taken_at, node_count, drift_count, silent_nodes, problems [text], versions [node, model, component,
    runs or null, seen_at, told_by (node, inventory), should_run or null, said_by, fit (fits, drifts, unknown, free)].
    """
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.rollouts.seen_fleet import look_at_versions
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.tables import console
    from ops_pipelines.terminal.versions_view import print_versions, view_versions
    from ops_pipelines.wiring import open_lake

    cluster = open_named(ctx, cluster_file)
    config = read_cluster(cluster_file)
    lake = open_lake(config, clock=cluster.clock)
    view = view_versions(look_at_versions(cluster, lake=lake, release=config.release), cluster=cluster.name)
    if json:
        typer.echo(to_json(view))
    else:
        print_versions(console(), view)
    end_with(view.problems)
