"""What `smartctl --json` prints, as rows of storage_telemetry and inventory: ATA, SCSI, NVMe, behind RAID controllers.

A record is one device. A file may hold one document, many in a row, or arrays of them; the devices of a scan are
ignored, for it measures nothing. Refused: a device that smartctl could not open or that slept (`device_not_read`, with
smartctl's own words), a value that is no number or cannot be.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from ops_pipelines.lake.formats.reading import (
    BrokenJson,
    Cell,
    Tally,
    Unbelievable,
    at_epoch,
    decode,
    in_bounds,
    json_documents,
    number,
    size,
    word,
)
from ops_pipelines.lake.quantities import Parsed, WrongKind

_OURS = frozenset({"smartctl", "json_format_version", "smart_status", "nvme_smart_health_information_log"})
_HINT = re.compile(
    r'"(?:smartctl|json_format_version|smart_status|ata_smart_attributes|nvme_smart_health_information_log)"'
)
_NOT_OPENED = 0b11
"""Exit status: the command line did not parse, or the device did not open (or slept)."""
_REMAINING = frozenset(
    {
        "SSD_Life_Left",
        "Percent_Lifetime_Remain",
        "Percent_Life_Remaining",
        "Remaining_Lifetime_Perc",
        "Media_Wearout_Indicator",
        "Wear_Leveling_Count",
    }
)
"""ATA attributes whose normalised value counts down from 100 as the endurance is used."""
_BEHIND = re.compile(r"\[([a-z0-9_]*disk_[0-9_]+)\]")

Json = Mapping[str, object]


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the devices of `body`. Raises WrongKind if it is not smartctl's JSON."""
    text = decode(body)
    documents = [each for document in json_documents(text) for each in _flat(document)]
    if not any(_is_ours(each, text) for each in documents):
        raise WrongKind(_what_it_is(text))
    tally = Tally(source=source)
    for place, document in enumerate(documents, start=1):
        record = f"document {place}"
        try:
            if isinstance(document, BrokenJson):
                record = f"line {document.line}"
                raise Unbelievable("malformed_json", document.detail)
            if not isinstance(document, dict) or not _OURS & document.keys():
                raise Unbelievable("not_a_device", "found JSON without smartctl's fields, expected one device")
            if isinstance(document.get("devices"), list) and "device" not in document:
                tally.ignored += len(document["devices"])
                continue
            _accept(tally, document, at=at, node=node)
        except Unbelievable as why:
            shown = document.text if isinstance(document, BrokenJson) else str(document)[:1000]
            tally.refuse(record, why, text=shown, into="storage_telemetry")
    return tally.parsed()


def _flat(document: object) -> Iterator[object]:
    if isinstance(document, list):
        for each in document:
            yield from _flat(each) if isinstance(each, list) else (each,)
    else:
        yield document


def _is_ours(document: object, text: str) -> bool:
    if isinstance(document, BrokenJson):
        return text.lstrip()[:1] in ("{", "[") and _HINT.search(text) is not None
    return isinstance(document, dict) and bool(_OURS & document.keys())


def _what_it_is(text: str) -> str:
    start = text.lstrip()[:200]
    if not start:
        return "the file is empty; expected JSON of smartctl"
    if start.startswith("smartctl "):
        return "found the text that smartctl prints for people; use smartctl --json"
    return f"found {start.splitlines()[0][:60]!r}, expected JSON of smartctl --json"


def _at(document: object, *path: str) -> object:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _accept(tally: Tally, document: Json, *, at: datetime, node: str | None) -> None:
    serial = word(document.get("serial_number"))
    device = _device(document) or serial
    if device is None:
        raise Unbelievable("no_device_named", _said(document) or "found neither device.name nor serial_number")
    status = number(_at(document, "smartctl", "exit_status"), name="exit_status") or 0
    if not 0 <= status <= 255:
        raise Unbelievable("out_of_range", f"exit_status: found {status:g}, expected 0 to 255")
    measured = _cells(document)
    model = word(document.get("model_name")) or word(document.get("scsi_model_name")) or word(document.get("product"))
    if int(status) & _NOT_OPENED or (not measured and not model and not serial):
        raise Unbelievable("device_not_read", _said(document) or f"smartctl ended with status {status:g} and no data")
    cells = in_bounds("storage_telemetry", measured)
    time = at_epoch(_at(document, "local_time", "time_t")) or at
    key: dict[str, Cell] = {"node": node or "", "device": device, "time": time}
    if tally.has("inventory", key):
        raise Unbelievable("duplicate_device", f"{device} is in this file twice with the same time")
    capacity = size(_at(document, "user_capacity", "bytes"), name="user_capacity")
    if capacity is None:
        capacity = size(document.get("nvme_total_capacity"), name="nvme_total_capacity")
    firmware = next(
        (found for name in ("firmware_version", "scsi_revision", "revision") if (found := word(document.get(name)))),
        None,
    )
    passed = cells.get("healthy")
    if cells:
        tally.put("storage_telemetry", {**key, **cells})
    tally.put(
        "inventory",
        {
            **key,
            "kind": "disk",
            "model": model,
            "vendor": word(document.get("vendor")) or word(document.get("scsi_vendor")),
            "serial": serial,
            "uuid": _world_wide_name(document),
            "firmware_version": firmware,
            "capacity_bytes": capacity,
            "state": None if passed is None else "passed" if passed else "failed",
            "source": tally.source,
        },
    )
    tally.accepted += 1


