"""Who bears how many cents of a month on a small cluster; credits, budgets, and what is reported them."""

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import JobAttempt, JobId
from ops_pipelines.core.notes import Audience, Lane, TellRules
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.record import StatementFilesError
from ops_pipelines.costs.charges import CostRow, cost_rows
from ops_pipelines.costs.focus import billed_cents, export_statement, keep_statement
from ops_pipelines.costs.statement import Service
from ops_pipelines.costs.statements import BudgetAlert, Charge, budget_notes, statement_of
from ops_pipelines.costs.usage import Fate
from ops_pipelines.resources.page_files import StatementDirectory
from tests.flow.cost_stage import AGREEMENTS, ALPHA, BETA, GPUS, LAB, PRICES, CostLedger, Stage, berlin
from tests.flow.review_stage import act, broken, line

NOVEMBER = berlin(2026, 11)


def charged(stage: Stage, hours: float) -> Charge:
    now = stage.at(hours)
    return statement_of(stage.month, stage.desk(now=now), until=now)


def row(charge: Charge, team: str = "", project: str = "", *, fate: Fate = Fate.ALLOCATED) -> CostRow:
    assert charge.statement is not None, charge.why_not
    (found,) = [
        each for each in cost_rows(charge.statement) if (each.fate, each.team, each.project) == (fate, team, project)
    ]
    return found


def busy_day() -> Stage:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(24))
    stage.ran("1", 0, 12)
    stage.ran("2", 0, 24, nodes="gpu002", account="vision")
    for hour in range(12):
        stage.measured("gpu001", "1", hour, watts=700, utilisation=0.5)
    return stage


def with_a_broken_gpu(*, checkpoint: bool) -> Stage:
    """Job 1 dies at 6:00 of a broken GPU of gpu001; its last checkpoint, if any, is of 4:00."""
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 6, state="NODE_FAIL")
    if checkpoint:
        stage.tables["job_logs"] = [line("1", stage.at(4), "Saved checkpoint to /c")]
    attempt = JobAttempt(job=JobId("1"), started_at=stage.at(0))
    stage.ledger = CostLedger(
        incidents=(broken("INC-0001", stage.at(6), restored=stage.at(8), victims=frozenset({attempt})),),
        acts={
            "INC-0001": (
                act(Verb.DRAIN, "INC-0001", stage.at(6), stage.at(6), on="gpu001"),
                act(Verb.RESUME, "INC-0001", stage.at(8), stage.at(8), on="gpu001"),
            )
        },
    )
    return stage


# -- what it costs --


def test_the_lines_add_up_to_the_cost_of_the_assets() -> None:
    charge = charged(busy_day(), 24)

    assert charge.statement is not None
    assert charge.statement.residual_cents == 0
    assert sum(each.total_cents for each in cost_rows(charge.statement)) == charge.statement.asset_cents


def test_every_installed_hour_costs_the_same_rate_whoever_bears_it() -> None:
    charge = charged(busy_day(), 24)

    assert charge.statement is not None
    (rate,) = charge.statement.rates.values()
    for each in cost_rows(charge.statement):
        assert abs(each.of(Service.GPU) - float(rate) * each.gpu_hours) < 1.0


def test_measured_power_is_charged_to_whom_it_was_measured_of_and_the_rest_is_assumed() -> None:
    charge = charged(busy_day(), 24)

    cents_of_a_kwh = 11.5 * 1.3
    assert row(charge, "alpha").of(Service.ENERGY) == pytest.approx(96 * 0.7 * cents_of_a_kwh, abs=1)
    assert row(charge, "beta", "vision").of(Service.ENERGY) == pytest.approx(192 * 1.0 * cents_of_a_kwh, abs=1)
    assert charge.cost is not None
    assert charge.cost.estimated_joules == (GPUS * 24 - 96) * 3600 * 1000


