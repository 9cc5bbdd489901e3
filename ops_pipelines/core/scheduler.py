"""The workload manager: what nodes and jobs are doing, its limits and settings, what moves jobs; quotas in it.

Slurm and Kubernetes both fit: drain is "no new work" (Slurm DRAIN, Kubernetes cordon), a held job is one that will not
start until released (Slurm requeuehold, Kubernetes suspend). A limit of GPUs is what an account and those below it may
sum up to. It decides which jobs *start*: those that run continue. No quota is decided here.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Protocol

from ops_pipelines.core.identity import JobAttempt, JobId, NodeName
from ops_pipelines.core.observation import JobStatus, NodeStatus, Rejected
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.core.sources import SourceUnavailable

# -- what the scheduler does by itself when a node falls silent --


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the scheduler is set to do by itself, as it says."""

    silence_limit: timedelta | None
    """A node silent for this long is given up, its jobs start elsewhere (Slurm: SlurmdTimeout; Kubernetes:
    node-monitor-grace-period and the toleration of `unreachable`). None: never."""
    ping_interval: timedelta | None
    """How often a node is heard of; None: nodes are not asked, so that their silence is not seen. Known if there is
    a silence limit."""
    answer_limit: timedelta
    """How long one missing answer is waited for (Slurm: MessageTimeout). 0: not at all."""
    is_every_down_node_returned: bool
    """A node that was declared down goes into service as soon as it registers (Slurm: ReturnToService=2)."""
    is_requeue_the_default: bool
    """False: a job may be requeued only if its user asked for that (Slurm: JobRequeue=0)."""
    unguarded: str
    """Why a restart may start while an attempt before it still runs, whatever we do; empty: the scheduler itself lets
    none go ahead before its last nodes are clear (Slurm: our start guard)."""
    version: str = ""
    """Of the scheduler's controller, which nodes may not be ahead of; empty if it does not say."""

    def __post_init__(self) -> None:
        for name in ("silence_limit", "ping_interval"):
            value = getattr(self, name)
            if value is not None and value <= timedelta(0):
                raise ValueError(f"{name} is {value}; it must be above 0, or None")
        if self.answer_limit < timedelta(0):
            raise ValueError(f"answer_limit is {self.answer_limit}; it must be 0 or more")
        if self.silence_limit is not None and self.ping_interval is None:
            raise ValueError("silence_limit without ping_interval: who gives silent nodes up listens to them")


# -- the workload manager --


