"""The group `costs` as Dagster runs it: pages, files, the checks that block, budgets reported once, and the
schedule."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from ops_pipelines.assets.hours import zone_in
from ops_pipelines.assets.teams import chargeback, prove_each_once, usage_ledger
from ops_pipelines.automation import charge_schedule_in
from ops_pipelines.costs.gather_usage import AttemptCount, part_of, usage_of
from ops_pipelines.costs.usage import Fate
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.page_files import StatementDirectory
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.cost_stage import AGREEMENTS, ALPHA, GPUS, CostLedger, Stage, berlin
from tests.shell.definitions_on import definitions_on

NOVEMBER = berlin(2026, 11)


class Materialised:
    """What one run of the job left."""

    def __init__(self, desk: TeamsDesk, *, key: str = "2026-11") -> None:
        job = definitions_on(desk.cluster, teams_desk=desk).resolve_job_def("charge_teams")
        with dg.DagsterInstance.ephemeral() as instance:
            result = job.execute_in_process(instance=instance, partition_key=key, raise_on_error=False)
        self.is_success = result.success
        self.checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
        self.metadata: dict[str, Mapping[str, object]] = {
            event.materialization.asset_key.to_user_string(): {
                name: value.value for name, value in event.materialization.metadata.items()
            }
            for event in result.get_asset_materialization_events()
        }


def busy_day() -> Stage:
    stage = Stage(month=NOVEMBER)
    stage.listed(range(24))
    stage.ran("1", 0, 12)
    stage.ran("2", 0, 24, nodes="gpu002", account="vision")
    stage.ran("3", 0, 1, nodes="gpu099")
    return stage


def desk_of(stage: Stage, directory: Path, *, hours: float = 24) -> TeamsDesk:
    return stage.desk(now=stage.at(hours), statements=StatementDirectory(directory / "chargeback"))


def test_a_month_is_counted_charged_checked_and_written(tmp_path: Path) -> None:
    run = Materialised(desk_of(busy_day(), tmp_path))

    assert run.is_success
    assert run.checks == {"every_attempt_once": True, "residual_is_zero": True}
    usage, cost = run.metadata["usage_ledger"], run.metadata["chargeback"]
    assert usage["installed_gpu_hours"] == 24 * GPUS
    assert usage["allocated_gpu_hours"] == 12 * 8 + 24 * 8
    assert usage["refused_count"] == 1
    assert cost["residual_cents"] == 0
    assert Path(str(cost["file_csv"])).read_text(encoding="utf-8").startswith("BilledCost,")
    assert Path(str(cost["file_parquet"])).name == "2026-11.parquet"


def test_the_statement_table_adds_up_to_the_cost(tmp_path: Path) -> None:
    cost = Materialised(desk_of(busy_day(), tmp_path)).metadata["chargeback"]

    teams, operator = cost["statement"], cost["operator_lines"]
    assert isinstance(teams, dg.TableMetadataValue)
    assert isinstance(operator, dg.TableMetadataValue)
    rows = [record.data for record in (*teams.records, *operator.records)]
    assert sum(round(float(str(row["total"])) * 100) for row in rows) == round(float(str(cost["asset_cost"])) * 100)
    assert cost["sum_of_lines"] == cost["asset_cost"]
    assert {row["what"] for row in rows if "what" in row} == {each.value for each in Fate if each is not Fate.ALLOCATED}


def test_without_prices_hours_stand_there_and_it_says_so(tmp_path: Path) -> None:
    stage = busy_day()
    stage.prices = None

    run = Materialised(desk_of(stage, tmp_path))

    assert run.is_success
    assert run.checks == {"every_attempt_once": True, "residual_is_zero": True}
    assert "no `prices`" in str(run.metadata["chargeback"]["nothing_is_charged"])
    assert not (tmp_path / "chargeback").exists()


def test_a_missing_price_fails_the_check_and_writes_no_file(tmp_path: Path) -> None:
    stage = busy_day()
    assert stage.prices is not None
    stage.prices = replace(stage.prices, assets=())

    run = Materialised(desk_of(stage, tmp_path))

    assert run.checks["residual_is_zero"] is False
    assert "hgx-h100" in str(run.metadata["chargeback"]["nothing_is_charged"])
    assert not (tmp_path / "chargeback").exists()


def test_hours_that_do_not_close_fail_the_check_that_chargeback_waits_for(tmp_path: Path) -> None:
    desk = desk_of(busy_day(), tmp_path)
    usage = usage_of(part_of(NOVEMBER, now=desk.clock.now()), desk)
    doubled = replace(usage, attempts=AttemptCount(count=2, counted_twice=("1 2026-11-01T00:00:00",)))

    assert [prove_each_once(each).passed for each in (usage, doubled)] == [True, False]
    assert {spec.name: spec.blocking for spec in usage_ledger.check_specs} == {"every_attempt_once": True}
    assert usage_ledger.key in chargeback.dependency_keys


def test_a_budget_that_is_spent_is_told_once_though_the_job_runs_daily(tmp_path: Path) -> None:
    stage = busy_day()
    stage.agreements = replace(AGREEMENTS, monthly_budget_cents={ALPHA: 100})
    sql = SqlLedger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")

    class Told(CostLedger):
        def cursor(self, source: str) -> str | None:
            return sql.cursor(source)

    stage.ledger = Told()
    desk = desk_of(stage, tmp_path)
    desk = replace(desk, cluster=replace(desk.cluster, outbox=sql))

    first, second = Materialised(desk), Materialised(desk)

    assert first.metadata["chargeback"]["messages"] == 2
    assert second.metadata["chargeback"]["messages"] == 0


def test_a_month_that_is_over_is_charged_whole_and_nobody_is_told(tmp_path: Path) -> None:
    stage = busy_day()
    stage.agreements = replace(AGREEMENTS, monthly_budget_cents={ALPHA: 100})

    run = Materialised(desk_of(stage, tmp_path, hours=721))

    assert run.is_success
    assert run.metadata["usage_ledger"]["installed_gpu_hours"] == 720 * GPUS
    assert "messages" not in run.metadata["chargeback"]


@pytest.mark.parametrize(
    ("day", "keys"),
    [
        (1, ["2026-11", "2026-12"]),
        (3, ["2026-11", "2026-12"]),
        (4, ["2026-12"]),
    ],
)
def test_the_first_mornings_of_a_month_charge_the_one_before_too(day: int, keys: list[str]) -> None:
    at = datetime(2026, 12, day, 5, 40, tzinfo=ZoneInfo("Europe/Berlin"))

    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=at.astimezone(UTC))
        requests = list(cast("Iterable[dg.RunRequest]", charge_schedule_in("Europe/Berlin")(context)))

    assert [each.partition_key for each in requests] == keys


@pytest.mark.parametrize(
    ("cluster", "teams", "zone"),
    [
        ("teams: teams.yaml", "timezone: Asia/Shanghai", "Asia/Shanghai"),
        ("teams: teams.yaml", "teams: []", "UTC"),
        ("teams: teams.yaml", "timezone: Nowhere/At_All", "UTC"),
        ("teams: teams.yaml", "timezone: ../../etc/passwd", "UTC"),
        ("teams: teams.yaml", "timezone: Europe", "UTC"),
        ("teams: teams.yaml", "timezone: [", "UTC"),
        ("teams: missing.yaml", "", "UTC"),
        ("name: x", "timezone: Asia/Shanghai", "UTC"),
        ("- a list", "timezone: Asia/Shanghai", "UTC"),
        ("", "timezone: Asia/Shanghai", "UTC"),
    ],
)
def test_schedules_go_by_the_zone_of_the_teams_and_by_utc_where_it_cannot_be_read(
    tmp_path: Path, cluster: str, teams: str, zone: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(cluster, encoding="utf-8")
    (tmp_path / "teams.yaml").write_text(teams, encoding="utf-8")

    assert zone_in(tmp_path / "cluster.yaml") == zone


def test_schedules_go_by_utc_where_there_is_no_cluster_file(tmp_path: Path) -> None:
    assert zone_in(tmp_path / "cluster.yaml") == "UTC"
