"""The page of a quarter's capacity: what to order by when on top, how sure that is below. Values in, HTML out.

A director reads the headline, the tiles and the orders; who audits it goes on to pictures, tables and assumptions. The
same page is kept as a file and printed: it needs no script, and nothing is folded away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.capacity.model import chance_of_short
from ops_pipelines.capacity.plan import CapacityPlan, CapacityReport
from ops_pipelines.core.money import Cents
from ops_pipelines.pages import capacity_tables as tables
from ops_pipelines.pages.capacity_pictures import hindsight_pictures, resource_pictures, type_sections
from ops_pipelines.pages.capacity_words import amount, sentence, type_name
from ops_pipelines.report.document import clipped
from ops_pipelines.report.html import render

_TYPES_DRAWN = 8
_RESOURCES_DRAWN = 12
_JUDGED_DRAWN = 3
_LINES = 60
_TEXT = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityMatter:
    """What the page is made from."""

    cluster: str
    quarter: str
    report: CapacityReport | None
    """None: none was kept; `why_not` says what makes one."""
    why_not: str = ""
    name: str = ""
    """Under which the report is kept; a check has its month in it. Empty: as the quarter."""
    quarters: Sequence[str] = ()
    """Names of reports to choose, newest first; none where the page is kept as a file."""
    is_served: bool = True
    """False: a file, which has no other page beside it."""
    now: datetime | None = None
    """None: a file; it says the day of its forecast alone, so that the same report gives the same page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityTile:
    """One number on top of the page."""

    value: str
    about: str
    mood: str = ""


def write_capacity(matter: CapacityMatter) -> str:
    """Return the page."""
    report = matter.report
    values: dict[str, object] = {
        "cluster": clipped(matter.cluster, at_most=80),
        "quarter": matter.quarter,
        "name": matter.name or matter.quarter,
        "quarters": matter.quarters,
        "is_served": matter.is_served,
        "why_not": sentence(matter.why_not, at_most=_TEXT),
        "now": matter.now,
        "report": report,
    }
    return render("capacity.html", values | ({} if report is None else _reported(report)))


def page_of(report: CapacityReport, *, name: str = "") -> bytes:
    """Return the page of a report as it is kept beside it under that name: the same for the same report."""
    forecast = report.forecast
    matter = CapacityMatter(
        cluster=forecast.cluster, quarter=forecast.quarter, report=report, name=name, is_served=False
    )
    return write_capacity(matter).encode("utf-8")


def next_order(plan: CapacityPlan) -> CapacityTile:
    """Return by when something must be ordered, and what."""
    dated = [(each.order_by, each) for each in plan.orders if each.order_by is not None and each.count]
    if dated:
        on, line = min(dated, key=lambda each: each[0])
        more = f", and {len(dated) - 1} more" if len(dated) > 1 else ""
        late = "overdue since then: " if line.is_overdue else ""
        about = f"{late}order {line.count} of {clipped(line.what, at_most=40)}{more}"
        return CapacityTile(value=on.isoformat(), about=about, mood="bad" if line.is_overdue else "warn")
    if any(each.short_from is not None for each in plan.orders):
        return CapacityTile(value="no date", about="something runs short, and no day to order is known", mood="warn")
    return CapacityTile(value="nothing", about="has to be ordered within the horizon", mood="good")


def _reported(report: CapacityReport) -> dict[str, object]:
    forecast, plan, hindsight = report.forecast, report.plan, report.hindsight
    types, resources, judged = type_sections(report), resource_pictures(report), hindsight_pictures(report)
    quiet = len(forecast.outlooks) - sum(bool(each.notes) or each.treatment != "ordinary" for each in forecast.outlooks)
    return {
        "as_of": forecast.as_of,
        "timezone": clipped(forecast.timezone, at_most=60),
        "headline": [sentence(each, at_most=_TEXT) for each in report.headline],
        "tiles": _tiles(report),
        "types": types[:_TYPES_DRAWN],
        "more_types": [f"{each.name}: {each.verdict}" for each in types[_TYPES_DRAWN:][:_LINES]],
        "orders": tables.order_table(plan),
        "alternatives": tables.alternative_table(plan),
        "regret": tables.regret_tables(plan),
        "resources": resources[:_RESOURCES_DRAWN],
        "resource_table": tables.resource_table(report),
        "refresh": tables.refresh_table(plan),
        "hindsight": hindsight,
        "held_count": 0 if hindsight is None else sum(each.is_held for each in hindsight.bounds),
        "judged": judged[:_JUDGED_DRAWN],
        "held": tables.held_table(report),
        "changes": [] if hindsight is None else [sentence(each, at_most=_TEXT) for each in hindsight.changes[:_LINES]],
        "projects": tables.project_table(report),
        "teams": tables.team_table(report),
        "treatments": tables.treatment_table(report),
        "quiet_count": quiet,
        "assumptions": [sentence(each, at_most=_TEXT) for each in report.assumptions[:_LINES]],
        "left_assumptions": max(0, len(report.assumptions) - _LINES),
        "limit": f"{100 * plan.shortage_probability_max:g} %",
        "currency": clipped(plan.currency, at_most=8),
    }


def _tiles(report: CapacityReport) -> tuple[CapacityTile, ...]:
    return _worst(report.plan), next_order(report.plan), _cost(report.plan), _coverage(report)


def _worst(plan: CapacityPlan) -> CapacityTile:
    worst = max(plan.short_weeks, key=lambda each: each.shortage_probability, default=None)
    if worst is None:
        return CapacityTile(value="-", about="nothing is known of any week")
    return CapacityTile(
        value=chance_of_short(worst.shortage_probability),
        about=f"chance of too few {type_name(worst.gpu_type)} in the worst week, from {worst.first_day}",
        mood="bad" if worst.shortage_probability > plan.shortage_probability_max else "good",
    )


def _cost(plan: CapacityPlan) -> CapacityTile:
    wanted = [each for each in plan.orders if each.count]
    priced = [each.cents for each in wanted if each.cents is not None]
    without = len(wanted) - len(priced)
    if not wanted:
        return CapacityTile(value=amount(Cents(0), plan.currency), about="for orders: there is nothing to order")
    if not priced:
        return CapacityTile(value="not known", about="what the orders cost: no price is stated", mood="warn")
    missing = f"; {without} of {len(wanted)} have no price and are not in it" if without else ""
    return CapacityTile(
        value=amount(Cents(sum(priced)), plan.currency), about=f"for all that is to be ordered{missing}"
    )


def _coverage(report: CapacityReport) -> CapacityTile:
    hindsight = report.hindsight
    if hindsight is None or hindsight.coverage_ratio is None:
        return CapacityTile(value="not known", about="how the last forecast did: no week of it is over")
    return CapacityTile(
        value=f"{100 * hindsight.coverage_ratio:.0f} %",
        about=f"of {len(hindsight.bounds)} bounds of {hindsight.quarter} held; 90 % should",
        mood="good" if hindsight.coverage_ratio >= 0.85 else "warn",
    )
