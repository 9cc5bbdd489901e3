"""Whose failure is it: the job's, that fails anywhere, or the node's, that fails anything."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.fault import ComponentKind
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.observation import NO_NODE, JobState, Signal
from ops_pipelines.observe.detectors.stalls import WINDOW, EndedAttempt, detect_failures

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def ended(
    job: str,
    nodes: str,
    *,
    minutes_ago: float = 60,
    state: JobState = JobState.FAILED,
    life: timedelta = timedelta(minutes=5),
    name: str = "",
    user: str = "",
) -> EndedAttempt:
    """Return an attempt on nodes given as `a b c`; every job is a program of its own unless it is named."""
    end = NOW - timedelta(minutes=minutes_ago)
    return EndedAttempt(
        job=JobId(job),
        name=name or f"program-{job}",
        user=user or f"user-{job}",
        nodes=frozenset(NodeName(node) for node in nodes.split()),
        started_at=end - life,
        ended_at=end,
        state=state,
    )


def well(count: int = 60) -> list[EndedAttempt]:
    """Return a cluster's usual day: jobs on ten nodes, one in thirty fails."""
    return [
        ended(
            f"w{number}",
            f"n{number % 10}",
            minutes_ago=5 * number + 1,
            state=JobState.FAILED if number % 30 == 7 else JobState.COMPLETED,
        )
        for number in range(count)
    ]


def test_a_job_that_fails_on_changing_nodes_is_blamed_itself() -> None:
    run = [ended("7", f"n{number}", minutes_ago=50 - 10 * number) for number in range(3)]

    (found,) = detect_failures([*well(), *run], at=NOW)

    assert (found.signal, found.node, found.job) == (Signal.JOB_CRASH_LOOP, NO_NODE, "7")
    assert found.component is not None
    assert found.component.kind is ComponentKind.JOB
    assert found.began_at == run[0].ended_at
    assert found.first_seen_at == run[2].ended_at
    assert found.value == 3


def test_a_program_that_is_submitted_again_under_other_numbers_is_one_program() -> None:
    run = [ended(str(number), f"n{number}", minutes_ago=50 - number, name="train", user="u") for number in range(3)]

    (found,) = detect_failures(run, at=NOW)

    assert found.signal is Signal.JOB_CRASH_LOOP


@pytest.mark.parametrize(("failures", "is_loop"), [(2, False), (3, True), (4, True)])
def test_three_failures_are_a_loop(failures: int, is_loop: bool) -> None:
    run = [ended("7", f"n{number}", minutes_ago=50 - number) for number in range(failures)]

    assert bool(detect_failures(run, at=NOW)) is is_loop


@pytest.mark.parametrize(
    "state", [JobState.PREEMPTED, JobState.CANCELLED, JobState.TIMEOUT, JobState.COMPLETED, JobState.NODE_FAIL]
)
def test_what_is_no_failure_of_a_program_is_no_loop(state: JobState) -> None:
    run = [ended("7", f"n{number}", minutes_ago=50 - number, state=state) for number in range(5)]

    assert detect_failures(run, at=NOW) == []


def test_a_success_in_between_shows_that_it_can_run() -> None:
    states = [JobState.FAILED, JobState.FAILED, JobState.COMPLETED, JobState.FAILED]
    run = [ended("7", f"n{number}", minutes_ago=50 - number, state=state) for number, state in enumerate(states)]

    assert detect_failures(run, at=NOW) == []


def test_a_job_that_fails_on_one_node_only_is_no_loop_and_no_bad_node() -> None:
    run = [ended("7", "n1", minutes_ago=50 - number) for number in range(5)]

    assert detect_failures([*well(), *run], at=NOW) == []


def test_failures_late_in_long_lives_are_no_loop() -> None:
    run = [ended("7", f"n{number}", minutes_ago=50 - number, life=timedelta(hours=3)) for number in range(4)]

    assert detect_failures(run, at=NOW) == []


def test_a_loop_keeps_its_name_while_it_goes_on() -> None:
    run = [ended(str(number), f"n{number}", minutes_ago=390 - 60 * number, name="p", user="u") for number in range(6)]

    then = detect_failures(run, at=NOW - timedelta(hours=2))
    now = detect_failures(run, at=NOW)

    assert [found.position for found in then] == [found.position for found in now]


@pytest.mark.parametrize(("minutes_ago", "counts"), [(359, True), (360, False), (361, False)])
def test_only_what_ended_within_the_window_counts(minutes_ago: float, counts: bool) -> None:
    run = [ended("7", f"n{number}", minutes_ago=minutes) for number, minutes in enumerate((minutes_ago, 20, 10))]

    assert bool(detect_failures(run, at=NOW)) is counts
    assert timedelta(hours=6) == WINDOW


def test_what_ends_later_is_not_known_yet() -> None:
    run = [ended("7", f"n{number}", minutes_ago=minutes) for number, minutes in enumerate((20, 10, -1))]

    assert detect_failures(run, at=NOW) == []


def test_a_node_on_which_different_jobs_fail_is_blamed() -> None:
    bad = [ended(f"b{number}", "bad", minutes_ago=50 - number) for number in range(4)]

    (found,) = detect_failures([*well(), *bad], at=NOW)

    assert (found.signal, found.node, found.job) == (Signal.NODE_FAILS_JOBS, "bad", None)
    assert found.value == 4


@pytest.mark.parametrize(("failures", "is_blamed"), [(2, False), (3, True)])
def test_three_programs_must_fail_where_failures_are_rare(failures: int, is_blamed: bool) -> None:
    usual = [ended(f"w{number}", f"n{number % 10}", state=JobState.COMPLETED) for number in range(100)]
    bad = [ended(f"b{number}", "bad", minutes_ago=50 - number) for number in range(failures)]

    assert bool(detect_failures([*usual, *bad], at=NOW)) is is_blamed


