"""Ports of InfiniBand and RoCE out of sysfs and the fabric tools."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.formats import infiniband
from ops_pipelines.lake.quantities import Parsed, WrongKind
from tests.frames.formats.hardware_invariants import PUBLIC, check, content, damaged
from tests.frames.formats.hardware_invariants import rows as rows_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
OUTPUTS = sorted(PUBLIC.glob("infiniband/treydock/*/*"))
SYSFS = PUBLIC / "infiniband/gpud"
needs_public = pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not beside this checkout")

PERFQUERY = b"""# Port counters: Lid 17 port 3
PortSelect:......................3
CounterSelect:...................0x1400
SymbolErrorCounter:..............65535
LinkErrorRecoveryCounter:........2
LinkDownedCounter:...............255
PortRcvErrors:...................1
PortXmitData:....................%d
PortRcvData:.....................250
PortXmitPkts:....................%d
PortRcvPkts:.....................9
PortXmitWait:....................7
"""
IBSTAT = b"""CA 'mlx5_4'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.2048
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tPort GUID: 0xb83fd20300001234
\t\tLink layer: InfiniBand
CA 'mlx5_bond_0'
\tCA type: MT4125
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 40
\t\tLink layer: Ethernet
"""
IBSTATUS = b"""Infiniband device 'mlx5_1' port 2 status:
\tbase lid:\t 0x1
\tstate:\t\t 4: ACTIVE
\tphys state:\t 6: LinkErrorRecovery
\trate:\t\t 100 Gb/sec (4X EDR)
\tlink_layer:\t InfiniBand
"""
RDMA = b"""link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0
link mlx5_1/1 rx_write_requests 3 out_of_sequence 7 np_cnp_sent 9
"""
TOPOLOGY = b"""# Topology file
switchguid=0xb83fd20300aa0001(b83fd20300aa0001)
Switch\t41 "S-b83fd20300aa0001"\t\t# "MF0;spine-3:MQM9700/U1" enhanced port 0 lid 3 lmc 0
[7]\t"H-b83fd20300da1138"[1](b83fd20300da1138) \t\t# "gpu-20 mlx5_3" lid 12 4xNDR

Ca\t1 "H-b83fd20300da1138"\t\t# "gpu-20 mlx5_3"
[1](b83fd20300da1138) \t"S-b83fd20300aa0001"[7]\t\t# lid 12 lmc 0 "MF0;spine-3:MQM9700/U1" lid 3 4xNDR
"""
LINKS = b"""CA    12  1 0xb83fd20300da1138 4x HDR - SW     3  7 0xb83fd20300aa0001 ( 'gpu-20 mlx5_3' - 'leaf 1' )
SW     3  7 0xb83fd20300aa0001 4x HDR - CA    12  1 0xb83fd20300da1138 ( 'leaf 1' - 'gpu-20 mlx5_3' )
SW     3  8 0xb83fd20300aa0001 4x SDR                                    'leaf 1'
"""
SWITCH = b"""=====
Quantum Example
=====
part number        | PN-1
serial number      | SN-1
GUID               | 0x08c0eb0300000001
-----
PSU0 status        | OK
     P/N           | PP
     S/N           | SS
     DC power      | ERROR
     power (W)     | 101
