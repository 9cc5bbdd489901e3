"""InfiniBand and RoCE ports and switches, as rows of fabric_telemetry, facility_telemetry and inventory.

A record is one port; in ibswinfo, one component of the switch. Data counters count units of four octets and become
bytes here. An old 32-bit traffic counter that is at its maximum has stopped counting and is left out; an error
counter at its maximum is kept, for it still says "at least so many". Not here: the layouts (`infiniband_layouts`).

A record is the switch itself, its temperature, one power supply or one fan. Not here: ports (`infiniband`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from ops_pipelines.lake.formats.infiniband_layouts import (
    DATA_COLUMNS,
    TRAFFIC_COLUMNS,
    Port,
    counted_ports,
    discovered_ports,
    port_cells,
    queried_ports,
    stated_ports,
)
from ops_pipelines.lake.formats.reading import Cell, Tally, Unbelievable, decode, in_bounds, number, word
from ops_pipelines.lake.quantities import Parsed, WrongKind

# -- what `ibswinfo` prints about a switch --


_MARK = re.compile(r"^(?:part number|serial number|PSID|GUID)\s*\|", re.MULTILINE)
_RULE = re.compile(r"[=-]{5,}")
_SUPPLY = re.compile(r"PSU(?P<number>\d{1,2}) status", re.ASCII)
_FAN = re.compile(r"fan#(?P<number>\d{1,3}) \(rpm\)", re.ASCII)
_HEALTH = {"ok": 1.0, "error": 0.0, "err": 0.0, "fail": 0.0, "failed": 0.0, "absent": None, "fatal": 0.0}


def is_ibswinfo(text: str) -> bool:
    """Say whether `text` is a report of ibswinfo."""
    return len(_MARK.findall(text)) >= 2


def add(tally: Tally, text: str, *, at: datetime, node: str | None, place: str = "") -> None:
    """Add the components of one switch to `tally`; `place` goes before each record's name."""
    about, components, title = _sections(text)
    guid = word(about.get("GUID", "")) or word(about.get("serial number", ""))
    switch = guid or "switch"
    key: dict[str, Cell] = {"node": node or "", "device": switch, "time": at}
    tally.put(
        "inventory",
        {
            **key,
            "kind": "switch",
            "model": word(about.get("product name", "")) or title,
            "vendor": "Mellanox" if title and "Mellanox" in title else None,
            "part_number": word(about.get("part number", "")),
            "serial": word(about.get("serial number", "")),
            "uuid": word(about.get("GUID", "")),
            "firmware_version": word(about.get("firmware version", "")),
            "source": tally.source,
        },
    )
    tally.accepted += 1
    for name, values in components.items():
        try:
            _component(tally, name, values, switch=key)
        except Unbelievable as why:
            shown = " ".join(f"{each}={value}" for each, value in values.items())
            tally.refuse(f"{place}{name}", why, text=shown, into="facility_telemetry")


def _sections(text: str) -> tuple[dict[str, str], dict[str, dict[str, str]], str | None]:
    about: dict[str, str] = {}
    components: dict[str, dict[str, str]] = {}
    title, current = None, about
    for line in text.split("\n"):
        if _RULE.fullmatch(line.strip()):
            current = about
            continue
        name, bar, value = (part.strip() for part in line.partition("|"))
        if not bar:
            title = title or word(line)
            continue
        supply, fan = _SUPPLY.fullmatch(name), _FAN.fullmatch(name)
        if supply:
            current = components.setdefault(f"PSU{supply['number']}", {"status": value})
        elif fan:
            current = components.setdefault(f"fan{fan['number']}", {"rpm": value})
        elif name == "temperature (C)":
            components.setdefault("temperature", {"celsius": value})
        else:
            current.setdefault(name, value)
    return about, components, title


