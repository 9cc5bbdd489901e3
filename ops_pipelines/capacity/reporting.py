"""The quarter's report in short, joined, and what a check within the quarter warns of."""

from collections.abc import Iterable
from datetime import date, timedelta

from ops_pipelines.capacity.forecasting import forecast_from, plan_from
from ops_pipelines.capacity.hindsight import FORECAST, look_back
from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.capacity.past import Past, read_past
from ops_pipelines.capacity.plan import CapacityForecast, CapacityPlan, CapacityReport, Hindsight, OrderLine
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.projects import CapacityPolicy

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
            return f"Whether anything has to be ordered cannot be told: of {unjudged} too little is known."
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
    """Return which types of GPU are wanted or installed and have no week that was judged; empty: none."""
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
    what = f"order {line.count} {unit}{'' if line.count == 1 else 's'} of {line.what}"
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
        return "How the last forecast did cannot be told: too little was known then."
    if hindsight.coverage_ratio is None:
        return f"How the forecast of {hindsight.quarter} did cannot be told yet: no week of it is over."
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
        words.append(f"what {some} at a cap would have wanted")
    if undated:
        words.append("when to order 1 thing that runs short" if undated == 1 else f"when to order {undated} things")
    count = len({*forecast.notes, *plan.notes})
    told = "1 note in the report tells" if count == 1 else f"{count} notes in the report tell"
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
    """Return weekly peaks as they were, so that the weeks of the forecast go on from them."""
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
        yield f"{new.what}: order by {new.order_by}, {abs(days)} days {way} than said on {as_of}"
