"""Reports of quarters as they are kept, how the quarter before was forecast, and what is different now.

A forecast is judged later by what it said then, so the first is never written over; what is made of the quarter again
is kept beside it under the month of its day, as 2026Q4-check-2026-11. JSON, as `document` has it.

What was kept then is judged. Where nothing was kept, the forecast is made now from the days before that quarter alone,
as it would have been; what a site states (projects, arrivals) is that of now, and the report says so.
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from ops_pipelines.capacity.document import json_of, report_in
from ops_pipelines.capacity.forecasting import forecast_from, plan_from
from ops_pipelines.capacity.model import Resource, SeriesKey, SeriesOutlook, first_day_of, quarter_before
from ops_pipelines.capacity.past import NoHistory, Past, read_past
from ops_pipelines.capacity.plan import BoundHeld, CapacityForecast, CapacityPlan, CapacityReport, Hindsight, OrderLine
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.record import StatementFiles, StatementFilesError
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.projects import PlannedProject

# -- reports of quarters as they are kept --


def keep_report(desk: TeamsDesk, report: CapacityReport) -> str:
    """Keep a report, as the quarter's if it is the first, and return where it lies; empty: nothing is kept here.

    Raises StatementFilesError.
    """
    if desk.plan_files is None:
        return ""
    return desk.plan_files.keep(f"{kept_as(desk, report)}.json", json_of(report))


def keep_page(desk: TeamsDesk, page: bytes, *, name: str) -> str:
    """Keep a report's page under the name of the report, and return where it lies; empty: nothing is kept here.

    Raises StatementFilesError.
    """
    return "" if desk.plan_files is None else desk.plan_files.keep(f"{name}.html", page)


def kept_as(desk: TeamsDesk, report: CapacityReport) -> str:
    """Return the name that a report gets, without its kind: that of the quarter if it is the first one, or the same.

    Raises StatementFilesError.
    """
    quarter = report.forecast.quarter
    content = None if desk.plan_files is None else desk.plan_files.read(f"{quarter}.json")
    if content is None or content == json_of(report):
        return quarter
    return f"{quarter}-check-{report.forecast.as_of:%Y-%m}"


def kept_report(desk: TeamsDesk, quarter: str) -> CapacityReport | None:
    """Return the report that was kept of a quarter; None: none was.

    Raises StatementFilesError, also where it cannot be read; ValueError where the name is of no quarter.
    """
    first_day_of(quarter)
    return None if desk.plan_files is None else _read(desk.plan_files, f"{quarter}.json")


def kept_check(desk: TeamsDesk, quarter: str, *, month: date) -> CapacityReport | None:
    """Return the check of a quarter that was made as of a day of that month; None: none was. Raises as above."""
    first_day_of(quarter)
    return None if desk.plan_files is None else _read(desk.plan_files, f"{quarter}-check-{month:%Y-%m}.json")


def _read(files: StatementFiles, name: str) -> CapacityReport | None:
    content = files.read(name)
    if content is None:
        return None
    try:
        return report_in(content)
    except ValueError as problem:
        raise StatementFilesError(
            f"the capacity report {name} cannot be read: {problem}. Move it away, and make the quarter anew."
        ) from problem


# -- how the quarter before was forecast --


FORECAST = tuple(each for each in Resource if each not in (Resource.GPUS_OUT, Resource.GPUS_STRANDED))
"""What is forecast by itself; what is out or stranded belongs to supply."""
_BOUND = 0.9
_WEEK_DAYS = 7


def look_back(
    desk: TeamsDesk, past: Past, *, forecast: CapacityForecast, plan: CapacityPlan
) -> tuple[Hindsight | None, tuple[str, ...]]:
    """Return how the quarter before did, and notes; nothing where too little was known then.

    Raises LakeError, LedgerError, StatementFilesError.
    """
    quarter = quarter_before(forecast.quarter)
    kept = kept_report(desk, quarter)
    notes: tuple[str, ...] = ()
    if kept is not None:
        before, plan_before = kept.forecast, kept.plan
    else:
        try:
            then = read_past(desk, as_of=first_day_of(quarter))
        except NoHistory as problem:
            return None, (f"nothing is said of how the last forecast did: {problem}",)
        before = forecast_from(desk, then)
        plan_before = plan_from(desk, before, then)
        notes = (
            f"no report of {quarter} was kept: its forecast is made now from the days before {before.as_of} alone, "
            "with the projects, arrivals and prices that are stated now",
        )
    bounds = judge_bounds(before, past)
    return (
        Hindsight(
            quarter=quarter,
            as_of=before.as_of,
            is_kept=kept is not None,
            bounds=bounds,
            coverage_ratio=sum(each.is_held for each in bounds) / len(bounds) if bounds else None,
            changes=tell_changes(before, plan_before, forecast=forecast, plan=plan),
        ),
        notes,
    )


def judge_bounds(before: CapacityForecast, past: Past) -> tuple[BoundHeld, ...]:
    """Return what an earlier forecast said of each week that is over and known on all its days, and what came.

    Of all teams' GPUs the fan is judged, with projects: that is what was planned by.
    """
    peaks = past.recorded.weekly_peaks(anchor=before.as_of, resources=FORECAST, least_days=_WEEK_DAYS)
    return tuple(
        BoundHeld(
            key=outlook.key,
            first_day=week.first_day,
            lead_weeks=number,
            median=week.at(0.5),
            bound_90=week.at(_BOUND),
            peak=came[week.first_day],
        )
        for outlook in sorted(_judged(before), key=lambda each: each.key)
        for came in [dict(peaks.get(outlook.key, ()))]
        for number, week in enumerate(outlook.weeks, start=1)
        if week.first_day in came
    )


def _judged(before: CapacityForecast) -> Iterable[SeriesOutlook]:
    fans = {each.key for each in before.with_projects}
    return (*before.with_projects, *(each for each in before.outlooks if each.key not in fans))


def tell_changes(
    before: CapacityForecast, plan_before: CapacityPlan, *, forecast: CapacityForecast, plan: CapacityPlan
) -> tuple[str, ...]:
    """Return in words what is different: orders, projects, what is installed."""
    return (
        *_order_changes(plan_before.orders, plan.orders),
        *_project_changes(before.projects, forecast.projects),
        *_supply_changes(before, forecast),
    )


def _order_changes(before: Iterable[OrderLine], now: Iterable[OrderLine]) -> Iterable[str]:
    was: Mapping[SeriesKey, OrderLine] = {each.series: each for each in before}
    present = {each.series: each for each in now}
    for key in sorted({*was, *present}):
        old, new = was.get(key), present.get(key)
        # A type that is not short has a line, too: it orders nothing.
        old, new = (each if each is not None and each.short_from is not None else None for each in (old, new))
        if old is None and new is not None:
            yield f"{new.what} runs short from {new.short_from} on; the plan before had it enough within its horizon"
        elif old is not None and new is None:
            yield f"{old.what} is no longer short within the horizon; the plan before said from {old.short_from} on"
        elif old is not None and new is not None:
            if old.order_by != new.order_by:
                yield f"{new.what}: order by {_day(new.order_by)}; the plan before said {_day(old.order_by)}"
            if old.short_from != new.short_from:
                yield f"{new.what} is short from {new.short_from}; the plan before said {old.short_from}"
            if old.count != new.count:
                yield f"{new.what}: {new.count} are needed; the plan before said {old.count}"


def _day(day: date | None) -> str:
    return "no date" if day is None else str(day)


def _project_changes(before: Iterable[PlannedProject], now: Iterable[PlannedProject]) -> Iterable[str]:
    was = {(each.team, each.name, each.gpu_type): each for each in before}
    present = {(each.team, each.name, each.gpu_type): each for each in now}
    for key in sorted({*was, *present}):
        old, new = was.get(key), present.get(key)
        if old is None and new is not None:
            yield f"{new.words} is new: {new.gpus:g} GPUs from {new.starts_on} with {100 * new.probability:.0f} %"
        elif old is not None and new is None:
            yield f"{old.words} is no longer planned: it wanted {old.gpus:g} GPUs from {old.starts_on}"
        elif old is not None and new is not None and old != new:
            yield f"{new.words} is planned otherwise: {_differences(old, new)}"


def _differences(old: PlannedProject, new: PlannedProject) -> str:
    words = []
    if old.gpus != new.gpus:
        words.append(f"{new.gpus:g} GPUs, before {old.gpus:g}")
    if old.starts_on != new.starts_on:
        words.append(f"from {new.starts_on}, before from {old.starts_on}")
    if old.ends_on != new.ends_on:
        words.append(f"until {new.ends_on or 'no known end'}, before until {old.ends_on or 'no known end'}")
    if old.ramp_days != new.ramp_days:
        words.append(f"in {new.ramp_days} days, before in {old.ramp_days}")
    if old.probability != new.probability:
        words.append(f"with {100 * new.probability:.0f} %, before {100 * old.probability:.0f} %")
    return "; ".join(words)


def _supply_changes(before: CapacityForecast, now: CapacityForecast) -> Iterable[str]:
    """Yield what was expected to be installed in the present week, where it is something else."""
    present = {each.gpu_type: each for each in now.supply if each.first_day == now.as_of}
    expected: dict[GpuType, float] = {}
    for week in before.supply:
        if week.first_day <= now.as_of < week.first_day + timedelta(days=_WEEK_DAYS):
            expected[week.gpu_type] = week.installed
    for gpu_type in sorted({*present, *expected}):
        is_there = round(present[gpu_type].installed) if gpu_type in present else 0
        was = round(expected.get(gpu_type, 0.0))
        if is_there != was:
            yield f"{gpu_type or 'all'}: {is_there} GPUs are installed; the forecast before expected {was}"
