"""The weekly reliability review as a document: five sentences, numbers with their change, then tables and charts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from ops_pipelines.core.objectives import UNITS, Budget, BudgetState
from ops_pipelines.core.overlap import tell
from ops_pipelines.report import document as doc
from ops_pipelines.report.charts import DayColumn, bars_svg, columns_svg
from ops_pipelines.report.document import Mood, soft, strong, toned
from ops_pipelines.report.numbers import duration, moment, percent
from ops_pipelines.review.week_acts import Work
from ops_pipelines.review.week_incidents import ComponentLine, CoverageLine, MeanTime, Rate
from ops_pipelines.review.week_words import (
    CAUSES,
    PARTS,
    PROMISES,
    days_of,
    five_sentences,
    shown_bounds,
    shown_hours,
    shown_limit,
    shown_ratio,
    shown_team,
    tiles_of,
    time_between,
    work_bars,
)
from ops_pipelines.review.weekly_review import WeeklyReview, WeekNumbers

_DAY = timedelta(days=1)
_ROWS_AT_MOST = 500
_STATES = {
    BudgetState.KEPT: Mood.GOOD,
    BudgetState.AT_RISK: Mood.WARN,
    BudgetState.EXHAUSTED: Mood.BAD,
    BudgetState.TOO_LITTLE_DATA: Mood.SOFT,
}


def week_document(review: WeeklyReview) -> doc.Document:
    """Return all of a review: first what a head of platform reads."""
    numbers, week = review.numbers, review.week
    no_before = doc.Note(words="Of the week before nothing is on record, so nothing is compared.", mood=Mood.SOFT)
    return doc.Document(
        title=f"Reliability in {week.name}, {days_of(review)}",
        cluster=review.cluster,
        about=f"{moment(week.start)} to {moment(week.end)}",
        state=None if review.is_over else toned(f"not over: up to {moment(numbers.until)}", Mood.WARN),
        home="",
        command=f"ops-pipelines review --week {week.name}",
        now=review.made_at,
        measures=_measures(numbers),
        blocks=doc.sections(
            doc.Items(items=five_sentences(review), is_ordered=True, is_headline=True, key="week"),
            doc.Numbers(numbers=tiles_of(review)),
            None if review.before.is_on_record else no_before,
            *_tables(review),
            (doc.Note(words="Not in any number:"), doc.Items(items=review.missing, key="missing"))
            if review.missing
            else None,
            doc.Note(words="From the ledger and the lake. Work, waits and losses weigh by GPUs.", mood=Mood.SOFT),
        ),
    )


def _measures(numbers: WeekNumbers) -> Mapping[str, int | float]:
    """Return what is plotted by week."""
    known = {
        "effective_ratio": numbers.work.total.effective_ratio,
        "interruptions_per_day": numbers.interruptions_per_day,
    }
    return {
        "interruption_count": numbers.interruptions.event_count,
        "failure_count": numbers.failure_count,
        "wrong_act_count": len(numbers.wrong),
        "human_intervention_count": numbers.person_count,
        "saved_gpu_hours": round(numbers.saved_gpu_hours, 3),
        **{name: round(value, 5) for name, value in known.items() if value is not None},
    }


def _tables(review: WeeklyReview) -> Iterator[Sequence[doc.Block]]:
    numbers = review.numbers
    yield _table(
        "Promises and their error budgets",
        "Team:name|Work|Promise|Measured, 28 days:words|Budget left|Burn rate, week|Runs out|State",
        map(_budget_row, review.budgets),
        key="objectives",
        empty="No objective is declared: section objectives of cluster.yaml, docs/REPORTS.md.",
        about="Budget: 1 - target of 28 days. A burn rate of 1 uses it up exactly; at 2 it lasts half as long. Uptime "
        "is the share of running time in running time and waits after interruptions by hardware, by us, or by a node "
        "that failed unexplained, weighed by GPUs; preemption counts on neither side.",
    )
    yield _table(
        "Effective training time",
        "Team:name|Requested:gpu_hours|Productive:gpu_hours|Lost work:gpu_hours|Restarting:gpu_hours"
        "|Waiting again:gpu_hours|Not known:gpu_hours|Effective:ratio|Jobs:count|Interruptions:count",
        _work_rows(numbers.work),
        before=_work_chart(numbers.work),
        empty="No job with GPUs is on record in this week.",
        about=(
            "GPU-hours. Requested: running time and waits after interruptions. Productive: running time less work that "
            "an interruption threw away (since the newest checkpoint) and restarts (until work was seen to continue). ",
            "All jobs with GPUs; after Meta, arXiv 2410.21680, but without the wait for a job's first start; measured "
            "from accounting, the ledger and job logs. Not known is what ran before an interruption without a known "
            "checkpoint, and restarts that nobody saw: the lower bound counts it as lost, the upper as kept.",
        ),
    )
    yield _table(
        "Interruptions", "Cause|Count:count|A day:count|Week before:count|GPU-hours taken:gpu_hours",
        _cause_rows(numbers, review.before), before=_days_chart(numbers),
    )  # fmt: skip
    yield _table(
        "Failures and repairs by component",
        "Component|Failures:count|Mean time between:words|Exposure|Mean time to repair|Still out",
        map(_component_row, review.components),
        key="components",
        about="A failure is an incident that a part is to blame for, in the week in which it was opened; a repair runs "
        "from there to service, in the week in which it ended. Intervals: Poisson (failures), exponential (repairs).",
    )
    yield _table(
        "Slowest phases", "Phase|Median:seconds|Longest:seconds|Of|Count:count",
        [(each.phase, duration(each.median), duration(each.longest), each.incident, each.count)
         for each in review.phases],
        empty="No phase of an incident ended in this week.",
    )  # fmt: skip
    judged = review.judged_part_count
    yield _table(
        "Lemons", "Part|Node:name|Why:words",
        [(str(each.part), each.node, "; ".join(each.reasons)) for each in review.lemons],
        empty=f"None among the {judged} parts that were judged over four weeks." if judged
        else "No part could be judged: the lake holds no inventory of these four weeks.",
    )  # fmt: skip
    yield _table(
        "What the autopilot did",
        "Act|Started:count|Done:count|Not needed any more:count|Failed:count|Not known:count|Under way:count",
        [(each.verb.value.replace("_", " "), each.count, each.done, each.not_needed, each.failed, each.unknown,
          each.unfinished) for each in numbers.acts],
        key="acts", empty="Nothing.",
    )  # fmt: skip
    yield _table(
        "Acts that seem wrong in hindsight",
        "Incident|Node:name|Why:words|GPU-hours out of service:gpu_hours|Jobs moved:count"
        "|GPU-hours of work lost:gpu_hours",
        [(each.incident, each.node, each.kind.value, shown_hours(each.out_of_service_gpu_hours), each.moved_job_count,
          shown_hours(each.lost_gpu_hours)
          + (f" and {each.unknown_loss_count} not known" if each.unknown_loss_count else ""))
         for each in numbers.wrong],
        key="wrong_acts",
        empty="None is known.",
        about="Suspicions: tests that pass do not prove that there was no fault, since some come and go. A node that "
        "was repaired before it was tested is not judged.",
    )  # fmt: skip
    overlaps = [tell(each, now=numbers.until) for each in numbers.overlaps]
    none_seen = doc.Note(words="None was seen.")
    yield doc.under("Two copies of a job at once", doc.Items(items=overlaps) if overlaps else none_seen)
    yield _table(
        "What people did", "What|Count:count|Who:words",
        [(each.what, each.count, ", ".join(each.who) or "the operator on call") for each in numbers.people],
        empty="Nobody acted, and nobody was paged.",
    )  # fmt: skip
    yield _table(
        "How far these numbers can be trusted", "Source|On record:count|Share:ratio",
        map(_coverage_row, review.coverage), key="coverage",
    )  # fmt: skip


def _table(
    title: str,
    heads: str,
    rows: Iterable[doc.Row | tuple[doc.Cell, ...]],
    *,
    key: str = "",
    before: Sequence[doc.Block] = (),
    empty: str = "",
    about: doc.Words = "",
) -> tuple[doc.Block, ...]:
    table = doc.Table(columns=doc.columns_of(heads), rows=list(rows), key=key, empty=empty, at_most=_ROWS_AT_MOST)
    return doc.under(title, before, table, doc.Note(words=about, mood=Mood.SOFT) if table.rows and about else None)


def _budget_row(budget: Budget) -> tuple[doc.Cell, ...]:
    objective, window = budget.objective, budget.over_window
    limit = "" if objective.limit is None else f" within {shown_limit(objective.limit)}"
    runs_out = "-" if budget.burn_rate is None else "not at this rate"
    if budget.exhausted_in is not None:
        runs_out = "is used up" if budget.exhausted_in <= timedelta(0) else f"in {duration(budget.exhausted_in)}"
    measured = "too little data" if budget.good_ratio is None else shown_ratio(budget.good_ratio, digits=2)
    why = budget.why or f"{window.total:,.0f} {UNITS[objective.kind]} on {window.days:.0f} days"
    return (
        shown_team(objective.team),
        objective.workload.value,
        f"{PROMISES[objective.kind]}: {shown_ratio(objective.target_ratio, digits=2)}{limit}",
        (measured, soft(f" ({why})")),
        percent(budget.left_ratio, 0),
        None if budget.burn_rate is None else f"{budget.burn_rate:.2g}",
        runs_out,
        strong(budget.state.value, _STATES[budget.state]),
    )


def _component_row(line: ComponentLine) -> tuple[doc.Cell, ...]:
    return (
        line.component,
        line.failures.event_count,
        (time_between(line.failures, unit=line.unit), soft(_interval(line.failures))),
        f"{line.failures.exposure_hours:,.0f} {line.unit}-hours",
        _repair(line.repairs),
        None if not line.open_count else f"{line.open_count}, the oldest for {duration(line.oldest_open)}",
    )


def _interval(rate: Rate) -> str:
    if rate.event_count == 0 or rate.mean_hours_at_least is None or rate.mean_hours_at_most is None:
        return " 95 % bound" if rate.exposure_hours > 0 else ""
    return f" 95 %: {rate.mean_hours_at_least:,.0f} to {rate.mean_hours_at_most:,.0f}"


def _repair(repairs: MeanTime | None) -> str:
    if repairs is None:
        return "none ended"
    return f"{duration(repairs.mean)} ({repairs.count}; 95 %: {duration(repairs.low)} to {duration(repairs.high)})"


def _cause_rows(numbers: WeekNumbers, before: WeekNumbers) -> Iterator[tuple[doc.Cell, ...]]:
    now, then, is_rate = numbers.count_by_cause(), before.count_by_cause(), numbers.interruptions_per_day is not None
    for cause, (words, _) in CAUSES.items():
        per_day = f"{now[cause] / (len(numbers.hours) / 24):.2f}" if is_rate else None
        taken = shown_hours(numbers.work.by_cause.get(cause, 0.0))
        yield words, now[cause], per_day, then[cause] if before.hours else None, taken


def _coverage_row(line: CoverageLine) -> tuple[doc.Cell, ...]:
    of = f" of {line.expected:,.0f}" if line.expected > 0 else ""
    return line.what, f"{line.known:,.0f}{of} {line.unit}", shown_ratio(line.ratio)


# -- charts --


def _work_rows(work: Work) -> Iterator[doc.Row]:
    plain, total = doc.RowRole.PLAIN, doc.RowRole.SUM
    sums = [(team, each, plain) for team, each in work.by_team.items()]
    for team, each, role in [*sums, ("all", work.total, total)] if sums else ():
        hours = (each.wanted, each.productive, each.lost, each.restart, each.queue, each.unknown)
        bounds = shown_bounds(each)
        yield doc.Row(cells=(team, *map(shown_hours, hours), bounds, each.job_count, each.break_count), role=role)


def _work_chart(work: Work) -> tuple[doc.Block, ...]:
    rows, title = work_bars(work), "What became of the GPU time that each team requested"
    used = {shade for row in rows for length, shade in row.parts if length > 0}
    key = {shade: words for _, words, shade in PARTS if shade in used}
    return _chart(title, bars_svg(rows, title=title, key=key), about=f"{title}.") if rows else ()


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


def _days_chart(numbers: WeekNumbers) -> tuple[doc.Block, ...]:
    present, title = {each.cause for each in numbers.breaks}, "Interruptions by day and cause"
    key = {shade: words for cause, (words, shade) in CAUSES.items() if cause in present}
    svg = columns_svg(day_columns(numbers), title=title, key=key)
    return _chart(title, svg, about=f"{title}. Grey: the accounting has nothing of the day.")


def _chart(title: str, svg: str, *, about: str) -> tuple[doc.Block, ...]:
    return doc.Chart(title=title, svg=svg), doc.Legend(parts=(about,))
