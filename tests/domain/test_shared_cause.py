"""What is together fails together: the place that explains the most, and none where neighbours are well."""

from dataclasses import replace

import pytest

from ops_pipelines.core.fault import Component, ComponentKind, Family
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.diagnose.shared_cause import explains, find_shared_place, nodes_at, wide_suspect
from tests.domain.builders import node_names, topology, xid

TOPOLOGY = topology(40)
"""Four nodes to a rack, eight to a leaf switch."""


def fed(node_count: int = 16) -> Topology:
    """Return racks of four, two racks to a power feed."""
    return Topology(
        places={
            name: Place(rack=f"r{index // 4}", nvlink_domain=name, leaf_switch="s0", power_feed=f"feed{index // 8}")
            for index, name in enumerate(node_names(node_count))
        },
        gpus_per_node=8,
    )


@pytest.mark.parametrize(
    ("count", "is_shared"),
    [
        pytest.param(3, False, id="less than half of the switch"),
        pytest.param(4, True, id="exactly half"),
        pytest.param(8, True, id="all of it"),
    ],
)
def test_links_of_half_a_switch_point_at_the_switch(count: int, is_shared: bool) -> None:
    shared = find_shared_place(Family.FABRIC, node_names(count), TOPOLOGY)

    assert (shared is not None) is is_shared
    if shared is not None:
        assert shared.suspect == Component(kind=ComponentKind.LEAF_SWITCH, name="s0")
        assert (len(shared.nodes), shared.node_count) == (count, 8)


def test_two_nodes_are_no_place_however_small_it_is() -> None:
    small = Topology(
        places={name: Place(rack="r", nvlink_domain=name, leaf_switch="s") for name in node_names(2)}, gpus_per_node=8
    )

    assert find_shared_place(Family.FABRIC, node_names(2), small) is None


def test_two_dark_racks_of_one_feed_point_at_the_feed() -> None:
    shared = find_shared_place(Family.SILENCE, node_names(8), fed())

    assert shared is not None
    assert shared.suspect == Component(kind=ComponentKind.POWER_FEED, name="feed0")


def test_one_dark_rack_points_at_the_rack() -> None:
    shared = find_shared_place(Family.SILENCE, node_names(4), fed())

    assert shared is not None
    assert shared.suspect == Component(kind=ComponentKind.RACK, name="r0")


def test_a_family_that_has_no_place_in_common_points_at_none() -> None:
    assert find_shared_place(Family.MEMORY, node_names(8), TOPOLOGY) is None


def test_nodes_of_no_known_place_do_not_count() -> None:
    strangers = [NodeName(f"other{number}") for number in range(8)]

    assert find_shared_place(Family.FABRIC, strangers, TOPOLOGY) is None


def test_where_a_feed_is_not_declared_nothing_stands_at_it() -> None:
    assert nodes_at(Component(kind=ComponentKind.POWER_FEED, name="feed0"), TOPOLOGY) == frozenset()


def test_a_finding_about_a_gpu_names_no_wide_part() -> None:
    assert wide_suspect(xid(79)) is None


def test_a_broken_switch_explains_links_there_and_no_gpu() -> None:
    suspect = Component(kind=ComponentKind.LEAF_SWITCH, name="s0")
    link = replace(xid(79), family=Family.FABRIC, response=Response.PAGE)

    assert explains(suspect, Family.FABRIC, link, TOPOLOGY)
    assert not explains(suspect, Family.FABRIC, replace(link, node=NodeName("gpu009")), TOPOLOGY)
    assert not explains(suspect, Family.FABRIC, xid(79), TOPOLOGY)
    assert not explains(suspect, Family.FABRIC, replace(link, response=Response.RESET_GPU), TOPOLOGY)