def _component(tally: Tally, name: str, values: Mapping[str, str], *, switch: Mapping[str, Cell]) -> None:
    key = {**switch, "device": f"{switch['device']}/{name}"}
    cells = in_bounds(
        "facility_telemetry",
        {
            "temperature_celsius": number(values.get("celsius"), name="temperature"),
            "fan_revolutions_per_minute": number(values.get("rpm"), name="fan"),
            "power_watts": number(values.get("power (W)"), name="power"),
            "healthy": _healthy(values),
        },
    )
    is_supply = name.startswith("PSU")
    serial, part = word(values.get("S/N", "")), word(values.get("P/N", ""))
    if not cells and not serial:
        tally.ignored += 1
        return
    if cells:
        tally.put("facility_telemetry", {**key, **cells})
    if is_supply:
        state = word(values.get("status", ""))
        tally.put(
            "inventory",
            {**key, "kind": "psu", "part_number": part, "serial": serial, "state": state, "source": tally.source},
        )
    tally.accepted += 1


def _healthy(values: Mapping[str, str]) -> float | None:
    """Return 1 if every status of the component is OK, 0 if one is not, None if it states none."""
    found: list[float] = []
    for name in ("status", "DC power", "fan status"):
        shown = values.get(name, "").lower()
        if shown and shown not in _HEALTH:
            raise Unbelievable("bad_value", f"{name}: found {shown[:60]!r}, expected OK or ERROR")
        health = _HEALTH.get(shown)
        if health is not None:
            found.append(health)
    return min(found) if found else None


# -- InfiniBand and RoCE ports as rows of fabric_telemetry and inventory --


_SYSFS = re.compile(r"(?:^|/)(?P<device>[^/]+)/ports/(?P<port>\d{1,3})/(?P<name>.+)$", re.ASCII)
_SYSFS_DEVICE = re.compile(r"(?:^|/)(?P<device>[^/]+)/(?P<name>fw_ver|board_id|hca_type|node_guid|node_desc|hw_rev)$")
_HOST_FOLDER = re.compile(r"(?:^|.*/)(?P<node>[A-Za-z0-9][\w.-]{0,253})/(?:sys/)?class/infiniband/[^/]+$", re.ASCII)
"""A tree of several hosts has a folder for each."""
_COUNTER_FILE = re.compile(r"\s*-?\d{1,20}\s*", re.ASCII)
_FULL_32_BITS = float(2**32 - 1)
_FULL_64_BITS = float(2**64 - 1)
_HOST_DESCRIPTION = re.compile(
    r"(?P<node>[A-Za-z0-9][\w.-]*) +(?P<device>HCA-\d+|[a-z][a-z0-9_]*_(?:bond_?)?\d+|ib\d+)", re.ASCII
)
"""How a host names its adapter to the subnet manager: `worker20 mlx5_3`."""


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the ports of one output. Raises WrongKind if it is none of those that this module knows."""
    text = decode(body)
    tally = Tally(source=source)
    if is_ibswinfo(text):
        add(tally, text, at=at, node=node)
        return tally.parsed()
    ports = list(_ports(text, source=source))
    if not ports:
        raise WrongKind(_what_it_is(text))
    _add(tally, ports, at=at, node=node)
    return tally.parsed()


def parse_tree(files: Mapping[str, bytes], *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the ports of a tree of class/infiniband, or of a folder of outputs; files that are neither are refused.

    Raises WrongKind if no file of the tree is of this kind.
    """
    tally = Tally(source=source)
    ports = list(_sysfs_ports(files, root=source.partition("@")[0]))
    _add(tally, ports, at=at, node=node)
    if ports:
        return tally.parsed()
    for path, body in sorted(files.items()):
        text = decode(body)
        if is_ibswinfo(text):
            add(tally, text, at=at, node=node, place=f"{path}, ")
            continue
        found = list(_ports(text, source=path))
        if not found:
            tally.refuse(path, Unbelievable("wrong_kind", _what_it_is(text)), text=text[:200], into="fabric_telemetry")
        _add(tally, [replace(port, record=f"{path}, {port.record}") for port in found], at=at, node=node)
    if tally.accepted == 0 and all(each.reason == "wrong_kind" for each in tally.refused):
        raise WrongKind(f"found {len(files)} files, none of them a port of class/infiniband or output of a fabric tool")
    return tally.parsed()


def _ports(text: str, *, source: str) -> Iterator[Port]:
    yield from queried_ports(text, source=source)
    yield from stated_ports(text)
    yield from discovered_ports(text)
    yield from counted_ports(text)


