"""Validated facts, each with its time: what the logs stated, what the metrics show, how nodes and jobs stand.

Facts only. What they mean is `finding`'s business; how raw lines and samples become facts is that of `lake`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.fault import Component
from ops_pipelines.core.identity import GpuUuid, JobAttempt, JobId, NodeName, PciAddress

NO_NODE = NodeName("")
"""The node of an observation that belongs to none: of a job as a whole, a switch, a rack, a file system."""


class Signal(Enum):
    """What kind of fact an observation is."""

    XID = "xid"
    """The driver logged an event; `code` is the Xid."""
    RECOVERY_ACTION = "recovery_action"
    """The driver says what it needs (DCGM field 1523, Xid 154); `code` is the number, as in `RecoveryAction`."""
    ECC_UNCORRECTABLE = "ecc_uncorrectable"
    """The volatile count of uncorrectable ECC errors is above 0; `code` is the count."""
    GPU_MISSING = "gpu_missing"
    """The node reports fresh metrics for fewer GPUs than it has; `code` is how many are missing."""
    NODE_UNREACHABLE = "node_unreachable"
    """The scheduler gets no answer from the node's daemon."""
    TELEMETRY_STALE = "telemetry_stale"
    """The node's metrics stopped altogether."""
    SXID = "sxid"
    """An NVSwitch logged an event; `code` is the SXid, `component` the switch or its link."""
    LOG_SIGNATURE = "log_signature"
    """A line matched a row of catalogue/log_signatures.csv, named by `signature`."""

    # What windows of samples show (`observe.detectors`); `value` is the number that decided, in the unit of the text.
    ROW_REMAP = "row_remap"
    """A row remap is pending, failed, or the reserve runs out; `code` 1, 2, 3."""
    ECC_RATE = "ecc_rate"
    NVLINK_ERRORS = "nvlink_errors"
    PCIE_ERRORS = "pcie_errors"
    PCIE_DEGRADED = "pcie_degraded"
    GPU_HOT = "gpu_hot"
    """Hotter than its neighbours at the same work, or throttled by heat while they are not."""
    GPU_CAPPED = "gpu_capped"
    """Slowed by a power brake or a lower limit than its neighbours have."""
    GPU_SLOW = "gpu_slow"
    """A straggler: apart from the peers of its job, for no reason that its own sensors show."""
    LINK_DOWN = "link_down"
    LINK_FLAPS = "link_flaps"
    LINK_ERRORS = "link_errors"
    DISK_WORN = "disk_worn"
    DISK_FULL = "disk_full"
    DISK_FAILING = "disk_failing"
    HOST_MEMORY = "host_memory"
    CLOCK_SKEW = "clock_skew"
    VERSION_DRIFT = "version_drift"
    INLET_HOT = "inlet_hot"
    POWER_SUPPLY = "power_supply"
    STORAGE_STALL = "storage_stall"
    """The node waits for shared storage and gets nothing."""
    JOB_HUNG = "job_hung"
    """No progress signal of a job moves; the node is the one whose ranks differ from all others, or none."""
    JOB_STALLED = "job_stalled"
    """Busy by its looks, but waiting for storage or network; `code` 1 storage, 2 network."""
    GPUS_IDLE = "gpus_idle"
    """A job holds GPUs and does not use them."""
    JOB_CRASH_LOOP = "job_crash_loop"
    """The same job fails again and again, on changing nodes: its own doing."""
    NODE_FAILS_JOBS = "node_fails_jobs"
    """Different jobs fail on one node, and elsewhere they do not."""
    LOSS_NOT_FINITE = "loss_not_finite"
    LOSS_SPIKE = "loss_spike"

    REPEATED = "repeated"
    """What `signature` names has happened so often on one part that the part is suspect; `value` is how often."""
    ALERT = "alert"
    """A rule of somebody else's monitoring fires, named by `signature`; it ends when the alert is resolved."""


TELEMETRY_SOURCE, SCHEDULER_SOURCE, DETECTOR_SOURCE = "telemetry", "scheduler", "detectors"
HISTORY_SOURCE = "history"
"""Who reports of repetitions (`observe.repeated`): each is an event, and reported once."""
ALERT_SOURCE = "alerts"
"""What Alertmanager hands in: second-hand word, as late as its rules, and not taken back where somebody silenced it."""
CONDITION_SOURCES = frozenset({TELEMETRY_SOURCE, SCHEDULER_SOURCE, DETECTOR_SOURCE, ALERT_SOURCE})
"""Sources that show how things stand, not what happened: an observation of theirs lasts until it is gone."""


class RecoveryAction(Enum):
    """What the driver itself asks for: DCGM field 1523 and Xid 154 (source: NVML nvmlDeviceGpuRecoveryAction_t)."""

    NONE = 0
    RESET_GPU = 1
    REBOOT_NODE = 2
    DRAIN_PEER_TO_PEER = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One fact that may be evidence. (source, position) is unique, so taking it in twice changes nothing."""

    signal: Signal
    node: NodeName
    observed_at: datetime
    """When it happened (a log line) or began (a condition), UTC."""
    source: str
    position: str
    code: int | None = None
    """What the number means depends on the signal; None where the signal carries none."""
    gpu: PciAddress | None = None
    gpu_uuid: GpuUuid | None = None
    text: str = ""
    """The evidence as a person would read it: the log line, or a sentence. Untrusted: never reaches a shell."""
    component: Component | None = None
    """The part that it names, where that is neither the GPU nor the node as a whole."""
    job: JobId | None = None
    """The job that it is about, or that wrote the line; None if it names none."""
    signature: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A line, sample or row that could not be believed, kept with the reason."""

    source: str
    position: str
    reason: str
    text: str


HISTORY = "it is from before the ledger's birth, or from before its restoration: history, and no cause to act"
"""The reason with which such evidence is kept among the rejected."""


