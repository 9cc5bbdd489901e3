"""smartctl's JSON over protocols, controllers and versions."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.formats import smartctl
from ops_pipelines.lake.quantities import Parsed, WrongKind
from tests.frames.formats.hardware_invariants import PUBLIC, check, content, damaged, rows

AT = datetime(2026, 1, 1, tzinfo=UTC)
FILES = sorted(PUBLIC.glob("smartctl/*.json"))
needs_public = pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not beside this checkout")

Json = dict[str, object]


def a_disk(name: str = "/dev/nvme3", **changed: object) -> Json:
    return {
        "json_format_version": [1, 0],
        "smartctl": {"version": [7, 4], "exit_status": 0},
        "local_time": {"time_t": 1767322800},
        "device": {"name": name, "info_name": name, "type": "nvme", "protocol": "NVMe"},
        "model_name": "DISK 3840",
        "serial_number": "S0001",
        "firmware_version": "GDC7",
        "user_capacity": {"bytes": 3840755982336},
        "smart_status": {"passed": True},
        "nvme_smart_health_information_log": {
            "critical_warning": 4,
            "percentage_used": 29,
            "available_spare": 97,
            "media_errors": 6,
        },
        "temperature": {"current": 41},
        "power_on_time": {"hours": 100, "minutes": 30},
        **changed,
    }


def read(*documents: object, node: str | None = None) -> Parsed:
    body = "\n".join(json.dumps(each) for each in documents)
    return smartctl.parse(body.encode(), source="disks.json", at=AT, node=node)


@needs_public
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_public_file_is_one_accepted_device(path: Path) -> None:
    parsed = smartctl.parse(content(path), source=path.name, at=AT)

    check(parsed)
    assert (parsed.read, parsed.accepted) == (1, 1)
    (disk,) = rows(parsed, "inventory")
    document = json.loads(content(path))
    assert disk["serial"] == document.get("serial_number")
    measured = rows(parsed, "storage_telemetry")
    assert measured or path.name == "scrutiny_smart-raid.json"
    for row in measured:
        if "smart_status" in document:
            assert row["healthy"] == float(document["smart_status"]["passed"])
        if "power_on_time" in document:
            assert row["power_on_seconds"] // 3600 == document["power_on_time"]["hours"]  # type: ignore[operator]  # a number


@needs_public
@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("ST3500418AS_12", "reallocated_sector_count", 304),
        ("scrutiny_smart-scsi", "reallocated_sector_count", 56),
        ("scrutiny_smart-megaraid1", "reallocated_sector_count", 387),
        ("nvme-null-SAMSUNG_MZWLL3T2HAJQ-00005-nvme0", "critical_warning", 16),
        ("nvme-null-SAMSUNG_MZWLL3T2HAJQ-00005-nvme0", "healthy", 0),
        ("nvme-null-MTFDHAX1T6MCE-1AN1ZABYY-nvme0", "wear_ratio", 0.69),
        ("sat-Phison_Driven_SSDs-KINGSTON_SA400M8120G-sda", "wear_ratio", 0.02),
        ("MB0500EBNCR_14", "media_error_count", 1),
    ],
)
def test_known_values_of_real_disks(name: str, column: str, expected: float) -> None:
    path = PUBLIC / "smartctl" / f"{name}.json"

    (row,) = rows(smartctl.parse(content(path), source=name, at=AT), "storage_telemetry")

    assert row[column] == expected


def test_a_device_becomes_a_row_in_base_units() -> None:
    parsed = read(a_disk(), node="store-1")

    (row,) = rows(parsed, "storage_telemetry")
    assert (row["node"], row["device"], row["time"]) == ("store-1", "nvme3", datetime.fromtimestamp(1767322800, tz=UTC))
    assert (row["wear_ratio"], row["spare_ratio"], row["media_error_count"]) == (0.29, 0.97, 6)
    assert row["power_on_seconds"] == 100 * 3600 + 30 * 60
    (disk,) = rows(parsed, "inventory")
    assert (disk["kind"], disk["state"], disk["capacity_bytes"]) == ("disk", "passed", 3840755982336)


@pytest.mark.parametrize(
    "body",
    [
        lambda first, second: f"[{first}, {second}]",
        lambda first, second: f"{first}\n{second}\n",
        lambda first, second: f"{first}{second}",
    ],
    ids=["array", "lines", "without anything between"],
)
def test_several_devices_may_stand_in_one_file(body: "object") -> None:
    text = body(json.dumps(a_disk()), json.dumps(a_disk("/dev/sda")))  # type: ignore[operator]  # one of the lambdas

    parsed = smartctl.parse(text.encode(), source="disks.json", at=AT)

    assert [row["device"] for row in rows(parsed, "inventory")] == ["nvme3", "sda"]


def test_disks_behind_one_controller_keep_apart() -> None:
    disks = [
        a_disk(device={"name": "/dev/bus/0", "info_name": f"/dev/bus/0 [megaraid_disk_0{number}] [SAT]", "type": "sat"})
        for number in (1, 2)
    ]

    parsed = read(*disks)

    assert [row["device"] for row in rows(parsed, "inventory")] == ["bus/0/megaraid_disk_01", "bus/0/megaraid_disk_02"]


@pytest.mark.parametrize(("status", "accepted"), [(0, 1), (1, 0), (2, 0), (4, 1), (64, 1), (66, 0)])
def test_a_device_that_did_not_open_is_refused_in_smartctls_words(status: int, accepted: int) -> None:
    said = {"exit_status": status, "messages": [{"string": "Device is in STANDBY mode, exit(2)", "severity": "info"}]}

    parsed = read(a_disk(smartctl=said))

    assert parsed.accepted == accepted
    assert [(each.reason, each.detail) for each in parsed.refused] == (
        [] if accepted else [("device_not_read", "Device is in STANDBY mode, exit(2)")]
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"temperature": {"current": 200}}, None),
        ({"temperature": {"current": 201}}, "out_of_range"),
        ({"temperature": {"current": "warm"}}, "bad_value"),
        ({"temperature": {"current": float("inf")}}, "out_of_range"),
        ({"temperature": {"current": float("nan")}}, None),
        ({"power_on_time": {"hours": -1}}, "out_of_range"),
        ({"local_time": {"time_t": 1e30}}, "bad_time"),
        ({"device": {}, "serial_number": ""}, "no_device_named"),
    ],
)
def test_a_value_that_cannot_be_refuses_its_device(changed: Json, reason: str | None) -> None:
    parsed = read(a_disk(**changed), a_disk("/dev/sdb"))

    assert parsed.reasons == ({} if reason is None else {reason: 1})
    assert parsed.accepted == 2 - len(parsed.refused)


def test_a_scan_measures_nothing() -> None:
    parsed = read({"smartctl": {}, "devices": [{"name": "/dev/sda"}, {"name": "/dev/sdb"}]})

    assert (parsed.read, parsed.ignored, dict(parsed.tables)) == (2, 2, {})


def test_json_that_breaks_off_is_refused_with_its_line() -> None:
    body = json.dumps(a_disk()) + "\n" + json.dumps(a_disk("/dev/sda"))[:200]

    parsed = smartctl.parse(body.encode(), source="disks.json", at=AT)

    assert parsed.accepted == 1
    assert [(each.record, each.reason) for each in parsed.refused] == [("line 2", "malformed_json")]


def test_a_volume_without_sensor_has_no_temperature() -> None:
    (row,) = rows(read(a_disk(temperature={"current": 0, "drive_trip": 0})), "storage_telemetry")

    assert row["temperature_celsius"] is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"", "empty"), (b"smartctl 7.4 2023-08-01 r5530\n", "--json"), (b"[]", "expected"), (b'{"a": 1}', "expected")],
)
def test_a_file_of_another_kind_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(WrongKind, match=reason):
        smartctl.parse(body, source="x", at=AT)


SEEDS = [json.dumps(a_disk(), indent=1).encode(), *(content(path) for path in FILES if path.stat().st_size < 2500)]


@settings(max_examples=100, deadline=None)
@given(body=damaged(SEEDS))
def test_no_bytes_break_it(body: bytes) -> None:
    try:
        parsed = smartctl.parse(body, source="disks.json", at=AT)
    except WrongKind:
        return

    check(parsed)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_ROW = st.dictionaries(st.sampled_from(["id", "name", "value", "raw"]), _ANYTHING | st.sampled_from([5, 187, 197]))


@settings(max_examples=100, deadline=None)
@given(
    changed=st.dictionaries(st.sampled_from([*sorted(a_disk()), "wwn", "vendor", "scsi_error_counter_log"]), _ANYTHING),
    table=st.lists(_ROW | _ANYTHING, max_size=3),
)
def test_no_document_breaks_it(changed: Json, table: list[object]) -> None:
    parsed = read(a_disk(**{"ata_smart_attributes": {"table": table}, **changed}), a_disk("/dev/sdz"))

    check(parsed)
