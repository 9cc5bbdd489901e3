"""Group `history`, once a day: what an interruption of a job costs here, measured from those that happened.

Decisions read what the newest day says; an older day that is materialised anew shows its own and changes nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from ops_pipelines.assets.history import GROUP
from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import DAYS
from ops_pipelines.assets.tables import count, table
from ops_pipelines.core.cluster import HOUR, Cluster, Observatory, hour_of
from ops_pipelines.core.lake import Lake, Rows

COST_DAYS = 28
"""Long enough for five interruptions on a small cluster, short enough to follow changed settings."""
TIMED_AT_MOST = 50
"""Restarts that are timed, the newest: each costs a look into two or three hours of job logs."""
FRESH = timedelta(days=2)
"""A day that ended longer ago than this says how it was, not how it is."""


@dg.asset(
    group_name=GROUP,
    deps=["job_accounting", "job_allocations", "job_logs"],
    partitions_def=DAYS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    code_version="1",
)
def interruption_costs(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    cluster: dg.ResourceParam[Cluster],
) -> dg.Output[None]:
    """How long an interruption takes: queue with and without room, and restart until work goes on."""
    from ops_pipelines.remediate.restart_costs import (
        Attempt,
        attempts_of_rows,
        cost_rows,
        find_interruptions,
        measure_costs,
        time_restart,
    )
    from ops_pipelines.report.pictures.hours import sparkline

    until: datetime = context.partition_time_window.end.astimezone(UTC)
    lake = observatory.lake
    attempts: list[Attempt] = []
    for rows in _ended(lake, until - COST_DAYS * timedelta(days=1), until):
        attempts += attempts_of_rows(rows)
    # What runs has not ended, so that accounting does not name it yet.
    attempts += attempts_of_rows(lake.read_hour("job_allocations", until - HOUR))
    found = find_interruptions(attempts)
    timed = {
        each: seconds
        for each in found[-TIMED_AT_MOST:]
        if (seconds := time_restart(each, _lines_after(lake, each.resumed_at))) is not None
    }
    costs, counts = measure_costs(found, tuple(timed.values()))
    is_kept = cluster.job_facts is not None and until >= cluster.clock.now() - FRESH
    if is_kept and cluster.job_facts is not None:
        cluster.job_facts.keep_costs(costs)
    return dg.Output(
        None,
        metadata={
            "interruption_count": count(found),
            "measured_count": dg.MetadataValue.int(costs.measured_count),
            "used_for_decisions": dg.MetadataValue.bool(is_kept),
            "costs": table(cost_rows(costs, counts)),
            "waits": dg.MetadataValue.md(
                sparkline(
                    [each.queue_seconds for each in found[-60:]], title="Wait of the last interruptions", unit="s"
                )
            ),
            "interruptions": table(
                {
                    "job": each.job,
                    "ended": f"{each.ended_at:%Y-%m-%d %H:%M:%S}",
                    "why": each.why,
                    "queue_seconds": each.queue_seconds,
                    "room": each.had_room,
                    "restart_seconds": timed.get(each),
                }
                for each in reversed(found)
            ),
        },
    )


def _ended(lake: Lake, since: datetime, until: datetime) -> Iterator[Rows]:
    """Yield the attempts that ended, an hour at a time."""
    for number in range((until - since) // HOUR):
        rows = lake.read_hour("job_accounting", since + number * HOUR)
        if rows.num_rows:
            yield rows


def _lines_after(lake: Lake, start: datetime) -> Rows:
    """Return what jobs wrote in the hours in which a restart is looked for."""
    from ops_pipelines.remediate.restart_costs import LOG_COLUMNS, START_LIMIT

    return lake.read("job_logs", start=hour_of(start), end=start + START_LIMIT, columns=LOG_COLUMNS)
