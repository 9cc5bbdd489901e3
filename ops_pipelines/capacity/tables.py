"""The tables of capacity, and how its reports name series, scale units and write days and money.

Values into rows, the first of each; the JSON of the report has the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from ops_pipelines.capacity.model import (
    BoundHeld,
    CapacityForecast,
    CapacityPlan,
    Hindsight,
    OrderLine,
    RegretRow,
    Resource,
    SeriesKey,
    SeriesOutlook,
    SupplyWeek,
    chance_of_short,
    percent,
)
from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import Kind, clipped, strong, toned
from ops_pipelines.report.numbers import counted

NAME_AT_MOST = 40
_TIB, _PIB, _KILO = 2.0**40, 2.0**50, 1000.0
_ALL = {
    Resource.NETWORK_RATIO: "the whole fabric",
    Resource.COOLING_WATTS: "the whole room",
    Resource.RACK_WATTS: "all racks",
}
_KINDS = {
    Resource.STORAGE_BYTES: "Storage",
    Resource.NETWORK_RATIO: "Network",
    Resource.RACK_WATTS: "Power",
    Resource.COOLING_WATTS: "Cooling",
    Resource.GPUS_OUT: "GPUs out of service",
    Resource.GPUS_STRANDED: "GPUs out of reach",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How values of a series are shown: divided, and with a unit."""

    divisor: float
    unit: str

    def said(self, value: float) -> str:
        shown = value / self.divisor
        return f"{shown:,.0f} {self.unit}" if abs(shown) >= 100 else f"{shown:,.3g} {self.unit}"


def scale_of(key: SeriesKey, values: Sequence[float]) -> Scale:
    """Return the scale in which the largest value of a series is read well."""
    most = max(values, default=0.0)
    if key.kind is Resource.STORAGE_BYTES:
        return Scale(divisor=_PIB, unit="PiB") if most >= 4 * _PIB else Scale(divisor=_TIB, unit="TiB")
    if key.kind in (Resource.RACK_WATTS, Resource.COOLING_WATTS):
        return Scale(divisor=_KILO, unit="kW")
    if key.kind is Resource.NETWORK_RATIO:
        return Scale(divisor=0.01, unit="% used")
    return Scale(divisor=1.0, unit="GPUs")


def sentence(text: str, *, at_most: int) -> str:
    """Return a sentence as the page shows it: what a terminal sets apart with backticks is plain here."""
    return clipped(text.replace("`", ""), at_most=at_most)


def type_name(gpu_type: GpuType) -> str:
    """Return what a type is called; where the cluster separates none, all of them are just GPUs."""
    return clipped(gpu_type, at_most=NAME_AT_MOST) or "GPUs"


def series_name(key: SeriesKey) -> str:
    """Return what a series is of, such as `Storage: lustre`."""
    if key.kind is Resource.GPUS:
        team = f" of {clipped(key.name, at_most=NAME_AT_MOST)}" if key.name else " of all teams"
        return f"{type_name(key.gpu_type)}{team}"
    name = clipped(key.name, at_most=NAME_AT_MOST) or _ALL.get(key.kind, "all")
    return f"{_KINDS[key.kind]}: {name}"


def day(found: date | None) -> str:
    return "-" if found is None else found.isoformat()


def amount(cents: Cents | int | None, currency: str) -> str:
    """Return money in whole units: plans are not exact to a cent."""
    if cents is None:
        return "no price"
    return f"{round(cents / 100):,} {clipped(currency, at_most=8)}".strip()


def usable_at(week: SupplyWeek, level: float) -> float:
    """Return how much is usable with no more than this probability that it is less."""
    passed = 0.0
    for each in week.points:
        passed += each.probability
        if passed >= level - 1e-9:
            return each.gpus
    return week.points[-1].gpus if week.points else week.installed


ROWS = 40
"""Of each table; the JSON has the others."""
_TEXT = 600
"""Of a sentence: what decides is last in most."""
_TOLD_WEEKS = (1, 13, 26, 52)
_MORE = "the report as JSON has all"


def order_table(plan: CapacityPlan) -> doc.Table:
    """Return what is to be ordered, most urgent first."""
    return table_of(
        (
            ("What", Kind.NAME), ("How many", Kind.COUNT), ("Order by", Kind.DAY), ("Short from", Kind.DAY),
            ("If ordered now, helps from", Kind.DAY), ("Cost", Kind.CENTS), ("Why", Kind.WORDS),
        ),
        [
            (
                clipped(each.what, at_most=60), _count(each), _order_by(each), each.short_from or "not expected",
                each.earliest_relief, amount(each.cents, plan.currency) if each.count else "-",
                sentence(each.why, at_most=_TEXT),
            )
            for each in plan.orders
        ],
        key="orders", empty="Nothing was planned.",
    )  # fmt: skip


