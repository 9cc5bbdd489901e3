"""`ops-pipelines capacity forecast`, `plan` and `report`: tables, JSON, files; wrong usage says what to do."""

import json
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ops_pipelines.capacity.answers import forecast_json, json_of, report_in
from ops_pipelines.capacity.forecasting import forecast_quarter
from ops_pipelines.capacity.model import Resource, SeriesKey, SeriesOutlook
from ops_pipelines.capacity.report import forecast_document, plan_document, short_words
from ops_pipelines.capacity.reporting import keep_report, report_quarter
from ops_pipelines.cli import app
from ops_pipelines.report.document import to_json
from ops_pipelines.report.terminal import console, print_document
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow import capacity_samples as samples
from tests.flow.capacity_stage import QUARTER, CapacityStage

HOSTILE = "\x1b]0;owned\x07 [bold]loud[/bold] \u202etxt.exe"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> TeamsDesk:
    """Nodes for less than what is required within a year; today is the quarter's second month."""
    stage = CapacityStage(directory=tmp_path_factory.mktemp("desk"), until=date(2026, 11, 3))
    desk = stage.desk()
    return replace(desk, installed=desk.installed[:28])


def run(desk: TeamsDesk, *words: str, columns: int = 80) -> Result:
    return CliRunner().invoke(
        app, ["capacity", *words], obj=lambda _file: desk, env={"COLUMNS": str(columns)}, catch_exceptions=False
    )


# -- forecast --


def test_weeks_have_a_median_a_bound_what_is_usable_and_how_likely_they_are_short(desk: TeamsDesk) -> None:
    answer = run(desk, "forecast", "--as-of", "2026-10-01", "--json")

    said = json.loads(answer.stdout)
    assert answer.exit_code == 0
    assert (said["quarter"], said["as_of"], said["timezone"]) == ("2026Q4", "2026-10-01", "UTC")
    assert [each["week"] for each in said["weeks"]] == list(range(1, desk.capacity_policy.horizon_weeks + 1))
    assert said["weeks"][1]["first_day"] == "2026-10-08"
    for each in said["weeks"]:
        assert 0 < each["peak_median"] <= each["peak_90"]
        assert 0 < each["usable"] <= each["installed"]
        assert 0 <= each["shortage_probability"] <= 1
    assert {each["name"] for each in said["series"]} >= {"", "research", "product", "lustre"}


def test_probabilities_of_the_forecast_are_those_of_the_plan(desk: TeamsDesk) -> None:
    said = json.loads(run(desk, "forecast", "--as-of", "2026-10-01", "--json").stdout)
    planned = report_quarter(desk, as_of=QUARTER).plan.short_weeks

    assert [each["shortage_probability"] for each in said["weeks"]] == pytest.approx(
        [each.shortage_probability for each in planned], abs=1e-6
    )


def test_people_see_weeks_at_80_columns(desk: TeamsDesk) -> None:
    answer = run(desk, "forecast", "--as-of", "2026-10-01")

    assert answer.exit_code == 0
    for word in ("median", "90 %", "Usable", "Installed", "Short", "2026-10-01", "drawn on where a week has ~"):
        assert word in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80


def test_today_is_taken_where_no_day_is_named(desk: TeamsDesk) -> None:
    assert json.loads(run(desk, "forecast", "--json").stdout)["as_of"] == "2026-11-03"


def test_supply_that_is_not_known_is_null_and_a_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = replace(samples.forecast(), supply=())

    print_document(console(), forecast_document(unknown, shortage_probability_max=0.1))

    weeks = json.loads(to_json(forecast_json(unknown, shortage_probability_max=0.1)))["weeks"]
    assert {(each["usable"], each["installed"], each["shortage_probability"]) for each in weeks} == {(None, None, None)}
    assert "?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chance", "shown"),
    [
        (0.0, "<1%"), (0.0099, "<1%"), (0.01, "1%"), (0.1043, "10% !"), (0.99, "99% !"), (0.9901, ">99% !"),
        (1.0, ">99% !"),
    ],
)  # fmt: skip
def test_no_week_is_told_surer_than_its_peak_is_known(chance: float, shown: str) -> None:
    assert short_words(chance, limit=0.1) == shown


