"""A made-up report of a quarter, with everything in it that can be kept."""

from collections.abc import Sequence
from datetime import date, timedelta

from ops_pipelines.capacity.answers import report_in
from ops_pipelines.capacity.model import (
    LEVELS,
    Alternative,
    BoundHeld,
    CapacityForecast,
    CapacityPlan,
    CapacityReport,
    Hindsight,
    OrderLine,
    RefreshLine,
    RegretRow,
    Resource,
    SeriesKey,
    SeriesOutlook,
    ShortWeek,
    SupplyPoint,
    SupplyWeek,
    Way,
    WeekPeak,
)
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.projects import PlannedProject

AS_OF = date(2026, 10, 1)
H100 = GpuType("h100")
ALL_H100 = SeriesKey(resource=Resource.GPUS.value, gpu_type=H100)
LUSTRE = SeriesKey(resource=Resource.STORAGE_BYTES.value, name="lustre")


def week_of(number: int, peak: float, *, as_of: date = AS_OF) -> WeekPeak:
    """A peak spread evenly by a fifth around a middle."""
    return WeekPeak(
        first_day=as_of + timedelta(days=7 * number),
        quantiles=tuple(peak * (0.9 + 0.2 * level) for level in LEVELS),
        is_vouched=number < 2,
    )


def outlook_of(key: SeriesKey, peaks: Sequence[float], *, as_of: date = AS_OF) -> SeriesOutlook:
    return SeriesOutlook(
        key=key,
        treatment="ordinary",
        weeks=tuple(week_of(number, peak, as_of=as_of) for number, peak in enumerate(peaks)),
        notes=("censored: at its cap in 3 hours on 1 of the last 91 days; more may have been requested",),
    )


def order(
    *,
    order_by: date | None = date(2027, 1, 12),
    short_from: date | None = date(2027, 6, 3),
    is_overdue: bool = False,
    count: int = 6,
    key: SeriesKey = ALL_H100,
    what: str = "hgx-h100",
) -> OrderLine:
    return OrderLine(
        what=what,
        gpu_type=key.gpu_type or None,
        series=key,
        short_from=short_from,
        order_by=order_by,
        is_overdue=is_overdue,
        earliest_relief=date(2027, 3, 4),
        count=count,
        cents=Cents(180_000_000),
        why="the peak exceeds what is usable with 23 %",
    )


def project(**changed: object) -> PlannedProject:
    given: dict[str, object] = {
        "name": "vision-2", "team": TeamName("research"), "gpu_type": H100, "gpus": 64.0,
        "starts_on": date(2027, 2, 1), "ramp_days": 30, "ends_on": date(2027, 9, 1), "probability": 0.6,
    }  # fmt: skip
    return PlannedProject(**{**given, **changed})  # type: ignore[arg-type]  # fields by name, as the test gives them


def forecast(
    *,
    as_of: date = AS_OF,
    quarter: str = "2026Q4",
    peaks: Sequence[float] = (400.0, 410.0, 1 / 3),
    projects: tuple[PlannedProject, ...] | None = None,
    installed: float = 512.0,
) -> CapacityForecast:
    return CapacityForecast(
        cluster="small",
        quarter=quarter,
        as_of=as_of,
        timezone="Europe/Berlin",
        outlooks=(outlook_of(ALL_H100, peaks, as_of=as_of), outlook_of(LUSTRE, [2.0**50], as_of=as_of)),
        with_projects=(outlook_of(ALL_H100, peaks, as_of=as_of),),
        supply=tuple(
            SupplyWeek(
                gpu_type=H100,
                first_day=as_of + timedelta(days=7 * number),
                installed=installed,
                points=(SupplyPoint(gpus=480.0, probability=0.25), SupplyPoint(gpus=500.0, probability=0.75)),
            )
            for number in range(len(peaks))
        ),
        projects=(project(),) if projects is None else projects,
        vouched_weeks=2,
        notes=("2 of the last 28 days are not known",),
    )


def plan(*orders: OrderLine, as_of: date = AS_OF, quarter: str = "2026Q4") -> CapacityPlan:
    return CapacityPlan(
        cluster="small",
        quarter=quarter,
        as_of=as_of,
        currency="EUR",
        short_weeks=(
            ShortWeek(
                gpu_type=H100, first_day=as_of, shortage_probability=0.02, expected_short_gpus=0.5,
                expected_short_gpu_hours=12.0,
            ),
        ),
        orders=orders or (order(),),
        alternatives=(
            Alternative(
                gpu_type=H100, way=Way.CLOUD, gpus=40.0, worst_shortage_probability=0.1, short_gpu_hours=3.5,
                cents=None, takes_effect_on=None, said="no price is known",
            ),
        ),
        regret=(
            RegretRow(
                gpu_type=H100, nodes=6, short_gpu_hours=1.0, idle_gpu_hours=2.0,
                cents_by_ratio=(Cents(1), Cents(2), Cents(3)), regret_by_ratio=(Cents(0), Cents(0), Cents(1)),
            ),
        ),
        refresh=(
            RefreshLine(
                asset="hgx-a100", racks=("r1", "r2"), gpu_type=H100, gpus=64, age_months=61.5,
                failures_per_node_year=None, fleet_failures_per_node_year=0.4, watts_per_gpu=700.0,
                cents_per_work_hour=None, replacement="", replacement_cents_per_work_hour=None, is_due=True,
                said="older than the policy has it",
            ),
        ),
        shortage_probability_max=0.1,
        regret_ratios=(3.0, 5.0, 10.0),
        notes=("no limit is known of lustre",),
    )  # fmt: skip


def bound(peak: float, *, key: SeriesKey = ALL_H100) -> BoundHeld:
    return BoundHeld(key=key, first_day=date(2026, 7, 2), lead_weeks=1, median=400.0, bound_90=450.0, peak=peak)


def hindsight(*bounds: BoundHeld, is_kept: bool = True) -> Hindsight:
    held = sum(each.is_held for each in bounds)
    return Hindsight(
        quarter="2026Q3",
        as_of=date(2026, 7, 1),
        is_kept=is_kept,
        bounds=bounds,
        coverage_ratio=held / len(bounds) if bounds else None,
        changes=("hgx-h100: 6 are needed; the plan before stated 4",),
    )


def report(*orders: OrderLine, as_of: date = AS_OF, quarter: str = "2026Q4") -> CapacityReport:
    return CapacityReport(
        forecast=forecast(as_of=as_of, quarter=quarter),
        plan=plan(*orders, as_of=as_of, quarter=quarter),
        hindsight=hindsight(bound(440.0), bound(460.0)),
        history=((ALL_H100, ((date(2026, 9, 17), 391.25), (date(2026, 9, 24), 400.0))),),
        headline=("Order 6 of hgx-h100 by 2027-01-12: it runs short from 2027-06-03 on.", "Ünicode, <b>too</b>."),
        assumptions=("demand and supply are taken as independent",),
    )


def kept_check(desk: TeamsDesk, quarter: str, *, month: str) -> CapacityReport | None:
    """The check of a quarter that was kept in that month."""
    content = None if desk.plan_files is None else desk.plan_files.read(f"{quarter}-check-{month}.json")
    return None if content is None else report_in(content)
