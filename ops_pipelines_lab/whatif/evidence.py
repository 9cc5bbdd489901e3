"""What the decision code gets to see of a simulated fault: the observation behind a verdict, and nothing else.

A verdict names the finding that it rested on; here is the observation that `core.finding.find` makes that
finding of. A rule that no observation leads to is an error of the tables, found when they are read.
"""

from collections.abc import Mapping
from datetime import datetime

from ops_pipelines.core.finding import Catalogue
from ops_pipelines.core.identity import JobId, NodeName, PciAddress
from ops_pipelines.core.observation import (
    DETECTOR_SOURCE,
    NO_NODE,
    SCHEDULER_SOURCE,
    TELEMETRY_SOURCE,
    Observation,
    RecoveryAction,
    Signal,
)
from ops_pipelines.observe.rules import find

GPU = PciAddress("0000:1b:00")
"""The GPU of every simulated fault: which of a node's it is changes nothing."""
_LOG_SOURCE = "kernel_log"
_CODED: Mapping[str, Signal] = {"xid": Signal.XID, "sxid": Signal.SXID}
_SAMPLED: Mapping[Signal, int] = {
    Signal.RECOVERY_ACTION: RecoveryAction.REBOOT_NODE.value,
    Signal.ECC_UNCORRECTABLE: 1,
    Signal.GPU_MISSING: 1,
}
_OF_GPUS = frozenset(
    {
        Signal.RECOVERY_ACTION,
        Signal.ECC_UNCORRECTABLE,
        Signal.ROW_REMAP,
        Signal.ECC_RATE,
        Signal.NVLINK_ERRORS,
        Signal.PCIE_ERRORS,
        Signal.PCIE_DEGRADED,
        Signal.GPU_HOT,
        Signal.GPU_CAPPED,
        Signal.GPU_SLOW,
    }
)
_OF_JOBS = frozenset({Signal.JOB_CRASH_LOOP, Signal.LOSS_NOT_FINITE, Signal.LOSS_SPIKE})


def observe(
    rule: str, *, node: NodeName, job: JobId, at: datetime, number: int, code: int | None = None
) -> Observation:
    """Return the observation of which the finding `rule` is made; `number` makes it another than all before.

    `node` is NO_NODE where the program is blamed; `code` is the state of what has one. Raises ValueError for a rule
    that is neither a code, a signal nor a signature.
    """
    kind, _, coded = rule.partition("_")
    position = f"{rule}#{number}"
    if kind in _CODED and coded.isdecimal():
        return Observation(
            signal=_CODED[kind], node=node, observed_at=at, source=_LOG_SOURCE, position=position, code=int(coded),
            gpu=GPU if kind == "xid" else None, job=job,
        )  # fmt: skip
    try:
        signal = Signal(rule)
    except ValueError:
        return Observation(
            signal=Signal.LOG_SIGNATURE, node=node, observed_at=at, source=_LOG_SOURCE, position=position,
            signature=rule, job=job,
        )  # fmt: skip
    if signal is Signal.NODE_UNREACHABLE:
        return Observation(signal=signal, node=node, observed_at=at, source=SCHEDULER_SOURCE, position=position, code=1)
    source = TELEMETRY_SOURCE if signal in _SAMPLED else DETECTOR_SOURCE
    return Observation(
        signal=signal, node=NO_NODE if signal in _OF_JOBS else node, observed_at=at, source=source, position=position,
        code=_SAMPLED.get(signal, 1) if code is None else code, gpu=GPU if signal in _OF_GPUS else None,
        text=rule, job=job, value=1.0,
    )  # fmt: skip


def refuse_unknown(rules: frozenset[str], catalogue: Catalogue, *, at: datetime) -> None:
    """Raise ValueError for rules that no observation leads to: the tables and the catalogue have drifted apart."""
    lost = sorted(
        rule
        for rule in rules
        if find(observe(rule, node=NodeName("n"), job=JobId("1"), at=at, number=0), catalogue).rule != rule
    )
    if lost:
        raise ValueError(
            f"no observation leads to {', '.join(lost)}; expected the rules of today's catalogue. Measure again with "
            "`python -m bench.diagnosis --write`"
        )