def test_a_forecast_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    silent = SeriesOutlook(key=samples.ALL_H100, treatment="no_days", weeks=())
    nothing = replace(samples.forecast(), outlooks=(silent,), with_projects=())

    print_document(console(), forecast_document(nothing, shortage_probability_max=0.1))

    shown = capsys.readouterr().out
    assert "nothing is known of GPUs" in shown
    assert "no days" in shown
    series = json.loads(to_json(forecast_json(nothing, shortage_probability_max=0.1)))["series"]
    assert series[0]["peak_90"] is None


# -- plan --


def test_the_plan_names_what_to_order_by_when_and_what_else_could_be_done(desk: TeamsDesk) -> None:
    answer = run(desk, "plan", "--as-of", "2026-10-01", "--json")

    said = json.loads(answer.stdout)
    made = report_quarter(desk, as_of=QUARTER).plan
    assert answer.exit_code == 0
    assert said["currency"] == "EUR"
    assert [each["what"] for each in said["orders"]] == [each.what for each in made.orders]
    assert [each["cents"] for each in said["orders"]] == [each.cents for each in made.orders]
    assert {"nothing", "buy"} <= {each["way"] for each in said["alternatives"]}
    assert said["regret_ratios"] == [3.0, 5.0, 10.0]
    assert all(len(each["regret_by_ratio"]) == 3 for each in said["regret"])


