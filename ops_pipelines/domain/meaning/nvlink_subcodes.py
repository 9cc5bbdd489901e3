"""What the line of an NVLink or NVSwitch event says beyond its code: unit, link, registers, Fatal or Non-fatal.

Xid 144-150 mean little without the unit and the first two register words, whose layout changed with driver R575; an
SXid may be fatal or not, and its line says which. What the codes mean is `catalogue`; what follows is `finding`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, Family, FirstAction
from ops_pipelines.core.finding import CodeRule, NvlinkSubcode

NVLINK_CODES = frozenset(range(144, 151))
"""Xids of NVLink 5 that need their line to be understood."""
_EVENT = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{1,40}(?: Degraded)?)\s{1,4}(?:(?P<fatal>[Nn]on-?\s?)?[Ff]atal)\b"
    r"(?:.{0,60}?\b[Ll]ink\s{0,3}(?P<link>\d{1,3}))?"
    r"(?:[^(]{0,60}\((?P<words>(?:0x[0-9a-fA-F]{1,8}[\s,]{0,3}){1,16})\))?"
)
_WORD = re.compile(r"(?P<non>\bnon[- ]?)?\bfatal\b|\bnonfatal\b", re.IGNORECASE)
_REGISTER_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkEvent:
    """What the driver wrote of one Xid 144-150."""

    unit: str
    is_fatal: bool
    link: int | None
    registers: tuple[int, ...]
    """IntrInfo, error status, then data; empty if the line shows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkVerdict:
    """What such a line means, and how we know."""

    first_action: FirstAction
    is_fatal: bool | None
    """None: the line does not say, and no row knows it."""
    subcode: NvlinkSubcode | None
    explanation: str


def parse_nvlink_event(text: str) -> NvlinkEvent | None:
    """Return what a line of Xid 144-150 says, e.g. `RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)`.

    None if it names no unit with Fatal or Nonfatal.
    """
    match = _EVENT.search(text)
    if match is None:
        return None
    return NvlinkEvent(
        unit=match["unit"],
        is_fatal=match["fatal"] is None,
        link=None if match["link"] is None else int(match["link"]),
        registers=tuple(int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", match["words"] or "")),
    )


def match_subcodes(code: int, event: NvlinkEvent, subcodes: Sequence[NvlinkSubcode]) -> tuple[NvlinkSubcode, ...]:
    """Return the rows that fit the event in either layout: the line does not say which driver wrote it.

    Without both register words nothing fits.
    """
    if len(event.registers) < 2:
        return ()
    interrupt, status = event.registers[:2]
    return tuple(
        row
        for row in subcodes
        if row.code == code
        and row.unit == event.unit
        and row.error_status in (None, status)
        and (_fits(row.mask_before_r575, interrupt) or _fits(row.mask_from_r575, interrupt))
    )


def judge_nvlink(code: int, text: str, subcodes: Sequence[NvlinkSubcode]) -> NvlinkVerdict:
    """Return what a line of Xid 144-150 calls for.

    The row decides that fits; of several, and of row and word, the milder. Where none fits the word Fatal or Nonfatal
    decides, and a line that has neither calls for a look at the fabric: unknown is never destructive.
    """
    event = parse_nvlink_event(text)
    if event is None:
        return NvlinkVerdict(
            first_action=FirstAction.INVESTIGATE_FABRIC,
            is_fatal=None,
            subcode=None,
            explanation="the line does not say which unit, nor whether it is fatal",
        )
    where = event.unit + ("" if event.link is None else f" on link {event.link}")
    word = "fatal" if event.is_fatal else "not fatal"
    rows = match_subcodes(code, event, subcodes)
    if not rows:
        return NvlinkVerdict(
            first_action=FirstAction.RESET_GPU if event.is_fatal else FirstAction.MONITOR,
            is_fatal=event.is_fatal,
            subcode=None,
            explanation=f"{where}: the driver says {word}; its registers are in no table",
        )
    row = min(rows, key=lambda fitting: fitting.first_action in DESTRUCTIVE_ACTIONS)
    is_milder = row.first_action in DESTRUCTIVE_ACTIONS and not event.is_fatal
    return NvlinkVerdict(
        first_action=FirstAction.MONITOR if is_milder else row.first_action,
        is_fatal=event.is_fatal,
        subcode=row,
        explanation=f"{where}: the driver says {word}; {row.effects}",
    )


def find_severity(text: str) -> bool | None:
    """Return whether a line calls its event fatal (True) or non-fatal (False); None if it says neither."""
    match = _WORD.search(text)
    if match is None:
        return None
    return match["non"] is None and match[0].lower() != "nonfatal"


def judge_sxid(rule: CodeRule, text: str) -> FirstAction:
    """Return what a line with a known SXid calls for; the driver's word outranks the table for this one event.

    Non-fatal, or no word in a line (the driver adds lines with registers to each event): nothing destructive. Fatal
    where the table sees no harm: the GPU behind the link, unless it is a matter of heat. Without any text the table
    alone decides.
    """
    action = rule.first_action
    is_destructive = action in DESTRUCTIVE_ACTIONS
    is_fatal = find_severity(text)
    if is_fatal is None:
        return FirstAction.INVESTIGATE_FABRIC if is_destructive and text.strip() else action
    if is_fatal:
        return action if is_destructive or rule.family is Family.HEAT else FirstAction.RESET_GPU
    return FirstAction.MONITOR if is_destructive else action


def _fits(mask: str, value: int) -> bool:
    bits = f"{value:0{_REGISTER_BITS}b}"
    return len(bits) == len(mask) and all(want in ("-", got) for want, got in zip(mask, bits, strict=True))
