"""The verbs: what may be done to a node, a GPU, a job or a person's attention, and what can come of it.

An action is one verb on one target for one cause. Choosing actions belongs to `remediation`, limits to `guardrails`,
sending and witnessing to `remediate.perform`. Kubernetes words stand beside the Slurm ones: the ports fit both.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property

from ops_pipelines.core.identity import (
    ActionKey,
    IncidentId,
    JobAttempt,
    NodeName,
    PciAddress,
    PlanId,
    digest_of,
)
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import ActProof


class Verb(Enum):
    """What is done. The witness that proves it is beside each."""

    NOTIFY_OWNER = "notify_owner"
    """Tell the job's owner. Witness: the notifier's receipt."""
    PAGE_HUMAN = "page_human"
    """Wake the operator on call. Witness: the notifier's receipt."""
    DRAIN = "drain"
    """No new work; running jobs continue (Kubernetes: cordon). Witness: the flag read back with our reason."""
    HOLD = "hold"
    """The job is requeued and held (Kubernetes: suspend). Witness: a hold read back on the same attempt."""
    MARK = "mark"
    """A running job of a silent node is marked held: it runs on, and starts nowhere else before it is released (Slurm:
    hold). Witness: the hold read back."""
    UNMARK = "unmark"
    """The mark is taken off, with the priority as it was. Witness: the hold is gone."""
    FENCE = "fence"
    """Wait until no process of the attempt is left on a reachable node. Witness: pending, no step remains."""
    POWER_OFF = "power_off"
    """Fence of an unreachable node. Witness: the power state reads off."""
    DECLARE_DOWN = "declare_down"
    """Tell the scheduler that a node which is *already powered off* is gone, so that its jobs stop completing."""
    RESERVE = "reserve"
    """Keep spare nodes free for a job that is about to be moved; runs out by itself, and no job ever runs in it.
    Witness: the reservation read back with those nodes."""
    UNRESERVE = "unreserve"
    """Hand the spare nodes over, just before the release. Witness: the reservation is gone."""
    EXCLUDE = "exclude"
    """Keep the held job off the node. Witness: the exclusion read back."""
    RELEASE = "release"
    """Let the held job run again. Witness: the hold is gone."""
    RESET_GPU = "reset_gpu"
    """Witness: the GPU is present, asks for no recovery action, its volatile error counts are 0."""
    REBOOT = "reboot"
    """Witness: the boot id changed, or the boot time is later than before."""
    POWER_ON = "power_on"
    """Witness: the node answers with a boot time later than before."""
    REIMAGE = "reimage"
    """Install the node again, by the site's own means (a hook). Witness: as of a reboot."""
    INSTALL = "install"
    """Put a version on a drained node, within a rollout: `part` says which step of it, there or back. Witness: the
    result of the installation under our key."""
    RELOAD_DRIVER = "reload_driver"
    """Load the installed driver again on an idle node. Witness: the driver's version that runs."""
    CHECK = "check"
    """Start the tests that fit the fault, on the node while it is drained. Witness: their result under our key."""
    PUT_LAST = "put_last"
    """Jobs are put on the node only where no other fits (Slurm: weight; Kubernetes: taint PreferNoSchedule): what a
    node on probation may take down with it is little. Witness: read back."""
    PUT_BACK = "put_back"
    """The node is chosen like any other again. Witness: read back."""
    RESUME = "resume"
    """Back into service (Kubernetes: uncordon). Witness: the drain flag is gone."""


class Urgency(Enum):
    """How much a page may disturb."""

    AT_ONCE = "at_once"
    """Somebody is needed: nothing more is done without."""
    WHEN_READ = "when_read"
    """What was needed is done; a person looks when there is time."""


