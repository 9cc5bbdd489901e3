"""Groups `costs` and `advice`: what became of each GPU-hour of a month, and what it costs whom; once a week what
teams could do better, sent to them once; once a day how jobs were placed. Shows; computes nothing.

A month is of the cluster's own zone, by name; the running one is as much of it as is over. One that is materialised
again says the same as long as the ledger and the lake still have it.

Weeks begin on Monday 00:00 UTC; the running one is looked at as far as it is over, and nobody is notified of it. One
that is materialised again notifies nobody twice, and weeks later nobody at all. Placement is of a local day; settings
and limits are those of now, and so it says.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from ops_pipelines.assets.hours import IN_ONE_RUN, LOCAL_DAYS, MONTHS, POOL, RUNNING_WEEKS, newest_day
from ops_pipelines.core.periods import week_of
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.costs.gather_usage import MonthUsage
from ops_pipelines.efficiency.advice import Withheld
from ops_pipelines.efficiency.kept import AdviceReport, FollowedUp
from ops_pipelines.efficiency.placement.day import PlacementReport, report_of_day
from ops_pipelines.report.metadata import metadata_of, table
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.core.periods import CostMonth
    from ops_pipelines.costs.statements import Charge

COSTS = "costs"
_ONCE, _CLOSES = "every_attempt_once", "residual_is_zero"


@dg.asset(
    group_name=COSTS,
    deps=["job_allocations", "gpu_efficiency", "inventory", "storage_telemetry"],
    partitions_def=MONTHS,
    pool=POOL,
    code_version="1",
    check_specs=[
        dg.AssetCheckSpec(
            name=_ONCE,
            asset="usage_ledger",
            blocking=True,
            description="Each installed GPU-second is in one line, and each attempt of a job is counted once.",
        )
    ],
)
def usage_ledger(
    context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]
) -> Iterator[dg.Output[MonthUsage] | dg.AssetCheckResult]:
    """What became of each installed GPU-hour: a team's, idle, broken, in maintenance, overhead; each in one line."""
    from ops_pipelines.costs.gather_usage import part_of, usage_of

    month = month_of_key(context.partition_key, teams_desk)
    usage = usage_of(part_of(month, now=teams_desk.clock.now()), teams_desk)
    for note in usage.notes:
        context.log.warning("not known: %s", note)
    for reason, how_many in usage.refused_by_reason.items():
        context.log.warning("rows refused reason=%s count=%d", reason, how_many)
    yield dg.Output(usage, metadata=dict(describe_usage(usage)))
    yield prove_each_once(usage)


@dg.asset(
    group_name=COSTS,
    deps=["job_accounting", "job_allocations", "job_logs"],
    partitions_def=MONTHS,
    pool=POOL,
    kinds={"parquet"},
    code_version="1",
    check_specs=[
        dg.AssetCheckSpec(
            name=_CLOSES,
            asset="chargeback",
            blocking=True,
            description="The rows of the written file add up to the cost of the assets.",
        )
    ],
)
def chargeback(
    context: dg.AssetExecutionContext, usage_ledger: MonthUsage, teams_desk: dg.ResourceParam[TeamsDesk]
) -> Iterator[dg.Output[None] | dg.AssetCheckResult]:
    """Who bears how much of what the cluster cost, to the cent, as a table and as FOCUS files; how budgets stand."""
    from ops_pipelines.costs.focus import keep_statement
    from ops_pipelines.costs.report import cost_document
    from ops_pipelines.costs.statements import charge, tell_of_budgets

    charged = charge(usage_ledger, teams_desk)
    month = charged.month.name
    metadata = dict(metadata_of(cost_document(charged, cluster=teams_desk.cluster.name, month=month)))
    if charged.statement is None:
        context.log.warning("nothing is charged: %s", charged.why_not)
    else:
        places = keep_statement(charged.statement, teams_desk)
        metadata |= {f"file_{place.rpartition('.')[2]}": dg.MetadataValue.path(place) for place in places}
        if usage_ledger.part.month == month_now(teams_desk):
            told = tell_of_budgets(charged.standings, teams_desk.cluster, currency=charged.statement.currency)
            metadata["messages"] = dg.MetadataValue.int(told)
    yield dg.Output(None, metadata=metadata)
    yield prove_residual(charged, teams_desk)


