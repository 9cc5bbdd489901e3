"""What a BMC says over Redfish, as rows of facility_telemetry and inventory.

Here: what an answer is, and the objects in it, from DMTF's Thermal 1.0 to Sensor and EnvironmentMetrics and HPE's own.
Not here: which of their fields mean which column (`redfish_fields`); files, trees, and what two answers say of the same
thing (`redfish`).

A record is one sensor or component object: an entry of Thermal and Power, a Sensor, Fan, PowerSupply, Chassis, System,
Processor, Memory, Drive, controller, adapter, port, Manager or firmware item. An answer that holds none (a collection,
a schema, a service, settings) counts as one ignored record, as does an absent component, a sensor without reading,
status or limit, and a second description of one sensor (an alias: Sensors repeats Thermal). Not here: which field of an
object means which column (`redfish_components`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote

from ops_pipelines.lake.formats.reading import (
    BrokenJson,
    Cell,
    Tally,
    Unbelievable,
    decode,
    in_bounds,
    json_documents,
    word,
)
from ops_pipelines.lake.formats.redfish_fields import ENTRY_KINDS, LISTS, OBJECTS, Json, Measured, about_of
from ops_pipelines.lake.quantities import Parsed, WrongKind

# -- the objects of a Redfish answer that are sensors or components --


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
    """Type of the answer that it is in."""
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


# -- what a BMC says over Redfish --


_HINT = re.compile(r'"@odata\.|"/redfish/v1|"(?:Temperatures|PowerControl|PowerSupplies|ReadingCelsius)"')
_ABSENT_STATES = frozenset({"absent"})
_STATES = frozenset({"healthy", "enabled"})


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the components of one file. Raises WrongKind if it holds no Redfish."""
    text = decode(body)
    documents = list(_documents(text))
    if not any(isinstance(each, dict) and is_answer(each) for each in documents) and not (
        any(isinstance(each, BrokenJson) for each in documents) and text.lstrip()[:1] != "<" and _HINT.search(text)
    ):
        raise WrongKind(_what_it_is(text))
    return _parsed([("", each) for each in documents], source=source, at=at, node=node)


