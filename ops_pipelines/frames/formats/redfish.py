"""What a BMC says over Redfish, as rows of facility_telemetry and inventory: single answers, and trees of them.

A record is one sensor or component object: an entry of Thermal and Power, a Sensor, Fan, PowerSupply, Chassis, System,
Processor, Memory, Drive, controller, adapter, port, Manager or firmware item. An answer that holds none (a collection,
a schema, a service, settings) counts as one ignored record, as does an absent component, a sensor without reading,
status or limit, and a second description of one sensor (an alias: Sensors repeats Thermal). Not here: which field of an
object means which column (`redfish_components`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ops_pipelines.frames.formats.reading import BrokenJson, Cell, Unbelievable, decode, in_bounds, json_documents, word
from ops_pipelines.frames.formats.redfish_components import Component, components, is_answer, type_of
from ops_pipelines.frames.formats.redfish_fields import Json
from ops_pipelines.frames.formats.tally import Tally
from ops_pipelines.frames.parsed import Parsed, WrongKind

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
    """What has been said so far, to tell an alias from a second sensor."""

    tally: Tally
    node: str
    at: datetime
    said: dict[tuple[str, str, str], Component] = field(default_factory=dict)
    """(chassis, name or serial, column) -> what said it first."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Device -> the device under which the same part stands already."""


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
    """Add the component's rows; say whether it said anything that was not said before."""
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
