"""What the pages of a quarter's forecast and plan show: small pictures, tables, and the headline. Computes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import dagster as dg

from ops_pipelines.capacity.model import (
    LEVELS,
    CapacityForecast,
    CapacityPlan,
    CapacityReport,
    SeriesOutlook,
    ShortWeek,
    chance_of_short,
)
from ops_pipelines.capacity.past import Completeness
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report.markdown import escape_markdown
from ops_pipelines.report.metadata import metadata_of, table
from ops_pipelines.teams.desk import TeamsDesk

_HEADLINE_AT_MOST = 850
"""Characters that the UI shows in place, and a little room."""


def describe_forecast(
    forecast: CapacityForecast, completeness: Completeness, *, desk: TeamsDesk
) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of the forecast shows."""
    from ops_pipelines.capacity.report import forecast_document
    from ops_pipelines.capacity.tables import project_table

    limit = desk.capacity_policy.shortage_probability_max
    document = forecast_document(forecast, shortage_probability_max=limit)
    return {
        **{f"peaks_{_key(each)}": _picture(each) for each in forecast.with_projects if each.weeks},
        **metadata_of(replace(document, blocks=(*document.blocks, project_table(forecast)))),
        "days_known": dg.MetadataValue.text(f"{completeness.known} of the last {completeness.expected}"),
    }


def describe_report(report: CapacityReport) -> Mapping[str, dg.MetadataValue]:
    """Return what the page of the plan shows."""
    from ops_pipelines.capacity.report import plan_document

    plan, hindsight = report.plan, report.hindsight
    shown: dict[str, dg.MetadataValue] = {
        "headline": dg.MetadataValue.md(_headline(report.headline)),
        **_shortage_pictures(plan.short_weeks),
        **metadata_of(plan_document(plan)),
        "shortage": table(_shortage(plan)),
    }
    if hindsight is not None:
        held = sum(each.is_held for each in hindsight.bounds)
        shown["last_forecast"] = dg.MetadataValue.text(
            f"{hindsight.quarter}: {held} of {len(hindsight.bounds)} bounds of 90 % held"
            + ("" if hindsight.is_kept else "; made afterwards, none was kept")
        )
        shown["changes"] = table({"change": each} for each in hindsight.changes)
    return shown


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


def _key(outlook: SeriesOutlook) -> str:
    return _word(outlook.key.gpu_type)


def _word(gpu_type: GpuType) -> str:
    """Return a type of GPU as a part of a metadata key."""
    return "".join(char if char.isalnum() else "_" for char in gpu_type) or "gpus"
