"""Group `costs`: what became of each installed GPU-hour of a month, and what it costs whom. Shows; computes nothing.

A partition is a month of the cluster's own zone, by name; the running one is as much of it as is over. One that is
materialised again says the same as long as the ledger and the lake still have it.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from ops_pipelines.assets.hours import MONTHS, POOL
from ops_pipelines.costs.gather_usage import MonthUsage
from ops_pipelines.report.metadata import metadata_of, table
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.core.periods import CostMonth
    from ops_pipelines.costs.statements import Charge

GROUP = "costs"
_ONCE, _CLOSES = "every_attempt_once", "residual_is_zero"


@dg.asset(
    group_name=GROUP,
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
    group_name=GROUP,
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
