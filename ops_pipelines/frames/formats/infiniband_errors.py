"""What ibqueryerrors and `rdma -j` print, taken apart into ports: names to texts.

Here: these two layouts. Not here: the other tools (`infiniband_layouts`), what a name means (`infiniband_names`).
"""

import re
from collections.abc import Iterator, Mapping

from ops_pipelines.frames.formats.infiniband_layouts import Port
from ops_pipelines.frames.formats.reading import BrokenJson, Unbelievable, json_documents, word

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
