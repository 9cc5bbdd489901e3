"""What a month cost, as values for JSON: hours, whole cents, ratios 0..1; null for what is not known."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.costs.budgets import BudgetStanding
from ops_pipelines.costs.charges import CostRow, HoursRow, cost_rows, hours_by_fate, hours_rows
from ops_pipelines.costs.statement import Service
from ops_pipelines.costs.statements import Charge
from ops_pipelines.costs.usage import Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLineView:
    """One owner, or one of the fates that are nobody's work."""

    what: str
    team: str | None
    project: str | None
    gpu_hours: float
    used_gpu_hours: float | None
    wasted_gpu_hours: float | None
    gpu_cents: int | None
    energy_cents: int | None
    storage_cents: int | None
    network_cents: int | None
    credit_cents: int | None
    total_cents: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    team: str
    budget_cents: int
    spent_cents: int
    """Before `today`."""
    today: str
    """A local day, as 2026-11-22."""
    spent_ratio: float
    forecast_cents: int | None
    alerts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """One month."""

    cluster: str
    month: str
    since: datetime
    until: datetime
    is_over: bool
    currency: str | None
    asset_cents: int | None
    residual_cents: int | None
    why_nothing_is_charged: str | None
    gpu_hours: Mapping[str, float]
    """By fate."""
    lines: tuple[CostLineView, ...]
    rates: Mapping[str, float]
    """Cents of one installed GPU-hour, by type of GPU."""
    budgets: tuple[BudgetView, ...]
    refused: Mapping[str, int]
    not_known: tuple[str, ...]


def view_cost(charge: Charge, *, cluster: str, team: str | None = None) -> CostView:
    """Return a month as `ops-pipelines cost --json` prints it; with `team`, of its lines only those of that team."""
    statement, part = charge.statement, charge.usage.part
    hours = {(each.fate, each.team, each.project): each for each in hours_rows(charge.usage.total)}
    costs = {} if statement is None else {(each.fate, each.team, each.project): each for each in cost_rows(statement)}
    keys = list(dict.fromkeys((*costs, *hours)))
    return CostView(
        cluster=cluster,
        month=part.month.name,
        since=part.since,
        until=part.until,
        is_over=part.until == part.month.ends_at,
        currency=None if statement is None else statement.currency,
        asset_cents=None if statement is None else statement.asset_cents,
        residual_cents=None if statement is None else statement.residual_cents,
        why_nothing_is_charged=charge.why_not or None,
        gpu_hours={fate.value: round(each, 6) for fate, each in hours_by_fate(charge.usage.total).items()},
        lines=tuple(_line(key, hours.get(key), costs.get(key)) for key in keys if team is None or key[1] == team),
        rates={} if statement is None else {name: float(rate) for name, rate in statement.rates.items()},
        budgets=tuple(_budget(each) for each in charge.standings if team is None or each.budget.team == team),
        refused=dict(charge.usage.refused_by_reason),
        not_known=charge.notes,
    )


def _line(key: tuple[Fate, str, str], hours: HoursRow | None, cost: CostRow | None) -> CostLineView:
    fate, team, project = key
    # Of hours that nobody measured neither is known.
    is_measured = hours is not None and hours.used_gpu_hours + hours.wasted_gpu_hours > 0
    gpu_hours = hours.gpu_hours if hours is not None else 0.0
    return CostLineView(
        what=fate.value,
        team=team or None,
        project=project or None,
        gpu_hours=round(gpu_hours, 6),
        used_gpu_hours=round(hours.used_gpu_hours, 6) if is_measured and hours is not None else None,
        wasted_gpu_hours=round(hours.wasted_gpu_hours, 6) if is_measured and hours is not None else None,
        gpu_cents=None if cost is None else cost.of(Service.GPU),
        energy_cents=None if cost is None else cost.of(Service.ENERGY),
        storage_cents=None if cost is None else cost.of(Service.STORAGE),
        network_cents=None if cost is None else cost.of(Service.NETWORK),
        credit_cents=None if cost is None else cost.of(Service.CREDIT, Service.INCIDENT_CREDIT),
        total_cents=None if cost is None else cost.total_cents,
    )


def _budget(standing: BudgetStanding) -> BudgetView:
    return BudgetView(
        team=standing.budget.team,
        budget_cents=standing.budget.cents,
        spent_cents=standing.spent_cents,
        today=standing.today.isoformat(),
        spent_ratio=round(float(standing.spent_ratio), 6),
        forecast_cents=standing.forecast_cents,
        alerts=tuple(each.value for each in standing.alerts),
    )
