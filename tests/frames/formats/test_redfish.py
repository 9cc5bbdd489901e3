"""Answers of BMCs over Redfish: single ones, trees of them, and vendors' own ways."""

import json
import tarfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.formats import redfish
from ops_pipelines.lake.quantities import Parsed, WrongKind
from tests.frames.formats.hardware_invariants import PUBLIC, check, content, damaged
from tests.frames.formats.hardware_invariants import rows as rows_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
FILES = sorted(PUBLIC.glob("redfish/*/*.json"))
TREES = sorted(PUBLIC.glob("redfish/*.tar.gz"))
needs_public = pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not beside this checkout")

CHASSIS = "/redfish/v1/Chassis/Self"
Json = dict[str, object]


def a_thermal(*temperatures: Json, fans: list[Json] | None = None) -> Json:
    return {
        "@odata.id": f"{CHASSIS}/Thermal",
        "@odata.type": "#Thermal.v1_6_0.Thermal",
        "Temperatures": list(temperatures),
        "Fans": fans or [],
    }


def a_temperature(name: str = "Inlet", celsius: object = 23, **changed: object) -> Json:
    status = {"State": "Enabled", "Health": "OK"}
    return {"Name": name, "ReadingCelsius": celsius, "UpperThresholdCritical": 45, "Status": status, **changed}


def a_sensor(identity: str, name: str, reading: object, units: str, **changed: object) -> Json:
    return {
        "@odata.id": f"{CHASSIS}/Sensors/{identity}",
        "@odata.type": "#Sensor.v1_2_0.Sensor",
        "Id": identity,
        "Name": name,
        "Reading": reading,
        "ReadingUnits": units,
        "Status": {"State": "Enabled", "Health": "OK"},
        **changed,
    }


def read(document: object, *, node: str | None = None) -> Parsed:
    return redfish.parse(json.dumps(document).encode(), source="bmc.json", at=AT, node=node)


def read_tree(*documents: Json, node: str | None = None, **others: bytes) -> Parsed:
    files = {f"{number}/index.json": json.dumps(each).encode() for number, each in enumerate(documents)}
    return redfish.parse_tree({**files, **others}, source="bmc", at=AT, node=node)


def rows(parsed: Parsed, table: str = "facility_telemetry") -> list[dict[str, object]]:
    return rows_of(parsed, table)


@cache
def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in found.items() if file}


@needs_public
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_public_answer_is_taken_whole_or_refused_with_its_line(path: Path) -> None:
    parsed = redfish.parse(content(path), source=path.name, at=AT)

    check(parsed)
    assert parsed.reasons == ({"malformed_json": 1} if "invalid" in path.name else {})
    assert all(each.record.startswith("line ") for each in parsed.refused)


@needs_public
@pytest.mark.parametrize(
    ("name", "read_count", "accepted", "ignored"),
    [
        ("libredfish_model/power-dell.json", 52, 52, 0),
        ("libredfish_model/thermal-hpe.json", 56, 47, 9),
        ("telegraf_dell/dell_thermal.json", 17, 17, 0),
        ("libredfish_model/bios_dell.json", 1, 0, 1),
        ("libredfish_model/systems.json", 1, 0, 1),
    ],
)
def test_a_record_is_one_sensor_or_one_answer_without(name: str, read_count: int, accepted: int, ignored: int) -> None:
    parsed = redfish.parse(content(PUBLIC / "redfish" / name), source=name, at=AT)

    assert (parsed.read, parsed.accepted, parsed.ignored) == (read_count, accepted, ignored)


@needs_public
def test_known_values_of_real_bmcs() -> None:
    power = rows(redfish.parse(content(PUBLIC / "redfish/libredfish_model/power-hpe.json"), source="x", at=AT))
    fans = rows(redfish.parse(content(PUBLIC / "redfish/libredfish_model/thermal-hpe.json"), source="x", at=AT))

    assert [(row["power_watts"], row["power_capacity_watts"]) for row in power] == [(590, 1600), (299, 800), (291, 800)]
    assert len({row["device"] for row in power}) == 3, "two supplies of one name keep apart by their bays"
    assert next(row for row in fans if row["device"] == "1/Fan 1")["fan_ratio"] == 0.62


