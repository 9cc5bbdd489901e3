"""What the operator allows: mode, limits, durations. Frozen values that refuse nonsense.

Reading policy.yaml belongs to `resources.config.cluster_file`; applying a limit belongs to `guardrails`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from enum import Enum
from itertools import pairwise

from ops_pipelines.core.identity import NodeName


class PolicyError(ValueError):
    """The operator's configuration contradicts itself. The message names the key, the value and the remedy."""


class NotConfigured(RuntimeError):
    """The configuration lacks what is asked for. The message names the key, and what to write there."""


class RequestRefused(RuntimeError):
    """What a person asked for was not done, or is not known to be. The message says why and what to do next."""


class Mode(Enum):
    """How far the autopilot may go by itself."""

    OBSERVE = "observe"
    """Plans, never acts. The default on a real cluster."""
    APPROVE = "approve"
    """Acts on a plan that a person approved."""
    AUTO = "auto"
    """Acts within the limits by itself."""


class Consent(Enum):
    """What one class of acts needs before the autopilot begins one."""

    AUTO = "auto"
    """Nobody's yes."""
    APPROVE = "approve"
    """A person's approval of exactly the plan that it is part of."""
    FORBID = "forbid"
    """Nothing helps: the autopilot never does it, and asks a person to."""


class Risk(Enum):
    """What `mode: auto` is refused for, unless the operator takes it by name."""

    NO_START_GUARD = "no_start_guard"
    """Nothing but our own speed keeps the scheduler from starting a second copy of a silent node's job."""
    NO_INSPECTION = "no_inspection"
    """Repaired nodes cannot be looked at: each waits for a person to return it."""
    NO_NODE_TESTS = "no_node_tests"
    """Repaired nodes are returned untested, on what is seen of them; isolated ones wait for hands."""
    NO_POWER_SWITCH = "no_power_switch"
    """Silent nodes cannot be fenced: their jobs wait for a person."""


