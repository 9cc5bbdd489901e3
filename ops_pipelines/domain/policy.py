"""What the operator allows: mode, limits, durations. Frozen values that refuse nonsense.

Reading policy.yaml belongs to `resources.config_files`; applying a limit belongs to `guardrails`.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from ops_pipelines.domain.identity import NodeName


class PolicyError(ValueError):
    """The operator's configuration contradicts itself. The message names the key, the value and the remedy."""


class Mode(Enum):
    """How far the autopilot may go by itself."""

    OBSERVE = "observe"
    """Plans, never acts. The default on a real cluster."""
    APPROVE = "approve"
    """Acts on a plan that a person approved."""
    AUTO = "auto"
    """Acts within the limits by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBudget:
    """How many nodes may be out of service at once, whoever took them out. A budget of zero means: plan nothing."""

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

    def __post_init__(self) -> None:
        if self.min_node_count < 2:
            raise PolicyError(
                f"mass_event.min_node_count is {self.min_node_count}; one node is no mass event: use 2 or more"
            )
        if self.window <= timedelta(0):
            raise PolicyError("mass_event.window_seconds must be above 0")


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
    job_end_limit: timedelta = timedelta(hours=24)
    """How long a drained node may wait for jobs that must not be requeued."""
    waiting_limit: timedelta = timedelta(hours=1)
    """How long an incident may wait for somebody (approval, budget, metrics, the end of a pause) before one is told."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < timedelta(0):
                raise PolicyError(f"durations.{name}_seconds is negative; it must be 0 or more")
        if self.retry_after < timedelta(seconds=1):
            raise PolicyError("durations.retry_after_seconds is below 1; runs would start without end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything the operator allows. The defaults are the safe ones: a missing mode means observe."""

    mode: Mode = Mode.OBSERVE
    drain_budget: DrainBudget = field(default_factory=DrainBudget)
    mass_event: MassEvent = field(default_factory=MassEvent)
    durations: Durations = field(default_factory=Durations)
    untouchable_nodes: frozenset[NodeName] = frozenset()
    """Nodes that are observed and never acted on."""