def _device(document: Json) -> str | None:
    """Return `sda`, `nvme0`, `bus/0/megaraid_disk_00`: the kernel's name, and which disk behind a controller."""
    name = word(_at(document, "device", "name"))
    if name is None:
        return None
    short = name.removeprefix("/dev/")
    behind = _BEHIND.search(word(_at(document, "device", "info_name")) or "")
    return f"{short}/{behind[1]}" if behind else short


def _said(document: Json) -> str:
    messages = _at(document, "smartctl", "messages")
    shown = [word(_at(message, "string")) for message in messages] if isinstance(messages, list) else []
    return "; ".join(message for message in shown if message)


def _world_wide_name(document: Json) -> str | None:
    parts = [_at(document, "wwn", name) for name in ("naa", "oui", "id")]
    if not all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in parts):
        return word(document.get("logical_unit_id"))
    return "0x" + "".join(f"{part:0{width}x}" for part, width in zip(parts, (1, 6, 9), strict=True))


def _cells(document: Json) -> dict[str, float | None]:
    log = document.get("nvme_smart_health_information_log")
    attributes = _attributes(document)
    media = _first(_at(log, "media_errors"), attributes.raw(187))
    if media is None:
        media = _added(document, "scsi_error_counter_log", "total_uncorrected_errors")
    return {
        "temperature_celsius": _temperature(document),
        "wear_ratio": _wear(document, log, attributes),
        "spare_ratio": _percent(
            _first(_at(log, "available_spare"), _at(document, "spare_available", "current_percent"))
        ),
        "media_error_count": media,
        "critical_warning": number(_at(log, "critical_warning"), name="critical_warning"),
        "healthy": number(_at(document, "smart_status", "passed"), name="smart_status"),
        "power_on_seconds": _power_on(document, log),
        "power_cycle_count": _first(document.get("power_cycle_count"), _at(log, "power_cycles"), attributes.raw(12)),
        "reallocated_sector_count": _first(attributes.raw(5), document.get("scsi_grown_defect_list")),
        "pending_sector_count": _first(attributes.raw(197), _at(document, "scsi_pending_defects", "count")),
    }


class _Attributes:
    """The ATA attribute table by id."""

    def __init__(self, table: object) -> None:
        rows = [row for row in table if isinstance(row, dict)] if isinstance(table, list) else []
        self._by_id = {row["id"]: row for row in rows if isinstance(row.get("id"), int)}
        self.rows = rows

    def raw(self, identity: int) -> float | None:
        """Return the raw value: the first number of its text (`37 (Min/Max 24/41)`), else the packed number."""
        row = self._by_id.get(identity)
        if row is None:
            return None
        shown = word(_at(row, "raw", "string"))
        leading = re.match(r"\d{1,18}(?=$|[\s(])", shown, re.ASCII) if shown else None
        return float(leading[0]) if leading else number(_at(row, "raw", "value"), name=f"attribute {identity}")


def _attributes(document: Json) -> _Attributes:
    return _Attributes(_at(document, "ata_smart_attributes", "table"))


def _temperature(document: Json) -> float | None:
    current = number(_at(document, "temperature", "current"), name="temperature")
    # A volume of a RAID controller has no sensor, and reports 0 of at most 0 degrees.
    return None if current == 0 and _at(document, "temperature", "drive_trip") == 0 else current


def _wear(document: Json, log: object, attributes: _Attributes) -> float | None:
    used = _first(
        _at(log, "percentage_used"),
        _at(document, "endurance_used", "current_percent"),
        document.get("scsi_percentage_used_endurance_indicator"),
    )
    if used is not None:
        return used / 100
    for row in attributes.rows:
        left = number(row.get("value"), name="attribute") if str(row.get("name")) in _REMAINING else None
        if left is not None and 0 <= left <= 100:
            return (100 - left) / 100
    return None


def _power_on(document: Json, log: object) -> float | None:
    hours = _first(_at(document, "power_on_time", "hours"), _at(log, "power_on_hours"))
    minutes = number(_at(document, "power_on_time", "minutes"), name="power_on_time") or 0
    return None if hours is None else hours * 3600 + minutes * 60


def _percent(value: float | None) -> float | None:
    return None if value is None else value / 100


def _first(*values: object) -> float | None:
    for value in values:
        found = number(value)
        if found is not None:
            return found
    return None


def _added(document: Json, log: str, name: str) -> float | None:
    kinds = _at(document, log)
    counts = [_first(_at(kind, name)) for kind in kinds.values()] if isinstance(kinds, dict) else []
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