# The checks are made in the step of their asset: a check of its own would load every month that there ever was.


def prove_each_once(usage: MonthUsage) -> dg.AssetCheckResult:
    """Say whether all hours close and each attempt is counted once; what follows does not run otherwise."""
    attempts, residual = usage.attempts, usage.residual_gpu_seconds
    return dg.AssetCheckResult(
        check_name=_ONCE,
        passed=attempts.is_each_once and residual == 0,
        metadata={
            "attempts": dg.MetadataValue.int(attempts.count),
            "residual_gpu_seconds": dg.MetadataValue.int(residual),
            "counted_twice": dg.MetadataValue.text(", ".join(attempts.counted_twice) or "none"),
            "lost": dg.MetadataValue.text(", ".join(attempts.lost) or "none"),
        },
    )


def prove_residual(charged: "Charge", desk: TeamsDesk) -> dg.AssetCheckResult:
    """Say whether what was written adds up to the cost of the assets: the file is read back and summed."""
    from ops_pipelines.costs.focus import billed_cents

    statement = charged.statement
    if statement is None:
        # Without prices nothing is to be charged; with them something is missing, and the asset says what.
        is_fine = desk.prices is None
        return dg.AssetCheckResult(check_name=_CLOSES, passed=is_fine, metadata={"said": charged.why_not})
    if desk.statements is None:
        residual: int | None = statement.residual_cents
    else:
        written = desk.statements.read(f"{charged.month.name}.csv")
        residual = None if written is None else statement.asset_cents - billed_cents(written)
    return dg.AssetCheckResult(
        check_name=_CLOSES,
        passed=residual == 0,
        metadata={
            "asset_cents": statement.asset_cents,
            "residual_cents": "no file" if residual is None else residual,
        },
    )


def month_of_key(key: str, desk: TeamsDesk) -> "CostMonth":
    """Return the month that a partition names, by the clock of the cluster's zone."""
    from ops_pipelines.costs.usage import cost_month

    named = datetime.strptime(key, MONTHS.fmt).replace(tzinfo=UTC)
    return cost_month(named.year, named.month, zone=desk.zone)


def month_now(desk: TeamsDesk) -> "CostMonth":
    """Return the running month."""
    from ops_pipelines.costs.usage import month_at

    return month_at(desk.clock.now(), zone=desk.zone)


def describe_usage(usage: MonthUsage) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of the usage ledger shows."""
    from ops_pipelines.costs.charges import hours_by_fate, hours_rows

    total = usage.total
    return {
        "until": dg.MetadataValue.text(f"{usage.part.until:%Y-%m-%d %H:%M} UTC"),
        "installed_gpu_hours": dg.MetadataValue.float(round(sum(total.installed.values()) / 3600, 3)),
        **{
            f"{fate.value}_gpu_hours": dg.MetadataValue.float(round(hours, 3))
            for fate, hours in hours_by_fate(total).items()
        },
        "residual_gpu_seconds": dg.MetadataValue.int(usage.residual_gpu_seconds),
        "attempt_count": dg.MetadataValue.int(usage.attempts.count),
        "refused_count": dg.MetadataValue.int(sum(usage.refused_by_reason.values())),
        "by_owner": table(
            {
                "what": each.fate.value,
                "team": each.team,
                "project": each.project,
                "gpu_hours": each.gpu_hours,
                "used": each.used_gpu_hours,
                "wasted": each.wasted_gpu_hours,
            }
            for each in hours_rows(total)
        ),
        "refused_by_reason": table(
            {"reason": reason, "rows": number} for reason, number in usage.refused_by_reason.items()
        ),
        "refused": table({"row": each.record, "reason": each.reason, "why": each.detail} for each in usage.refused),
        "not_known": table({"what": each} for each in usage.notes),
    }


ADVICE = "advice"


@dg.asset(
    group_name=ADVICE,
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
    from ops_pipelines.efficiency.week import advice_document, report_rows, sentences
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
    group_name=ADVICE,
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