@needs_public
@pytest.mark.parametrize("path", TREES, ids=lambda path: path.name)
def test_a_whole_tree_closes_and_refuses_only_what_the_bmc_failed_at(path: Path) -> None:
    parsed = redfish.parse_tree(unpacked(path), source=path.name, at=AT)

    check(parsed)
    assert parsed.accepted > 40
    assert set(parsed.reasons) <= {"error_answer", "not_an_answer"}
    assert len(parsed.refused) < 10


@needs_public
def test_the_dell_tree_names_each_sensor_once() -> None:
    parsed = redfish.parse_tree(unpacked(next(path for path in TREES if "dell" in path.name)), source="r750", at=AT)

    found = {str(row["device"]): row for row in rows(parsed)}
    inlet = [name for name in found if "inlet" in name.lower()]
    assert inlet == ["System.Embedded.1/System Board Inlet Temp"]
    assert (found[inlet[0]]["temperature_celsius"], found[inlet[0]]["temperature_limit_celsius"]) == (25, 42)
    supply = found["System.Embedded.1/PS1 Status"]
    assert (supply["supply_output_watts"], supply["supply_input_watts"], supply["power_capacity_watts"]) == (
        273,
        303,
        2400,
    )
    gpu = next(row for row in rows(parsed, "inventory") if row["kind"] == "gpu")
    assert (gpu["model"], gpu["serial"]) == ("NVIDIA H100 PCIe", "1654422007043")


@pytest.mark.parametrize(
    ("entry", "celsius", "limit"),
    [
        (a_temperature(celsius="23"), 23, 45),
        (a_temperature(celsius=23.5, UpperThresholdCritical=0), 23.5, None),
        (a_temperature(celsius=None), None, 45),
        ({"Name": "Inlet", "CurrentReading": 21, "Units": "Celsius", "Status": {"Health": "OK"}}, 21, None),
    ],
)
def test_temperatures_come_in_several_dresses(entry: Json, celsius: float | None, limit: float | None) -> None:
    (row,) = rows(read(a_thermal(entry)))

    assert (row["device"], row["temperature_celsius"], row["temperature_limit_celsius"]) == (
        "Self/Inlet",
        celsius,
        limit,
    )


@pytest.mark.parametrize(
    ("fan", "expected"),
    [
        ({"Name": "F", "Reading": 8000, "ReadingUnits": "RPM"}, (8000, None)),
        ({"FanName": "F", "CurrentReading": 62, "Units": "Percent"}, (None, 0.62)),
        ({"Name": "F", "ReadingRPM": 7200}, (7200, None)),
        ({"Name": "F", "Reading": "9100"}, (9100, None)),
    ],
)
def test_a_fan_turns_in_rounds_or_in_percent(fan: Json, expected: tuple[float | None, float | None]) -> None:
    (row,) = rows(read(a_thermal(fans=[fan])))

    assert (row["fan_revolutions_per_minute"], row["fan_ratio"]) == expected


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (a_temperature(celsius=200), None),
        (a_temperature(celsius=201), "out_of_range"),
        (a_temperature(celsius="hot"), "bad_value"),
        (a_temperature(celsius=[1]), "bad_value"),
        (a_temperature(celsius=float("inf")), "out_of_range"),
        (a_temperature(celsius=float("nan")), None),
    ],
)
def test_a_sensor_with_a_value_that_cannot_be_is_refused(entry: Json, reason: str | None) -> None:
    parsed = read(a_thermal(entry, a_temperature("Exhaust")))

    assert parsed.reasons == ({} if reason is None else {reason: 1})
    assert parsed.accepted == 2 - len(parsed.refused)
    assert all(each.record == f"{CHASSIS}/Thermal#/Temperatures/0" for each in parsed.refused)


@pytest.mark.parametrize(
    ("capacity", "reason"),
    [(0, None), (1920383410176, None), (-1, "out_of_range"), (1e30, "out_of_range"), (float("inf"), "out_of_range")],
)
def test_a_disk_of_a_size_that_cannot_be_is_refused(capacity: float, reason: str | None) -> None:
    disk = {
        "@odata.id": "/redfish/v1/Systems/1/Storage/1/Drives/2",
        "@odata.type": "#Drive.v1_12_1.Drive",
        "Model": "D",
    }

    parsed = read({**disk, "CapacityBytes": capacity})

    assert parsed.reasons == ({} if reason is None else {reason: 1})


