"""Kernel log lines -> observations: the driver's Xid and SXid lines in every shape met in the field, and what was not
believed.

A line is evidence only if the kernel wrote it: Xid or SXid must follow directly on a kernel prefix, so that a program
which logs the same words is rejected. What a code means is `observe.rules`; reading files is
`resources.kernel_log`. `match_buffer` finds every signature of the catalogue in whole buffers; it names lines, and
makes no evidence of them.
"""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from ops_pipelines.core.fault import Component, ComponentKind
from ops_pipelines.core.identity import NodeName, PciAddress, parse_node_name, parse_pci_address
from ops_pipelines.core.observation import Observation, Rejected, Signal
from ops_pipelines.core.sources import LogLine
from ops_pipelines.lake.node_names import names_of
from ops_pipelines.lake.quantities import readable

if TYPE_CHECKING:
    from ops_pipelines.observe.logs.matching import Matches

XID_RECOVERY_ACTION_CHANGED = 154

_SHARED_LETTERS = "Xid"
"""Is in every mention, and is found many times faster than the mention itself: most lines hold none."""
_MENTION = re.compile(r"NVRM:[ \t]*Xid|nvidia-nvswitch\d{1,4}:[ \t]*SXid")
_TIME = (
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"  # rsyslog, dmesg --time-format iso
    r"|[^\W\d]{3,12}\.?\s{1,2}\d{1,2}\s(?:\d{4}\s)?\d\d:\d\d:\d\d(?:\.\d{1,9})?)"  # `Nov 21 07:25:29`, in any language
)
_KERNEL_PREFIX = re.compile(
    r"[\s\x00]*"
    r"(?:<\d{1,3}>(?:1\s)?)?"  # syslog priority, and the version of RFC 5424
    r"(?:\d{1,3},\d{1,20},\d{1,20},[^;\s]{1,64};)?"  # /dev/kmsg
    r"(?:[a-z]{1,8}\s*:[a-z]{1,8}\s*:\s*)?"  # dmesg --decode: `kern  :warn  : `
    rf"(?:{_TIME}\s+)?"
    # Host and tag, as `gpu003 kernel: ` or RFC 5424's `gpu003 kernel - - - `; another tag is another program.
    r"(?:(?:[A-Za-z0-9._:-]{0,254}[A-Za-z0-9._-]\s+)?kernel(?::|\s+\S{1,48}\s+\S{1,32}\s+-)\s*)?"
    r"(?:\[[^\[\]]{1,64}\]\s*){0,3}"  # `[  130.456250] [ T1946] `, `[Fri Aug 30 11:43:09 2024] `
)
# Old drivers write no `PCI:`; a MIG instance adds ` GPU-I:05`.
_XID = re.compile(
    r"NVRM:[ \t]*Xid\s*\((?P<pci>[^()\s]{1,40})(?:\s+GPU-I:\d{1,3})?\)\s*:\s*(?P<code>\d{1,4})(?![\d.])(?P<rest>.*)",
    re.DOTALL,
)
_SXID = re.compile(
    r"nvidia-(?P<switch>nvswitch\d{1,4}):[ \t]*SXid\s*\((?P<pci>[^()\s]{1,40})\)\s*:\s*(?P<code>\d{1,5})(?![\d.])"
    r"(?:\s*,\s*(?:Non-[Ff]atal|Fatal)\b)?(?:\s*,\s*Link\s+(?P<link>\d{1,4})\b)?"
)
# The driver reports one event in several lines: these two kinds repeat the code, with registers instead of words
# (NVIDIA Fabric Manager guide, the example of a non-fatal SXid).
_SXID_DETAIL = re.compile(r"\s*,\s*(?:Severity\s+\d|Data\s*\{)")
# The number decides. The words beside it differ between driver branches: 0x1 is "GPU Reset Required" or "PF FLR".
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8}\s*\([^()]{0,80}\)\s*to 0x(?P<action>[0-9a-fA-F]{1,8})\b"
)
_NO_NODE = "the line does not say which node wrote it; name the node per file or let syslog write it"
_NOT_FIRST = "a second Xid or SXid in one line: nothing shows that the kernel wrote it"
_parse_address = lru_cache(maxsize=65_536)(parse_pci_address)
"""A cluster of 2,048 nodes has some ten addresses in all, or some ten thousand; a storm writes them again and again."""


def match_buffer(buffer: bytes) -> "Matches":
    """Return which rule of catalogue/log_signatures.csv matches which line of `buffer`; see `log_matching.Matches`.

    `observe_log_lines` does without it: its one literal is found sooner by `re` in lines that are apart already.
    """
    from ops_pipelines.observe.logs.matching import shared_matcher  # numpy comes with it, and Dagster loads this module

    return shared_matcher().match_buffer(buffer)


