"""The tables of the page of capacity: rows of words, the first of each, and how many are left out."""

from collections.abc import Sequence
from dataclasses import dataclass

from ops_pipelines.capacity.model import Resource, SeriesKey, SeriesOutlook, chance_of_short, percent
from ops_pipelines.capacity.plan import BoundHeld, CapacityPlan, CapacityReport, OrderLine, RegretRow
from ops_pipelines.pages.capacity_words import amount, day, scale_of, sentence, series_name, type_name
from ops_pipelines.report.document import clipped
from ops_pipelines.report.numbers import gpus, hours

ROWS = 40
"""Of each table; the document has the others."""
_WORDS_AT_MOST = 600
"""Of a sentence: what decides stands last in most."""
_TOLD_WEEKS = (1, 13, 26, 52)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: words, and how they are set."""

    said: str
    kind: str = ""
    """A class of the style sheet: `number`, `name`, `words`, `day`, `strong`, `bad`, `good`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: what stands in it, and how many rows were left out."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    left_count: int
    caption: str = ""

    @property
    def is_told(self) -> bool:
        """Whether it holds sentences: on a phone its rows become cards; one of numbers is moved sideways."""
        return any("words" in cell.kind for row in self.rows[:1] for cell in row)


def order_table(plan: CapacityPlan) -> Table:
    """Return what is to be ordered, most urgent first."""
    return _table(
        ("What", "How many", "Order by", "Short from", "If ordered now, helps from", "Cost", "Why"),
        [
            (
                Cell(said=clipped(each.what, at_most=60), kind="name"),
                Cell(said=_count(each), kind="number"),
                _order_by(each),
                Cell(said=day(each.short_from, otherwise="not foreseen"), kind="day"),
                Cell(said=day(each.earliest_relief), kind="day"),
                Cell(said=amount(each.cents, plan.currency) if each.count else "-", kind="number"),
                Cell(said=sentence(each.why, at_most=_WORDS_AT_MOST), kind="words"),
            )
            for each in plan.orders
        ],
    )


def alternative_table(plan: CapacityPlan) -> Table:
    """Return what can be done, and what each way would do."""
    return _table(
        ("Type", "Way", "GPUs", "Worst week then", "Short GPU-hours", "Cost", "From", "What it rests on"),
        [
            (
                Cell(said=type_name(each.gpu_type), kind="name"),
                Cell(said=each.way.value),
                Cell(said=gpus(each.gpus), kind="number"),
                Cell(said=chance_of_short(each.worst_shortage_probability), kind="number"),
                Cell(said=hours(each.short_gpu_hours), kind="number"),
                Cell(said=amount(each.cents, plan.currency), kind="number"),
                Cell(said=day(each.takes_effect_on), kind="day"),
                Cell(said=sentence(each.said, at_most=_WORDS_AT_MOST), kind="words"),
            )
            for each in plan.alternatives
        ],
    )


def regret_tables(plan: CapacityPlan) -> tuple[Table, ...]:
    """Return one table a type: what each number of nodes is expected to cost, and by how much it misses the best."""
    by_type: dict[str, list[RegretRow]] = {}
    for each in plan.regret:
        by_type.setdefault(type_name(each.gpu_type), []).append(each)
    ratios = tuple(f"short costs {ratio:g} times idle" for ratio in plan.regret_ratios)
    return tuple(
        _table(
            ("Nodes", "Short GPU-hours", "Idle GPU-hours", *ratios),
            [
                (
                    Cell(said=str(each.nodes), kind="number"),
                    Cell(said=hours(each.short_gpu_hours), kind="number"),
                    Cell(said=hours(each.idle_gpu_hours), kind="number"),
                    *(
                        Cell(said=f"{amount(cost, plan.currency)}: best", kind="number good")
                        if not regret
                        else Cell(said=f"{amount(cost, plan.currency)} (+{amount(regret, '')})", kind="number")
                        for cost, regret in zip(each.cents_by_ratio, each.regret_by_ratio, strict=True)
                    ),
                )
                for each in rows
            ],
            caption=name,
        )
        for name, rows in by_type.items()
    )


def refresh_table(plan: CapacityPlan) -> Table:
    """Return each batch of hardware against its replacement; what is due first."""
    return _table(
        (
            "Hardware",
            "GPUs",
            "Age, months",
            "Failures a node and year",
            "Per hour of work, kept",
            "Replaced",
            "What follows",
        ),
        [
            (
                Cell(said=clipped(each.asset, at_most=60), kind="name"),
                Cell(said=str(each.gpus), kind="number"),
                Cell(said="-" if each.age_months is None else f"{each.age_months:.0f}", kind="number"),
                Cell(said=_failures(each.failures_per_node_year, each.fleet_failures_per_node_year), kind="number"),
                Cell(said=_per_hour(each.cents_per_work_hour, plan.currency), kind="number"),
                Cell(said=_per_hour(each.replacement_cents_per_work_hour, plan.currency), kind="number"),
                Cell(
                    said=f"{'DUE: ' if each.is_due else ''}{sentence(each.said, at_most=_WORDS_AT_MOST)}", kind="words"
                ),
            )
            for each in sorted(plan.refresh, key=lambda each: not each.is_due)
        ],
    )


