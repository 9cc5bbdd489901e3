"""The words of a diagnosis: who is at fault, which part, what the first step is; and the hypothesis that uses them.

Values only. Which code or signature gets which word is data (`catalogue/`); what a set of findings means is
`diagnose.correlate`; which step this program takes by itself belongs to `meaning.finding.RESPONSES` and `remediation`.

Values. Making one out of findings is `diagnosis`; showing it is the shell's business.
"""

from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.identity import NodeName

# -- the words of a diagnosis --


class AtFault(Enum):
    """Where the fault lies."""

    APPLICATION = "application"
    GPU = "gpu"
    NODE = "node"
    FABRIC = "fabric"
    STORAGE = "storage"
    FACILITY = "facility"
    USER = "user"
    """Somebody's will: a time limit, a cancellation, a preemption."""
    NOTHING = "nothing"
    """Normal, or damage that something else did."""
    UNKNOWN = "unknown"


class FirstAction(Enum):
    """The first step that a line or a code calls for, taken alone."""

    NONE = "NONE"
    MONITOR = "MONITOR"
    FIX_APP = "FIX_APP"
    RESTART_JOB = "RESTART_JOB"
    RESET_GPU_AT_JOB_END = "RESET_GPU_AT_JOB_END"
    RESET_GPU = "RESET_GPU"
    REBOOT_NODE = "REBOOT_NODE"
    RESET_FABRIC = "RESET_FABRIC"
    DRAIN_INSPECT = "DRAIN_INSPECT"
    RMA = "RMA"
    FIX_SOFTWARE = "FIX_SOFTWARE"
    INVESTIGATE_FABRIC = "INVESTIGATE_FABRIC"
    INVESTIGATE_STORAGE = "INVESTIGATE_STORAGE"


FIRST_STEPS = {
    FirstAction.NONE: "nothing",
    FirstAction.MONITOR: "watch it",
    FirstAction.FIX_APP: "the owner corrects the program",
    FirstAction.RESTART_JOB: "restart the job, with the stack traces of its ranks saved before",
    FirstAction.RESET_GPU_AT_JOB_END: "reset the GPU when its job has ended",
    FirstAction.RESET_GPU: "reset the GPU",
    FirstAction.REBOOT_NODE: "reboot the node",
    FirstAction.RESET_FABRIC: "reset the GPUs and NVSwitches of the node together",
    FirstAction.DRAIN_INSPECT: "drain the node and look at it",
    FirstAction.RMA: "have the part replaced",
    FirstAction.FIX_SOFTWARE: "put the node's software or settings right",
    FirstAction.INVESTIGATE_FABRIC: "look at the fabric: the switch, its ports and its cables",
    FirstAction.INVESTIGATE_STORAGE: "look at the storage and the way to it",
}
"""For people who are asked to take the step."""
DESTRUCTIVE_ACTIONS = frozenset(
    {
        FirstAction.RESET_GPU_AT_JOB_END,
        FirstAction.RESET_GPU,
        FirstAction.REBOOT_NODE,
        FirstAction.RESET_FABRIC,
        FirstAction.DRAIN_INSPECT,
        FirstAction.RMA,
    }
)
"""Steps that take a node out of service before anything else."""


class Family(Enum):
    """Kinds of trouble that can have one cause: findings of one family on neighbours point at what they share."""

    GPU = "gpu"
    MEMORY = "memory"
    """GPU memory."""
    NVLINK = "nvlink"
    PCIE = "pcie"
    FABRIC = "fabric"
    """Links and NICs between nodes."""
    SILENCE = "silence"
    """A node, or its metrics, do not answer."""
    HEAT = "heat"
    POWER = "power"
    STORAGE = "storage"
    """Shared file systems and object stores."""
    DISK = "disk"
    """Disks of the node itself."""
    HOST = "host"
    """CPU, host memory, kernel."""
    SOFTWARE = "software"
    """Driver, libraries, daemons, versions, clocks."""
    SLOWNESS = "slowness"
    """A part that works, later than its peers."""
    STALL = "stall"
    """A job that makes no progress."""
    COLLECTIVE = "collective"
    """What ranks say when a peer is gone: the damage of something else, unless nothing else is found."""
    APPLICATION = "application"
    NORMAL = "normal"
    UNKNOWN = "unknown"


class ComponentKind(Enum):
    """What kind of part, from the smallest to the widest."""

    GPU = "gpu"
    LINK = "link"
    """One port or cable of a node."""
    DISK = "disk"
    NODE = "node"
    JOB = "job"
    NVLINK_DOMAIN = "nvlink_domain"
    LEAF_SWITCH = "leaf_switch"
    RACK = "rack"
    POWER_FEED = "power_feed"
    STORAGE = "storage"
    FABRIC = "fabric"
    DRIVER = "driver"
    """A version of the driver, wherever it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One part that can be at fault."""

    kind: ComponentKind
    name: str
    """PCI address, device, node, job id, switch, rack, ...: what a person would look for."""
    node: NodeName | None = None
    """The node that it is part of; None for what is wider than a node."""

    def __str__(self) -> str:
        kind = self.kind.value.replace("_", " ")
        if self.kind is ComponentKind.NODE:
            return self.name
        return f"{kind} {self.name}" + (f" of {self.node}" if self.node is not None else "")


def node_component(node: NodeName) -> Component:
    return Component(kind=ComponentKind.NODE, name=node, node=node)


# -- what is believed to have broken --


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another explanation of the same evidence."""

    statement: str
    confidence: float
    why_less_likely: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """The root cause of one incident, as far as the evidence goes."""

    statement: str
    """One sentence: what broke."""
    culprits: tuple[Component, ...]
    """The parts at fault, the likeliest first; a job where only a program is, empty where nobody knows."""
    at_fault: AtFault
    family: Family
    first_action: FirstAction
    confidence: float
    """How sure we are, 0..1; what the replay measures it against is in docs/DIAGNOSIS.md."""
    affected_nodes: frozenset[NodeName]
    """Victims: nodes that suffer from it and have no fault of their own."""
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    settled_by: str
    """What would show whether it is so."""
