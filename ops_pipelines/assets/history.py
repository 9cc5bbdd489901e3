"""Group `history`: what weeks and months show that no hour does: lemons, wear, and defects of whole batches.

A partition is a day; it looks back from the day's end, so that a day materialised anew, years later, says the same as
long as the lake still has its hours. Nothing is stored but what the page shows: who acts on it reads the ledger.
"""

from datetime import UTC, datetime, timedelta

import dagster as dg

from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import DAYS
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.report.metadata import count, table
from ops_pipelines.review.week_incidents import once_a_day

GROUP = "history"
LEMON_DAYS = 28
"""What a lemon is judged by: long enough for a rare fault to come back, short enough to forget a repair."""
WEAR_DAYS = 90
DEFECT_DAYS = 455
"""A window of 90 days and a year of past before it."""
DAY = timedelta(days=1)


@dg.asset(
    group_name=GROUP,
    deps=["inventory", "kernel_events", "job_accounting"],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def lemon_scores(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    cluster: dg.ResourceParam[Cluster],
) -> dg.Output[None]:
    """Nodes and GPUs in trouble more often than the rest of the fleet in the last 28 days, with the reasons."""
    from ops_pipelines.review.week_incidents import score_fleet

    until = _end_of_day(context)
    found = score_fleet(
        observatory.lake,
        cluster.ledger,
        cluster.scheduler.read_jobs(),
        cluster.rules.catalogue,
        since=until - LEMON_DAYS * DAY,
        until=until,
    )
    return dg.Output(
        None,
        metadata={
            "lemon_count": count(found.lemons),
            "judged_count": dg.MetadataValue.int(found.judged_count),
            "worst_first": table(
                {
                    "part": str(each.part),
                    "node": each.node,
                    "lemon": each.is_lemon,
                    "score": each.score,
                    "confidence": each.confidence,
                    "reasons": "; ".join(each.reasons),
                }
                for each in sorted(found.scores, key=lambda each: (not each.is_lemon, -each.score))
            ),
        },
    )


@dg.asset(
    group_name=GROUP,
    deps=["gpu_telemetry", "storage_telemetry", "fabric_telemetry"],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def wear_out(context: dg.AssetExecutionContext, observatory: dg.ResourceParam[Observatory]) -> dg.Output[None]:
    """When disks, spare rows of GPU memory and links will be worn out, with bounds and the time that is left to act."""
    from ops_pipelines.diagnose.wear import (
        BANK_COLUMNS,
        WEAR_COLUMNS,
        Outlook,
        forecast_tables,
        readings_of,
        worst_banks,
    )

    until = _end_of_day(context)
    lake = observatory.lake
    days = once_a_day(until - WEAR_DAYS * DAY, until)
    readings = {
        name: readings_of((lake.read_hour(name, hour) for hour in days), (*columns, *BANK_COLUMNS))
        for name, columns in WEAR_COLUMNS.items()
    }
    forecasts = forecast_tables(readings, now=until)
    urgent = [each for each in forecasts if each.outlook in (Outlook.REACHED, Outlook.WEARS_OUT)]
    by_outlook = {outlook: sum(each.outlook is outlook for each in forecasts) for outlook in Outlook}
    return dg.Output(
        None,
        metadata={
            "wearing_out_count": count(urgent),
            "wearing_out": table(
                {
                    "part": each.part,
                    "quantity": each.quantity,
                    "lead_days": each.lead_days,
                    "likely": "" if each.reaches_at is None else f"{each.reaches_at:%Y-%m-%d}",
                    "what": each.explanation,
                    "source": each.source,
                }
                for each in urgent
            ),
            "spare_rows": table(
                {"gpu": each.part, "worst_bank": each.worst, "banks": each.bank_count, "what": each.explanation}
                for each in worst_banks(readings["gpu_telemetry"])
            ),
            "by_outlook": table({"outlook": each.value, "series": number} for each, number in by_outlook.items()),
        },
    )


@dg.asset(
    group_name=GROUP,
    deps=["inventory"],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def fleet_defects(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    cluster: dg.ResourceParam[Cluster],
) -> dg.Output[None]:
    """Does a batch, model, rack or driver version, or the fleet itself, fail more often than it should?"""
    from ops_pipelines.core.fault import ComponentKind
    from ops_pipelines.diagnose.defects import compare_groups
    from ops_pipelines.diagnose.trouble_rows import failures_of, incident_troubles, of_kind, read_attendance
    from ops_pipelines.report.pictures.hours import sparkline

    until = _end_of_day(context)
    since = until - DEFECT_DAYS * DAY
    lake = observatory.lake
    attendance = read_attendance({hour: lake.read_hour("inventory", hour) for hour in once_a_day(since, until)})
    incidents = [each for each in cluster.ledger.incidents_since(since) if each.opened_at < until]
    troubles = incident_troubles(incidents, {}, attendance.lineage)
    rates = []
    for kind in (ComponentKind.GPU, ComponentKind.NODE):
        service, places = of_kind(attendance, kind)
        rates += [
            (kind, rate)
            for rate in compare_groups(service, failures_of(troubles, service, places, kind=kind), at=until)
        ]
    weeks = [
        float(sum(until - (week + 1) * 7 * DAY <= each.at < until - week * 7 * DAY for each in troubles))
        for week in reversed(range(26))
    ]
    return dg.Output(
        None,
        metadata={
            "alarm_count": count([rate for _, rate in rates if rate.is_alarm]),
            "incidents_by_week": dg.MetadataValue.md(
                sparkline(weeks, title="Culprits of incidents a week, last 26 weeks", unit="")
            ),
            "groups": table(
                {
                    "parts": kind.value,
                    "group": rate.group if rate.kind == rate.group else f"{rate.kind} {rate.group}",
                    "alarm": rate.is_alarm,
                    "failed": rate.failed_count,
                    "expected": rate.expected,
                    "ratio": rate.ratio,
                    "what": rate.explanation,
                }
                for kind, rate in rates
            ),
        },
    )


def _end_of_day(context: dg.AssetExecutionContext) -> datetime:
    """Return the end of the newest day of the run: a run over many days says what the last of them says."""
    end: datetime = context.partition_time_window.end.astimezone(UTC)
    return end
