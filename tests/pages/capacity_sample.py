"""A whole made-up report: one type of GPU short and one not, storage and power, a miss, a late order, a SKU undated."""

import math
from datetime import date, timedelta

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
    SeriesLimit,
    SeriesOutlook,
    ShortWeek,
    SupplyPoint,
    SupplyWeek,
    Way,
    WeekPeak,
)
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.teams.projects import PlannedProject

AS_OF = date(2026, 10, 1)
WEEKS, VOUCHED, PAST = 52, 26, 104
H100, L40S, B200, A100 = GpuType("h100"), GpuType("l40s"), GpuType("b200"), GpuType("a100")
TIB = 2.0**40


def key(resource: Resource, gpu_type: str = "", name: str = "") -> SeriesKey:
    return SeriesKey(resource=resource.value, gpu_type=GpuType(gpu_type), name=name)


ALL_H100, ALL_L40S, ALL_B200, ALL_A100 = (key(Resource.GPUS, each) for each in (H100, L40S, B200, A100))
LUSTRE, RACK = key(Resource.STORAGE_BYTES, name="lustre"), key(Resource.RACK_WATTS, name="r07")


def day(week: int) -> date:
    return AS_OF + timedelta(days=7 * week)


def outlook(each: SeriesKey, start: float, growth: float, spread: float, **changed: object) -> SeriesOutlook:
    """Return an outlook that grows by `growth` a week, and spreads out with the root of the distance."""
    weeks = tuple(
        WeekPeak(
            first_day=day(number),
            quantiles=tuple(
                start + growth * number + spread * math.sqrt(1 + number / 4) * math.log(level / (1 - level))
                for level in LEVELS
            ),
            is_vouched=number < VOUCHED,
        )
        for number in range(WEEKS)
    )
    given: dict[str, object] = {"key": each, "treatment": "ordinary", "weeks": weeks}
    return SeriesOutlook(**{**given, **changed})  # type: ignore[arg-type]  # fields by name, as the test gives them


def past(start: float, growth: float, waver: float) -> tuple[tuple[date, float], ...]:
    """Return weeks that lead to `start`; two of them were not counted."""
    return tuple(
        (day(number), start + growth * number + waver * math.sin(number * 1.3) - 2 * waver * (number % 52 == -40 % 52))
        for number in range(-PAST, 0)
        if number not in (-60, -59)
    )


def supply(gpu_type: GpuType, installed: float, *, more_from: int = WEEKS, more: float = 0.0) -> tuple[SupplyWeek, ...]:
    found = []
    for number in range(WEEKS):
        whole = installed + (more if number >= more_from else 0.0)
        points = ((0.93, 0.05), (0.95, 0.25), (0.97, 0.5), (0.985, 0.2))
        found.append(
            SupplyWeek(
                gpu_type=gpu_type,
                first_day=day(number),
                installed=whole,
                points=tuple(SupplyPoint(gpus=whole * share, probability=chance) for share, chance in points),
            )
        )
    return tuple(found)


def short_weeks(gpu_type: GpuType, *, middle: float, steep: float, most: float = 1.0) -> tuple[ShortWeek, ...]:
    chances = [most / (1 + math.exp((middle - number) / steep)) for number in range(WEEKS)]
    return tuple(
        ShortWeek(
            gpu_type=gpu_type, first_day=day(number), shortage_probability=chance,
            expected_short_gpus=40 * chance, expected_short_gpu_hours=900 * chance * chance,
        )
        for number, chance in enumerate(chances)
    )  # fmt: skip


def order(what: str, series: SeriesKey, **changed: object) -> OrderLine:
    given: dict[str, object] = {
        "what": what, "gpu_type": series.gpu_type or None, "series": series, "short_from": day(34),
        "order_by": date(2027, 1, 12), "is_overdue": False, "earliest_relief": date(2027, 3, 4), "count": 6,
        "cents": Cents(180_000_000), "why": "",
    }  # fmt: skip
    return OrderLine(**{**given, **changed})  # type: ignore[arg-type]  # fields by name


