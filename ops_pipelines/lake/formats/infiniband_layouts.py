"""The layouts of fabric tools' outputs, each taken apart into ports; and what each tool calls the columns of a port.

Here: perfquery, ibstat, ibstatus, ibv_devinfo, `rdma link`, `rdma statistic`, both forms of ibnetdiscover; names, their
words for states and rates. Not here: the sysfs tree and what is believed (`infiniband`). A name is compared in lower
case without underscores, so that `PortXmitData` and `port_xmit_data` are one.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ops_pipelines.lake.formats.reading import BrokenJson, Unbelievable, is_absent, json_documents, word
from ops_pipelines.lake.formats.reading import number as read_number

_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "receive_bytes": ("portrcvdata64", "portrcvdata"),
    "transmit_bytes": ("portxmitdata64", "portxmitdata"),
    "receive_packet_count": ("portrcvpackets64", "portrcvpackets", "portrcvpkts", "rxpkts"),
    "transmit_packet_count": ("portxmitpackets64", "portxmitpackets", "portxmitpkts", "txpkts"),
    "link_downed_count": ("linkdowned", "linkdownedcounter"),
    "link_error_recovery_count": ("linkerrorrecovery", "linkerrorrecoverycounter"),
    "symbol_error_count": ("symbolerror", "symbolerrorcounter"),
    "receive_error_count": ("portrcverrors",),
    "receive_remote_physical_error_count": ("portrcvremotephysicalerrors",),
    "receive_switch_relay_error_count": ("portrcvswitchrelayerrors",),
    "transmit_discard_count": ("portxmitdiscards",),
    "transmit_wait_count": ("portxmitwait",),
    "local_integrity_error_count": ("locallinkintegrityerrors",),
    "buffer_overrun_count": ("excessivebufferoverrunerrors",),
    "vl15_dropped_count": ("vl15dropped",),
    "receive_constraint_error_count": ("portrcvconstrainterrors",),
    "transmit_constraint_error_count": ("portxmitconstrainterrors",),
    "out_of_sequence_count": ("outofsequence", "rxoutofsequence"),
    "packet_sequence_error_count": ("packetseqerr", "seqerrnaksrcvd"),
    "ack_timeout_count": ("localacktimeouterr",),
    "cnp_sent_count": ("npcnpsent", "cnpsent", "txcnppkts"),
    "cnp_handled_count": ("rpcnphandled", "cnphandled", "rxcnppkts"),
    "out_of_buffer_count": ("outofbuffer",),
    "receive_local_physical_error_count": ("portlocalphysicalerrors",),
    "receive_malformed_packet_count": ("portmalformedpkterrors",),
    "receive_buffer_overrun_count": ("portbufferoverrunerrors",),
    "receive_dlid_mapping_error_count": ("portdlidmappingerrors",),
    "receive_vl_mapping_error_count": ("portvlmappingerrors",),
    "receive_looping_error_count": ("portloopingerrors",),
}
DATA_COLUMNS = ("receive_bytes", "transmit_bytes")
"""Counted in units of four octets."""
TRAFFIC_COLUMNS = (*DATA_COLUMNS, "receive_packet_count", "transmit_packet_count")
_OCTETS: Mapping[str, tuple[str, ...]] = {"receive_bytes": ("rxbytes",), "transmit_bytes": ("txbytes",)}
"""Of adapters that count octets: EFA, irdma."""

_STATES = {
    "nop": 0,
    "down": 1,
    "init": 2,
    "initializing": 2,
    "initialize": 2,
    "armed": 3,
    "active": 4,
    "activedefer": 5,
}
_PHYSICAL = {
    "nochange": 0,
    "sleep": 1,
    "polling": 2,
    "disabled": 3,
    "portconfigurationtraining": 4,
    "linkup": 5,
    "linkerrorrecovery": 6,
    "phytest": 7,
    "phy_test": 7,
}
LANE_GIGABITS: Mapping[str, float] = {
    "SDR": 2.5,
    "DDR": 5,
    "QDR": 10,
    "FDR10": 10,
    "FDR": 14,
    "EDR": 25,
    "HDR": 50,
    "NDR": 100,
    "XDR": 200,
}
"""Nominal rate of one lane, as sysfs rounds it."""
_RATE = re.compile(r"(?P<gigabits>\d{1,6}(?:\.\d{1,4})?)(?:\s*Gb/sec)?(?:\s*\(.*\))?", re.ASCII | re.IGNORECASE)
_SHOUTED = re.compile(r"[A-Z_]{1,30} \((?P<number>\d)\)", re.ASCII)
_WORDED = re.compile(r"(?:(?P<number>\d{1,3})\s*:\s*)?(?P<word>[A-Za-z_ ]*)", re.ASCII)


def port_cells(values: Mapping[str, str]) -> dict[str, float | None]:
    """Return the cells of one port. Raises Unbelievable if a value is no number or no known state."""
    plain = {name.lower().replace("_", ""): value for name, value in values.items()}
    cells = {column: _counter(plain, names, column=column) for column, names in _COUNTERS.items()}
    for column in DATA_COLUMNS:
        words = cells[column]
        cells[column] = _counter(plain, _OCTETS[column], column=column) if words is None else words * 4
    cells["link_state"] = _state(plain.get("state"), _STATES, name="state")
    physical = plain.get("physstate", plain.get("physicalstate", plain.get("physical state")))
    cells["physical_state"] = _state(physical, _PHYSICAL, name="physical state")
    cells["rate_bits_per_second"] = _bits_per_second(plain.get("rate"))
    return cells


def _counter(values: Mapping[str, str], names: tuple[str, ...], *, column: str) -> float | None:
    for name in names:
        value = values.get(name, "")
        if is_absent(value):
            continue
        found = read_number(value, name=column)
        if found is not None and math.isfinite(found) and not found.is_integer():
            raise Unbelievable("bad_value", f"{column}: found {found:g}, expected a whole number")
        return found
    return None


def _state(text: str | None, words: Mapping[str, int], *, name: str) -> float | None:
    if text is None or is_absent(text):
        return None
    # ibv_devinfo: PORT_ACTIVE (4), LINK_UP (5).
    shouted = _SHOUTED.fullmatch(text.strip())
    if shouted:
        return float(shouted["number"])
    match = _WORDED.fullmatch(text.strip())
    if match and match["number"]:
        return float(match["number"])
    found = words.get("".join(match["word"].lower().replace("_", "").split())) if match else None
    if found is None:
        raise Unbelievable("bad_value", f"{name}: found {text[:60]!r}, expected one of {', '.join(words)}")
    return float(found)


def _bits_per_second(text: str | None) -> float | None:
    if text is None or is_absent(text):
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise Unbelievable("bad_value", f"rate: found {text[:60]!r}, expected as 400 Gb/sec (4X NDR)")
    return float(match["gigabits"]) * 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """What one output says about one port."""

    record: str
    text: str
    device: str
    """Adapter or GUID or LID, a slash, the port's number."""
    values: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    description: str | None = None
    """How the device describes itself to the subnet manager."""
    is_switch: bool = False
    guid: str | None = None
    model: str | None = None
    part_number: str | None = None
    firmware_version: str | None = None
    adds: bool = False
    """It may add to what the file stated of the same port: perfquery prints several sets of counters for one."""
    broken: Unbelievable | None = None


