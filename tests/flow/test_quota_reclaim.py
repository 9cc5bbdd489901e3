"""Whose jobs preemption would end for a lender: the youngest of borrowers that lose least; never services."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId
from ops_pipelines.core.observation import Checkpointing, JobState, JobStatus, Workload
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.quotas.reclaim import LEAST_RUN, Preemption, ReclaimReport, report_reclaim

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
LENDER, A, B = TeamName("lender"), TeamName("a"), TeamName("b")


def job(number: int, *, team: TeamName = A, gpus: int = 8, ran: timedelta = 5 * HOUR) -> JobStatus:
    return JobStatus(
        job=JobId(str(number)),
        state=JobState.RUNNING,
        is_held=False,
        is_requeueable=True,
        name="train",
        user="u",
        account=team,
        workload=Workload.TRAINING,
        nodes=frozenset(),
        gpu_count=gpus,
        started_at=NOW - ran,
        ended_at=None,
        restart_count=0,
        excluded_nodes=frozenset(),
        checkpointed_at=None,
        checkpointing=Checkpointing.YES,
    )


def report(
    *jobs: JobStatus,
    wanted: float = 8,
    beyond: dict[TeamName, float] | None = None,
    preemption: Preemption | None = None,
) -> ReclaimReport:
    return report_reclaim(
        LENDER,
        wanted,
        jobs,
        beyond={A: 99, B: 99} if beyond is None else beyond,
        preemption=preemption,
        now=NOW,
        parents={},
    )


def named(found: ReclaimReport) -> list[str]:
    return [each.job for each in found.jobs]


def test_youngest_that_ran_long_enough_goes_first_until_enough_is_back() -> None:
    found = report(job(1, ran=9 * HOUR), job(2, ran=3 * HOUR), job(3, team=B, ran=4 * HOUR), wanted=12)

    assert (named(found), found.missing_gpus) == (["2", "3"], 0)


@pytest.mark.parametrize(
    "spared",
    [
        replace(job(1), service="chat"),
        replace(job(1), workload=Workload.INFERENCE),
        replace(job(1), checkpointing=Checkpointing.UNKNOWN),
        replace(job(1), checkpointing=Checkpointing.NO),
        replace(job(1), is_requeueable=False),
        replace(job(1), state=JobState.COMPLETING),
        replace(job(1), started_at=None),
        job(1, team=LENDER),
        job(1, team=TeamName("within its own")),
        job(1, gpus=0),
    ],
)
def test_who_would_lose_more_than_time_is_never_named(spared: JobStatus) -> None:
    found = report(spared)

    assert (named(found), found.missing_gpus) == ([], 8)


@pytest.mark.parametrize(("seconds", "count"), [(-1, 0), (0, 1), (1, 1)])
def test_job_is_left_alone_until_it_ran_for_the_least_time(seconds: int, count: int) -> None:
    assert len(report(job(1, ran=LEAST_RUN + timedelta(seconds=seconds))).jobs) == count


@pytest.mark.parametrize(("exempt", "count"), [(4 * HOUR, 1), (5 * HOUR, 1), (6 * HOUR, 0)])
def test_what_the_scheduler_exempts_is_left_alone(exempt: timedelta, count: int) -> None:
    assert len(report(job(1), preemption=Preemption(mode="REQUEUE", exempt=exempt)).jobs) == count


@pytest.mark.parametrize(("beyond", "count"), [(7, 0), (8, 1), (15, 1), (16, 2)])
def test_team_gives_no_more_than_it_has_beyond_its_guarantee(beyond: float, count: int) -> None:
    assert len(report(job(1), job(2), wanted=16, beyond={A: beyond}).jobs) == count


@pytest.mark.parametrize(
    ("preemption", "words"),
    [
        (None, "is not known; see PreemptMode"),
        (Preemption(mode="OFF", exempt=HOUR), "nothing is preempted"),
        (Preemption(mode="REQUEUE", exempt=HOUR), "PreemptMode is REQUEUE, a job is safe for 1:00:00"),
        (Preemption(mode="CANCEL", exempt=HOUR), "not started again"),
    ],
)
def test_report_says_whether_the_scheduler_would(preemption: Preemption | None, words: str) -> None:
    assert words in report(job(1), preemption=preemption).scheduler


@given(
    jobs=st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 16), st.integers(0, 20)), max_size=12),
    wanted=st.integers(0, 64),
    beyond=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_nobody_falls_below_its_guarantee_and_no_job_too_many_is_named(
    jobs: list[tuple[TeamName, int, int]], wanted: int, beyond: tuple[int, int]
) -> None:
    listed = [job(number, team=team, gpus=gpus, ran=hours * HOUR) for number, (team, gpus, hours) in enumerate(jobs)]
    found = report(*listed, wanted=wanted, beyond={A: beyond[0], B: beyond[1]})

    given_back = sum(each.gpu_count for each in found.jobs)
    for team, most in zip((A, B), beyond, strict=True):
        assert sum(each.gpu_count for each in found.jobs if each.team == team) <= most
    assert found.missing_gpus == max(0, wanted - given_back)
    if found.jobs:
        assert given_back - found.jobs[-1].gpu_count < wanted