def parse_tree(files: Mapping[str, bytes], *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the components of a tree of answers. Raises WrongKind if no file of it is Redfish."""
    documents: list[tuple[str, object]] = []
    ignored = 0
    for path, body in sorted(files.items()):
        text = decode(body)
        if text.lstrip()[:1] not in ("{", "["):
            is_json = path.endswith(".json")
            why = BrokenJson(line=1, detail="found no JSON object", text=text[:200])
            documents += [(path, why)] if is_json and text.strip() else []
            documents += [(path, BrokenJson(line=1, detail="the file is empty", text=""))] if not text.strip() else []
            ignored += bool(text.strip()) and not is_json
            continue
        documents += [(path, each) for each in _documents(text)]
    if not any(isinstance(each, dict) and is_answer(each) for _, each in documents):
        raise WrongKind(f"found {len(files)} files, none of them an answer of Redfish")
    return _parsed(documents, source=source, at=at, node=node, ignored=ignored)


def _documents(text: str) -> Iterator[object]:
    """Yield the answers of a file: one, several, an array, or a map of paths to answers.

    One that is followed by what is no JSON is no answer either: only the BrokenJson is yielded.
    """
    documents = list(json_documents(text))
    if documents and isinstance(documents[-1], BrokenJson):
        documents = documents[-1:]
    for document in documents:
        if isinstance(document, list):
            yield from document
        elif isinstance(document, dict) and document and all(str(name).startswith("/redfish") for name in document):
            yield from document.values()
        else:
            yield document


def _what_it_is(text: str) -> str:
    start = text.strip()[:200]
    if not start:
        return "the file is empty; expected an answer of Redfish"
    if start.startswith("<"):
        return "found XML (a schema or an error page), expected JSON of Redfish"
    return f"found {start.splitlines()[0][:60]!r}, expected JSON with @odata fields"


@dataclass(slots=True, kw_only=True)
class _Tree:
    """What has been stated so far, to tell an alias from a second sensor."""

    tally: Tally
    node: str
    at: datetime
    said: dict[tuple[str, str, str], Component] = field(default_factory=dict)
    """(chassis, name or serial, column) -> what stated it first."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Device -> the device under which the same part is already."""


def _parsed(
    documents: Iterable[tuple[str, object]], *, source: str, at: datetime, node: str | None, ignored: int = 0
) -> Parsed:
    listed = list(documents)
    tally = Tally(source=source, ignored=ignored)
    tree = _Tree(tally=tally, node=node or _host_name(each for _, each in listed) or "", at=at)
    # Thermal and Power state limits and serials: what they say comes first, Sensors and metrics after.
    for path, document in sorted(listed, key=lambda each: (_rank(each[1]), each[0])):
        place = f"{path}, " if path else ""
        if isinstance(document, BrokenJson):
            why = Unbelievable("malformed_json", document.detail)
            tally.refuse(f"{place}line {document.line}", why, text=document.text, into="facility_telemetry")
        elif isinstance(document, dict) and _is_schema(document):
            tally.ignored += 1
        elif not isinstance(document, dict) or not is_answer(document):
            why = Unbelievable("not_an_answer", "found JSON without @odata fields, expected an answer of Redfish")
            tally.refuse(f"{place}document", why, text=str(document)[:1000], into="facility_telemetry")
        else:
            _add(tree, document, place=place)
    return tally.parsed()


def _is_schema(document: Json) -> bool:
    return any(isinstance(document.get(name), str | dict) for name in ("$schema", "$id", "definitions"))


def _rank(document: object) -> int:
    kind = type_of(document) if isinstance(document, dict) else ""
    return {"Thermal": 0, "Power": 0}.get(kind, 2 if kind.endswith("Metrics") else 1)


def _host_name(documents: Iterable[object]) -> str | None:
    """Return the name of the one host that the answers name; None if they name none or several."""
    names = {
        name
        for each in documents
        if isinstance(each, dict) and type_of(each) == "ComputerSystem"
        for name in [word(each.get("HostName"))]
        if name and name.lower() not in ("localhost", "localhost.localdomain")
    }
    return names.pop() if len(names) == 1 else None


def _add(tree: _Tree, document: Json, *, place: str) -> None:
    tally = tree.tally
    if "error" in document and isinstance(document["error"], dict) and "@odata.id" not in document:
        message = word(document["error"].get("message")) or "no message"
        why = Unbelievable("error_answer", f"the BMC answered with an error: {message[:200]}")
        tally.refuse(f"{place}error", why, text=str(document)[:1000], into="facility_telemetry")
        return
    found = 0
    for component in components(document):
        found += 1
        try:
            if component.broken is not None:
                raise component.broken
            if _accept(tree, component):
                tally.accepted += 1
            else:
                tally.ignored += 1
        except Unbelievable as why:
            record = f"{place}{component.pointer}"
            tally.refuse(record, why, text=component.text, into="facility_telemetry")
    if not found:
        tally.ignored += 1


def _accept(tree: _Tree, component: Component) -> bool:
    """Add the component's rows; say whether it stated anything that was not stated before."""
    if (component.state or "").lower() in _ABSENT_STATES:
        return False
    cells = in_bounds("facility_telemetry", component.cells())
    device = _first_name(tree, component, cells)
    key: dict[str, Cell] = {"node": tree.node, "device": device, "time": tree.at}
    is_new = bool(cells) and component.kind != "firmware" and tree.tally.put("facility_telemetry", {**key, **cells})
    if component.kind != "sensor" and component.about:
        row = {**key, "device": "" if component.kind == "node" and tree.node else device, **component.about}
        if not tree.tally.has("inventory", row):
            row |= {"kind": component.kind, "state": component.state, "source": tree.tally.source}
        is_new = tree.tally.put("inventory", row) or is_new
    return is_new


def _first_name(tree: _Tree, component: Component, cells: Mapping[str, Cell]) -> str:
    """Return the device under which another type of resource has described the same part, else the component's own.

    The same: one serial number, or one name in one chassis for everything that it measures.
    """
    if component.device in tree.aliases:
        return tree.aliases[component.device]
    serial = component.about.get("serial")
    readings = cells.keys() - _STATES - {"temperature_limit_celsius"} or cells.keys() - _STATES
    marks = [(component.chassis, component.plain_name, column) for column in sorted(readings)]
    if isinstance(serial, str) and component.kind in ("psu", "fan"):
        marks = [("", serial, component.kind)]
    known = [tree.said.setdefault(mark, component) for mark in marks]
    if not known or any(first.resource == component.resource for first in known):
        return component.device
    tree.aliases[component.device] = known[0].device
    return known[0].device
