"""What came of one simulated run, and of many: means, intervals, and where the minutes went."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ops_pipelines_lab.whatif.clock_of_work import Cause, WorkClock

_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run of one policy under one seed."""

    ettr: float
    """Effective training time, 0..1."""
    days: float
    interruption_count: int
    human_count: int
    """How often a person had to find or mend something."""
    wrong_drain_count: int
    """Healthy nodes taken out."""
    lost_seconds: tuple[tuple[Cause, float], ...]
    held_back: tuple[tuple[str, int], ...] = ()
    """Which limit of the policy kept the job where it was, and for how many incidents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many runs of one policy."""

    seed_count: int
    ettr_mean: float
    ettr_ci95: tuple[float, float]
    interruptions_per_day: float
    minutes_lost_per_interruption: float
    lost_minutes_by_cause: dict[str, float]
    """Minutes of one run, on average."""
    wrong_drains: float
    human_interventions: float
    held_back: dict[str, float]
    """Incidents of one run, on average, by the limit of the policy that kept the job where it was."""


def result_of(
    clock: WorkClock,
    *,
    interruptions: int,
    humans: int,
    wrong_drains: int,
    held_back: Mapping[str, int] = MappingProxyType({}),
) -> RunResult:
    """Return the result of a run that is over."""
    return RunResult(
        ettr=clock.ratio(),
        days=clock.horizon_seconds / 86_400,
        interruption_count=interruptions,
        human_count=humans,
        wrong_drain_count=wrong_drains,
        lost_seconds=tuple(clock.lost.items()),
        held_back=tuple(sorted(held_back.items())),
    )


def summarise(results: Sequence[RunResult]) -> Summary:
    """Return means over runs, and the normal 95 % interval of the mean of the effective training time.

    With one run the interval is that value alone: nothing is known of its spread. Raises ValueError for no run.
    """
    if not results:
        raise ValueError("no run was simulated; expected at least one seed")
    count = len(results)
    mean = sum(each.ettr for each in results) / count
    spread = math.sqrt(sum((each.ettr - mean) ** 2 for each in results) / (count - 1)) if count > 1 else 0.0
    half = _Z95 * spread / math.sqrt(count)
    lost_minutes = sum((1 - each.ettr) * each.days * 1440 for each in results)
    interruptions = sum(each.interruption_count for each in results)
    by_cause: dict[str, float] = {}
    for each in results:
        for cause, seconds in each.lost_seconds:
            by_cause[cause.value] = by_cause.get(cause.value, 0.0) + seconds / 60 / count
    held_back: dict[str, float] = {}
    for each in results:
        for name, times in each.held_back:
            held_back[name] = held_back.get(name, 0.0) + times / count
    return Summary(
        seed_count=count,
        ettr_mean=mean,
        ettr_ci95=(mean - half, mean + half),
        interruptions_per_day=interruptions / sum(each.days for each in results),
        minutes_lost_per_interruption=lost_minutes / max(1, interruptions),
        lost_minutes_by_cause=by_cause,
        wrong_drains=sum(each.wrong_drain_count for each in results) / count,
        human_interventions=sum(each.human_count for each in results) / count,
        held_back=held_back,
    )
