"""A finding: what one observation calls for, who is at fault and how sure we are; the values, and no rule.

A finding is a verdict on facts. Which rule gives which verdict is `observation_rules`; which findings belong to one
problem is `domain.diagnosis`; what to do about it is `domain.repair`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import total_ordering

from ops_pipelines.domain.fault import AtFault, Component, Family, FirstAction
from ops_pipelines.domain.identity import JobId, NodeName, PciAddress
from ops_pipelines.domain.observation import Observation


@total_ordering
class Response(Enum):
    """What is called for. Compared by `rank`, from the least to the most invasive: a stronger one covers a weaker.

    The values stand in ledgers and never change; they say nothing of the order.
    """

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
    ISOLATE = 8
    """The node is taken out of service, its jobs go on elsewhere, no part is touched; its tests say what follows. No
    finding alone calls for it: `domain.repair.isolation` does, of an incident that would otherwise only be paged."""
    PAGE_MASS_EVENT = 9
    """Too many at once: one page, no action."""

    @property
    def rank(self) -> int:
        """Where it stands among the others: 0 is the least invasive."""
        return _RANKS[self]

    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, Response) else NotImplemented


_RANKS: Mapping[Response, int] = {
    response: rank
    for rank, response in enumerate(
        (
            Response.MONITOR,
            Response.NOTIFY_OWNER,
            Response.PAGE,
            Response.ISOLATE,
            Response.RESET_GPU,
            Response.REBOOT_NODE,
            Response.POWER_CYCLE,
            Response.REIMAGE,
            Response.RETURN_TO_VENDOR,
            Response.PAGE_MASS_EVENT,
        )
    )
}

REPAIRS = frozenset(response for response in Response if Response.ISOLATE <= response <= Response.RETURN_TO_VENDOR)
"""What takes a node out of service and moves its jobs: every rung of the ladder from isolation on."""
ISOLATED_FOR = frozenset(
    {
        FirstAction.DRAIN_INSPECT,
        FirstAction.RMA,
        FirstAction.RESET_FABRIC,
        FirstAction.INVESTIGATE_FABRIC,
    }
)
"""First actions that need eyes or hands, and for which a node is isolated meanwhile where it alone is at fault."""


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
