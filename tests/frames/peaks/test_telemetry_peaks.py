"""Telemetry of an hour to what is full: file systems that are shared and those that are not, links, racks, the room."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from ops_pipelines.capacity.peak_days import Filled, read_links, read_lustre, read_mounts, read_power
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.lake.schema import TABLES

HOUR = datetime(2026, 11, 20, 7, tzinfo=UTC)
TIB = float(1 << 40)
NODES = ("n1", "n2", "n3", "n4")
TOPOLOGY = Topology(
    places={NodeName(name): Place(rack=f"r{name[1] in '34'}", nvlink_domain=name, leaf_switch=leaf)
            for name, leaf in zip(NODES, ("l1", "l1", "l2", "l2"), strict=True)},
    gpus_per_node=8,
)  # fmt: skip


def table(name: str, *rows: Mapping[str, object]) -> pa.Table:
    return TABLES[name].from_rows({"device": "", "time": HOUR, "node": "", **row} for row in rows)


def lustre(device: str, size: float, room: float, node: str = "") -> Mapping[str, object]:
    return {"node": node, "device": device, "lustre_capacity_bytes": size, "lustre_available_bytes": room}


def mount(node: str, path: str, size: float, room: float) -> Mapping[str, object]:
    return {"node": node, "device": f"fs:{path}", "filesystem_size_bytes": size, "filesystem_available_bytes": room}


def test_object_targets_are_added_up_by_file_system_each_once_and_go_before_clients() -> None:
    rows = table(
        "storage_telemetry",
        lustre("lustre:ost/scratch-OST0000", 10.0, 4.0, "s1"),
        lustre("lustre:ost/scratch-OST0000", 10.0, 4.0, "s2"),
        lustre("lustre:ost/scratch-OST0001", 10.0, 3.0, "s1"),
        lustre("lustre:ost/home-OST0000", 5.0, 5.0, "s1"),
        lustre("lustre:mdt/scratch-MDT0000", 90.0, 1.0, "s1"),
        lustre("lustre:client/scratch-ffff9a3c", 19.0, 9.0, "n1"),
    )

    assert read_lustre(rows) == {
        "home": Filled(used_bytes=0.0, size_bytes=5.0),
        "scratch": Filled(used_bytes=13.0, size_bytes=20.0),
    }


def test_clients_tell_the_whole_each_and_it_counts_once() -> None:
    rows = [lustre(f"lustre:client/scratch-ffff{name}", 20.0, room, name) for name, room in (("n1", 9.0), ("n2", 8.0))]

    assert read_lustre(table("storage_telemetry", *rows)) == {"scratch": Filled(used_bytes=12.0, size_bytes=20.0)}


@pytest.mark.parametrize(("size", "room"), [(0.0, 0.0), (10.0, 11.0), (10.0, None), (None, 1.0), (10.0, -1.0)])
def test_sizes_that_cannot_be_true_are_not_believed(size: float | None, room: float | None) -> None:
    row = {"device": "lustre:ost/a-OST0", "lustre_capacity_bytes": size, "lustre_available_bytes": room}

    assert read_lustre(table("storage_telemetry", row)) == {}


def test_mount_that_many_nodes_see_alike_is_shared_and_a_disk_of_each_is_not() -> None:
    shared = [mount(node, "/data", 50 * TIB, 20 * TIB + number) for number, node in enumerate(NODES)]
    local = [mount(node, "/raid", 28 * TIB, (20 - number) * TIB) for number, node in enumerate(NODES)]
    root = [mount(node, "/", 2 * TIB, TIB) for node in NODES]
    empty = [mount(node, "/nvme", 7 * TIB, 7 * TIB) for node in NODES]
    small = [mount(node, "/opt", TIB / 2, TIB / 4) for node in NODES]
    own = [mount(node, "/var/lib", 2 * TIB, TIB) for node in NODES]

    found = read_mounts(table("node_telemetry", *shared, *local, *root, *empty, *small, *own))

    assert list(found) == ["/data"]
    assert found["/data"].size_bytes == 50 * TIB
    assert found["/data"].used_bytes == pytest.approx(30 * TIB)


@pytest.mark.parametrize(("count", "is_shared"), [(2, False), (3, True)])
def test_mount_is_shared_from_three_nodes_on(count: int, is_shared: bool) -> None:
    rows = [mount(node, "/data", 50 * TIB, 20 * TIB) for node in NODES[:count]]
    rows += [mount(node, "/", TIB, TIB / 2) for node in NODES]

    assert bool(read_mounts(table("node_telemetry", *rows))) == is_shared


def test_mount_of_a_file_system_that_is_known_already_is_not_told_again() -> None:
    rows = table("node_telemetry", *[mount(node, "/lustre", 50 * TIB, 20 * TIB) for node in NODES])

    assert read_mounts(rows, known=[Filled(used_bytes=30 * TIB, size_bytes=50 * TIB)]) == {}


def port(node: str, minute: int, received: float, sent: float, rate: float | None = 800.0) -> Mapping[str, object]:
    return {
        "node": node, "device": "mlx5_0/1", "time": HOUR + timedelta(minutes=minute), "rate_bits_per_second": rate,
        "receive_bytes": received, "transmit_bytes": sent,
    }  # fmt: skip


def test_link_is_as_full_as_its_fuller_direction_and_a_leaf_as_its_busiest_tenth() -> None:
    rows = [
        row
        for number, node in enumerate(NODES)
        for row in (port(node, 0, 0.0, 0.0), port(node, 5, 3000.0 * number, 1500.0 * number))
    ]

    found = read_links(table("fabric_telemetry", *rows), topology=TOPOLOGY)

    # 100 B/s is the whole rate: the nodes are 0, 10, 20 and 30 % full.
    assert found == {"": pytest.approx(0.27), "l1": pytest.approx(0.09), "l2": pytest.approx(0.29)}


def test_links_without_a_rate_a_node_or_a_second_sample_tell_nothing() -> None:
    rows = table(
        "fabric_telemetry",
        port("n1", 0, 0.0, 0.0, rate=None), port("n1", 5, 9.0, 9.0, rate=None),
        port("", 0, 0.0, 0.0), port("", 5, 9.0, 9.0),
        port("n2", 0, 0.0, 0.0),
    )  # fmt: skip

    assert read_links(rows, topology=TOPOLOGY) == {}


def watts(device: str, column: str, value: float, node: str = "", minute: int = 0) -> Mapping[str, object]:
    return {"node": node, "device": device, column: value, "time": HOUR + timedelta(minutes=minute)}


def test_rack_is_the_mean_of_its_meter_else_of_all_its_nodes_and_never_of_some() -> None:
    rows = [watts("rack:rFalse", "rack_power_watts", 100.0), watts("rack:rFalse", "rack_power_watts", 300.0, minute=9)]
    rows += [watts("rack:rFalse", "rack_power_limit_watts", 900.0)]
    rows += [watts("ipmi", "node_power_watts", 40.0, "n3"), watts("ipmi", "node_power_watts", 60.0, "n4")]

    found = read_power(table("facility_telemetry", *rows), topology=TOPOLOGY)

    assert found.racks == {"rFalse": 200.0, "rTrue": 100.0}
    assert (found.limits, found.summed) == ({"rFalse": 900.0}, ("rTrue",))
    assert (found.room, found.is_room_summed) == ({"": 300.0}, True)

    found = read_power(table("facility_telemetry", *rows[:-1]), topology=TOPOLOGY)

    assert found.racks == {"rFalse": 200.0}
    assert (found.room, found.is_room_summed) == ({}, False)


def test_room_is_what_its_meter_tells_by_site_where_there_are_several() -> None:
    one = watts("east", "it_power_watts", 500.0)

    assert read_power(table("facility_telemetry", one), topology=TOPOLOGY).room == {"": 500.0}
    both = read_power(table("facility_telemetry", one, watts("west", "it_power_watts", 700.0)), topology=TOPOLOGY)
    assert both.room == {"east": 500.0, "west": 700.0}
