"""Group `advice`, once a week: what teams could do better, told to them once, and whether they did it.

A partition is a week from Monday 00:00 UTC; the running one is looked at as far as it is over, and told to nobody.
One that is materialised anew tells nobody twice, and weeks later nobody at all. Finds, sends and follows up through
`efficiency`; shows.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC

import dagster as dg

from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import RUNNING_WEEKS
from ops_pipelines.assets.tables import count, table
from ops_pipelines.core.periods import week_of
from ops_pipelines.efficiency.kept import AdviceReport, FollowedUp
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "advice"
_TEXT_LENGTH = 300


@dg.asset(
    group_name=GROUP,
    deps=["gpu_efficiency", "inventory", "job_accounting", "job_allocations", "job_logs", "job_steps"],
    partitions_def=RUNNING_WEEKS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    kinds={"parquet"},
    code_version="1",
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
    return dg.Output(None, metadata=describe_advice(report, followed, told_count=len(told)))


def describe_advice(
    report: AdviceReport, followed: Sequence[FollowedUp], *, told_count: int
) -> Mapping[str, dg.MetadataValue]:
    """Return what the asset's page shows. Job names and paths are users' words: cells hold no Markdown."""
    from ops_pipelines.efficiency.week import sentences, shown_gain
    from ops_pipelines.report.markdown import escape_markdown

    def safe(text: str) -> str:
        return escape_markdown(text, at_most=_TEXT_LENGTH)

    return {
        "week": dg.MetadataValue.text(report.week.name),
        "sentences": dg.MetadataValue.md("\n".join(f"- {safe(each)}" for each in sentences(report, followed))),
        "said_count": count(report.chosen),
        "withheld_count": count(report.withheld),
        "told_team_count": dg.MetadataValue.int(told_count),
        "expected_gain_gpu_hours": dg.MetadataValue.float(
            round(sum((each.gain.expected_gpu_hours for each in report.chosen), 0.0), 3)
        ),
        "saved_gpu_hours": dg.MetadataValue.float(
            round(sum((each.outcome.saved_gpu_hours for each in followed), 0.0), 3)
        ),
        "advice": table(
            {
                "team": safe(each.team or "unknown team"),
                "job": safe(each.subject),
                "what": each.kind.value,
                "evidence": safe("; ".join(each.evidence)),
                "but": safe("; ".join(each.counter_evidence)),
                "gain": shown_gain(each, currency=report.currency),
                "do": safe(each.what_to_do),
            }
            for each in report.chosen
        ),
        "by_kind": table({"kind": kind.value, "said": said} for kind, said in report.count_by_kind.items()),
        "followed": table(
            {
                "team": safe(each.team),
                "job": safe(each.subject),
                "what": each.kind.value,
                "became": each.outcome.followed.value,
                "before": each.measure_before,
                "after": "" if each.outcome.measure_after is None else f"{each.outcome.measure_after:.3g}",
                "saved_gpu_hours": each.outcome.saved_gpu_hours,
            }
            for each in followed
        ),
        "withheld": table(
            {
                "team": safe(each.team or "unknown team"),
                "job": safe(each.subject),
                "what": each.kind.value,
                "why": safe(each.why),
            }
            for each in report.withheld
        ),
        "not_known": table({"what": safe(each)} for each in report.unknown),
    }
