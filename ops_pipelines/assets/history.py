"""Groups `history` and `policy`: what weeks and months show that no hour does; another policy over recorded history.

Lemons, wear, defects of whole batches, what an interruption costs, the weekly review. A partition looks back from its
end, so that one that is materialised again, years later, says the same as long as the ledger and the lake still have
it; decisions read what the newest day says of interruptions. Shows; computes nothing.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from ops_pipelines.assets.hours import DAYS, IN_ONE_RUN, WEEKS
from ops_pipelines.core.cluster import HOUR, Cluster, Observatory, hour_of
from ops_pipelines.core.periods import week_of
from ops_pipelines.core.record import ShelfError
from ops_pipelines.core.sources import Lake, Rows
from ops_pipelines.report.metadata import count, metadata_of, table
from ops_pipelines.review.replay import PolicyDesk, differing, proof_sentence, replay, sentences_of
from ops_pipelines.review.replay_result import Difference
from ops_pipelines.review.week_incidents import once_a_day

if TYPE_CHECKING:
    from ops_pipelines.review.week_acts import Work

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
    code_version="1",
    **IN_ONE_RUN,
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
    code_version="1",
    **IN_ONE_RUN,
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
    code_version="1",
    **IN_ONE_RUN,
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
    code_version="1",
    **IN_ONE_RUN,
)
def interruption_costs(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    cluster: dg.ResourceParam[Cluster],
) -> dg.Output[None]:
    """How long an interruption takes: queue with and without room, and restart until work continues."""
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


@dg.asset(
    group_name=GROUP,
    deps=["job_accounting", "job_allocations", "job_logs", "inventory", "kernel_events", "monitoring_coverage"],
    partitions_def=WEEKS,
    kinds={"html"},
    code_version="1",
    **IN_ONE_RUN,
)
def weekly_review(
    context: dg.AssetExecutionContext,
    observatory: dg.ResourceParam[Observatory],
    cluster: dg.ResourceParam[Cluster],
) -> dg.Output[None]:
    """A week's reliability: failures and repairs, effective training time, promises and budgets, what we did."""
    from ops_pipelines.report.html import page_of
    from ops_pipelines.review.week_document import week_document
    from ops_pipelines.review.weekly_review import review_week

    week = week_of(context.partition_time_window.end.astimezone(UTC)).before
    review = review_week(week, cluster, observatory, on_step=lambda step: context.log.info("reading %s", step))
    document = week_document(review)
    metadata = {**metadata_of(document), **dict(_pictures(review.numbers.work))}
    if cluster.page_shelf is not None:
        try:
            place = cluster.page_shelf.keep(week.page_name, page_of(document), shows=review.numbers.until)
            metadata["page"] = dg.MetadataValue.path(place)
        except ShelfError as problem:
            context.log.warning("the page was not kept: %s", problem)
    return dg.Output(None, metadata=metadata)


def _pictures(work: "Work") -> Iterator[tuple[str, dg.MetadataValue]]:
    """Yield where the GPU time went, small beside the other assets and large by itself; in words where none went."""
    from ops_pipelines.report.pictures.bars import Sheet, large_rows, small_rows
    from ops_pipelines.review.week_words import PARTS, shown_effective, shown_hours, work_bars

    sheet = Sheet(title="GPU time that each team requested", key={shade: words for _, words, shade in PARTS})
    rows = work_bars(work)
    words = f"{shown_hours(work.total.wanted)} GPU-hours requested, {shown_effective(work.total)} effective"
    yield "work", dg.MetadataValue.md(small_rows(rows, sheet=sheet, words=words) if rows else words)
    if rows:
        yield "work_large", dg.MetadataValue.md(large_rows(rows, sheet=sheet, words=words))


POLICY = "policy"


class ComparisonConfig(dg.Config):
    """What is compared with what."""

    proposed: str = Field(
        default="policy.proposed.yaml",
        min_length=1,
        max_length=200,
        description="The proposed policy: a .yaml file in the directory of the present policy.yaml.",
    )
    back_hours: int = Field(default=24, ge=1, le=24 * 14, description="How many hours up to now are replayed.")


@dg.asset(group_name=POLICY, code_version="1")
def policy_comparison(
    config: ComparisonConfig, policy_desk: dg.ResourceParam[PolicyDesk]
) -> dg.MaterializeResult[None]:
    """What a proposed policy would have done with recorded history, beside what was done; kept as a page, too.

    Decisions come from the ledger, hours without any from the lake. Reads only; the page is at /policy-comparison.
    """
    from ops_pipelines.report.html import page_of
    from ops_pipelines.review.replay_document import replay_document

    proposed = policy_desk.read_proposed(config.proposed)
    now = policy_desk.clock.now()
    found = replay(
        policy_desk.history,
        proposed,
        proposed=config.proposed,
        since=now - timedelta(hours=config.back_hours),
        until=now,
    )
    place = policy_desk.keep_page(page_of(replay_document(found, now=now)))
    return dg.MaterializeResult(
        metadata={
            **{f"{each.value}_count": found.count(each) for each in Difference},
            "what_changes": table({"what_changes": each} for each in (*sentences_of(found), proof_sentence(found))),
            "keys": table({"key": each.key, "then": each.then, "new": each.new} for each in found.policy_differences),
            "acts_that_differ": table(
                {
                    "at": f"{act.at:%m-%d %H:%M:%S}",
                    "difference": act.difference.value.replace("_", " "),
                    "incident": act.incident,
                    "act": f"{act.verb.value} {act.target}",
                    "why": act.why,
                    "counterfactual": "yes" if act.is_counterfactual else "",
                }
                for act in differing(found)
            ),
            "rests_on": table(
                {"source": each.source.value, "decisions": each.decision_count, "not_known": "; ".join(each.unknown)}
                for each in found.stretches
            ),
            "page": place,
        }
    )