def test_people_see_the_plan_at_80_columns(desk: TeamsDesk) -> None:
    answer = run(desk, "plan", "--as-of", "2026-10-01")

    assert answer.exit_code == 0
    for word in ("Order by", "hgx-h100", "Short from", "What else could be done", "short costs", "best"):
        assert word in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (samples.order(is_overdue=True, order_by=date(2026, 9, 1)), "2026-09-01: OVERDUE"),
        (samples.order(), "2027-01-12"),
        (samples.order(order_by=None), "no date"),
        (samples.order(order_by=None, short_from=None, count=0), "not expected"),
        (replace(samples.order(), cents=None), "no price"),
    ],
)
def test_each_kind_of_order_is_told_in_its_words(line: object, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_document(console(), plan_document(samples.plan(line)))  # type: ignore[arg-type]  # an order, by the rows above

    assert word in capsys.readouterr().out


def test_names_that_would_steer_the_terminal_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    key = SeriesKey(resource=Resource.STORAGE_BYTES.value, name=HOSTILE)
    line = replace(samples.order(key=key, what=f"file system {HOSTILE}"), why=HOSTILE)

    print_document(console(), plan_document(samples.plan(line)))

    shown = capsys.readouterr().out
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown


def test_without_capacity_yaml_it_is_said_that_nothing_can_be_ordered(desk: TeamsDesk) -> None:
    answer = run(replace(desk, capacity=None), "plan", "--as-of", "2026-10-01", "--json")

    assert answer.exit_code == 0
    assert "names no `capacity` file" in answer.stderr
    assert json.loads(answer.stdout)["orders"][0]["count"] == 0


def test_a_capacity_yaml_that_cannot_be_used_is_not_told_as_one_that_is_not_named(desk: TeamsDesk) -> None:
    unusable = replace(desk, capacity=None, is_capacity_named=True, projects_trouble="capacity.yaml cannot be used")

    answer = run(unusable, "plan", "--as-of", "2026-10-01", "--json")

    assert answer.stderr == "capacity.yaml cannot be used\n"
    assert (
        "the `capacity` file cannot be used: nothing comes, nothing goes"
        in forecast_quarter(unusable, as_of=QUARTER).notes
    )


# -- report --


def test_a_report_that_was_not_kept_is_made_from_the_days_before_the_quarter(desk: TeamsDesk) -> None:
    answer = run(desk, "report", "--json")

    made = report_in(answer.stdout_bytes)
    assert answer.exit_code == 0
    assert "no report of 2026Q4 is kept yet" in answer.stderr
    assert made == report_in(json_of(report_quarter(desk, as_of=QUARTER)))


def test_the_report_that_was_kept_is_shown_and_as_of_makes_it_anew(desk: TeamsDesk, tmp_path: Path) -> None:
    other = replace(desk, plan_files=CapacityStage(directory=tmp_path).desk().plan_files)
    keep_report(other, samples.report())

    kept = run(other, "report", "--quarter", "2026Q4", "--json")
    anew = run(other, "report", "--quarter", "2026Q4", "--as-of", "2026-10-08", "--json")

    assert report_in(kept.stdout_bytes) == report_in(json_of(samples.report()))
    assert kept.stderr == ""
    assert report_in(anew.stdout_bytes).forecast.as_of == date(2026, 10, 8)


def test_people_see_the_headline_and_the_orders(desk: TeamsDesk) -> None:
    answer = run(desk, "report")

    assert answer.exit_code == 0
    assert "rder" in "".join(answer.stdout.splitlines()[:4])
    assert "Order by" in answer.stdout
    assert "--out DIR" in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 80


def test_page_and_json_are_written_and_their_places_printed(desk: TeamsDesk, tmp_path: Path) -> None:
    answer = run(desk, "report", "--out", str(tmp_path / "out"))

    page, document = tmp_path / "out" / "2026Q4.html", tmp_path / "out" / "2026Q4.json"
    assert answer.exit_code == 0
    assert answer.stdout.splitlines() == [str(page), str(document)]
    assert page.read_text(encoding="utf-8").startswith("<!")
    assert report_in(document.read_bytes()).forecast.quarter == "2026Q4"


# -- wrong usage --


@pytest.mark.parametrize("command", ["forecast", "plan", "report"])
@pytest.mark.parametrize("day", ["", "tomorrow", "2026-02-30", "20261001", "2026-W40-4", "x" * 9_999])
def test_a_day_that_is_none_is_wrong_usage(desk: TeamsDesk, command: str, day: str) -> None:
    answer = run(desk, command, "--as-of", day)

    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert "expected a day, as 2026-10-01" in answer.stderr
    assert len(answer.stderr) < 200


@pytest.mark.parametrize(("day", "exit_code"), [("2026-11-02", 0), ("2026-11-03", 0), ("2026-11-04", 2)])
def test_a_day_that_lies_ahead_is_wrong_usage(desk: TeamsDesk, day: str, exit_code: int) -> None:
    answer = run(desk, "forecast", "--as-of", day, "--json")

    assert answer.exit_code == exit_code
    assert ("today is 2026-11-03" in answer.stderr) == bool(exit_code)


@pytest.mark.parametrize("quarter", ["", "2026", "2026Q5", "2026q4", "0000Q1", "Q4 2026"])
def test_a_quarter_that_is_none_is_wrong_usage(desk: TeamsDesk, quarter: str) -> None:
    answer = run(desk, "report", "--quarter", quarter)

    assert answer.exit_code == 2
    assert "expected a year and a quarter, as 2026Q4" in answer.stderr


def test_a_quarter_that_has_not_begun_is_wrong_usage(desk: TeamsDesk) -> None:
    answer = run(desk, "report", "--quarter", "2027Q1")

    assert answer.exit_code == 2
    assert "begins on 2027-01-01" in answer.stderr


def test_a_day_of_another_quarter_is_wrong_usage(desk: TeamsDesk) -> None:
    answer = run(desk, "report", "--quarter", "2026Q3", "--as-of", "2026-10-01")

    assert answer.exit_code == 2
    assert "expected a day of 2026Q3" in answer.stderr


@pytest.mark.parametrize("command", ["forecast", "plan", "report"])
def test_without_history_it_is_refused_with_what_to_do(tmp_path: Path, command: str) -> None:
    desk = CapacityStage(directory=tmp_path, first=QUARTER - timedelta(days=9)).desk()

    answer = run(desk, command)

    assert answer.exit_code == 4
    assert answer.stdout == ""
    assert "9 days before 2026-10-01 are known" in answer.stderr
    assert "materialise daily_peaks" in answer.stderr


def test_a_report_that_cannot_be_read_is_named(desk: TeamsDesk, tmp_path: Path) -> None:
    other = replace(desk, plan_files=CapacityStage(directory=tmp_path).desk().plan_files)
    (tmp_path / "capacity").mkdir()
    (tmp_path / "capacity" / "2026Q4.json").write_text("{", encoding="utf-8")

    answer = run(other, "report")

    assert answer.exit_code == 2
    assert "2026Q4.json cannot be read" in answer.stderr


@pytest.mark.parametrize("command", ["forecast", "plan", "report", "backtest"])
def test_help_names_the_keys_of_json(command: str) -> None:
    answer = CliRunner().invoke(app, ["capacity", command, "--help"], env={"COLUMNS": "120"})

    assert answer.exit_code == 0
    assert "JSON:" in answer.stdout