def observe_log_lines(
    lines: Sequence[LogLine],
    *,
    source: str,
    received_at: datetime,
    known_nodes: Collection[NodeName] = (),
    max_ahead: timedelta = timedelta(minutes=5),
) -> tuple[tuple[Observation, ...], tuple[Rejected, ...]]:
    """Return the Xid and SXid lines as observations, and those that mention one and could not be believed.

    Lines that mention neither are in neither, nor are the further lines of an SXid that only give its registers. No
    other mention is lost: each becomes one observation or one rejection. Xid 154 becomes `RECOVERY_ACTION` with the
    new action's number, every other Xid `XID` with its code; an SXid becomes `SXID` with its code and, as `component`,
    the switch or, where it names one, the link of the switch.

    A host name in full, in short or in capitals becomes the node of `known_nodes` that it means (`NodeNames`); a node
    that is not known is observed under the name it gives. A line without a time takes `received_at`. So does a line
    dated more than `max_ahead` after it, and its text says so: a fault on a node with a wrong clock is still a fault,
    and a date in the future would defeat every window that counts back from now.
    """
    names = names_of(tuple(known_nodes))
    nodes: dict[str | None, NodeName] = {}
    observations: list[Observation] = []
    rejections: list[Rejected] = []
    for line in lines:
        if _SHARED_LETTERS not in line.text:
            continue
        mentions = _split_mentions(line.text)
        if not mentions:
            continue
        first, *others = mentions
        rejections += [
            Rejected(source=source, position=f"{line.position}#{number}", reason=_NOT_FIRST, text=readable(text))
            for number, text in enumerate(others, start=1)
        ]
        try:
            if (node := nodes.get(line.node)) is None:
                if line.node is None:
                    raise ValueError(_NO_NODE)
                # The strict look first: a name may reach a command line.
                node = nodes[line.node] = NodeName(names.settle(parse_node_name(line.node))[0])
            told = _parse_event(first, node)
            if told is None:
                continue
            signal, code, gpu, component = told
            observed_at, remark = _read_time(line.written_at, received_at=received_at, max_ahead=max_ahead)
        except ValueError as exc:
            rejections.append(Rejected(source=source, position=line.position, reason=str(exc), text=readable(first)))
            continue
        observations.append(
            Observation(
                signal=signal,
                node=node,
                observed_at=observed_at,
                source=source,
                position=line.position,
                code=code,
                gpu=gpu,
                component=component,
                text=readable(first) + remark,
            )
        )
    return tuple(observations), tuple(rejections)


def _split_mentions(text: str) -> list[str]:
    """Return `text` cut before its second and each later mention: the first keeps its prefix, the others have none.

    Only the first can be believed. The words of a program may follow in the same line, after a line separator even.
    Empty if there is no mention.
    """
    starts = [match.start() for match in _MENTION.finditer(text)]
    if len(starts) < 2:
        return [text] if starts else []
    return [text[start:end] for start, end in zip([0, *starts[1:]], [*starts[1:], len(text)], strict=True)]


def _parse_event(text: str, node: NodeName) -> tuple[Signal, int, PciAddress | None, Component | None] | None:
    """Return what a line with a mention reports: signal, code, GPU and component; None for the registers of an SXid.

    Raises ValueError if it cannot be believed.
    """
    prefix = _KERNEL_PREFIX.match(text)
    start = 0 if prefix is None else prefix.end()
    if xid := _XID.match(text, start):
        signal, code = _read_signal(int(xid["code"]), xid["rest"])
        return signal, code, _parse_address(xid["pci"]), None
    if sxid := _SXID.match(text, start):
        _parse_address(sxid["pci"])  # of the switch: a line that names none was not written by its driver
        if _SXID_DETAIL.match(text, sxid.end("code")):
            return None
        name = sxid["switch"] if sxid["link"] is None else f"{sxid['switch']}/link {int(sxid['link'])}"
        return Signal.SXID, int(sxid["code"]), None, Component(kind=ComponentKind.LINK, name=name, node=node)
    if _XID.search(text) or _SXID.search(text):
        raise ValueError("the Xid or SXid does not follow on a kernel prefix; another program may have written it")
    raise ValueError(
        "the line mentions an Xid or SXid in a shape that is not known; expected `NVRM: Xid (PCI:...): CODE` or "
        "`nvidia-nvswitchN: SXid (PCI:...): CODE`"
    )


def _read_signal(code: int, rest: str) -> tuple[Signal, int]:
    if code != XID_RECOVERY_ACTION_CHANGED:
        return Signal.XID, code
    match = _RECOVERY.search(rest)
    if match is None:
        raise ValueError("Xid 154 without `changed from 0x... (...) to 0x...`; the new action is unknown")
    return Signal.RECOVERY_ACTION, int(match["action"], 16)


def _read_time(written_at: datetime | None, *, received_at: datetime, max_ahead: timedelta) -> tuple[datetime, str]:
    """Return when it happened, and a remark for the evidence where that is not what the line says."""
    if written_at is None:
        return received_at, ""
    if written_at.utcoffset() is None:
        raise ValueError("the line's time names no zone; the source must convert it")
    written_at = written_at.astimezone(UTC)
    if written_at - received_at > max_ahead:
        return received_at, f" [dated {written_at.isoformat()}, in the future; time of arrival taken; check the clock]"
    return written_at, ""