def test_a_fan_in_an_unknown_unit_is_refused() -> None:
    parsed = read(a_thermal(fans=[{"Name": "F", "Reading": 7, "ReadingUnits": "Furlongs"}]))

    assert parsed.reasons == {"unknown_unit": 1}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"State": "Enabled", "Health": "OK"}, (1, 1)),
        ({"State": "Enabled", "Health": "Critical"}, (0, 1)),
        ({"State": "Disabled", "Health": "Warning"}, (0, 0)),
        ({}, (None, None)),
    ],
)
def test_a_status_becomes_two_states(status: Json, expected: tuple[float | None, float | None]) -> None:
    (row,) = rows(read(a_thermal(a_temperature(Status=status))))

    assert (row["healthy"], row["enabled"]) == expected


def test_an_absent_sensor_is_ignored() -> None:
    parsed = read(a_thermal(a_temperature(celsius=0, Status={"State": "Absent"})))

    assert (parsed.read, parsed.ignored) == (1, 1)


@pytest.mark.parametrize(
    ("units", "column", "value"),
    [
        ("Cel", "temperature_celsius", 30),
        ("W", "power_watts", 30),
        ("kW", "power_watts", 30000),
        ("V", "voltage_volts", 30),
        ("{rev}/min", "fan_revolutions_per_minute", 30),
    ],
)
def test_a_sensor_says_its_unit(units: str, column: str, value: float) -> None:
    (row,) = rows(read(a_sensor("s1", "Sensor", 30, units)))

    assert (row["device"], row[column]) == ("Self/s1", value)


def test_a_sensor_that_repeats_thermal_is_ignored() -> None:
    parsed = read_tree(a_sensor("inlet_temp", "Inlet", 23, "Cel"), a_thermal(a_temperature()))

    assert (parsed.read, parsed.accepted, parsed.ignored) == (2, 1, 1)
    assert [row["device"] for row in rows(parsed)] == ["Self/Inlet"]


def test_two_sensors_of_one_name_keep_apart() -> None:
    parsed = read_tree(a_sensor("psu1_in", "InputPower", 5, "W"), a_sensor("psu2_in", "InputPower", 6, "W"))

    assert {row["device"]: row["power_watts"] for row in rows(parsed)} == {"Self/psu1_in": 5, "Self/psu2_in": 6}


def test_the_same_supply_in_the_old_and_the_new_model_is_one() -> None:
    supply: Json = {"Name": "PSU 1", "SerialNumber": "P1", "PowerCapacityWatts": 3000, "Model": "3 kW"}
    old: Json = {"@odata.id": f"{CHASSIS}/Power", "@odata.type": "#Power.v1_5_0.Power", "PowerSupplies": [supply]}
    path = f"{CHASSIS}/PowerSubsystem/PowerSupplies/0"
    new: Json = {**supply, "@odata.id": path, "@odata.type": "#PowerSupply.v1_0_0.PowerSupply"}
    metrics: Json = {
        "@odata.id": f"{path}/Metrics",
        "@odata.type": "#PowerSupplyMetrics.v1_0_0.PowerSupplyMetrics",
        "OutputPowerWatts": {"Reading": 777},
    }

    parsed = read_tree(metrics, new, old)

    (row,) = rows(parsed)
    assert (row["device"], row["power_watts"], row["power_capacity_watts"]) == ("Self/PSU 1", 777, 3000)
    assert [(part["kind"], part["serial"]) for part in rows(parsed, "inventory")] == [("psu", "P1")]


def test_the_host_gives_its_name_to_all_of_its_tree() -> None:
    system: Json = {
        "@odata.id": "/redfish/v1/Systems/1",
        "@odata.type": "#ComputerSystem.v1_17_0.ComputerSystem",
        "HostName": "gpu-31",
        "Model": "SYS-821GE",
        "MemorySummary": {"TotalSystemMemoryGiB": 2048},
    }

    named, overruled = read_tree(a_thermal(a_temperature()), system), read_tree(system, node="gpu-99")

    assert {row["node"] for row in rows(named)} == {"gpu-31"}
    (host,) = rows(named, "inventory")
    assert (host["device"], host["kind"], host["memory_bytes"]) == ("", "node", 2048 * 2**30)
    assert rows(overruled, "inventory")[0]["node"] == "gpu-99"


