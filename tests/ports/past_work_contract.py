"""What everybody who reports past jobs must do: one suite, on the lake and on rows in memory.

A subclass keeps the rows of `ALLOCATIONS` and `STEPS` and gives the fixture `past`: two jobs through three hours, each
on a node of its own.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.sources import PastWork

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
HOUR, MINUTE, MOMENT = timedelta(hours=1), timedelta(minutes=1), timedelta(microseconds=1)
HOURS = tuple(NOON + number * HOUR for number in range(3))
END = NOON + 3 * HOUR
NODE_OF = {"1": "gpu001", "2": "gpu002"}
ALLOCATIONS = tuple(
    {"job": job, "attempt": "a", "node": node, "time": hour, "started_at": NOON, "node_count": 1}
    for hour in HOURS
    for job, node in NODE_OF.items()
)
STEPS = tuple(
    {"node": node, "device": f"job:{job}", "time": hour + number * MINUTE, "step_seconds": 2.0}
    for hour in HOURS
    for job, node in NODE_OF.items()
    for number in range(10)
)


def allocations(past: PastWork, *nodes: str, start: datetime = NOON, end: datetime = END) -> set[tuple[object, ...]]:
    """Return node and hour of what is reported: the same row may come twice."""
    return _rows(past.allocations(nodes=[NodeName(each) for each in nodes], start=start, end=end), ("node", "time"))


def steps(past: PastWork, *jobs: str, start: datetime = NOON, end: datetime = END) -> set[tuple[object, ...]]:
    """Return device and time of what is reported."""
    return _rows(past.steps(jobs=[JobId(each) for each in jobs], start=start, end=end), ("device", "time"))


def _rows(told: object, columns: Collection[str]) -> set[tuple[object, ...]]:
    assert isinstance(told, pa.Table)
    return set(zip(*(told[name].to_pylist() for name in columns), strict=True))


class PastWorkContract:
    """Subclass as `class TestX(PastWorkContract)` and define the fixture `past`."""

    def test_a_node_is_told_of_alone(self, past: PastWork) -> None:
        assert allocations(past, "gpu001") == {("gpu001", hour) for hour in HOURS}

    def test_several_nodes_are_told_of_together_and_once_asked_for_twice(self, past: PastWork) -> None:
        both = {(node, hour) for node in NODE_OF.values() for hour in HOURS}

        assert allocations(past, "gpu001", "gpu002", "gpu001") == both

    @pytest.mark.parametrize(
        ("start", "end", "hours"),
        [
            pytest.param(NOON, NOON + HOUR, HOURS[:1], id="one whole hour"),
            pytest.param(NOON, NOON + HOUR + MOMENT, HOURS[:2], id="and a moment of the next"),
            pytest.param(NOON + HOUR - MOMENT, NOON + HOUR, HOURS[:1], id="the last moment of one"),
            pytest.param(NOON + HOUR, NOON + HOUR + MOMENT, HOURS[1:2], id="the first moment of one"),
            pytest.param(NOON - HOUR, NOON, (), id="the hour before"),
            pytest.param(END, END + HOUR, (), id="the hour after"),
            pytest.param(NOON, NOON, (), id="no time at all"),
        ],
    )
    def test_allocations_are_those_of_every_hour_that_is_touched(
        self, past: PastWork, start: datetime, end: datetime, hours: tuple[datetime, ...]
    ) -> None:
        assert allocations(past, "gpu001", start=start, end=end) == {("gpu001", hour) for hour in hours}

    def test_a_job_is_told_of_alone(self, past: PastWork) -> None:
        assert steps(past, "1") == {("job:1", each["time"]) for each in STEPS if each["device"] == "job:1"}

    def test_steps_are_those_from_the_start_on_and_before_the_end(self, past: PastWork) -> None:
        first, last = NOON + 3 * MINUTE, NOON + HOUR + 2 * MINUTE

        found = [at for _, at in steps(past, "1", start=first, end=last)]

        assert (min(found), max(found)) == (first, last - MINUTE)
        assert len(found) == 7 + 2

    def test_neighbouring_stretches_tell_every_step_once(self, past: PastWork) -> None:
        at = NOON + 4 * MINUTE

        before, since = steps(past, "1", end=at), steps(past, "1", start=at)

        assert not before & since
        assert before | since == steps(past, "1")

    def test_nobody_asked_for_is_nobody_told_of(self, past: PastWork) -> None:
        assert allocations(past) == set()
        assert steps(past) == set()

    def test_who_was_never_there_is_not_told_of(self, past: PastWork) -> None:
        assert allocations(past, "gpu00", "gpu0011") == set()
        assert steps(past, "11", "job:1") == set()

    def test_a_time_is_the_same_in_every_zone(self, past: PastWork) -> None:
        east = timezone(timedelta(hours=5, minutes=30))
        start, end = NOON + HOUR + MINUTE, NOON + HOUR + 4 * MINUTE

        assert steps(past, "1", start=start.astimezone(east), end=end.astimezone(east)) == steps(
            past, "1", start=start, end=end
        )
        assert allocations(past, "gpu001", start=start.astimezone(east), end=end.astimezone(east)) == {
            ("gpu001", HOURS[1])
        }
