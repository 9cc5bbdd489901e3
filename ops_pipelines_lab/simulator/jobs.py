"""One job of the simulated scheduler: its states, its progress from checkpoint to checkpoint, what an end costs; where
it fits; the accounts, and what their GPUs may sum up to; and how many replicas of each service serve.

Progress is a closed form of time. Placement is a pure choice of nodes and GPUs, the same for the same question. When a
job is considered, starts or ends is `controller`'s.

As in Slurm, a job that completes still counts for its account, and one that waits for its account keeps no node from
others. Shares are kept and shown; the simulated queue goes by priority and age. A replica serves while its attempt
runs, has warmed up and does not hang; that is watched only.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.observation import JobState, Workload
from ops_pipelines_lab.simulator.journal import NOT_COMMANDS, EntryKind, QuotaOrder
from ops_pipelines_lab.simulator.load import Load
from ops_pipelines_lab.simulator.scenario import JobSpec, Scenario

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
    """Nodes of the last attempt, which Slurm keeps listing after its end."""
    """GPU indices by node; empty unless running or completing."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    restart_count: int = 0
    slowdown_ratio: float = 0.0
    """By how much longer the steps of the present attempt take, for what its nodes run."""
    hung_at: datetime | None = None
    """When the present attempt stopped making progress; None if it continues. It never recovers by itself."""
    saved_work: timedelta = timedelta(0)
    """Work in the last checkpoint of earlier attempts."""
    saved_at: datetime | None = None
    """When that checkpoint was complete."""
    waits_for: set[NodeName] = field(default_factory=set)
    """While completing: nodes that have not yet reported that the processes are gone."""
    becomes: JobState = JobState.PENDING
    """While completing: the state that follows."""
    unclear: dict[JobAttempt, frozenset[NodeName]] = field(default_factory=dict)
    """Of earlier attempts: the nodes that had not reported that its processes are gone when the scheduler gave it up.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The GPU indices found for a job, by node; complete or not."""

    gpus: dict[NodeName, tuple[int, ...]]
    is_complete: bool


def find_place(
    job: Job,
    *,
    free_gpus: Mapping[NodeName, tuple[int, ...]],
    kept: Collection[NodeName],
    last: Collection[NodeName],
    gpus_per_node: int,
) -> Place:
    """Return where the job fits first.

    Whole nodes are taken from the front of the list, parts of nodes from nodes already in use and then from the
    back, so that small jobs leave whole nodes whole. `kept` are nodes that a job before this one waits for; those of
    `last` are taken only where no others fit.
    A job that could not even run on an empty cluster of these nodes keeps nothing.
    """
    need = job.spec.gpus_per_node
    fitting = [
        name for name, free in free_gpus.items() if len(free) >= need and name not in job.excluded and name not in kept
    ]
    if need < gpus_per_node:
        is_in_use = [name for name in fitting if len(free_gpus[name]) < gpus_per_node]
        fitting = is_in_use + [name for name in reversed(fitting) if len(free_gpus[name]) == gpus_per_node]
    if last:
        fitting.sort(key=lambda name: name in last)
    chosen = {name: free_gpus[name][:need] for name in fitting[: job.spec.node_count]}
    if len(chosen) == job.spec.node_count:
        return Place(gpus=chosen, is_complete=True)
    allowed_count = sum(name not in job.excluded for name in free_gpus)
    return Place(gpus=chosen if allowed_count >= job.spec.node_count else {}, is_complete=False)


class QuotaLimits:
    """The accounts there are, each with its limit and share."""

    def __init__(self, scenario: Scenario) -> None:
        jobs = (*scenario.initial_jobs, *(each.job for each in scenario.arrivals))
        limited = {each.account: each.gpu_count for each in scenario.limits}
        names = sorted({*scenario.accounts, *limited, *(job.account for job in jobs)})
        self.limits: dict[str, int] = limited
        """Account -> GPUs at most; who is not named has no limit."""
        self.fairshares: dict[str, int | None] = dict.fromkeys(names, 1)
        """Account -> its share; None: none of its own."""

    @property
    def accounts(self) -> Collection[str]:
        """Return every account that is known."""
        return self.fairshares.keys()

    def add_account(self, account: str) -> None:
        """Know an account from now on; one that is known stays as it is."""
        self.fairshares.setdefault(account, 1)

    def set(self, orders: Iterable[QuotaOrder]) -> None:
        for order in orders:
            if order.is_fairshare:
                self.fairshares[order.account] = order.value
            elif order.value is None:
                self.limits.pop(order.account, None)
            else:
                self.limits[order.account] = order.value

    def holds(self, job: Job, jobs: Collection[Job]) -> bool:
        """Return whether the job waits for its account: with it, more GPUs would be in use than the limit."""
        limit = self.limits.get(job.spec.account)
        if limit is None:
            return False
        in_use = sum(
            len(gpus) for each in jobs if each.spec.account == job.spec.account for gpus in each.allocation.values()
        )
        return in_use + job.gpu_count > limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingChange:
    """From `at` on so many replicas serve."""

    at: datetime
    service: str
    serving_count: int
    before_count: int
    min_serving_count: int
    cause: EntryKind | None
    """The entry whose own effect it is; None if it came by itself: a start, an end, a node given up."""

    @property
    def breaks_minimum_by_command(self) -> bool:
        """Return whether a command took replicas away and left less than the service declares."""
        is_command = self.cause is not None and self.cause not in NOT_COMMANDS
        return is_command and self.serving_count < min(self.before_count, self.min_serving_count)


class ServingLog:
    """The changes since the beginning."""

    def __init__(self) -> None:
        self.changes: list[ServingChange] = []
        self._counts: dict[str, int] = {}

    def note(self, jobs: Iterable[Job], at: datetime, cause: EntryKind | None) -> None:
        """Keep what differs from the last time; a cluster without services costs one look at its jobs."""
        serving: dict[str, int] = dict.fromkeys(self._counts, 0)
        minima: dict[str, int] = {}
        for job in jobs:
            if job.spec.service:
                service = job.spec.service
                minima[service] = max(minima.get(service, 0), job.spec.min_serving_count)
                serving[service] = serving.get(service, 0) + job.serves(at)
        for service, count in serving.items():
            before = self._counts.get(service, 0)
            if count != before or service not in self._counts:
                self.changes.append(
                    ServingChange(
                        at=at,
                        service=service,
                        serving_count=count,
                        before_count=before,
                        min_serving_count=minima.get(service, 0),
                        cause=cause,
                    )
                )
        self._counts = serving