NODE_VERBS = frozenset(
    {
        Verb.DRAIN,
        Verb.POWER_OFF,
        Verb.DECLARE_DOWN,
        Verb.RESET_GPU,
        Verb.REBOOT,
        Verb.POWER_ON,
        Verb.REIMAGE,
        Verb.INSTALL,
        Verb.RELOAD_DRIVER,
        Verb.CHECK,
        Verb.PUT_LAST,
        Verb.PUT_BACK,
        Verb.RESUME,
    }
)
JOB_VERBS = frozenset(
    {
        Verb.HOLD,
        Verb.MARK,
        Verb.UNMARK,
        Verb.FENCE,
        Verb.EXCLUDE,
        Verb.RELEASE,
        Verb.NOTIFY_OWNER,
        Verb.RESERVE,
        Verb.UNRESERVE,
    }
)
DESTRUCTIVE_VERBS = frozenset(
    {
        Verb.DRAIN,
        Verb.HOLD,
        Verb.RESERVE,
        Verb.POWER_OFF,
        Verb.DECLARE_DOWN,
        Verb.RESET_GPU,
        Verb.REBOOT,
        Verb.REIMAGE,
        Verb.INSTALL,
        Verb.RELOAD_DRIVER,
        Verb.CHECK,
    }
)
"""Verbs that take capacity or running work away. The guardrails judge each of them twice."""
SOFT = frozenset({Verb.RESERVE, Verb.UNRESERVE})
"""Verbs without which a plan continues all the same: room kept free is a kindness, a queue does it too."""
MESSAGES = frozenset({Verb.NOTIFY_OWNER, Verb.PAGE_HUMAN})
"""Verbs that touch people and not the cluster: allowed while paused, and in every mode but a dry run."""
MARKS = frozenset({Verb.MARK, Verb.UNMARK})
"""What is done to the jobs of silent nodes by the tick that sees the silence, without a plan."""


@dataclass(frozen=True, kw_only=True)  # without slots, which have no room for the cached key
class Action:
    """One verb on one target for one cause."""

    verb: Verb
    incident: IncidentId
    node: NodeName | None = None
    attempt: JobAttempt | None = None
    gpu: PciAddress | None = None
    text: str = ""
    """The reason or the message. Not part of the key: rewording is not another action."""
    suite: str = ""
    """Of a check: which tests (`core.node_tests.SUITES`)."""
    has_ended: bool = False
    """Of a hold: the fault has ended the work of the job already, so that the hold takes nothing away. Not part of the
    key."""
    spares: tuple[NodeName, ...] = ()
    """Of a reservation: the nodes to keep free. Not part of the key."""
    urgency: Urgency = Urgency.AT_ONCE
    """Of a page. Not part of the key."""
    part: str = ""
    """Of what is done several times for one cause: which step of a rollout, there or back; which silence a mark is of;
    of a message about two copies of a job `OVERLAP` and which attempts. Part of the key."""
    try_number: int = 1
    """Set by the persisted plan; a retry after a crash reuses it."""

    def __post_init__(self) -> None:
        if self.verb in NODE_VERBS and self.node is None:
            raise ValueError(f"{self.verb.value} needs a node; an action without a target must not exist")
        if self.verb in JOB_VERBS and self.attempt is None:
            raise ValueError(f"{self.verb.value} needs a job attempt; an action without a target must not exist")
        if self.verb is Verb.RESET_GPU and self.gpu is None:
            raise ValueError("reset_gpu needs a GPU; an action without a target must not exist")
        if self.verb is Verb.EXCLUDE and self.node is None:
            raise ValueError("exclude needs the node to keep the job off")
        if self.verb is Verb.RESERVE and not self.spares:
            raise ValueError("reserve needs nodes; empty never means all")
        if self.verb in (Verb.INSTALL, Verb.RELOAD_DRIVER) and not self.part:
            raise ValueError(f"{self.verb.value} needs the step of its release; empty never means whatever is newest")
        if self.verb is Verb.CHECK and not self.suite:
            raise ValueError("check needs the name of a suite")

    @cached_property
    def key(self) -> ActionKey:
        """The idempotency key: the same cause, verb, target, attempt and try give the same key."""
        of_job = f"{self.attempt.job}@{self.attempt.started_at.isoformat()}" if self.attempt else ""
        # Keys of acts without a part are as they always were: ledgers of earlier versions hold them.
        parts = (self.part,) if self.part else ()
        whole = digest_of(
            self.incident, self.verb.value, self.node or "", self.gpu or "", of_job, str(self.try_number), *parts
        )
        return ActionKey(whole[:32])

    @property
    def target(self) -> str:
        """The target as a person reads it: `gpu003`, `gpu003 GPU 0000:1b:00`, `job 42`, `job 42 off gpu003`."""
        if self.verb is Verb.EXCLUDE and self.attempt is not None:
            return f"job {self.attempt.job} off {self.node}"
        if self.attempt is not None:
            return f"job {self.attempt.job}"
        if self.gpu is not None:
            return f"{self.node} GPU {self.gpu}"
        return str(self.node) if self.node is not None else "people"


