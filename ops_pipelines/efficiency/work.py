"""What is known of jobs that are alike in some weeks: the input of every rule about jobs. Values only.

Made by `efficiency`. Unknown is None or 0 hours seen, and never taken for good or bad.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import GpuType, TeamName


@dataclass(frozen=True, slots=True, kw_only=True)
class UseHours:
    """GPU-hours of one verdict, and how the GPUs were used in them."""

    gpu_hours: float
    utilisation_ratio: float | None = None
    sm_active_ratio: float | None = None
    memory_used_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that ended in the time looked at."""

    elapsed_hours: float
    limit_hours: float | None
    """None: it had none, or it is not known."""
    state: str
    """Slurm's first word."""
    restart_count: int = 0
    gpu_count: int = 0
    node_count: int = 1
    asked_memory_bytes: float | None = None
    used_memory_bytes: float | None = None
    """The most that its steps had in use at once, of all tasks; None: not recorded."""
    waited_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """What the lines of long attempts tell of checkpoints."""

    has_lines: bool = False
    """Some lines of the jobs are at hand."""
    is_training: bool = False
    """They show steps of a training."""
    save_count: int = 0
    intervals_hours: tuple[float, ...] = ()
    """Times between two saves of one attempt."""
    save_seconds: tuple[float, ...] = ()
    """How long saves took that tell of both ends."""
    is_asynchronous: bool = False
    """Saves go on beside the training."""
    node_count: int = 1
    longest_hours: float = 0.0
    """The longest attempt that the lines are of, as far as it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """What jobs that are alike did."""

    team: TeamName
    subject: str
    since: datetime
    until: datetime
    held_gpu_hours: float
    seen_gpu_hours: float = 0.0
    """Of these somebody measured the use, and a rule could say what bounds it."""
    uses: Mapping[str, UseHours] = field(default_factory=dict)
    """By verdict, outside the first hour of each attempt."""
    early_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    """By verdict, in that first hour."""
    idle_gpu_hours: float = 0.0
    """All GPUs of the node did nothing; outside the grace of young attempts."""
    half_idle_gpu_hours: float = 0.0
    """Half of the GPUs or more did nothing."""
    early_idle_gpu_hours: float = 0.0
    longest_idle_hours: float = 0.0
    hung_gpu_hours: float = 0.0
    """They spun in a collective that nobody finished: a hang, not a way of working."""
    straggler_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    """By rule of catalogue/efficiency_rules.csv."""
    straggler_gpus: frozenset[str] = frozenset()
    mean_utilisation_ratio: float | None = None
    most_memory_used_ratio: float | None = None
    workloads: frozenset[Workload] = frozenset()
    is_interactive: bool = False
    """By what it declares, its name, or its partition."""
    attempts: tuple[Attempt, ...] = ()
    gpu_counts: frozenset[int] = frozenset()
    """GPUs of its attempts."""
    gpu_type: GpuType = GpuType("")
    """Empty: not told, or several."""
    device_memory_bytes: float | None = None
    """Of one GPU."""
    host_memory_bytes_per_gpu: float | None = None
    saves: Saves = field(default_factory=Saves)

    @property
    def weeks(self) -> float:
        return (self.until - self.since) / timedelta(days=7)

    @property
    def is_service(self) -> bool:
        return Workload.INFERENCE in self.workloads

    def ratio_of(self, verdict: str) -> float:
        """Return the share of the measured time that has a verdict, the first hours left out of the verdict."""
        use = self.uses.get(verdict)
        return 0.0 if use is None or self.seen_gpu_hours <= 0 else min(1.0, use.gpu_hours / self.seen_gpu_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """How often nodes failed under jobs, over all that ran: what the mean time between failures is made of."""

    failure_count: int
    node_hours: float

    def hours_between(self, node_count: int) -> float | None:
        """Return the mean time between failures of a job on so many nodes; None where what was seen tells none.

        No failure tells none, and so does less than one node-hour, whatever failed in it.
        """
        if self.failure_count < 1 or self.node_hours < 1:
            return None
        return self.node_hours / self.failure_count / max(1, node_count)