def _what_it_is(text: str) -> str:
    start = text.strip()[:200]
    if not start:
        return "the file is empty; expected ports"
    if _COUNTER_FILE.fullmatch(text):
        return "found one number; a counter file of sysfs has its name from its folder: ingest the folder"
    return (
        f"found {start.splitlines()[0][:60]!r}, expected sysfs, perfquery, ibnetdiscover, ibswinfo, ibstat, ibstatus, "
        "ibv_devinfo, ibqueryerrors or rdma"
    )


def _sysfs_ports(files: Mapping[str, bytes], *, root: str) -> Iterable[Port]:
    """Yield the ports of a tree, by the folder that holds `ports/`: one below `root`, or `root` itself."""
    if any(path.startswith("ports/") for path in files):
        files = {f"{root}/{path}": body for path, body in files.items()}
    devices: dict[str, dict[str, str]] = {}
    ports: dict[tuple[str, str, int], dict[str, str]] = {}
    for path, body in sorted(files.items()):
        match = _SYSFS.search(path) or _SYSFS_DEVICE.search(path)
        if match is None:
            continue
        folder = path[: match.end("device")]
        values = (
            ports.setdefault((folder, match["device"], int(match["port"])), {})
            if "port" in match.re.groupindex
            else devices.setdefault(folder, {})
        )
        values.setdefault(match["name"].rsplit("/", 1)[-1].lower(), decode(body).strip())
    hosts = {folder: match["node"] for folder, _, _ in ports if (match := _HOST_FOLDER.fullmatch(folder))}
    is_of_many = len(set(hosts.values())) > 1
    for (folder, device, port), values in sorted(ports.items()):
        about = devices.get(folder, {})
        described = _HOST_DESCRIPTION.fullmatch(about.get("node_desc", "").strip())
        yield Port(
            record=f"{folder}/ports/{port}",
            text=" ".join(f"{name}={value}" for name, value in values.items())[:1000],
            device=f"{device}/{port}",
            node=described["node"] if described else (hosts.get(folder) if is_of_many else None),
            values=values,
            guid=word(about.get("node_guid")),
            model=word(about.get("hca_type")),
            part_number=word(about.get("board_id")),
            firmware_version=word(about.get("fw_ver")),
        )


def _add(tally: Tally, ports: Iterable[Port], *, at: datetime, node: str | None) -> None:
    for port in ports:
        try:
            _accept(tally, port, at=at, node=node)
        except Unbelievable as why:
            tally.refuse(port.record, why, text=port.text, into="fabric_telemetry")


def _accept(tally: Tally, port: Port, *, at: datetime, node: str | None) -> None:
    if port.broken is not None:
        raise port.broken
    described = _HOST_DESCRIPTION.fullmatch(port.description or "")
    owner = port.node or ("" if port.is_switch else node) or ""
    device = port.device
    if described and not port.is_switch:
        owner, device = described["node"], f"{described['device']}/{port.device.rsplit('/', 1)[-1]}"
    cells = port_cells(port.values)
    for column in TRAFFIC_COLUMNS:
        units = 4 if column in DATA_COLUMNS else 1
        if cells.get(column) == _FULL_32_BITS * units:
            cells[column] = None
    # All 64 bits set is how drivers say that they do not have a counter.
    for column, value in cells.items():
        if value in (_FULL_64_BITS, 4 * _FULL_64_BITS):
            cells[column] = None
    bounded = in_bounds("fabric_telemetry", cells)
    if not bounded:
        raise Unbelievable("port_unreadable", "found no state and no counter of this port")
    key: dict[str, Cell] = {"node": owner, "device": device, "time": at}
    if tally.has("inventory", key) and not port.adds:
        raise Unbelievable("duplicate_component", f"{device} is in this file twice")
    is_new = tally.put("fabric_telemetry", {**key, "link_layer": word(port.values.get("link_layer")), **bounded})
    if not is_new:
        raise Unbelievable("duplicate_component", f"{device} is in this file twice, with nothing new")
    tally.put(
        "inventory",
        {
            **key,
            "kind": "port",
            "model": port.model or port.description,
            "part_number": port.part_number,
            "uuid": port.guid,
            "firmware_version": port.firmware_version,
            "state": word(port.values.get("state")),
            "source": tally.source,
        },
    )
    tally.accepted += 1
