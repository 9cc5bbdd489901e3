"""One job of the pretended scheduler: its states, its progress from checkpoint to checkpoint, and what an end costs.

Progress is a closed form of time. When a job starts or ends is `controller`'s business.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines_lab.simulator.load import Load
from ops_pipelines_lab.simulator.scenario import JobSpec

LOADS = {
    Workload.TRAINING: Load.TRAINING,
    Workload.INFERENCE: Load.INFERENCE,
    Workload.BATCH: Load.BATCH,
    Workload.INTERACTIVE: Load.INTERACTIVE,
    Workload.UNKNOWN: Load.BATCH,
}
"""What each sort of work usually does to a GPU."""
_REPEATS_LOST_WORK = frozenset({Workload.TRAINING, Workload.BATCH, Workload.UNKNOWN})
"""A service or a session does not do its past again: ending it wastes only the time in which it hung."""


class EndCause(Enum):
    """Why an attempt ended before its work was done."""

    REQUEUED = "requeued"
    """Somebody asked for it: hold or requeue."""
    NODE_DOWN = "node_down"
    """The scheduler gave up one of its nodes."""
    APPLICATION_FAILED = "application_failed"
    CANCELLED = "cancelled"
    CRASHED_AND_REQUEUED = "crashed_and_requeued"
    """Its program crashed, and its own script put it back into the queue."""
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """GPU time that one interrupted attempt wasted."""

    attempt: JobAttempt
    account: str
    cause: EndCause
    ended_at: datetime
    unsaved_gpu_hours: float
    """Work since the last checkpoint: it is done a second time, or never."""
    hung_gpu_hours: float
    """From the moment in which progress stopped to the end of the attempt."""
    warm_up_gpu_hours: float = 0.0
    """Its start, which the next attempt goes through again."""

    @property
    def gpu_hours(self) -> float:
        return self.unsaved_gpu_hours + self.hung_gpu_hours + self.warm_up_gpu_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBrain:
    """Two attempts of one job had processes at the same time: each could write the checkpoint of the other."""

    seen_at: datetime
    attempts: frozenset[JobAttempt]


@dataclass(slots=True)
class Job:
    """One job. The allocation is what the scheduler believes; the processes are the hardware's."""

    job: JobId
    spec: JobSpec
    submitted_at: datetime
    eligible_at: datetime
    """It starts no earlier (requeue delay)."""
    state: JobState = JobState.PENDING
    is_held: bool = False
    excluded: set[NodeName] = field(default_factory=set)
    allocation: dict[NodeName, tuple[int, ...]] = field(default_factory=dict)
    last_nodes: tuple[NodeName, ...] = ()
    """Nodes of the last attempt, which Slurm goes on listing after its end."""
    """GPU indices by node; empty unless running or completing."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    restart_count: int = 0
    slowdown_ratio: float = 0.0
    """By how much longer the steps of the present attempt take, for what its nodes run."""
    hung_at: datetime | None = None
    """When the present attempt stopped making progress; None if it goes on. It never recovers by itself."""
    saved_work: timedelta = timedelta(0)
    """Work in the last checkpoint of earlier attempts."""
    saved_at: datetime | None = None
    """When that checkpoint was complete."""
    waits_for: set[NodeName] = field(default_factory=set)
    """While completing: nodes that have not yet said that the processes are gone."""
    becomes: JobState = JobState.PENDING
    """While completing: the state that follows."""
    unclear: dict[JobAttempt, frozenset[NodeName]] = field(default_factory=dict)
    """Of earlier attempts: the nodes that had not said that its processes are gone when the scheduler gave it up."""

    @property
    def attempt(self) -> JobAttempt:
        if self.started_at is None:
            raise ValueError(f"job {self.job} never ran; it has no attempt")
        return JobAttempt(job=self.job, started_at=self.started_at)

    @property
    def load(self) -> Load:
        """What it does to its GPUs while all is well."""
        return LOADS[self.spec.workload] if self.spec.load is None else self.spec.load

    @property
    def is_running(self) -> bool:
        return self.state is JobState.RUNNING

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def has_ended_for_good(self) -> bool:
        """Return whether it is over, or will be once it has completed: the scheduler takes no command for it."""
        return self.is_over or (self.state is JobState.COMPLETING and self.becomes is not JobState.PENDING)

    @property
    def gpu_count(self) -> int:
        return self.spec.node_count * self.spec.gpus_per_node

    def may_start(self, at: datetime) -> bool:
        return self.state is JobState.PENDING and not self.is_held and self.eligible_at <= at

    @property
    def warms_up_until(self) -> datetime | None:
        """Return when the present attempt begins to work; None if it never ran."""
        return None if self.started_at is None else self.started_at + timedelta(seconds=self.spec.warm_up_seconds)

    def serves(self, at: datetime) -> bool:
        """Return whether the present attempt does what it is for: past its warm-up, and not hanging."""
        return (
            self.is_running and self.hung_at is None and self.warms_up_until is not None and self.warms_up_until <= at
        )

    def fresh_work(self, at: datetime) -> timedelta:
        """Return the productive time of the present attempt up to `at`; zero while it does not run."""
        return self._work_after(self._passed(at) + self._phase()) - self._work_after(self._phase())

    def checkpointed_work(self, at: datetime) -> timedelta:
        """Return the work in the newest checkpoint: what a restart would begin with."""
        interval, checkpoint_count = self._interval(), self._checkpoint_count(at)
        if interval is None or not checkpoint_count:
            return self.saved_work
        return self.saved_work + checkpoint_count * interval - self._work_after(self._phase())

    def checkpointed_at(self, at: datetime) -> datetime | None:
        """Return when the newest checkpoint was complete; None if there is none."""
        checkpoint_count = self._checkpoint_count(at)
        if self.warms_up_until is None or not checkpoint_count:
            return self.saved_at
        return self.warms_up_until + checkpoint_count * self._cycle() - self._phase()

    def finishes_at(self) -> datetime | None:
        """Return when the present attempt completes its work; None if it runs without end or hangs."""
        if self.spec.work_seconds is None or self.warms_up_until is None or self.hung_at is not None:
            return None
        left, interval = timedelta(seconds=self.spec.work_seconds) - self.saved_work, self._interval()
        saves = timedelta(0)
        if interval is not None:
            # The save that the end of the work would begin is not waited for.
            begun = self._work_after(self._phase())
            save_count = max(-(-(begun + left) // interval) - 1, 0)
            saves = save_count * self._save() - (self._phase() - begun)
        return self.warms_up_until + left + saves

    def unsaved_gpu_hours(self, at: datetime) -> float:
        """Return what would have to be done again if the attempt ended at `at`."""
        if self.spec.workload not in _REPEATS_LOST_WORK:
            return 0.0
        return self._gpu_hours(self.saved_work + self.fresh_work(at) - self.checkpointed_work(at))

    def warm_up_gpu_hours(self, at: datetime) -> float:
        """Return what the start of the present attempt has cost up to `at`."""
        if self.started_at is None or not self.is_running:
            return 0.0
        return self._gpu_hours(min(at - self.started_at, timedelta(seconds=self.spec.warm_up_seconds)))

    def hung_gpu_hours(self, at: datetime) -> float:
        """Return what the present attempt has wasted since it hangs."""
        return 0.0 if self.hung_at is None or not self.is_running else self._gpu_hours(at - self.hung_at)

    def save(self, at: datetime) -> None:
        """Keep the newest checkpoint over the end of the attempt. Call before the state changes."""
        self.saved_at, self.saved_work = self.checkpointed_at(at), self.checkpointed_work(at)

    def _passed(self, at: datetime) -> timedelta:
        """Return how long the present attempt has worked and saved; zero while it does not run."""
        if not self.is_running or self.warms_up_until is None:
            return timedelta(0)
        stopped_at = at if self.hung_at is None else min(at, self.hung_at)
        return max(timedelta(0), stopped_at - self.warms_up_until)

    def _phase(self) -> timedelta:
        return timedelta(seconds=self.spec.checkpoint_phase_seconds if self.restart_count == 0 else 0.0)

    def _save(self) -> timedelta:
        return timedelta(seconds=self.spec.checkpoint_save_seconds)

    def _cycle(self) -> timedelta:
        """Return the time from one checkpoint to the next; call only where there are any."""
        return timedelta(seconds=self.spec.checkpoint_interval_seconds or 0.0) + self._save()

    def _checkpoint_count(self, at: datetime) -> int:
        """Return how many checkpoints the present attempt has completed."""
        return 0 if self._interval() is None else (self._passed(at) + self._phase()) // self._cycle()

    def _work_after(self, passed: timedelta) -> timedelta:
        """Return the work of so much time at it: all of it but the saving."""
        interval = self._interval()
        if interval is None:
            return passed
        full, rest = divmod(passed, self._cycle())
        return full * interval + min(rest, interval)

    def _interval(self) -> timedelta | None:
        seconds = self.spec.checkpoint_interval_seconds
        return None if seconds is None else timedelta(seconds=seconds)

    def _gpu_hours(self, duration: timedelta) -> float:
        return duration / timedelta(hours=1) * self.gpu_count