ORDERS = (
    order(
        "lustre, 200 TiB", LUSTRE, short_from=day(9), order_by=date(2026, 9, 14), is_overdue=True, count=2,
        cents=Cents(10_000_000), earliest_relief=date(2026, 11, 15),
        why="85 % of 1,000 TiB may be used; with 12 % more is used in the week from 2026-12-03",
    ),
    order("hgx-h100", ALL_H100, why="the week's peak exceeds what is usable with 11 % in the week from 2027-05-27; "
          "ordering takes 84 days in the middle and 112 with 90 %, putting up and burning in 10 more"),
    order("gb200-nvl", ALL_B200, short_from=day(21), order_by=None, earliest_relief=None, count=3, cents=None,
          why="no lead time of gb200-nvl is stated in capacity.yaml: no date can be named"),
    order("l40s-8x", ALL_L40S, short_from=None, order_by=None, earliest_relief=None, count=0, cents=Cents(0),
          why="no week passes the limit; the worst has 2 %"),
)  # fmt: skip
ALTERNATIVES = (
    (Way.NOTHING, 0.0, 0.93, 18_400.0, Cents(0), None, "what is expected over 52 weeks if nothing is done"),
    (Way.BUY, 48.0, 0.08, 310.0, Cents(180_000_000), date(2027, 3, 4), "6 nodes of hgx-h100, ordered by 2027-01-12"),
    (Way.CLOUD, 61.0, 0.1, 420.0, Cents(9_312_000), date(2026, 10, 8), "rented in short weeks alone, 4.95 a GPU-hour"),
    (Way.QUOTAS, 14.2, 0.71, 9_800.0, Cents(0), date(2026, 10, 8), "4 % of a peak is work that may wait (13 weeks)"),
    (Way.EFFICIENCY, 9.0, 0.79, 12_050.0, Cents(0), date(2026, 10, 29), "half of what is idle: assumed, not measured"),
)
COUNTS = (0, 1, 2, 4, 5, 6, 7, 8, 10, 12)


def forecast() -> CapacityForecast:
    censored = ("censored: at its cap in 31 hours on 6 of the last 91 days; more may have been requested",)
    return CapacityForecast(
        cluster="small",
        quarter="2026Q4",
        as_of=AS_OF,
        timezone="Europe/Berlin",
        outlooks=(
            outlook(ALL_H100, 400.0, 1.6, 6.0),
            outlook(ALL_L40S, 60.0, 0.1, 2.0),
            outlook(ALL_B200, 22.0, 0.35, 1.2),
            SeriesOutlook(key=ALL_A100, treatment="no_days", weeks=(), notes=("no day of it is known",)),
            outlook(key(Resource.GPUS, H100, "research"), 230.0, 1.2, 5.0, notes=censored),
            outlook(key(Resource.GPUS, H100, "product"), 150.0, 0.3, 3.0),
            outlook(key(Resource.GPUS, L40S, "interns"), 3.0, 0.0, 0.4, treatment="near_idle"),
            outlook(LUSTRE, 830 * TIB, 3.1 * TIB, 4 * TIB),
            outlook(RACK, 31_000.0, 12.0, 300.0),
            outlook(key(Resource.COOLING_WATTS), 240_000.0, 300.0, 4_000.0),
            outlook(key(Resource.NETWORK_RATIO, name="leaf-3"), 0.55, 0.001, 0.02),
        ),
        with_projects=(
            outlook(ALL_H100, 404.0, 1.8, 7.0),
            outlook(ALL_L40S, 60.0, 0.1, 2.0),
            outlook(ALL_B200, 22.0, 0.35, 1.2),
            SeriesOutlook(key=ALL_A100, treatment="no_days", weeks=(), notes=("no day of it is known",)),
        ),
        supply=(*supply(H100, 512.0, more_from=12, more=16.0), *supply(L40S, 96.0), *supply(B200, 36.0)),
        projects=(
            PlannedProject(name="vision-2", team=TeamName("research"), gpu_type=H100, gpus=64.0, ramp_days=30,
                           starts_on=date(2027, 2, 1), ends_on=date(2027, 9, 1), probability=0.6),
            PlannedProject(name="search ranking", team=TeamName("product"), gpu_type=H100, gpus=24.0,
                           starts_on=date(2026, 12, 1)),
        ),
        vouched_weeks=VOUCHED,
        notes=("2 of the last 28 days are not known",),
    )  # fmt: skip


