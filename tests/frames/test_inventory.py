"""What is built in: GPUs from the labels of telemetry, nodes from the scheduler, at the places of the topology."""

from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.lake.inventory import build_inventory, inventory_from_telemetry, moves_between, with_places
from ops_pipelines.lake.schema import TABLES

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
TOPOLOGY = Topology(
    places={NodeName("gpu001"): Place(rack="r1", nvlink_domain="gpu001", leaf_switch="s1")}, gpus_per_node=8
)
GPU = {"node": "gpu001", "device": "GPU-1", "time": AT, "gpu_uuid": "GPU-1"}
LATER = {"time": AT + timedelta(hours=1)}


def test_a_gpu_is_one_row_with_its_newest_labels() -> None:
    later = AT + timedelta(seconds=15)
    telemetry = TABLES["gpu_telemetry"].from_rows(
        [
            GPU
            | {"gpu_serial": "S1", "pci_address": "0000:18:00", "driver_version": "550.1", "memory_total_bytes": 8e10},
            GPU | {"time": later, "pci_address": "0000:1b:00", "driver_version": "560.2"},
            GPU | {"device": "GPU-2", "gpu_uuid": "GPU-2", "mig_instance": "5", "mig_profile": "1g.10gb"},
        ]
    )

    first, second = inventory_from_telemetry(telemetry).to_pylist()

    assert (first["kind"], first["time"], first["serial"], first["pci_address"]) == ("gpu", later, "S1", "0000:1b:00")
    assert (first["driver_version"], first["memory_bytes"]) == ("560.2", 8e10)
    assert (second["kind"], second["slot"]) == ("mig", "1g.10gb")


def test_no_telemetry_is_no_inventory() -> None:
    empty = TABLES["gpu_telemetry"].arrow().empty_table()

    table = inventory_from_telemetry(empty)

    assert table.num_rows == 0
    assert table.schema.equals(TABLES["inventory"].arrow())


def test_places_come_from_the_topology_and_unknown_nodes_are_marked() -> None:
    inventory = TABLES["inventory"].from_rows(
        [
            {"node": "gpu001", "device": "", "time": AT, "rack": "old"},
            {"node": "gpu999", "device": "", "time": AT, "rack": "kept"},
            {"node": "", "device": "leaf1", "time": AT},
        ]
    )

    known, unknown, switch = with_places(inventory, TOPOLOGY).to_pylist()

    assert (known["rack"], known["leaf_switch"], known["nvlink_domain"], known["unknown_node"]) == (
        "r1",
        "s1",
        "gpu001",
        False,
    )
    assert (unknown["rack"], unknown["unknown_node"]) == ("kept", True)
    assert switch["unknown_node"] is None


def node_status(name: str, *partitions: str) -> NodeStatus:
    return NodeStatus(
        node=NodeName(name),
        state=NodeState.IDLE,
        is_drained=True,
        is_responding=True,
        reason=None,
        reason_set_at=None,
        booted_at=None,
        gpu_count=8,
        gpu_in_use_count=0,
        partitions=frozenset(partitions),
    )


def test_an_hour_lists_nodes_of_the_topology_and_gpus_of_telemetry_at_its_start() -> None:
    telemetry = TABLES["gpu_telemetry"].from_rows([GPU | {"time": AT + timedelta(minutes=9)}])

    table = build_inventory(telemetry, hour=AT, topology=TOPOLOGY, nodes=[node_status("gpu001")])

    node, gpu = table.to_pylist()
    assert (node["kind"], node["state"], node["gpu_count"], node["rack"]) == ("node", "IDLE+DRAIN", 8, "r1")
    assert (gpu["kind"], gpu["time"], gpu["rack"]) == ("gpu", AT, "r1")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (
            [node_status("gpu001", "debug", "batch"), node_status("gpu002"), node_status("gpu003", "batch")],
            ["batch,debug", "", "batch"],
        ),
        ([node_status("gpu001"), node_status("gpu002")], [None, None]),
        ([node_status("gpu002", "batch")], [None, "batch"]),
        (None, [None]),
    ],
)
def test_a_node_in_no_partition_is_told_apart_from_one_of_which_nobody_tells(
    statuses: list[NodeStatus] | None, expected: list[str | None]
) -> None:
    telemetry = TABLES["gpu_telemetry"].arrow().empty_table()

    table = build_inventory(telemetry, hour=AT, topology=TOPOLOGY, nodes=statuses)

    assert table["partitions"].to_pylist() == expected


def test_a_gpu_that_changed_its_seat_is_a_move_and_one_that_stayed_is_none() -> None:
    before = TABLES["gpu_telemetry"].from_rows(
        [
            GPU | {"gpu_serial": "S1", "pci_address": "0000:18:00", "gpu_index": 0},
            GPU
            | {"device": "GPU-2", "gpu_uuid": "GPU-2", "gpu_serial": "S2", "pci_address": "0000:1b:00", "gpu_index": 1},
        ]
    )
    after = TABLES["gpu_telemetry"].from_rows(
        [
            GPU | LATER | {"node": "gpu002", "gpu_serial": "S1", "pci_address": "0000:18:00", "gpu_index": 0},
            GPU
            | LATER
            | {"device": "GPU-2", "gpu_uuid": "GPU-2", "gpu_serial": "S2", "pci_address": "0000:1b:00", "gpu_index": 1},
        ]
    )

    moves = moves_between(inventory_from_telemetry(before), inventory_from_telemetry(after))

    assert [(move["gpu"], move["what"], move["was"], move["is"]) for move in moves] == [
        ("S1", "transferred", "gpu001 0000:18:00 index 0", "gpu002 0000:18:00 index 0")
    ]
