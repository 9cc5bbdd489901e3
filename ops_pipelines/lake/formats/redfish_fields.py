"""Which fields of a Redfish object mean which column: readings, limits, identities, over vendors and schema versions.

Here: the tables of resource types and of lists within them. Not here: which objects an answer holds
(`redfish_components`).
"""

import re
from collections.abc import Callable, Mapping

from ops_pipelines.lake.formats.reading import Cell, Unbelievable, number, size, whole, word

Json = Mapping[str, object]
Measured = dict[str, float | None]


def _reading(value: object) -> object:
    """Return the number of a sensor excerpt `{"Reading": 25}`, or the value itself."""
    return value.get("Reading") if isinstance(value, dict) else value


def _limit(document: Json) -> float | None:
    thresholds = document.get("Thresholds")
    upper = thresholds.get("UpperCritical") if isinstance(thresholds, dict) else None
    stated = document.get("UpperThresholdCritical")
    found = number(_reading(upper) if stated is None else stated, name="UpperThresholdCritical")
    # HPE writes 0 for a sensor without a limit.
    return found or None


def _temperature(entry: Json) -> Measured:
    value = entry.get("ReadingCelsius", entry.get("CurrentReading", entry.get("Reading")))
    found = number(value, name="ReadingCelsius")
    return {
        "temperature_celsius": found,
        "temperature_limit_celsius": _limit(entry),
        "inlet_temperature_celsius": _inlet(found, entry),
    }


def _inlet(celsius: float | None, entry: Json) -> float | None:
    """Return the temperature if its sensor measures the air that enters; None for one that no room has."""
    if celsius is None or celsius > _HOTTEST_AIR:
        return None
    named = " ".join(str(entry.get(name, "")) for name in ("Name", "MemberId", "Id"))
    return celsius if entry.get("PhysicalContext") == "Intake" or _INLET.search(named) else None


_HOTTEST_AIR = 120
"""The upper bound of the catalogue; a sensor itself may show more."""
_INLET = re.compile(r"\binlet|inlet[ _]?(?:temp|ambient|air)|front[ _-]?(?:panel[ _])?ambient", re.IGNORECASE)


def _fan(entry: Json) -> Measured:
    speed = entry.get("SpeedPercent")
    if isinstance(speed, dict):
        turns = number(speed.get("SpeedRPM"), name="SpeedRPM")
        share = number(speed.get("Reading"), unit="%", name="SpeedPercent")
        return {"fan_revolutions_per_minute": turns, "fan_ratio": share}
    if entry.get("ReadingRPM") is not None or entry.get("SpeedRPM") is not None:
        return {"fan_revolutions_per_minute": number(entry.get("ReadingRPM", entry.get("SpeedRPM")), name="ReadingRPM")}
    value = entry.get("Reading", entry.get("CurrentReading"))
    unit = entry.get("ReadingUnits", entry.get("Units"))
    if value is None:
        return {}
    return _measured(value, str(unit or ""), entry, is_fan=True)


def _control(entry: Json) -> Measured:
    return {
        "power_watts": number(entry.get("PowerConsumedWatts"), name="PowerConsumedWatts"),
        "power_capacity_watts": number(entry.get("PowerCapacityWatts"), name="PowerCapacityWatts"),
    }


def _supply(entry: Json) -> Measured:
    gives = _first(entry, "PowerOutputWatts", "LastPowerOutputWatts", "OutputPowerWatts")
    takes = _first(entry, "PowerInputWatts", "InputPowerWatts")
    return {
        "power_watts": takes if gives is None else gives,
        "supply_output_watts": gives,
        "supply_input_watts": takes,
        "power_capacity_watts": _first(entry, "PowerCapacityWatts"),
        "voltage_volts": _first(entry, "LineInputVoltage", "InputVoltage"),
        "temperature_celsius": _first(entry, "TemperatureCelsius"),
    }


def _voltage(entry: Json) -> Measured:
    return {"voltage_volts": _first(entry, "ReadingVolts", "Reading")}


def _first(entry: Json, *names: str) -> float | None:
    for name in names:
        found = number(_reading(entry.get(name)), name=name)
        if found is not None:
            return found
    return None


def _sensor(document: Json) -> Measured:
    value = document.get("Reading")
    unit = word(document.get("ReadingUnits")) or _UNIT_OF_TYPE.get(str(document.get("ReadingType")), "")
    kind = str(document.get("PhysicalContext"))
    return _measured(value, unit, document, is_fan=kind in ("Fan", "CoolingSubsystem", "Blower"))


_UNIT_OF_TYPE = {"Temperature": "Cel", "Power": "W", "Voltage": "V", "Rotational": "RPM"}
_UNITS: Mapping[str, tuple[str, float]] = {
    "cel": ("temperature_celsius", 1),
    "c": ("temperature_celsius", 1),
    "°c": ("temperature_celsius", 1),
    "celsius": ("temperature_celsius", 1),
    "w": ("power_watts", 1),
    "watts": ("power_watts", 1),
    "kw": ("power_watts", 1000),
    "mw": ("power_watts", 0.001),
    "v": ("voltage_volts", 1),
    "volts": ("voltage_volts", 1),
    "mv": ("voltage_volts", 0.001),
    "rpm": ("fan_revolutions_per_minute", 1),
    "{rev}/min": ("fan_revolutions_per_minute", 1),
    "rev/min": ("fan_revolutions_per_minute", 1),
}