def alternative_table(plan: CapacityPlan) -> doc.Table:
    """Return what can be done, and what each way would do."""
    return table_of(
        (
            ("Type", Kind.NAME), ("Way", Kind.TEXT), ("GPUs", Kind.GPUS), ("Worst week then", Kind.RATIO),
            ("Short GPU-hours", Kind.GPU_HOURS), ("Cost", Kind.CENTS), ("From", Kind.DAY),
            ("What it rests on", Kind.WORDS),
        ),
        [
            (
                type_name(each.gpu_type), each.way.value, each.gpus, chance_of_short(each.worst_shortage_probability),
                each.short_gpu_hours, amount(each.cents, plan.currency), each.takes_effect_on,
                sentence(each.said, at_most=_TEXT),
            )
            for each in plan.alternatives
        ],
        key="alternatives", empty="Nothing is short, so nothing was compared.",
    )  # fmt: skip


def regret_tables(plan: CapacityPlan) -> tuple[doc.Table, ...]:
    """Return one table a type: what each number of nodes is expected to cost, and by how much it misses the best."""
    by_type: dict[str, list[RegretRow]] = {}
    for each in plan.regret:
        by_type.setdefault(type_name(each.gpu_type), []).append(each)
    ratios = tuple((f"short costs {ratio:g} times idle", Kind.CENTS) for ratio in plan.regret_ratios)
    heads = ("Nodes", Kind.COUNT), ("Short GPU-hours", Kind.GPU_HOURS), ("Idle GPU-hours", Kind.GPU_HOURS)
    return tuple(
        table_of(
            (*heads, *ratios),
            [
                (each.nodes, each.short_gpu_hours, each.idle_gpu_hours, *_losses(each))
                for each in rows
            ],
            caption=name,
        )
        for name, rows in by_type.items()
    )  # fmt: skip


def _losses(row: RegretRow) -> list[doc.Words]:
    return [
        f"{amount(cost, '')} (+{amount(regret, '')})" if regret else toned(f"{amount(cost, '')}: best", doc.Mood.GOOD)
        for cost, regret in zip(row.cents_by_ratio, row.regret_by_ratio, strict=True)
    ]


def refresh_table(plan: CapacityPlan) -> doc.Table:
    """Return each batch of hardware against its replacement; what is due first."""
    return table_of(
        (
            ("Hardware", Kind.NAME), ("GPUs", Kind.COUNT), ("Age, months", Kind.COUNT),
            ("Failures a node and year", Kind.COUNT), ("Per hour of work, kept", Kind.CENTS),
            ("Replaced", Kind.CENTS), ("What follows", Kind.WORDS),
        ),
        [
            (
                clipped(each.asset, at_most=60), each.gpus,
                None if each.age_months is None else round(each.age_months),
                _failures(each.failures_per_node_year, each.fleet_failures_per_node_year),
                _per_hour(each.cents_per_work_hour, plan.currency),
                _per_hour(each.replacement_cents_per_work_hour, plan.currency),
                f"{'DUE: ' if each.is_due else ''}{sentence(each.said, at_most=_TEXT)}",
            )
            for each in sorted(plan.refresh, key=lambda each: not each.is_due)
        ],
        key="refresh", empty="Nothing is known of when hardware was bought.",
    )  # fmt: skip


def project_table(forecast: CapacityForecast) -> doc.Table:
    """Return the planned projects, the likeliest GPUs first."""
    return table_of(
        (
            ("Project", Kind.NAME), ("Team", Kind.TEXT), ("Type", Kind.TEXT), ("GPUs", Kind.GPUS), ("From", Kind.DAY),
            ("Full after", Kind.TEXT), ("Until", Kind.DAY), ("Probability", Kind.RATIO),
        ),
        [
            (
                clipped(each.name, at_most=60), clipped(each.team, at_most=60), type_name(each.gpu_type), each.gpus,
                each.starts_on, f"{each.ramp_days} days" if each.ramp_days else "at once",
                each.ends_on or "no end known", percent(each.probability),
            )
            for each in sorted(forecast.projects, key=lambda each: -each.gpus * each.probability)
        ],
        key="projects", empty="None is stated in projects.yaml: what is expected continues from the past.",
    )  # fmt: skip


