"""A finding: what one observation calls for, who is at fault and how sure we are; the values, and no rule.

A finding is a verdict on facts. Which rule gives which verdict is `observation_rules`; which findings belong to one
problem is `domain.diagnosis`; what to do about it is `domain.repair`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from ops_pipelines.domain.fault import AtFault, Component, Family, FirstAction
from ops_pipelines.domain.identity import JobId, NodeName, PciAddress
from ops_pipelines.domain.observation import Observation


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
    REIMAGE = 6
    """Installed anew by the site's own means; no finding calls for it, the ladder does."""
    RETURN_TO_VENDOR = 7
    """Handed over for repair by hands, with a report. The end of the ladder."""
    PAGE_MASS_EVENT = 9
    """Too many at once: one page, no action."""


REPAIRS = frozenset(
    {Response.RESET_GPU, Response.REBOOT_NODE, Response.POWER_CYCLE, Response.REIMAGE, Response.RETURN_TO_VENDOR}
)


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
    family: Family = Family.UNKNOWN
    at_fault: AtFault = AtFault.UNKNOWN
    first_action: FirstAction = FirstAction.MONITOR
    component: Component | None = None
    """The part that it suspects; None: the GPU if it names one, else the node."""
    job: JobId | None = None
    is_secondary: bool = False
    """Damage that something else does: it joins what explains it, and opens nothing by itself."""
    confidence: float = 0.9
    """How sure this one finding, taken alone, makes us of what it says."""
    count: int = 1
    """How many observations it stands for: alike ones of one incident are one finding."""
    last_at: datetime | None = None
    """When the newest of them was; None: at `found_at`."""


RESPONSES: Mapping[FirstAction, Response] = {
    FirstAction.NONE: Response.MONITOR,
    FirstAction.MONITOR: Response.MONITOR,
    FirstAction.FIX_APP: Response.NOTIFY_OWNER,
    FirstAction.RESTART_JOB: Response.NOTIFY_OWNER,
    FirstAction.RESET_GPU_AT_JOB_END: Response.RESET_GPU,
    FirstAction.RESET_GPU: Response.RESET_GPU,
    FirstAction.REBOOT_NODE: Response.REBOOT_NODE,
    FirstAction.RESET_FABRIC: Response.PAGE,
    FirstAction.DRAIN_INSPECT: Response.PAGE,
    FirstAction.RMA: Response.PAGE,
    FirstAction.FIX_SOFTWARE: Response.PAGE,
    FirstAction.INVESTIGATE_FABRIC: Response.PAGE,
    FirstAction.INVESTIGATE_STORAGE: Response.PAGE,
}
"""What this program does by itself on a first action: where hands or eyes are needed, it calls for them."""
