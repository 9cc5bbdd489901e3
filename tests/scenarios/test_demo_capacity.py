"""The quarter of the demo, on the demo's files and its simulated year: worth reading, and made by the program alone."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from ops_pipelines.capacity.model import LEVELS, CapacityReport, OrderLine, Resource, SupplyWeek, Way, WeekPeak
from ops_pipelines.capacity.reporting import keep_report, report_quarter
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble, assemble_observatory, assemble_teams_desk
from ops_pipelines_lab.drills.demo_quotas import PAST, with_limits
from ops_pipelines_lab.drills.demo_rollout import with_racks
from ops_pipelines_lab.drills.demo_setup import capacity_commands, capacity_line, quarter_run, write_configuration
from ops_pipelines_lab.drills.recorded_past import pretend_past, pretend_year
from ops_pipelines_lab.simulator.scenario import demo_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import FakeClock

PAGES_URL = "http://127.0.0.1:9750"
QUARTER = date(2026, 10, 1)


class CapacityDemo:
    """The demo's cluster as it is when the quarter's run begins."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.clock = FakeClock()
        config = read_cluster(write_configuration(state, pages_url=PAGES_URL))
        scenario = with_limits(with_racks(demo_scenario()))
        Twin.create(state / TWIN_DIRECTORY, scenario, seed=7, clock=self.clock, past=timedelta(minutes=1))
        observatory = assemble_observatory(config, self.clock)
        cluster = assemble(config, self.clock)
        self.desk: TeamsDesk = assemble_teams_desk(config, cluster=cluster, observatory=observatory)
        pretend_past(observatory.lake, now=self.clock.now(), weeks=2, plan=PAST)
        self.day_count = pretend_year(observatory.lake, now=self.clock.now(), weeks=2, plan=PAST)
        self.report: CapacityReport = report_quarter(self.desk, as_of=QUARTER)

    def orders(self, resource: Resource) -> Sequence[OrderLine]:
        return [each for each in self.report.plan.orders if each.series.kind is resource and each.short_from]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> CapacityDemo:
    return CapacityDemo(tmp_path_factory.mktemp("demo"))


def test_more_than_a_year_lies_behind_the_demo(demo: CapacityDemo) -> None:
    assert demo.day_count == 399
    assert demo.report.forecast.vouched_weeks >= 26


def test_nodes_had_to_be_ordered_already_and_run_short_some_months_ahead(demo: CapacityDemo) -> None:
    (nodes,) = demo.orders(Resource.GPUS)

    assert nodes.is_overdue
    assert nodes.count > 0
    assert nodes.short_from is not None
    assert QUARTER + timedelta(days=28) <= nodes.short_from <= QUARTER + timedelta(days=183)


def test_the_file_system_can_still_be_ordered_in_time(demo: CapacityDemo) -> None:
    (store,) = demo.orders(Resource.STORAGE_BYTES)

    assert store.series.name == "scratch"
    assert not store.is_overdue
    assert store.order_by is not None
    assert store.order_by > demo.clock.now().date()


def test_one_rack_nears_what_it_may_draw(demo: CapacityDemo) -> None:
    assert [each.series.name for each in demo.orders(Resource.RACK_WATTS)] == ["r3"]


def test_the_last_forecast_was_mostly_right_and_missed_the_launch(demo: CapacityDemo) -> None:
    hindsight = demo.report.hindsight
    assert hindsight is not None
    assert hindsight.coverage_ratio is not None

    assert 0.85 <= hindsight.coverage_ratio < 1
    assert "science" in {each.key.name for each in hindsight.bounds if not each.is_held}


def test_who_hardly_came_is_treated_as_near_idle(demo: CapacityDemo) -> None:
    treated = {
        each.key.name: each.treatment for each in demo.report.forecast.outlooks if each.key.kind is Resource.GPUS
    }

    assert treated["visitors"] == "near_idle"
    assert treated["research"] == "ordinary"


# -- the same numbers by another arithmetic: peaks drawn one by one, counts and days by hand --

DRAWS = (np.arange(20_000) + 0.5) / 20_000


def drawn_short(week: WeekPeak, supply: SupplyWeek, *, more_gpus: float = 0.0) -> tuple[float, float]:
    """Return how often, and by how much in the mean, a drawn peak exceeds what is usable."""
    peaks = np.interp(DRAWS, LEVELS, week.quantiles)
    more = more_gpus * supply.mean_gpus / supply.installed
    lacking = [(each.probability, np.maximum(peaks - each.gpus - more, 0.0)) for each in supply.points]
    return (
        sum(probability * float((short > 0).mean()) for probability, short in lacking),
        sum(probability * float(short.mean()) for probability, short in lacking),
    )