def _measured(value: object, unit: str, document: Json, *, is_fan: bool) -> Measured:
    shown = unit.strip().lower()
    if is_fan and shown in ("%", "percent"):
        return {"fan_ratio": number(value, unit="%", name="Reading")}
    found = number(value, name="Reading")
    if is_fan and not shown and found is not None and found > 100:
        shown = "rpm"
    if is_fan and shown not in _UNITS:
        raise Unbelievable("unknown_unit", f"found {unit[:40]!r} for a fan, expected RPM or Percent")
    known = _UNITS.get(shown)
    if known is None or found is None:
        return {"temperature_limit_celsius": _limit(document)} if known and known[0] == "temperature_celsius" else {}
    measured: Measured = {known[0]: found * known[1]}
    if known[0] == "temperature_celsius":
        measured["temperature_limit_celsius"] = _limit(document)
        measured["inlet_temperature_celsius"] = _inlet(found, document)
    return measured


def _environment(document: Json) -> Measured:
    return {
        "temperature_celsius": _first(document, "TemperatureCelsius", "CurrentTemperatureCelsius"),
        "power_watts": _first(document, "PowerWatts", "ConsumedPowerWatt", "PowerConsumedWatts"),
        "voltage_volts": _first(document, "Voltage"),
    }


def _nothing(document: Json) -> Measured:
    return {}


def _capacity(document: Json) -> Measured:
    return {"power_capacity_watts": _first(document, "CapacityWatts")}


LISTS: Mapping[str, tuple[tuple[str, Callable[[Json], Measured]], ...]] = {
    "Thermal": (("Temperatures", _temperature), ("Fans", _fan)),
    "Power": (("PowerControl", _control), ("PowerSupplies", _supply), ("Voltages", _voltage)),
    "ThermalMetrics": (("TemperatureReadingsCelsius", _temperature),),
    "EnvironmentMetrics": (("FanSpeedsPercent", lambda entry: _fan({"SpeedPercent": entry})),),
}
ENTRY_KINDS = {"PowerSupplies": "psu", "Fans": "fan"}
OBJECTS: Mapping[str, tuple[str, Callable[[Json], Measured]]] = {
    "Sensor": ("sensor", _sensor),
    "Fan": ("fan", _fan),
    "PowerSupply": ("psu", _supply),
    "PowerSupplyMetrics": ("sensor", _supply),
    "PowerSubsystem": ("sensor", _capacity),
    "EnvironmentMetrics": ("sensor", _environment),
    "ProcessorMetrics": ("sensor", _environment),
    "Chassis": ("chassis", _nothing),
    "ComputerSystem": ("node", _nothing),
    "Processor": ("gpu_or_cpu", _nothing),
    "Memory": ("memory", _nothing),
    "Drive": ("disk", _nothing),
    "Storage": ("controller", _nothing),
    "StorageController": ("controller", _nothing),
    "NetworkAdapter": ("nic", _nothing),
    "NetworkPort": ("port", _nothing),
    "Port": ("port", _nothing),
    "PCIeDevice": ("controller", _nothing),
    "Switch": ("switch", _nothing),
    "Manager": ("bmc", _nothing),
    "SoftwareInventory": ("firmware", _nothing),
    "HpSmartStorageDiskDrive": ("disk", _environment),
    "HpSmartStorageArrayController": ("controller", _nothing),
    "HpSmartStorageStorageEnclosure": ("chassis", _nothing),
    "HpeSmartStorageDiskDrive": ("disk", _environment),
    "HpeSmartStorageArrayController": ("controller", _nothing),
    "HpeSmartStorageStorageEnclosure": ("chassis", _nothing),
}


def about_of(document: Json, kind: str) -> dict[str, Cell]:
    """Return the cells of inventory that the object states. Raises Unbelievable if a size or count cannot be."""
    summary = document.get("MemorySummary")
    processors = document.get("ProcessorSummary")
    gib = summary.get("TotalSystemMemoryGiB") if isinstance(summary, dict) else None
    mib = document.get("CapacityMiB") if kind == "memory" else None
    count = processors.get("LogicalProcessorCount") if isinstance(processors, dict) else None
    memory = size(gib, unit="gib", name="TotalSystemMemoryGiB") or size(mib, unit="mib", name="CapacityMiB")
    cpus = whole(count, name="LogicalProcessorCount")
    stated: dict[str, Cell] = {
        "model": _word(document, "Model") or (_word(document, "Name") if kind == "firmware" else None),
        "vendor": _word(document, "Manufacturer"),
        "part_number": _word(document, "PartNumber", "SKU", "SparePartNumber"),
        "serial": _word(document, "SerialNumber"),
        "uuid": _word(document, "UUID"),
        "firmware_version": _firmware(document, kind),
        "slot": _slot(document),
        "memory_bytes": memory,
        "capacity_bytes": size(document.get("CapacityBytes"), name="CapacityBytes") if kind == "disk" else None,
        "cpu_count": cpus,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _firmware(document: Json, kind: str) -> str | None:
    version = document.get("FirmwareVersion")
    current = version.get("Current") if isinstance(version, dict) else None
    if isinstance(current, dict):
        return word(current.get("VersionString"))
    named = _word(document, "FirmwareVersion", "FirmwareRevision", "Revision", "BiosVersion")
    named = named or (_word(document, "Version") if kind == "firmware" else None)
    controllers = document.get("Controllers")
    first = controllers[0] if isinstance(controllers, list) and controllers else None
    return named or (word(first.get("FirmwarePackageVersion")) if isinstance(first, dict) else None)


def _slot(document: Json) -> str | None:
    location = document.get("Location", document.get("PhysicalLocation"))
    part = location.get("PartLocation") if isinstance(location, dict) else None
    label = word(part.get("ServiceLabel")) if isinstance(part, dict) else None
    plain = word(location) if isinstance(location, str) else None
    return label or plain or _word(document, "DeviceLocator", "Socket", "PhysicalPortNumber")


def _word(document: Json, *names: str) -> str | None:
    return next((found for name in names if (found := word(document.get(name)))), None)
