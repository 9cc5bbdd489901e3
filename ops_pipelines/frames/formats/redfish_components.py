"""The objects of a Redfish answer that are sensors or components, with their names and places.

Here: what an answer is, and the objects in it, from DMTF's Thermal 1.0 to Sensor and EnvironmentMetrics and HPE's own.
Not here: which of their fields mean which column (`redfish_fields`); files, trees, and what two answers say of the same
thing (`redfish`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from ops_pipelines.frames.formats.reading import Cell, Unbelievable, word
from ops_pipelines.frames.formats.redfish_fields import ENTRY_KINDS, LISTS, OBJECTS, Json, Measured, about_of

_TYPE = re.compile(r"#?(?P<name>[A-Za-z]\w*)(?:\..*)?")
_MARKS = ("@odata.id", "@odata.type", "@odata.context", "Members", "@Message.ExtendedInfo")
_FILLERS = frozenset(
    {
        "Sensors",
        "ThermalSubsystem",
        "Fans",
        "PowerSubsystem",
        "PowerSupplies",
        "Metrics",
        "ThermalMetrics",
        "EnvironmentMetrics",
        "ProcessorMetrics",
        "NetworkAdapters",
        "Thermal",
        "Power",
    }
)
"""Words of a path that say nothing beside the names between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One sensor or component object."""

    pointer: str
    text: str
    resource: str
    """Type of the answer that it stands in."""
    kind: str
    """As in inventory; `sensor` for what is no part."""
    chassis: str
    name: str
    device: str
    measure: Callable[[], Measured] = dict
    about: Mapping[str, Cell] = field(default_factory=dict)
    state: str | None = None
    health: str | None = None
    broken: Unbelievable | None = None

    @property
    def plain_name(self) -> str:
        """The name without case, blanks and the board that every sensor is on."""
        return re.sub(r"^systemboard|[\s_]+", "", re.sub(r"\s+", "", self.name.lower()))

    def cells(self) -> Measured:
        """Return what it measures, and how it is. Raises Unbelievable if a value is no number."""
        healthy = {"ok": 1.0, "warning": 0.0, "critical": 0.0}.get((self.health or "").lower())
        enabled = None if self.state is None else float(self.state.lower() == "enabled")
        return {**self.measure(), "healthy": healthy, "enabled": enabled}


def type_of(document: Json) -> str:
    """Return `Thermal` of `#Thermal.v1_7_1.Thermal`; HPE's `Type`, or the content, where that is missing."""
    for name in ("@odata.type", "Type"):
        stated = document.get(name)
        match = _TYPE.match(stated) if isinstance(stated, str) else None
        if match:
            return (
                {"PowerMetrics": "Power", "ThermalMetrics": "Thermal"}.get(match["name"], match["name"])
                if (name == "Type")
                else match["name"]
            )
    if any(isinstance(document.get(name), list) for name in ("Temperatures", "Fans")):
        return "Thermal"
    return "Power" if any(isinstance(document.get(name), list) for name in ("PowerControl", "PowerSupplies")) else ""


def is_answer(document: Json) -> bool:
    """Say whether a JSON object is an answer of Redfish: an object, a collection or an error."""
    error = document.get("error")
    is_error = isinstance(error, dict) and ("@Message.ExtendedInfo" in error or "message" in error)
    has_link = any(isinstance(value, str) and value.startswith("/redfish/v1") for value in document.values())
    return is_error or has_link or any(mark in document for mark in _MARKS) or type_of(document) in ("Thermal", "Power")


def components(document: Json) -> Iterator[Component]:
    """Yield the sensors and components of one answer; none for an answer that holds none."""
    members = document.get("Members")
    if isinstance(members, list):
        for member in members:
            if isinstance(member, dict) and len(member) > 1:
                yield from components(member)
        return
    if _path(document).endswith("/Settings"):
        return
    resource = type_of(document)
    if resource in LISTS:
        for name, read in LISTS[resource]:
            yield from _entries(document, resource, name, read)
    reader = OBJECTS.get(resource)
    if reader:
        yield _component(document, resource, path=_path(document), kind=reader[0], read=reader[1], name=None)


