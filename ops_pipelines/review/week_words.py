"""How a weekly review writes its numbers and names what it counts; its five sentences; its numbers with their change.

For its document, for its JSON and for Dagster.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum

from ops_pipelines.core.objectives import ANY_TEAM, Budget, BudgetState, ObjectiveKind
from ops_pipelines.report.document import Mood, Number, Shade
from ops_pipelines.report.numbers import duration
from ops_pipelines.report.pictures.bars import BarRow
from ops_pipelines.review.job_runs import FAILURES, Cause
from ops_pipelines.review.week_acts import Work, WorkSum
from ops_pipelines.review.week_incidents import Rate
from ops_pipelines.review.weekly_review import WeeklyReview, WeekNumbers

# -- how numbers of a review are written --


CAUSES: Mapping[Cause, tuple[str, Shade]] = {
    Cause.HARDWARE: ("hardware", Shade.ORANGE),
    Cause.SOFTWARE: ("software", Shade.SKY),
    Cause.OURS: ("us, ahead of a fault", Shade.BLUE),
    Cause.UNKNOWN: ("not explained", Shade.GREY),
    Cause.PREEMPTED: ("preempted", Shade.PALE),
}
PARTS: tuple[tuple[str, str, Shade], ...] = (
    ("productive", "productive", Shade.GREEN),
    ("lost", "lost work", Shade.ORANGE),
    ("restart", "restarting", Shade.YELLOW),
    ("queue", "waiting again", Shade.PINK),
    ("unknown", "not known", Shade.GREY),
)
"""Attribute of `WorkSum`, words, colour; in the order of the bars."""
PROMISES = {ObjectiveKind.UPTIME: "uptime", ObjectiveKind.QUEUE_WAIT: "queue wait", ObjectiveKind.INFERENCE_P99: "p99"}


def shown_ratio(ratio: float | None, *, digits: int = 1) -> str:
    """Return a share as `94.2 %`; what is not all of it is never rounded up to 100 %."""
    if ratio is None:
        return "-"
    shown = f"{ratio:.{digits}%}"
    if ratio < 1.0 and shown == f"{1:.{digits}%}":
        shown = f"{100 - 10**-digits:.{digits}f}%"
        return f"above {shown}".replace("%", " %")
    return shown.replace("%", " %")


def shown_hours(hours: float | None) -> str:
    """Return GPU-hours with as many digits as tell something."""
    if hours is None:
        return "-"
    if abs(hours) >= 99.95:
        return f"{hours:,.0f}"
    return f"{hours:.1f}" if abs(hours) >= 0.05 or hours == 0 else f"{hours:.2g}"


def shown_limit(limit: timedelta) -> str:
    return duration(limit) if limit >= timedelta(seconds=1) else f"{limit.total_seconds() * 1000:g} ms"


def shown_team(team: str) -> str:
    return "all teams" if team == ANY_TEAM else team


def shown_days(days: float) -> str:
    return f"{days * 24:.0f} hours" if days < 2 else f"{days:.1f} days"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def time_between(rate: Rate, *, unit: str) -> str:
    """Return the mean time between failures in words; a bound where none was seen, never infinity."""
    if rate.mean_hours_between is not None:
        return f"{rate.mean_hours_between:,.0f} {unit}-hours"
    if rate.mean_hours_at_least is None:
        return "not known: no exposure on record"
    return f"more than {rate.mean_hours_at_least:,.0f} {unit}-hours"


def per_thousand_node_days(rate: Rate) -> float | None:
    """Return events per 1,000 node-days, of a rate over node-hours; None without exposure."""
    return rate.event_count / rate.exposure_hours * 24_000 if rate.exposure_hours > 0 else None


def shown_effective(work: WorkSum) -> str:
    """Return effective time as one share, or as the bounds between which it lies; a dash where nothing was
    requested."""
    if work.unknown <= 0 or work.wanted <= 0:
        return shown_ratio(work.low_ratio)
    return f"between {shown_ratio(work.low_ratio)} and {shown_ratio(work.high_ratio)}"


def shown_bounds(work: WorkSum) -> str:
    """Return the same for a place with little room."""
    return shown_effective(work).removeprefix("between ").replace(" and ", " to ")


def work_bars(work: Work) -> tuple[BarRow, ...]:
    """Return a bar for each team, the largest first: what became of the time that it requested."""
    teams = sorted(work.by_team.items(), key=lambda each: (-each[1].wanted, each[0]))
    return tuple(
        BarRow(label=team, parts=_parts(each), number=f"{shown_bounds(each)} of {shown_hours(each.wanted)} GPU-h")
        for team, each in teams
    )


def _parts(work: WorkSum) -> tuple[tuple[float, Shade], ...]:
    return tuple((float(getattr(work, name)), shade) for name, _, shade in PARTS)


# -- the five sentences of a weekly review that a head of platform reads --


def words_of(review: WeeklyReview) -> Iterator[str]:
    """Yield the head line and the sentences, for a message."""
    so_far = "" if review.is_over else f", so far, until {review.numbers.until:%a %d %b %H:%M} UTC"
    yield f"{review.cluster}, {review.week.name}: {days_of(review)}{so_far}"
    yield from five_sentences(review)


def days_of(review: WeeklyReview) -> str:
    """Return the first and the last day of the week."""
    return f"{review.week.start:%d %b} to {review.week.end - timedelta(days=1):%d %b %Y}"


def five_sentences(review: WeeklyReview) -> tuple[str, ...]:
    """Return what a head of platform reads: work, interruptions, parts, what we did, promises."""
    return (
        _of_work(review.numbers, review.before),
        _of_interruptions(review.numbers),
        _of_parts(review),
        _of_us(review.numbers),
        _of_promises(review.budgets),
    )


def _of_work(numbers: WeekNumbers, before: WeekNumbers) -> str:
    total = numbers.work.total
    if total.wanted <= 0:
        return "How much of the requested GPU time was productive is not known: no job with GPUs is on record."
    earlier = before.work.total.effective_ratio if before.is_on_record else None
    ratio = total.effective_ratio
    said = f"{_upper(shown_effective(total))} of the GPU time that jobs requested was productive"
    if ratio is not None and earlier is not None:
        points = (ratio - earlier) * 100
        said += f", {abs(points):.1f} points {'more' if points >= 0 else 'less'} than the week before"
    if ratio is None:
        said += f" (of {total.unknown_break_count} attempts nobody knows what was lost)"
    lost = total.lost + total.restart + total.queue
    return f"{said}; interruptions are known to have taken {shown_hours(lost)} GPU-hours."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_interruptions(numbers: WeekNumbers) -> str:
    count = numbers.interruptions.event_count
    if not numbers.hours:
        return "Interruptions are not known: the accounting of the week is not on record."
    on_record = shown_days(len(numbers.hours) / 24)
    if not count:
        return f"No job was interrupted in {on_record} on record."
    per_day = numbers.interruptions_per_day
    often = f"in {on_record} on record" if per_day is None else f"{per_day:.1f} a day"
    causes = numbers.count_by_cause()
    named = [each for each in FAILURES if causes[each] and each is not Cause.UNKNOWN]
    parts = [f"{causes[each]} by {CAUSES[each][0]}" for each in named]
    parts += [f"{causes[Cause.UNKNOWN]} not explained"] if causes[Cause.UNKNOWN] else []
    return f"Jobs were interrupted {times(count)}, {often}: {', '.join(parts)}."


def _of_parts(review: WeeklyReview) -> str:
    failed = [each for each in review.components if each.failures.event_count]
    still = sum(each.open_count for each in review.components)
    waiting = f" {still} {plural(still, 'is', 'are')} not in service again." if still else ""
    if not failed:
        return (
            f"No part failed.{waiting}" if review.numbers.presence.hour_count else f"No failure is on record.{waiting}"
        )
    named = ", ".join(f"{each.component} {each.failures.event_count}" for each in failed[:3])
    others = sum(each.failures.event_count for each in failed[3:])
    named += f", others {others}" if others else ""
    repaired = [each.repairs for each in review.components if each.repairs is not None]
    took = ""
    if repaired:
        ended = sum(each.count for each in repaired)
        mean = sum((each.mean * each.count for each in repaired), timedelta()) / ended
        took = f" {ended} {plural(ended, 'repair', 'repairs')} ended, after {duration(mean)} on average."
    count = review.numbers.failure_count
    return f"Parts failed {times(count)}: {named}.{took}{waiting}"


def _of_us(numbers: WeekNumbers) -> str:
    acts = sum(each.count for each in numbers.acts)
    done = sum(each.done for each in numbers.acts)
    said = f"The autopilot began {acts} {plural(acts, 'act', 'acts')}, {done} of them witnessed"
    saved = numbers.saved_gpu_hours
    if abs(saved) >= 0.05:
        said += f"; choosing its moments was expected to save {shown_hours(saved)} GPU-hours"
    wrong = len(numbers.wrong)
    if wrong:
        cost = sum((each.out_of_service_gpu_hours or 0.0) + each.lost_gpu_hours for each in numbers.wrong)
        words = f"{plural(wrong, 'node seems', 'nodes seem')} to have been taken out for nothing"
        said += f"; {wrong} {words} ({shown_hours(cost)} GPU-hours)"
    else:
        said += "; no node is known to have been taken out for nothing"
    people = (
        f"people acted or were paged {times(numbers.person_count)}" if numbers.person_count else "nobody was needed"
    )
    return f"{said}; {people}."


def _of_promises(budgets: Sequence[Budget]) -> str:
    if not budgets:
        return "No objective is declared, so nothing says whether that was good enough."
    gone = [each for each in budgets if each.state is BudgetState.EXHAUSTED]
    risky = [each for each in budgets if each.state is BudgetState.AT_RISK]
    unknown = sum(each.state is BudgetState.TOO_LITTLE_DATA for each in budgets)
    kept = len(budgets) - len(gone) - len(risky) - unknown
    parts = [f"{kept} of {len(budgets)} objectives {plural(kept, 'is', 'are')} kept"]
    parts += [f"the budget of {_named(gone)} is used up"] if gone else []
    parts += [f"that of {_named(risky)} will be, at this rate"] if risky else []
    parts += [f"of {unknown} too little is known"] if unknown else []
    return "; ".join(parts) + "."


def _named(budgets: Sequence[Budget]) -> str:
    shown = ", ".join(f"{shown_team(each.objective.team)} ({PROMISES[each.objective.kind]})" for each in budgets[:3])
    return shown + (f" and {len(budgets) - 3} more" if len(budgets) > 3 else "")


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
