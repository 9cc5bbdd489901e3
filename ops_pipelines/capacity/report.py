"""Capacity as documents and as JSON: the peaks ahead, what to order by when, the whole report of a quarter.

A director reads the headline, the tiles and the orders; who audits it continues to charts, tables and assumptions. The
same page is kept as a file and printed: it needs no script, and nothing is folded away. The keys of the JSON of a
forecast and of a plan are a contract with the scripts of operators; a whole report has its own form, `document`.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from ops_pipelines.capacity.answers import chance_of
from ops_pipelines.capacity.charts import hindsight_charts, resource_charts, type_sections, verdict_of
from ops_pipelines.capacity.forecast.backtest import Backtest, Measured
from ops_pipelines.capacity.model import (
    LEVELS,
    CapacityForecast,
    CapacityPlan,
    CapacityReport,
    Hindsight,
    Resource,
    chance_of_short,
)
from ops_pipelines.capacity.tables import (
    ahead_table,
    alternative_table,
    amount,
    held_table,
    order_table,
    project_table,
    refresh_table,
    regret_tables,
    sentence,
    table_of,
    team_table,
    treatment_table,
    type_name,
)
from ops_pipelines.core.money import Cents
from ops_pipelines.report import document as doc
from ops_pipelines.report import numbers
from ops_pipelines.report.document import Kind, clipped, code, link, soft, toned

_TYPES_DRAWN = 8
_RESOURCES_DRAWN = 12
_JUDGED_DRAWN = 3
_LINES = 60
_TEXT = 600
"""Of a sentence: what decides is last in most."""
_LISTED_WEEKS = (1, 2, 3, 4, 6, 8, 10, 13, 17, 21, 26, 30, 34, 39, 43, 47, 52, 65, 78, 91, 104)
"""Of a forecast: near ones closely. JSON has all."""


# -- the report of a quarter --


def capacity_document(
    report: CapacityReport | None,
    *,
    cluster: str,
    quarter: str,
    why_not: str = "",
    name: str = "",
    quarters: Sequence[str] = (),
    is_served: bool = True,
    now: datetime | None = None,
) -> doc.Document:
    """Return the report of a quarter. `report` None: none was kept, and `why_not` says what makes one.

    `name`: under which it is kept; a check has its month in it. `quarters`: names of reports to choose, newest first.
    Not `is_served`: a file, which has no other page beside it, and without `now` is the same for the same report.
    """
    name = name or quarter
    links = {each: f"capacity?quarter={each}" for each in quarters}
    choices = doc.Choices(about="Reports", current=name, links=links)
    return doc.Document(
        title=f"Capacity plan {name}",
        cluster=cluster,
        about="what will be requested, what will be usable, what to order by when; it buys nothing",
        blocks=(choices, *(_nothing(why_not) if report is None else _whole(report, name if is_served else ""))),
        command="ops-pipelines capacity report",
        now=now,
        is_paper=True,
        home="." if is_served else "",
    )


def kept_document(report: CapacityReport, *, name: str = "") -> doc.Document:
    """Return a report as its page is kept beside it under that name: the same for the same report."""
    forecast = report.forecast
    return capacity_document(report, cluster=forecast.cluster, quarter=forecast.quarter, name=name, is_served=False)


def next_order(plan: CapacityPlan) -> doc.Number:
    """Return by when something must be ordered, and what."""
    dated = [(each.order_by, each) for each in plan.orders if each.order_by is not None and each.count]
    if dated:
        on, line = min(dated, key=lambda each: each[0])
        more = f", and {len(dated) - 1} more" if len(dated) > 1 else ""
        late = "overdue since then: " if line.is_overdue else ""
        about = f"{late}order {line.count} of {clipped(line.what, at_most=40)}{more}"
        return doc.Number(value=on.isoformat(), about=about, mood=doc.Mood.BAD if line.is_overdue else doc.Mood.WARN)
    if any(each.short_from is not None for each in plan.orders):
        about = "something runs short, and no day to order is known"
        return doc.Number(value="no date", about=about, mood=doc.Mood.WARN)
    return doc.Number(value="nothing", about="has to be ordered within the horizon", mood=doc.Mood.GOOD)


def _nothing(why_not: str) -> tuple[doc.Block, ...]:
    return (
        doc.Note(words=sentence(why_not, at_most=_TEXT)),
        doc.Note(
            words=(
                "A quarter's report is made on its first day by the job ", code("plan_capacity"), " from the asset ",
                code("daily_peaks"), ", what capacity.yaml and projects.yaml state, and the section ",
                code("capacity"), " of policy.yaml; and kept as it was.",
            )
        ),
        doc.Note(words=code("ops-pipelines capacity report")),
    )  # fmt: skip


def _whole(report: CapacityReport, served_as: str) -> tuple[doc.Block, ...]:
    forecast, plan = report.forecast, report.plan
    as_of = f"As of {forecast.as_of}, {clipped(forecast.timezone, at_most=60)}: days before it are known"
    as_json = (soft(" · "), link("the report as JSON", f"capacity.json?quarter={served_as}")) if served_as else ()
    changed = [each for each in forecast.outlooks if each.notes or each.treatment != "ordinary"]
    quiet = len(forecast.outlooks) - len(changed)
    ordinary = f"{quiet} series {'is' if quiet == 1 else 'are'} ordinary, with nothing to say."
    return doc.sections(
        doc.Note(words=(soft(as_of), *as_json)),
        doc.Items(items=_sentences(report.headline), is_headline=True),
        doc.Numbers(numbers=(_worst(plan), next_order(plan), _cost(plan), _coverage(report))),
        _under("What to order", order_table(plan)),
        _types(report),
        _under("What else could be done", alternative_table(plan)),
        _regret(plan),
        _resources(report),
        _under("Hardware that is due", refresh_table(plan)),
        _hindsight(report),
        _under("Planned projects", project_table(report.forecast)),
        _under("Teams, by the past alone", team_table(report.forecast)),
        _under("How series were treated", treatment_table(report.forecast)),
        doc.Note(words=soft(ordinary)),
        doc.Heading(text="What it rests on"),
        doc.Items(items=_sentences(report.assumptions), at_most=_LINES),
    )


def _under(title: str, *blocks: doc.Block) -> tuple[doc.Block, ...]:
    return doc.Heading(text=title), *blocks


def _sentences(texts: Sequence[str]) -> list[doc.Words]:
    return [sentence(each, at_most=_TEXT) for each in texts]


def _types(report: CapacityReport) -> tuple[doc.Block, ...]:
    found = type_sections(report)
    others = report.forecast.with_projects if len(found) > _TYPES_DRAWN else ()
    more = "; ".join(f"{type_name(each.key.gpu_type)}: {verdict_of(each, report)[0]}" for each in others[:_LINES])
    return doc.sections(
        doc.Heading(text="GPUs: what will be requested and what will be usable"),
        *found[:_TYPES_DRAWN],
        None if found else doc.Note(words="No type of GPU is known."),
        doc.Note(words=f"Not all are drawn: {more}") if more else None,
    )


def _regret(plan: CapacityPlan) -> tuple[doc.Block, ...]:
    tables = regret_tables(plan)
    if not tables:
        return _under(
            "Ordering too much or too little",
            doc.Note(words="Nothing was weighed: it needs something to order, and its price."),
        )
    currency = f", in {clipped(plan.currency, at_most=8)}" if plan.currency else ""
    about = (
        "Expected cost over the horizon of GPU-hours that are missing and of those that nobody uses"
        f"{currency}; in brackets how much more than the best number of nodes."
    )
    return _under("Ordering too much or too little", doc.Note(words=soft(about)), *tables)


def _resources(report: CapacityReport) -> tuple[doc.Block, ...]:
    drawn = resource_charts(report)[:_RESOURCES_DRAWN]
    outlooks = [each for each in report.forecast.outlooks if each.key.kind is not Resource.GPUS and each.weeks]
    return _under(
        "Storage, power, cooling, network", *drawn, ahead_table(outlooks, "What", empty="No peaks of these are known.")
    )


def _hindsight(report: CapacityReport) -> tuple[doc.Block, ...]:
    found = report.hindsight
    if found is None:
        return _under("How the last forecast did", doc.Note(words="Too little was known a quarter ago for a forecast."))
    afterwards = "Nothing was kept then: the forecast was made again from the days that were known."
    changes = doc.Items(items=_sentences(found.changes[:_LINES])) if found.changes else doc.Note(words="Nothing.")
    return (
        doc.Heading(text="How the last forecast did"),
        doc.Note(words=(_held_words(found), *(() if found.is_kept else (toned(f" {afterwards}", doc.Mood.WARN),)))),
        *hindsight_charts(report)[:_JUDGED_DRAWN],
        held_table(found),
        doc.Heading(text="What is different since then", level=3),
        changes,
    )


def _held_words(found: Hindsight) -> str:
    held = sum(each.is_held for each in found.bounds)
    ratio = "" if found.coverage_ratio is None else f": {numbers.percent(found.coverage_ratio, 0)}"
    return f"{held} of {len(found.bounds)} bounds of 90 % that {found.quarter} stated as of {found.as_of} held{ratio}."


# -- tiles --


def _worst(plan: CapacityPlan) -> doc.Number:
    worst = max(plan.short_weeks, key=lambda each: each.shortage_probability, default=None)
    if worst is None:
        return doc.Number(value=None, about="nothing is known of any week")
    return doc.Number(
        value=chance_of_short(worst.shortage_probability),
        about=f"chance of too few {type_name(worst.gpu_type)} in the worst week, from {worst.first_day}",
        mood=doc.Mood.BAD if worst.shortage_probability > plan.shortage_probability_max else doc.Mood.GOOD,
    )


def _cost(plan: CapacityPlan) -> doc.Number:
    wanted = [each for each in plan.orders if each.count]
    priced = [each.cents for each in wanted if each.cents is not None]
    without = len(wanted) - len(priced)
    if not wanted:
        return doc.Number(value=amount(Cents(0), plan.currency), about="for orders: there is nothing to order")
    if not priced:
        about = "what the orders cost: no price is stated"
        return doc.Number(value="not known", about=about, mood=doc.Mood.WARN)
    missing = f"; {without} of {len(wanted)} have no price and are not in it" if without else ""
    total = amount(Cents(sum(priced)), plan.currency)
    return doc.Number(value=total, about=f"for all that is to be ordered{missing}")


def _coverage(report: CapacityReport) -> doc.Number:
    hindsight = report.hindsight
    if hindsight is None or hindsight.coverage_ratio is None:
        return doc.Number(value="not known", about="how the last forecast did: no week of it is over")
    return doc.Number(
        value=numbers.percent(hindsight.coverage_ratio, 0),
        about=f"of {len(hindsight.bounds)} bounds of {hindsight.quarter} held; 90 % should",
        mood=doc.Mood.GOOD if hindsight.coverage_ratio >= 0.85 else doc.Mood.WARN,
    )


# -- what the commands show --


def forecast_document(forecast: CapacityForecast, *, shortage_probability_max: float) -> doc.Document:
    """Return the peaks ahead, week by week, and how series were treated."""
    has_types = len({each.key.gpu_type for each in forecast.with_projects}) > 1
    rows = _week_rows(forecast, limit=shortage_probability_max, has_types=has_types)
    limit = (
        f"above {shortage_probability_max:.0%} a week counts as short (!); widths are measured on the past for "
        f"{forecast.vouched_weeks} weeks ahead, and drawn on where a week has ~; --json has every week"
    )
    return doc.Document(
        title=f"Peaks ahead of {forecast.quarter}, as of {forecast.as_of}, {forecast.timezone}",
        cluster=forecast.cluster,
        about="the peaks of GPUs that are expected",
        blocks=doc.sections(
            doc.Table(
                key="weeks",
                columns=(
                    *((doc.Column(title="Type", kind=Kind.NAME),) if has_types else ()),
                    doc.Column(title="Week", kind=Kind.COUNT),
                    doc.Column(title="", key="width"),
                    doc.Column(title="From", kind=Kind.DAY),
                    doc.Column(title="Peak, median", key="peak_median", kind=Kind.GPUS),
                    doc.Column(title="90 %", key="peak_90", kind=Kind.GPUS),
                    doc.Column(title="Usable", kind=Kind.GPUS),
                    doc.Column(title="Installed", kind=Kind.GPUS),
                    doc.Column(title="Short", kind=Kind.RATIO),
                ),
                rows=rows,
                empty="nothing is known of GPUs: too few of their days are known",
                at_most=max(1, len(rows)),
            ),
            doc.Note(words=soft(limit)),
            treatment_table(forecast),
            doc.listed_under("Notes", forecast.notes, key="notes"),
        ),
        measures={"as_of": f"{forecast.as_of}, {forecast.timezone}", "vouched_weeks": forecast.vouched_weeks},
    )


def short_words(probability: float | None, *, limit: float) -> str:
    """Return how likely a week is short; a peak is reported between its outermost levels, not beyond them."""
    if probability is None:
        return "?"
    told = f"{probability:.0%}"
    if probability < LEVELS[0]:
        told = f"<{LEVELS[0]:.0%}"
    elif probability > LEVELS[-1]:
        told = f">{LEVELS[-1]:.0%}"
    return told if probability <= limit else f"{told} !"


def _week_rows(forecast: CapacityForecast, *, limit: float, has_types: bool) -> list[tuple[doc.Cell, ...]]:
    supply = {(each.gpu_type, each.first_day): each for each in forecast.supply}
    rows: list[tuple[doc.Cell, ...]] = []
    for outlook in forecast.with_projects:
        for number, week in enumerate(outlook.weeks, start=1):
            # The last one is there too: it says where all ends.
            if number not in _LISTED_WEEKS and number != len(outlook.weeks):
                continue
            there = supply.get((outlook.key.gpu_type, week.first_day))
            rows.append(
                (
                    *((type_name(outlook.key.gpu_type),) if has_types else ()),
                    number, "" if week.is_vouched else "~", week.first_day, round(week.at(0.5)),
                    round(week.at(0.9)), "?" if there is None else round(there.mean_gpus),
                    "?" if there is None else round(there.installed), short_words(chance_of(week, there), limit=limit),
                )
            )  # fmt: skip
    return rows


def plan_document(plan: CapacityPlan) -> doc.Document:
    """Return what to order with the reasons, what else could be done, what a wrong number costs, old hardware."""
    return doc.Document(
        title=f"Capacity plan {plan.quarter}, as of {plan.as_of}",
        cluster=plan.cluster,
        about="what to order by when, and what else could be done; it buys nothing",
        blocks=doc.sections(
            _under("What to order", order_table(plan)),
            _under("What else could be done", alternative_table(plan)) if plan.alternatives else None,
            _regret(plan) if plan.regret else None,
            _under("Hardware that is due", refresh_table(plan)) if plan.refresh else None,
            doc.listed_under("Notes", plan.notes, key="notes"),
        ),
        measures={"overdue_count": sum(each.is_overdue for each in plan.orders)},
    )


def headline_document(report: CapacityReport) -> doc.Document:
    """Return what a director must know, and what to order."""
    plan = report.plan
    return doc.Document(
        title=f"Capacity plan {plan.quarter}, as of {plan.as_of}",
        cluster=plan.cluster,
        about="in short",
        blocks=(
            doc.Items(items=_sentences(report.headline)),
            *_under("What to order", order_table(plan)),
            doc.Note(words=soft("--out DIR writes the whole report as a page and as JSON")),
        ),
    )


def backtest_document(found: Backtest, *, horizon_days: int) -> doc.Document:
    """Return measures by method, then those of each team."""
    low, high = found.interval or (0.0, 1.0)
    rows: list[tuple[doc.Cell, ...]] = [(name, *_measured(measured)) for name, measured in found.methods.items()]
    if found.rule.times is not None:
        rule = replace(found.pooled, mase=None, wql=None, bound_to_peak_ratio=found.rule.bound_to_peak_ratio)
        rows.append((f"highest of 4 weeks x {found.rule.times:.2f}", *_measured(rule)))
    rows += [(f"{each.team[:24]} ({each.treatment.value})", *_measured(each.measured)) for each in found.series]
    return doc.Document(
        title=f"windows of {horizon_days} days",
        cluster="",
        about="forecasts of peaks, judged on recorded demand",
        blocks=(
            table_of(
                (
                    ("Method or team", Kind.NAME), ("MASE", Kind.COUNT), ("WQL", Kind.COUNT), ("Held", Kind.RATIO),
                    ("Bound/peak", Kind.COUNT), ("Windows", Kind.COUNT),
                ),
                rows,
            ),
            doc.Note(
                words=soft(
                    "held: how often the 90 % bound held the window's peak; 95 % interval of combined: "
                    f"{low:.0%} to {high:.0%}; combined is what the program uses; the teams' rows are its too; the "
                    "highest of 4 weeks has the factor with which it would have held as often, chosen afterwards"
                )
            ),
        ),
    )  # fmt: skip


def _measured(measured: Measured) -> tuple[doc.Cell, ...]:
    def cell(value: float | None, form: str) -> str | None:
        return None if value is None else format(value, form)

    return (
        cell(measured.mase, ".2f"), cell(measured.wql, ".3f"), cell(measured.peak_coverage_90, ".0%"),
        cell(measured.bound_to_peak_ratio, ".2f"), measured.origins,
    )  # fmt: skip
