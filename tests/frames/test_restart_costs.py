"""What an interruption costs is measured from those that happened, and from five of them at least."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.lake.accounting import read_ended
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.remediate.restart_costs import (
    HOLD_OFF,
    LEAST_COUNT,
    PER_JOB,
    ROOM_SECONDS,
    START_LIMIT,
    Attempt,
    CostCounts,
    Interruption,
    attempts_of_rows,
    cost_rows,
    find_interruptions,
    measure_costs,
    time_restart,
)

AT = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
PRIOR = RestartCosts()
LOADED, SAVED = "successfully loaded checkpoint from /c", "Saved checkpoint to /c"


def attempt(
    begin: float, end: float | None, state: str = "NODE_FAIL", *, eligible: float | None = None, job: str = "1"
) -> Attempt:
    return Attempt(
        job=job,
        state=state,
        started_at=AT + begin * SECOND,
        ended_at=None if end is None else AT + end * SECOND,
        eligible_at=None if eligible is None else AT + eligible * SECOND,
    )


def interruption(queue_seconds: float, *, resumed: float = 0.0, job: str = "1") -> Interruption:
    return Interruption(
        job=job,
        why="NODE_FAIL",
        ended_at=AT + (resumed - queue_seconds) * SECOND,
        resumed_at=AT + resumed * SECOND,
        queue_seconds=queue_seconds,
    )


def waits(*attempts: Attempt) -> list[float]:
    return [each.queue_seconds for each in find_interruptions(attempts)]


def log(*rows: tuple[float, int | None, str, str | None]) -> pa.Table:
    """Return lines of job 1 at seconds after AT: (when, step, text, signature)."""
    return TABLES["job_logs"].from_rows(
        {
            "source": "job_logs", "position": f"p{number}", "time": AT + seconds * SECOND, "job": "1", "step": step,
            "text": text, "signature": signature,
        }
        for number, (seconds, step, text, signature) in enumerate(rows)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "count"),
    [("NODE_FAIL", 1), ("REQUEUED", 1), ("PREEMPTED", 1), ("BOOT_FAIL", 1), ("COMPLETED", 0), ("FAILED", 0), ("", 0)],
)
def test_an_attempt_that_the_cluster_ended_and_the_next_one_are_an_interruption(state: str, count: int) -> None:
    assert len(waits(attempt(0, 100, state), attempt(160, None, "RUNNING"))) == count


def test_each_pair_of_attempts_of_one_job_counts_however_they_are_sorted() -> None:
    attempts = [attempt(500, 900, "COMPLETED"), attempt(0, 100), attempt(130, 400, "REQUEUED")]

    assert waits(*attempts) == [30.0, 100.0]
    assert waits(*attempts, attempt(0, 100, job="2"), attempt(105, 200, "COMPLETED", job="3")) == [30.0, 100.0]


def test_an_attempt_that_is_told_twice_counts_once_as_it_ended() -> None:
    assert waits(attempt(0, None, "RUNNING"), attempt(0, 100), attempt(0, None, "RUNNING"), attempt(160, None)) == [
        60.0
    ]


def test_attempts_that_overlap_say_nothing() -> None:
    assert waits(attempt(0, 100), attempt(99, 200, "COMPLETED")) == []


@pytest.mark.parametrize(
    ("eligible", "waited"),
    [
        pytest.param(HOLD_OFF.total_seconds(), 1000.0, id="Slurm's own delay is part of the wait"),
        pytest.param(HOLD_OFF.total_seconds() + 1, 819.0, id="somebody held it: it waits from the release on"),
        pytest.param(1001.0, 1000.0, id="eligible after its start: not believed"),
        pytest.param(None, 1000.0, id="not reported"),
    ],
)
def test_a_wait_begins_when_the_job_may_start(eligible: float | None, waited: float) -> None:
    assert waits(attempt(-100, 0), attempt(1000, None, eligible=eligible)) == [waited]


def test_a_requeue_loop_does_not_drown_out_others() -> None:
    loop = [attempt(100 * number, 100 * number + 90, "REQUEUED") for number in range(PER_JOB + 20)]

    assert len(waits(*loop)) == PER_JOB


def test_what_slurm_recorded_of_a_job_that_was_requeued_twice_is_two_interruptions() -> None:
    body = (
        Path(__file__).parents[1] / "data/slurm/sacct-22.05-requeued-twice-arrays-and-broken-names.txt"
    ).read_bytes()
    rows = read_ended(body, source="sacct", start=AT).tables["job_accounting"]

    found = find_interruptions(attempts_of_rows(rows))

    assert [(each.job, each.why, each.queue_seconds) for each in found] == [
        ("1", "REQUEUED", 7.0),
        ("1", "REQUEUED", 7.0),
    ]


# -- restarts --


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        pytest.param([(-5, 9, "step 9", None), (200, 10, "step 10", None)], 200.0, id="a step"),
        pytest.param([(0, 10, "step 10", None)], 0.0, id="a step at the start"),
        pytest.param([(START_LIMIT.total_seconds() - 1, 1, "step 1", None)], 7199.0, id="a step just in time"),
        pytest.param([(START_LIMIT.total_seconds(), 1, "step 1", None)], None, id="a step too late"),
        pytest.param([(20, 1, "1/3", "train_progress_bar"), (90, 7, "step 7", None)], 90.0, id="a bar is no step"),
        pytest.param([(70, None, LOADED, None), (150, 3, "step 3", None)], 150.0, id="a step goes before a load"),
        pytest.param([(70, None, LOADED, None)], 70.0, id="a loaded checkpoint"),
        pytest.param([(700, None, SAVED, None), (1300, None, SAVED, None)], 100.0, id="a save less the interval"),
        pytest.param([(500, None, SAVED, None), (1300, None, SAVED, None)], None, id="more interval than time"),
        pytest.param([(700, None, SAVED, None)], None, id="one save has no interval"),
        pytest.param([(10, None, "hello", None)], None, id="nothing of the kind"),
        pytest.param([], None, id="no lines"),
    ],
)
def test_a_restart_ends_with_the_first_sign_of_work(
    rows: list[tuple[float, int | None, str, str | None]], seconds: float | None
) -> None:
    assert time_restart(interruption(30), log(*rows)) == seconds


def test_the_lines_of_others_say_nothing_of_a_restart() -> None:
    assert time_restart(interruption(30, job="2"), log((5, 1, "step 1", None))) is None


# -- costs --


@pytest.mark.parametrize(
    ("count", "queue_seconds"),
    [(LEAST_COUNT - 1, PRIOR.queue_seconds), (LEAST_COUNT, 7.0), (LEAST_COUNT + 1, 7.0)],
)
def test_five_cases_are_enough_and_four_are_not(count: int, queue_seconds: float) -> None:
    costs, counts = measure_costs([interruption(7.0)] * count, [])

    assert costs.queue_seconds == queue_seconds
    assert costs.measured_count == (count if count >= LEAST_COUNT else 0)
    assert counts == CostCounts(restart_count=0, queue_count=count, no_room_count=0)
    assert (costs.restart_seconds, costs.no_room_queue_seconds) == (PRIOR.restart_seconds, PRIOR.no_room_queue_seconds)


@pytest.mark.parametrize(
    ("wait", "had_room"),
    [(ROOM_SECONDS - 1, True), (ROOM_SECONDS, True), (ROOM_SECONDS + 1, False)],
)
def test_who_waits_longer_than_the_scheduler_takes_had_no_room(wait: float, had_room: bool) -> None:
    assert interruption(wait).had_room is had_room


def test_one_job_that_nobody_could_place_does_not_decide() -> None:
    usual = [interruption(1000.0)] * 19

    costs, _ = measure_costs([*usual, interruption(600_000.0)], [])

    assert costs.no_room_queue_seconds == 1000.0


def test_restarts_are_their_median_within_bounds() -> None:
    assert measure_costs([], [100.0, 110.0, 120.0, 130.0, 7000.0])[0].restart_seconds == 120.0
    assert measure_costs([], [1.0] * 5)[0].restart_seconds == 10.0


def test_a_page_says_what_is_measured_and_what_is_a_prior() -> None:
    costs, counts = measure_costs([interruption(7.0)] * 5, [100.0])

    assert [(row["seconds"], row["cases"], row["is"]) for row in cost_rows(costs, counts)] == [
        (300.0, 1, "prior: fewer than 5 cases"),
        (7.0, 5, "measured"),
        (3600.0, 0, "prior: fewer than 5 cases"),
    ]


@settings(max_examples=100, deadline=None)
@given(
    queues=st.lists(st.floats(min_value=0, max_value=1e6), max_size=30),
    restarts=st.lists(st.floats(min_value=0, max_value=7200), max_size=30),
)
def test_costs_are_ordered_and_bounded_whatever_was_measured(queues: list[float], restarts: list[float]) -> None:
    costs, _ = measure_costs([interruption(queue) for queue in queues], restarts)

    assert 0 <= costs.queue_seconds <= ROOM_SECONDS <= costs.no_room_queue_seconds <= 86_400
    assert 10 <= costs.restart_seconds <= 7200
    assert costs.measured_count <= len(queues)
