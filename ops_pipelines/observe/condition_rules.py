"""What the conditions that detectors see mean, and what an NVLink or NVSwitch event says beyond its code.

The numbers that a condition begins at are those of its detector; here is only what follows once it holds.

Xid 144-150 mean little without the unit and the first two register words, whose layout changed with driver R575; an
SXid may be fatal or not, and its line says which. What the codes mean is `core.finding`; what follows is `finding`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, AtFault, Family, FirstAction
from ops_pipelines.core.finding import CodeRule, NvlinkSubcode
from ops_pipelines.core.observation import Observation, Signal

# -- what the conditions that detectors see mean --


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRule:
    """The meaning of one signal."""

    family: Family
    at_fault: AtFault
    first_action: FirstAction
    confidence: float
    """How sure this condition, taken alone, makes us that the part it names is at fault."""
    source: str
    is_secondary: bool = False


_PEERS = "comparison with peers at the same work and place; the replay measures how often it is right"

CONDITION_RULES = {
    Signal.ROW_REMAP: ConditionRule(
        family=Family.MEMORY,
        at_fault=AtFault.GPU,
        first_action=FirstAction.RESET_GPU_AT_JOB_END,
        confidence=0.95,
        source="NVIDIA GPU memory error management: a pending remap takes effect at the next reset",
    ),
    Signal.ECC_RATE: ConditionRule(
        family=Family.MEMORY,
        at_fault=AtFault.GPU,
        first_action=FirstAction.MONITOR,
        confidence=0.7,
        source="corrected errors lose no data; their rate foretells uncorrectable ones",
    ),
    Signal.NVLINK_ERRORS: ConditionRule(
        family=Family.NVLINK,
        at_fault=AtFault.GPU,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.85,
        source="NVSentinel and gpud: NVLink CRC errors at 100/s and more, any failed recovery",
    ),
    Signal.PCIE_ERRORS: ConditionRule(
        family=Family.PCIE,
        at_fault=AtFault.GPU,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.85,
        source="PCIe replays that grow steadily: a marginal link (NVIDIA DCGM PCIe watch, 8 a minute)",
    ),
    Signal.PCIE_DEGRADED: ConditionRule(
        family=Family.PCIE,
        at_fault=AtFault.GPU,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.95,
        source="a link narrower under load than its neighbours' was trained down (Azure and gpud health checks)",
    ),
    Signal.GPU_HOT: ConditionRule(
        family=Family.HEAT,
        at_fault=AtFault.NODE,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.85,
        source=_PEERS,
    ),
    Signal.GPU_CAPPED: ConditionRule(
        family=Family.POWER,
        at_fault=AtFault.NODE,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.85,
        source=_PEERS,
    ),
    Signal.GPU_SLOW: ConditionRule(
        family=Family.SLOWNESS,
        at_fault=AtFault.GPU,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.85,
        source=_PEERS,
    ),
    Signal.LINK_DOWN: ConditionRule(
        family=Family.FABRIC,
        at_fault=AtFault.FABRIC,
        first_action=FirstAction.INVESTIGATE_FABRIC,
        confidence=0.9,
        source="port state as the driver reports it; a cable, a NIC, or the switch at its other end",
    ),
    Signal.LINK_FLAPS: ConditionRule(
        family=Family.FABRIC,
        at_fault=AtFault.FABRIC,
        first_action=FirstAction.INVESTIGATE_FABRIC,
        confidence=0.9,
        source="NVSentinel: any growth of link_downed is fatal for a collective; gpud: repeated drops are a flap",
    ),
    Signal.LINK_ERRORS: ConditionRule(
        family=Family.FABRIC,
        at_fault=AtFault.FABRIC,
        first_action=FirstAction.INVESTIGATE_FABRIC,
        confidence=0.85,
        source="IBTA bit error rate 1e-12: NVSentinel takes 120 symbol errors an hour as fatal",
    ),
    Signal.DISK_WORN: ConditionRule(
        family=Family.DISK,
        at_fault=AtFault.NODE,
        first_action=FirstAction.MONITOR,
        confidence=0.95,
        source="NVMe specification: percentage used of 100 is the end of the warranted life",
    ),
    Signal.DISK_FULL: ConditionRule(
        family=Family.DISK,
        at_fault=AtFault.NODE,
        first_action=FirstAction.FIX_SOFTWARE,
        confidence=0.95,
        source="a full local file system fails the next job that starts there",
    ),
    Signal.DISK_FAILING: ConditionRule(
        family=Family.DISK,
        at_fault=AtFault.NODE,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.95,
        source="NVMe critical warning, media errors that grow, or spare below its threshold",
    ),
    Signal.HOST_MEMORY: ConditionRule(
        family=Family.HOST,
        at_fault=AtFault.NODE,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.9,
        source="EDAC: an uncorrected error of host memory, or corrected ones without end on one DIMM",
    ),
    Signal.CLOCK_SKEW: ConditionRule(
        family=Family.SOFTWARE,
        at_fault=AtFault.NODE,
        first_action=FirstAction.MONITOR,
        confidence=0.95,
        source="the node's own NTP state; evidence of such a node carries wrong times, and no job suffers yet",
    ),
    Signal.VERSION_DRIFT: ConditionRule(
        family=Family.SOFTWARE,
        at_fault=AtFault.NODE,
        first_action=FirstAction.FIX_SOFTWARE,
        confidence=0.95,
        source="the release that cluster.yaml declares",
    ),
    Signal.INLET_HOT: ConditionRule(
        family=Family.HEAT,
        at_fault=AtFault.FACILITY,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.8,
        source="ASHRAE TC 9.9: inlet air of class A2 up to 35 degrees",
    ),
    Signal.POWER_SUPPLY: ConditionRule(
        family=Family.POWER,
        at_fault=AtFault.NODE,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.8,
        source="the BMC's own verdict on a power supply",
    ),
    Signal.STORAGE_STALL: ConditionRule(
        family=Family.STORAGE,
        at_fault=AtFault.STORAGE,
        first_action=FirstAction.INVESTIGATE_STORAGE,
        confidence=0.75,
        source="kernel pressure (PSI): all tasks wait for I/O while shared storage delivers nothing",
    ),
    Signal.JOB_HUNG: ConditionRule(
        family=Family.STALL,
        at_fault=AtFault.APPLICATION,
        first_action=FirstAction.RESTART_JOB,
        confidence=0.85,
        source="no progress signal of the job moves: tensor activity, links, storage, steps, CPU, log",
    ),
    Signal.JOB_STALLED: ConditionRule(
        family=Family.STALL,
        at_fault=AtFault.APPLICATION,
        first_action=FirstAction.MONITOR,
        confidence=0.7,
        source="utilisation counts resident kernels, not work: a full reading may be a wait",
        is_secondary=True,
    ),
    Signal.GPUS_IDLE: ConditionRule(
        family=Family.APPLICATION,
        at_fault=AtFault.USER,
        first_action=FirstAction.FIX_APP,
        confidence=0.9,
        source="Princeton Jobstats: GPUs allocated and unused",
    ),
    Signal.JOB_CRASH_LOOP: ConditionRule(
        family=Family.APPLICATION,
        at_fault=AtFault.APPLICATION,
        first_action=FirstAction.FIX_APP,
        confidence=0.9,
        source="Meta RSC (arXiv 2410.21680): one job that fails on changing nodes is at fault itself",
    ),
    Signal.NODE_FAILS_JOBS: ConditionRule(
        family=Family.HOST,
        at_fault=AtFault.NODE,
        first_action=FirstAction.DRAIN_INSPECT,
        confidence=0.85,
        source="Meta RSC (arXiv 2410.21680): lemon nodes fail single-node jobs of different owners",
    ),
    Signal.LOSS_NOT_FINITE: ConditionRule(
        family=Family.APPLICATION,
        at_fault=AtFault.APPLICATION,
        first_action=FirstAction.FIX_APP,
        confidence=0.8,
        source="a loss that is no number does not come back by itself (BLOOM and OPT chronicles)",
    ),
    Signal.LOSS_SPIKE: ConditionRule(
        family=Family.APPLICATION,
        at_fault=AtFault.APPLICATION,
        first_action=FirstAction.FIX_APP,
        confidence=0.7,
        source="a loss that stays up for minutes; shorter spikes often pass (BLOOM and OPT chronicles)",
    ),
}
"""Every signal of `observe.detectors`."""

_BY_CODE = {
    (Signal.ROW_REMAP, 2): FirstAction.RMA,
    (Signal.ROW_REMAP, 3): FirstAction.DRAIN_INSPECT,
}
"""Where the same signal with another code calls for another step: no reset brings back a remap that failed, or a spare
row that is used up. Source: NVIDIA GPU memory error management."""


def rule_of_condition(observation: Observation) -> ConditionRule:
    """Return what a condition means, with its code."""
    rule = CONDITION_RULES[observation.signal]
    action = None if observation.code is None else _BY_CODE.get((observation.signal, observation.code))
    return rule if action is None else replace(rule, first_action=action)


# -- what the line of an NVLink or NVSwitch event says beyond its code --


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
