"""How far a rollout is, as a picture: a bar a wave, a part a kind of node, and its numbers in words beside it."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import ReleaseName
from ops_pipelines.core.rollout import IN_HAND, Direction, NodeStage, Rollout, RolloutNode, RolloutState, Wave
from ops_pipelines.report.document import Shade
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST
from ops_pipelines.report.pictures.rollouts import picture_of_progress, progress_rows
from tests.ports.rollout_samples import node, rollout

STAGES = sorted(NodeStage, key=lambda each: each.value)
FORWARD, BACK = Direction.FORWARD, Direction.BACK


def of_waves(*counts: int) -> Rollout:
    """Return a rollout with waves of so many nodes: a canary, the deciding one, and those that grow."""
    return replace(
        rollout(1),
        waves=tuple(
            Wave(
                number=number,
                nodes=tuple(NodeName(f"w{number}-{place}") for place in range(count)),
                is_canary=number <= 2,
                is_deciding=number == 2,
            )
            for number, count in enumerate(counts, start=1)
        ),
    )


def in_stage(stage: NodeStage, *, wave: int = 1, direction: Direction = FORWARD) -> RolloutNode:
    return replace(node(1, "gpu001", stage=stage, wave=wave), direction=direction)


def shown(nodes: Sequence[RolloutNode], *, waves: int = 1) -> list[dict[Shade, float]]:
    """Return what the bar of each wave is made of."""
    rows = progress_rows(of_waves(*[1] * waves), nodes)
    return [{shade: length for length, shade in row.parts if length} for row in rows]


@pytest.mark.parametrize(
    ("stage", "direction", "shade"),
    [
        (NodeStage.PENDING, FORWARD, Shade.GREY),
        *((stage, FORWARD, Shade.BLUE) for stage in STAGES if stage in IN_HAND),
        *((stage, BACK, Shade.YELLOW) for stage in STAGES if stage in IN_HAND),
        (NodeStage.SOAKING, FORWARD, Shade.SKY),
        (NodeStage.UPDATED, FORWARD, Shade.GREEN),
        (NodeStage.BACK, BACK, Shade.YELLOW),
        (NodeStage.SKIPPED, FORWARD, Shade.PINK),
        (NodeStage.PULLED, FORWARD, Shade.ORANGE),
        (NodeStage.LOST, BACK, Shade.ORANGE),
    ],
)
def test_a_node_has_the_colour_of_where_it_stands(stage: NodeStage, direction: Direction, shade: Shade) -> None:
    assert shown([in_stage(stage, direction=direction)]) == [{shade: 1.0}]


def test_each_wave_has_its_own_bar_with_its_kind_and_its_numbers() -> None:
    nodes = [in_stage(NodeStage.UPDATED), in_stage(NodeStage.SOAKING, wave=2), in_stage(NodeStage.TESTING, wave=2)]

    rows = progress_rows(of_waves(1, 2, 3), nodes)

    assert [row.label for row in rows] == ["wave 1 canary", "wave 2 deciding", "wave 3"]
    assert [row.number for row in rows] == ["1 updated", "1 soaks, 1 in hand", ""]


def test_a_rollout_without_nodes_can_be_shown() -> None:
    small, large = picture_of_progress(of_waves(1), [])

    assert "ROLL-0001" in small
    assert "ROLL-0001" in large


def test_the_state_stands_below_in_words() -> None:
    going_back = replace(of_waves(1), state=RolloutState.GOING_BACK)

    for markdown in picture_of_progress(going_back, [in_stage(NodeStage.UPDATED)]):
        assert markdown.endswith("going back")


def test_hostile_names_stay_text() -> None:
    hostile = replace(of_waves(1), release=ReleaseName("a](http://evil)<b>"))

    for markdown in picture_of_progress(hostile, [in_stage(NodeStage.UPDATED)]):
        assert len(re.findall(r"(?<!\\)\]\(", markdown)) == 1
        assert "<b>" not in markdown


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(min_value=0, max_value=60), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(STAGES), st.sampled_from(Direction)), min_size=1, max_size=8),
)
def test_every_node_is_counted_once_and_the_small_picture_is_always_shown_in_place(counts, kinds) -> None:
    nodes = [
        in_stage(kinds[place % len(kinds)][0], wave=number, direction=kinds[place % len(kinds)][1])
        for number, count in enumerate(counts, start=1)
        for place in range(count)
    ]

    rows = progress_rows(of_waves(*counts), nodes)
    small, _ = picture_of_progress(of_waves(*counts), nodes)

    assert [sum(length for length, _ in row.parts) for row in rows] == counts
    assert len(small) < INLINE_AT_MOST