_QUERY_HEADING = re.compile(
    r"^#\s*(?P<set>[\w ]*?)\s*counters: Lid (?P<lid>\d{1,6}) port (?P<port>\d{1,3})(?P<rest>.*)$",
    re.ASCII | re.IGNORECASE,
)
_QUERY_LINE = re.compile(r"(?P<name>[A-Za-z]\w*):\.*\s*(?P<value>.*)", re.ASCII)
_GUID_IN_NAME = re.compile(r"(?:^|[/_-])(0x[0-9a-fA-F]{16})(?=[-_.]|$)")


def queried_ports(text: str, *, source: str) -> Iterator[Port]:
    """Yield the ports of perfquery. It names the port by LID; a GUID in the file's name is the better name."""
    guid = _GUID_IN_NAME.search(source)
    found: tuple[re.Match[str], int, dict[str, str], list[str]] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        heading = _QUERY_HEADING.match(line.strip())
        if heading:
            if found:
                yield _queried(*found, guid=guid[1] if guid else None)
            found = (heading, number, {}, [])
        elif found and line.strip() and not line.startswith("#"):
            match = _QUERY_LINE.fullmatch(line.strip())
            if match:
                found[2].setdefault(match["name"], match["value"])
            else:
                found[3].append(line)
    if found:
        yield _queried(*found, guid=guid[1] if guid else None)


def _queried(
    heading: re.Match[str], line: int, values: Mapping[str, str], strange: list[str], *, guid: str | None
) -> Port:
    why = Unbelievable("malformed_line", f"found {strange[0][:60]!r}, expected NAME:...VALUE") if strange else None
    return Port(
        record=f"port {heading['port']}, line {line}",
        text=f"{heading[0]} {' '.join(f'{name}={value}' for name, value in values.items())}",
        device=f"{guid or 'lid' + heading['lid']}/{heading['port']}",
        values=values,
        guid=guid,
        adds=True,
        broken=why,
    )


