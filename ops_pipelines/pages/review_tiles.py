"""The numbers of a week in tiles, each with its change against the week before."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from ops_pipelines.pages.review_numbers import per_thousand_node_days, shown_bounds, shown_hours
from ops_pipelines.report.numbers import duration
from ops_pipelines.review.week.weekly_review import WeeklyReview, WeekNumbers

Count = Callable[[WeekNumbers], float | None]
_LEAST = 0.05
"""A smaller change is none: it would be shown as 0.0."""


class Better(Enum):
    """Which direction of a change is welcome."""

    MORE = "more"
    LESS = "less"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number with its change."""

    value: str
    what: str
    change: str
    """Empty: there is nothing to compare with."""
    mood: str
    """Class of the change: good, bad, or soft where there is none."""


def tiles_of(review: WeeklyReview) -> tuple[Tile, ...]:
    """Return the numbers of the week beside those of the week before.

    Sums are compared with the same share of the week before, where this one is not over; means and rates as they are.
    """
    now, before = review.numbers, review.before
    share = now.days / before.days

    def tile(what: str, value: str, count: Count, better: Better, *, unit: str = "", scale: float = 1.0) -> Tile:
        change, mood = _change(
            count(now), count(before) if before.is_on_record else None, better, unit=unit, scale=scale
        )
        return Tile(value=value, what=what, change=change, mood=mood)

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


def _change(now: float | None, before: float | None, better: Better, *, unit: str, scale: float) -> tuple[str, str]:
    if now is None or before is None:
        return "", "soft"
    difference = now - before * scale
    if abs(difference) < _LEAST:
        return "as the week before", "soft"
    is_good = (difference > 0) is (better is Better.MORE)
    than = "on the week before" if scale == 1.0 else "on as much of the week before"
    return f"{difference:+,.1f}{unit} {than}", "good" if is_good else "bad"
