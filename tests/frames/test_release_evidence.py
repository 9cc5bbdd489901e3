"""Rows of the lake as the gate counts them: when nodes worked, who failed, and how fast runs were."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.periods import Interval, merged
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.rollouts.gate.evidence import EventKind
from ops_pipelines.rollouts.past_rows import (
    BIN,
    WARM_UP,
    attempts_on,
    failed_attempts,
    known_until,
    measure_runs,
    of_one_node,
    since_when_known,
    work_times,
)
from tests.domain.builders import NOW

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
START = NOW.replace(minute=0) - 10 * HOUR
ONE, TWO, THREE = (NodeName(f"gpu00{number}") for number in range(1, 4))


def held(
    *nodes: str,
    begins: float = 0.0,
    ends: float | None = None,
    seen: Sequence[int] = (0,),
    job: str = "42",
    state: str = "RUNNING",
    user: str = "ada",
    name: str = "train",
) -> list[dict[str, object]]:
    """Return the rows of an attempt that lasts for these hours after START, as seen in these hours."""
    started_at = START + begins * HOUR
    return [
        {
            "job": job,
            "attempt": started_at.isoformat(),
            "node": node,
            "time": START + hour * HOUR,
            "name": name,
            "user": user,
            "account": "research",
            "state": state,
            "started_at": started_at,
            "ended_at": None if ends is None else START + ends * HOUR,
            "node_count": len(nodes),
        }
        for node in nodes
        for hour in seen
    ]


def rows(*attempts: Sequence[dict[str, object]]) -> pa.Table:
    return TABLES["job_allocations"].from_rows(row for attempt in attempts for row in attempt)


def stretch(begins: float, ends: float) -> Interval:
    return Interval(begins_at=START + begins * HOUR, ends_at=START + ends * HOUR)


class TestWork:
    def test_node_works_from_the_beginning_to_the_end_of_its_jobs(self) -> None:
        found = work_times(
            rows(held(ONE, TWO, ends=1.5, seen=(0, 1)), held(ONE, begins=2, ends=3, job="43", seen=(2,))), now=NOW
        )

        assert found == {ONE: [stretch(0, 1.5), stretch(2, 3)], TWO: [stretch(0, 1.5)]}

    def test_jobs_side_by_side_are_one_time_of_work(self) -> None:
        found = work_times(
            rows(held(ONE, ends=4), held(ONE, begins=1, ends=2, job="43"), held(ONE, begins=3, ends=5, job="44")),
            now=NOW,
        )

        assert found[ONE] == [stretch(0, 5)]

    def test_attempt_without_an_end_ran_through_the_last_hour_that_knows_it_and_never_beyond_now(self) -> None:
        found = rows(held(ONE, seen=(0, 1)), held(TWO, job="43", begins=10, seen=(10,)))

        assert work_times(found, now=NOW)[ONE] == [stretch(0, 2)]
        assert work_times(found, now=NOW)[TWO] == [Interval(begins_at=START + 10 * HOUR, ends_at=NOW)]

    def test_nothing_is_known_of_no_rows(self) -> None:
        assert work_times(rows(), now=NOW) == {}
        assert (since_when_known(rows()), known_until(rows())) == (None, None)

    def test_lake_knows_from_its_first_hour_to_the_end_of_its_last(self) -> None:
        found = rows(held(ONE, seen=(1, 4)))

        assert (since_when_known(found), known_until(found)) == (START + HOUR, START + 5 * HOUR)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([ONE, TWO, THREE]),
                st.integers(min_value=0, max_value=60),
                st.integers(min_value=1, max_value=40),
            ),
            max_size=15,
        )
    )
    def test_work_is_what_the_plain_union_of_attempts_is(self, drawn: Sequence[tuple[NodeName, int, int]]) -> None:
        attempts = [
            held(node, begins=begin / 10, ends=(begin + length) / 10, job=str(number))
            for number, (node, begin, length) in enumerate(drawn)
        ]
        plain = {
            node: merged(stretch(b / 10, (b + n) / 10) for each, b, n in drawn if each == node)
            for node in {node for node, _, _ in drawn}
        }

        found = {node: tuple(times) for node, times in work_times(rows(*attempts), now=NOW).items()}

        assert {node: [(s.begins_at, s.ends_at) for s in times] for node, times in found.items()} == {
            node: [(s.begins_at, s.ends_at) for s in times] for node, times in plain.items()
        }


class TestFailures:
    def test_failed_attempt_on_one_node_is_an_event_of_that_node(self) -> None:
        failed = held(ONE, ends=1.5, seen=(0, 1), state="FAILED")
        dead = held(TWO, ends=1, job="43", state="NODE_FAIL")

        found = {(each.kind, each.node) for each in failed_attempts(rows(failed, dead))}

        assert found == {(EventKind.JOB_FAILURE, ONE), (EventKind.NODE_FAILURE, TWO)}
        assert len(list(failed_attempts(rows(failed, dead)))) == 2

    def test_of_a_job_on_many_nodes_nobody_knows_which_failed_it(self) -> None:
        many = held(ONE, TWO, ends=1, state="FAILED")

        assert list(failed_attempts(rows(many))) == []
        assert of_one_node(rows(many)).num_rows == 0

    @pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED by 1000", "TIMEOUT", "PREEMPTED", "RUNNING"])
    def test_what_people_and_limits_end_has_not_failed(self, state: str) -> None:
        assert list(failed_attempts(rows(held(ONE, ends=1, state=state)))) == []

    def test_failures_of_one_user_in_one_day_have_one_cause(self) -> None:
        ada = held(ONE, ends=1, state="FAILED"), held(TWO, ends=2, job="43", name="other", state="FAILED")
        bob = held(THREE, ends=1, job="44", user="bob", state="FAILED")

        causes = [each.cause for each in failed_attempts(rows(*ada, bob))]

        assert len(causes) == 3
        assert len(set(causes)) == 2


def steps(node: str, job: str, values: Sequence[tuple[datetime, float | None]]) -> pa.Table:
    return TABLES["application_telemetry"].from_rows(
        {"node": node, "device": f"job:{job}", "time": at, "step_seconds": value} for at, value in values
    )


def steady(value: float, *, since: datetime = START, minutes: int = 60) -> list[tuple[datetime, float | None]]:
    return [(since + minute * MINUTE, value) for minute in range(minutes)]


class TestLevels:
    def test_run_is_the_middle_of_its_steps_without_the_warm_up(self) -> None:
        warm = [(START + number * MINUTE, 90.0) for number in range(int(WARM_UP / MINUTE))]
        samples = [*warm, *steady(2.0, since=START + WARM_UP)]

        (run,) = measure_runs(attempts_on(rows(held(ONE, TWO, ends=2)), {ONE}), steps(ONE, "42", samples))

        assert (run.value, run.job, run.nodes) == (2.0, "42", frozenset({ONE, TWO}))
        assert run.of_nodes == {ONE: 2.0}
        assert run.program == ("ada", "research", "train", "2")

    @pytest.mark.parametrize(("bins", "count"), [(1, 0), (2, 1), (3, 1)])
    def test_few_minutes_tell_nothing(self, bins: int, count: int) -> None:
        samples = steady(2.0, minutes=int((WARM_UP + bins * BIN) / MINUTE))

        found = list(measure_runs(attempts_on(rows(held(ONE, ends=2)), {ONE}), steps(ONE, "42", samples)))

        assert len(found) == count

    def test_attempts_of_one_job_are_runs_of_their_own(self) -> None:
        first, second = held(ONE, ends=1), held(TWO, begins=2, ends=3, seen=(2,))
        samples = pa.concat_tables(
            [steps(ONE, "42", steady(2.0)), steps(TWO, "42", steady(3.0, since=START + 2 * HOUR))]
        )

        found = list(measure_runs(attempts_on(rows(first, second), {ONE, TWO}), samples))

        assert [(each.value, each.nodes) for each in found] == [(2.0, frozenset({ONE})), (3.0, frozenset({TWO}))]

    def test_what_is_no_time_of_a_step_is_passed_over(self) -> None:
        odd: list[tuple[datetime, float | None]] = [
            (START + (30 + number) * MINUTE, value) for number, value in enumerate((0.0, -1.0, None, float("nan")))
        ]

        (run,) = measure_runs(
            attempts_on(rows(held(ONE, ends=2)), {ONE}), steps(ONE, "42", [*steady(2.0, minutes=30), *odd])
        )

        assert run.value == 2.0

    def test_only_attempts_on_the_nodes_asked_for_are_told_each_with_all_its_nodes(self) -> None:
        found = attempts_on(rows(held(ONE, TWO, ends=1), held(THREE, ends=1, job="43")), {TWO})

        assert [(each.job, each.nodes) for each in found] == [(JobId("42"), frozenset({ONE, TWO}))]
        assert attempts_on(rows(), {ONE}) == ()
        assert attempts_on(rows(held(ONE, ends=1)), set()) == ()

    def test_job_whose_steps_nobody_told_is_no_run(self) -> None:
        assert list(measure_runs(attempts_on(rows(held(ONE, ends=2)), {ONE}), steps(ONE, "7", steady(2.0)))) == []