def test_broken_hours_are_the_operators_and_no_team_pays_them() -> None:
    stage = busy_day()
    quiet = row(charged(stage, 24), "beta", "vision").of(Service.GPU)
    stage.ledger = CostLedger(
        incidents=(broken("INC-0001", stage.at(13)),),
        acts={"INC-0001": (act(Verb.DRAIN, "INC-0001", stage.at(13), stage.at(13), on="gpu001"),)},
    )

    broken_day = charged(stage, 24)

    assert row(broken_day, fate=Fate.BROKEN).gpu_hours == pytest.approx(11 * 8 + 1 / 60)
    assert abs(row(broken_day, "beta", "vision").of(Service.GPU) - quiet) <= 1


def test_without_prices_hours_are_counted_and_nothing_is_charged() -> None:
    stage = busy_day()
    stage.prices = None

    charge = charged(stage, 24)

    assert charge.statement is None
    assert "no `prices`" in charge.why_not
    assert charge.usage.attempts.count == 2


def test_a_missing_price_is_said_and_hours_are_counted() -> None:
    stage = busy_day()
    stage.prices = replace(PRICES, assets=())

    charge = charged(stage, 24)

    assert charge.statement is None
    assert "hgx-h100" in charge.why_not
    assert charge.usage.residual_gpu_seconds == 0


def test_power_that_nobody_measured_is_refused_where_no_wattage_is_stated() -> None:
    stage = busy_day()
    stage.prices = replace(PRICES, unmeasured_watts_per_gpu=None)

    assert "unmeasured_watts_per_gpu" in charged(stage, 24).why_not


@pytest.mark.parametrize("month", [berlin(2026, 3), berlin(2026, 10), NOVEMBER])
def test_a_whole_month_costs_its_capex_however_long_its_clock_is(month: object) -> None:
    stage = Stage(month=month)  # type: ignore[arg-type]  # a CostMonth
    stage.prices = replace(PRICES, unmeasured_watts_per_gpu=0, network_cents_per_month=0, space_cents_per_month=0)
    stage.ran("1", 0, 100)

    charge = charged(stage, 800)

    per_node = Decimal(28_000_003) / 48 + 20_001
    assert charge.statement is not None
    assert charge.statement.asset_cents == round(3 * per_node)


def test_the_same_facts_give_the_same_cents_in_any_order_of_rows() -> None:
    stage, turned = busy_day(), busy_day()
    turned.tables = {name: list(reversed(rows)) for name, rows in turned.tables.items()}

    first, second = charged(stage, 24), charged(turned, 24)

    assert first.statement == second.statement
    assert first.statement is not None


# -- credits --


def test_work_since_the_last_checkpoint_is_credited_and_the_operator_bears_it() -> None:
    charge = charged(with_a_broken_gpu(checkpoint=True), 24)

    team = row(charge, "alpha")
    paid = team.of(Service.GPU, Service.ENERGY, Service.NETWORK)
    assert team.of(Service.CREDIT) == pytest.approx(-paid * 2 / 6, abs=1)
    assert row(charge, fate=Fate.OVERHEAD).of(Service.INCIDENT_CREDIT) == -team.of(Service.CREDIT)


def test_without_a_known_checkpoint_there_is_no_credit_and_that_is_said() -> None:
    charge = charged(with_a_broken_gpu(checkpoint=False), 24)

    assert row(charge, "alpha").of(Service.CREDIT) == 0
    assert any("no known checkpoint" in note for note in charge.notes)


# -- budgets --


def test_a_budget_is_judged_at_the_begin_of_the_day_and_an_organisation_pays_for_its_teams() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 60)
    stage.ran("2", 0, 60, nodes="gpu002", account="vision")

    charge = charged(stage, 60)

    standings = {each.budget.team: each for each in charge.standings}
    assert standings[ALPHA].today == date(2026, 11, 3)
    assert charge.statement is not None
    rows = cost_rows(charge.statement)

    def paid_by(team: TeamName) -> int:
        return sum(each.total_cents for each in rows if each.fate is Fate.ALLOCATED and each.team == team)

    assert standings[ALPHA].spent_cents == pytest.approx(paid_by(ALPHA) * 48 / 60, abs=6)
    assert standings[LAB].spent_cents == pytest.approx((paid_by(ALPHA) + paid_by(BETA)) * 48 / 60, abs=6)


