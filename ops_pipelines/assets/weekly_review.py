"""Group `history`, once a week: the reliability review, as pictures and tables here and as a page beside the state.

A partition is a week from Monday 00:00 UTC. One that is materialised anew, years later, says the same as long as the
ledger and the lake still have it. Shows; computes nothing.
"""

from collections.abc import Mapping
from datetime import UTC

import dagster as dg

from ops_pipelines.assets.history import GROUP
from ops_pipelines.assets.hours import ONE_RUN, POOL
from ops_pipelines.assets.partitions import WEEKS
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.periods import week_of
from ops_pipelines.core.record import ShelfError
from ops_pipelines.report.metadata import table
from ops_pipelines.review.weekly_review import WeeklyReview


@dg.asset(
    group_name=GROUP,
    deps=["job_accounting", "job_allocations", "job_logs", "inventory", "kernel_events", "monitoring_coverage"],
    partitions_def=WEEKS,
    backfill_policy=ONE_RUN,
    pool=POOL,
    kinds={"html"},
    code_version="1",
)
def weekly_review(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    cluster: dg.ResourceParam[Cluster],
) -> dg.Output[None]:
    """A week's reliability: failures and repairs, effective training time, promises and budgets, what we did."""
    from ops_pipelines.pages.weekly_review import write_weekly_review
    from ops_pipelines.review.weekly_review import review_week

    week = week_of(context.partition_time_window.end.astimezone(UTC)).before
    review = review_week(week, cluster, observatory, on_step=lambda step: context.log.info("reading %s", step))
    metadata = dict(describe_review(review))
    if cluster.page_shelf is not None:
        try:
            place = cluster.page_shelf.keep(week.page_name, write_weekly_review(review), shows=review.numbers.until)
            metadata["page"] = dg.MetadataValue.path(place)
        except ShelfError as problem:
            context.log.warning("the page was not kept: %s", problem)
    return dg.Output(None, metadata=metadata)


def describe_review(review: WeeklyReview) -> Mapping[str, dg.MetadataValue]:
    """Return what the asset's page shows: the sentences, pictures, tables, and numbers that the UI plots by week."""
    from ops_pipelines.pages.review_words import (
        PARTS,
        PROMISES,
        shown_effective,
        shown_hours,
        shown_ratio,
        time_between,
        words_of,
    )
    from ops_pipelines.pages.weekly_review import work_bars
    from ops_pipelines.report.markdown import escape_markdown
    from ops_pipelines.report.pictures.bars import Sheet, large_rows, small_rows

    numbers = review.numbers
    head, *sentences = (escape_markdown(each, at_most=400) for each in words_of(review))
    sheet = Sheet(title="GPU time that each team wanted", key={shade: words for _, words, shade in PARTS})
    rows = work_bars(numbers.work)
    total = numbers.work.total
    words = f"{shown_hours(total.wanted)} GPU-hours wanted, {shown_effective(total)} effective"
    shown: dict[str, dg.MetadataValue] = {
        "week": dg.MetadataValue.md(f"**{head}**"),
        **{f"sentence_{number}": dg.MetadataValue.md(each) for number, each in enumerate(sentences, start=1)},
        "work": dg.MetadataValue.md(small_rows(rows, sheet=sheet, words=words) if rows else words),
        "interruption_count": dg.MetadataValue.int(numbers.interruptions.event_count),
        "failure_count": dg.MetadataValue.int(numbers.failure_count),
        "wrong_act_count": dg.MetadataValue.int(len(numbers.wrong)),
        "human_intervention_count": dg.MetadataValue.int(numbers.person_count),
        "saved_gpu_hours": dg.MetadataValue.float(round(numbers.saved_gpu_hours, 3)),
        "objectives": table(
            {
                "team": each.objective.team,
                "work": each.objective.workload.value,
                "promise": PROMISES[each.objective.kind],
                "target": shown_ratio(each.objective.target_ratio, digits=2),
                "measured": "too little data" if each.good_ratio is None else shown_ratio(each.good_ratio, digits=2),
                "budget_left": "" if each.left_ratio is None else f"{each.left_ratio:.0%}",
                "state": each.state.value,
            }
            for each in review.budgets
        ),
        "components": table(
            {
                "component": each.component,
                "failures": each.failures.event_count,
                "mean_time_between": time_between(each.failures, unit=each.unit),
                "mean_minutes_to_repair": (
                    "" if each.repairs is None else f"{each.repairs.mean.total_seconds() / 60:.0f}"
                ),
                "still_out": each.open_count,
            }
            for each in review.components
        ),
        "acts": table(
            {"act": each.verb.value, "begun": each.count, "done": each.done, "failed": each.failed}
            for each in numbers.acts
        ),
        "wrong_acts": table(
            {"incident": each.incident, "node": each.node, "why": each.kind.value} for each in numbers.wrong
        ),
        "coverage": table(
            {"source": each.what, "known": each.known, "expected": each.expected, "share": shown_ratio(each.ratio)}
            for each in review.coverage
        ),
        "missing": table({"what": each} for each in review.missing),
    }
    if total.effective_ratio is not None:
        shown["effective_ratio"] = dg.MetadataValue.float(round(total.effective_ratio, 5))
    if numbers.interruptions_per_day is not None:
        shown["interruptions_per_day"] = dg.MetadataValue.float(round(numbers.interruptions_per_day, 3))
    if rows:
        shown["work_large"] = dg.MetadataValue.md(large_rows(rows, sheet=sheet, words=words))
    return shown