OVERLAP = "overlap "
"""Begins the `part` of what is reported of two copies of a job; the names of the overlaps follow."""


def reservation_of(action: Action) -> str:
    """Return the name of the reservation that keeps room for the job of an action; the same for both ends of it."""
    assert action.attempt is not None  # Action refuses a job verb without an attempt
    job = "".join(each if each.isalnum() else "_" for each in action.attempt.job)
    return f"ops-{action.incident}-{job}-{action.try_number}"[:60]


class OutcomeKind(Enum):
    """What came of an action."""

    DONE = "done"
    """Witnessed."""
    FAILED = "failed"
    """Refused by the system asked, or its witness did not appear within the limit."""
    UNKNOWN = "unknown"
    """Neither done nor provably not done: a human must look."""


NOT_NEEDED = "not needed: "
"""Begins the witness of an act that had lost its object before it was sent or took effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one action, with the witness in words."""

    kind: OutcomeKind
    witness: str
    finished_at: datetime

    @property
    def was_needed(self) -> bool:
        """Whether anything was done: an act that had lost its object ends well, and has done nothing."""
        return not self.witness.startswith(NOT_NEEDED)

    witnessed_at: datetime | None = None
    """The time that the asked system itself gives (of a drain: when its reason was set); None if it gives none."""


class Witness(Enum):
    """What the world says of an action: it happened, it provably did not, or nobody can tell."""

    DONE = "done"
    FAILED = "failed"
    """It began and came to a bad end: neither waiting nor sending it again makes it good."""
    PARTLY_DONE = "partly_done"
    """It began, and the rest of it begins when it is sent again."""
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """A witness's answer and what was seen."""

    witness: Witness
    seen: str


def witness_limit(verb: Verb, policy: Policy) -> timedelta:
    """Return how long the witness of `verb` may take to appear before the action counts as failed."""
    durations = policy.durations
    if verb in (Verb.FENCE, Verb.POWER_OFF):
        return durations.fence_limit
    if verb in (Verb.RESET_GPU, Verb.RELOAD_DRIVER):
        return durations.reset_limit
    if verb is Verb.INSTALL:
        return policy.rollouts.install_limit
    if verb is Verb.REIMAGE:
        return durations.reimage_limit
    if verb is Verb.CHECK:
        return durations.check_limit
    if verb in (Verb.REBOOT, Verb.POWER_ON):
        return durations.reboot_limit
    return durations.command_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """An action in the ledger: its before-entry, and its outcome once there is one.

    A record without an outcome counts as spent budget and is never sent again blindly: its witness is read first.
    """

    action: Action
    plan: PlanId | None
    """None for an act that a person launched by hand."""
    begun_at: datetime
    boot_id_before: str | None = None
    """What the witness of a reboot is compared with."""
    booted_before: datetime | None = None
    attempt_nodes: frozenset[NodeName] = frozenset()
    """Of a hold or mark: the nodes on which the attempt had processes; every one must be clear before the release."""
    gpu_count: int = 0
    """Of a hold: the GPUs that the attempt had."""
    checkpointed_at: datetime | None = None
    """Of a hold: the newest checkpoint of the attempt when it was held; None if unknown."""
    lost_gpu_hours: float | None = None
    """Of a hold: what it was expected to throw away when it was started; None: unknown, or no hold."""
    priority: int | None = None
    """Of a mark: the place in the queue that the job had; None if the scheduler gave none."""
    sent_at: datetime | None = None
    """When the asked system accepted the command; None if that is not known to have happened."""
    outcome: Outcome | None = None
    proof: ActProof | None = None
    """What was proved of it right before it was started; None: a message, or started by an older version."""

    @property
    def took_effect(self) -> bool:
        """Whether it was done, witnessed, and not found to be needless."""
        return self.outcome is not None and self.outcome.kind is OutcomeKind.DONE and self.outcome.was_needed

    @property
    def may_have_taken_effect(self) -> bool:
        """Whether it was done, is on its way, or nobody knows."""
        return self.outcome is None or (self.outcome.kind is not OutcomeKind.FAILED and self.outcome.was_needed)


DRAIN_MARK = "ops_pipelines"
