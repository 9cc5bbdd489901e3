"""What a fault does to a job that goes on: how soon it ends it, how much it slows it, what that is expected to cost.

Rates come from catalogue/fault_hazards.csv, each with its source or marked as an assumption. A fault strikes at a
constant rate, so all expectations are closed forms. What follows for the moment to act is `timing`'s.
"""

import math
from dataclasses import dataclass

from ops_pipelines.domain.fault import Family, FirstAction

AT_ONCE = 1e9
"""Strikes an hour that mean "already": a number, because what the rules are hashed by holds no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """What happens to jobs that go on under a fault of this kind."""

    family: Family | None
    """None: any family."""
    first_action: FirstAction | None
    """None: any. A row that names both outranks one that names one."""
    ends_job_per_hour: float
    """Rate at which it ends a running job; `AT_ONCE` and more: it has ended it, or it stands still, already."""
    slowdown_ratio: float
    """Share of the job's speed that is lost while it goes on: 0..1."""
    source: str

    @property
    def has_ended_job(self) -> bool:
        """Whether nothing is left to wait for: the job is dead, or stands still."""
        return self.ends_job_per_hour >= AT_ONCE


UNKNOWN_HAZARD = Hazard(
    family=None,
    first_action=None,
    ends_job_per_hour=0.5,
    slowdown_ratio=0.0,
    source="Assumption: a fault of which nothing is known ends the job after two hours on average",
)
"""What holds where the catalogue has no row at all; the catalogue's own row for any fault says the same."""


def strike_probability(rate: float, seconds: float) -> float:
    """Return how likely the fault strikes within `seconds`, at `rate` strikes a second."""
    return -math.expm1(-rate * seconds)


def seconds_until_strike(rate: float, seconds: float) -> float:
    """Return the expected time under the fault, which ends with its strike or after `seconds`."""
    return strike_probability(rate, seconds) / rate if rate * seconds > _TINY else seconds


def work_struck(rate: float, *, unsaved_seconds: float, seconds: float) -> float:
    """Return the expected work, in seconds of the job, that a strike within `seconds` destroys: nothing is saved.

    The integral of rate * exp(-rate * t) * (unsaved + t) over 0 <= t < seconds.
    """
    exponent = rate * seconds
    if exponent < _TINY:
        grown = seconds * exponent / 2
    else:
        grown = -(math.expm1(-exponent) + exponent * math.exp(-exponent)) / rate
    return unsaved_seconds * -math.expm1(-exponent) + grown


def work_struck_between_checkpoints(
    rate: float, *, unsaved_seconds: float, next_in_seconds: float, every_seconds: float, seconds: float
) -> float:
    """Return the same for a job that saves its work in `next_in_seconds`, and from then on every `every_seconds`.

    Whole intervals are a geometric series: each is reached with the probability that no strike came before. An interval
    below a microsecond means that nothing is ever unsaved after the first checkpoint.
    """
    first = min(next_in_seconds, seconds)
    struck = work_struck(rate, unsaved_seconds=unsaved_seconds, seconds=first)
    rest = seconds - first
    if rest <= 0 or every_seconds < _MICROSECOND:
        return struck
    whole = math.floor(rest / every_seconds)
    in_one = work_struck(rate, unsaved_seconds=0.0, seconds=every_seconds)
    if whole and rate * every_seconds > _TINY:
        in_whole = in_one * math.expm1(-rate * whole * every_seconds) / math.expm1(-rate * every_seconds)
    else:
        in_whole = in_one * whole
    in_last = work_struck(rate, unsaved_seconds=0.0, seconds=rest - whole * every_seconds)
    survives_whole = math.exp(-rate * whole * every_seconds)
    return struck + math.exp(-rate * first) * (in_whole + survives_whole * in_last)


_MICROSECOND = 1e-6
_TINY = 1e-7
"""Below it the closed forms lose their digits, and the first term of their series is exact."""
