"""Group `advice`, once a day: where jobs stood, what was in pieces or out of reach, who waited. Changes nothing.

A partition is a local day, by its name; the running one is as much of it as is over. One that is materialised anew
says the same of jobs as long as the lake has them; settings and limits are those of now, and so it says.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import LOCAL_DAYS
from ops_pipelines.efficiency.placement.day import PlacementReport, report_of_day
from ops_pipelines.report.metadata import metadata_of, table
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "advice"


@dg.asset(
    name="placement_report",
    group_name=GROUP,
    deps=["job_accounting", "job_allocations", "inventory", "gpu_efficiency"],
    partitions_def=LOCAL_DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def placement(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """How jobs were placed and how long they waited on a local day, as advice to whoever runs the scheduler."""
    report = report_of_day(_newest_day(context), teams_desk)
    for note in report.notes:
        context.log.info("placement: %s", note)
    return dg.Output(None, metadata=dict(describe_placement(report, cluster=teams_desk.cluster.name)))


def describe_placement(report: PlacementReport, *, cluster: str) -> Mapping[str, dg.MetadataValue]:
    """Return the report as the UI shows it."""
    from ops_pipelines.efficiency.placement.document import placement_document
    from ops_pipelines.report.pictures.hours import sparkline

    document = placement_document(report, cluster=cluster, day=report.day.start.date())
    pieces = sparkline([each.index_ratio for each in report.day.hours], title="Whole nodes in pieces", unit="%")
    return {
        **metadata_of(document),
        "fragmentation_by_hour": dg.MetadataValue.md(pieces),
        "refused": table({"row": each.record, "reason": each.reason, "detail": each.detail} for each in report.refused),
    }


def _newest_day(context: dg.AssetExecutionContext) -> date:
    """Return the newest local day of the run: the partition carries its name."""
    end: datetime = context.partition_time_window.end.astimezone(UTC)
    return (end - timedelta(days=1)).date()
