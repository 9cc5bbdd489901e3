"""How numbers of a review are written, and the words and colours of what it tells apart. Shows; computes nothing."""

from collections.abc import Mapping
from datetime import timedelta

from ops_pipelines.core.objectives import ANY_TEAM, ObjectiveKind
from ops_pipelines.diagnose.failure_rates import Rate
from ops_pipelines.report.document import Shade
from ops_pipelines.report.numbers import duration
from ops_pipelines.review.job_runs import Cause
from ops_pipelines.review.work_sums import WorkSum

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