@pytest.fixture(scope="module")
def weeks(demo: CapacityDemo) -> Sequence[tuple[WeekPeak, SupplyWeek]]:
    (fan,) = demo.report.forecast.with_projects
    return list(zip(fan.weeks, demo.report.forecast.supply, strict=True))


def test_how_likely_and_how_deep_each_week_is_short(
    demo: CapacityDemo, weeks: Sequence[tuple[WeekPeak, SupplyWeek]]
) -> None:
    drawn = [drawn_short(*each) for each in weeks]

    told = demo.report.plan.short_weeks
    assert [each.shortage_probability for each in told] == pytest.approx([chance for chance, _ in drawn], abs=1e-3)
    assert [each.expected_short_gpus for each in told] == pytest.approx([short for _, short in drawn], abs=1e-2)


def test_the_order_follows_from_the_weeks(demo: CapacityDemo, weeks: Sequence[tuple[WeekPeak, SupplyWeek]]) -> None:
    (order,) = demo.orders(Resource.GPUS)
    most = demo.desk.capacity_policy.shortage_probability_max
    short = [drawn_short(*each)[0] > most for each in weeks]
    first = next(place for place in range(len(short)) if sum(short[place : place + 4]) >= 2 and short[place])
    days = 168 + 5 + 3  # capacity.yaml: 90 % are delivered within 168 days, then racks and burn-in
    relief = QUARTER + timedelta(days=days)

    def is_enough(nodes: int) -> bool:
        later = [each for each in weeks if each[0].first_day >= relief]
        return all(drawn_short(*each, more_gpus=8.0 * nodes)[0] <= most for each in later)

    assert order.what == "hgx-h100"
    assert (order.short_from, order.earliest_relief) == (weeks[first][0].first_day, relief)
    assert order.order_by == weeks[first][0].first_day - timedelta(days=days)
    assert is_enough(order.count)
    assert not is_enough(order.count - 1)
    assert order.cents == order.count * 300_000_00


def test_what_is_bought_and_rented_costs_what_its_prices_say(demo: CapacityDemo) -> None:
    (order,) = demo.orders(Resource.GPUS)
    ways = {each.way: each for each in demo.report.plan.alternatives}
    served = (QUARTER + timedelta(days=7 * 52) - order.earliest_relief).days if order.earliest_relief else 0
    monthly = order.count * (300_000 / 48 + 2_500)
    rented = ways[Way.NOTHING].short_gpu_hours - ways[Way.CLOUD].short_gpu_hours

    assert ways[Way.BUY].cents == pytest.approx(100 * monthly * served / (365 / 12), abs=1)
    assert ways[Way.CLOUD].cents == pytest.approx(100 * 4.50 * rented, rel=1e-6)
    until = ways[Way.BUY].short_gpu_hours - ways[Way.BRIDGE].short_gpu_hours
    assert 0 < until < rented
    assert ways[Way.BRIDGE].cents == pytest.approx(100 * (monthly * served / (365 / 12) + 4.50 * until), rel=1e-6)


def test_bounds_that_held_are_counted(demo: CapacityDemo) -> None:
    hindsight = demo.report.hindsight
    assert hindsight is not None

    held = sum(each.peak <= each.bound_90 for each in hindsight.bounds)

    assert hindsight.coverage_ratio == held / len(hindsight.bounds)
    assert f"Of {len(hindsight.bounds)} bounds of 90 %" in demo.report.headline[2]


# -- what the demo launches and reports --


@pytest.mark.parametrize(
    ("at", "partition"),
    [
        (datetime(2026, 9, 30, 23, 59, tzinfo=UTC), "2026-07-01"),
        (datetime(2026, 10, 1, tzinfo=UTC), "2026-10-01"),
        (datetime(2027, 1, 1, tzinfo=UTC), "2027-01-01"),
    ],
)
def test_the_running_quarter_is_planned(at: datetime, partition: str) -> None:
    assert quarter_run(at) == {"plan_capacity": partition}


def test_the_headline_and_the_page_are_told_once_the_report_is_kept(demo: CapacityDemo) -> None:
    before = capacity_line(demo.state, now=demo.clock.now(), pages_url=PAGES_URL)
    keep_report(demo.desk, demo.report)

    line = capacity_line(demo.state, now=demo.clock.now(), pages_url=PAGES_URL)

    assert before == "capacity: no report of 2026Q4 was kept"
    assert line == f"capacity: {demo.report.headline[0]} {PAGES_URL}/capacity"


def test_commands_name_the_demos_own_cluster_file() -> None:
    assert capacity_commands(".demo/cluster.yaml")[0] == "ops-pipelines capacity report --cluster .demo/cluster.yaml"
