"""Where nodes stand, and who shares fate with whom."""

from dataclasses import replace

import pytest

from ops_pipelines.core.identity import NodeName
from tests.domain.builders import node_names, topology

NAMES = node_names(16)


@pytest.mark.parametrize("count", [0, -1])
def test_a_node_without_gpus_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="gpus_per_node"):
        replace(topology(), gpus_per_node=count)


@pytest.mark.parametrize(
    ("names", "place"),
    [
        pytest.param(NAMES[:1], "rack r00", id="one node"),
        pytest.param(NAMES[:4], "rack r00", id="one whole rack"),
        pytest.param(NAMES[:5], "leaf switch s0", id="two racks, one switch"),
        pytest.param(NAMES[3:5], "leaf switch s0", id="neighbours across a rack border"),
        pytest.param(NAMES[7:9], None, id="neighbours across a switch border"),
        pytest.param((), None, id="no node"),
        pytest.param((NAMES[0], NodeName("stranger")), None, id="a node that is not declared"),
    ],
)
def test_shared_place_is_the_nearest_that_all_share(names: tuple[NodeName, ...], place: str | None) -> None:
    assert topology(16).shared_place(frozenset(names)) == place


def test_only_declared_nodes_are_known() -> None:
    assert topology(16).knows(NAMES[15])
    assert not topology(15).knows(NAMES[15])
