"""Rows of the lake become the work of jobs that are alike: young hours apart, nobody used more than he held."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.core.sources import Declared
from ops_pipelines.efficiency.advice import JobWork
from ops_pipelines.efficiency.other_rows import read_saves
from ops_pipelines.efficiency.work_rows import (
    ACCOUNTING,
    ALLOCATIONS,
    EFFICIENCY,
    INVENTORY,
    STEPS,
    Hardware,
    LongRun,
    Works,
    read_failures,
    read_hardware,
    read_works,
)
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.logs.matching import CheckpointLine, LineKind
from ops_pipelines.review.job_runs import JobLines
from ops_pipelines.teams.desk import AdviceSettings

T0 = datetime(2026, 11, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
Row = Mapping[str, object]


def held(at: datetime, **changes: object) -> Row:
    return {
        "job": "1", "attempt": "a", "node": "n1", "time": at, "name": "train_1", "user": "ada", "account": "ml",
        "partition": "batch", "started_at": T0, "held_seconds": 3600.0, "gpu_count": 8.0, **changes,
    }  # fmt: skip


def seen(at: datetime, **changes: object) -> Row:
    return {
        "node": "n1", "job": "1", "time": at, "verdict": "idle", "rule": "idle_nothing_runs", "gpu_count": 8.0,
        "held_seconds": 3600.0, **changes,
    }  # fmt: skip


def ended(**changes: object) -> Row:
    return {
        "job": "1", "attempt": "a", "time": T0 + 5 * HOUR, "name": "train_1", "user": "ada", "account": "ml",
        "partition": "batch", "state": "COMPLETED", "submitted_at": T0 - HOUR, "started_at": T0,
        "ended_at": T0 + 5 * HOUR, "elapsed_seconds": 18_000.0, "time_limit_seconds": 36_000.0, "node_count": 1,
        "gpu_count": 8, "memory_bytes": 1e12, **changes,
    }  # fmt: skip


def read(
    *, allocations: list[Row], efficiency: list[Row] = [], accounting: list[Row] = [], steps: list[Row] = [],  # noqa: B006
    comment: Workload = Workload.UNKNOWN,
) -> Works:  # fmt: skip
    def table(name: str, rows: list[Row], columns: tuple[str, ...]) -> object:
        return TABLES[name].from_rows(rows).select(list(columns))

    return read_works(
        [table("job_allocations", allocations, ALLOCATIONS)],
        [table("gpu_efficiency", efficiency, EFFICIENCY)],
        [table("job_accounting", accounting, ACCOUNTING)],
        [table("job_steps", steps, STEPS)],
        since=T0,
        until=T0 + 7 * 24 * HOUR,
        settings=AdviceSettings(),
        hardware=Hardware(gpu_types={NodeName("n1"): GpuType("h100")}),
        read_comment=lambda _: Declared(workload=comment),
        known={},
    )


def only(works: Works) -> JobWork:
    (one,) = works.works
    return one


@pytest.mark.parametrize(("minutes", "idle"), [(14, 0.0), (15, 8.0), (16, 8.0)])
def test_a_job_younger_than_the_grace_is_not_idle(minutes: int, idle: float) -> None:
    at = T0 + HOUR
    one = only(read(allocations=[held(at, started_at=at - minutes * MINUTE)], efficiency=[seen(at)]))

    assert one.idle_gpu_hours == idle
    assert one.idle_gpu_hours + one.early_idle_gpu_hours == 8.0


@pytest.mark.parametrize(("minutes", "ratio"), [(59, 0.0), (60, 1.0), (61, 1.0)])
def test_the_first_hour_of_a_job_is_no_way_of_working(minutes: int, ratio: float) -> None:
    at = T0 + 2 * HOUR
    one = only(
        read(
            allocations=[held(at, started_at=at - minutes * MINUTE)],
            efficiency=[seen(at, verdict="input_stalled", utilisation_ratio=0.3)],
        )
    )

    assert one.ratio_of("input_stalled") == ratio


def test_idle_hours_on_end_are_told_from_scattered_ones() -> None:
    hours = [1, 2, 3, 6, 7]
    works = read(
        allocations=[held(T0 + each * HOUR) for each in hours], efficiency=[seen(T0 + each * HOUR) for each in hours]
    )

    assert only(works).longest_idle_hours == 3.0
    assert only(works).idle_gpu_hours == 40.0


def test_gpus_that_jobs_share_are_used_by_nobody_more_than_he_held() -> None:
    at = T0 + 3 * HOUR
    one = only(read(allocations=[held(at, gpu_count=2.0)], efficiency=[seen(at, gpu_count=8.0)]))

    assert (one.held_gpu_hours, one.seen_gpu_hours, one.idle_gpu_hours) == (2.0, 2.0, 2.0)


def test_verdicts_that_are_not_known_are_not_seen_and_of_unknown_jobs_counted() -> None:
    at = T0 + 3 * HOUR
    works = read(
        allocations=[held(at)], efficiency=[seen(at, verdict="unknown"), seen(at, job="stranger"), seen(at, job="")]
    )

    assert only(works).seen_gpu_hours == 0.0
    assert works.unknown_gpu_hours == 8.0


def test_jobs_are_alike_by_team_user_and_name_but_for_a_number() -> None:
    at = T0 + HOUR
    works = read(
        allocations=[
            held(at),
            held(at, job="2", name="train_2", node="n2"),
            held(at, job="3", user="bob", node="n3"),
            held(at, job="4", account="other", node="n4"),
        ]
    )

    assert [(each.team, each.subject, each.held_gpu_hours) for each in works.works] == [
        ("ml", "ada/train_#", 16.0),
        ("ml", "bob/train_#", 8.0),
        ("other", "ada/train_#", 8.0),
    ]


@pytest.mark.parametrize(
    ("changes", "is_session"),
    [
        ({"name": "bash"}, True),
        ({"name": "interactive"}, True),
        ({"name": "sys/dashboard/jupyter"}, True),
        ({"partition": "debug"}, True),
        ({"name": "bashful"}, False),
        ({"name": "train"}, False),
    ],
)
def test_sessions_are_known_by_name_or_partition(changes: dict[str, object], is_session: bool) -> None:
    assert only(read(allocations=[held(T0, **changes)])).is_interactive is is_session


def test_attempts_carry_limits_memory_and_waits() -> None:
    step = {"job": "1", "step": "0", "attempt": "a", "time": T0, "task_count": 8, "max_rss_bytes": 1e9}
    one = only(read(allocations=[held(T0)], accounting=[ended(comment="x")], steps=[step], comment=Workload.TRAINING))

    (attempt,) = one.attempts
    assert (attempt.elapsed_hours, attempt.limit_hours, attempt.waited_hours) == (5.0, 10.0, 1.0)
    assert (attempt.asked_memory_bytes, attempt.used_memory_bytes) == (1e12, 8e9)
    assert one.workloads == {Workload.TRAINING}
    assert one.gpu_type == "h100"


def test_the_longest_job_of_each_kind_is_the_one_whose_lines_are_read() -> None:
    works = read(
        allocations=[held(T0), held(T0 + HOUR), held(T0, job="2", name="train_2", node="n2")],
    )

    (run,) = works.longest.values()
    assert (run.job, run.held_hours, run.node_count) == ("1", 2.0, 1)


def test_failures_of_nodes_are_counted_over_the_node_hours_of_jobs_with_gpus() -> None:
    rows = [ended(), ended(attempt="b", state="NODE_FAIL"), ended(attempt="c", gpu_count=0, state="NODE_FAIL")]

    found = read_failures([TABLES["job_accounting"].from_rows(rows)])

    assert (found.failure_count, found.node_hours, found.hours_between(2)) == (1, 10.0, 5.0)


def test_memory_of_gpus_and_nodes_comes_from_the_inventory() -> None:
    rows = [
        {"node": "n1", "device": "", "time": T0, "kind": "node", "memory_bytes": 8e11, "gpu_count": 8},
        {"node": "n1", "device": "a", "time": T0, "kind": "gpu", "memory_bytes": 8e10},
        {"node": "n1", "device": "b", "time": T0, "kind": "gpu", "memory_bytes": 4e10},
    ]

    found = read_hardware(TABLES["inventory"].from_rows(rows).select(list(INVENTORY)), {})

    assert found.device_memory_bytes == {"n1": 4e10}
    assert found.host_memory_bytes_per_gpu == {"n1": 1e11}


def lines(*told: tuple[int, LineKind]) -> JobLines:
    """Return lines of job 1, reported so many seconds after T0."""
    marks = tuple(CheckpointLine(job=JobId("1"), at=T0 + timedelta(seconds=at), kind=kind) for at, kind in told)
    rows = TABLES["job_logs"].from_rows(
        [{"source": "s", "position": "1", "time": T0, "job": "1", "step": 5, "text": "iteration 5"}]
    )
    return JobLines(rows={T0: rows}, told={"1": marks})


RUN = LongRun(job="1", hours=frozenset({T0}), held_hours=20.0, node_count=4)


def test_saves_are_timed_from_their_first_line_to_the_word_of_their_end() -> None:
    saving, saved = LineKind.SAVING, LineKind.SAVED
    found = read_saves(lines((0, saving), (5, saving), (60, saved), (65, saved), (3600, saving), (3690, saved)), RUN)

    assert found.save_seconds == (60.0, 90.0)
    assert list(found.intervals_hours) == pytest.approx([3630 / 3600])
    assert (found.save_count, found.is_training, found.is_asynchronous) == (2, True, False)


def test_lines_of_a_training_that_tell_of_no_save_are_no_saves() -> None:
    found = read_saves(lines(), RUN)

    assert (found.has_lines, found.is_training, found.save_count) == (True, True, 0)


def test_saves_that_go_on_beside_the_training_are_known() -> None:
    found = read_saves(lines((0, LineKind.SCHEDULED), (100, LineKind.SAVED)), RUN)

    assert found.is_asynchronous
