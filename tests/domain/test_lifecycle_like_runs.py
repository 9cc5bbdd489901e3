"""Runs are compared like with like: program with program, each node with its own past, and a run counts once."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import Interval
from ops_pipelines.core.rollout import NodeStage
from ops_pipelines.rollouts.gate.evidence import LevelSamples
from ops_pipelines.rollouts.gate.measures import MOST_NODES, MeasuredRun, compare_runs, compared_nodes
from ops_pipelines.rollouts.gate.seen_events import PAST, ComparedTimes
from tests.domain.builders import NOW, node_names
from tests.ports.rollout_samples import node, wave

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NEW, ALSO_NEW, OLD, OTHER = (NodeName(f"gpu00{number}") for number in range(1, 5))
SINCE = NOW - DAY
TREATED, CONTROLS = frozenset({NEW, ALSO_NEW}), frozenset({OLD, OTHER})
TIMES = ComparedTimes(
    treated={each: Interval(begins_at=SINCE, ends_at=NOW) for each in TREATED},
    control={each: Interval(begins_at=SINCE, ends_at=NOW) for each in CONTROLS},
    own={each: Interval(begins_at=SINCE - PAST, ends_at=SINCE - HOUR) for each in TREATED},
    past={},
)


def run(
    *nodes: NodeName,
    ago: timedelta,
    value: float,
    program: str = "train",
    of_nodes: dict[NodeName, float] | None = None,
) -> MeasuredRun:
    return MeasuredRun(
        program=(program,),
        job=f"{sorted(nodes)} {ago}",
        started_at=NOW - ago,
        nodes=frozenset(nodes),
        value=value,
        of_nodes=of_nodes or {},
    )


def compare(*runs: MeasuredRun) -> tuple[dict[NodeName, LevelSamples], dict[NodeName, LevelSamples]]:
    treated, controls = compare_runs(runs, TIMES, treated=TREATED, controls=CONTROLS)
    return {each.node: each for each in treated}, {each.node: each for each in controls}


def before(*nodes: NodeName, value: float = 2.0, program: str = "train", count: int = 3) -> list[MeasuredRun]:
    return [run(*nodes, ago=(4 + number) * DAY, value=value, program=program) for number in range(count)]


def test_program_is_compared_with_itself_alone() -> None:
    treated, _ = compare(
        *before(NEW, value=2.0, program="small"),
        *before(OLD, value=30.0, program="large"),
        run(NEW, ago=5 * HOUR, value=33.0, program="large"),
    )

    assert treated[NEW].before == (1.0, 1.0, 1.0)
    assert list(treated[NEW].after) == pytest.approx([1.1])


def test_program_that_ran_nowhere_else_is_compared_with_nothing() -> None:
    treated, _ = compare(*before(NEW), run(NEW, ago=5 * HOUR, value=9.0, program="of today"))

    assert treated[NEW].after == ()


@pytest.mark.parametrize(("count", "runs"), [(1, 0), (2, 1), (3, 1)])
def test_one_run_of_a_program_is_no_reference(count: int, runs: int) -> None:
    treated, _ = compare(*before(NEW, count=count), run(NEW, ago=HOUR, value=2.0))

    assert sum(len(each.after) for each in treated.values()) == runs


def test_run_with_an_updated_node_says_nothing_of_the_others() -> None:
    treated, controls = compare(*before(NEW), *before(OLD), run(NEW, OLD, ago=5 * HOUR, value=3.0))

    assert treated[NEW].after == (1.5,)
    assert controls[OLD].after == ()


def test_run_of_many_updated_nodes_counts_once() -> None:
    treated, _ = compare(*before(NEW), *before(ALSO_NEW), run(NEW, ALSO_NEW, ago=5 * HOUR, value=2.2))

    assert sum(len(each.after) for each in treated.values()) == 1


def test_next_run_of_both_counts_for_the_other() -> None:
    both = [run(NEW, ALSO_NEW, ago=number * HOUR, value=2.2) for number in (5, 4)]

    treated, _ = compare(*before(NEW), *before(ALSO_NEW), *both)

    assert {node: len(each.after) for node, each in treated.items()} == {NEW: 1, ALSO_NEW: 1}


def test_past_of_one_node_is_made_known_before_that_of_the_next() -> None:
    treated, _ = compare(*before(NEW, ALSO_NEW, count=3))

    assert [len(each.before) for each in treated.values()] == [3]


def test_node_that_tells_for_itself_is_believed_before_its_job() -> None:
    treated, _ = compare(*before(NEW), run(NEW, OLD, ago=5 * HOUR, value=2.0, of_nodes={NEW: 3.0, OLD: 1.0}))

    assert treated[NEW].after == (1.5,)


def test_untouched_nodes_move_against_their_own_past() -> None:
    _, controls = compare(*before(OLD), run(OLD, ago=5 * HOUR, value=2.2))

    assert controls[OLD].before == (1.0, 1.0, 1.0)
    assert len(controls[OLD].after) == 1


def test_run_between_the_last_work_and_the_return_belongs_to_nobody() -> None:
    treated, controls = compare(*before(NEW), run(NEW, ago=DAY + timedelta(minutes=30), value=7.0))

    assert len(treated[NEW].before) == 3
    assert treated[NEW].after == ()
    assert controls == {}


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.sampled_from([NEW, ALSO_NEW, OLD, OTHER]), min_size=1),
            st.integers(min_value=1, max_value=20 * 24),
            st.floats(min_value=0.1, max_value=50.0),
            st.sampled_from(["a", "b"]),
        ),
        max_size=25,
    )
)
def test_no_run_counts_twice_and_their_order_does_not_matter(
    drawn: Sequence[tuple[frozenset[NodeName], int, float, str]],
) -> None:
    runs = [
        replace(run(*nodes, ago=hours * HOUR, value=value, program=program), job=str(number))
        for number, (nodes, hours, value, program) in enumerate(drawn)
    ]

    found = compare(*runs)

    assert compare(*reversed(runs)) == found
    samples = [*found[0].values(), *found[1].values()]
    assert sum(len(each.before) + len(each.after) for each in samples) <= len(runs)


def test_few_nodes_of_many_are_compared_canaries_and_the_present_wave_first() -> None:
    names = node_names(400)
    waves = (wave(1, *names[:30]), replace(wave(2, *names[30:200]), is_canary=False))
    nodes = [
        replace(node(1, name, stage=NodeStage.SOAKING, wave=1 if place < 30 else 2), returned_at=SINCE)
        for place, name in enumerate(names[:200])
    ]
    times = ComparedTimes(
        treated={each.node: TIMES.treated[NEW] for each in nodes},
        control=dict.fromkeys(names, TIMES.control[OLD]),
        own={},
        past={},
    )

    treated, controls = compared_nodes(nodes, times, present=waves[1], waves=waves)

    assert len(treated) == MOST_NODES
    assert set(names[:30]) <= treated
    assert 0 < len(controls) <= MOST_NODES
    assert not controls & times.treated.keys()
