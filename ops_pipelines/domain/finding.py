"""What observations mean: one rule, one function; each finding names its evidence and the source of the rule.

A finding is a verdict on facts. Which findings belong to one problem is `incident` and `correlation`; what to do
about it is `remediation`. The meaning of codes is data (`Catalogue`), never an `if` in a rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from ops_pipelines.domain.identity import NodeName, PciAddress
from ops_pipelines.domain.observation import Observation, RecoveryAction, Signal


class Response(IntEnum):
    """What a finding calls for, from the least to the most invasive. Comparable: a stronger one covers a weaker."""

    MONITOR = 0
    """Nothing now; it is kept, and repetition may make it more."""
    NOTIFY_OWNER = 1
    """The job's own doing: its owner is told, no node is touched."""
    PAGE = 2
    """A human must look; nothing is touched."""
    RESET_GPU = 3
    REBOOT_NODE = 4
    POWER_CYCLE = 5
    """The node does not answer: it is fenced by power, then started."""
    PAGE_MASS_EVENT = 9
    """Too many at once: one page, no action."""


REPAIRS = frozenset({Response.RESET_GPU, Response.REBOOT_NODE, Response.POWER_CYCLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRule:
    """One row of catalogue/xid.csv."""

    code: int
    mnemonic: str
    meaning: str
    response: Response
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Facts about codes, as read from catalogue/. A code that is not here is unknown: reported, never destructive."""

    xids: Mapping[int, XidRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule's verdict on one observation."""

    rule: str
    response: Response
    node: NodeName
    gpu: PciAddress | None
    found_at: datetime
    is_lasting: bool
    """True while a condition lasts that must still hold when we act; False for an event that happened."""
    is_driver_verdict: bool
    """The driver's own recovery action: outranks every table for the same GPU."""
    evidence: tuple[Observation, ...]
    explanation: str
    source: str


def find(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what one observation means. Every observation means something: an unknown code is a finding too."""
    rule = _RULES[observation.signal]
    return rule(observation, catalogue)


_DRIVER_RESPONSES = {
    RecoveryAction.NONE: Response.MONITOR,
    RecoveryAction.RESET_GPU: Response.RESET_GPU,
    RecoveryAction.REBOOT_NODE: Response.REBOOT_NODE,
    RecoveryAction.DRAIN_PEER_TO_PEER: Response.PAGE,
    RecoveryAction.DRAIN_AND_RESET: Response.RESET_GPU,
    RecoveryAction.RECOVER_IMEX_DOMAIN: Response.PAGE,
}
_DRIVER_SOURCE = "NVML nvmlDeviceGpuRecoveryAction_t; DCGM field 1523; Xid 154"
XID_RECOVERY_ACTION_CHANGED = 154


def find_xid(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return what a logged Xid means by the catalogue; an unknown code calls for a page, never for an act."""
    code = observation.code
    rule = catalogue.xids.get(code) if code is not None else None
    if rule is None:
        return _finding(
            observation,
            rule="xid_unknown",
            response=Response.PAGE,
            explanation=f"Xid {code} is not in the catalogue; an unknown code is reported and never acted on",
            source="catalogue/xid.csv has no such row",
        )
    where = f" on GPU {observation.gpu}" if observation.gpu else ""
    return _finding(
        observation,
        rule=f"xid_{rule.code}",
        response=rule.response,
        explanation=f"Xid {rule.code} ({rule.mnemonic}){where}: {rule.meaning}",
        source=rule.source,
    )


def find_recovery_action(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return the driver's own verdict; a number that this program does not know calls for a page."""
    try:
        wanted = RecoveryAction(observation.code)
    except ValueError:
        return _finding(
            observation,
            rule="recovery_action_unknown",
            response=Response.PAGE,
            explanation=f"the driver asks for recovery action {observation.code}, which is not known here",
            source=_DRIVER_SOURCE,
        )
    return _finding(
        observation,
        rule="recovery_action",
        response=_DRIVER_RESPONSES[wanted],
        explanation=f"the driver asks for {wanted.name.lower().replace('_', ' ')} on GPU {observation.gpu}",
        source=_DRIVER_SOURCE,
        is_driver_verdict=True,
    )


def find_uncorrectable_ecc(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that GPU memory was lost: the page of memory is only replaced by a reset."""
    return _finding(
        observation,
        rule="ecc_uncorrectable",
        response=Response.RESET_GPU,
        explanation=f"{observation.code} uncorrectable ECC error(s) on GPU {observation.gpu} since the last reset",
        source="NVIDIA GPU memory error management: an uncorrectable error is remapped at the next reset",
    )


def find_gpu_missing(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that a GPU vanished while its neighbours report: it fell off the bus, with or without an Xid."""
    return _finding(
        observation,
        rule="gpu_missing",
        response=Response.REBOOT_NODE,
        explanation=f"{observation.code} GPU(s) of {observation.node} vanished from the metrics; the others report",
        source="dcgm-exporter issue 348, gpud PR 1209: a fallen GPU may vanish without any Xid",
    )


def find_node_unreachable(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that the node's daemon is silent; unreachable is not dead, so it is fenced by power before a restart."""
    return _finding(
        observation,
        rule="node_unreachable",
        response=Response.POWER_CYCLE,
        explanation=f"the scheduler gets no answer from {observation.node}",
        source="Slurm NOT_RESPONDING flag",
    )


def find_telemetry_stale(observation: Observation, catalogue: Catalogue) -> Finding:
    """Return that a node's metrics stopped: never health, and no ground for a destructive act either."""
    return _finding(
        observation,
        rule="telemetry_stale",
        response=Response.PAGE,
        explanation=f"no metrics from {observation.node} although they are expected",
        source="absence of data is a finding",
    )


_RULES = {
    Signal.XID: find_xid,
    Signal.RECOVERY_ACTION: find_recovery_action,
    Signal.ECC_UNCORRECTABLE: find_uncorrectable_ecc,
    Signal.GPU_MISSING: find_gpu_missing,
    Signal.NODE_UNREACHABLE: find_node_unreachable,
    Signal.TELEMETRY_STALE: find_telemetry_stale,
}
_LASTING = frozenset({Signal.GPU_MISSING, Signal.NODE_UNREACHABLE, Signal.TELEMETRY_STALE})
"""Conditions that must still hold when we act: they may clear by themselves. ECC counts and driver's wishes do not."""


def _finding(
    observation: Observation,
    *,
    rule: str,
    response: Response,
    explanation: str,
    source: str,
    is_driver_verdict: bool = False,
) -> Finding:
    return Finding(
        rule=rule,
        response=response,
        node=observation.node,
        gpu=observation.gpu,
        found_at=observation.observed_at,
        is_lasting=observation.signal in _LASTING,
        is_driver_verdict=is_driver_verdict,
        evidence=(observation,),
        explanation=explanation,
        source=source,
    )