class Scheduler(Protocol):
    """Reads nodes and jobs; sends commands.

    Every method returns or raises within its command limit (below 5 s, a third of the lease). All raise
    `SourceUnavailable` (no answer: effect unknown), `SourceRefused` (answered no: no effect) or
    `SourceNonsense`. A command that returns was accepted; whether it *happened* is read back by the caller.
    Commands are idempotent: asking for what already is succeeds and changes nothing.
    """

    def read_nodes(self) -> tuple[NodeStatus, ...]:
        """Return every node that the scheduler knows, in no particular order."""
        ...

    def read_jobs(self) -> tuple[JobStatus, ...]:
        """Return every job that is pending or has processes, and those that ended within the last minutes."""
        ...

    def read_limits(self) -> SchedulerLimits:
        """Return what the scheduler is set to do by itself, above all when it gives a silent node up."""
        ...

    def drain(self, nodes: Collection[NodeName], *, reason: str) -> None:
        """Let no new work start on `nodes`; running jobs continue. One command for the whole batch.

        An empty batch or reason raises ValueError: empty never means all. The reason is read back in
        `NodeStatus.reason`. The caller has made sure that nobody else's drain is overwritten.
        """
        ...

    def resume(self, node: NodeName) -> None:
        """Take back the drain (and a down state, if the node answers); a node in service stays as it is."""
        ...

    def hold(self, job: JobId) -> None:
        """Requeue a running job and hold it (or hold a pending one): it will not start before `release`.

        Returns at once; the processes of the attempt end later, on a reachable node. Refused if the job is
        unknown, has ended, or must not be requeued.
        """
        ...

    def requeue(self, job: JobId) -> None:
        """Send a running job back to pending without a hold. Not a fence: its processes may outlive the call."""
        ...

    def exclude(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Keep a pending job off `nodes`, in addition to the nodes that it is kept off already.

        Refused while the job runs. An empty collection raises ValueError.
        """
        ...

    def readmit(self, job: JobId, nodes: Collection[NodeName]) -> None:
        """Let a pending job onto `nodes` again that it was kept off; nodes that it is not kept off change nothing.

        Refused while the job runs. An empty collection raises ValueError.
        """
        ...

    def release(self, job: JobId) -> None:
        """Let a held job start when there is room. Refused if the job is unknown or has ended."""
        ...

    def mark(self, attempts: Collection[JobAttempt]) -> None:
        """Mark running jobs held: they run on, and start nowhere else before they are released. One command for all.

        A job that is held already stays as it is. An empty collection raises ValueError. If some of several have ended
        or are on another attempt, the others are marked all the same, and SourceUnavailable says to read the jobs.
        """
        ...

    def unmark(self, jobs: Mapping[JobId, int | None]) -> None:
        """Release marked jobs in one go, and bring priorities back that somebody had set by hand: as they were then.

        Otherwise as `mark`. Jobs that their users hold by now, that are not held, unknown or over, are let be.
        """
        ...

    def reserve(self, nodes: Collection[NodeName], *, name: str, until: datetime) -> None:
        """Keep idle nodes free under `name` until `until` at the latest: nobody's job starts there.

        No job ever runs in it: it is handed over by `unreserve` just before the job that it is for is released. Refused
        if a node is not free. An empty collection raises ValueError. Reserving again under the same name replaces it.
        """
        ...

    def unreserve(self, name: str) -> None:
        """Give the nodes of a reservation back; one that is gone already stays gone."""
        ...

    def book(self, nodes: Collection[NodeName], *, name: str, begins_at: datetime, ends_at: datetime) -> None:
        """Announce maintenance: no job starts on `nodes` that would run into it; running ones are let be.

        Given back by `unreserve`. Booking again under the same name replaces it. An empty collection raises ValueError.
        """
        ...

    def put_last(self, node: NodeName) -> None:
        """Choose the node for new jobs only where no other fits. Shown as `NodeStatus.is_last_choice`."""
        ...

    def put_back(self, node: NodeName) -> None:
        """Choose the node like any other again."""
        ...

    def declare_down(self, node: NodeName, *, reason: str) -> None:
        """Tell the scheduler that a node that is already powered off is gone, so that its jobs stop completing.

        Never a fence: on a node that still runs this starts a second copy of the job.
        """
        ...


# -- what a scheduler's settings mean for who waits how long --


Values = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsRead:
    """What the scheduler stated of its settings."""

    cluster: Values
    partitions: Mapping[str, Values] = field(default_factory=dict)
    qos: Mapping[str, Values] = field(default_factory=dict)
    read_at: datetime
    unread: tuple[str, ...] = ()
    """What could not be read, and why."""


# -- how the scheduler is set up --


class SchedulerSettings(Protocol):
    """Reads settings of the cluster, of its partitions and of its QOS, in the scheduler's own words."""

    def read(self) -> SettingsRead:
        """Return what holds now. What could not be read beside the cluster's own settings is in `unread`.

        Raises SourceUnavailable or SourceNonsense where not even these can be read.
        """
        ...


_ENDLESS = frozenset({"unlimited", "infinite", "-1"})


_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


def seconds_of(text: str) -> float | None:
    """Return the seconds of Slurm's `7-00:00:00`, `01:00:00` or `30`, which is minutes; None for no limit.

    Raises ValueError for what is no time.
    """
    word = text.strip().lower()
    if word in _ENDLESS:
        return None
    match = _TIME.fullmatch(word)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no time; expected 1-00:00:00, 01:00:00 or minutes")
    first, second, third = (int(match[name] or 0) for name in ("first", "second", "third"))
    if match["days"] is not None:
        return float(int(match["days"]) * 86400 + first * 3600 + second * 60 + third)
    if match["second"] is None:
        return first * 60.0
    return first * 3600.0 + second * 60 + third if match["third"] is not None else first * 60.0 + second


ALL_TYPES = GpuType("")
"""GPUs of every type together."""
MOST = 2**31 - 2
"""Above it schedulers keep marks such as "unset" and "infinite"; 2**31 - 1 is Slurm's share of the parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountQuota:
    """What holds for one account by its own settings; what its parents have holds beside it."""

    account: TeamName
    parent: TeamName | None
    """The account that it belongs to; None: it is the topmost."""
    limits: Mapping[GpuType, int]
    """GPUs at most; what is not named has no limit. Under `ALL_TYPES` that of all types together."""
    fairshare: int | None
    """Its shares among its siblings; None: it has no place of its own, its users share with those of its parent."""

    def limit_of(self, gpu_type: GpuType) -> int | None:
        """Return the most GPUs of this type; None: no limit."""
        return self.limits.get(gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasInForce:
    """One reading."""

    accounts: Mapping[TeamName, AccountQuota]
    read_at: datetime
    unheeded: frozenset[TeamName] = frozenset()
    """Accounts of which the running scheduler follows other limits than those kept: it was not notified, or not yet."""
    rejected: tuple[Rejected, ...] = ()
    """What could not be believed; the accounts named there are missing above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """One limit of one account."""

    account: TeamName
    gpu_type: GpuType = ALL_TYPES
    before: int | None
    """As it was read; None: no limit."""
    after: int | None

    def __post_init__(self) -> None:
        for name, value in (("before", self.before), ("after", self.after)):
            _check(value, what=f"limit {name} of {self.account!r}")

    @property
    def undone(self) -> "QuotaChange":
        """Return the change that takes this one back."""
        return QuotaChange(account=self.account, gpu_type=self.gpu_type, before=self.after, after=self.before)

    def stands_in(self, quota: AccountQuota) -> int | None:
        """Return what the account has of what this changes."""
        return quota.limit_of(self.gpu_type)

    def __str__(self) -> str:
        return f"{self.account} {self.gpu_type or 'all GPUs'}: {_limit(self.before)} -> {_limit(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FairshareChange:
    """The shares of one account among its siblings; None: none of its own."""

    account: TeamName
    before: int | None
    after: int | None

    def __post_init__(self) -> None:
        for name, value in (("before", self.before), ("after", self.after)):
            _check(value, what=f"fair share {name} of {self.account!r}")

    @property
    def undone(self) -> "FairshareChange":
        """Return the change that takes this one back."""
        return FairshareChange(account=self.account, before=self.after, after=self.before)

    def stands_in(self, quota: AccountQuota) -> int | None:
        """Return what the account has of what this changes."""
        return quota.fairshare

    def __str__(self) -> str:
        return f"{self.account} fair share: {_share(self.before)} -> {_share(self.after)}"


Change = QuotaChange | FairshareChange


class QuotasHalfApplied(SourceUnavailable):
    """The scheduler stopped answering in the middle of a batch.

    Each change is in as a whole or not at all. Applying the same changes again completes them; applying what undoes
    `are_in` restores what was.
    """

    def __init__(
        self, reason: str, *, are_in: Sequence[Change], are_not_in: Sequence[Change], unknown: Sequence[Change]
    ) -> None:
        parts = (("in", are_in), ("not in", are_not_in), ("unknown whether in", unknown))
        told = "; ".join(f"{word}: {', '.join(map(str, changes))}" for word, changes in parts if changes)
        super().__init__(f"{reason}. Of the changes are {told}. Apply them again to complete them")
        self.are_in = tuple(are_in)
        self.are_not_in = tuple(are_not_in)
        self.unknown = tuple(unknown)


class TypedLimits(Enum):
    """Whether a limit on GPUs of one type also holds a job that asks for GPUs and names no type."""

    HELD = "held"
    NOT_HELD = "not_held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaProbe:
    """What limits are worth on this cluster, as it is set up now."""

    is_enforced: bool
    """Whether any limit holds anybody."""
    enforced_because: str
    """What that was judged by: the setting, its value, and what to set."""
    typed_limits: TypedLimits
    typed_because: str
    """As above."""
    counted_types: frozenset[GpuType] = frozenset()
    """The types that are counted apart, so that a limit can be set on them."""
    gpu_billing: Mapping[str, float] = field(default_factory=dict)
    """Partition with GPUs -> what one GPU weighs in the usage that fair share compares; 0: it is free."""
    warnings: tuple[str, ...] = ()
    """What else weakens limits or fair share, each with its setting and what to do."""


class Quotas(Protocol):
    """Reads and sets limits. Every method raises SourceUnavailable or SourceNonsense."""

    def read(self) -> QuotasInForce:
        """Return what holds for each account."""
        ...

    def probe(self) -> QuotaProbe:
        """Return what limits are worth here.

        Where settings do not tell, it may submit jobs that are held from the beginning, look at what became of their
        requests, and cancel them.
        """
        ...

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes; none is fine. What is as it shall be already is left alone.

        Who asks reads afterwards, and compares. Lowering comes before raising, so that the sum is never larger than
        before and after. Raises

        * ValueError for two changes of one thing;
        * SourceRefused, and nothing was changed, if an account is unknown, if something is neither as `before` nor as
          `after` says (somebody else changed it), or if a limit would be set where limits hold nobody, or on a type
          where `probe` does not say HELD: then a limit on all types together is what can be had. Lifting is always
          possible, so that what was set can be undone;
        * SourceRefused in the middle of a batch where the scheduler says no: the message says what is in;
        * QuotasHalfApplied if the scheduler stops answering in the middle.
        """
        ...


def refuse_twice_the_same(changes: Sequence[Change]) -> None:
    """Raise ValueError if two changes are of the same thing."""
    seen: set[tuple[TeamName, GpuType | None]] = set()
    for change in changes:
        key = change.account, change.gpu_type if isinstance(change, QuotaChange) else None
        if key in seen:
            raise ValueError(f"{change}: a second change of the same in one batch; give one each")
        seen.add(key)


def find_obstacles(changes: Sequence[Change], accounts: Mapping[TeamName, AccountQuota]) -> tuple[str, ...]:
    """Return why the changes cannot be made on what is there; nothing if they can."""
    found = []
    for change in changes:
        quota = accounts.get(change.account)
        if quota is None:
            found.append(f"there is no account {change.account[:80]!r}; add it, or name one that exists")
        elif (value := change.stands_in(quota)) not in (change.before, change.after):
            found.append(f"{change}: it is {'none' if value is None else value}; somebody changed it, propose again")
    return tuple(found)


def needs_enforcement(changes: Sequence[Change]) -> bool:
    """Return whether any limit is to be set; what is lifted, and shares, need none."""
    return any(isinstance(change, QuotaChange) and change.after is not None for change in changes)


def needs_types(changes: Sequence[Change]) -> tuple[QuotaChange, ...]:
    """Return the changes that set a limit on one type; a limit that is lifted holds nobody and needs nothing."""
    return tuple(
        change
        for change in changes
        if isinstance(change, QuotaChange) and change.gpu_type != ALL_TYPES and change.after is not None
    )


def _check(value: int | None, *, what: str) -> None:
    if value is not None and not 0 <= value <= MOST:
        raise ValueError(f"{what} is {value}; expected 0 to {MOST}, or None")


def _limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


def _share(value: int | None) -> str:
    return "its parent's" if value is None else str(value)
