"""Group `capacity`, once a day: the highest hour of the local day, for each resource that may run short.

What quarters are forecast from. A partition is a local day; it takes the place of what was kept of it before.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import DAYS
from ops_pipelines.capacity.past import DaySummed, keep_day, sum_day
from ops_pipelines.report.metadata import table
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "capacity"


@dg.asset(
    group_name=GROUP,
    kinds={"parquet"},
    deps=[
        *("gpu_demand", "inventory", "job_accounting", "job_allocations", "storage_telemetry", "node_telemetry"),
        *("fabric_telemetry", "facility_telemetry"),
    ],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def daily_peaks(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """Peaks of a local day: GPUs by team and type, what was out, storage, links, racks and the room."""
    for day in _days(context):
        summed = sum_day(teams_desk, day=day)
        kept = keep_day(teams_desk, summed)
        context.log.info("peaks of %s: %d rows", day, kept)
        for note in summed.notes:
            context.log.info("%s: %s", day, note)
    return dg.Output(None, metadata=_shown(summed))


def _days(context: dg.AssetExecutionContext) -> list[date]:
    """Return the local days of the run: partitions carry their names."""
    window = context.partition_time_window
    since, until = (each.astimezone(UTC).date() for each in (window.start, window.end))
    return [since + timedelta(days=number) for number in range((until - since).days)]


def _shown(summed: DaySummed) -> Mapping[str, dg.MetadataValue]:
    at: datetime = summed.at
    return {
        "day": dg.MetadataValue.text(
            f"{summed.day}, {summed.hour_count} hours from {at:%Y-%m-%d %H:%M} UTC on, {summed.zone}"
        ),
        "row_count": dg.MetadataValue.int(summed.rows.num_rows),
        "peaks": table(_line(row) for row in summed.shown),
        "missing": table({"resource": each.value} for each in summed.missing),
        "notes": table({"note": each} for each in summed.notes),
    }


def _line(row: Mapping[str, object]) -> dict[str, object]:
    names = ("resource", "gpu_type", "name", "peak", "mean", "limit", "unit", "hour_count", "near_peak_hours")
    return {name: "not known" if row[name] is None else row[name] for name in names}
