"""What codes and log lines mean, as values: one rule a row of `catalogue/`, with every source's answer.

Facts only. Reading the tables is `resources.catalogue_files`; what an observation means is `finding`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ops_pipelines.domain.fault import AtFault, Family, FirstAction
from ops_pipelines.domain.meaning.hazard import Hazard
from ops_pipelines.domain.node_health.health_gates import HealthGate, Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
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
    answers: tuple[Answer, ...] = ()
    is_disputed: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRule:
    """What a row of catalogue/log_signatures.csv means. Its words are matched in `frames.logs.matching`."""

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
