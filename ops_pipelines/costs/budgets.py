"""Budgets of teams: what a month will have cost when it ends, and when to say so. Values and arithmetic only.

The forecast is the spend so far, and for each day to come what the same weekday cost within the last 7 days: work stops
at weekends, and a plain mean would promise too much on a Friday. It knows nothing of what is planned.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from fractions import Fraction

from ops_pipelines.core.money import Amount, Cents, to_cents
from ops_pipelines.core.proposal import TeamName

_LOOK_BACK_DAYS = 7
_DAY = timedelta(days=1)
_NEARLY_ALL = Fraction(8, 10)


class BudgetAlert(Enum):
    """What is told of a budget, once a month each."""

    FORECAST_OVERRUN = "forecast_overrun"
    """It will not last, if the month goes on as the last days did."""
    NEARLY_SPENT = "80_percent"
    SPENT = "100_percent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a team may spend in one month."""

    team: TeamName
    first_day: date
    """Of the month."""
    cents: Cents

    def __post_init__(self) -> None:
        if self.first_day.day != 1:
            raise ValueError(f"{self.team}: a budget from {self.first_day}; expected the first day of a month")
        if self.cents <= 0:
            raise ValueError(f"{self.team}: a budget of {self.cents} cents; expected more than 0")

    @property
    def days(self) -> tuple[date, ...]:
        """The days of its month."""
        first = self.first_day
        return tuple(first + _DAY * each for each in range(31) if (first + _DAY * each).month == first.month)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStanding:
    """How a budget stands at the begin of a day."""

    budget: Budget
    today: date
    spent_cents: Cents
    """In the month, before today."""
    forecast_cents: Cents | None
    """At the end of the month; None: none of the last 7 days is known."""

    @property
    def spent_ratio(self) -> Fraction:
        return Fraction(self.spent_cents, self.budget.cents)

    @property
    def alerts(self) -> tuple[BudgetAlert, ...]:
        """What holds now."""
        will_overrun = self.forecast_cents is not None and self.forecast_cents > self.budget.cents
        holds = {
            BudgetAlert.FORECAST_OVERRUN: will_overrun and self.spent_ratio < 1,
            BudgetAlert.NEARLY_SPENT: _NEARLY_ALL <= self.spent_ratio < 1,
            BudgetAlert.SPENT: self.spent_ratio >= 1,
        }
        return tuple(alert for alert, is_true in holds.items() if is_true)


def judge_budget(budget: Budget, spent: Mapping[date, Cents], *, today: date) -> BudgetStanding:
    """Return how the budget stands at the begin of `today`, a day of its month or the one after it.

    `spent`: what each full local day cost, of the month before, too. A day of this month that is missing counts as
    nothing spent so far, and is not learned from. Raises ValueError for another month's day.
    """
    days = budget.days
    if not days[0] <= today <= days[-1] + _DAY:
        raise ValueError(f"{budget.team}: {today} is not in the month from {budget.first_day}; expected a day of it")
    so_far = sum(cents for day, cents in spent.items() if days[0] <= day < today)
    to_come = [day for day in days if day >= today]
    expected = _expected(spent, to_come=to_come, today=today)
    return BudgetStanding(
        budget=budget,
        today=today,
        spent_cents=Cents(so_far),
        forecast_cents=None if expected is None else to_cents(so_far + expected),
    )


def _expected(spent: Mapping[date, Cents], *, to_come: Collection[date], today: date) -> Amount | None:
    """Return what the days to come will cost: each as its weekday did, or as the mean where that one is not known."""
    if not to_come:
        return 0
    seen = [today - _DAY * back for back in range(1, _LOOK_BACK_DAYS + 1)]
    known = {day.weekday(): spent[day] for day in seen if day in spent}
    if not known:
        return None
    mean = Fraction(sum(known.values()), len(known))
    return sum((Fraction(known.get(day.weekday(), mean)) for day in to_come), Fraction(0))
