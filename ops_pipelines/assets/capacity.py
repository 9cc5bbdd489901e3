"""Group `capacity`, once a quarter: what peaks are expected, what will be usable, what to order by when. Buys nothing.

A partition is a quarter of the cluster's zone, by its first day, and is made from the days before it. The first report
of a quarter is kept as it is; made again as of a later day it is a check, kept beside the first.
"""

from collections.abc import Iterator
from datetime import date

import dagster as dg
from pydantic import Field

from ops_pipelines.assets.capacity_pages import describe_forecast, describe_report
from ops_pipelines.assets.hours import POOL
from ops_pipelines.assets.partitions import QUARTERS
from ops_pipelines.capacity.model import CapacityForecast, CapacityPlan, quarter_of
from ops_pipelines.capacity.past import Completeness
from ops_pipelines.report.metadata import table
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
