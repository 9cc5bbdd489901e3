"""Demand gathered: what the lake has, who runs and waits now, what was agreed; and the days quotas look back at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.proposal import GpuType, TeamName, Terms
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import AccountingPage, SourceUnavailable
from ops_pipelines.lake.accounting import allocations_of
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.quotas.gather_demand import FilledDemand, demand_days_of, demand_of_day, fill_demand
from ops_pipelines.quotas.hourly import NUMBERS
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines.teams.desk import TeamsDesk
from ops_pipelines.teams.price import InstalledNode
from ops_pipelines_lab.simulator.past_demand import DEMO_PLAN, past_demand
from tests.flow.fake_store import NoScheduler, observatory_on
from tests.ports.lake_samples import cells
from tests.simulator.fake_clock import BEGINNING, FakeClock

START = datetime(2026, 11, 18, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)
A, B = TeamName("a"), TeamName("b")
NO_TYPE = GpuType("")
_HEADER = "JobID|Account|Partition|State|Submit|Eligible|Start|End|ReqTRES|NodeList|Reason"
Cells = dict[str, object]


def at(hour: float) -> datetime:
    return START + timedelta(hours=hour)


def text(moment: datetime | None) -> str:
    return "Unknown" if moment is None else f"{moment:%Y-%m-%dT%H:%M:%S}"


@dataclass
class FakeAccounting:
    """Says of who runs and who waits what a test wrote; counts for nobody else."""

    running: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    failure: SourceUnavailable | None = None
    was_asked: bool = False
    source: str = "fake"

    def read_attempts(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        raise AssertionError("what ended is in the lake")

    def read_overlapping(self, *, start: datetime, end: datetime) -> Iterator[AccountingPage]:
        yield self._page(self.running, start=start, end=end)

    def read_waiting(self, *, at: datetime) -> Iterator[AccountingPage]:
        yield self._page(self.waiting, start=at, end=at)

    def _page(self, rows: Sequence[str], *, start: datetime, end: datetime) -> AccountingPage:
        self.was_asked = True
        if self.failure is not None:
            raise self.failure
        return AccountingPage(body="\n".join([_HEADER, *rows, ""]).encode(), source=self.source, start=start, end=end)


def runs(job: str, begin: float, *, submitted: float, gpus: int = 8, account: str = "a") -> str:
    moments = [text(at(submitted)), text(at(submitted)), text(at(begin)), "Unknown"]
    return "|".join([job, account, "gpu", "RUNNING", *moments, f"gres/gpu={gpus}", "gpu001", "None"])


def waits(job: str, since: float, *, gpus: int = 8, account: str = "a", reason: str = "Resources") -> str:
    moments = [text(at(since)), text(at(since)), "Unknown", "Unknown"]
    return "|".join([job, account, "gpu", "PENDING", *moments, f"gres/gpu={gpus}", "None assigned", reason])


def ended(job: str, begin: float, end: float, *, submitted: float, **others: object) -> Cells:
    return {
        "job": job, "attempt": at(begin).isoformat(), "time": at(end), "account": "a", "partition": "gpu",
        "state": "COMPLETED", "submitted_at": at(submitted), "eligible_at": at(submitted), "started_at": at(begin),
        "ended_at": at(end), "gpu_count": 8, "nodes": "gpu001", **others,
    }  # fmt: skip


def agreed(*teams: str, cap: float = float("inf"), timezone: str = "UTC") -> Agreements:
    contracts = tuple(
        Contract(terms=Terms(team=TeamName(team), guarantee=0.0, cap=cap), valid_from=date(2026, 1, 1))
        for team in teams
    )
    parents = {TeamName(team): None for team in teams}
    return Agreements(parents=parents, contracts=contracts, timezone=timezone)


class Stage:
    """A lake, a scheduler that says what a test wrote, and a desk."""

    def __init__(self, directory: Path, *, now: datetime) -> None:
        self.clock = FakeClock()
        self.clock.set_back((BEGINNING - now).total_seconds())
        self.accounting = FakeAccounting()
        base = observatory_on(directory, clock=self.clock, scheduler=cast("Scheduler", NoScheduler()))
        observatory = replace(base, accounting=self.accounting)
        self.desk = TeamsDesk(cluster=cast("Cluster", None), observatory=observatory, agreements=agreed("a", "b"))

    @property
    def lake(self) -> ParquetLake:
        assert isinstance(self.desk.lake, ParquetLake)
        return self.desk.lake

    def keep(self, *attempts: Cells, held_until: float | None = None) -> None:
        """Put attempts that ended into the lake, and who held nodes up to an hour."""
        rows = TABLES["job_accounting"].from_rows(attempts)
        self.lake.add("job_accounting", rows)
        if held_until is not None:
            self.lake.add("job_allocations", allocations_of(rows, start=START - 24 * HOUR, end=at(held_until)))

    def fill(self, first: float, last: float) -> FilledDemand:
        return fill_demand(self.desk, start=at(first), end=at(last))

    def column(self, first: float, last: float, name: str, *, team: str = "a") -> list[object]:
        rows = cells(self.fill(first, last).rows, "team", "time", name)
        return [value for of, _, value in sorted(rows, key=str) if of == team]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, now=at(3) + timedelta(minutes=2))


def test_who_waits_still_counts_in_every_hour_since_it_could_start(stage: Stage) -> None:
    stage.accounting.waiting = [waits("1", 0.5), waits("2", -9, gpus=2)]

    assert stage.column(0, 3, "gpus_pending_avg") == [6.0, 10.0, 10.0]
    assert stage.column(2, 3, "gpus_demand_avg") == [10.0]


def test_who_started_within_the_hour_and_runs_on_waited_before(stage: Stage) -> None:
    stage.accounting.running = [runs("1", 2.5, submitted=1)]

    assert stage.column(1, 3, "gpus_pending_avg") == [8.0, 4.0]
    assert stage.column(1, 3, "gpus_running_avg") == [0.0, 4.0]
    assert stage.column(1, 3, "gpus_ran_last") == [0.0, 8.0]


def test_who_ended_since_is_known_from_the_lake(stage: Stage) -> None:
    stage.keep(ended("1", 1.5, 2.5, submitted=0.5))

    assert stage.column(0, 3, "gpus_pending_avg") == [4.0, 4.0, 0.0]
    assert stage.column(0, 3, "gpus_running_avg") == [0.0, 4.0, 4.0]


def test_a_wait_is_counted_once_though_the_job_was_requeued_and_waits_still(stage: Stage) -> None:
    stage.keep(ended("1", 0, 1, submitted=-1, state="REQUEUED"), held_until=3)
    stage.accounting.waiting = [waits("1", 1)]

    assert stage.column(0, 3, "gpus_running_avg") == [8.0, 0.0, 0.0]
    assert stage.column(0, 3, "gpus_pending_avg") == [0.0, 8.0, 8.0]


def test_who_started_between_the_two_answers_is_counted_once(stage: Stage) -> None:
    stage.accounting.waiting = [waits("1", 2)]
    stage.accounting.running = [runs("1", 2.75, submitted=2)]

    found = stage.fill(2, 3)

    assert cells(found.rows, "team", "gpus_running_avg", "gpus_pending_avg")[0] == ("a", 2.0, 6.0)
    assert found.notes == ("1 row of waiting jobs passed over: later rows say that the jobs ran",)


def test_an_attempt_that_the_lake_and_the_scheduler_tell_of_is_one(stage: Stage) -> None:
    stage.keep(ended("1", 1, 2.5, submitted=0), held_until=3)
    stage.accounting.running = [runs("1", 1, submitted=0)]

    assert stage.column(0, 3, "gpus_running_avg") == [0.0, 8.0, 4.0]
    assert stage.column(0, 3, "gpus_pending_avg") == [8.0, 0.0, 0.0]


def test_a_held_job_is_no_demand_and_that_is_told(stage: Stage) -> None:
    stage.accounting.waiting = [waits("1", 0, reason="JobHeldUser")]

    found = stage.fill(2, 3)

    assert cells(found.rows, "team", "gpus_pending_avg") == [("a", 0.0), ("b", 0.0)]
    assert found.notes == ("not counted: 8.0 GPU-hours of 1 wait (JobHeldUser: somebody holds it)",)


@pytest.mark.parametrize(("gpus", "pending"), [(15, 15.0), (16, 16.0), (17, 0.0)])
def test_who_asks_for_more_than_its_cap_never_runs(stage: Stage, gpus: int, pending: float) -> None:
    stage.desk = replace(stage.desk, agreements=agreed("a", cap=16))
    stage.accounting.waiting = [waits("1", 0, gpus=gpus)]

    assert stage.column(2, 3, "gpus_pending_avg") == [pending]


def test_the_cap_of_an_organisation_binds_its_teams_and_it_asks_for_nothing_itself(stage: Stage) -> None:
    over = Contract(terms=Terms(team=B, guarantee=0.0, cap=16), valid_from=date(2026, 1, 1))
    stage.desk = replace(stage.desk, agreements=Agreements(parents={A: B, B: None}, contracts=(over,)))
    stage.accounting.waiting = [waits("1", 0, gpus=17)]

    assert cells(stage.fill(2, 3).rows, "team", "gpus_pending_avg") == [("a", 0.0)]


def test_a_team_without_rows_has_one_in_each_hour_that_was_computed(stage: Stage) -> None:
    assert cells(stage.fill(0, 2).rows, "team", "time", "gpus_demand_avg") == [
        ("a", at(0), 0.0),
        ("a", at(1), 0.0),
        ("b", at(0), 0.0),
        ("b", at(1), 0.0),
    ]


def test_who_is_in_no_file_of_teams_is_counted_and_named(stage: Stage) -> None:
    stage.accounting.waiting = [waits("1", 2, account="new")]

    found = stage.fill(2, 3)

    assert found.strangers == ("new",)
    assert ("new", 8.0) in cells(found.rows, "team", "gpus_demand_avg")


def test_without_a_file_of_teams_nobody_is_a_stranger(stage: Stage) -> None:
    stage.desk = replace(stage.desk, agreements=None)
    stage.accounting.waiting = [waits("1", 2)]

    found = stage.fill(2, 3)

    assert found.strangers == ()
    assert cells(found.rows, "team", "gpus_demand_avg") == [("a", 8.0)]


def test_types_come_from_the_nodes_and_from_the_partition_that_is_waited_for(stage: Stage) -> None:
    h100, a100 = GpuType("h100"), GpuType("a100")
    types = {NodeName("gpu001"): h100, NodeName("gpu002"): a100, NodeName("gpu003"): a100}
    stage.desk = replace(stage.desk, gpu_type_of=types)
    nodes = [
        {"node": node, "device": "", "time": at(2), "kind": "node", "partitions": partitions}
        for node, partitions in (("gpu001", "gpu"), ("gpu002", "old"), ("gpu003", "old"))
    ]
    stage.lake.add("inventory", TABLES["inventory"].from_rows(nodes))
    stage.accounting.running = [runs("1", 2, submitted=2)]
    stage.accounting.waiting = [waits("2", 2, gpus=4).replace("|gpu|", "|old|")]

    found = cells(stage.fill(2, 3).rows, "team", "gpu_type", "gpus_running_avg", "gpus_pending_avg")

    assert found == [("a", "a100", 0.0, 4.0), ("a", "h100", 8.0, 0.0), ("b", "a100", 0.0, 0.0), ("b", "h100", 0.0, 0.0)]


def test_hours_one_by_one_are_those_of_one_run(stage: Stage) -> None:
    stage.keep(ended("1", 0.25, 1.5, submitted=-3), ended("2", -9, -8, submitted=-9, account="gone"), held_until=3)
    stage.accounting.waiting = [waits("3", 1.5, account="b")]
    stage.accounting.running = [runs("4", 2.25, submitted=0.5, gpus=4)]

    together = cells(stage.fill(0, 3).rows, *NUMBERS, "team", "time")
    apart = [row for hour in range(3) for row in cells(stage.fill(hour, hour + 1).rows, *NUMBERS, "team", "time")]

    assert sorted(apart, key=str) == sorted(together, key=str)


def test_of_a_running_hour_what_runs_and_waits_now_goes_on_to_its_end(stage: Stage) -> None:
    stage.accounting.waiting = [waits("1", 3)]
    stage.accounting.running = [runs("2", 3, submitted=3, gpus=4)]

    assert stage.column(3, 4, "gpus_pending_avg") == [8.0]
    assert stage.column(3, 4, "gpus_running_avg") == [4.0]


def test_an_hour_that_lies_ahead_is_empty_and_nobody_is_asked(stage: Stage) -> None:
    assert stage.column(5, 6, "gpus_demand_avg") == [0.0]
    assert not stage.accounting.was_asked


def test_of_long_past_hours_the_scheduler_is_not_asked(stage: Stage) -> None:
    stage.fill(-24 * 40, -24 * 40 + 1)

    assert not stage.accounting.was_asked


def test_a_scheduler_that_does_not_answer_makes_no_hour(stage: Stage) -> None:
    stage.accounting.failure = SourceUnavailable("slurmdbd does not answer")

    with pytest.raises(SourceUnavailable):
        stage.fill(2, 3)


def test_rows_that_cannot_be_are_kept_with_the_hour_that_they_belong_to(stage: Stage) -> None:
    stage.keep(ended("1", 1.5, 2.5, submitted=2.25))

    own, other = stage.fill(2, 3), stage.fill(1, 2)

    assert own.reasons == {"starts_before_submit": 1}
    assert cells(own.rejected, "into", "reason", "time") == [("gpu_demand", "starts_before_submit", at(2.5))]
    assert other.rejected is None


@pytest.mark.parametrize(("first", "last"), [(0.5, 2), (0, 1.5), (1, 1), (2, 1)])
def test_no_whole_hours_are_refused(stage: Stage, first: float, last: float) -> None:
    with pytest.raises(ValueError, match="whole hours"):
        stage.fill(first, last)


# -- days --


def remembered(stage: Stage, *, until: datetime, weeks: int = 1, but: Sequence[datetime] = ()) -> None:
    rows = [row for row in past_demand(DEMO_PLAN, end=until, weeks=weeks, seed=7) if row["time"] not in but]
    stage.lake.add("gpu_demand", TABLES["gpu_demand"].from_rows(rows))


def test_the_last_days_are_whole_and_today_is_as_far_as_it_is_over(stage: Stage) -> None:
    remembered(stage, until=at(3))

    past = demand_days_of(stage.desk, days=3, gpu_type=NO_TYPE, until=at(3) + timedelta(minutes=2))

    assert [(each.day.day, each.hour_count) for each in past.days] == [(15, 24), (16, 24), (17, 24)]
    assert past.today is not None
    assert (past.today.day, past.today.hour_count) == (date(2026, 11, 18), 9)
    assert (past.missing, past.until, past.hour_count, past.known_hour_ratio) == ((), at(3), 3 * 24 + 9, 1.0)
    assert set(past.today.hours) == {"platform", "product", "research", "science"}
    assert past.notes == ()


def test_nothing_later_than_the_moment_is_looked_at(stage: Stage) -> None:
    remembered(stage, until=at(3))

    early = demand_days_of(stage.desk, days=2, gpu_type=NO_TYPE, until=at(0) + timedelta(minutes=59))

    assert early.until == at(0)
    assert early.today is not None
    assert early.today.hour_count == 6


def test_an_hour_that_nobody_computed_is_missing_and_no_hour_in_which_nothing_was_wanted(stage: Stage) -> None:
    remembered(stage, until=at(3), but=[at(-10), at(1)])

    past = demand_days_of(stage.desk, days=3, gpu_type=NO_TYPE, until=at(3))

    assert past.missing == (at(-10), at(1))
    assert [each.hour_count for each in past.days] == [24, 24, 23]
    assert past.known_hour_ratio == pytest.approx(1 - 2 / 81)
    assert past.notes == (
        "2 of 81 hours are not known, from 2026-11-17 20:00 to 2026-11-18 07:00 UTC: materialise gpu_demand there",
    )


def test_before_the_first_node_stood_in_the_cluster_nothing_is_missing(stage: Stage) -> None:
    node = InstalledNode(node=NodeName("gpu001"), asset="x", gpu_type=NO_TYPE, gpu_count=8, since=at(-2), until=None)
    stage.desk = replace(stage.desk, installed=(node,))

    past = demand_days_of(stage.desk, days=3, gpu_type=NO_TYPE, until=at(1))

    assert past.missing == (at(-2), at(-1), at(0))
    assert (past.known_hour_ratio, past.until, past.days, past.today) == (0.0, None, (), None)


@pytest.mark.parametrize(
    ("day", "hours"), [(date(2026, 3, 29), 23), (date(2026, 10, 25), 25), (date(2026, 10, 26), 24)]
)
def test_days_on_which_the_clock_is_changed_have_all_of_their_hours(stage: Stage, day: date, hours: int) -> None:
    stage.desk = replace(stage.desk, agreements=agreed("a", timezone="Europe/Berlin"))
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC) + timedelta(days=1)
    remembered(stage, until=noon)

    past = demand_days_of(stage.desk, days=1, gpu_type=NO_TYPE, until=noon)
    told = demand_of_day(stage.desk, day=day)

    assert [(each.day, each.hour_count) for each in past.days] == [(day, hours)]
    assert past.missing == ()
    assert (told.hour_count, told.missing) == (hours, ())
    assert {each["hour_count"] for each in told.sums} == {hours}


def test_no_days_are_refused(stage: Stage) -> None:
    with pytest.raises(ValueError, match="expected 1 or more"):
        demand_days_of(stage.desk, days=0, gpu_type=NO_TYPE, until=at(0))


def test_a_day_that_lies_ahead_has_nothing(stage: Stage) -> None:
    assert demand_of_day(stage.desk, day=date(2027, 1, 1)).hour_count == 0