def test_links_schemas_services_and_pages_of_a_tree_are_ignored() -> None:
    collection: Json = {"@odata.id": "/redfish/v1/Chassis", "Members": [{"@odata.id": CHASSIS}]}
    schema: Json = {"$schema": "http://json-schema.org", "definitions": {}}

    parsed = read_tree(collection, schema, {"v1": "/redfish/v1/"}, **{"$metadata/index.xml": b"<edmx/>"})

    assert (parsed.read, parsed.ignored) == (4, 4)


def test_members_in_full_are_read() -> None:
    parsed = read(
        {"@odata.id": f"{CHASSIS}/Sensors", "Members": [a_sensor("a", "A", 1, "V"), a_sensor("b", "B", 2, "V")]}
    )

    assert parsed.accepted == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"@Message.ExtendedInfo": [], "message": "no such resource"}}', "error_answer"),
        (b'{"@odata.id": "/redfish/v1", "Name": ', "malformed_json"),
        (b"", "malformed_json"),
        (b"[1]", "not_an_answer"),
    ],
)
def test_a_bad_file_of_a_tree_is_refused_and_the_others_kept(body: bytes, reason: str) -> None:
    parsed = read_tree(a_thermal(a_temperature()), **{"bad/index.json": body})

    assert parsed.reasons == {reason: 1}
    assert parsed.accepted == 1
    assert parsed.refused[0].record.startswith("bad/index.json")


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"", "empty"), (b"<html>", "XML"), (b'{"a": 1}', "@odata"), (b"[]", "@odata"), (b"{broken", "@odata")],
)
def test_a_file_of_another_kind_says_why(body: bytes, reason: str) -> None:
    with pytest.raises(WrongKind, match=reason):
        redfish.parse(body, source="x", at=AT)


def test_a_tree_of_another_kind_says_so() -> None:
    with pytest.raises(WrongKind, match="1 files"):
        redfish.parse_tree({"a.txt": b"hello"}, source="x", at=AT)


SEEDS = [
    json.dumps(
        a_thermal(a_temperature(), fans=[{"Name": "F", "Reading": 7000, "ReadingUnits": "RPM"}]), indent=1
    ).encode(),
    json.dumps(a_sensor("s", "S", 3, "Cel", Thresholds={"UpperCritical": {"Reading": 9}})).encode(),
    *(content(path) for path in FILES if path.stat().st_size < 14000),
]


@settings(max_examples=100, deadline=None)
@given(body=damaged(SEEDS))
def test_no_bytes_break_it(body: bytes) -> None:
    try:
        parsed = redfish.parse(body, source="bmc.json", at=AT)
    except WrongKind:
        return

    check(parsed)


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("/redfish/v1/Chassis/1/x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_FIELDS = """
@odata.id Id Name Status Reading ReadingUnits Thresholds SpeedPercent Fans Temperatures PowerSupplies Members Oem
Location FirmwareVersion MemorySummary ProcessorSummary CapacityMiB Model links error Controllers HostName
"""
_NAMES = st.sampled_from(_FIELDS.split())


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(
        ["Thermal", "Power", "Sensor", "Fan", "PowerSupply", "ComputerSystem", "Drive", "Memory", "Processor"]
    ),
    fields=st.dictionaries(_NAMES, _ANYTHING, max_size=6),
)
def test_no_answer_breaks_it(kind: str, fields: Json) -> None:
    parsed = read_tree({"@odata.type": f"#{kind}.v1.{kind}", **fields}, a_thermal(a_temperature()))

    check(parsed)


@pytest.mark.parametrize(
    ("entry", "inlet"),
    [
        (a_temperature("System Board Inlet Temp", 24), 24.0),
        (a_temperature("01-Front Ambient", 15), 15.0),
        (a_temperature("Temp 3", 26, PhysicalContext="Intake"), 26.0),
        (a_temperature("Exhaust", 40, PhysicalContext="Exhaust"), None),
        (a_temperature("Inlet", 120), 120.0),
        (a_temperature("Inlet", 121), None),
    ],
)
def test_the_air_that_enters_is_told_from_other_temperatures(entry: Json, inlet: float | None) -> None:
    (row,) = rows(read(a_thermal(entry)))

    assert (row["temperature_celsius"], row["inlet_temperature_celsius"]) == (entry["ReadingCelsius"], inlet)
