"""What `ops-pipelines capacity forecast` and `plan` answer, as values for JSON: whole cents, days as ISO dates.

A whole report has a form of its own, which is also how it is kept: `capacity.document`.
"""

from dataclasses import dataclass
from datetime import date

from ops_pipelines.capacity.chances import Tail, chance_short
from ops_pipelines.capacity.model import SeriesOutlook, SupplyWeek, WeekPeak
from ops_pipelines.capacity.plan import Alternative, CapacityForecast, CapacityPlan, OrderLine, RefreshLine

_MIDDLE, _BOUND = 0.5, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastWeekView:
    """One week of one type of GPU, all teams together, with planned projects."""

    gpu_type: str
    week: int
    """1 is the next."""
    first_day: str
    peak_median: float
    peak_90: float
    usable: float | None
    """In the mean; None, as the next two: the supply of the type is not known."""
    installed: float | None
    shortage_probability: float | None
    is_vouched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesView:
    """One series, as the past alone has it."""

    resource: str
    gpu_type: str
    name: str
    treatment: str
    peak_90: float | None
    """The highest of its weeks; None: nothing can be said."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastView:
    cluster: str
    quarter: str
    as_of: str
    timezone: str
    vouched_weeks: int
    shortage_probability_max: float
    weeks: tuple[ForecastWeekView, ...]
    series: tuple[SeriesView, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderView:
    what: str
    gpu_type: str | None
    resource: str
    name: str
    count: int
    order_by: str | None
    is_overdue: bool
    short_from: str | None
    earliest_relief: str | None
    cents: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeView:
    gpu_type: str
    way: str
    gpus: float
    worst_shortage_probability: float
    short_gpu_hours: float
    cents: int | None
    takes_effect_on: str | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretView:
    gpu_type: str
    nodes: int
    short_gpu_hours: float
    idle_gpu_hours: float
    cents_by_ratio: tuple[int, ...]
    regret_by_ratio: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshView:
    asset: str
    racks: tuple[str, ...]
    gpu_type: str
    gpus: int
    age_months: float | None
    replacement: str
    is_due: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    cluster: str
    quarter: str
    as_of: str
    currency: str
    shortage_probability_max: float
    orders: tuple[OrderView, ...]
    alternatives: tuple[AlternativeView, ...]
    regret_ratios: tuple[float, ...]
    regret: tuple[RegretView, ...]
    refresh: tuple[RefreshView, ...]
    notes: tuple[str, ...]


def view_forecast(forecast: CapacityForecast, *, shortage_probability_max: float) -> ForecastView:
    """Return the forecast as it is shown."""
    supply = {(each.gpu_type, each.first_day): each for each in forecast.supply}
    return ForecastView(
        cluster=forecast.cluster,
        quarter=forecast.quarter,
        as_of=forecast.as_of.isoformat(),
        timezone=forecast.timezone,
        vouched_weeks=forecast.vouched_weeks,
        shortage_probability_max=shortage_probability_max,
        weeks=tuple(
            _week(outlook, number, week, supply.get((outlook.key.gpu_type, week.first_day)))
            for outlook in forecast.with_projects
            for number, week in enumerate(outlook.weeks, start=1)
        ),
        series=tuple(_series(each) for each in forecast.outlooks),
        notes=forecast.notes,
    )


def _week(outlook: SeriesOutlook, number: int, week: WeekPeak, supply: SupplyWeek | None) -> ForecastWeekView:
    return ForecastWeekView(
        gpu_type=outlook.key.gpu_type,
        week=number,
        first_day=week.first_day.isoformat(),
        peak_median=round(week.at(_MIDDLE), 3),
        peak_90=round(week.at(_BOUND), 3),
        usable=None if supply is None else round(supply.mean_gpus, 3),
        installed=None if supply is None else round(supply.installed, 3),
        shortage_probability=None if supply is None else round(chance_short(Tail(week), supply.points), 6),
        is_vouched=week.is_vouched,
    )


def _series(outlook: SeriesOutlook) -> SeriesView:
    highest = max((week.at(_BOUND) for week in outlook.weeks), default=None)
    return SeriesView(
        resource=outlook.key.resource,
        gpu_type=outlook.key.gpu_type,
        name=outlook.key.name,
        treatment=outlook.treatment,
        # Bytes and ratios stand side by side here: digits that count, whatever the size.
        peak_90=None if highest is None else float(f"{highest:.9g}"),
        notes=outlook.notes,
    )


def view_plan(plan: CapacityPlan) -> PlanView:
    """Return the plan as it is shown."""
    return PlanView(
        cluster=plan.cluster,
        quarter=plan.quarter,
        as_of=plan.as_of.isoformat(),
        currency=plan.currency,
        shortage_probability_max=plan.shortage_probability_max,
        orders=tuple(map(_order, plan.orders)),
        alternatives=tuple(map(_alternative, plan.alternatives)),
        regret_ratios=plan.regret_ratios,
        regret=tuple(
            RegretView(
                gpu_type=each.gpu_type,
                nodes=each.nodes,
                short_gpu_hours=round(each.short_gpu_hours, 3),
                idle_gpu_hours=round(each.idle_gpu_hours, 3),
                cents_by_ratio=each.cents_by_ratio,
                regret_by_ratio=each.regret_by_ratio,
            )
            for each in plan.regret
        ),
        refresh=tuple(map(_refresh, plan.refresh)),
        notes=plan.notes,
    )


def _order(line: OrderLine) -> OrderView:
    return OrderView(
        what=line.what,
        gpu_type=line.gpu_type,
        resource=line.series.resource,
        name=line.series.name,
        count=line.count,
        order_by=_iso(line.order_by),
        is_overdue=line.is_overdue,
        short_from=_iso(line.short_from),
        earliest_relief=_iso(line.earliest_relief),
        cents=line.cents,
        why=line.why,
    )


def _alternative(each: Alternative) -> AlternativeView:
    return AlternativeView(
        gpu_type=each.gpu_type,
        way=each.way.value,
        gpus=round(each.gpus, 3),
        worst_shortage_probability=round(each.worst_shortage_probability, 6),
        short_gpu_hours=round(each.short_gpu_hours, 3),
        cents=each.cents,
        takes_effect_on=_iso(each.takes_effect_on),
        said=each.said,
    )


def _refresh(line: RefreshLine) -> RefreshView:
    return RefreshView(
        asset=line.asset,
        racks=line.racks,
        gpu_type=line.gpu_type,
        gpus=line.gpus,
        age_months=line.age_months,
        replacement=line.replacement,
        is_due=line.is_due,
        said=line.said,
    )


def _iso(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
