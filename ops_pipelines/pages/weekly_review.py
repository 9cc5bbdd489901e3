"""The weekly reliability review as a page: five sentences, tiles with their change, then tables and plots."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum

from markupsafe import Markup

from ops_pipelines.core.objectives import UNITS, Budget, BudgetState
from ops_pipelines.core.overlap import tell
from ops_pipelines.diagnose.failure_rates import MeanTime, Rate
from ops_pipelines.pages.review_words import (
    CAUSES,
    PARTS,
    PROMISES,
    five_sentences,
    per_thousand_node_days,
    shown_bounds,
    shown_hours,
    shown_limit,
    shown_ratio,
    shown_team,
    time_between,
)
from ops_pipelines.report.document import Mood, Number, Shade
from ops_pipelines.report.html import drawn, render
from ops_pipelines.report.numbers import duration
from ops_pipelines.report.pictures.bars import BarRow
from ops_pipelines.report.pictures.review import DayColumn, bars_svg, columns_svg
from ops_pipelines.review.week_acts import Work, WorkSum
from ops_pipelines.review.week_incidents import ComponentLine, CoverageLine
from ops_pipelines.review.weekly_review import WeeklyReview, WeekNumbers

# -- the numbers of a week in tiles, each with its change against the week before --


Count = Callable[[WeekNumbers], float | None]
_LEAST = 0.05
"""A smaller change is none: it would be shown as 0.0."""


class Better(Enum):
    """Which direction of a change is welcome."""

    MORE = "more"
    LESS = "less"


def tiles_of(review: WeeklyReview) -> tuple[Number, ...]:
    """Return the numbers of the week beside those of the week before.

    Sums are compared with the same share of the week before, where this one is not over; means and rates as they are.
    """
    now, before = review.numbers, review.before
    share = now.days / before.days

    def tile(what: str, value: str, count: Count, better: Better, *, unit: str = "", scale: float = 1.0) -> Number:
        change, mood = _change(
            count(now), count(before) if before.is_on_record else None, better, unit=unit, scale=scale
        )
        return Number(value=value, about=what, change=change, change_mood=mood)

    per_day, rate, taken = now.interruptions_per_day, per_thousand_node_days(now.interruptions), _taken(now)
    repair = None if now.repairs is None else now.repairs.mean
    return (
        tile("effective GPU time", shown_bounds(now.work.total), _effective_percent, Better.MORE, unit=" points"),
        tile(
            "interruptions a day",
            "-" if per_day is None else f"{per_day:.1f}",
            lambda week: week.interruptions_per_day,
            Better.LESS,
        ),
        tile(
            "interruptions per 1,000 node-days",
            "-" if rate is None else f"{rate:.1f}",
            lambda week: per_thousand_node_days(week.interruptions),
            Better.LESS,
        ),
        tile(
            "failures of parts",
            str(now.failure_count),
            lambda week: float(week.failure_count),
            Better.LESS,
            scale=share,
        ),
        tile("mean time to repair", duration(repair), _repair_minutes, Better.LESS, unit=" min"),
        tile("GPU-hours taken by interruptions", shown_hours(taken), _taken, Better.LESS, scale=share),
        tile(
            "GPU-hours saved by our timing, expected",
            shown_hours(now.saved_gpu_hours),
            lambda week: week.saved_gpu_hours,
            Better.MORE,
            scale=share,
        ),
        tile(
            "nodes taken out for nothing, perhaps",
            str(len(now.wrong)),
            lambda week: float(len(week.wrong)),
            Better.LESS,
            scale=share,
        ),
        tile(
            "times people were needed",
            str(now.person_count),
            lambda week: float(week.person_count),
            Better.LESS,
            scale=share,
        ),
    )


def _effective_percent(numbers: WeekNumbers) -> float | None:
    ratio = numbers.work.total.effective_ratio
    return None if ratio is None else 100 * ratio


def _taken(numbers: WeekNumbers) -> float | None:
    total = numbers.work.total
    return total.lost + total.restart + total.queue if total.wanted > 0 else None


def _repair_minutes(numbers: WeekNumbers) -> float | None:
    return None if numbers.repairs is None else numbers.repairs.mean / timedelta(minutes=1)


def _change(now: float | None, before: float | None, better: Better, *, unit: str, scale: float) -> tuple[str, Mood]:
    if now is None or before is None:
        return "", Mood.SOFT
    difference = now - before * scale
    if abs(difference) < _LEAST:
        return "as the week before", Mood.SOFT
    is_good = (difference > 0) is (better is Better.MORE)
    than = "on the week before" if scale == 1.0 else "on as much of the week before"
    return f"{difference:+,.1f}{unit} {than}", Mood.GOOD if is_good else Mood.BAD


# -- the weekly reliability review as a page --


_DAY = timedelta(days=1)
_STATES = {
    BudgetState.KEPT: "good",
    BudgetState.AT_RISK: "warn",
    BudgetState.EXHAUSTED: "bad",
    BudgetState.TOO_LITTLE_DATA: "soft",
}


def write_weekly_review(review: WeeklyReview) -> str:
    """Return the whole page."""
    numbers = review.numbers
    return render(
        "weekly_review.html",
        {
            "review": review,
            "numbers": numbers,
            "sentences": five_sentences(review),
            "tiles": tiles_of(review),
            "budgets": [_budget_row(each) for each in review.budgets],
            "teams": list(numbers.work.by_team.items()),
            "work_total": numbers.work.total,
            "work_plot": _work_plot(numbers.work),
            "days_plot": _days_plot(numbers),
            "causes": _cause_rows(numbers, review.before),
            "components": [_component_row(each) for each in review.components],
            "overlaps": [tell(each, now=numbers.until) for each in numbers.overlaps],
            "coverage": [_coverage_row(each) for each in review.coverage],
            "shown_ratio": shown_ratio,
            "shown_hours": shown_hours,
        },
    )


# -- tables --


def _budget_row(budget: Budget) -> Mapping[str, object]:
    objective = budget.objective
    limit = "" if objective.limit is None else f" within {shown_limit(objective.limit)}"
    unit = UNITS[objective.kind]
    runs_out = "-"
    if budget.exhausted_in is not None:
        runs_out = "is used up" if budget.exhausted_in <= timedelta(0) else f"in {duration(budget.exhausted_in)}"
    elif budget.burn_rate is not None:
        runs_out = "not at this rate"
    return {
        "team": shown_team(objective.team),
        "workload": objective.workload.value,
        "promise": f"{PROMISES[objective.kind]}: {shown_ratio(objective.target_ratio, digits=2)}{limit}",
        "measured": shown_ratio(budget.good_ratio, digits=2) if budget.good_ratio is not None else "too little data",
        "why": budget.why or f"{budget.over_window.total:,.0f} {unit} on {budget.over_window.days:.0f} days",
        "left": "-" if budget.left_ratio is None else f"{budget.left_ratio:.0%}".replace("%", " %"),
        "left_width": 0 if budget.left_ratio is None else round(100 * min(1.0, max(0.0, budget.left_ratio))),
        "burn": "-" if budget.burn_rate is None else f"{budget.burn_rate:.2g}",
        "runs_out": runs_out,
        "state": budget.state.value,
        "mood": _STATES[budget.state],
    }


def _component_row(line: ComponentLine) -> Mapping[str, object]:
    return {
        "component": line.component,
        "count": line.failures.event_count,
        "between": time_between(line.failures, unit=line.unit),
        "interval": _interval(line.failures),
        "exposure": f"{line.failures.exposure_hours:,.0f} {line.unit}-hours",
        "repair": _repair(line.repairs),
        "open": "-" if not line.open_count else f"{line.open_count}, the oldest for {duration(line.oldest_open)}",
    }


def _interval(rate: Rate) -> str:
    if rate.event_count == 0 or rate.mean_hours_at_least is None or rate.mean_hours_at_most is None:
        return "95 % bound" if rate.exposure_hours > 0 else ""
    return f"95 %: {rate.mean_hours_at_least:,.0f} to {rate.mean_hours_at_most:,.0f}"


def _repair(repairs: MeanTime | None) -> str:
    if repairs is None:
        return "none ended"
    return f"{duration(repairs.mean)} ({repairs.count}; 95 %: {duration(repairs.low)} to {duration(repairs.high)})"


def _cause_rows(numbers: WeekNumbers, before: WeekNumbers) -> list[Mapping[str, object]]:
    now, then = numbers.count_by_cause(), before.count_by_cause()
    return [
        {
            "cause": words,
            "count": now[cause],
            "per_day": "-"
            if numbers.interruptions_per_day is None
            else f"{now[cause] / (len(numbers.hours) / 24):.2f}",
            "before": then[cause] if before.hours else "-",
            "taken": shown_hours(numbers.work.by_cause.get(cause, 0.0)),
        }
        for cause, (words, _) in CAUSES.items()
    ]


def _coverage_row(line: CoverageLine) -> Mapping[str, object]:
    of = f" of {line.expected:,.0f}" if line.expected > 0 else ""
    return {"what": line.what, "known": f"{line.known:,.0f}{of} {line.unit}", "share": shown_ratio(line.ratio)}


# -- plots --


def work_bars(work: Work) -> tuple[BarRow, ...]:
    """Return a bar for each team, the largest first: what became of the time that it wanted."""
    teams = sorted(work.by_team.items(), key=lambda each: (-each[1].wanted, each[0]))
    return tuple(
        BarRow(label=team, parts=_parts(each), number=f"{shown_bounds(each)} of {shown_hours(each.wanted)} GPU-h")
        for team, each in teams
    )


def _parts(work: WorkSum) -> tuple[tuple[float, Shade], ...]:
    return tuple((float(getattr(work, name)), shade) for name, _, shade in PARTS)


def _work_plot(work: Work) -> Markup | None:
    rows = work_bars(work)
    if not rows:
        return None
    key = {
        shade: words for name, words, shade in PARTS if any(getattr(each, name) > 0 for each in work.by_team.values())
    }
    return drawn(bars_svg(rows, title="What became of the GPU time that each team wanted", key=key))


def day_columns(numbers: WeekNumbers) -> tuple[DayColumn, ...]:
    """Return a column for each day of the week; a day of which the accounting has nothing is not known."""
    columns = []
    for number in range(7):
        begin = numbers.week.start + number * _DAY
        known = [hour for hour in numbers.hours if begin <= hour < begin + _DAY]
        of_day = [each for each in numbers.breaks if begin <= each.ended_at < begin + _DAY]
        columns.append(
            DayColumn(
                label=f"{begin:%a %d}",
                parts=tuple(
                    (float(sum(each.cause is cause for each in of_day)), shade) for cause, (_, shade) in CAUSES.items()
                ),
                is_known=bool(known or of_day),
            )
        )
    return tuple(columns)


def _days_plot(numbers: WeekNumbers) -> object:
    present = {each.cause for each in numbers.breaks}
    key = {shade: words for cause, (words, shade) in CAUSES.items() if cause in present}
    return drawn(columns_svg(day_columns(numbers), title="Interruptions by day and cause", key=key))
