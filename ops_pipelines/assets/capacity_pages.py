"""What the pages of a quarter's forecast and plan show: small pictures, tables, and the headline. Computes nothing."""

from collections.abc import Iterator, Mapping

import dagster as dg

from ops_pipelines.capacity.model import LEVELS, SeriesOutlook, chance_of_short
from ops_pipelines.capacity.past import Completeness
from ops_pipelines.capacity.plan import CapacityForecast, CapacityPlan, CapacityReport, ShortWeek
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report.markdown import escape_markdown
from ops_pipelines.report.metadata import count, table

_SHOWN_WEEKS = (1, 2, 4, 8, 13, 26, 39, 52)
_HEADLINE_AT_MOST = 850
"""Characters that the UI shows in place, and a little room."""


def describe_forecast(forecast: CapacityForecast, completeness: Completeness) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of the forecast shows."""
    shown: dict[str, dg.MetadataValue] = {
        "as_of": dg.MetadataValue.text(f"{forecast.as_of}, {forecast.timezone}"),
        **{f"peaks_{_key(each)}": _picture(each) for each in forecast.with_projects if each.weeks},
        "weeks": table(_weeks(forecast)),
        "vouched_weeks": dg.MetadataValue.int(forecast.vouched_weeks),
        "days_known": dg.MetadataValue.text(f"{completeness.known} of the last {completeness.expected}"),
        "treatments": table(
            {
                "resource": each.key.resource,
                "type": each.key.gpu_type,
                "name": each.key.name or "(all)",
                "treated_as": each.treatment.replace("_", " "),
                "notes": "; ".join(each.notes),
            }
            for each in sorted(forecast.outlooks, key=lambda each: (not each.notes, each.key))
        ),
        "projects": table(
            {
                "project": each.name,
                "team": each.team,
                "type": each.gpu_type or "all",
                "gpus": each.gpus,
                "from": each.starts_on.isoformat(),
                "until": "" if each.ends_on is None else each.ends_on.isoformat(),
                "probability": each.probability,
            }
            for each in forecast.projects
        ),
        "notes": table({"note": each} for each in forecast.notes),
    }
    return shown


def describe_report(report: CapacityReport) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of the plan shows."""
    plan, hindsight = report.plan, report.hindsight
    shown: dict[str, dg.MetadataValue] = {
        "headline": dg.MetadataValue.md(_headline(report.headline)),
        **_shortage_pictures(plan.short_weeks),
        "orders": table(
            {
                "what": each.what,
                "count": each.count,
                "order_by": "no date" if each.order_by is None else each.order_by.isoformat(),
                "overdue": "yes" if each.is_overdue else "",
                "short_from": "" if each.short_from is None else each.short_from.isoformat(),
                "in_service_if_ordered_now": "" if each.earliest_relief is None else each.earliest_relief.isoformat(),
                "cost": _money(each.cents, plan.currency),
                "why": each.why,
            }
            for each in plan.orders
        ),
        "overdue_count": count([each for each in plan.orders if each.is_overdue]),
        "shortage": table(_shortage(plan)),
        "alternatives": table(
            {
                "type": each.gpu_type or "all",
                "way": each.way.value,
                "gpus": each.gpus,
                "worst_probability": chance_of_short(each.worst_shortage_probability),
                "short_gpu_hours": each.short_gpu_hours,
                "cost": _money(each.cents, plan.currency),
                "from": "" if each.takes_effect_on is None else each.takes_effect_on.isoformat(),
                "said": each.said,
            }
            for each in plan.alternatives
        ),
        "refresh": table(
            {"asset": each.asset, "gpus": each.gpus, "due": "yes" if each.is_due else "", "said": each.said}
            for each in plan.refresh
        ),
        "notes": table({"note": each} for each in plan.notes),
    }
    if hindsight is not None:
        held = sum(each.is_held for each in hindsight.bounds)
        shown["last_forecast"] = dg.MetadataValue.text(
            f"{hindsight.quarter}: {held} of {len(hindsight.bounds)} bounds of 90 % held"
            + ("" if hindsight.is_kept else "; made afterwards, none was kept")
        )
        shown["changes"] = table({"change": each} for each in hindsight.changes)
    return shown


