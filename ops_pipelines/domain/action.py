"""The verbs: what may be done to a node, a GPU, a job or a person's attention, and what can come of it.

An action is one verb on one target for one cause. Choosing actions belongs to `remediation`, limits to `guardrails`,
sending and witnessing to `flow.perform`. Kubernetes words stand beside the Slurm ones: the ports fit both.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache

from ops_pipelines.domain.identity import ActionKey, IncidentId, JobAttempt, NodeName, PciAddress, PlanId, digest_of
from ops_pipelines.domain.policy import Durations


class Verb(Enum):
    """What is done. The witness that proves it stands beside each."""

    NOTIFY_OWNER = "notify_owner"
    """Tell the job's owner. Witness: the notifier's receipt."""
    PAGE_HUMAN = "page_human"
    """Wake the operator on call. Witness: the notifier's receipt."""
    DRAIN = "drain"
    """No new work; running jobs go on (Kubernetes: cordon). Witness: the flag read back with our reason."""
    HOLD = "hold"
    """The job is requeued and held (Kubernetes: suspend). Witness: a hold read back on the same attempt."""
    FENCE = "fence"
    """Wait until no process of the attempt is left on a reachable node. Witness: pending, no step remains."""
    POWER_OFF = "power_off"
    """Fence of an unreachable node. Witness: the power state reads off."""
    DECLARE_DOWN = "declare_down"
    """Tell the scheduler that a node which is *already powered off* is gone, so that its jobs stop completing."""
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
    RESUME = "resume"
    """Back into service (Kubernetes: uncordon). Witness: the drain flag is gone."""


@lru_cache(maxsize=16_384)
def _key_of(
    incident: IncidentId,
    verb: "Verb",
    node: NodeName | None,
    gpu: PciAddress | None,
    attempt: JobAttempt | None,
    try_number: int,
) -> ActionKey:
    """Cached: in a storm each of a thousand judgements compares with each of a thousand actions."""
    of_job = f"{attempt.job}@{attempt.started_at.isoformat()}" if attempt else ""
    return ActionKey(digest_of(incident, verb.value, node or "", gpu or "", of_job, str(try_number))[:32])


NODE_VERBS = frozenset(
    {Verb.DRAIN, Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_ON, Verb.RESUME}
)
JOB_VERBS = frozenset({Verb.HOLD, Verb.FENCE, Verb.EXCLUDE, Verb.RELEASE, Verb.NOTIFY_OWNER})
DESTRUCTIVE_VERBS = frozenset({Verb.DRAIN, Verb.HOLD, Verb.POWER_OFF, Verb.DECLARE_DOWN, Verb.RESET_GPU, Verb.REBOOT})
"""Verbs that take capacity or running work away. The guardrails judge each of them twice."""
MESSAGES = frozenset({Verb.NOTIFY_OWNER, Verb.PAGE_HUMAN})
"""Verbs that touch people and not the cluster: allowed while paused, and in every mode but a dry run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One verb on one target for one cause."""

    verb: Verb
    incident: IncidentId
    node: NodeName | None = None
    attempt: JobAttempt | None = None
    gpu: PciAddress | None = None
    text: str = ""
    """The reason or the message. Not part of the key: rewording is not another action."""
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

    @property
    def key(self) -> ActionKey:
        """The idempotency key: the same cause, verb, target, attempt and try give the same key."""
        return _key_of(self.incident, self.verb, self.node, self.gpu, self.attempt, self.try_number)

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


class OutcomeKind(Enum):
    """What came of an action."""

    DONE = "done"
    """Witnessed."""
    FAILED = "failed"
    """Refused by the system asked, or its witness did not appear within the limit."""
    UNKNOWN = "unknown"
    """Neither done nor provably not done: a human must look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one action, with the witness in words."""

    kind: OutcomeKind
    witness: str
    finished_at: datetime
    witnessed_at: datetime | None = None
    """The time that the asked system itself gives (of a drain: when its reason was set); None if it gives none."""


class Witness(Enum):
    """What the world says of an action: it happened, it provably did not, or nobody can tell."""

    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """A witness's answer and what was seen."""

    witness: Witness
    seen: str


def witness_limit(verb: Verb, durations: Durations) -> timedelta:
    """Return how long the witness of `verb` may take to appear before the action counts as failed."""
    if verb in (Verb.FENCE, Verb.POWER_OFF):
        return durations.fence_limit
    if verb is Verb.RESET_GPU:
        return durations.reset_limit
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
    """Of a hold: the nodes on which the attempt had processes; every one must be clear before the release."""
    sent_at: datetime | None = None
    """When the asked system accepted the command; None if that is not known to have happened."""
    outcome: Outcome | None = None
