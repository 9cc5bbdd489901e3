"""What the conditions that detectors see mean: one row a signal, with who is at fault, the first step and its source.

The numbers that a condition begins at are those of its detector; here is only what follows once it holds.
"""

from dataclasses import dataclass, replace

from ops_pipelines.core.fault import AtFault, Family, FirstAction
from ops_pipelines.core.observation import Observation, Signal


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
"""Every signal of `frames.detectors`."""

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
