"""The page of costs: teams, the operator and the sum that closes; without prices or data it says what is missing."""

import re
from dataclasses import replace
from datetime import date

from ops_pipelines.core.money import Cents
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.costs.report import cost_document
from ops_pipelines.costs.statements import Budget, BudgetStanding, Charge, statement_of
from ops_pipelines.report.html import page_of
from ops_pipelines.report.numbers import money
from tests.flow.cost_stage import Stage, berlin

MONTH = berlin(2026, 11)
EVIL = '"><script>alert(1)</script> \u202e=cmd()'


def charged(*accounts: str, prices: bool = True) -> Charge:
    stage = Stage(month=MONTH)
    for number, account in enumerate(accounts):
        stage.ran(str(number), number, number + 1, account=account)
    stage.measured("gpu001", "0", 0, watts=600, utilisation=0.6)
    if not prices:
        stage.prices = None
    return statement_of(MONTH, stage.desk(now=stage.at(48)), until=stage.at(48))


def page_for(charge: Charge | None, *, why_not: str = "", filed: int | None = None) -> str:
    return page_of(
        cost_document(
            charge, cluster="small", month="2026-11", why_not=why_not,
            months={"2026-11": () if filed is None else ("csv", "parquet"), "2026-10": ("csv",)},
            filed_cents=None if filed is None else Cents(filed), now=MONTH.begins_at,
        )
    )  # fmt: skip


def standing(spent: int, budget: int, forecast: int | None) -> BudgetStanding:
    return BudgetStanding(
        budget=Budget(team=TeamName("alpha"), first_day=date(2026, 11, 1), cents=Cents(budget)),
        today=date(2026, 11, 3), spent_cents=Cents(spent), forecast_cents=None if forecast is None else Cents(forecast),
    )  # fmt: skip


def test_the_sum_of_all_lines_is_the_cost_of_the_assets() -> None:
    charge = charged("alpha", "beta")
    assert charge.statement is not None

    page = page_for(charge)

    assert f"All lines together: {money(charge.statement.asset_cents)} EUR." in page
    assert '<span class="good"><bdi>residual 0.00</bdi></span>' in page


def test_teams_and_the_operator_stand_apart() -> None:
    page = page_for(charged("alpha", "beta"))

    teams, operator = page.split("<h2>With the operator</h2>")
    assert "<bdi>alpha</bdi>" in teams
    assert "<bdi>alpha</bdi>" not in operator
    assert all(word in operator for word in ("idle", "broken", "maintenance", "overhead"))


def test_the_month_to_date_is_said_to_be_one() -> None:
    assert "Month to date" in page_for(charged("alpha"))


def test_shares_of_hours_fill_the_bar_and_no_more() -> None:
    page = page_for(charged("alpha", "beta"))

    parts = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%" height="22"', page)
    assert len(parts) >= 2
    assert sum(float(wide) for _, wide in parts) <= 100.05
    assert all(float(at) + float(wide) <= 100.05 for at, wide in parts)


def test_without_prices_hours_are_shown_and_no_money() -> None:
    page = page_for(charged("alpha", prices=False))

    assert "cluster.yaml has no `prices`" in page
    assert "residual" not in page
    assert "<bdi>alpha</bdi>" in page


def test_without_anything_the_page_says_what_fills_it() -> None:
    page = page_for(None, why_not="of 2026-11 no hour is over yet; ask again later")

    assert "no hour is over yet" in page
    assert "ops-pipelines cost --month 2026-11" in page


def test_files_are_linked_and_a_file_of_an_earlier_hour_is_said_to_be_one() -> None:
    charge = charged("alpha")
    assert charge.statement is not None

    same = page_for(charge, filed=charge.statement.asset_cents)
    earlier = page_for(charge, filed=charge.statement.asset_cents - 1)

    assert 'href="chargeback/2026-11.csv"' in same
    assert "written before" not in same
    assert "written before" in earlier


def test_budgets_say_how_they_stand() -> None:
    charge = charged("alpha")
    said = [
        page_for(replace(charge, standings=(standing(spent, 1_000, forecast),)))
        for spent, forecast in ((100, 500), (100, 1_001), (800, 900), (800, 1_100), (1_000, None))
    ]
    expected = (">within<", ">will not last<", ">80 % are spent<", ">will not last, 80 % are spent<", ">spent<")

    for page, words in zip(said, expected, strict=True):
        assert words in page
    assert "forecast not known" in said[4]


def test_projects_stand_below_their_team() -> None:
    stage = Stage(month=MONTH)
    stage.ran("1", 0, 5, account="beta")
    page = page_for(statement_of(MONTH, stage.desk(now=stage.at(24)), until=stage.at(24)))

    assert "<bdi>beta</bdi>" in page


def test_many_teams_are_folded() -> None:
    page = page_for(charged(*(f"team{number:03}" for number in range(31))))

    assert "1 more teams" in page


def test_accounts_of_others_stay_short_text() -> None:
    page = page_for(charged(EVIL + "x" * 10_000))

    assert "<script>" not in page
    assert "\u202e" not in page
    assert "x" * 301 not in page