def test_on_the_first_days_the_forecast_learns_from_the_month_before() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", -7 * 24, 24)

    (alpha, _) = charged(stage, 24).standings

    assert alpha.today == date(2026, 11, 2)
    # October has 745 hours: a day of it costs a little less.
    assert alpha.forecast_cents == pytest.approx(alpha.spent_cents * 30, rel=0.04)


def test_a_budget_of_nothing_is_said_and_not_judged() -> None:
    stage = busy_day()
    stage.agreements = replace(AGREEMENTS, monthly_budget_cents={ALPHA: 0})

    charge = charged(stage, 24)

    assert charge.standings == ()
    assert any("budget of 0" in note for note in charge.notes)


def overspent() -> Charge:
    stage = Stage(month=NOVEMBER)
    stage.agreements = replace(AGREEMENTS, monthly_budget_cents={ALPHA: 100})
    stage.ran("1", 0, 24)
    return charged(stage, 24)


def test_team_and_operators_are_told_once_a_month_of_each_alert() -> None:
    charge, now = overspent(), NOVEMBER.begins_at.replace(day=2, hour=12)

    notes = budget_notes(charge.standings, currency="EUR", rules=TellRules(), now=now)
    again = budget_notes(charge.standings, currency="EUR", rules=TellRules(), now=now.replace(day=9))

    assert [standing.alerts for standing in charge.standings] == [(BudgetAlert.SPENT,)]
    assert [(each.audience, each.recipient, each.lane) for each in notes] == [
        (Audience.TEAM, "alpha", Lane.AT_ONCE),
        (Audience.ON_CALL, "operator on call", Lane.DIGEST),
    ]
    assert [each.key for each in again] == [each.key for each in notes]
    assert len({each.key for each in notes}) == 2


def test_at_night_a_team_is_told_in_the_morning() -> None:
    night = NOVEMBER.begins_at.replace(day=2, hour=23)

    team, _ = budget_notes(overspent().standings, currency="EUR", rules=TellRules(), now=night)

    assert team.lane is Lane.DIGEST
    assert team.ready_at.hour == 7


# -- files --


def test_both_files_hold_the_same_rows_and_the_cents_of_the_assets(tmp_path: Path) -> None:
    stage = busy_day()
    now = stage.at(24)
    desk = stage.desk(now=now, statements=StatementDirectory(tmp_path / "chargeback"))
    charge = statement_of(NOVEMBER, desk, until=now)
    assert charge.statement is not None

    places = keep_statement(charge.statement, desk)

    assert [Path(each).name for each in places] == ["2026-11.csv", "2026-11.parquet"]
    assert billed_cents(Path(places[0]).read_bytes()) == charge.statement.asset_cents
    table = pq.read_table(places[1])
    assert table.num_rows == len(charge.statement.lines)
    assert sum(table["BilledCost"].to_pylist()) * 100 == charge.statement.asset_cents


def test_a_statement_that_is_kept_again_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    shelf = StatementDirectory(tmp_path)

    shelf.keep("2026-11.csv", b"first")
    shelf.keep("2026-11.csv", b"second")

    assert shelf.read("2026-11.csv") == b"second"
    assert [each.name for each in tmp_path.iterdir()] == ["2026-11.csv"]


@pytest.mark.parametrize("name", ["../2026-11.csv", "2026-11", "2026-11.sh", "2026-11.csv\n", ""])
def test_a_name_that_is_no_statement_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StatementFilesError, match="names no statement"):
        StatementDirectory(tmp_path).keep(name, b"")


def test_a_formula_in_an_account_stays_a_text_in_the_file() -> None:
    stage = Stage(month=NOVEMBER)
    stage.ran("1", 0, 1, account="=HYPERLINK(1)")
    now = stage.at(24)
    desk = stage.desk(now=now)
    charge = statement_of(NOVEMBER, desk, until=now)
    assert charge.statement is not None

    (csv_file, _) = export_statement(charge.statement, desk)

    assert b"'=HYPERLINK(1)" in csv_file.content
    assert b",=HYPERLINK" not in csv_file.content