-----
temperature (C)    | 53
-----
fan#1 (rpm)        | 6125
fan#2 (rpm)        |
fan#3 (rpm)        | fast
"""


def read(body: bytes, *, source: str = "fabric.out", node: str | None = None) -> Parsed:
    return infiniband.parse(body, source=source, at=AT, node=node)


def rows(parsed: Parsed, table: str = "fabric_telemetry") -> list[dict[str, object]]:
    return rows_of(parsed, table)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def a_port(folder: str = "class/infiniband/mlx5_2", **changed: str) -> dict[str, bytes]:
    files = {
        "fw_ver": "28.39.2048",
        "node_desc": "gpu-07 mlx5_2",
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": "400 Gb/sec (4X NDR)",
        "ports/1/link_layer": "Ethernet",
        "ports/1/counters/port_xmit_data": "1000",
        "ports/1/counters/port_rcv_data": "250",
        "ports/1/counters/port_xmit_wait": "12",
        "ports/1/hw_counters/out_of_sequence": "3",
        "ports/1/hw_counters/np_cnp_sent": "4",
        "ports/1/hw_counters/lifespan": "12",
        **{f"ports/1/{name.replace('__', '/')}": value for name, value in changed.items()},
    }
    return {f"{folder}/{name}": f"{value}\n".encode() for name, value in files.items()}


@needs_public
@pytest.mark.parametrize("path", [path for path in OUTPUTS if path.stat().st_size], ids=lambda path: path.name)
def test_every_public_output_parses_and_only_planted_nonsense_is_refused(path: Path) -> None:
    parsed = read(content(path), source=path.name)

    check(parsed)
    assert parsed.accepted
    assert parsed.reasons == ({"bad_value": 1} if "-err" in path.name else {})


@needs_public
def test_the_public_sysfs_tree_has_nine_ports() -> None:
    parsed = infiniband.parse_tree(tree(SYSFS), source="sysfs", at=AT, node="h100-0")

    check(parsed)
    found = {row["device"]: row for row in rows(parsed)}
    assert (parsed.read, parsed.accepted, len(found)) == (9, 9, 9)
    assert found["mlx5_0/1"]["rate_bits_per_second"] == 400e9
    counter = next(path for path in SYSFS.rglob("mlx5_0/ports/1/counters/port_xmit_data")).read_text()
    assert found["mlx5_0/1"]["transmit_bytes"] == 4 * int(counter)
    assert found["mlx5_1/1"]["link_downed_count"] == 255
    assert found["mlx5_bond_0/1"]["link_layer"] == "Ethernet"
    assert {row["model"] for row in rows(parsed, "inventory")} >= {"MT4129"}


@needs_public
def test_a_port_is_named_by_the_guid_in_its_files_name() -> None:
    path = next(path for path in OUTPUTS if path.name == "0x7cfe9003009ce5b0.out")

    first, second = rows(read(content(path), source=str(path)))

    assert [first["device"], second["device"]] == ["0x7cfe9003009ce5b0/1", "0x7cfe9003009ce5b0/2"]
    assert first["transmit_bytes"] == 4 * 36298026860928
    assert second["transmit_wait_count"] == 36510964


@needs_public
def test_both_sets_of_counters_of_one_port_become_one_row() -> None:
    names = ("perfquery/0x7cfe9003003b4b96.out", "perfquery-rcv-error/0x7cfe9003003b4b96-1.out")
    files = {name: (PUBLIC / "infiniband/treydock" / name).read_bytes() for name in names}

    (row,) = rows(infiniband.parse_tree(files, source="dump", at=AT))

    assert (row["receive_packet_count"], row["receive_looping_error_count"]) == (100583719365, 0)


def test_a_port_of_sysfs_counts_in_octets_and_knows_its_host() -> None:
    parsed = infiniband.parse_tree(a_port(), source="sysfs", at=AT)

    (row,) = rows(parsed)
    assert (row["node"], row["device"]) == ("gpu-07", "mlx5_2/1")
    assert (row["transmit_bytes"], row["receive_bytes"], row["transmit_wait_count"]) == (4000, 1000, 12)
    assert (row["link_state"], row["physical_state"], row["rate_bits_per_second"]) == (4, 5, 400e9)
    assert (row["out_of_sequence_count"], row["cnp_sent_count"]) == (3, 4)


def test_an_adapter_that_counts_octets_is_not_multiplied() -> None:
    files = {
        "rdmap16s27/ports/1/state": b"4: ACTIVE\n",
        "rdmap16s27/ports/1/hw_counters/rx_bytes": b"77\n",
        "rdmap16s27/ports/1/hw_counters/tx_pkts": b"5\n",
    }

    (row,) = rows(infiniband.parse_tree(files, source="sysfs", at=AT))

    assert (row["receive_bytes"], row["transmit_packet_count"], row["transmit_bytes"]) == (77, 5, None)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"state": "5: ACTIVE_DEFER"}, None),
        ({"state": "6: WHAT"}, "out_of_range"),
        ({"state": "sideways"}, "bad_value"),
        ({"counters__port_rcv_data": "-1"}, "out_of_range"),
        ({"counters__port_rcv_data": "12 apples"}, "bad_value"),
        ({"counters__port_rcv_data": "1.5"}, "bad_value"),
        ({"counters__port_rcv_data": "N/A (no PMA)"}, None),
        ({"rate": "quick"}, "bad_value"),
    ],
)
def test_a_port_with_a_value_that_cannot_be_is_refused(changed: dict[str, str], reason: str | None) -> None:
    files = {**a_port(**changed), **a_port("class/infiniband/mlx5_9")}

    parsed = infiniband.parse_tree(files, source="sysfs", at=AT)

    assert parsed.reasons == ({} if reason is None else {reason: 1})
    assert parsed.accepted == 2 - len(parsed.refused)


@pytest.mark.parametrize(("count", "octets"), [(2**32 - 2, 4 * (2**32 - 2)), (2**32 - 1, None), (2**32, 4 * 2**32)])
def test_a_traffic_counter_that_stopped_at_its_maximum_is_left_out(count: int, octets: int | None) -> None:
    (row,) = rows(read(PERFQUERY % (count, 1)))

    assert row["transmit_bytes"] == octets
    assert (row["device"], row["receive_bytes"]) == ("lid17/3", 1000)
    assert (row["symbol_error_count"], row["link_downed_count"]) == (65535, 255), "errors: at least so many"


def test_ibstat_names_states_in_words() -> None:
    parsed = read(IBSTAT, node="gpu-01")

    up, down = rows(parsed)
    assert (up["device"], up["link_state"], up["physical_state"], up["rate_bits_per_second"]) == (
        "mlx5_4/1",
        4,
        5,
        400e9,
    )
    assert (down["device"], down["link_state"], down["physical_state"], down["link_layer"]) == (
        "mlx5_bond_0/1",
        1,
        3,
        "Ethernet",
    )
    assert [row["firmware_version"] for row in rows(parsed, "inventory")] == ["28.39.2048", None]


def test_ibstatus_and_rdma_are_read() -> None:
    status, link, statistic = rows(read(IBSTATUS)) + rows(read(RDMA))

    assert (status["device"], status["physical_state"], status["rate_bits_per_second"]) == ("mlx5_1/2", 6, 100e9)
    assert (link["device"], link["link_state"], link["physical_state"]) == ("mlx5_0/1", 4, 5)
    assert (statistic["out_of_sequence_count"], statistic["cnp_sent_count"]) == (7, 9)


@pytest.mark.parametrize(("body", "rate"), [(TOPOLOGY, 400e9), (LINKS, 200e9)], ids=["topology", "ports"])
def test_both_forms_of_ibnetdiscover_name_the_same_ports(body: bytes, rate: float) -> None:
    found = {(row["node"], row["device"]): row for row in rows(read(body, node="where-it-ran"))}

    assert found[("gpu-20", "mlx5_3/1")]["rate_bits_per_second"] == rate
    assert found[("", "0xb83fd20300aa0001/7")]["physical_state"] == 5


def test_a_port_without_peer_is_down_and_has_no_rate() -> None:
    alone = rows(read(LINKS))[2]

    assert (alone["link_state"], alone["rate_bits_per_second"]) == (1, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"SW     3  9 0xb83fd20300aa0001 4x WDR - CA 1 1 0x1 ( 'a' - 'b' )", "unknown_speed"),
        (b"SW     3  9 0xb83fd20300aa0001 4x HDR - CA 1 1", "malformed_line"),
        (b"SW     3  9 0xb83fd20300aa", "malformed_line"),
        (LINKS.splitlines()[0], "duplicate_component"),
    ],
)
def test_a_broken_link_is_refused_and_the_others_kept(line: bytes, reason: str) -> None:
    parsed = read(LINKS + line + b"\n")

    assert parsed.reasons == {reason: 1}
    assert parsed.accepted == 3


def test_ibswinfo_gives_each_part_of_the_switch() -> None:
    parsed = read(SWITCH)

    assert (parsed.read, parsed.accepted, parsed.ignored, parsed.reasons) == (6, 4, 1, {"bad_value": 1})
    found = {row["device"]: row for row in rows(parsed, "facility_telemetry")}
    switch = "0x08c0eb0300000001"
    assert (found[f"{switch}/PSU0"]["power_watts"], found[f"{switch}/PSU0"]["healthy"]) == (101, 0)
    assert found[f"{switch}/temperature"]["temperature_celsius"] == 53
    assert found[f"{switch}/fan1"]["fan_revolutions_per_minute"] == 6125
    assert [row["kind"] for row in rows(parsed, "inventory")] == ["switch", "psu"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b"12345\n", "folder"),
        (b"hello\n", "expected"),
        (b"[12] a line of a log\n", "expected"),
        (b'{"a": 1}', "expected"),
    ],
)
def test_a_file_of_another_kind_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(WrongKind, match=reason):
        read(body)


def test_a_tree_of_another_kind_says_so() -> None:
    with pytest.raises(WrongKind, match="2 files"):
        infiniband.parse_tree({"a": b"", "b/c.json": b"{}"}, source="x", at=AT)


SEEDS = [PERFQUERY % (1, 2), IBSTAT, IBSTATUS, RDMA, TOPOLOGY, LINKS, SWITCH, *(content(path) for path in OUTPUTS)]


@settings(max_examples=100, deadline=None)
@given(body=damaged(SEEDS))
def test_no_bytes_break_it(body: bytes) -> None:
    try:
        parsed = read(body)
    except WrongKind:
        return

    check(parsed)


@settings(max_examples=100, deadline=None)
@given(
    path=st.sampled_from(sorted(a_port())),
    body=st.binary(max_size=40),
    other=st.text(max_size=60),
)
def test_no_tree_breaks_it(path: str, body: bytes, other: str) -> None:
    try:
        parsed = infiniband.parse_tree({**a_port(), path: body, other: body}, source="sysfs", at=AT)
    except WrongKind:
        return

    check(parsed)


DEVINFO = b"""hca_id:\tmlx5_7
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.2048
\tnode_guid:\t\t\tb83f:d203:0000:1234
\tboard_id:\t\t\tMT_0000000838
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_DOWN (1)
\t\t\tport_lid:\t\t26
\t\t\tlink_layer:\t\tEthernet
"""


def test_ibv_devinfo_states_ports_below_their_adapter() -> None:
    parsed = read(DEVINFO)

    (row,), (part,) = rows(parsed), rows(parsed, "inventory")
    assert (row["device"], row["link_state"], row["link_layer"]) == ("mlx5_7/1", 1.0, "Ethernet")
    assert (part["firmware_version"], part["part_number"], part["uuid"]) == (
        "28.39.2048",
        "MT_0000000838",
        "b83f:d203:0000:1234",
    )


def test_ibqueryerrors_gives_the_ports_that_err_and_passes_over_their_sum() -> None:
    body = (
        b'Errors for "gpu-20 mlx5_3"\n'
        b"   GUID 0xb83fd20300da1138 port 1: [SymbolErrorCounter == 5] [PortXmitWait == 44]\n"
        b'Errors for 0xb83fd20300aa0001 "MF0;spine-3:MQM9700/U1"\n'
        b"   GUID 0xb83fd20300aa0001 port ALL: [LinkDownedCounter == 9]\n"
        b"   GUID 0xb83fd20300aa0001 port 7: [LinkDownedCounter == 9]\n"
        b"   GUID 0xb83fd20300aa0001 port 8: nothing\n"
        b"## Summary: 2 nodes checked, 2 bad nodes found\n"
    )

    parsed = read(body)

    found = {(row["node"], row["device"]): row for row in rows(parsed)}
    assert found["gpu-20", "mlx5_3/1"]["symbol_error_count"] == 5.0
    assert found["", "0xb83fd20300aa0001/7"]["link_downed_count"] == 9.0
    assert (len(found), parsed.reasons) == (2, {"malformed_line": 1})


def test_rdma_in_json_is_read_as_its_text_is() -> None:
    port = b'{"ifindex": 1, "ifname": "mlx5_0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP"}'
    body = b"[" + port + b', {"port": 2}, 3]'

    parsed = read(body)

    (row,) = rows(parsed)
    assert (row["device"], row["link_state"], row["physical_state"]) == ("mlx5_0/1", 4.0, 5.0)
    assert parsed.reasons == {"no_port_named": 1, "not_an_object": 1}


def test_a_tree_of_several_hosts_names_them_by_their_folders() -> None:
    ports = {"node_desc": "", "ports/1/state": "4: ACTIVE"}
    files = {
        f"{host}/sys/class/infiniband/mlx5_0/{name}": value.encode()
        for host in ("gpu-01", "gpu-02")
        for name, value in ports.items()
    }

    parsed = infiniband.parse_tree(files, source="tree", at=AT)

    assert [(row["node"], row["device"]) for row in rows(parsed)] == [("gpu-01", "mlx5_0/1"), ("gpu-02", "mlx5_0/1")]


def test_the_folder_of_one_adapter_is_a_tree_too() -> None:
    files = {name.removeprefix("class/infiniband/mlx5_2/"): body for name, body in a_port().items()}

    parsed = infiniband.parse_tree(files, source="mlx5_2@0f0f0f", at=AT)

    assert [row["device"] for row in rows(parsed)] == ["mlx5_2/1"]


@pytest.mark.parametrize(("value", "expected"), [(2**64 - 2, 4.0 * (2**64 - 2)), (2**64 - 1, None)])
def test_a_counter_with_all_bits_set_is_one_that_the_driver_does_not_have(value: int, expected: float | None) -> None:
    # A float cannot tell these neighbours apart: both count as not there.
    parsed = infiniband.parse_tree(a_port(counters__port_xmit_data=str(value)), source="tree", at=AT)

    (row,) = rows(parsed)
    assert row["transmit_bytes"] in (expected, None)
