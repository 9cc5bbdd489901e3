"""The report of a quarter: made, kept, and compared with the forecast of the quarter before.

A forecast is judged later by what it stated then, so the first is never overwritten; another report of the same quarter
is kept beside it under its month, as 2026Q4-check-2026-11. JSON as `answers` has it.

Where nothing was kept of the quarter before, its forecast is made now from the days before it alone; what a site states
(projects, arrivals) is that of now, and the report says so.
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from ops_pipelines.capacity.answers import json_of, report_in
from ops_pipelines.capacity.forecasting import forecast_from, plan_from
from ops_pipelines.capacity.model import (
    BoundHeld,
    CapacityForecast,
    CapacityPlan,
    CapacityReport,
    Hindsight,
    OrderLine,
    Resource,
    SeriesKey,
    SeriesOutlook,
    first_day_of,
    quarter_before,
)
from ops_pipelines.capacity.past import NoHistory, Past, read_past
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.record import StatementFiles, StatementFilesError
from ops_pipelines.report.numbers import counted
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.projects import CapacityPolicy, PlannedProject

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


def _read(files: StatementFiles, name: str) -> CapacityReport | None:
    content = files.read(name)
    if content is None:
        return None
    try:
        return report_in(content)
    except ValueError as problem:
        raise StatementFilesError(
            f"the capacity report {name} cannot be read: {problem}. Move it away, and make the quarter again."
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
            return None, (f"how the last forecast did is not known: {problem}",)
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
    """Return what an earlier forecast stated of each week that is over and known on all its days, and what came.

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
            yield f"{old.what} is no longer short within the horizon; the plan before stated from {old.short_from} on"
        elif old is not None and new is not None:
            if old.order_by != new.order_by:
                yield f"{new.what}: order by {_day(new.order_by)}; the plan before stated {_day(old.order_by)}"
            if old.short_from != new.short_from:
                yield f"{new.what} is short from {new.short_from}; the plan before stated {old.short_from}"
            if old.count != new.count:
                yield f"{new.what}: {new.count} are needed; the plan before stated {old.count}"


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
            yield f"{old.words} is no longer planned: it requested {old.gpus:g} GPUs from {old.starts_on}"
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


# -- what a director must know of a quarter, in at most four sentences --


_NAMED_AT_MOST = 2
_NAME_LENGTH = 40


def headline_of(
    forecast: CapacityForecast, plan: CapacityPlan, hindsight: Hindsight | None, *, policy: CapacityPolicy
) -> tuple[str, ...]:
    """Return what to order by when, how sure that is, how the last forecast did, and what is not known."""
    return (
        _orders(forecast, plan),
        _sureness(forecast, plan, policy),
        _last_one(hindsight),
        _unknown(forecast, plan),
    )


