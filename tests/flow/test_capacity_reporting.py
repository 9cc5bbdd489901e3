"""A quarter from days to report: forecast, plan, hindsight, headline; kept, the same bytes again, and what lacks."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from ops_pipelines.capacity.answers import json_of, report_in
from ops_pipelines.capacity.forecasting import NoHistory, forecast_quarter, plan_quarter
from ops_pipelines.capacity.model import LEVELS, Resource, SeriesKey
from ops_pipelines.capacity.reporting import keep_report, kept_report, report_on, report_quarter
from tests.flow.capacity_samples import project
from tests.flow.capacity_stage import GPUS, H100, POLICY, QUARTER, CapacityStage

ALL = SeriesKey(resource=Resource.GPUS.value, gpu_type=H100)
BEFORE = date(2026, 7, 1)
WEEKS = POLICY.horizon_weeks


# -- the forecast --


def test_a_forecast_has_each_series_and_the_fan_from_its_day_on(tmp_path: Path) -> None:
    found = forecast_quarter(CapacityStage(directory=tmp_path).desk(), as_of=QUARTER)

    assert (found.cluster, found.quarter, found.as_of, found.timezone) == ("small", "2026Q4", QUARTER, "UTC")
    assert [(each.key.resource, each.key.name) for each in found.outlooks] == [
        ("gpus", ""), ("gpus", "product"), ("gpus", "research"), ("storage_bytes", "lustre"),
    ]  # fmt: skip
    (fan,) = found.with_projects
    assert fan.key == ALL
    assert [each.first_day for each in fan.weeks] == [QUARTER + timedelta(days=7 * number) for number in range(WEEKS)]
    assert [each.first_day for each in found.supply] == [each.first_day for each in fan.weeks]
    assert all(len(each.quantiles) == len(LEVELS) for each in fan.weeks)
    assert all(each.installed == GPUS and each.mean_gpus < GPUS for each in found.supply)


def test_planned_projects_lift_the_fan_and_not_the_past(tmp_path: Path) -> None:
    stage = CapacityStage(directory=tmp_path)
    starts = QUARTER + timedelta(days=70)
    planned = project(gpus=64.0, starts_on=starts, ramp_days=0, ends_on=None, probability=1.0)

    plain = forecast_quarter(stage.desk(), as_of=QUARTER)
    found = forecast_quarter(stage.desk(projects=(planned,)), as_of=QUARTER)

    assert found.projects == (planned,)
    assert found.outlooks == plain.outlooks
    for week, without in zip(found.with_projects[0].weeks, plain.with_projects[0].weeks, strict=True):
        lifted = 64.0 if week.first_day >= starts else 0.0
        assert week.at(0.9) == pytest.approx(without.at(0.9) + lifted)


def test_the_future_is_not_looked_at(tmp_path: Path) -> None:
    then = CapacityStage(directory=tmp_path, until=QUARTER).desk()
    later = CapacityStage(directory=tmp_path, until=QUARTER + timedelta(days=60)).desk()

    assert forecast_quarter(later, as_of=QUARTER) == forecast_quarter(then, as_of=QUARTER)


def test_what_is_missing_is_noted(tmp_path: Path) -> None:
    gone = frozenset({QUARTER - timedelta(days=9)})
    desk = CapacityStage(directory=tmp_path, left_out=gone).desk(
        capacity=None, projects_trouble="projects.yaml: line 3"
    )

    found = forecast_quarter(desk, as_of=QUARTER)

    assert "cluster.yaml names no `capacity` file: nothing comes, nothing goes" in found.notes
    assert "projects.yaml: line 3" in found.notes
    assert "1 of the last 28 days are not known, the first is 2026-09-22: materialise daily_peaks there" in found.notes
    assert len(set(found.notes)) == len(found.notes)


def test_too_little_history_is_refused_with_what_to_do(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path, first=QUARTER - timedelta(days=13)).desk()

    with pytest.raises(NoHistory, match="13 days before 2026-10-01 are known, the first is 2026-09-18; 14 are needed"):
        forecast_quarter(desk, as_of=QUARTER)


# -- the plan --


def test_a_plan_orders_what_runs_short_and_judges_storage_by_its_limit(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path).desk()

    plan = plan_quarter(desk, forecast_quarter(desk, as_of=QUARTER))

    assert (plan.currency, plan.quarter, plan.as_of) == ("EUR", "2026Q4", QUARTER)
    assert len(plan.short_weeks) == WEEKS
    (nodes,) = [each for each in plan.orders if each.gpu_type == H100]
    assert nodes.what == "hgx-h100"
    assert not any("was not measured" in each for each in plan.notes)
    assert not any("no limit is known" in each for each in plan.notes)


def test_fewer_nodes_make_an_order_and_its_alternatives(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path).desk()
    desk = replace(desk, installed=desk.installed[:28])

    plan = plan_quarter(desk, forecast_quarter(desk, as_of=QUARTER))

    (nodes,) = [each for each in plan.orders if each.gpu_type == H100]
    assert nodes.short_from is not None
    assert nodes.order_by is not None
    assert nodes.count > 0
    ways = {each.way.value: each.said for each in plan.alternatives}
    assert "10.0 % of what runs is idle" in ways["efficiency advice taken"]
    assert "work that may wait is " in ways["quota change"]
    assert len({each.nodes for each in plan.regret}) > 1


# -- the report --


def test_a_report_without_a_kept_one_makes_the_last_forecast_afterwards(tmp_path: Path) -> None:
    found = report_quarter(CapacityStage(directory=tmp_path).desk(), as_of=QUARTER)

    assert found.hindsight is not None
    assert (found.hindsight.quarter, found.hindsight.as_of, found.hindsight.is_kept) == ("2026Q3", BEFORE, False)
    # 92 days are 13 whole weeks; three series of GPUs and one of storage.
    assert len(found.hindsight.bounds) == 13 * 4
    assert {each.lead_weeks for each in found.hindsight.bounds} == set(range(1, 14))
    assert found.hindsight.coverage_ratio == sum(each.is_held for each in found.hindsight.bounds) / 52
    assert len(found.headline) == 4
    assert any("no report of 2026Q3 was kept" in each for each in found.assumptions)


def test_what_was_kept_is_judged_and_nothing_is_made_afterwards(tmp_path: Path) -> None:
    then = CapacityStage(directory=tmp_path, until=BEFORE).desk()
    kept = report_quarter(then, as_of=BEFORE)
    keep_report(then, kept)

    found = report_quarter(CapacityStage(directory=tmp_path).desk(), as_of=QUARTER)

    assert found.hindsight is not None
    assert found.hindsight.is_kept
    assert len(found.hindsight.bounds) == 13 * 4
    first = next(each for each in found.hindsight.bounds if each.key == ALL)
    assert first.bound_90 == pytest.approx(kept.forecast.with_projects[0].weeks[0].at(0.9), rel=1e-6)
    assert not any("was kept" in each for each in found.assumptions)


def test_where_too_little_was_known_then_there_is_no_hindsight(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path, first=BEFORE - timedelta(days=13)).desk()

    found = report_quarter(desk, as_of=QUARTER)

    assert found.hindsight is None
    assert any("how the last forecast did is not known: 13 days before" in each for each in found.assumptions)


def test_history_is_told_by_weeks_that_end_where_the_forecast_begins(tmp_path: Path) -> None:
    found = report_quarter(CapacityStage(directory=tmp_path).desk(), as_of=QUARTER)

    history = dict(found.history)
    assert {key.resource for key in history} == {"gpus", "storage_bytes"}
    assert history[ALL][-1][0] == QUARTER - timedelta(days=7)
    assert len(history[ALL]) == 57


def test_the_same_days_give_the_same_bytes_and_they_read_back(tmp_path: Path) -> None:
    one, other = (json_of(report_quarter(CapacityStage(directory=tmp_path).desk(), as_of=QUARTER)) for _ in range(2))

    assert one == other
    assert json_of(report_in(one)) == one


def test_parts_that_are_made_already_give_the_same_report(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path).desk()
    forecast = forecast_quarter(desk, as_of=QUARTER)

    found = report_on(desk, forecast=forecast, plan=plan_quarter(desk, forecast))

    assert json_of(found) == json_of(report_quarter(desk, as_of=QUARTER))


def test_a_check_within_the_quarter_is_of_the_same_quarter(tmp_path: Path) -> None:
    check_day = date(2026, 11, 1)
    desk = CapacityStage(directory=tmp_path, until=check_day).desk()
    first = report_quarter(desk, as_of=QUARTER)
    keep_report(desk, first)

    check = report_quarter(desk, as_of=check_day)
    place = keep_report(desk, check)

    assert Path(place).name == "2026Q4-check-2026-11.json"
    assert check.forecast.quarter == "2026Q4"
    assert check.hindsight is not None
    assert check.hindsight.quarter == "2026Q3"
    kept = kept_report(desk, "2026Q4")
    assert kept is not None
    assert kept.forecast.as_of == QUARTER


def test_a_day_of_the_calendars_beginning_is_refused_as_too_early(tmp_path: Path) -> None:
    for early in (date.min, date(1969, 12, 31)):
        with pytest.raises(NoHistory, match=f"no day before {early} is known"):
            forecast_quarter(CapacityStage(directory=tmp_path).desk(), as_of=early)


def test_where_too_little_is_known_for_peaks_nobody_reads_that_all_is_well(tmp_path: Path) -> None:
    desk = CapacityStage(directory=tmp_path, first=QUARTER - timedelta(days=27)).desk()

    assert report_quarter(desk, as_of=QUARTER).headline[0] == (
        "Whether anything has to be ordered is not known: of h100 too little is known."
    )
