"""Service-level objectives of teams, and their error budgets: how much may go wrong, and how much of it has.

Values and arithmetic only. What counts as good is tallied by `review.week_work`; the file that declares
objectives is read by `resources.config`.

An error budget is the share that may be bad: 1 - target. It is spent by what was bad within the last 28 days. The burn
rate of a shorter interval is its bad share over that budget: at 1 the budget is just used up, at 2 twice as fast.
"""

import math
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from ops_pipelines.core.observation import Workload

WINDOW = timedelta(days=28)
"""Whole weeks, so that weekends weigh the same whenever it is looked at. Source: Google SRE workbook, chapter 2."""
LOOK_BACK = timedelta(days=7)
"""What the burn rate is measured over: the week that is reviewed."""
LEAST_DAYS = 3.0
"""# Assumption: fewer days with anything to judge say nothing of a promise over four weeks."""
LEAST_EXPECTED_BAD = 1.0
"""With so little that a service which just keeps its target would show less than one miss, none proves nothing."""
ANY_TEAM = "any"
_ROUNDING = 1e-9
"""A budget that is used up but for the rounding of its numbers is used up."""


class WorkloadClass(Enum):
    """What sort of work an objective is about."""

    TRAINING = "training"
    INFERENCE = "inference"
    INTERACTIVE = "interactive"
    ANY = "any"

    def covers(self, workload: Workload) -> bool:
        """Return whether a job of this workload is meant; one that says nothing of itself is meant by ANY alone."""
        return self is WorkloadClass.ANY or self.value == workload.value


class ObjectiveKind(Enum):
    """What is promised."""

    UPTIME = "uptime"
    """The share of the requested time (GPU-hours) in which jobs ran, and did not wait after hardware or we had
    interrupted them. Work that was lost is not in it: effective training time reports of that."""
    QUEUE_WAIT = "queue_wait"
    """The share of jobs that waited for their first start no longer than the limit."""
    INFERENCE_P99 = "inference_p99"
    """The share of minutes in which the 99th percentile of the latency stood at or below the limit."""


UNITS = {
    ObjectiveKind.UPTIME: "GPU-hours",
    ObjectiveKind.QUEUE_WAIT: "jobs",
    ObjectiveKind.INFERENCE_P99: "minutes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One promise to one team. Raises ValueError for one that cannot be kept or cannot be broken."""

    team: str
    """The account of its jobs; ANY_TEAM: all of them together."""
    workload: WorkloadClass
    kind: ObjectiveKind
    target_ratio: float
    """The share that must be good, 0 < target < 1: a promise of 1 leaves no budget, and is none."""
    limit: timedelta | None = None
    """The longest wait or latency that is good; None where the kind has none."""

    def __post_init__(self) -> None:
        if not self.team:
            raise ValueError(f"an objective names no team; expected an account, or {ANY_TEAM!r} for all together")
        if not (math.isfinite(self.target_ratio) and 0.0 < self.target_ratio < 1.0):
            raise ValueError(f"the target is {self.target_ratio!r}; expected a share above 0 and below 1")
        if (self.kind is ObjectiveKind.UPTIME) is not (self.limit is None):
            raise ValueError(
                f"an objective of {self.kind.value} has the limit {self.limit}; uptime has none, others do"
            )
        if self.limit is not None and self.limit <= timedelta(0):
            raise ValueError(f"the limit is {self.limit}; expected more than nothing")

    @property
    def budget_ratio(self) -> float:
        """The share that may be bad."""
        return 1.0 - self.target_ratio

    def is_for(self, team: str, workload: Workload) -> bool:
        """Return whether a job of that account and workload counts."""
        return self.team in (ANY_TEAM, team) and self.workload.covers(workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What was good and bad of one objective in one interval, in the unit of its kind."""

    good: float = 0.0
    bad: float = 0.0
    days: float = 0.0
    """Days (UTC) on which there was anything to judge."""

    @property
    def total(self) -> float:
        return self.good + self.bad

    @property
    def bad_ratio(self) -> float | None:
        """The share that was bad, 0..1; None where there was nothing."""
        return self.bad / self.total if self.total > 0 else None


class BudgetState(Enum):
    """How an objective is."""

    TOO_LITTLE_DATA = "too little data"
    KEPT = "kept"
    AT_RISK = "at risk"
    """At the rate of the last week the budget will be gone before the window is over."""
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How one objective is at one time."""

    objective: Objective
    state: BudgetState
    over_window: Tally
    over_week: Tally
    good_ratio: float | None
    """Measured over the window; None where too little is known: it must not be shown as 100 %."""
    spent_ratio: float | None
    """Of the budget: 0 untouched, 1 gone, above 1 overdrawn. None where too little is known."""
    burn_rate: float | None
    """The last week's bad share over the budget; None where the week had nothing to judge, or too little is known."""
    exhausted_in: timedelta | None
    """When the budget is gone at that rate; zero if it is gone; None: never at that rate, or not known."""
    why: str
    """Why too little is known, in words; empty otherwise."""

    @property
    def left_ratio(self) -> float | None:
        """Of the budget; below 0 where it is overdrawn."""
        return None if self.spent_ratio is None else 1.0 - self.spent_ratio


def judge_budget(objective: Objective, over_window: Tally, over_week: Tally) -> Budget:
    """Return how an objective is, by what happened in the last 28 days and in the last 7 of them."""
    why = _too_little(objective, over_window)
    bad_ratio = over_window.bad_ratio
    if why or bad_ratio is None:
        return Budget(
            objective=objective,
            state=BudgetState.TOO_LITTLE_DATA,
            over_window=over_window,
            over_week=over_week,
            good_ratio=None,
            spent_ratio=None,
            burn_rate=None,
            exhausted_in=None,
            why=why,
        )
    spent = bad_ratio / objective.budget_ratio
    if math.isclose(spent, 1.0, rel_tol=_ROUNDING):
        spent = 1.0
    of_week = over_week.bad_ratio
    burn = None if of_week is None else of_week / objective.budget_ratio
    exhausted_in = _exhausted_in(spent, burn)
    going = BudgetState.KEPT if exhausted_in is None else BudgetState.AT_RISK
    return Budget(
        objective=objective,
        state=BudgetState.EXHAUSTED if spent >= 1.0 else going,
        over_window=over_window,
        over_week=over_week,
        good_ratio=1.0 - bad_ratio,
        spent_ratio=spent,
        burn_rate=burn,
        exhausted_in=exhausted_in,
        why="",
    )


def _too_little(objective: Objective, tally: Tally) -> str:
    unit = UNITS[objective.kind]
    if tally.total <= 0:
        return f"no {unit} to judge in {WINDOW.days} days"
    if tally.days < LEAST_DAYS:
        return f"{tally.days:.0f} day(s) with anything to judge; expected {LEAST_DAYS:.0f} or more"
    # What was bad counts however little there was: only "no miss" needs enough to be believed.
    needed = LEAST_EXPECTED_BAD / objective.budget_ratio
    if tally.total < needed and tally.bad < LEAST_EXPECTED_BAD:
        return f"{tally.total:,.0f} {unit}; a target of {objective.target_ratio:.4g} needs {needed:,.0f} or more"
    return ""


def _exhausted_in(spent: float, burn: float | None) -> timedelta | None:
    """Return how long what is left lasts. The window rolls on: at a rate of 1 or less it lasts for ever."""
    if spent >= 1.0:
        return timedelta(0)
    if burn is None or burn <= 1.0:
        return None
    return WINDOW * ((1.0 - spent) / burn)
