"""Group `capacity`: peaks of each day; each quarter what is expected, what will be usable, what to order by when.

Quarters are forecast from the daily peaks. A partition is a local day, or a quarter of the cluster's zone by its first
day, made from the days before it. The first report of a quarter is kept as it is; made again as of a later day it is a
check, kept beside the first. Buys nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import dagster as dg
from pydantic import Field

from ops_pipelines.assets.hours import DAYS, IN_ONE_RUN, POOL, QUARTERS
from ops_pipelines.capacity.model import (
    LEVELS,
    CapacityForecast,
    CapacityPlan,
    CapacityReport,
    SeriesOutlook,
    ShortWeek,
    chance_of_short,
    quarter_of,
)
from ops_pipelines.capacity.past import Completeness, DaySummed, keep_day, sum_day
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report.metadata import metadata_of, table
from ops_pipelines.report.numbers import escape_markdown
from ops_pipelines.teams.desk import TeamsDesk

GROUP = "capacity"
_COMPLETE = "inputs_complete"


class CapacityConfig(dg.Config):
    """As of which day the quarter is forecast."""

    as_of: str = Field(
        default="",
        pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$",
        description="A local day of the quarter, as 2026-11-01: days before it are known. Empty: its first day.",
    )


@dg.asset(
    group_name=GROUP,
    deps=["daily_peaks"],
    partitions_def=QUARTERS,
    pool=POOL,
    code_version="1",
    check_specs=[
        dg.AssetCheckSpec(
            name=_COMPLETE,
            asset="capacity_forecast",
            blocking=True,
            description="At least nine of ten days of the last four weeks are known. No plan follows from fewer.",
        )
    ],
)
def capacity_forecast(
    context: dg.AssetExecutionContext, config: CapacityConfig, teams_desk: dg.ResourceParam[TeamsDesk]
) -> Iterator[dg.Output[CapacityForecast] | dg.AssetCheckResult]:
    """Peaks by week for a year ahead, with planned projects, and what will be usable; how sure both are."""
    from ops_pipelines.capacity.forecasting import forecast_from
    from ops_pipelines.capacity.past import catch_up, read_past

    as_of = day_of(context.partition_key, config)
    for day in catch_up(teams_desk, as_of=as_of):
        context.log.info("peaks of %s were not counted yet, and are now", day)
    past = read_past(teams_desk, as_of=as_of)
    forecast = forecast_from(teams_desk, past)
    for note in forecast.notes:
        context.log.info("forecast: %s", note)
    yield dg.Output(forecast, metadata=dict(describe_forecast(forecast, past.completeness, desk=teams_desk)))
    yield prove_complete(past.completeness)


@dg.asset(group_name=GROUP, partitions_def=QUARTERS, kinds={"json"}, pool=POOL, code_version="1")
def capacity_plan(
    context: dg.AssetExecutionContext, capacity_forecast: CapacityForecast, teams_desk: dg.ResourceParam[TeamsDesk]
) -> dg.Output[CapacityPlan]:
    """What runs short when, what to order by when, what else could be done; kept as the quarter's report."""
    from ops_pipelines.capacity.forecasting import plan_quarter
    from ops_pipelines.capacity.report import kept_document
    from ops_pipelines.capacity.reporting import (
        keep_page,
        keep_report,
        kept_as,
        kept_report,
        report_on,
        warn_of_changes,
    )
    from ops_pipelines.report.html import page_of

    plan = plan_quarter(teams_desk, capacity_forecast)
    report = report_on(teams_desk, forecast=capacity_forecast, plan=plan)
    first = kept_report(teams_desk, plan.quarter)
    name = kept_as(teams_desk, report)
    place = keep_report(teams_desk, report)
    page = keep_page(teams_desk, page_of(kept_document(report, name=name)).encode("utf-8"), name=name)
    warnings = () if first is None else warn_of_changes(first, report)
    for warning in warnings:
        context.log.warning("capacity: %s", warning)
    for note in plan.notes:
        context.log.info("plan: %s", note)
    metadata = dict(describe_report(report))
    if first is not None:
        metadata["changed_since_first_report"] = table({"warning": each} for each in warnings)
    if place:
        metadata |= {"kept_as": dg.MetadataValue.text(name), "report": dg.MetadataValue.path(place)}
        metadata["page"] = dg.MetadataValue.path(page)
    if teams_desk.cluster.pages_url:
        address = f"{teams_desk.cluster.pages_url}/capacity?quarter={name}"
        metadata["page_in_browser"] = dg.MetadataValue.url(address)
    return dg.Output(plan, metadata=metadata)


