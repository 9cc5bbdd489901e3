"""How a budget stands, as a bar with words: what is spent, the budget itself, the forecast."""

from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.costs.budgets import BudgetAlert, BudgetStanding
from ops_pipelines.pages.amounts import money, part_of
from ops_pipelines.pages.rollouts import clipped

_ALERTS: Mapping[BudgetAlert, tuple[str, str]] = {
    BudgetAlert.FORECAST_OVERRUN: ("will not last", "warn"),
    BudgetAlert.NEARLY_SPENT: ("80 % are spent", "warn"),
    BudgetAlert.SPENT: ("spent", "bad"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBar:
    team: str
    spent: str
    of: str
    percent: str
    forecast: str
    words: str
    mood: str
    spent_wide: float
    budget_at: float
    forecast_at: float | None


def budget_bar(standing: BudgetStanding) -> BudgetBar:
    """Return the bar of one budget."""
    budget, forecast = standing.budget.cents, standing.forecast_cents
    whole = max(budget, standing.spent_cents, forecast or 0) * 1.02
    alerts = standing.alerts
    words = ", ".join(_ALERTS[each][0] for each in alerts) or "within"
    mood = _ALERTS[alerts[-1]][1] if alerts else "good"
    return BudgetBar(
        team=clipped(standing.budget.team, at_most=60),
        spent=money(standing.spent_cents),
        of=money(budget),
        percent=f"{float(standing.spent_ratio):.0%}".replace("%", " %"),
        forecast="not known" if forecast is None else money(forecast),
        words=words,
        mood=mood,
        spent_wide=part_of(standing.spent_cents, whole),
        budget_at=part_of(budget, whole),
        forecast_at=None if forecast is None else part_of(forecast, whole),
    )
