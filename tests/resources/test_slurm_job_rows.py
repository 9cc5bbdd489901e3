"""Array tasks keep their names; the components of a heterogeneous job are one job, as Slurm moves them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import JobState, JobStatus, Workload
from ops_pipelines.resources.slurm.jobs import Component, JobRow, join_components, read_jobs_answer

DATA = Path(__file__).parents[1] / "data" / "slurm"
RECORDED_AT = datetime(2026, 11, 22, 2, 31, 30, tzinfo=UTC)
BEGAN = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)


def jobs_of(name: str) -> dict[str, JobRow]:
    answer = read_jobs_answer((DATA / name).read_text(), source=name, now=RECORDED_AT)
    assert answer.rejected == ()
    return {row.status.job: row for row in answer.jobs}


# -- arrays --


def test_held_task_keeps_its_name_and_its_exclusion_is_its_own() -> None:
    jobs = jobs_of("squeue-22.05-array-task-held-and-kept-off-a-node.json")

    assert sorted(jobs) == ["1_0", "1_1", "1_2", "1_3", "1_waiting"]
    moved = jobs["1_1"].status
    assert (moved.state, moved.is_held, moved.restart_count, moved.excluded_nodes) == (
        JobState.PENDING,
        True,
        1,
        {"gpu002"},
    )
    others = [row.status for job, row in jobs.items() if job != "1_1"]
    assert not any(job.is_held or job.excluded_nodes or job.restart_count for job in others)


def test_task_is_one_component_under_its_own_name() -> None:
    task = jobs_of("squeue-22.05-array-task-held-and-kept-off-a-node.json")["1_1"]

    assert (task.leader, task.ids, len(task.components)) == (JobId("1_1"), {"1_1"}, 1)


# -- heterogeneous jobs, recorded --


def test_heterogeneous_job_is_one_job_under_the_id_of_its_leader() -> None:
    jobs = jobs_of("squeue-22.05-heterogeneous.json")

    assert sorted(jobs) == ["15"]
    assert jobs["15"].ids == {"15", "16"}
    assert jobs["15"].status.gpu_count == 12


def test_component_that_still_ends_keeps_the_whole_job_from_being_fenced() -> None:
    """The leader reads COMPLETING and the other component PENDING already."""
    (job,) = jobs_of("squeue-22.05-heterogeneous-one-component-still-ends.json").values()

    assert (job.status.state, job.status.is_held, job.status.restart_count) == (JobState.COMPLETING, True, 1)
    assert job.status.nodes == {"gpu001", "gpu002"}
    assert job.status.attempt is None


def test_hold_of_the_leader_marks_the_whole_job_while_it_runs() -> None:
    (job,) = jobs_of("squeue-22.05-heterogeneous-held-while-running.json").values()

    assert (job.status.job, job.status.state, job.status.is_held) == (JobId("23"), JobState.RUNNING, True)
    assert job.status.nodes == {"gpu001", "gpu002", "gpu003"}
    assert job.status.gpu_count == 20
    assert job.status.started_at is not None
    assert job.status.ends_by == job.status.started_at + timedelta(hours=1)


# -- joining --


def part(
    job: str,
    state: JobState,
    *,
    nodes: Sequence[str] = (),
    excluded: Sequence[str] = (),
    is_held: bool = False,
    is_requeueable: bool = True,
) -> JobRow:
    excluded_nodes = frozenset(map(NodeName, excluded))
    has_ended = state in {JobState.COMPLETED, JobState.FAILED, JobState.NODE_FAIL}
    return JobRow(
        status=JobStatus(
            job=JobId(job),
            state=state,
            is_held=is_held,
            is_requeueable=is_requeueable,
            name=f"name of {job}",
            user="ada",
            account="research",
            workload=Workload.TRAINING,
            nodes=frozenset(map(NodeName, nodes)),
            gpu_count=4,
            started_at=None if state is JobState.PENDING else BEGAN,
            ended_at=BEGAN + timedelta(minutes=int(job) % 7) if has_ended else None,
            restart_count=0,
            excluded_nodes=excluded_nodes,
            checkpointed_at=None,
        ),
        leader=JobId("40"),
        components=(Component(job=JobId(job), excluded_nodes=excluded_nodes),),
        is_waiting_array=False,
        checkpoint_path=None,
    )


def joined(*parts: JobRow) -> JobRow:
    (row,) = join_components(parts)
    return row


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        (JobState.RUNNING, JobState.PENDING, JobState.RUNNING),
        (JobState.PENDING, JobState.COMPLETING, JobState.COMPLETING),
        (JobState.COMPLETED, JobState.RUNNING, JobState.RUNNING),
        (JobState.COMPLETED, JobState.PENDING, JobState.PENDING),
        (JobState.COMPLETED, JobState.FAILED, JobState.FAILED),
        (JobState.COMPLETED, JobState.COMPLETED, JobState.COMPLETED),
        (JobState.RUNNING, JobState.UNKNOWN, JobState.UNKNOWN),
    ],
)
def test_whole_job_has_processes_as_long_as_one_component_has(
    first: JobState, second: JobState, whole: JobState
) -> None:
    for states in ((first, second), (second, first)):
        row = joined(*(part(job, state) for job, state in zip(("40", "41"), states, strict=True)))

        assert row.status.state is whole
        assert (row.status.ended_at is None) is (whole not in {JobState.COMPLETED, JobState.FAILED})


def test_whole_job_is_held_only_if_every_component_is() -> None:
    held, free = part("40", JobState.PENDING, is_held=True), part("41", JobState.PENDING)

    assert not joined(held, free).status.is_held
    assert joined(held, part("41", JobState.PENDING, is_held=True)).status.is_held


def test_node_is_excluded_only_if_no_component_may_be_put_there() -> None:
    row = joined(part("41", JobState.PENDING, excluded=["a", "b"]), part("40", JobState.PENDING, excluded=["b", "c"]))

    assert row.status.excluded_nodes == {"b"}
    assert [(each.job, sorted(each.excluded_nodes)) for each in row.components] == [
        ("40", ["b", "c"]),
        ("41", ["a", "b"]),
    ]


def test_whole_job_may_be_requeued_only_if_every_component_may() -> None:
    row = joined(part("40", JobState.RUNNING), part("41", JobState.RUNNING, is_requeueable=False))

    assert not row.status.is_requeueable


def test_what_is_said_once_is_said_by_the_leader() -> None:
    assert joined(part("41", JobState.RUNNING), part("40", JobState.RUNNING)).status.name == "name of 40"


def test_component_whose_leader_is_forgotten_keeps_the_leaders_id() -> None:
    assert joined(part("41", JobState.COMPLETED)).status.job == "40"