_STAT_ADAPTER = re.compile(r"^(?:CA '(?P<quoted>[^']{1,100})'|hca_id:\s*(?P<bare>\S{1,100}))\s*$")
_STAT_PORT = re.compile(r"^\s+(?:Port (?P<port>\d{1,3}):|port:\s*(?P<number>\d{1,3}))\s*$", re.ASCII)
_STATUS_PORT = re.compile(r"^Infiniband device '(?P<device>[^']{1,100})' port (?P<port>\d{1,3}) status:\s*$", re.ASCII)
_STATED = re.compile(r"^\s+(?P<name>[A-Za-z_][\w ]*?)\s*:\s*(?P<value>.*)$", re.ASCII)
_RDMA = re.compile(
    r"^(?:\d+/\d+: |\d+: )?(?:link )?(?P<device>[\w.-]{1,100})/(?P<port>\d{1,3}):? (?P<rest>(?:state |\w+ \d).*)$",
    re.ASCII,
)


def stated_ports(text: str) -> Iterator[Port]:
    """Yield the ports of ibstat, ibstatus, ibv_devinfo, `rdma link` and `rdma statistic`."""
    about: dict[str, str] = {}
    device, found = "", None
    for number, line in enumerate(text.split("\n"), start=1):
        adapter, status = _STAT_ADAPTER.match(line), _STATUS_PORT.match(line)
        port = status or (_STAT_PORT.match(line) if device else None)
        if adapter or port:
            if found:
                yield _stated(*found, about=about)
            found = None
            if adapter:
                device, about = adapter["quoted"] or adapter["bare"], {}
            elif port:
                about = {} if status else about
                of_adapter = port.groupdict().get("number") or port["port"]
                found = (f"{status['device'] if status else device}/{of_adapter}", number, dict[str, str]())
            continue
        match = _STATED.match(line)
        if match and (found or device):
            (found[2] if found else about)["_".join(match["name"].lower().split())] = match["value"].strip()
            continue
        rdma = _RDMA.match(line.strip())
        if rdma:
            words = rdma["rest"].split()
            values = dict(zip(words[::2], words[1::2], strict=False))
            yield _stated(f"{rdma['device']}/{rdma['port']}", number, values, about={})
    if found:
        yield _stated(*found, about=about)


def _stated(device: str, line: int, values: Mapping[str, str], *, about: Mapping[str, str]) -> Port:
    return Port(
        record=f"port {device}, line {line}",
        text=" ".join(f"{name}={value}" for name, value in values.items()),
        device=device,
        values=values,
        guid=word(values.get("port_guid", about.get("node_guid", ""))),
        model=word(about.get("ca_type", about.get("hca_type", ""))),
        part_number=word(about.get("board_id", "")),
        firmware_version=word(about.get("firmware_version", about.get("fw_ver", ""))),
    )


_LINK = re.compile(
    r"^(?P<kind>CA|SW|RT|Ca|Sw)\s+(?P<lid>\d{1,6})\s+(?P<port>\d{1,3})\s+(?P<guid>0x[0-9a-fA-F]{1,16})\s+"
    r"(?P<width>\d{1,2}x)\s+(?P<speed>\S{1,10})(?P<rest>.*)$",
    re.ASCII,
)
_LINK_START = re.compile(r"^(?:(?:CA|SW|RT)\s+\d+\s+\d+\s+0x|\[\d{1,3}\])")
_PEER = re.compile(r"\s+-\s+(?:CA|SW|RT|Ca|Sw)\s.*?\(\s*(?:'(?P<quoted>[^']*)'|(?P<bare>.*?))\s+-\s.*\)\s*$", re.ASCII)
_TOPOLOGY_DEVICE = re.compile(
    r'^(?P<kind>Switch|Ca|Rt)\s+\d{1,4}\s+"[A-Z]-(?P<guid>[0-9a-fA-F]{1,16})"\s*#\s*"(?P<name>[^"]*)".*$', re.ASCII
)
_TOPOLOGY_PORT = re.compile(
    r'^\[(?P<port>\d{1,3})\](?:\[ext \d+\])?(?:\([0-9a-fA-F]*\))?\s+"[A-Z]-[0-9a-fA-F]{1,16}"\[\d{1,3}\].*?'
    r"(?:(?P<width>\d{1,2}x)(?P<speed>[A-Z]{3}(?:10)?))?\s*$",
    re.ASCII,
)


def discovered_ports(text: str) -> Iterator[Port]:
    """Yield the ports of ibnetdiscover: of its topology, or of its list of ports (`-p`)."""
    device: re.Match[str] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        row = _LINK.match(line)
        if row:
            yield _linked(row, number)
            continue
        heading = _TOPOLOGY_DEVICE.match(line)
        device = heading or (device if line.strip() else None)
        port = _TOPOLOGY_PORT.match(line) if device else None
        if port is None and _LINK_START.match(line) and (device or not line.startswith("[")):
            why = Unbelievable("malformed_line", "found the start of a link, expected both of its ends")
            yield Port(record=f"line {number}", text=line, device="", broken=why)
        elif device and port:
            guid = f"0x{device['guid'].lower():0>16}"
            rate = _rate(port["width"], port["speed"])
            yield Port(
                record=f"line {number}",
                text=line,
                device=f"{guid}/{port['port']}",
                values={"physical_state": "LinkUp", **({} if rate is None else {"rate": rate})},
                description=word(device["name"]),
                is_switch=device["kind"] == "Switch",
                guid=guid,
            )


