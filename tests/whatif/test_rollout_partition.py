"""The queue of one model's nodes: first come, first served, and backfill that holds nobody up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines_lab.whatif.lifecycle.scenario import read_site
from ops_pipelines_lab.whatif.lifecycle.work import QUEUE_LENGTH, Job, JobMix, Partition

CAP = 4


class Jobs(JobMix):
    """Jobs as a test lines them up; after them come such as fit nowhere."""

    def __init__(self, *sizes_and_hours: tuple[int, float]) -> None:
        self._waiting = list(sizes_and_hours)
        self._count = 0

    def draw(self) -> Job:
        """Return the next one."""
        size, hours = self._waiting.pop(0) if self._waiting else (10_000, 1.0)
        self._count += 1
        return Job(number=self._count, size=size, work_seconds=hours * 3_600, limit_seconds=hours * 3_600)


def partition(*jobs: tuple[int, float], idle: int, capped: int = 0) -> Partition:
    found = Partition(Jobs(*jobs), gang_cap=CAP)
    found.idle[:] = range(idle)
    found.capped.update(range(idle - capped, idle))
    return found


def started(queue: Partition, *, at_hours: float = 0.0) -> list[int]:
    return [job.number for job, _ in queue.next_starts(at_hours * 3_600)]


def test_jobs_start_in_their_order_while_there_is_room() -> None:
    queue = partition((2, 1), (3, 1), (1, 1), idle=5)

    assert started(queue) == [1, 2]
    assert queue.idle == []


@pytest.mark.parametrize(("hours", "is_started"), [(1.9, True), (2.0, True), (2.1, False)])
def test_behind_a_gang_starts_what_is_over_before_its_room_is_there(hours: float, is_started: bool) -> None:
    queue = partition((3, 2), (4, 1), (1, hours), idle=4)

    assert started(queue) == ([1, 3] if is_started else [1])


def test_a_long_job_takes_nodes_that_the_gang_in_front_will_not_need() -> None:
    queue = partition((3, 2), (4, 1), (1, 9), (1, 9), idle=5)

    assert started(queue) == [1, 3]


@pytest.mark.parametrize(("size", "is_started"), [(CAP, True), (CAP + 1, False)])
def test_wide_gangs_are_kept_off_nodes_that_soak(size: int, is_started: bool) -> None:
    queue = partition((size, 1), idle=CAP + 1, capped=2)

    assert bool(started(queue)) is is_started


def test_narrow_jobs_take_the_nodes_that_gangs_are_kept_off_first() -> None:
    queue = partition((2, 1), (5, 1), idle=7, capped=2)

    found = queue.next_starts(0.0)

    assert [sorted(nodes) for _, nodes in found] == [[5, 6], [0, 1, 2, 3, 4]]


def test_a_narrow_job_may_run_long_where_the_gang_in_front_must_not_go() -> None:
    queue = partition((5, 2), (6, 1), (2, 9), (1, 9), idle=7, capped=2)

    assert started(queue) == [1, 3]


def test_drained_nodes_of_a_running_job_are_no_room() -> None:
    queue = partition((3, 2), (3, 5), (4, 1), (1, 4), idle=7)
    first = queue.next_starts(0.0)[0][0]

    first.drained_count = 3

    assert started(queue) == [4]


def test_a_failed_job_comes_before_any_other() -> None:
    queue = partition((3, 2), (3, 2), idle=3)
    job, nodes = queue.next_starts(0.0)[0]

    queue.ended(job)
    queue.idle += nodes
    queue.put_first(job)

    assert [again.number for again, _ in queue.next_starts(60.0)] == [1]


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 12), st.floats(0.1, 40)), min_size=QUEUE_LENGTH, max_size=QUEUE_LENGTH + 20
    ),
    idle=st.integers(0, 40),
    capped=st.integers(0, 10),
)
def test_no_node_gets_two_jobs_and_no_soaking_node_a_wide_gang(
    sizes: list[tuple[int, float]], idle: int, capped: int
) -> None:
    queue = partition(*sizes, idle=idle, capped=min(capped, idle))

    found = queue.next_starts(0.0)

    taken = [each for _, nodes in found for each in nodes]
    assert sorted([*taken, *queue.idle]) == list(range(idle))
    assert all(len(nodes) == job.size for job, nodes in found)
    for job, nodes in found:
        assert job.capped_count == sum(each in queue.capped for each in nodes)
        assert job.size <= CAP or not job.capped_count


def test_the_mix_has_gangs_of_every_size_and_keeps_its_order_with_its_seed() -> None:
    site = read_site()
    one, same = (JobMix(site, node_count=800, seed="jobs") for _ in range(2))

    jobs = [one.draw() for _ in range(4_000)]

    assert {each.size for each in jobs} == {1, 2, 4, 8, 16, 32, 64}
    assert [each.work_seconds for each in jobs[:50]] == [same.draw().work_seconds for _ in range(50)]
    middle = sorted(each.work_seconds for each in jobs)[2_000]
    assert math.isclose(middle, site.median_job_seconds, rel_tol=0.15)
    assert all(
        site.shortest_limit_factor <= each.limit_seconds / each.work_seconds <= site.longest_limit_factor
        for each in jobs
    )