def is_history(observation: Observation, until: datetime) -> bool:
    """Return whether something happened before `until`; by the second, as most lines are dated."""
    return observation.observed_at < until.replace(microsecond=0)


def as_history(observation: Observation) -> Rejected:
    """Return how history is kept."""
    return Rejected(source=observation.source, position=observation.position, reason=HISTORY, text=observation.text)


def seen_by_ourselves(conditions: Iterable[Observation]) -> tuple[Observation, ...]:
    """Return the conditions that our own sources show.

    A node is proven well by what we see ourselves: an alert that nobody takes back must not hold it for ever, and
    Alertmanager notifies people of one that still fires.
    """
    return tuple(each for each in conditions if each.source != ALERT_SOURCE)


GIVEN_UP = "Not responding"
"""The reason that Slurm gives to a node that has been silent for as long as its limit."""


class NodeState(Enum):
    """What the node is doing, apart from its flags."""

    IDLE = "idle"
    MIXED = "mixed"
    ALLOCATED = "allocated"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """How the scheduler sees one node. Slurm: base state and flags; Kubernetes: conditions and cordon."""

    node: NodeName
    state: NodeState
    is_drained: bool
    """No new work (Slurm DRAIN flag, Kubernetes cordon). Jobs may still run."""
    is_responding: bool
    """As fresh as the scheduler's last ping: up to SlurmdTimeout/3 old."""
    reason: str | None
    """Why it is drained or down, without any `[user@time]` suffix. None if the scheduler gives none."""
    reason_set_at: datetime | None
    booted_at: datetime | None
    gpu_count: int
    gpu_in_use_count: int
    partitions: frozenset[str] = frozenset()
    is_last_choice: bool = False
    """Jobs are put on it only where no other node fits: it is on probation."""
    reserved_as: str | None = None
    """The reservation that keeps it free of other work; None if there is none."""


class JobState(Enum):
    """Where a job is in its life. UNKNOWN is a state that this program has no word for."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    OUT_OF_MEMORY = "out_of_memory"
    UNKNOWN = "unknown"


HAS_PROCESSES = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})
"""States in which an attempt may still write to its checkpoint."""
MAY_HAVE_PROCESSES = HAS_PROCESSES | {JobState.UNKNOWN}
"""The same, for anyone who would destroy something: a state without a word is no proof that nothing runs."""


class Workload(Enum):
    """What sort of work a job says it is (job comment, partition or label); UNKNOWN if it says nothing."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    INTERACTIVE = "interactive"
    UNKNOWN = "unknown"


class Checkpointing(Enum):
    """Whether a job saves its work, as it declares or as was seen."""

    YES = "yes"
    NO = "no"
    """It says itself that it keeps none: anyone who ends it ends all its work."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """How the scheduler sees one job. Name, user and comment are the user's text: shown, never executed."""

    job: JobId
    state: JobState
    is_held: bool
    is_requeueable: bool
    name: str
    user: str
    account: str
    workload: Workload
    nodes: frozenset[NodeName]
    """Nodes of the present (or, once ended, the last) attempt; empty while pending."""
    gpu_count: int
    started_at: datetime | None
    """Start of the present (or, once ended, the last) attempt; None if it never ran."""
    ended_at: datetime | None
    restart_count: int
    excluded_nodes: frozenset[NodeName]
    checkpointed_at: datetime | None
    """When the last checkpoint was complete; None if unknown, which is not the same as never."""
    checkpointing: Checkpointing = Checkpointing.UNKNOWN
    checkpoint_every: timedelta | None = None
    """How far apart its checkpoints are, as declared or as seen; None if unknown."""
    partition: str = ""
    ends_by: datetime | None = None
    """When its time limit ends it; None while it does not run, or if it has none."""
    service: str = ""
    """The service that it is a replica of, as declared; empty if it is none."""
    min_serving_count: int = 0
    """How many replicas of `service` must serve, as declared."""
    priority: int | None = None
    """Its place in the queue, a larger number earlier; None if the scheduler gives none."""
    is_held_by_user: bool = False
    """Whether it was its user who held it last: theirs to release."""
    checkpoint: str = ""
    """Where it saves its work, as declared: the user's text. Empty: it does not say."""

    @property
    def attempt(self) -> JobAttempt | None:
        """The present or last attempt; None if the job never ran."""
        return None if self.started_at is None else JobAttempt(job=self.job, started_at=self.started_at)


def has_moved_on(job: JobStatus, attempt: JobAttempt) -> bool:
    """Return whether the job has started another attempt since `attempt`.

    A pending job has not: what schedulers show as its start is a guess about the future, or nothing.
    """
    return job.state is not JobState.PENDING and job.started_at is not None and job.started_at > attempt.started_at


class PowerState(Enum):
    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInspection:
    """One GPU as the node itself sees it now (NVML)."""

    gpu: PciAddress
    gpu_uuid: GpuUuid
    recovery_action: RecoveryAction
    uncorrectable_ecc_count: int
    """Volatile: since the driver loaded or the GPU was reset."""
    is_row_remap_pending: bool
    model: str = ""
    serial: str = ""
    """What is printed on the board, for the vendor; empty if the GPU does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInspection:
    """What a check that ran on the node itself found. A GPU that fell off the bus is not listed."""

    node: NodeName
    inspected_at: datetime
    boot_id: str
    booted_at: datetime
    gpus: tuple[GpuInspection, ...]
    failures: tuple[str, ...]
    """What the node's own check complains of, one sentence each; empty if nothing."""
    chassis_serial: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryStatus:
    """What the metrics say of one node at one grid time."""

    node: NodeName
    newest_sample_at: datetime
    gpus_seen: frozenset[PciAddress]
