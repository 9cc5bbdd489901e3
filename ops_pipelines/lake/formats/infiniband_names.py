"""What sysfs, perfquery, ibstat and rdma call the columns of a port, and their words for states and rates.

Here: names as data. Not here: layouts. A name is compared in lower case without underscores, so that `PortXmitData` and
`port_xmit_data` are one.
"""

import math
import re
from collections.abc import Mapping

from ops_pipelines.lake.formats.reading import Unbelievable, is_absent, number

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
    cells["rate_bits_per_second"] = _rate(plain.get("rate"))
    return cells


def _counter(values: Mapping[str, str], names: tuple[str, ...], *, column: str) -> float | None:
    for name in names:
        value = values.get(name, "")
        if is_absent(value):
            continue
        found = number(value, name=column)
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


def _rate(text: str | None) -> float | None:
    if text is None or is_absent(text):
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise Unbelievable("bad_value", f"rate: found {text[:60]!r}, expected as 400 Gb/sec (4X NDR)")
    return float(match["gigabits"]) * 1e9
