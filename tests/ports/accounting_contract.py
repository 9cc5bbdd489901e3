"""What every accounting adapter must do: one suite, run on the simulator and on a real Slurm.

A subclass provides the fixture `world` and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Protocol

import pytest

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.core.sources import Accounting, AccountingPage
from ops_pipelines.lake.accounting import read_waiting
from ops_pipelines.lake.formats import sacct

SOON_SECONDS = 60.0
ODD_NAME = "pre|train=1 'x'"
"""What a delimiter and a list of fields could be taken for."""


class AccountingWorld(Protocol):
    """A cluster to test on. Each test finds it clean; jobs of earlier tests may stand in the accounts."""

    @property
    def accounting(self) -> Accounting: ...

    @property
    def scheduler(self) -> Scheduler: ...

    def now(self) -> datetime: ...

    def submit(self, *, name: str, node_count: int, workload: Workload) -> JobId:
        """Submit a requeueable job that takes all GPUs of its nodes and runs until somebody ends it."""
        ...

    def cancel(self, job: JobId) -> None: ...

    def wait_until(self, predicate: Callable[[], bool], timeout_seconds: float) -> None: ...

    def let_pass(self, seconds: float) -> None: ...


Row = dict[str, object]
_NO_ROOM = frozenset({"Resources", "Priority"})


def read_rows(world: AccountingWorld, *, start: datetime, end: datetime) -> list[Row]:
    """Return the attempts that ended in [start, end), as the lake would have them."""
    return rows_of(world.accounting.read_attempts(start=start, end=end))


def read_overlapping(world: AccountingWorld, *, start: datetime, end: datetime) -> list[Row]:
    """Return the attempts that ran in [start, end)."""
    return rows_of(world.accounting.read_overlapping(start=start, end=end))


def rows_of(pages: Iterable[AccountingPage]) -> list[Row]:
    rows: list[Row] = []
    for page in pages:
        parsed = sacct.parse(page.body, source=page.source, at=page.end)
        assert parsed.reasons == {}
        if "job_accounting" in parsed.tables:
            rows += parsed.tables["job_accounting"].to_pylist()
    return rows


def read_waiting_rows(world: AccountingWorld) -> list[Row]:
    """Return the jobs that wait now, as the demand is counted from them."""
    rows: list[Row] = []
    for page in world.accounting.read_waiting(at=world.now()):
        parsed = read_waiting(page.body, source=page.source, at=page.start)
        assert parsed.reasons == {}
        if "job_accounting" in parsed.tables:
            rows += parsed.tables["job_accounting"].to_pylist()
    return rows


def of_job(rows: Sequence[Row], job: JobId) -> list[Row]:
    return sorted((row for row in rows if row["job"] == job), key=lambda row: str(row["time"]))


def state_of(world: AccountingWorld, job: JobId) -> JobState | None:
    return next((status.state for status in world.scheduler.read_jobs() if status.job == job), None)


class AccountingContract:
    """Subclass as `class TestX(AccountingContract)` and define the fixture `world`."""

    @pytest.fixture
    def world(self) -> AccountingWorld:
        raise NotImplementedError("a subclass of AccountingContract provides the fixture `world`")

    def test_a_job_that_was_requeued_twice_has_three_attempts(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name=ODD_NAME, node_count=1, workload=Workload.BATCH)

        for _ in range(2):
            run(world, job)
            world.scheduler.requeue(job)
            world.wait_until(lambda: state_of(world, job) is JobState.PENDING, SOON_SECONDS)
        run(world, job)
        world.cancel(job)
        rows = ended_rows(world, job, count=3, since=began_at)

        assert [row["state"] for row in rows] == ["REQUEUED", "REQUEUED", "CANCELLED"]
        assert len({row["attempt"] for row in rows}) == 3
        assert {row["name"] for row in rows} == {ODD_NAME}
        assert all(row["gpu_count"] for row in rows)

    def test_each_attempt_is_in_exactly_one_of_two_adjacent_stretches(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name="cut", node_count=1, workload=Workload.BATCH)
        run(world, job)
        world.cancel(job)
        (row,) = ended_rows(world, job, count=1, since=began_at)
        ended_at = row["ended_at"]
        assert isinstance(ended_at, datetime)

        counts = [
            len(of_job(read_rows(world, start=start, end=end), job))
            for start, end in (
                (began_at, ended_at),
                (ended_at, ended_at + timedelta(seconds=1)),
                (ended_at + timedelta(seconds=1), ended_at + timedelta(hours=1)),
            )
        ]

        assert counts == [0, 1, 0]

    def test_a_job_that_runs_is_in_no_page(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name="runs", node_count=1, workload=Workload.BATCH)
        run(world, job)

        rows = read_rows(world, start=began_at, end=world.now() + timedelta(hours=1))

        assert of_job(rows, job) == []

    def test_a_job_cancelled_while_it_waited_has_one_unstarted_attempt(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name="waits", node_count=1, workload=Workload.BATCH)
        world.scheduler.hold(job)
        world.wait_until(lambda: state_of(world, job) is JobState.PENDING, SOON_SECONDS)
        world.let_pass(2)
        world.cancel(job)

        def cancelled() -> list[Row]:
            rows = of_job(read_rows(world, start=began_at, end=world.now() + timedelta(minutes=5)), job)
            return [row for row in rows if row["state"] == "CANCELLED"]

        world.wait_until(lambda: bool(cancelled()), SOON_SECONDS)

        assert [row["attempt"] for row in cancelled()] == ["unstarted"]

    def test_a_job_that_runs_overlaps_and_has_no_end(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name="runs on", node_count=1, workload=Workload.BATCH)
        run(world, job)

        def overlapping() -> list[Row]:
            return of_job(read_overlapping(world, start=began_at, end=world.now()), job)

        world.wait_until(lambda: bool(overlapping()), SOON_SECONDS)
        rows = overlapping()

        assert [(row["state"], row["ended_at"]) for row in rows] == [("RUNNING", None)]
        assert rows[0]["nodes"]

    def test_an_attempt_that_ran_through_many_pages_is_in_one(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name="long", node_count=1, workload=Workload.BATCH)
        run(world, job)
        world.cancel(job)
        ended_rows(world, job, count=1, since=began_at)

        rows = read_overlapping(world, start=began_at - timedelta(hours=20), end=world.now() + timedelta(hours=20))

        assert len(of_job(rows, job)) == 1

    def test_what_ended_before_a_stretch_does_not_overlap_it(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        job = world.submit(name="over", node_count=1, workload=Workload.BATCH)
        run(world, job)
        world.cancel(job)
        (row,) = ended_rows(world, job, count=1, since=began_at)
        ended_at = row["ended_at"]
        assert isinstance(ended_at, datetime)

        after = ended_at + timedelta(seconds=1)
        rows = read_overlapping(world, start=after, end=after + timedelta(hours=1))

        assert of_job(rows, job) == []

    def test_a_job_that_waits_for_room_says_since_when_and_for_how_many_gpus(self, world: AccountingWorld) -> None:
        began_at = world.now() - timedelta(seconds=2)
        first = world.submit(name="takes all", node_count=4, workload=Workload.BATCH)
        run(world, first)
        second = world.submit(name=ODD_NAME, node_count=1, workload=Workload.BATCH)
        world.wait_until(lambda: bool(of_job(read_waiting_rows(world), second)), SOON_SECONDS)
        world.wait_until(lambda: of_job(read_waiting_rows(world), second)[0]["reason"] in _NO_ROOM, SOON_SECONDS)

        rows = read_waiting_rows(world)

        (row,) = of_job(rows, second)
        assert (row["state"], row["attempt"], row["started_at"], row["ended_at"]) == (
            "PENDING",
            "unstarted",
            None,
            None,
        )
        assert isinstance(row["submitted_at"], datetime)
        assert began_at <= row["submitted_at"] <= world.now()
        assert (row["gpu_count"], row["account"], row["name"]) == (8, "research", ODD_NAME)
        assert of_job(rows, first) == []

    def test_a_held_job_waits_and_says_so(self, world: AccountingWorld) -> None:
        job = world.submit(name="held", node_count=1, workload=Workload.BATCH)
        world.scheduler.hold(job)
        world.wait_until(lambda: state_of(world, job) is JobState.PENDING, SOON_SECONDS)
        world.wait_until(lambda: bool(of_job(read_waiting_rows(world), job)), SOON_SECONDS)

        (row,) = of_job(read_waiting_rows(world), job)

        assert str(row["reason"]).startswith("JobHeld")

    def test_a_requeued_job_waits_again_and_once(self, world: AccountingWorld) -> None:
        job = world.submit(name="again", node_count=1, workload=Workload.BATCH)
        run(world, job)
        world.scheduler.hold(job)
        world.scheduler.requeue(job)
        world.wait_until(lambda: state_of(world, job) is JobState.PENDING, SOON_SECONDS)
        world.wait_until(lambda: bool(of_job(read_waiting_rows(world), job)), SOON_SECONDS)

        assert [row["attempt"] for row in of_job(read_waiting_rows(world), job)] == ["unstarted"]

    def test_where_nobody_waits_there_is_no_row(self, world: AccountingWorld) -> None:
        job = world.submit(name="runs", node_count=1, workload=Workload.BATCH)
        run(world, job)

        assert of_job(read_waiting_rows(world), job) == []

    def test_a_stretch_without_time_is_refused(self, world: AccountingWorld) -> None:
        now = world.now()

        with pytest.raises(ValueError, match="before the end"):
            list(world.accounting.read_attempts(start=now, end=now))

    def test_the_pages_of_a_long_stretch_follow_each_other(self, world: AccountingWorld) -> None:
        end = world.now()
        start = end - timedelta(hours=20)

        pages = list(world.accounting.read_attempts(start=start, end=end))

        assert pages[0].start == start
        assert pages[-1].end == end
        assert all(one.end == two.start for one, two in pairwise(pages))


def run(world: AccountingWorld, job: JobId) -> None:
    """Let the job start, and run for longer than the second in which it started."""
    world.wait_until(lambda: state_of(world, job) is JobState.RUNNING, SOON_SECONDS)
    world.let_pass(1.5)


def ended_rows(world: AccountingWorld, job: JobId, *, count: int, since: datetime) -> list[Row]:
    """Return the rows of a job when at least `count` have ended."""
    found: list[Row] = []

    def have_ended() -> bool:
        found[:] = of_job(read_rows(world, start=since, end=world.now() + timedelta(minutes=5)), job)
        return len(found) >= count

    world.wait_until(have_ended, SOON_SECONDS)
    return found