def treatment_table(forecast: CapacityForecast) -> doc.Table:
    """Return the series of which something was done to the days, or is to be reported; the others are counted."""
    told = [each for each in forecast.outlooks if each.notes or each.treatment != "ordinary"]
    return table_of(
        (("Series", Kind.NAME), ("Treated as", Kind.TEXT), ("What was done", Kind.WORDS)),
        [
            (
                series_name(each.key), f"{each.treatment.replace('_', ' ')}",
                sentence("; ".join(each.notes), at_most=_TEXT) or "-",
            )
            for each in told
        ],
        key="treatments", empty="",
    )  # fmt: skip


def held_table(found: Hindsight) -> doc.Table:
    """Return how many bounds of the last forecast held, by series; the worst first."""
    by_key: dict[SeriesKey, list[BoundHeld]] = {}
    for each in found.bounds:
        by_key.setdefault(each.key, []).append(each)
    ordered = sorted(by_key.items(), key=lambda item: (-sum(not each.is_held for each in item[1]), item[0]))
    return table_of(
        (
            ("Series", Kind.NAME), ("Bounds that held", Kind.COUNT), ("Of", Kind.COUNT),
            ("First that did not", Kind.WORDS),
        ),
        [
            (series_name(key), sum(each.is_held for each in bounds), len(bounds), _first_miss(key, bounds))
            for key, bounds in ordered
        ],
        empty="",
    )  # fmt: skip


def team_table(forecast: CapacityForecast) -> doc.Table:
    """Return what each team is expected to want at most, by the past alone."""
    of_teams = [each for each in forecast.outlooks if each.key.kind is Resource.GPUS and each.key.name and each.weeks]
    return ahead_table(of_teams, "Team", empty="No team's peaks are known.")


def ahead_table(outlooks: Sequence[SeriesOutlook], head: str, *, empty: str) -> doc.Table:
    longest = max((len(each.weeks) for each in outlooks), default=0)
    weeks = [number for number in _TOLD_WEEKS if number <= longest]
    return table_of(
        ((head, Kind.NAME), *((f"Week {number}: median / 90 %", Kind.COUNT) for number in weeks)),
        [
            (series_name(each.key), *(_value(each, number) for number in weeks))
            for each in sorted(outlooks, key=lambda each: (each.key.resource, -each.weeks[0].at(0.9), each.key))
        ],
        empty=empty,
    )


def _value(outlook: SeriesOutlook, number: int) -> str | None:
    if number > len(outlook.weeks):
        return None
    scale = scale_of(outlook.key, [each.quantiles[-1] for each in outlook.weeks])
    week = outlook.weeks[number - 1]
    median = scale.said(week.at(0.5)).removesuffix(f" {scale.unit}")
    return f"{median} / {scale.said(week.at(0.9))}"


def table_of(
    heads: Sequence[tuple[str, Kind]],
    rows: Sequence[tuple[doc.Cell, ...]],
    *,
    key: str = "",
    empty: str = "",
    caption: str = "",
) -> doc.Table:
    columns = tuple(doc.Column(title=title, kind=kind) for title, kind in heads)
    return doc.Table(columns=columns, rows=rows, key=key, empty=empty, caption=caption, at_most=ROWS, more=_MORE)


def _order_by(line: OrderLine) -> doc.Cell:
    if line.order_by is None:
        return "no date known" if line.short_from is not None and line.count else None
    if line.is_overdue:
        return strong(f"{line.order_by}: OVERDUE", doc.Mood.BAD)
    return strong(line.order_by.isoformat())


def _count(line: OrderLine) -> str:
    if not line.count:
        return "none"
    unit = "step" if line.gpu_type is None else "node"
    return counted(line.count, unit)


def _failures(own: float | None, fleet: float | None) -> str | None:
    if own is None:
        return None
    return f"{own:.2f}" if fleet is None else f"{own:.2f}, all {fleet:.2f}"


def _per_hour(cents: float | None, currency: str) -> str | None:
    return None if cents is None else f"{cents / 100:,.3f} {clipped(currency, at_most=8)}".strip()


def _first_miss(key: SeriesKey, bounds: Sequence[BoundHeld]) -> str:
    missed = next((each for each in bounds if not each.is_held), None)
    if missed is None:
        return "-"
    scale = scale_of(key, [missed.peak])
    return f"{missed.first_day}: {scale.said(missed.peak)} came, the bound was {scale.said(missed.bound_90)}"
