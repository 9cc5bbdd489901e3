"""Findings and what they rest on: the meaning of codes and log lines, and what a fault does to a job that continues.

A finding is a verdict on facts. Which rule gives which verdict is `observe.rules`; which findings belong to one problem
is `diagnose`; what to do about it is `remediate`.

Rates come from catalogue/fault_hazards.csv, each with its source or marked as an assumption. A fault strikes at a
constant rate, so all expectations are closed forms. What follows for the moment to act is `timing`'s.

Facts only. Reading the tables is `resources.catalogue_files`; what an observation means is `finding`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import total_ordering

from ops_pipelines.core.fault import AtFault, Component, Family, FirstAction
from ops_pipelines.core.identity import JobId, NodeName, PciAddress
from ops_pipelines.core.node_tests import HealthGate, Suite
from ops_pipelines.core.observation import Observation

# -- a finding --


@total_ordering
class Response(Enum):
    """What is called for. Compared by `rank`, from the least to the most invasive: a stronger one covers a weaker.

    The values stand in ledgers and never change; they say nothing of the order.
    """

    MONITOR = 0
    """Nothing now; it is kept, and repetition may make it more."""
    NOTIFY_OWNER = 1
    """The job's own doing: its owner is notified, no node is touched."""
    PAGE = 2
    """A human must look; nothing is touched."""
    RESET_GPU = 3
    REBOOT_NODE = 4
    POWER_CYCLE = 5
    """The node does not answer: it is fenced by power, then started."""
    REIMAGE = 6
    """Installed again by the site's own means; no finding calls for it, the ladder does."""
    RETURN_TO_VENDOR = 7
    """Handed over for repair by hands, with a report. The end of the ladder."""
    ISOLATE = 8
    """The node is taken out of service, its jobs continue elsewhere, no part is touched; its tests say what follows. No
    finding alone calls for it: `remediate.planning` does, of an incident that would otherwise only be paged."""
    PAGE_MASS_EVENT = 9
    """Too many at once: one page, no action."""

    @property
    def rank(self) -> int:
        """Where it is among the others: 0 is the least invasive."""
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
    """How many observations it is for: alike ones of one incident are one finding."""
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


# -- what a fault does to a job that continues --


AT_ONCE = 1e9
"""Strikes an hour that mean "already": a number, because what the rules are hashed by holds no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """What happens to jobs that continue under a fault of this kind."""

    family: Family | None
    """None: any family."""
    first_action: FirstAction | None
    """None: any. A row that names both outranks one that names one."""
    ends_job_per_hour: float
    """Rate at which it ends a running job; `AT_ONCE` and more: it has ended it, or it is idle, already."""
    slowdown_ratio: float
    """Share of the job's speed that is lost while it continues: 0..1."""
    source: str

    @property
    def has_ended_job(self) -> bool:
        """Whether nothing is left to wait for: the job is dead, or idle."""
        return self.ends_job_per_hour >= AT_ONCE


UNKNOWN_HAZARD = Hazard(
    family=None,
    first_action=None,
    ends_job_per_hour=0.5,
    slowdown_ratio=0.0,
    source="Assumption: a fault of which nothing is known ends the job after two hours on average",
)
"""What holds where the catalogue has no row at all; the catalogue's own row for any fault says the same."""


def strike_probability(rate: float, seconds: float) -> float:
    """Return how likely the fault strikes within `seconds`, at `rate` strikes a second."""
    return -math.expm1(-rate * seconds)


def seconds_until_strike(rate: float, seconds: float) -> float:
    """Return the expected time under the fault, which ends with its strike or after `seconds`."""
    return strike_probability(rate, seconds) / rate if rate * seconds > _TINY else seconds


def work_struck(rate: float, *, unsaved_seconds: float, seconds: float) -> float:
    """Return the expected work, in seconds of the job, that a strike within `seconds` destroys: nothing is saved.

    The integral of rate * exp(-rate * t) * (unsaved + t) over 0 <= t < seconds.
    """
    exponent = rate * seconds
    if exponent < _TINY:
        grown = seconds * exponent / 2
    else:
        grown = -(math.expm1(-exponent) + exponent * math.exp(-exponent)) / rate
    return unsaved_seconds * -math.expm1(-exponent) + grown


