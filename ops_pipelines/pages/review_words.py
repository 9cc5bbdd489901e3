"""How a review writes numbers and names what it tells apart; its five sentences."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from ops_pipelines.core.objectives import ANY_TEAM, Budget, BudgetState, ObjectiveKind
from ops_pipelines.diagnose.failure_rates import Rate
from ops_pipelines.report.document import Shade
from ops_pipelines.report.numbers import duration
from ops_pipelines.review.job_runs import FAILURES, Cause
from ops_pipelines.review.week_acts import WorkSum
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
    """Return effective time as one share, or as the bounds between which it lies; a dash where nothing was wanted."""
    if work.unknown <= 0 or work.wanted <= 0:
        return shown_ratio(work.low_ratio)
    return f"between {shown_ratio(work.low_ratio)} and {shown_ratio(work.high_ratio)}"


def shown_bounds(work: WorkSum) -> str:
    """Return the same for a place with little room."""
    return shown_effective(work).removeprefix("between ").replace(" and ", " to ")


# -- the five sentences of a weekly review that a head of platform reads --


def words_of(review: WeeklyReview) -> Iterator[str]:
    """Yield the head line and the sentences, for a terminal or a message."""
    numbers = review.numbers
    so_far = "" if review.is_over else f", so far, until {numbers.until:%a %d %b %H:%M} UTC"
    last = numbers.week.end - timedelta(days=1)
    yield f"{review.cluster}, {review.week.name}: {numbers.week.start:%d %b} to {last:%d %b %Y}{so_far}"
    yield from five_sentences(review)


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
        return "How much of the wanted GPU time was productive is not known: no job with GPUs is on record."
    earlier = before.work.total.effective_ratio if before.is_on_record else None
    ratio = total.effective_ratio
    said = f"{_upper(shown_effective(total))} of the GPU time that jobs wanted was productive"
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