class ActionClass(Enum):
    """Acts that an operator allows or forbids together; which verbs they are, `guardrails.consents` says."""

    ISOLATE = "isolate"
    """Keep new work off a node: drain, choose last, keep spare nodes free."""
    MOVE_JOBS = "move_jobs"
    """Take a job off a broken node: hold, fence, exclude, release."""
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    POWER = "power"
    """The power switch of a node, as repair and as fence."""
    REIMAGE = "reimage"
    CHECK = "check"
    """Tests on a drained node."""
    RETURN_NODE = "return_node"
    """Put a node back into service, and among the others."""
    UPDATE = "update"
    """Install a version on a drained node within a rollout, and what activates it."""
    QUOTAS = "quotas"
    """Set what teams may have in the scheduler: it touches no node and no running job, so no verb is of this class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBudget:
    """How many nodes may be out of service at once, anyone who took them out. A budget of zero means: plan nothing."""

    max_out_count: int = 4
    max_out_per_rack_count: int = 2
    max_new_per_hour_count: int = 12
    min_in_service_ratio: float = 0.8

    def __post_init__(self) -> None:
        for name in ("max_out_count", "max_out_per_rack_count", "max_new_per_hour_count"):
            if getattr(self, name) < 0:
                raise PolicyError(f"drain_budget.{name} is {getattr(self, name)}; it must be 0 or more")
        if not 0.0 <= self.min_in_service_ratio <= 1.0:
            raise PolicyError(f"drain_budget.min_in_service_ratio is {self.min_in_service_ratio}; it must lie in 0..1")


@dataclass(frozen=True, slots=True, kw_only=True)
class MassEvent:
    """When many nodes look broken at once the cause is shared (or our eyes are wrong): page, touch nothing."""

    min_node_count: int = 8
    window: timedelta = timedelta(seconds=120)
    brake_window: timedelta = timedelta(minutes=10)
    """The storm brake: once acts on `min_node_count` nodes were started within this time, further nodes wait."""

    def __post_init__(self) -> None:
        if self.min_node_count < 2:
            raise PolicyError(
                f"mass_event.min_node_count is {self.min_node_count}; one node is no mass event: use 2 or more"
            )
        if self.window <= timedelta(0):
            raise PolicyError("mass_event.window_seconds must be above 0")
        if self.brake_window < timedelta(0):
            raise PolicyError("mass_event.brake_window_seconds is negative; it must be 0 or more (0: no brake)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long to wait before believing, and how long an action may take before it counts as failed."""

    confirm_unreachable_after: timedelta = timedelta(seconds=60)
    """A node must stay silent this long before it is fenced: a switch reload takes about this long."""
    confirm_gpu_missing_after: timedelta = timedelta(seconds=60)
    """Series may skip two scrapes of 30 s without a fault."""
    telemetry_stale_after: timedelta = timedelta(seconds=120)
    look_every: timedelta = timedelta(seconds=15)
    """How often metrics and node states are read for conditions; log lines are read four times a second."""
    retry_after: timedelta = timedelta(seconds=30)
    """An incident that waits is looked at again after this long, then at growing distances."""
    run_patience: timedelta = timedelta(seconds=30)
    """How long one run waits for witnesses before it leaves them to the next."""
    soak: timedelta = timedelta(seconds=300)
    """A repaired node must stay quiet this long before it is returned."""
    command_limit: timedelta = timedelta(seconds=10)
    """Witness limit of acts that the scheduler does at once: drain, hold, exclude, release, resume."""
    fence_limit: timedelta = timedelta(seconds=120)
    reset_limit: timedelta = timedelta(seconds=180)
    reboot_limit: timedelta = timedelta(seconds=1200)
    reimage_limit: timedelta = timedelta(hours=2)
    check_limit: timedelta = timedelta(hours=3)
    """Tests on the node: DCGM level 4 takes up to 2.25 h on eight GPUs (source: AWS)."""
    probation: timedelta = timedelta(hours=6)
    """How long a returned node is watched as last choice; 0: it is like any other at once."""
    progress_limit: timedelta = timedelta(hours=2)
    """How long a moved job may run without being seen to continue beyond its checkpoint, before its owner is
    notified."""
    job_end_limit: timedelta = timedelta(hours=24)
    """How long a drained node may wait for jobs that must not be requeued."""
    waiting_limit: timedelta = timedelta(hours=1)
    """How long an incident may wait for somebody (approval, budget, metrics, the end of a pause) before one is
    notified."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < timedelta(0):
                raise PolicyError(f"durations.{name}_seconds is negative; it must be 0 or more")
        if self.retry_after < timedelta(seconds=1):
            raise PolicyError("durations.retry_after_seconds is below 1; runs would start without end")

    def confirm_after(self, *, is_silent: bool) -> timedelta:
        """Return how long a whole node, or a GPU of it, must be missed before that is believed."""
        return self.confirm_unreachable_after if is_silent else self.confirm_gpu_missing_after


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderLimits:
    """How often a repair is tried on one node before the next stronger one, and how far apart."""

    max_gpu_resets_count: int = 1
    max_reboots_count: int = 1
    max_power_cycles_count: int = 1
    max_reimages_count: int = 0
    """0 where cluster.yaml names no command for it."""
    memory: timedelta = timedelta(hours=24)
    """Repairs of the same node longer ago than this do not count."""
    cool_down: timedelta = timedelta(minutes=5)
    """Between two repairs of the same kind on one node: the second might come before the first has shown."""

    def __post_init__(self) -> None:
        for name in ("max_gpu_resets_count", "max_reboots_count", "max_power_cycles_count", "max_reimages_count"):
            if getattr(self, name) < 0:
                raise PolicyError(f"ladder.{name} is {getattr(self, name)}; it must be 0 or more (0: never)")
        if self.cool_down < timedelta(0):
            raise PolicyError("ladder.cool_down_seconds is negative; it must be 0 or more")
        if not timedelta(0) < self.memory <= timedelta(hours=24):
            raise PolicyError("ladder.memory_seconds must lie above 0 and at most at 86400: a snapshot holds a day")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryLimits:
    """How jobs may be moved, by the kind of their work."""

    max_requeues_count: int = 3
    """How often one job is requeued by us within `requeue_window`; after that its owner is notified instead."""
    requeue_window: timedelta = timedelta(hours=24)
    interactive_notice: timedelta = timedelta(minutes=15)
    """Time to save, between the notice and the move of an interactive session."""
    checkpoint_wait: timedelta = timedelta(hours=2)
    """The longest wait for a job's next checkpoint."""
    default_min_serving_ratio: float = 0.5
    """Of a service whose replicas declare no minimum: this share must continue serving."""

    def __post_init__(self) -> None:
        if self.max_requeues_count < 0:
            raise PolicyError(f"recovery.max_requeues_count is {self.max_requeues_count}; it must be 0 or more")
        for name in ("requeue_window", "interactive_notice", "checkpoint_wait"):
            if getattr(self, name) < timedelta(0):
                raise PolicyError(f"recovery.{name}_seconds is negative; it must be 0 or more")
        if self.requeue_window > timedelta(hours=24):
            raise PolicyError("recovery.requeue_window_seconds is above 86400: a snapshot holds a day")
        if not 0.0 <= self.default_min_serving_ratio <= 1.0:
            raise PolicyError("recovery.default_min_serving_ratio must lie in 0..1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastCaps:
    """How much one plan, and all plans of one hour, may take down. None: not limited by this rule."""

    max_out_per_partition_ratio: float = 0.5
    max_out_per_leaf_count: int | None = None
    max_out_per_nvlink_domain_count: int | None = None
    max_jobs_per_plan_count: int = 16
    max_gpu_hours_per_plan: float = 2_000.0
    """Expected loss of work by one plan's own acts."""
    max_gpu_hours_per_hour: float = 10_000.0
    max_on_probation_count: int = 8
    """A node that is proven well waits for its return while so many are on probation."""

    def __post_init__(self) -> None:
        if not 0.0 < self.max_out_per_partition_ratio <= 1.0:
            raise PolicyError("blast_caps.max_out_per_partition_ratio must lie above 0 and at most at 1")
        for name in ("max_out_per_leaf_count", "max_out_per_nvlink_domain_count"):
            count = getattr(self, name)
            if count is not None and count < 0:
                raise PolicyError(f"blast_caps.{name} is {count}; it must be 0 or more")
        for name in ("max_jobs_per_plan_count", "max_gpu_hours_per_plan", "max_gpu_hours_per_hour"):
            if getattr(self, name) < 0:
                raise PolicyError(f"blast_caps.{name} is {getattr(self, name)}; it must be 0 or more")
        if self.max_on_probation_count < 1:
            raise PolicyError("blast_caps.max_on_probation_count must be 1 or more: else no node ever returns")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceBound:
    """What must have been looked for, and not found, before rollouts touch more than a share of their nodes."""

    node_share: float
    """Of all nodes of the rollout."""
    event_rate_ratio: float
    """Failures, Xids and errors this many times as often as before."""
    slowdown_ratio: float
    """Steps this share slower, or a bandwidth this share lower."""

    def __post_init__(self) -> None:
        if not 0 < self.node_share < 1:
            raise PolicyError(f"node_share is {self.node_share:g}; expected a share of the nodes, such as 0.1")
        if self.event_rate_ratio < 2:
            raise PolicyError(f"event_rate_ratio is {self.event_rate_ratio:g}; it must be 2 or more")
        if not 0.005 <= self.slowdown_ratio <= 0.5:
            raise PolicyError(f"slowdown_ratio is {self.slowdown_ratio:g}; it must lie in 0.005..0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """How fast versions move, and how much must be known before they move on.

    How many nodes are out at once is `drain_budget`'s, shared with repair: `max_out_count` here limits the rollouts'
    own part of it.
    """

    max_out_count: int = 2
    """Nodes that rollouts have out at once; the rest of the drain budget is left to faults."""
    canary_counts: tuple[int, ...] = (1, 4, 25)
    """Sizes of the first waves. No more nodes than these together are touched before the gate has decided, but for one
    of each model and whole NVLink domains."""
    growth_ratio: float = 3.0
    """Each later wave is at most this many times as large as everything before it."""
    bounds: tuple[EvidenceBound, ...] = (
        EvidenceBound(node_share=0.1, event_rate_ratio=5.0, slowdown_ratio=0.03),
        EvidenceBound(node_share=0.3, event_rate_ratio=3.0, slowdown_ratio=0.03),
    )
    """What a release may do unseen shrinks as it spreads; later waves end at these shares. What the evidence cannot
    show by `soak_limit` is asked about. Empty: what the release claims is all that is looked for."""
    soak: timedelta = timedelta(hours=8)
    """How long each wave works before it is judged, at least; `Claims.slowest_failure` may ask for more."""
    soak_limit: timedelta = timedelta(days=7)
    """Undecided for longer: stop and ask."""
    gang_cap_node_count: int = 4
    """Jobs on more nodes than this are kept off nodes that soak."""
    max_pulled_count: int = 3
    """So many nodes may fail alone and be pulled out; one more stops and asks."""
    job_end_limit: timedelta = timedelta(hours=24)
    """How long a node may be drained for the end of its jobs; then it is tried later."""
    install_limit: timedelta = timedelta(hours=1)
    """One installation, firmware included (Ironic: 2 h for a whole update)."""
    verify_limit: timedelta = timedelta(minutes=10)
    good_read_count: int = 3
    good_read_every: timedelta = timedelta(seconds=30)
    """Three good reads 30 s apart (Ironic): a version that shows once may be gone after the next restart."""
    answer_limit: timedelta = timedelta(hours=24)
    """How long a rollout may wait for people before they are notified again."""

    def __post_init__(self) -> None:
        if self.max_out_count < 0:
            raise PolicyError(f"rollouts.max_out_count is {self.max_out_count}; it must be 0 or more")
        if not self.canary_counts or min(self.canary_counts) < 1:
            raise PolicyError("rollouts.canary_counts must name one or more waves of one or more nodes: [1, 4, 25]")
        if self.growth_ratio <= 0:
            raise PolicyError(f"rollouts.growth_ratio is {self.growth_ratio:g}; it must be above 0")
        shares = [each.node_share for each in self.bounds]
        if any(later <= share for share, later in pairwise(shares)):
            raise PolicyError(f"rollouts.bounds has node_share {shares}; each must be above the one before it")
        if self.good_read_count < 1 or self.gang_cap_node_count < 1 or self.max_pulled_count < 0:
            raise PolicyError(
                "rollouts: good_read_count and gang_cap_node_count must be 1 or more, max_pulled_count 0 or more"
            )
        for name in (
            "soak",
            "soak_limit",
            "job_end_limit",
            "install_limit",
            "verify_limit",
            "good_read_every",
            "answer_limit",
        ):
            if getattr(self, name) < timedelta(0):
                raise PolicyError(f"rollouts.{name}_seconds is negative; it must be 0 or more")
        if self.soak_limit < self.soak:
            raise PolicyError("rollouts.soak_limit_seconds is below soak_seconds; every wave would end undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklyWindow:
    """A maintenance window that comes again every week, in the time of a place: 22:00 stays 22:00 in summer."""

    name: str
    days: frozenset[int]
    """0 is Monday; the day on which it begins."""
    begins: time
    ends: time
    """At or before `begins`: on the next day."""
    timezone: str
    """As in the IANA database, such as Europe/Berlin."""

    def __post_init__(self) -> None:
        if not self.days or not self.days <= frozenset(range(7)):
            raise PolicyError(f"maintenance window {self.name!r}: days must name one or more of mon, tue, ... sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeWindow:
    """An interval of time in which nothing destructive is started: a deadline, a visit, works on the power supply."""

    name: str
    begins_at: datetime
    ends_at: datetime
    allows_drains: bool = False
    """Whether new work may still be kept off a broken node: that ends nothing."""

    def __post_init__(self) -> None:
        if self.begins_at.tzinfo is None or self.ends_at.tzinfo is None:
            raise PolicyError(f"freeze window {self.name!r} has a time without a zone; write 2026-12-24T00:00:00Z")
        if self.ends_at <= self.begins_at:
            raise PolicyError(f"freeze window {self.name!r} ends before it begins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything the operator allows. The defaults are the safe ones: a missing mode means observe."""

    mode: Mode = Mode.OBSERVE
    consents: Mapping[ActionClass, Consent] = field(default_factory=dict)
    """What single classes of acts need; a class that is not named needs what `mode` says. In `observe` nothing is
    done, whatever is here."""
    drain_budget: DrainBudget = field(default_factory=DrainBudget)
    mass_event: MassEvent = field(default_factory=MassEvent)
    durations: Durations = field(default_factory=Durations)
    ladder: LadderLimits = field(default_factory=LadderLimits)
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)
    blast_caps: BlastCaps = field(default_factory=BlastCaps)
    rollouts: RolloutLimits = field(default_factory=RolloutLimits)
    maintenance_windows: tuple[WeeklyWindow, ...] | None = None
    """When rollouts may take nodes; None: at any time outside freezes. Calendars in files come on top."""
    maintenance_calendars: tuple[str, ...] = ()
    """Paths of iCalendar files: further windows, and freezes."""
    freeze_windows: tuple[FreezeWindow, ...] = ()
    accepted_risks: Mapping[Risk, str] = field(default_factory=dict)
    """Who takes a risk, and why, in the operator's words."""
    untouchable_nodes: frozenset[NodeName] = frozenset()
    """Nodes that are observed and never acted on."""
    lacking: Mapping[ActionClass, str] = field(default_factory=dict)
    """Classes for which the site has no means, or no proof, and why: nothing of them is started, whatever `consents`
    say. No key of policy.yaml: cluster.yaml says it (`guardrails.site_means`)."""

    def consent_to(self, kind: ActionClass) -> Consent:
        """Return what acts of a class need, where anything is done at all: `mode: observe` is not asked here."""
        if kind in self.lacking:
            return Consent.FORBID
        return self.consents.get(kind, Consent.AUTO if self.mode is Mode.AUTO else Consent.APPROVE)

    def says_of(self, kind: ActionClass) -> str:
        """Return where it is what acts of a class need, as the operator reads it."""
        if kind in self.lacking:
            return self.lacking[kind]
        if kind in self.consents:
            return f"policy.yaml says consents.{kind.value}: {self.consents[kind].value}"
        return f"policy.yaml says mode: {self.mode.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Why less is done than policy.yaml allows, for as long as the reason lasts."""

    mode: Mode
    """What is left: no more is done than under this mode."""
    reason: str
    """What is the matter and what ends it, in words."""


_RISING = (Mode.OBSERVE, Mode.APPROVE, Mode.AUTO)


def under(fallbacks: Collection[Fallback], policy: Policy) -> Policy:
    """Return what may be done while `fallbacks` last: the least that any of them leaves, never more than `policy`.

    Under `approve` no class of acts goes without approval, whatever `consents` says of it.
    """
    mode = min((policy.mode, *(each.mode for each in fallbacks)), key=_RISING.index)
    if mode is policy.mode:
        return policy
    asked = {kind: Consent.APPROVE if consent is Consent.AUTO else consent for kind, consent in policy.consents.items()}
    return replace(policy, mode=mode, consents=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTrouble:
    """A configuration file that cannot be used, and what holds in its place."""

    file: str
    """Its name, without directories."""
    fault: str
    """The first fault, with its line and the remedy."""
    since: datetime
    """When it was first found so."""
    until: datetime
    """Until then what it stated before holds; from then on nothing is started. It is `since` where nothing was stated
    before, and where the time of the first fault could not be written down."""

    def is_over(self, now: datetime) -> bool:
        """Return whether what it stated before holds no longer."""
        return now >= self.until

    def __str__(self) -> str:
        what = f"{self.file} cannot be used since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.fault}"
        if self.until <= self.since:
            return f"{what}; until it can, nothing is started"
        return f"{what}; what it stated before holds until {self.until:%Y-%m-%d %H:%M:%S} UTC, then nothing is started"
