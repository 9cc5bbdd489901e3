"""Budgets: what the month will have cost, and when that is reported."""

from datetime import date, timedelta

import pytest

from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.costs.statements import Budget, BudgetAlert, judge_budget

JUNE_1 = date(2026, 6, 1)  # a Monday
BUDGET = Budget(team=TeamName("ml"), first_day=JUNE_1, cents=Cents(30_000))


def days(first: date, *cents: int) -> dict[date, Cents]:
    return {first + timedelta(days=number): Cents(amount) for number, amount in enumerate(cents)}


def test_an_even_month_is_forecast_exactly() -> None:
    standing = judge_budget(BUDGET, days(JUNE_1, *[1_000] * 10), today=date(2026, 6, 11))

    assert standing.spent_cents == 10_000
    assert standing.forecast_cents == 30_000
    assert standing.alerts == ()


def test_weekends_are_forecast_as_weekends() -> None:
    week = (1_000, 1_000, 1_000, 1_000, 1_000, 0, 0)

    standing = judge_budget(BUDGET, days(JUNE_1, *week), today=date(2026, 6, 8))

    assert standing.forecast_cents == 22 * 1_000  # June 2026 has 22 working days


def test_only_the_last_seven_days_are_learned_from() -> None:
    standing = judge_budget(BUDGET, days(JUNE_1, *[5_000] * 3, *[100] * 7), today=date(2026, 6, 11))

    assert standing.forecast_cents == 15_700 + 20 * 100


def test_the_days_before_the_month_are_learned_from_and_not_counted() -> None:
    standing = judge_budget(BUDGET, days(date(2026, 5, 25), *[2_000] * 7), today=JUNE_1)

    assert (standing.spent_cents, standing.forecast_cents) == (0, 60_000)


def test_a_weekday_that_is_not_known_is_taken_as_the_mean() -> None:
    standing = judge_budget(BUDGET, days(JUNE_1, 1_000), today=date(2026, 6, 2))

    assert standing.forecast_cents == 30_000


def test_without_any_day_there_is_no_forecast() -> None:
    standing = judge_budget(BUDGET, {}, today=JUNE_1)

    assert (standing.forecast_cents, standing.alerts) == (None, ())


def test_after_the_last_day_the_forecast_is_what_was_spent() -> None:
    standing = judge_budget(BUDGET, days(JUNE_1, *[1_000] * 30), today=date(2026, 7, 1))

    assert standing.forecast_cents == standing.spent_cents == 30_000


@pytest.mark.parametrize(
    ("spent", "alerts"),
    [
        (23_999, ()),
        (24_000, (BudgetAlert.NEARLY_SPENT,)),
        (24_001, (BudgetAlert.NEARLY_SPENT,)),
        (29_999, (BudgetAlert.NEARLY_SPENT,)),
        (30_000, (BudgetAlert.SPENT,)),
        (30_001, (BudgetAlert.SPENT,)),
    ],
)
def test_alerts_are_raised_at_80_and_100_percent(spent: int, alerts: tuple[BudgetAlert, ...]) -> None:
    quiet = dict.fromkeys((date(2026, 6, 24) - timedelta(days=back) for back in range(7)), Cents(0))

    standing = judge_budget(BUDGET, {**quiet, JUNE_1: Cents(spent)}, today=date(2026, 6, 25))

    assert standing.alerts == alerts


@pytest.mark.parametrize(("per_day", "overruns"), [(999, False), (1_000, False), (1_001, True)])
def test_an_overrun_is_told_while_there_is_still_budget(per_day: int, overruns: bool) -> None:
    standing = judge_budget(BUDGET, days(JUNE_1, *[per_day] * 10), today=date(2026, 6, 11))

    assert (BudgetAlert.FORECAST_OVERRUN in standing.alerts) is overruns


def test_a_day_of_another_month_is_refused() -> None:
    for today in (date(2026, 5, 31), date(2026, 7, 2)):
        with pytest.raises(ValueError, match="expected a day of it"):
            judge_budget(BUDGET, {}, today=today)