def _linked(row: re.Match[str], number: int) -> Port:
    rest = row["rest"]
    peer = _PEER.match(rest)
    name = (peer["quoted"] or peer["bare"]) if peer else rest.strip().strip("'")
    # A port without a peer reports the speed at which it polls: that is no rate.
    values = {"state": "Down"}
    why = None
    if peer:
        rate = _rate(row["width"], row["speed"])
        values = {"physical_state": "LinkUp"} if rate is None else {"physical_state": "LinkUp", "rate": rate}
        if rate is None:
            why = Unbelievable("unknown_speed", f"found {row['speed']!r}, expected one of {', '.join(LANE_GIGABITS)}")
    elif rest.lstrip().startswith("-"):
        why = Unbelievable("malformed_line", "found a peer without both names, expected ( 'NAME' - 'NAME' )")
    return Port(
        record=f"line {number}",
        text=row[0],
        device=f"{row['guid'].lower()}/{row['port']}",
        values=values,
        description=word(name or ""),
        is_switch=row["kind"].upper() == "SW",
        guid=row["guid"].lower(),
        broken=why,
    )


def _rate(width: str | None, speed: str | None) -> str | None:
    lane = LANE_GIGABITS.get(speed or "")
    return None if width is None or lane is None else f"{int(width[:-1]) * lane:g} Gb/sec"


# -- what ibqueryerrors and `rdma -j` print, taken apart into ports --


_OWNER = re.compile(r'^Errors for (?:(?P<guid>0x[0-9a-fA-F]{1,16}) )?"(?P<name>[^"]{1,200})"\s*$', re.ASCII)
_PORT = re.compile(r"^\s+GUID (?P<guid>0x[0-9a-fA-F]{1,16}) port (?P<port>\d{1,3}|ALL):(?P<rest>.*)$", re.ASCII)
_COUNTER = re.compile(r"\[(?P<name>[A-Za-z]\w{0,60}) == (?P<value>[^\]\s]{1,40})[^\]]{0,40}\]", re.ASCII)
_SWITCH = re.compile(r"(?:MF0|SwitchX|Quantum|SW-|switch)", re.IGNORECASE)
_RDMA_JSON = re.compile(r'\s*\[\s*\{\s*"ifindex"\s*:')


def counted_ports(text: str) -> Iterator[Port]:
    """Yield the ports of ibqueryerrors, or those of `rdma link -j` and `rdma statistic -j`."""
    if _RDMA_JSON.match(text):
        yield from _rdma_ports(text)
        return
    owner: re.Match[str] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        owner = _OWNER.match(line) or owner
        port = _PORT.match(line) if owner else None
        # `ALL` is the sum over the ports of a switch, which follow one by one.
        if owner is None or port is None or port["port"] == "ALL":
            continue
        guid = port["guid"].lower()
        counters = {each["name"]: each["value"] for each in _COUNTER.finditer(port["rest"])}
        why = None if counters else Unbelievable("malformed_line", "found no counter, expected [NAME == VALUE]")
        yield Port(
            record=f"line {number}",
            text=line,
            device=f"{guid}/{port['port']}",
            values=counters,
            description=owner["name"],
            is_switch=_SWITCH.match(owner["name"]) is not None,
            guid=guid,
            broken=why,
        )


def _rdma_ports(text: str) -> Iterator[Port]:
    for document in json_documents(text):
        if isinstance(document, BrokenJson):
            why = Unbelievable("malformed_json", document.detail)
            yield Port(record=f"line {document.line}", text=document.text, device="", broken=why)
            continue
        for number, entry in enumerate(document if isinstance(document, list) else [document]):
            record = f"port {number}"
            if not isinstance(entry, dict):
                why = Unbelievable("not_an_object", f"found {type(entry).__name__}, expected a port")
                yield Port(record=record, text=str(entry)[:200], device="", broken=why)
                continue
            yield _rdma_port(entry, record=record)


def _rdma_port(entry: Mapping[str, object], *, record: str) -> Port:
    name, port = word(entry.get("ifname")), word(entry.get("port"))
    why = None if name and port else Unbelievable("no_port_named", "found no ifname and port, expected both")
    values = {str(key): str(value) for key, value in entry.items() if isinstance(value, str | int)}
    return Port(record=record, text=str(dict(entry))[:1000], device=f"{name}/{port}", values=values, broken=why)