def plan() -> CapacityPlan:
    return CapacityPlan(
        cluster="small",
        quarter="2026Q4",
        as_of=AS_OF,
        currency="EUR",
        short_weeks=(
            *short_weeks(L40S, middle=60, steep=5, most=0.12),
            *short_weeks(H100, middle=41, steep=3.2),
            *short_weeks(B200, middle=25, steep=2.2, most=0.9),
        ),
        orders=ORDERS,
        alternatives=tuple(
            Alternative(gpu_type=H100, way=way, gpus=count, worst_shortage_probability=worst, short_gpu_hours=short,
                        cents=cents, takes_effect_on=since, said=said)
            for way, count, worst, short, cents, since, said in ALTERNATIVES
        ),
        regret=tuple(
            RegretRow(
                gpu_type=H100, nodes=count, short_gpu_hours=18_400 * 0.6**count, idle_gpu_hours=5_200.0 * count,
                cents_by_ratio=tuple(Cents(1_000_000 + 90_000 * abs(count - best)) for best in (4, 6, 8)),
                regret_by_ratio=tuple(Cents(90_000 * abs(count - best)) for best in (4, 6, 8)),
            )
            for count in COUNTS
        ),
        refresh=(
            RefreshLine(
                asset="hgx-h100 of 2024", racks=("r01", "r02"), gpu_type=H100, gpus=512, age_months=31.0,
                failures_per_node_year=0.3, fleet_failures_per_node_year=0.4, watts_per_gpu=690.0,
                cents_per_work_hour=212.4, replacement="gb200-nvl", replacement_cents_per_work_hour=None,
                is_due=False, said="not due before 2027-03; no price of gb200-nvl is stated",
            ),
            RefreshLine(
                asset="l40s of 2021", racks=("r09",), gpu_type=L40S, gpus=96, age_months=61.5,
                failures_per_node_year=1.1, fleet_failures_per_node_year=0.4, watts_per_gpu=300.0,
                cents_per_work_hour=94.1, replacement="l40s-8x", replacement_cents_per_work_hour=71.9,
                is_due=True, said="its failures are 2.8 times the fleet's, and work on new nodes costs 24 % less",
            ),
        ),
        shortage_probability_max=0.1,
        regret_ratios=(3.0, 5.0, 10.0),
        notes=("no limit is known of the room's cooling",),
        limits=(
            SeriesLimit(series=LUSTRE, limit=1_000 * TIB, usable=850 * TIB),
            SeriesLimit(series=RACK, limit=40_000.0, usable=40_000.0),
            SeriesLimit(series=key(Resource.NETWORK_RATIO, name="leaf-3"), limit=10.0, usable=8.0),
        ),
    )  # fmt: skip


def hindsight() -> Hindsight:
    """Return thirteen weeks of which one was higher than the bound, and storage of which all held."""
    bounds = [
        BoundHeld(
            key=ALL_H100, first_day=date(2026, 7, 2) + timedelta(days=7 * number), lead_weeks=number + 1,
            median=376.0 + 1.6 * number, bound_90=388.0 + 2.2 * number,
            peak=437.0 if number == 8 else 371.0 + 2 * number,
        )
        for number in range(13)
    ]  # fmt: skip
    bounds += [
        BoundHeld(key=LUSTRE, first_day=each.first_day, lead_weeks=each.lead_weeks, median=800 * TIB,
                  bound_90=830 * TIB, peak=810 * TIB)
        for each in bounds
    ]  # fmt: skip
    return Hindsight(
        quarter="2026Q3",
        as_of=date(2026, 7, 1),
        is_kept=True,
        bounds=tuple(bounds),
        coverage_ratio=sum(each.is_held for each in bounds) / len(bounds),
        changes=(
            "hgx-h100: order by 2027-01-12; the plan before stated 2027-02-20",
            "project vision-2 of research is planned otherwise: 64 GPUs, before 48",
        ),
    )


def whole_report() -> CapacityReport:
    return CapacityReport(
        forecast=forecast(),
        plan=plan(),
        hindsight=hindsight(),
        history=(
            (ALL_H100, past(402.0, 1.5, 9.0)),
            (ALL_L40S, past(60.0, 0.1, 2.0)),
            (RACK, past(31_000.0, 10.0, 350.0)),
            (ALL_B200, past(22.0, 0.2, 1.0)),
            (LUSTRE, past(830 * TIB, 3 * TIB, 3 * TIB)),
        ),
        headline=(
            "Order 2 steps of lustre, 200 TiB at once, which helps from 2026-11-15 on: it runs short from 2026-12-03 "
            "on, and the day for it was 2026-09-14; order 6 nodes of hgx-h100 by 2027-01-12: it runs short from "
            "2027-05-27 on; 1 more in the table.",
            "Dates keep the risk of a short week at 10 % or less; how wide peaks spread is measured on the past for 26 "
            "weeks ahead, for the 26 weeks after that it is drawn on.",
            "Of 26 bounds of 90 % from 2026Q3, 25 held: 96 %.",
            "Not known: what 1 series at a cap would have requested; when to order 1 thing that runs short; 2 notes in "
            "the report tell what was assumed or treated.",
        ),
        assumptions=(
            "a week counts as short where its peak exceeds what is usable with more than 10 %, and so 2 of the four "
            "weeks from it on",
            "an order must be there in time with 90 %; the horizon is 52 weeks from 2026-10-01 in Europe/Berlin",
            "demand and supply are taken as independent, as are planned projects of each other",
            "2 of the last 28 days are not known",
        ),
    )
