"""The quarter as Dagster runs it: pages of forecast and plan, the check that blocks, what is kept, and the schedule."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from ops_pipelines.assets.capacity import CapacityConfig, day_of, describe_report, prove_complete
from ops_pipelines.assets.hours import QUARTERS
from ops_pipelines.automation import capacity_schedule_in
from ops_pipelines.capacity.past import Completeness
from ops_pipelines.capacity.reporting import kept_report
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST
from ops_pipelines.teams.desk import TeamsDesk
from tests.flow.capacity_samples import kept_check
from tests.flow.capacity_stage import QUARTER, CapacityStage
from tests.pages.capacity_sample import whole_report
from tests.shell.definitions_on import definitions_on

KEY = "2026-10-01"


class Materialised:
    """What one run of the job left."""

    def __init__(self, desk: TeamsDesk, *, as_of: str = "") -> None:
        job = definitions_on(desk.cluster, teams_desk=desk).resolve_job_def("plan_capacity")
        config = {"ops": {"capacity_forecast": {"config": {"as_of": as_of}}}} if as_of else {}
        with dg.DagsterInstance.ephemeral() as instance:
            result = job.execute_in_process(
                instance=instance, partition_key=KEY, run_config=config, raise_on_error=False
            )
        self.is_success = result.success
        self.checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
        self.metadata: dict[str, Mapping[str, object]] = {
            event.materialization.asset_key.to_user_string(): {
                name: value.value if hasattr(value, "value") else value
                for name, value in event.materialization.metadata.items()
            }
            for event in result.get_asset_materialization_events()
        }


def records(shown: object) -> list[Mapping[str, object]]:
    assert isinstance(shown, dg.TableMetadataValue)
    return [each.data for each in shown.records]


def test_a_quarter_is_forecast_planned_shown_and_kept(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path).desk()
    desk = replace(desk, installed=desk.installed[:28], cluster=replace(desk.cluster, pages_url="http://ops:8080"))

    run = Materialised(desk)

    assert run.is_success
    assert run.checks == {"inputs_complete": True}
    forecast, plan = run.metadata["capacity_forecast"], run.metadata["capacity_plan"]
    assert forecast["as_of"] == "2026-10-01, UTC"
    weeks = [each["week"] for each in records(forecast["weeks"])]
    assert (weeks[:4], weeks[-1]) == ([1, 2, 3, 4], 26)
    assert str(forecast["peaks_h100"]).startswith("![")
    assert "Order" in str(plan["headline"])
    assert str(plan["shortage_h100"]).startswith("![")
    (nodes,) = [each for each in records(plan["orders"]) if each["what"] == "hgx-h100"]
    assert nodes["order_by"] != "no date"
    assert str(nodes["cost"]).endswith(" EUR")
    assert {each["way"] for each in records(plan["alternatives"])} >= {"nothing", "buy"}
    assert plan["kept_as"] == "2026Q4"
    assert Path(str(plan["report"])) == tmp_path / "capacity" / "2026Q4.json"
    assert plan["page_in_browser"] == "http://ops:8080/capacity?quarter=2026Q4"
    assert "Capacity plan 2026Q4" in Path(str(plan["page"])).read_text(encoding="utf-8")
    assert "changed_since_first_report" not in plan


def test_what_is_shown_in_place_is_small_enough_for_it(tmp_path: Path) -> None:
    run = Materialised(CapacityStage(directory=tmp_path).desk())

    for shown in (run.metadata["capacity_forecast"]["peaks_h100"], run.metadata["capacity_plan"]["headline"]):
        assert len(str(shown)) < INLINE_AT_MOST
    assert len(str(run.metadata["capacity_plan"]["shortage_h100"])) < INLINE_AT_MOST


def test_no_week_is_told_as_surely_short_nor_as_surely_well() -> None:
    report = whole_report()
    probabilities = (0.0, 0.5, 1.0)
    weeks = tuple(
        replace(each, gpu_type=GpuType("h100"), first_day=date(2026, 10 + number, 1), shortage_probability=probability)
        for number, (each, probability) in enumerate(zip(report.plan.short_weeks, probabilities, strict=False))
    )
    ways = tuple(replace(each, worst_shortage_probability=1.0) for each in report.plan.alternatives)

    shown = describe_report(replace(report, plan=replace(report.plan, short_weeks=weeks, alternatives=ways)))

    assert [each["probability"] for each in records(shown["shortage"])] == ["at most 1 %", "50 %", "at least 99 %"]
    assert {each["worst_week_then"] for each in records(shown["alternatives"])} == {"at least 99 %"}
    assert str(shown["shortage_h100"].value).endswith("Weeks short of h100: 1 % to 99 %, last 99 %")


def test_a_check_keeps_the_first_report_and_lies_beside_it(tmp_path: Path) -> None:
    stage = CapacityStage(directory=tmp_path, until=date(2026, 11, 1))
    desk = stage.desk()
    assert Materialised(desk).is_success
    first = kept_report(desk, "2026Q4")

    fewer = replace(desk, installed=desk.installed[:20])
    run = Materialised(fewer, as_of="2026-11-01")

    assert run.is_success
    plan = run.metadata["capacity_plan"]
    assert plan["kept_as"] == "2026Q4-check-2026-11"
    warnings = [str(each["warning"]) for each in records(plan["changed_since_first_report"])]
    assert any("hgx-h100" in each for each in warnings)
    assert kept_report(desk, "2026Q4") == first
    check = kept_check(desk, "2026Q4", month="2026-11")
    assert check is not None
    assert check.forecast.as_of == date(2026, 11, 1)


def test_no_plan_follows_where_days_of_the_last_weeks_are_missing(tmp_path: Path) -> None:
    gone = frozenset(QUARTER - timedelta(days=5 + number) for number in range(3))
    desk = CapacityStage(directory=tmp_path, left_out=gone).desk()

    run = Materialised(desk)

    assert not run.is_success
    assert run.checks == {"inputs_complete": False}
    assert set(run.metadata) == {"capacity_forecast"}
    assert kept_report(desk, "2026Q4") is None


def test_without_history_the_run_fails_and_keeps_nothing(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path, first=QUARTER - timedelta(days=9)).desk()

    run = Materialised(desk)

    assert not run.is_success
    assert run.metadata == {}
    assert kept_report(desk, "2026Q4") is None


def test_a_site_that_keeps_nothing_still_sees_its_plan(tmp_path: Path) -> None:
    run = Materialised(CapacityStage(directory=tmp_path).desk(plan_files=None, prices=None, capacity=None))

    assert run.is_success
    assert "report" not in run.metadata["capacity_plan"]
    assert "page_in_browser" not in run.metadata["capacity_plan"]


# -- what is asked for --


@pytest.mark.parametrize(
    ("as_of", "day"),
    [("", date(2026, 10, 1)), ("2026-10-01", date(2026, 10, 1)), ("2026-12-31", date(2026, 12, 31))],
)
def test_a_quarter_is_as_of_its_first_day_unless_a_day_of_it_is_named(as_of: str, day: date) -> None:
    assert day_of(KEY, CapacityConfig(as_of=as_of)) == day


@pytest.mark.parametrize("as_of", ["2026-09-30", "2027-01-01", "2026-02-30"])
def test_a_day_of_another_quarter_or_none_is_refused(as_of: str) -> None:
    with pytest.raises(dg.Failure):
        day_of(KEY, CapacityConfig(as_of=as_of))


def test_a_day_is_written_as_a_date() -> None:
    with pytest.raises(ValueError, match="as_of"):
        CapacityConfig(as_of="tomorrow")


@pytest.mark.parametrize(("known", "passed"), [(28, True), (26, True), (25, False), (0, False)])
def test_the_check_names_the_share_that_is_known(known: int, passed: bool) -> None:
    missing = tuple(QUARTER - timedelta(days=number) for number in range(28 - known, 0, -1))

    found = prove_complete(Completeness(known=known, expected=28, missing=missing))

    assert found.passed is passed
    assert str(found.description).startswith(f"{known} of the last 28 days are known, {100 * known / 28:.0f} %.")
    assert ("Materialise" in str(found.description)) is not passed


# -- partitions and the schedule --


def test_quarters_are_named_by_their_first_day_and_one_is_ahead() -> None:
    keys = QUARTERS.get_partition_keys(current_time=datetime(2026, 11, 20, tzinfo=UTC))

    assert keys == ["2026-01-01", "2026-04-01", "2026-07-01", "2026-10-01", "2027-01-01"]


@pytest.mark.parametrize(
    ("at", "key", "as_of"),
    [
        (datetime(2026, 10, 1, 6, tzinfo=UTC), "2026-10-01", ""),
        (datetime(2026, 11, 1, 6, tzinfo=UTC), "2026-10-01", "2026-11-01"),
        (datetime(2026, 12, 1, 6, tzinfo=UTC), "2026-10-01", "2026-12-01"),
        (datetime(2027, 1, 1, 6, tzinfo=UTC), "2027-01-01", ""),
    ],
)
def test_a_quarter_runs_on_its_first_day_and_is_checked_in_its_other_months(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: datetime, key: str, as_of: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("teams: teams.yaml\n", encoding="utf-8")
    monkeypatch.setenv("OPS_PIPELINES_CLUSTER", str(file))

    found = capacity_schedule_in("Europe/Berlin")(dg.build_schedule_context(scheduled_execution_time=at))

    assert isinstance(found, dg.RunRequest)
    assert found.partition_key == key
    assert found.run_config == ({"ops": {"capacity_forecast": {"config": {"as_of": as_of}}}} if as_of else {})
    assert capacity_schedule_in("Europe/Berlin").cron_schedule == "0 6 1 * *"


def test_without_teams_no_quarter_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("teams: null\n", encoding="utf-8")
    monkeypatch.setenv("OPS_PIPELINES_CLUSTER", str(file))

    context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 10, 1, 6, tzinfo=UTC))

    assert isinstance(capacity_schedule_in("UTC")(context), dg.SkipReason)
