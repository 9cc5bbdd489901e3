"""The quarter's report: forecast, plan, how the last one did, and what a director must know. Joins; keeps nothing."""

from datetime import date

from ops_pipelines.domain.capacity.plan import CapacityForecast, CapacityPlan, CapacityReport
from ops_pipelines.domain.capacity.resources import SeriesKey
from ops_pipelines.flow.capacity.forecasting import forecast_from
from ops_pipelines.flow.capacity.headline import assumptions_of, headline_of
from ops_pipelines.flow.capacity.hindsight import FORECAST, look_back
from ops_pipelines.flow.capacity.past import Past, read_past
from ops_pipelines.flow.capacity.planning import plan_from
from ops_pipelines.teams.desk import TeamsDesk

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
    """Return weekly peaks as they were, so that the weeks of the forecast go on from them."""
    peaks = past.recorded.weekly_peaks(anchor=past.as_of, resources=FORECAST, least_days=1)
    return tuple((key, weeks[-SHOWN_WEEKS:]) for key, weeks in sorted(peaks.items()))
