"""nvidia-smi's outputs over driver versions and platforms, and rocm-smi's JSON."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings

from ops_pipelines.lake.formats import nvidia_smi
from ops_pipelines.lake.quantities import Parsed, WrongKind
from tests.frames.formats.hardware_invariants import PUBLIC, check, content, damaged
from tests.frames.formats.hardware_invariants import rows as rows_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
OUTPUTS = sorted(PUBLIC.glob("nvidia_smi/*/*.xml")) + sorted(PUBLIC.glob("nvidia_smi/*/*.txt.gz"))
CARDS = sorted(PUBLIC.glob("amd_rocm_smi/*.json"))
EXPOSITIONS = sorted(PUBLIC.glob("nvidia_smi/*/*.metrics.gz"))
needs_public = pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not beside this checkout")

GPU = """<gpu id="{pci}">
  <product_name>NVIDIA H200</product_name><uuid>{uuid}</uuid><serial>1650924000017</serial>
  <pci><pci_gpu_link_info><pcie_gen><current_link_gen>5</current_link_gen></pcie_gen>
  <link_widths><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info>
  <replay_counter>2</replay_counter></pci>
  <clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
  <clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
  <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
  <fb_memory_usage><total>143771 MiB</total><used>{used}</used></fb_memory_usage>
  <ecc_errors><volatile><sram_correctable>1</sram_correctable><sram_uncorrectable_parity>2</sram_uncorrectable_parity>
  <sram_uncorrectable_secded>3</sram_uncorrectable_secded><dram_correctable>4</dram_correctable>
  <dram_uncorrectable>5</dram_uncorrectable></volatile></ecc_errors>
  <utilization><gpu_util>69 %</gpu_util></utilization><gpu_recovery_action>Drain and Reset</gpu_recovery_action>
  <temperature><gpu_temp>{temperature}</gpu_temp></temperature>
  <gpu_power_readings><average_power_draw>612.50 W</average_power_draw></gpu_power_readings>
  <processes><process_info><process_name>train --a && b</process_name></process_info></processes>
