"""How jobs and nodes stood, from the tables that remember it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.observation import JobState
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.past_states import LATELY, attempts_of, ended_attempts, jobs_over_time

START = datetime(2026, 11, 21, 7, tzinfo=UTC)
HOUR = timedelta(hours=1)


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def accounted(job: str, started: float, ended: float | None, **cells: object) -> Mapping[str, object]:
    ended_at = None if ended is None else minute(ended)
    return {
        "job": job, "attempt": minute(started).isoformat(), "time": ended_at or minute(started), "name": "train",
        "user": "ada", "account": "ml", "state": "COMPLETED" if ended_at else "RUNNING",
        "started_at": minute(started), "ended_at": ended_at, "gpu_count": 16, "nodes": "gpu[001-002]", **cells,
    }  # fmt: skip


def held(job: str, node: str, started: float, ended: float | None, *, hour: int = 0) -> Mapping[str, object]:
    return {
        "job": job, "attempt": minute(started).isoformat(), "node": node, "time": START + hour * HOUR,
        "name": "train", "user": "ada", "account": "ml", "state": "RUNNING", "started_at": minute(started),
        "ended_at": None if ended is None else minute(ended), "gpu_count": 8.0,
    }  # fmt: skip


def test_an_attempt_is_there_once_with_its_nodes_and_accounting_knows_how_it_ended() -> None:
    accounting = TABLES["job_accounting"].from_rows(
        [accounted("7", 0, 30, state="CANCELLED by 1000"), accounted("8", 5, 6, nodes="None assigned", state="FAILED")]
    )
    allocations = TABLES["job_allocations"].from_rows(
        [held("7", "gpu001", 0, None), held("9", "gpu003", 10, None), held("9", "gpu004", 10, 90, hour=1)]
    )

    found = attempts_of(accounting, allocations)

    assert [(each.job, each.state, sorted(each.nodes), each.gpu_count, each.ended_at) for each in found] == [
        ("7", JobState.CANCELLED, ["gpu001", "gpu002"], 16, minute(30)),
        ("8", JobState.FAILED, [], 16, minute(6)),
        ("9", JobState.UNKNOWN, ["gpu003", "gpu004"], 16, minute(90)),
    ]


def test_names_that_could_be_none_and_attempts_that_never_began_are_passed_over() -> None:
    accounting = TABLES["job_accounting"].from_rows(
        [accounted("../x", 0, 1), accounted("7", 0, 1, started_at=None), accounted("8", 0, 1, nodes="; rm -rf /")]
    )

    assert [(each.job, each.nodes) for each in attempts_of(accounting, None)] == [("8", frozenset())]
    assert attempts_of(None, None) == ()


def test_a_job_runs_before_its_end_and_is_named_for_a_while_after_it() -> None:
    attempts = attempts_of(
        TABLES["job_accounting"].from_rows([accounted("7", 10, 30), accounted("8", -60, None)]), None
    )

    found = jobs_over_time(attempts, start=START, end=minute(60))

    assert [(at, [(job.job, job.state) for job in jobs]) for at, jobs in found] == [
        (START, [("8", JobState.RUNNING)]),
        (minute(10), [("8", JobState.RUNNING), ("7", JobState.RUNNING)]),
        (minute(30), [("8", JobState.RUNNING), ("7", JobState.COMPLETED)]),
        (minute(30) + LATELY, [("8", JobState.RUNNING)]),
    ]
    assert all(job.ended_at is None for _, jobs in found[:2] for job in jobs)


def test_only_what_is_over_is_an_ended_attempt() -> None:
    attempts = attempts_of(
        TABLES["job_accounting"].from_rows([accounted("7", 10, 30, state="NODE_FAIL"), accounted("8", 0, None)]), None
    )

    (found,) = ended_attempts(attempts)

    assert (found.job, found.state, found.life) == ("7", JobState.NODE_FAIL, timedelta(minutes=20))