def team_table(report: CapacityReport) -> Table:
    """Return what each team is expected to want at most, by the past alone."""
    return _ahead(
        [each for each in report.forecast.outlooks if each.key.kind is Resource.GPUS and each.key.name and each.weeks],
        "Team",
    )


def resource_table(report: CapacityReport) -> Table:
    """Return the further resources in numbers."""
    return _ahead(
        [each for each in report.forecast.outlooks if each.key.kind is not Resource.GPUS and each.weeks], "What"
    )


def held_table(report: CapacityReport) -> Table:
    """Return how many bounds of the last forecast held, by series; the worst first."""
    by_key: dict[SeriesKey, list[BoundHeld]] = {}
    for each in () if report.hindsight is None else report.hindsight.bounds:
        by_key.setdefault(each.key, []).append(each)
    ordered = sorted(by_key.items(), key=lambda item: (-sum(not each.is_held for each in item[1]), item[0]))
    return _table(
        ("Series", "Bounds that held", "Of", "First that did not"),
        [
            (
                Cell(said=series_name(key), kind="name"),
                Cell(said=str(sum(each.is_held for each in bounds)), kind="number"),
                Cell(said=str(len(bounds)), kind="number"),
                _first_miss(key, bounds),
            )
            for key, bounds in ordered
        ],
    )


def project_table(report: CapacityReport) -> Table:
    """Return the planned projects, the likeliest GPUs first."""
    return _table(
        ("Project", "Team", "Type", "GPUs", "From", "Full after", "Until", "Probability"),
        [
            (
                Cell(said=clipped(each.name, at_most=60), kind="name"),
                Cell(said=clipped(each.team, at_most=60)),
                Cell(said=type_name(each.gpu_type)),
                Cell(said=gpus(each.gpus), kind="number"),
                Cell(said=day(each.starts_on), kind="day"),
                Cell(said=f"{each.ramp_days} days" if each.ramp_days else "at once"),
                Cell(said=day(each.ends_on, otherwise="no end known"), kind="day"),
                Cell(said=percent(each.probability), kind="number"),
            )
            for each in sorted(report.forecast.projects, key=lambda each: -each.gpus * each.probability)
        ],
    )


def treatment_table(report: CapacityReport) -> Table:
    """Return the series of which something was done to the days, or is to be said; the others are counted."""
    told = [each for each in report.forecast.outlooks if each.notes or each.treatment != "ordinary"]
    return _table(
        ("Series", "Treated as", "What was done"),
        [
            (
                Cell(said=series_name(each.key), kind="name"),
                Cell(said=each.treatment.replace("_", " ")),
                Cell(said=sentence("; ".join(each.notes), at_most=_WORDS_AT_MOST) or "-", kind="words"),
            )
            for each in told
        ],
    )


def _ahead(outlooks: Sequence[SeriesOutlook], head: str) -> Table:
    longest = max((len(each.weeks) for each in outlooks), default=0)
    weeks = [number for number in _TOLD_WEEKS if number <= longest]
    return _table(
        (head, *(f"Week {number}: median / 90 %" for number in weeks)),
        [
            (
                Cell(said=series_name(each.key), kind="name"),
                *(_value(each, number) for number in weeks),
            )
            for each in sorted(outlooks, key=lambda each: (each.key.resource, -each.weeks[0].at(0.9), each.key))
        ],
    )


def _value(outlook: SeriesOutlook, number: int) -> Cell:
    if number > len(outlook.weeks):
        return Cell(said="-", kind="number")
    scale = scale_of(outlook.key, [each.quantiles[-1] for each in outlook.weeks])
    week = outlook.weeks[number - 1]
    median = scale.said(week.at(0.5)).removesuffix(f" {scale.unit}")
    return Cell(said=f"{median} / {scale.said(week.at(0.9))}", kind="number")


def _table(heads: tuple[str, ...], rows: Sequence[tuple[Cell, ...]], *, caption: str = "") -> Table:
    return Table(heads=heads, rows=rows[:ROWS], left_count=max(0, len(rows) - ROWS), caption=caption)


def _order_by(line: OrderLine) -> Cell:
    if line.order_by is None:
        return Cell(said="no date known" if line.short_from is not None and line.count else "-")
    if line.is_overdue:
        return Cell(said=f"{line.order_by}: OVERDUE", kind="day bad")
    return Cell(said=day(line.order_by), kind="day strong")


def _count(line: OrderLine) -> str:
    if not line.count:
        return "none"
    unit = "step" if line.gpu_type is None else "node"
    return f"{line.count} {unit}{'' if line.count == 1 else 's'}"


def _failures(own: float | None, fleet: float | None) -> str:
    if own is None:
        return "-"
    return f"{own:.2f}" if fleet is None else f"{own:.2f}, all {fleet:.2f}"


def _per_hour(cents: float | None, currency: str) -> str:
    return "-" if cents is None else f"{cents / 100:,.3f} {clipped(currency, at_most=8)}".strip()


def _first_miss(key: SeriesKey, bounds: Sequence[BoundHeld]) -> Cell:
    missed = next((each for each in bounds if not each.is_held), None)
    if missed is None:
        return Cell(said="-")
    scale = scale_of(key, [missed.peak])
    return Cell(
        said=f"{missed.first_day}: {scale.said(missed.peak)} came, the bound was {scale.said(missed.bound_90)}",
        kind="words",
    )