</gpu>
"""


def a_gpu(
    *, pci: str = "00000000:18:00.0", uuid: str = "GPU-1b5e", used: str = "1024 MiB", temperature: str = "70 C"
) -> str:
    return GPU.format(pci=pci, uuid=uuid, used=used, temperature=temperature)


def a_log(*gpus: str, attached: int | None = None) -> bytes:
    head = f"<timestamp>Fri Jan  2 03:04:05 2026</timestamp><attached_gpus>{attached or len(gpus)}</attached_gpus>"
    prolog = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    return f"{prolog}<nvidia_smi_log>{head}\n{''.join(gpus)}</nvidia_smi_log>\n".encode()


def rows(parsed: Parsed, table: str = "gpu_telemetry") -> list[dict[str, object]]:
    return rows_of(parsed, table)


def read(body: bytes, *, node: str | None = None) -> Parsed:
    return nvidia_smi.parse(body, source="gpu.out", at=AT, node=node)


@needs_public
@pytest.mark.parametrize("path", OUTPUTS + CARDS, ids=lambda path: path.name)
def test_every_public_output_is_accepted_whole(path: Path) -> None:
    parsed = read(content(path))

    check(parsed)
    assert parsed.accepted >= 1
    assert not parsed.refused
    assert all(row["temperature_celsius"] is not None for row in rows(parsed) if row["mig_instance"] is None)


@needs_public
@pytest.mark.parametrize("path", EXPOSITIONS, ids=lambda path: path.name)
def test_exposition_text_is_of_another_kind(path: Path) -> None:
    with pytest.raises(WrongKind, match="metrics"):
        read(content(path))


@needs_public
def test_the_text_and_the_csv_of_one_moment_agree() -> None:
    path = next(path for path in OUTPUTS if "h100" in path.name)

    text, _, csv, _ = sorted(rows(read(content(path))), key=lambda row: str(row["pcie_replay_count"] is None))

    same = ("memory_total_bytes", "power_limit_watts", "utilisation_ratio", "ecc_uncorrectable_aggregate_count")
    assert [text[name] for name in same] == [csv[name] for name in same] == [81559 * 2**20, 700.0, 0.0, 0.0]
    assert text["pcie_replay_count"] == 9
    assert text["device"] == "0000:00:09", "a masked UUID identifies nothing"


@needs_public
def test_mig_devices_are_rows_of_their_gpu() -> None:
    parsed = read(content(next(path for path in OUTPUTS if "mig" in path.name)))

    assert parsed.accepted == 1
    assert [(row["mig_instance"], row["memory_used_bytes"]) for row in rows(parsed)] == [
        (None, 38 * 2**20),
        ("1", 19 * 2**20),
        ("2", 19 * 2**20),
    ]
    assert [row["kind"] for row in rows(parsed, "inventory")] == ["gpu", "mig", "mig"]


def test_names_of_new_drivers_and_units_become_ours() -> None:
    parsed = read(a_log(a_gpu()), node="gpu-01")

    (row,) = rows(parsed)
    assert (row["node"], row["device"], row["pci_address"], row["gpu_index"]) == ("gpu-01", "GPU-1b5e", "0000:18:00", 0)
    assert row["time"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert row["utilisation_ratio"] == 0.69
    assert row["memory_used_bytes"] == 2**30
    assert row["power_watts"] == 612.5
    assert row["clock_event_reasons"] == 0x0C
    assert (row["ecc_correctable_volatile_count"], row["ecc_uncorrectable_volatile_count"]) == (5, 10)
    assert (row["recovery_action"], row["pcie_link_width"], row["pcie_replay_count"]) == (4, 16, 2)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0000:18:00.0", "0000:18:00"),
        ("00000000:AF:00.0", "0000:af:00"),
        ("0000FFFF:18:00.0", "ffff:18:00"),
        ("00010000:18:00.0", "10000:18:00"),
    ],
)
def test_a_pci_domain_may_have_four_digits_or_eight(address: str, expected: str) -> None:
    assert rows(read(a_log(a_gpu(pci=address))))[0]["pci_address"] == expected


@pytest.mark.parametrize(
    "absent", ["N/A", "[N/A]", "[Not Supported]", "[Insufficient Permissions]", "ERR!", "[GPU requires reset]", ""]
)
def test_a_value_that_the_tool_does_not_have_is_null(absent: str) -> None:
    parsed = read(a_log(a_gpu(temperature=absent)))

    assert parsed.accepted == 1
    assert rows(parsed)[0]["temperature_celsius"] is None


@pytest.mark.parametrize(
    ("temperature", "reason"),
    [("200 C", None), ("201 C", "out_of_range"), ("-40 C", None), ("-41 C", "out_of_range"), ("warm", "bad_value")],
)
def test_a_gpu_with_a_value_that_cannot_be_is_refused(temperature: str, reason: str | None) -> None:
    parsed = read(a_log(a_gpu(temperature=temperature), a_gpu(uuid="GPU-2", pci="00000000:19:00.0")))

    assert parsed.reasons == ({} if reason is None else {reason: 1})
    assert parsed.accepted == 2 - len(parsed.refused)
    assert all("temperature_celsius" in each.detail for each in parsed.refused)


def test_a_gpu_that_could_not_be_read_is_refused() -> None:
    lost = '<gpu id="00000000:3B:00.0"><temperature><gpu_temp>[Unknown Error]</gpu_temp></temperature></gpu>'

    parsed = read(a_log(lost, a_gpu()))

    assert parsed.reasons == {"gpu_unreadable": 1}
    assert parsed.accepted == 1


def test_a_broken_gpu_leaves_the_others_whole() -> None:
    broken = a_gpu(uuid="GPU-2", pci="00000000:19:00.0").replace("</utilization>", "")
    cut = a_gpu(uuid="GPU-3", pci="00000000:1A:00.0")[:300]

    parsed = read(a_log(a_gpu(), broken, cut, attached=3).replace(b"</nvidia_smi_log>", b""))

    assert parsed.reasons == {"malformed_xml": 1, "truncated_record": 1}
    assert [row["device"] for row in rows(parsed)] == ["GPU-1b5e"]
    assert all("line" in each.record for each in parsed.refused)


def test_entities_are_never_expanded() -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY f SYSTEM "file:///etc/hostname">]>'

    parsed = read(bomb + a_log(a_gpu(uuid="&b;"), a_gpu(uuid="&f;", pci="00000000:19:00.0")))

    assert [row["device"] for row in rows(parsed)] == ["&b;", "&f;"]


def test_a_gpu_that_stands_twice_counts_once() -> None:
    assert read(a_log(a_gpu(), a_gpu())).reasons == {"duplicate_gpu": 1}


def test_documents_in_a_row_are_read_all() -> None:
    later = a_log(a_gpu()).replace(b"03:04:05", b"03:04:10")

    assert read(a_log(a_gpu()) + later).accepted == 2


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("unit", "heading"), [(" MiB", " [MiB]"), ("", " [MiB]"), ("", "")])
def test_csv_is_read_in_every_dress(ending: str, encoding: str, unit: str, heading: str) -> None:
    text = ending.join(
        [
            f"timestamp, index, uuid, pci.bus_id, memory.used{heading}, utilization.gpu [%], power.draw [W], hostname",
            f"2026/01/02 03:04:05.250, 3, GPU-9, 00000000:9B:00.0, 512{unit}, 50 %, [N/A], gpu-07",
            f"2026/01/02 03:04:05.250, 4, GPU-8, 00000000:9C:00.0, 512{unit}, 50 %",
            "",
        ]
    )

    parsed = read(text.encode(encoding), node="elsewhere")

    (row,) = rows(parsed)
    assert parsed.reasons == {"wrong_number_of_fields": 1}
    assert (row["node"], row["device"], row["gpu_index"]) == ("gpu-07", "GPU-9", 3)
    assert (row["memory_used_bytes"], row["utilisation_ratio"], row["power_watts"]) == (512 * 2**20, 0.5, None)
    assert row["time"] == datetime(2026, 1, 2, 3, 4, 5, 250000, tzinfo=UTC)


def test_indented_text_keeps_sections_and_mig_devices_apart() -> None:
    text = b"""
