"""What `ops-pipelines capacity forecast` and `plan` answer, as JSON: a contract with the scripts of operators.

A whole report has a form of its own, which is also how it is kept: `capacity.document`.
"""

from datetime import date

from ops_pipelines.capacity.chances import Tail, chance_short
from ops_pipelines.capacity.model import (
    SeriesOutlook,
    SupplyWeek,
    WeekPeak,
)
from ops_pipelines.capacity.plan import (
    CapacityForecast,
    CapacityPlan,
)
from ops_pipelines.report.json_form import fields_of


def forecast_json(forecast: CapacityForecast, *, shortage_probability_max: float) -> dict[str, object]:
    """Return what `ops-pipelines capacity forecast --json` prints: days as ISO dates."""
    supply = {(each.gpu_type, each.first_day): each for each in forecast.supply}
    return {
        "cluster": forecast.cluster,
        "quarter": forecast.quarter,
        "as_of": forecast.as_of.isoformat(),
        "timezone": forecast.timezone,
        "vouched_weeks": forecast.vouched_weeks,
        "shortage_probability_max": shortage_probability_max,
        "weeks": [
            _json_week(outlook, number, week, supply.get((outlook.key.gpu_type, week.first_day)))
            for outlook in forecast.with_projects
            for number, week in enumerate(outlook.weeks, start=1)
        ],
        "series": [_json_series(each) for each in forecast.outlooks],
        "notes": forecast.notes,
    }


def _json_week(outlook: SeriesOutlook, number: int, week: WeekPeak, supply: SupplyWeek | None) -> dict[str, object]:
    chance = chance_of(week, supply)
    return {
        "gpu_type": outlook.key.gpu_type,
        "week": number,
        "first_day": week.first_day.isoformat(),
        "peak_median": round(week.at(0.5), 3),
        "peak_90": round(week.at(0.9), 3),
        "usable": None if supply is None else round(supply.mean_gpus, 3),
        "installed": None if supply is None else round(supply.installed, 3),
        "shortage_probability": None if chance is None else round(chance, 6),
        "is_vouched": week.is_vouched,
    }


def _json_series(outlook: SeriesOutlook) -> dict[str, object]:
    highest = max((week.at(0.9) for week in outlook.weeks), default=None)
    return {
        "resource": outlook.key.resource,
        "gpu_type": outlook.key.gpu_type,
        "name": outlook.key.name,
        "treatment": outlook.treatment,
        # Bytes and ratios stand side by side here: digits that count, whatever the size.
        "peak_90": None if highest is None else float(f"{highest:.9g}"),
        "notes": outlook.notes,
    }


def plan_json(plan: CapacityPlan) -> dict[str, object]:
    """Return what `ops-pipelines capacity plan --json` prints: whole cents, days as ISO dates."""
    return {
        "cluster": plan.cluster,
        "quarter": plan.quarter,
        "as_of": plan.as_of.isoformat(),
        "currency": plan.currency,
        "shortage_probability_max": plan.shortage_probability_max,
        "orders": [
            {
                "what": each.what,
                "gpu_type": each.gpu_type,
                "resource": each.series.resource,
                "name": each.series.name,
                "count": each.count,
                "order_by": _iso(each.order_by),
                "is_overdue": each.is_overdue,
                "short_from": _iso(each.short_from),
                "earliest_relief": _iso(each.earliest_relief),
                "cents": each.cents,
                "why": each.why,
            }
            for each in plan.orders
        ],
        "alternatives": [
            {
                "gpu_type": each.gpu_type,
                "way": each.way,
                "gpus": round(each.gpus, 3),
                "worst_shortage_probability": round(each.worst_shortage_probability, 6),
                "short_gpu_hours": round(each.short_gpu_hours, 3),
                "cents": each.cents,
                "takes_effect_on": _iso(each.takes_effect_on),
                "said": each.said,
            }
            for each in plan.alternatives
        ],
        "regret_ratios": plan.regret_ratios,
        "regret": [
            {
                "gpu_type": each.gpu_type,
                "nodes": each.nodes,
                "short_gpu_hours": round(each.short_gpu_hours, 3),
                "idle_gpu_hours": round(each.idle_gpu_hours, 3),
                "cents_by_ratio": each.cents_by_ratio,
                "regret_by_ratio": each.regret_by_ratio,
            }
            for each in plan.regret
        ],
        "refresh": [
            {
                **fields_of(each, "asset racks gpu_type gpus age_months replacement is_due said"),
            }
            for each in plan.refresh
        ],
        "notes": plan.notes,
    }


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


def chance_of(week: WeekPeak, supply: SupplyWeek | None) -> float | None:
    return None if supply is None else chance_short(Tail(week), supply.points)
