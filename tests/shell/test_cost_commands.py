"""`ops-pipelines cost`: tables, JSON and files of a month on a simulated cluster; wrong usage says what to do."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.costs.focus import billed_cents
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.numbers import money
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from tests.shell.desk import CLUSTER_YAML, Desk

PRICES = """
prices:
  currency: EUR
  assets: [{asset: hgx-h100, priced_by: node, capex: "280000.03", amortized_months: 48}]
  per_kwh: "0.115"
  pue: "1.3"
  network_per_month: "777.77"
  unmeasured_watts_per_gpu: "1000"
"""
TEAMS = """
timezone: UTC
teams:
  - team: alpha
"""


class CostDesk(Desk):
    """An operator's place where a job of the account `alpha` ran for two hours."""

    def __init__(self, directory: Path, *, prices: str = PRICES) -> None:
        cluster = CLUSTER_YAML.replace("{name: r1,", "{name: r1, model: hgx-h100,")
        super().__init__(directory, cluster_yaml=f"{cluster}{prices}")
        month = self.clock.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        self.month = f"{month:%Y-%m}"
        if self.clock.now() < month + timedelta(hours=4):
            self.clock.wait(4 * 3600)
        self._run_job(month)

    def _run_job(self, since: datetime) -> None:
        until = since + timedelta(hours=2)
        row = {
            "job": "1", "attempt": since.isoformat(), "account": "alpha", "gpu_count": 8, "nodes": "gpu001",
            "started_at": since, "ended_at": until, "time": until, "state": "COMPLETED",
        }  # fmt: skip
        lake = ParquetLake(self.cluster_file.parent / "state" / "lake", clock=self.clock)
        held = allocations_of(TABLES["job_accounting"].from_rows([row]), start=since, end=until)
        lake.add("job_allocations", held)


@pytest.fixture
def desk(tmp_path: Path) -> CostDesk:
    return CostDesk(tmp_path)


def test_the_lines_of_a_month_add_up_to_its_cost(desk: CostDesk) -> None:
    answer = desk.run("cost", "--json")

    said = json.loads(answer.stdout)
    assert (said["month"], said["currency"], said["residual_cents"]) == (desk.month, "EUR", 0)
    assert sum(line["total_cents"] for line in said["lines"]) == said["asset_cents"] > 0
    assert said["gpu_hours"]["allocated"] == 16


def test_people_see_the_teams_the_rest_and_the_sum(desk: CostDesk) -> None:
    said = json.loads(desk.run("cost", "--json").stdout)

    answer = desk.run("cost", columns=140)

    assert answer.exit_code == 0
    for word in ("alpha", "idle", "broken", "maintenance", "overhead", "All teams", "residual 0.00"):
        assert word in answer.stdout
    assert f"All lines together: {money(said['asset_cents'])} EUR" in answer.stdout


def test_one_team_sees_its_own_lines(desk: CostDesk) -> None:
    said = json.loads(desk.run("cost", "--team", "alpha", "--json").stdout)

    assert [line["team"] for line in said["lines"]] == ["alpha"]


def test_a_team_that_held_nothing_is_refused_with_those_that_did(desk: CostDesk) -> None:
    answer = desk.run("cost", "--team", "alhpa")

    assert answer.exit_code == 4
    assert "alpha" in answer.stderr


@pytest.mark.parametrize("command", ["cost", "advice"])
def test_an_empty_team_is_no_way_to_ask_for_all(desk: CostDesk, command: str) -> None:
    answer = desk.run(command, "--team", " ")

    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert "--team is empty" in answer.stderr


@pytest.mark.parametrize("command", ["cost", "advice"])
def test_an_endless_name_is_refused_in_a_line(desk: CostDesk, command: str) -> None:
    desk.cluster_file.write_text(f"{desk.cluster_file.read_text()}\nteams: teams.yaml\n", encoding="utf-8")
    (desk.cluster_file.parent / "teams.yaml").write_text(TEAMS, encoding="utf-8")

    answer = desk.run(command, "--team", f"<b>\x1b[2J{'x' * 100_000}")

    assert answer.exit_code == 4
    assert "alpha" in answer.stderr
    assert len(answer.stderr) < 1_000
    assert "\x1b" not in answer.stderr


@pytest.mark.parametrize("week", ["0001-W01", "1969-W52", "9999-W52", "2026-W54", "'; DROP TABLE x;--", "x" * 9_999])
def test_a_week_that_never_was_is_refused(desk: CostDesk, week: str) -> None:
    answer = desk.run("advice", "--week", week)

    assert answer.exit_code == 2
    assert "expected" in answer.stderr
    assert len(answer.stderr) < 200


def test_without_prices_hours_are_shown_and_no_file_is_written(tmp_path: Path) -> None:
    desk = CostDesk(tmp_path, prices="")

    shown = desk.run("cost", columns=140)
    written = desk.run("cost", "export", "--to", str(tmp_path / "out"))

    assert shown.exit_code == 0
    assert "no `prices`" in shown.stdout
    assert "alpha" in shown.stdout
    assert written.exit_code == 4
    assert not (tmp_path / "out").exists()


def test_the_export_is_whole_and_adds_up(desk: CostDesk, tmp_path: Path) -> None:
    said = json.loads(desk.run("cost", "--json").stdout)

    answer = desk.run("cost", "export", "--month", desk.month, "--to", str(tmp_path / "out"))

    assert answer.exit_code == 0
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [f"{desk.month}.csv", f"{desk.month}.parquet"]
    assert billed_cents((tmp_path / "out" / f"{desk.month}.csv").read_bytes()) == said["asset_cents"]


@pytest.mark.parametrize("month", ["2026", "2026-13", "november", "2026-11-01", "", "0000-01", "0001-01", "9999-12"])
def test_a_month_that_is_none_is_wrong_usage(desk: CostDesk, month: str) -> None:
    answer = desk.run("cost", "--month", month)

    assert answer.exit_code == 2
    assert "expected a year and a month" in answer.stderr


def test_a_month_that_has_not_begun_is_refused(desk: CostDesk) -> None:
    answer = desk.run("cost", "--month", "2999-01")

    assert answer.exit_code == 4
    assert "no hour is over" in answer.stderr


def test_a_place_that_cannot_be_written_is_wrong_usage(desk: CostDesk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    answer = desk.run("cost", "export", "--to", str(tmp_path / "file" / "below"))

    assert answer.exit_code == 2
    assert "cannot be kept" in answer.stderr