def _weeks(forecast: CapacityForecast) -> Iterator[Mapping[str, object]]:
    supply = {(each.gpu_type, each.first_day): each for each in forecast.supply}
    for outlook in forecast.with_projects:
        for number in _SHOWN_WEEKS:
            if number > len(outlook.weeks):
                break
            week = outlook.weeks[number - 1]
            usable = supply.get((outlook.key.gpu_type, week.first_day))
            yield {
                "type": outlook.key.gpu_type or "all",
                "week": number,
                "from": week.first_day.isoformat(),
                "peak_median": week.at(0.5),
                "peak_90": week.at(0.9),
                "usable": "not known" if usable is None else f"{usable.mean_gpus:.0f}",
                "installed": "not known" if usable is None else f"{usable.installed:.0f}",
                "width": "measured" if week.is_vouched else "drawn on",
            }


def _shortage(plan: CapacityPlan) -> Iterator[Mapping[str, object]]:
    """Yield the worst week of each month and type: a year of weeks is more than a table shows."""
    worst: dict[tuple[GpuType, str], ShortWeek] = {}
    for each in plan.short_weeks:
        key = each.gpu_type, f"{each.first_day:%Y-%m}"
        if key not in worst or each.shortage_probability > worst[key].shortage_probability:
            worst[key] = each
    for (gpu_type, month), each in worst.items():
        yield {
            "type": gpu_type or "all",
            "month": month,
            "worst_week": each.first_day.isoformat(),
            "probability": chance_of_short(each.shortage_probability),
            "short_gpus": each.expected_short_gpus,
            "short_gpu_hours": each.expected_short_gpu_hours,
            "above_limit": "yes" if each.shortage_probability > plan.shortage_probability_max else "",
        }


def _shortage_pictures(weeks: tuple[ShortWeek, ...]) -> Mapping[str, dg.MetadataValue]:
    from ops_pipelines.report.pictures.hours import sparkline

    by_type: dict[GpuType, list[float]] = {}
    for each in weeks:
        # Beyond the outermost levels of a peak nothing is told apart: no week is surely short.
        told = min(max(each.shortage_probability, LEVELS[0]), LEVELS[-1])
        by_type.setdefault(each.gpu_type, []).append(told)
    return {
        f"shortage_{_word(gpu_type)}": dg.MetadataValue.md(
            sparkline(chances, title=f"Weeks short of {gpu_type or 'GPUs'}", unit="%")
        )
        for gpu_type, chances in by_type.items()
    }


def _picture(outlook: SeriesOutlook) -> dg.MetadataValue:
    from ops_pipelines.report.pictures.hours import sparkline

    title = f"Peaks of {outlook.key.gpu_type or 'GPUs'} by week, bound of 90 %"
    return dg.MetadataValue.md(sparkline([each.at(0.9) for each in outlook.weeks], title=title, unit="GPUs"))


def _headline(sentences: tuple[str, ...]) -> str:
    """Return as many sentences as the UI shows in place; the page has all."""
    lines: list[str] = []
    for each in sentences:
        lines.append(f"- {escape_markdown(each)}")
        if len("\n".join(lines)) > _HEADLINE_AT_MOST:
            return "\n".join([*lines[:-1], "- more on the page"]) if len(lines) > 1 else lines[0][:_HEADLINE_AT_MOST]
    return "\n".join(lines)


def _money(cents: int | None, currency: str) -> str:
    from ops_pipelines.core.money import Cents, show_cents

    return "not known" if cents is None else f"{show_cents(Cents(cents))} {currency}".strip()


def _key(outlook: SeriesOutlook) -> str:
    return _word(outlook.key.gpu_type)


def _word(gpu_type: GpuType) -> str:
    """Return a type of GPU as a part of a metadata key."""
    return "".join(char if char.isalnum() else "_" for char in gpu_type) or "gpus"