def assumptions_of(
    forecast: CapacityForecast, plan: CapacityPlan, *, policy: CapacityPolicy, notes: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what the report rests on: the policy, the model, and each note that was made on the way."""
    return tuple(
        dict.fromkeys(
            (
                f"a week counts as short where its peak exceeds what is usable with more than "
                f"{100 * policy.shortage_probability_max:g} %, and so {policy.least_short_weeks} of the four weeks "
                "from it on",
                f"an order must be there in time with {100 * policy.lead_time_quantile:g} %; the horizon is "
                f"{policy.horizon_weeks} weeks from {forecast.as_of} in {forecast.timezone}",
                "demand and supply are taken as independent, as are planned projects of each other",
                f"the width of peaks is measured on past weeks up to {forecast.vouched_weeks} weeks ahead; further "
                "ahead it is drawn on by a stated rule (docs/FORECAST.md)",
                "what may wait is taken to be what did wait in the last 13 weeks",
                *notes,
                *plan.notes,
                *forecast.notes,
            )
        )
    )


def _orders(forecast: CapacityForecast, plan: CapacityPlan) -> str:
    short = [each for each in plan.orders if each.short_from is not None]
    unjudged = _unjudged(forecast, plan)
    if not short:
        if unjudged:
            return f"Whether anything has to be ordered is not known: of {unjudged} too little is known."
        weeks = len({each.first_day for each in forecast.supply})
        return f"Nothing has to be ordered: no limit is passed within {weeks} weeks."
    told = [_order(each) for each in short[:_NAMED_AT_MOST]]
    more = len(short) - _NAMED_AT_MOST
    if more > 0:
        told.append(f"{more} more in the table")
    if unjudged:
        told.append(f"of {unjudged} too little is known to tell")
    sentence = "; ".join(told)
    # A name stays as it is written, also at the beginning.
    return f"O{sentence[1:]}." if sentence.startswith("order ") else f"{sentence}."


def _unjudged(forecast: CapacityForecast, plan: CapacityPlan) -> str:
    """Return which types of GPU are requested or installed and have no week that was judged; empty: none."""
    judged = {each.gpu_type for each in plan.short_weeks}
    wanted = {each.key.gpu_type for each in forecast.outlooks if each.key.kind is Resource.GPUS}
    missing = sorted({*wanted, *(each.gpu_type for each in forecast.supply)} - judged)
    if len(missing) > _NAMED_AT_MOST:
        return f"{len(missing)} types of GPU"
    return " and ".join((each or "GPUs")[:_NAME_LENGTH] for each in missing)


def _order(line: OrderLine) -> str:
    if line.order_by is None:
        return f"{line.what} runs short from {line.short_from} on, and no date to order can be named"
    if not line.count and line.cents is None:
        return f"{line.what} runs short from {line.short_from} on, and no number that could be ordered is enough"
    if not line.count:
        return f"{line.what} runs short from {line.short_from} on, and what comes anyway is enough after it"
    unit = "step" if line.gpu_type is None else "node"
    what = f"order {counted(line.count, unit)} of {line.what}"
    if line.is_overdue:
        relief = f", which helps from {line.earliest_relief} on" if line.earliest_relief else ""
        return (
            f"{what} at once{relief}: it runs short from {line.short_from} on, and the day for it was {line.order_by}"
        )
    return f"{what} by {line.order_by}: it runs short from {line.short_from} on"


def _sureness(forecast: CapacityForecast, plan: CapacityPlan, policy: CapacityPolicy) -> str:
    weeks = len({each.first_day for each in forecast.supply})
    vouched = min(forecast.vouched_weeks, weeks)
    rest = weeks - vouched
    further = f", for the {rest} week{'s' if rest > 1 else ''} after that it is drawn on" if rest > 0 else ""
    dated = [each for each in plan.orders if each.short_from is not None and each.order_by is not None]
    late = sum(each.is_overdue for each in dated)
    missed = f" where they are met, and {late} of {len(dated)} {'has' if late == 1 else 'have'} passed" if late else ""
    return (
        f"Dates keep the risk of a short week at {100 * policy.shortage_probability_max:g} % or less{missed}; how wide "
        f"peaks spread is measured on the past for {vouched} weeks ahead{further}."
    )


def _last_one(hindsight: Hindsight | None) -> str:
    if hindsight is None:
        return "How the last forecast did is not known: too little was known then."
    if hindsight.coverage_ratio is None:
        return f"How the forecast of {hindsight.quarter} did is not known yet: no week of it is over."
    held = sum(each.is_held for each in hindsight.bounds)
    source = "" if hindsight.is_kept else ", made afterwards from what was known then"
    return (
        f"Of {len(hindsight.bounds)} bounds of 90 % from {hindsight.quarter}{source}, {held} held: "
        f"{100 * hindsight.coverage_ratio:.0f} %."
    )


def _unknown(forecast: CapacityForecast, plan: CapacityPlan) -> str:
    """Say how much is to be read with care; the report has each note."""
    censored = sum(any("censored" in note for note in each.notes) for each in forecast.outlooks)
    undated = sum(each.short_from is not None and each.order_by is None for each in plan.orders)
    words = []
    if censored:
        some = "1 series" if censored == 1 else f"{censored} series"
        words.append(f"what {some} at a cap would have requested")
    if undated:
        words.append("when to order 1 thing that runs short" if undated == 1 else f"when to order {undated} things")
    count = len({*forecast.notes, *plan.notes})
    told = "1 note in the report says" if count == 1 else f"{count} notes in the report tell"
    more = f"{told} what was assumed or treated"
    return f"Not known: {'; '.join(words)}; {more}." if words else f"{more[0].upper()}{more[1:]}."


# -- the quarter's report --


SHOWN_WEEKS = 104
"""Of the past, in pictures: two years show what comes again each year."""


def report_quarter(desk: TeamsDesk, *, as_of: date) -> CapacityReport:
    """Return the report of the quarter in which `as_of` lies, as of that day.

    Raises NoHistory, LakeError, LedgerError, StatementFilesError; ValueError where the day lies ahead.
    """
    past = read_past(desk, as_of=as_of)
    forecast = forecast_from(desk, past)
    return _report(desk, past, forecast=forecast, plan=plan_from(desk, forecast, past))


def report_on(desk: TeamsDesk, *, forecast: CapacityForecast, plan: CapacityPlan) -> CapacityReport:
    """Return the report on a forecast and a plan that are made already. Raises as `report_quarter`."""
    return _report(desk, read_past(desk, as_of=forecast.as_of), forecast=forecast, plan=plan)


def _report(desk: TeamsDesk, past: Past, *, forecast: CapacityForecast, plan: CapacityPlan) -> CapacityReport:
    hindsight, notes = look_back(desk, past, forecast=forecast, plan=plan)
    policy = desk.capacity_policy
    return CapacityReport(
        forecast=forecast,
        plan=plan,
        hindsight=hindsight,
        history=_history(past),
        headline=headline_of(forecast, plan, hindsight, policy=policy),
        assumptions=assumptions_of(forecast, plan, policy=policy, notes=notes),
    )


def _history(past: Past) -> tuple[tuple[SeriesKey, tuple[tuple[date, float], ...]], ...]:
    """Return weekly peaks as they were, so that the weeks of the forecast continue from them."""
    peaks = past.recorded.weekly_peaks(anchor=past.as_of, resources=FORECAST, least_days=1)
    return tuple((key, weeks[-SHOWN_WEEKS:]) for key, weeks in sorted(peaks.items()))


# -- what a check within a quarter warns of, against the quarter's first report --


MOVED = timedelta(days=14)
"""Dates that move by no more are within what a forecast may change its mind by."""


def warn_of_changes(first: CapacityReport, check: CapacityReport) -> tuple[str, ...]:
    """Return what a person must look at again before the next quarter; nothing where all is as it was."""
    was = {each.series: each for each in first.plan.orders}
    return tuple(
        words for line in check.plan.orders for words in _warnings(was.get(line.series), line, as_of=first.plan.as_of)
    )


def _warnings(old: OrderLine | None, new: OrderLine, *, as_of: date) -> Iterable[str]:
    if new.short_from is None:
        if old is not None and old.short_from is not None:
            yield f"{old.what} is no longer short within the horizon; on {as_of} it was, from {old.short_from} on"
        return
    if new.is_overdue and (old is None or not old.is_overdue):
        relief = "" if new.earliest_relief is None else f"; ordered today it helps from {new.earliest_relief} on"
        yield f"{new.what} is overdue: it had to be ordered by {new.order_by}{relief}"
        return
    if old is None or old.short_from is None:
        yield f"{new.what} runs short from {new.short_from} on; on {as_of} it did not within the horizon"
        return
    if new.order_by is None or old.order_by is None:
        if new.order_by != old.order_by:
            yield f"{new.what}: order by {new.order_by or 'no date'}; on {as_of} it was {old.order_by or 'no date'}"
        return
    days = (new.order_by - old.order_by).days
    if abs(days) > MOVED.days:
        way = "later" if days > 0 else "earlier"
        yield f"{new.what}: order by {new.order_by}, {abs(days)} days {way} than stated on {as_of}"