def day_of(key: str, config: CapacityConfig) -> date:
    """Return the day as of which a quarter is forecast. Raises dg.Failure where it is none of the quarter."""
    first = date.fromisoformat(key)
    if not config.as_of:
        return first
    try:
        as_of = date.fromisoformat(config.as_of)
    except ValueError as problem:
        raise dg.Failure(f"as_of is {config.as_of!r}, which is no day: {problem}") from problem
    if quarter_of(as_of) != quarter_of(first):
        raise dg.Failure(f"as_of is {as_of}, which is not in {quarter_of(first)}; launch the quarter that it is in")
    return as_of


def prove_complete(found: Completeness) -> dg.AssetCheckResult:
    """Say whether enough of the last four weeks is known for orders to follow from it."""
    return dg.AssetCheckResult(
        check_name=_COMPLETE,
        passed=found.is_enough,
        description=(
            f"{found.known} of the last {found.expected} days are known, {100 * found.known_ratio:.0f} %."
            + ("" if found.is_enough else " Materialise daily_peaks of the others first.")
        ),
        metadata={
            "known_ratio": dg.MetadataValue.float(round(found.known_ratio, 3)),
            "missing": table({"day": each.isoformat()} for each in found.missing),
        },
    )


@dg.asset(
    group_name=GROUP,
    kinds={"parquet"},
    deps=[
        *("gpu_demand", "inventory", "job_accounting", "job_allocations", "storage_telemetry", "node_telemetry"),
        *("fabric_telemetry", "facility_telemetry"),
    ],
    partitions_def=DAYS,
    code_version="1",
    **IN_ONE_RUN,
)
def daily_peaks(context: dg.AssetExecutionContext, teams_desk: dg.ResourceParam[TeamsDesk]) -> dg.Output[None]:
    """Peaks of a local day: GPUs by team and type, what was out, storage, links, racks and the room."""
    for day in _days(context):
        summed = sum_day(teams_desk, day=day)
        kept = keep_day(teams_desk, summed)
        context.log.info("peaks of %s: %d rows", day, kept)
        for note in summed.notes:
            context.log.info("%s: %s", day, note)
    return dg.Output(None, metadata=_shown_peaks(summed))


def _days(context: dg.AssetExecutionContext) -> list[date]:
    """Return the local days of the run: partitions carry their names."""
    window = context.partition_time_window
    since, until = (each.astimezone(UTC).date() for each in (window.start, window.end))
    return [since + timedelta(days=number) for number in range((until - since).days)]


def _shown_peaks(summed: DaySummed) -> Mapping[str, dg.MetadataValue]:
    at: datetime = summed.at
    return {
        "day": dg.MetadataValue.text(
            f"{summed.day}, {summed.hour_count} hours from {at:%Y-%m-%d %H:%M} UTC on, {summed.zone}"
        ),
        "row_count": dg.MetadataValue.int(summed.rows.num_rows),
        "peaks": table(_line(row) for row in summed.shown),
        "missing": table({"resource": each.value} for each in summed.missing),
        "notes": table({"note": each} for each in summed.notes),
    }


def _line(row: Mapping[str, object]) -> dict[str, object]:
    names = ("resource", "gpu_type", "name", "peak", "mean", "limit", "unit", "hour_count", "near_peak_hours")
    return {name: "not known" if row[name] is None else row[name] for name in names}


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
        # Beyond the outermost levels of a peak nothing is distinguished: no week is surely short.
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