def work_struck_between_checkpoints(
    rate: float, *, unsaved_seconds: float, next_in_seconds: float, every_seconds: float, seconds: float
) -> float:
    """Return the same for a job that saves its work in `next_in_seconds`, and from then on every `every_seconds`.

    Whole intervals are a geometric series: each is reached with the probability that no strike came before. An interval
    below a microsecond means that nothing is ever unsaved after the first checkpoint.
    """
    first = min(next_in_seconds, seconds)
    struck = work_struck(rate, unsaved_seconds=unsaved_seconds, seconds=first)
    rest = seconds - first
    if rest <= 0 or every_seconds < _MICROSECOND:
        return struck
    whole = math.floor(rest / every_seconds)
    in_one = work_struck(rate, unsaved_seconds=0.0, seconds=every_seconds)
    if whole and rate * every_seconds > _TINY:
        in_whole = in_one * math.expm1(-rate * whole * every_seconds) / math.expm1(-rate * every_seconds)
    else:
        in_whole = in_one * whole
    in_last = work_struck(rate, unsaved_seconds=0.0, seconds=rest - whole * every_seconds)
    survives_whole = math.exp(-rate * whole * every_seconds)
    return struck + math.exp(-rate * first) * (in_whole + survives_whole * in_last)


_MICROSECOND = 1e-6
_TINY = 1e-7
"""Below it the closed forms lose their digits, and the first term of their series is exact."""


# -- what codes and log lines mean --


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAdvice:
    """What one source says is to be done, in its own word. Sources contradict one another; each is kept."""

    source: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRule:
    """The same code so often on the same part is no accident: then another step is called for."""

    count: int
    within: timedelta
    then: FirstAction
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRule:
    """One row of catalogue/xid.csv or catalogue/sxid.csv. A code without a row is unknown: never ignored, never acted
    on."""

    code: int
    mnemonic: str
    meaning: str
    at_fault: AtFault
    family: Family
    first_action: FirstAction
    """The least destructive of the sources' answers that are compatible with its meaning."""
    is_secondary: bool = False
    """The damage of something else (Xid 45): it opens no incident while that something is in sight."""
    repeat: RepeatRule | None = None
    answers: tuple[SourceAdvice, ...] = ()
    is_disputed: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRule:
    """What a row of log_signatures.csv or log_meanings.csv means. Its words are matched in `observe.logs.matching`."""

    signature: str
    category: str
    component: str
    meaning: str
    at_fault: AtFault
    family: Family
    actions: tuple[FirstAction, ...]
    """Preferred first; never empty."""
    confidence: float
    """How sure one such line, taken alone, makes us of it: 0..1."""
    is_secondary: bool = False
    repeat: RepeatRule | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """What a row of catalogue/alerts.csv means: an alert of other people's rules, by its name."""

    alert: str
    meaning: str
    at_fault: AtFault
    family: Family
    first_action: FirstAction
    """Never a repair: an alert is second-hand word, and its rule may be of any site."""
    confidence: float
    is_evidence: bool = True
    """False: it says nothing of the cluster (a watchdog that always fires, our own alerts) and is left alone."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkSubcode:
    """One row of catalogue/nvlink_subcodes.csv: what unit, register words and error status of Xid 144-150 mean."""

    code: int
    unit: str
    mask_before_r575: str
    """32 characters of 0, 1 and `-` over the first register word (IntrInfo), as drivers before R575 lay it out."""
    mask_from_r575: str
    error_status: int | None
    """The second register word; None: whatever it is."""
    first_action: FirstAction
    is_fatal: bool
    effects: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Facts about codes and lines, as read from catalogue/."""

    xids: Mapping[int, CodeRule] = field(default_factory=dict)
    sxids: Mapping[int, CodeRule] = field(default_factory=dict)
    signatures: Mapping[str, LogRule] = field(default_factory=dict)
    alerts: Mapping[str, AlertRule] = field(default_factory=dict)
    nvlink_subcodes: tuple[NvlinkSubcode, ...] = ()
    hazards: tuple[Hazard, ...] = ()
    gates: tuple[HealthGate, ...] = ()
    suites: tuple[Suite, ...] = ()
