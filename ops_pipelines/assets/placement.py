"""Group `advice`, once a day: where jobs stood, what was in pieces or out of reach, who waited. Changes nothing.

A partition is a local day, by its name; the running one is as much of it as is over. One that is materialised anew
says the same of jobs as long as the lake has them; settings and limits are those of now, and so it says.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta

import dagster as dg

from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import LOCAL_DAYS
from ops_pipelines.assets.tables import count, table
from ops_pipelines.core.identity import listed
from ops_pipelines.efficiency.placement.day import PlacementDay
from ops_pipelines.efficiency.placement.report import PlacementReport, report_of_day
from ops_pipelines.report.markdown import escape_markdown
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
    return dg.Output(None, metadata=dict(describe_placement(report)))


def describe_placement(report: PlacementReport) -> Mapping[str, dg.MetadataValue]:
    """Return the report as the UI shows it."""
    from ops_pipelines.report.pictures.hours import sparkline

    day = report.day
    return {
        "said": dg.MetadataValue.md("\n".join(f"- {escape_markdown(each)}" for each in report.sentences)),
        "fragmentation_by_hour": dg.MetadataValue.md(
            sparkline([each.index_ratio for each in day.hours], title="Whole nodes in pieces", unit="%")
        ),
        "straddling_count": count(day.straddles),
        "avoidable_count": count([each for each in day.straddles if each.is_avoidable]),
        "straddling_jobs": table(_straddles(day)),
        "broken_domains": table(_broken(day)),
        "could_start": table(_fits(day)),
        "whole_next": table(_hints(day)),
        "stranded_gpu_hours": dg.MetadataValue.float(float(sum(each.gpu_hours for each in day.stranded.stranded))),
        "stranded": table(_stranded(day)),
        "shorter_limits": table(_backfill(day)),
        "holes_before_reservations": table(
            {
                "node": each.node,
                "from": _moment(each.since),
                "to": _moment(each.until),
                "gpu_hours": each.gpu_hours,
                "before": each.cause,
            }
            for each in day.holes
        ),
        "queue_times": table(_queues(day)),
        "scheduler_settings": table(_policy(day)),
        "notes": table({"not_known": note} for note in report.notes),
        "refused_count": count(report.refused),
        "refused": table({"row": each.record, "reason": each.reason, "detail": each.detail} for each in report.refused),
    }


Rows = Iterator[Mapping[str, object]]


def _straddles(day: PlacementDay) -> Rows:
    # What could have been better comes first: the table shows the first rows only.
    for each in sorted(day.straddles, key=lambda each: (not each.is_avoidable, each.cost.value != "high")):
        yield {
            "job": each.stay.job,
            "team": each.stay.team,
            "nodes": len(each.stay.gpus),
            "apart_by": each.level.value,
            "parts": len(each.parts),
            "fewest_possible": each.fewest,
            "had_room": _first(each.better),
            "cost": each.cost.value,
            "because": each.because,
        }


def _broken(day: PlacementDay) -> Rows:
    for each in day.broken:
        yield {
            "job": each.stay.job,
            "team": each.stay.team,
            "gpus": each.stay.gpu_count,
            "domain": each.domain,
            "domain_gpus": each.domain_gpu_count,
            "had_room": _first(each.elsewhere),
        }


def _fits(day: PlacementDay) -> Rows:
    for each in day.fits:
        yield {
            "gpus_per_node": each.gpus_per_node,
            "nodes": each.node_count,
            "within": each.within.value,
            "could_start": each.could_start,
            "by_count": each.by_count,
        }


def _hints(day: PlacementDay) -> Rows:
    for each in day.node_hints:
        yield {
            "node": each.node,
            "free_gpus": each.free_gpus,
            "held_gpus": each.held_gpus,
            "jobs": _first(each.jobs),
            "likely_whole": _moment(each.likely_by),
            "whole_at_the_latest": _moment(each.whole_by),
        }


def _stranded(day: PlacementDay) -> Rows:
    for each in day.stranded.stranded:
        yield {
            "node": each.node or "(all)",
            "why": each.why.value,
            "cause": each.cause,
            "gpu_hours": each.gpu_hours,
            "gpus_at_the_end": each.at_the_end,
        }


def _backfill(day: PlacementDay) -> Rows:
    for each in day.backfill:
        yield {
            "job": each.waiting.job,
            "team": each.waiting.team,
            "limit_hours": each.limit_seconds / 3600,
            "enough_hours": each.proposed_seconds / 3600,
            "past_runs": each.run_count,
            "hours_earlier": each.earlier_seconds / 3600,
            "hole_before": each.ended_by,
        }


def _queues(day: PlacementDay) -> Rows:
    for each in day.queue_times:
        yield {
            "size": each.size.value,
            "team": each.team or "(all)",
            "jobs": each.job_count,
            "wait_still": each.waiting_count,
            "median_hours": each.median_seconds / 3600,
            "p90_hours": each.p90_seconds / 3600,
            "longer_than_an_hour": each.long_ratio,
            "mostly_for": each.mostly_for,
            "note": "too few jobs to compare" if each.is_few else "",
        }


def _policy(day: PlacementDay) -> Rows:
    for each in () if day.policy is None else day.policy.findings:
        yield {
            "where": each.where or "cluster",
            "setting": each.setting,
            "found": each.found,
            "why": each.why,
            "set": each.set_to,
            "source": each.source,
        }


def _first(names: Iterable[str]) -> str:
    return listed(list(names))


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M} UTC"


def _newest_day(context: dg.AssetExecutionContext) -> date:
    """Return the newest local day of the run: the partition carries its name."""
    end: datetime = context.partition_time_window.end.astimezone(UTC)
    return (end - timedelta(days=1)).date()
