"""Group `quotas`: what teams ran, waited for and wanted, by the hour; and their local days, for people."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from ops_pipelines.assets.hours import LAKE_IO, ONE_RUN, POOL, by_partition, covered, hour_of_key, keep_rejected
from ops_pipelines.assets.partitions import DAYS, HOURS
from ops_pipelines.assets.tables import count, table
from ops_pipelines.core.lake import Computed
from ops_pipelines.observe.hours import Filled
from ops_pipelines.quotas.gather_demand import FilledDemand, demand_of_day, fill_demand
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "quotas"


@dg.asset(
    group_name=GROUP,
    kinds={"slurm", "parquet"},
    deps=["job_accounting", "job_allocations", "gpu_efficiency", "inventory"],
    io_manager_key=LAKE_IO,
    partitions_def=HOURS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def gpu_demand(
    context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> dg.Output[Mapping[str, Computed]]:
    """GPUs that each team ran, waited for and wanted, by type; what counts is told, and what does not."""
    start, end = covered(context)
    filled = fill_demand(teams_desk, start=start, end=end)
    keep_rejected(
        _rejections(filled), teams_desk.observatory, hours=[hour_of_key(key) for key in context.partition_keys]
    )
    for note in filled.notes:
        context.log.info("demand: %s", note)
    rows = by_partition(context, filled.rows)
    # What an hour wanted is told anew each time, and as a whole.
    told = {key: Computed(rows=rows.get(key)) for key in context.partition_keys}
    return dg.Output(
        told,
        metadata={
            "not_in_teams_file": table({"team": team} for team in filled.strangers),
            "notes": table({"what": note} for note in filled.notes),
            "refused_by_reason": table({"reason": reason, "rows": rows} for reason, rows in filled.reasons.items()),
        },
    )


@dg.asset(
    group_name=GROUP,
    deps=["gpu_demand"],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def gpu_demand_daily(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """A local day of each team and type of GPU: GPU-hours that ran, waited, were wanted and did nothing."""
    from ops_pipelines.report.pictures.bars import demand_bars

    day = _newest_day(context)
    found = demand_of_day(teams_desk, day=day)
    return dg.Output(
        None,
        metadata={
            "day": dg.MetadataValue.text(f"{day}, {found.hour_count} hours, {teams_desk.zone.key}"),
            "demand": dg.MetadataValue.md(demand_bars(found.sums, day=day)),
            "teams": table(found.sums),
            "missing_hour_count": count(found.missing),
            "missing_hours": table({"hour": f"{hour:%Y-%m-%d %H:%M} UTC"} for hour in found.missing),
            "refused": table(found.refused),
        },
    )


def _rejections(filled: FilledDemand) -> Filled:
    tables = {} if filled.rejected is None else {"rejected_rows": filled.rejected}
    return Filled(tables=tables, read_count=0, accepted_count=0, ignored_count=0, reasons=filled.reasons, notes=())


def _newest_day(context: dg.AssetExecutionContext) -> date:
    """Return the newest local day of the run: the partition carries its name."""
    end: datetime = context.partition_time_window.end.astimezone(UTC)
    return (end - timedelta(days=1)).date()