==============NVSMI LOG==============

Timestamp                                 : Fri Jan  2 03:04:05 2026
Driver Version                            : 570.124.06
Attached GPUs                             : 1
GPU 00000000:4E:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 9
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 2
        FB Memory Usage
            Total                         : 9984 MiB
            Used                          : 13 MiB
    GPU UUID                              : GPU-44
    Clocks Throttle Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    FB Memory Usage
        Total                             : 81559 MiB
    Temperature
        GPU Current Temp                  : 91 C
    Power Readings
        Power Draw                        : 99.50 W
    Processes
        GPU instance ID                   : N/A
            Used GPU Memory               : 5 MiB
"""

    whole, slice_ = rows(read(text, node="gpu-01"))

    assert (whole["device"], whole["pci_address"], whole["gpu_index"]) == ("GPU-44", "0000:4e:00", 0)
    assert (whole["temperature_celsius"], whole["power_watts"], whole["clock_event_reasons"]) == (91, 99.5, 0x48)
    assert whole["memory_total_bytes"] == 81559 * 2**20
    assert (slice_["device"], slice_["mig_instance"], slice_["memory_used_bytes"]) == ("GPU-44/mig9", "9", 13 * 2**20)
    assert slice_["ecc_uncorrectable_volatile_count"] == 2


TABLE = b"""Mon Jan  5 10:00:00 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.104.05             Driver Version: 535.104.05   CUDA Version: 12.2     |
|=========================================+======================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    1 |
| N/A   31C    P0              62W / 400W |      4MiB / 81920MiB |      0%      Default |
|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off |                 ERR! |
|ERR!   ERR!  ERR!             ERR! / ERR! |    ERR! / ERR!       |     ERR!        ERR! |
+---------------------------------------------------------------------------------------+
"""


def test_the_table_alone_is_read_and_a_lost_gpu_refused() -> None:
    parsed = read(TABLE)

    (row,) = rows(parsed)
    assert parsed.reasons == {"gpu_unreadable": 1}
    assert (row["device"], row["power_watts"], row["ecc_uncorrectable_volatile_count"]) == ("0000:07:00", 62, 1)
    assert row["time"] == datetime(2026, 1, 5, 10, tzinfo=UTC)


def test_a_list_names_gpus_without_measuring() -> None:
    parsed = read(b"GPU 0: NVIDIA H200 (UUID: GPU-77)\n  MIG 1g.18gb Device  0: (UUID: MIG-1)\n")

    assert (parsed.read, parsed.accepted) == (1, 1)
    assert set(parsed.tables) == {"inventory"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"NVIDIA H200, GPU-0f, 512 MiB\n", "noheader"),
        (b"# HELP x y\nx 1\n", "metrics"),
        (b"GPU 0: NVIDIA H200 (UUID: GPU-77)\n\t Link 0: 26.562 GB/s\n", "links"),
        (b"# gpu      pid  type    sm\n    0     6941     C    95\n", "pmon"),
        (b"# GPU output captures\n| a | b |\n", "expected"),
        (b'{"smartctl": {}}', "expected"),
        (b"\xff\xfe\xff\xd8", "expected"),
    ],
)
def test_a_file_of_another_kind_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(WrongKind, match=reason):
        read(body)


def test_an_amd_card_that_says_nonsense_is_refused() -> None:
    body = (
        b'{"card0": {"GPU use (%)": "12", "PCI Bus": "0000:C1:00.0"}, "card1": {"GPU use (%)": "lots"}, "system": {}}'
    )

    parsed = read(body)

    assert parsed.reasons == {"bad_value": 1}
    assert (rows(parsed)[0]["device"], rows(parsed)[0]["utilisation_ratio"]) == ("0000:c1:00", 0.12)


SEEDS = [
    a_log(a_gpu(), a_gpu(uuid="GPU-2")),
    TABLE,
    b"index, uuid, memory.used [MiB], power.draw [W]\n0, GPU-1, 12 MiB, 60 W\n1, GPU-2, 12 MiB, ERR!\n",
    b"==NVSMI LOG==\nTimestamp : x\nAttached GPUs : 1\nGPU 00000000:01:00.0\n    Temperature\n        GPU : 4 C\n",
    b'{"card0": {"GPU use (%)": "12", "PCI Bus": "0000:C1:00.0", "VRAM Total Memory (B)": "17"}}',
]


@settings(max_examples=80, deadline=None)
@given(body=damaged(SEEDS + [content(path) for path in CARDS + OUTPUTS if path.stat().st_size < 13000]))
def test_no_bytes_break_it(body: bytes) -> None:
    try:
        parsed = read(body)
    except WrongKind:
        return

    check(parsed)


def test_dmon_gives_a_sample_for_every_row_that_says_when() -> None:
    body = (
        b"#Date       Time        gpu    pwr  mtemp     sm     fb\n"
        b"#YYYYMMDD   HH:MM:SS    Idx      W      C      %     MB\n"
        b" 20260714   08:12:38      1    543     70     95    100\n"
        b" 20260714   08:12:39      1    544      -     96    100\n"
        b" 20260714   08:12:40      1    544\n"
    )

    parsed = read(body)

    rows = parsed.tables["gpu_telemetry"].to_pylist()
    assert [(row["time"].second, row["power_watts"], row["memory_temperature_celsius"]) for row in rows] == [
        (38, 543.0, 70.0),
        (39, 544.0, None),
    ]
    assert {row["utilisation_ratio"] for row in rows} == {0.95, 0.96}
    assert parsed.reasons == {"wrong_number_of_fields": 1}


def test_amd_smi_states_values_with_units_and_says_which_it_has_not() -> None:
    body = (
        b'[{"gpu": 0, "usage": {"gfx_activity": {"value": 50, "unit": "%"}, "mm_activity": "N/A"}, '
        b'"power": {"socket_power": {"value": 310, "unit": "W"}}, "temperature": {"edge": "N/A", '
        b'"hotspot": {"value": 61, "unit": "C"}}, "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}}, '
        b'"ecc": {"total_uncorrectable_count": 2}, "pcie": {"width": 16, "speed": {"value": 32, "unit": "GT/s"}}}, '
        b'{"gpu": 1, "usage": {"gfx_activity": {"value": 500, "unit": "%"}}}, 7]'
    )

    parsed = read(body)

    row = parsed.tables["gpu_telemetry"].to_pylist()[0]
    measured = (row["utilisation_ratio"], row["power_watts"], row["temperature_celsius"], row["memory_total_bytes"])
    assert measured == (0.5, 310.0, 61.0, 196592 * 2.0**20)
    assert (row["ecc_uncorrectable_volatile_count"], row["pcie_link_generation"]) == (2.0, 5.0)
    assert parsed.reasons == {"bad_value": 1, "out_of_range": 1}


def test_amd_smi_static_names_the_gpu_and_its_parts() -> None:
    body = (
        b'{"gpu_data": [{"gpu": 0, "asic": {"market_name": "MI300X", "asic_serial": "0x5"}, '
        b'"bus": {"bdf": "0000:05:00.0"}, "driver": {"version": "6.7.0"}, "vbios": {"version": "022.040"}}]}'
    )

    parsed = read(body)

    row = parsed.tables["inventory"].to_pylist()[0]
    assert (row["device"], row["model"], row["serial"], row["vendor"]) == ("0000:05:00", "MI300X", "0x5", "AMD")
    assert (row["driver_version"], row["vbios_version"]) == ("6.7.0", "022.040")