def test_where_every_third_job_fails_three_failures_are_chance() -> None:
    usual = [
        ended(f"w{number}", f"n{number % 10}", state=JobState.FAILED if number % 3 == 0 else JobState.COMPLETED)
        for number in range(90)
    ]
    unlucky = [ended(f"b{number}", "unlucky", minutes_ago=50 - number) for number in range(3)]

    assert detect_failures([*usual, *unlucky], at=NOW) == []


def test_in_a_cluster_of_long_jobs_those_that_still_run_show_how_rare_failures_are() -> None:
    bad = [ended(f"b{number}", "bad", minutes_ago=50 - number) for number in range(3)]
    usual = [ended(f"w{number}", f"n{number}", state=JobState.FAILED) for number in range(2)]

    assert detect_failures([*usual, *bad], at=NOW) == []
    assert [found.node for found in detect_failures([*usual, *bad], at=NOW, surviving_count=100)] == ["bad"]


def test_what_failed_long_before_blames_no_node_today() -> None:
    old = [ended(f"b{number}", "n1", minutes_ago=400 + number) for number in range(5)]

    assert detect_failures([*well(), *old], at=NOW) == []


def test_one_users_program_that_fails_again_blames_no_node() -> None:
    bad = [ended(f"b{number}", "n1", minutes_ago=50 - number, name="same", user="same") for number in range(6)]

    assert all(found.signal is not Signal.NODE_FAILS_JOBS for found in detect_failures([*well(), *bad], at=NOW))


def test_jobs_that_fail_elsewhere_too_blame_no_node() -> None:
    here = [ended(f"h{number}", "n1", minutes_ago=50, name=f"p{number}", user="u") for number in range(4)]
    there = [ended(f"t{number}", f"n{number + 2}", minutes_ago=40, name=f"p{number}", user="u") for number in range(4)]

    assert detect_failures([*well(), *here, *there], at=NOW) == []


def test_who_shared_the_jobs_of_a_bad_node_is_not_blamed() -> None:
    bad = [ended(f"b{number}", f"bad n{number}", minutes_ago=50 - number) for number in range(6)]

    assert [found.node for found in detect_failures([*well(), *bad], at=NOW)] == ["bad"]


def test_of_two_nodes_that_always_fail_together_neither_is_blamed() -> None:
    bad = [ended(f"b{number}", "one two", minutes_ago=50 - number) for number in range(6)]

    assert detect_failures([*well(), *bad], at=NOW) == []


def test_large_jobs_count_weakly_for_each_of_their_nodes() -> None:
    others = " ".join(f"n{number}" for number in range(7))
    bad = [ended(f"b{number}", f"bad {others}", minutes_ago=50 - number) for number in range(5)]

    assert detect_failures([*well(), *bad], at=NOW) == []


@pytest.mark.parametrize(
    ("booted_minutes_ago", "is_blamed"),
    [(66, True), (65, True), (64, False), (1, False)],
    ids=["before they began", "as the first began", "after the first began", "after all"],
)
def test_what_began_before_its_boot_is_not_held_against_a_node(booted_minutes_ago: float, is_blamed: bool) -> None:
    run = [ended(f"f{number}", "bad", minutes_ago=60 - 10 * number) for number in range(3)]
    boot = NOW - timedelta(minutes=booted_minutes_ago)

    found = detect_failures([*well(), *run], at=NOW, booted_at={NodeName("bad"): boot, NodeName("n1"): NOW})

    assert [each.node for each in found] == (["bad"] if is_blamed else [])


def test_a_program_that_failed_on_a_node_before_its_boot_did_not_fail_elsewhere() -> None:
    before = [ended(f"f{number}", "bad", minutes_ago=120 + number, name=f"p{number}", user="u") for number in range(3)]
    after = [ended(f"g{number}", "bad", minutes_ago=60 - number, name=f"p{number}", user="u") for number in range(3)]

    found = detect_failures(
        [*well(), *before, *after], at=NOW, booted_at={NodeName("bad"): NOW - timedelta(minutes=90)}
    )

    assert [(each.node, each.value) for each in found] == [("bad", 3)]


def test_a_boot_makes_no_loop_of_a_job_that_never_left_its_node() -> None:
    run = [ended("7", "n1", minutes_ago=50 - 10 * number) for number in range(3)]

    assert not detect_failures(run, at=NOW, booted_at={NodeName("n1"): NOW - timedelta(minutes=35)})


def test_out_of_memory_is_the_jobs_own_doing() -> None:
    bad = [ended(f"b{number}", "n1", minutes_ago=50 - number, state=JobState.OUT_OF_MEMORY) for number in range(6)]

    assert detect_failures([*well(), *bad], at=NOW) == []


def test_nothing_ended_nothing_found() -> None:
    assert detect_failures([], at=NOW) == []


ATTEMPTS = st.lists(
    st.builds(
        lambda job, node, minutes, state, life: ended(
            f"j{job}", f"n{node}", minutes_ago=minutes, state=state, life=timedelta(minutes=life)
        ),
        job=st.integers(0, 6),
        node=st.integers(0, 3),
        minutes=st.integers(-10, 400),
        state=st.sampled_from(list(JobState)),
        life=st.integers(1, 60),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(attempts=ATTEMPTS, data=st.data())
def test_neither_order_nor_repetition_changes_anything(attempts: list[EndedAttempt], data: st.DataObject) -> None:
    told_again = data.draw(st.lists(st.sampled_from(attempts), max_size=5)) if attempts else []
    shuffled = data.draw(st.permutations([*attempts, *told_again]))

    assert detect_failures(shuffled, at=NOW) == detect_failures(attempts, at=NOW)
