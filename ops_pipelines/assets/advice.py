"""Group `advice`: once a week what teams could do better, sent to them once; once a day how jobs were placed.

Weeks begin on Monday 00:00 UTC; the running one is looked at as far as it is over, and nobody is notified of it. One
that is materialised again notifies nobody twice, and weeks later nobody at all. Placement is of a local day; settings
and limits are those of now, and so it says. Changes nothing in the cluster.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC

import dagster as dg

from ops_pipelines.assets.hours import IN_ONE_RUN, LOCAL_DAYS, RUNNING_WEEKS, newest_day
from ops_pipelines.core.periods import week_of
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.efficiency.advice import Withheld
from ops_pipelines.efficiency.kept import AdviceReport, FollowedUp
from ops_pipelines.efficiency.placement.day import PlacementReport, report_of_day
from ops_pipelines.report.metadata import metadata_of, table
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "advice"


@dg.asset(
    group_name=GROUP,
    deps=["gpu_efficiency", "inventory", "job_accounting", "job_allocations", "job_logs", "job_steps"],
    partitions_def=RUNNING_WEEKS,
    kinds={"parquet"},
    code_version="1",
    **IN_ONE_RUN,
)
def efficiency_advice(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """What each team could do better: evidence and counter-evidence, the gain, what to change, and was it done."""
    from ops_pipelines.efficiency.kept import follow_up, keep, week_to_follow
    from ops_pipelines.efficiency.week import find_advice, send

    week = week_of(context.partition_time_window.end.astimezone(UTC)).before
    report = find_advice(week, teams_desk, on_step=lambda step: context.log.info("reading %s", step))
    told = send(report, teams_desk)
    keep(report, teams_desk, told=told)
    followed = follow_up(week_to_follow(week), teams_desk) if week.end <= teams_desk.clock.now() else ()
    return dg.Output(None, metadata=dict(describe_advice(report, followed, told=told, desk=teams_desk)))


def describe_advice(
    report: AdviceReport, followed: Sequence[FollowedUp], *, told: Collection[TeamName], desk: TeamsDesk
) -> Mapping[str, dg.MetadataValue]:
    """Return what the asset's page shows: the report of the week, and what became of the advice two weeks before."""
    from ops_pipelines.efficiency.report import advice_document, report_rows
    from ops_pipelines.efficiency.week import sentences
    from ops_pipelines.report.numbers import escape_markdown

    now = desk.clock.now()
    document = advice_document(
        report_rows(report, told=told, at=now),
        cluster=desk.cluster.name,
        week=report.week,
        currency=report.currency,
        sentences=sentences(report, followed),
        not_known=report.unknown,
        now=now,
    )

    def about(each: FollowedUp | Withheld) -> Mapping[str, object]:
        team, job = escape_markdown(each.team or "unknown team"), escape_markdown(each.subject, at_most=300)
        return {"team": team, "job": job, "what": each.kind.value}

    saved = sum((each.outcome.saved_gpu_hours for each in followed), 0.0)
    return {
        **metadata_of(document),
        "told_team_count": dg.MetadataValue.int(len(told)),
        "saved_gpu_hours": dg.MetadataValue.float(round(saved, 3)),
        "by_kind": table({"kind": kind.value, "said": said} for kind, said in report.count_by_kind.items()),
        "followed": table(
            {
                **about(each),
                "became": each.outcome.followed.value,
                "before": each.measure_before,
                "after": "" if each.outcome.measure_after is None else f"{each.outcome.measure_after:.3g}",
                "saved_gpu_hours": each.outcome.saved_gpu_hours,
            }
            for each in followed
        ),
        "withheld": table({**about(each), "why": escape_markdown(each.why)} for each in report.withheld),
    }


@dg.asset(
    name="placement_report",
    group_name=GROUP,
    deps=["job_accounting", "job_allocations", "inventory", "gpu_efficiency"],
    partitions_def=LOCAL_DAYS,
    code_version="1",
    **IN_ONE_RUN,
)
def placement(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """How jobs were placed and how long they waited on a local day, as advice to who runs the scheduler."""
    report = report_of_day(newest_day(context), teams_desk)
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