def _path(document: Json) -> str:
    stated = document.get("@odata.id")
    if not isinstance(stated, str):
        links = document.get("links", document.get("Links"))
        itself = links.get("self") if isinstance(links, dict) else None
        stated = itself.get("href") if isinstance(itself, dict) else None
    return stated.rstrip("/") if isinstance(stated, str) else ""


def _chassis(path: str) -> str:
    match = re.search(r"/Chassis/([^/#]+)", path)
    return unquote(match[1]) if match else ""


def device_of(path: str) -> str:
    """Return the name of a component by its path: `Chassis` and words that say nothing are left out."""
    inside = path.split("/redfish/v1/", 1)[-1].strip("/")
    parts = [unquote(part) for part in inside.split("/") if part]
    if parts[:1] == ["Chassis"]:
        parts = parts[1:2] + [part for part in parts[2:] if part not in _FILLERS]
    elif parts and parts[-1] in _FILLERS:
        parts = parts[:-1]
    return word("/".join(parts)) or ""


def _component(
    document: Json, resource: str, *, path: str, kind: str, read: "Callable[[Json], Measured]", name: str | None
) -> Component:
    status = document.get("Status")
    states = status if isinstance(status, dict) else {}
    shown = name or word(document.get("Name")) or word(document.get("Id")) or ""
    device = device_of(path) or word(document.get("Id")) or shown or resource
    if kind == "gpu_or_cpu":
        kind = {"GPU": "gpu", "CPU": "cpu"}.get(str(document.get("ProcessorType")), "cpu")
    about: dict[str, Cell] = {}
    broken = None
    try:
        about = about_of(document, kind)
    except Unbelievable as why:
        broken = why
    return Component(
        pointer=path or shown or resource,
        text=str(document)[:1000],
        resource=resource,
        kind=kind,
        chassis=_chassis(path),
        name=shown,
        device=device,
        measure=lambda: read(document),
        about=about,
        broken=broken,
        state=word(states.get("State")),
        health=word(states.get("Health")),
    )


def _entries(document: Json, resource: str, name: str, read: "Callable[[Json], Measured]") -> Iterator[Component]:
    """Yield the entries of a list in Thermal, Power or metrics; the sensor's name, not its place, names the device."""
    path = _path(document)
    entries = document.get(name)
    if not isinstance(entries, list):
        return
    listed = [entry for entry in entries if isinstance(entry, dict)]
    names = [_entry_name(entry) for entry in listed]
    for index, entry in enumerate(listed):
        own = names[index] or str(index)
        bay = _bay(entry) or str(index)
        label = f"{own} #{bay}" if names.count(names[index]) > 1 else own
        parent = device_of(path) or resource
        source = entry.get("DataSourceUri")
        device = device_of(source) if isinstance(source, str) and source else f"{parent}/{label}"
        if path and not isinstance(source, str) and not _chassis(path):
            device = f"{parent}/{label}"
        made = _component(entry, resource, path=path, kind=ENTRY_KINDS.get(name, "sensor"), read=read, name=label)
        pointer = f"{path}#/{name}/{index}"
        yield Component(
            pointer=pointer,
            text=made.text,
            resource=resource,
            kind=made.kind,
            chassis=_chassis(path),
            name=label,
            device=word(device) or label,
            measure=made.measure,
            about=made.about,
            broken=made.broken,
            state=made.state,
            health=made.health,
        )
    for index in range(len(entries) - len(listed)):
        why = Unbelievable("bad_value", f"{name}: found an entry that is no object")
        yield Component(
            pointer=f"{path}#/{name} (no object {index})",
            text=name,
            resource=resource,
            kind="sensor",
            chassis="",
            name="",
            device="",
            broken=why,
        )


def _entry_name(entry: Json) -> str:
    for name in ("Name", "FanName", "DeviceName", "MemberId"):
        found = word(entry.get(name))
        if found:
            return found
    return ""


def _bay(entry: Json) -> str | None:
    oem = entry.get("Oem")
    for vendor in oem.values() if isinstance(oem, dict) else ():
        bay = word(vendor.get("BayNumber")) if isinstance(vendor, dict) else None
        if bay:
            return bay
    return word(entry.get("MemberId"))
