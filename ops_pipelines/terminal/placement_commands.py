"""`ops-pipelines placement`: where jobs stood on a day, what was out of reach, and who waited how long."""

from datetime import datetime
from typing import Annotated

import typer

from ops_pipelines.terminal.caller import DEFAULT_CLUSTER_FILE, AsJson, ClusterFile, open_named
from ops_pipelines.terminal.edge import at_the_edge


@at_the_edge
def placement(
    ctx: typer.Context,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A local day; yesterday if none is given.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how jobs were placed on a day and how long they waited. Advice; changes nothing.

    \b
    JSON: cluster, start, end, node_count, gpu_count, started_count, sentences [text], straddles [job, team, node_count,
    level, parts, fewest, better, is_avoidable, cost, because], broken_domains [job, team, gpu_count, domain,
    domain_gpu_count, elsewhere], fits [gpus_per_node, node_count, within, could_start, by_count], hours [hour,
    index_ratio, free_gpus], node_hints [node, free_gpus, held_gpus, jobs, likely_by, whole_by], free_gpu_hours,
    stranded [node, why, cause, gpu_hours, gpus_at_the_end], backfill [job, team, limit_seconds, proposed_seconds,
    run_count, could_have_started_at, earlier_seconds, hole_ends_at, ended_by], holes [node, since, until, free_gpus,
    cause], queue_times [size, team or null, job_count, waiting_count, median_seconds, p90_seconds, long_ratio,
    mostly_for, is_few], reversals [seems_better, is_better, sizes], findings [rule, where, setting, found, why, set_to,
    source] or null, notes [text], refused [record, reason, detail].
    """
    from datetime import timedelta

    from ops_pipelines.efficiency.placement.report import report_of_day
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.terminal.json_form import to_json
    from ops_pipelines.terminal.placement_tables import print_placement
    from ops_pipelines.terminal.placement_views import view_placement
    from ops_pipelines.terminal.tables import console
    from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk

    cluster, config = open_named(ctx, cluster_file), read_cluster(cluster_file)
    desk = assemble_teams_desk(config, cluster=cluster, observatory=assemble_observatory(config, cluster.clock))
    chosen = day.date() if day else desk.clock.now().astimezone(desk.zone).date() - timedelta(days=1)
    view = view_placement(report_of_day(chosen, desk), cluster=desk.cluster.name)
    if json:
        typer.echo(to_json(view))
    else:
        print_placement(console(), view)
