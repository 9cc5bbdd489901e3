"""What is reported a node that has booted, not what it did before; and by all detectors but those that fail."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NO_NODE, NodeState, NodeStatus, Signal
from ops_pipelines.observe.detectors.detect import LEFTOVER_LIMIT, live_detectors, look_live, without_leftovers
from ops_pipelines.observe.panels.panel import Detection, Panel
from tests.frames.detectors.panels import panel, topology

BOOT = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
N1, N2 = NodeName("gpu001"), NodeName("gpu002")


def node(name: NodeName = N1, *, booted_at: datetime | None = BOOT) -> NodeStatus:
    return NodeStatus(
        node=name, state=NodeState.IDLE, is_drained=False, is_responding=True, reason=None, reason_set_at=None,
        booted_at=booted_at, gpu_count=8, gpu_in_use_count=0,
    )  # fmt: skip


def seen(name: NodeName = N1, *, began_at: datetime, signal: Signal = Signal.GPU_HOT) -> Detection:
    return Detection(
        signal=signal, node=name, began_at=began_at, first_seen_at=began_at + SECOND, last_seen_at=BOOT, text="hot"
    )


@pytest.mark.parametrize(
    ("began_at", "is_told"),
    [(BOOT - SECOND, False), (BOOT, True), (BOOT + SECOND, True)],
    ids=["before", "at", "after"],
)
def test_what_began_before_the_boot_is_not_told_of_the_node(began_at: datetime, is_told: bool) -> None:
    told = without_leftovers([seen(began_at=began_at)], [node()], at=BOOT + timedelta(minutes=1))

    assert told == ((seen(began_at=began_at),) if is_told else ())


@pytest.mark.parametrize(
    ("at", "is_told"),
    [
        (BOOT + LEFTOVER_LIMIT - SECOND, False),
        (BOOT + LEFTOVER_LIMIT, True),
        (BOOT + LEFTOVER_LIMIT + SECOND, True),
        (BOOT - LEFTOVER_LIMIT + SECOND, False),
        (BOOT - LEFTOVER_LIMIT, True),
    ],
    ids=["half an hour is not over", "it is", "it was", "a clock a little ahead", "a wrong clock"],
)
def test_what_holds_on_for_half_an_hour_is_told(at: datetime, is_told: bool) -> None:
    told = without_leftovers([seen(began_at=BOOT - 2 * LEFTOVER_LIMIT)], [node()], at=at)

    assert [each.node for each in told] == ([N1] if is_told else [])


def test_what_held_on_is_told_as_of_the_boot_so_that_it_is_news_where_it_was_told_before() -> None:
    (told,) = without_leftovers([seen(began_at=BOOT - SECOND)], [node()], at=BOOT + LEFTOVER_LIMIT)

    assert (told.began_at, told.first_seen_at) == (BOOT, BOOT)
    assert told.position == seen(began_at=BOOT).position


def test_nodes_of_unknown_boot_other_nodes_and_jobs_are_told() -> None:
    detections = (
        seen(N2, began_at=BOOT - SECOND),
        seen(NO_NODE, began_at=BOOT - SECOND, signal=Signal.JOB_CRASH_LOOP),
        seen(NodeName("gpu003"), began_at=BOOT - SECOND),
    )

    assert without_leftovers(detections, [node(), node(N2, booted_at=None)], at=BOOT) == detections


@given(
    st.lists(
        st.builds(
            lambda name, minutes: seen(name, began_at=BOOT + timedelta(minutes=minutes)),
            st.sampled_from([N1, N2]),
            st.integers(-90, 90),
        )
    ),
    st.integers(-90, 90),
)
def test_twice_is_once_and_the_order_does_not_matter(detections: list[Detection], minutes: int) -> None:
    nodes, at = [node(), node(N2, booted_at=BOOT + timedelta(minutes=7))], BOOT + timedelta(minutes=minutes)

    told = without_leftovers(detections, nodes, at=at)

    assert without_leftovers(told, nodes, at=at) == told
    assert without_leftovers(reversed(detections), reversed(nodes), at=at) == told[::-1]
    assert {replace(each, began_at=BOOT, first_seen_at=BOOT) for each in told} <= {
        replace(each, began_at=BOOT, first_seen_at=BOOT) for each in detections
    }


def failing(given: Panel, *, after: Detection) -> Iterator[Detection]:
    yield after
    raise ValueError("one disk")


def test_a_detector_that_fails_is_named_and_the_others_are_heard() -> None:
    first, last, late = (seen(began_at=BOOT + number * SECOND) for number in range(3))
    detectors = (lambda _: [late], partial(failing, after=first), lambda _: [last])

    look = look_live(panel(time_count=1), detectors)

    assert look.found == (first, last, late)
    assert look.problems == ("failing failed: ValueError: one disk",)


def test_every_live_detector_stands_an_empty_panel() -> None:
    detectors = live_detectors(topology=topology(nodes=2), release={})

    look = look_live(panel(time_count=0), detectors)

    assert len(detectors) == 16
    assert (look.found, look.problems) == ((), ())
