"""What is to be done about one incident: the plan, the moments at which jobs move, the order, and the snapshot.

Who makes a plan is `decide`, who counts what it touches `guardrails.blast_radius`, who contradicts
`plan_proof`.

Nothing else can be written down: an order for a step needs the plan with its proof.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord, Verb
from ops_pipelines.core.finding import Catalogue, Response
from ops_pipelines.core.identity import (
    Digest,
    IncidentId,
    JobAttempt,
    NodeName,
    PlanId,
    RolloutId,
    Topology,
    is_rollout,
)
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobStatus, NodeStatus, Observation, TelemetryStatus
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import Proof, why_unproved

# -- when to interrupt a job --


class Moment(Enum):
    """When a job is interrupted."""

    NOW = "now"
    NEXT_CHECKPOINT = "next_checkpoint"
    AFTER_NOTICE = "after_notice"
    """Of an interactive session: when its owner has had time to save."""
    JOB_END = "job_end"
    """It is not interrupted: the repair waits until it ends."""
    NEVER = "never"
    """It may not be interrupted: no checkpoint, `--no-requeue`, or requeued too often. Its owner is notified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCosts:
    """How long an interruption takes, apart from recomputed work. Priors until it has been measured."""

    restart_seconds: float = 300.0
    """Process start, loading the checkpoint, warm-up. Source of the prior: Meta RSC assumes 5 minutes (2410.21680)."""
    queue_seconds: float = 60.0
    """From release to start, where room is free. Assumption until measured."""
    no_room_queue_seconds: float = 3_600.0
    """From release to start, where none is. Assumption until measured."""
    measured_count: int = 0
    """How many interruptions these rest on; 0: priors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One moment and what it is expected to cost."""

    moment: Moment
    lost_gpu_hours: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """When one job is interrupted, and what the other moments would have cost."""

    attempt: JobAttempt
    moment: Moment
    options: tuple[Option, ...]
    """Every moment that was open, cheapest first."""
    decided_at: datetime
    checkpointed_at: datetime | None
    """Its newest checkpoint when this was decided: a newer one is what NEXT_CHECKPOINT waits for."""
    until: datetime | None
    """Of NEXT_CHECKPOINT and AFTER_NOTICE: the latest moment, then it is interrupted anyway."""
    reason: str


# -- what is to be done about one incident, with what it touches and what stays healthy --


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What stays healthy of one part of the cluster."""

    kind: str
    """`cluster`, `partition`, `rack`, `nvlink_domain`, `leaf_switch` or `service`."""
    name: str
    total_count: int
    out_before_count: int
    out_after_count: int
    limit: str
    """The limit that holds for it, in words; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedJob:
    """One job that a plan interrupts, or whose node it takes."""

    job: str
    account: str
    gpu_count: int
    lost_gpu_hours: float | None
    """Expected loss by our own act; None: unknown."""
    is_interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """The proof of a plan: what it touches, what remains, which limits it keeps."""

    jobs: tuple[TouchedJob, ...]
    teams: tuple[str, ...]
    """Each account that is touched, with its share: `research: 16 of 64 running GPUs`."""
    lost_gpu_hours: float
    """Of the jobs whose loss is known."""
    unknown_loss_count: int
    remaining: tuple[Remaining, ...]
    violations: tuple[str, ...]
    """Limits that it would break, in words; empty: it may be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentPlan:
    """What is to be done about one incident, in this order. An empty plan means nothing, never everything."""

    plan: PlanId
    incident: IncidentId
    response: Response
    actions: tuple[Action, ...]
    reason: str
    effects: tuple[str, ...]
    """What it costs whom, one sentence each."""
    rejected_alternatives: tuple[str, ...]
    timings: tuple[JobTiming, ...] = ()
    """When each job on the node is interrupted. Its hold waits for that moment."""
    proof: BlastRadius | None = None
    """What it touches and what stays healthy, as computed when it was made."""
    left_to: str = ""
    """The reason of somebody else's drain that the node is left to: nothing of it is repaired. Empty: it is ours."""
    calls_for: Response | None = None
    """What the incident called for when it was made; `response` may stand above it on the ladder. None: the same."""


# -- what may be asked of the executor --


STEPS = frozenset(
    {
        Verb.HOLD,
        Verb.FENCE,
        Verb.RESERVE,
        Verb.UNRESERVE,
        Verb.EXCLUDE,
        Verb.RELEASE,
        Verb.RESET_GPU,
        Verb.REBOOT,
        Verb.POWER_OFF,
        Verb.DECLARE_DOWN,
        Verb.POWER_ON,
        Verb.REIMAGE,
    }
)
"""What only a plan may ask for, or a rollout. A drain, a mark, tests and the rollback may also stand by themselves."""


class Unproved(ValueError):
    """Something was to be ordered that nobody has proved. A fault of ours, wherever it is raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedPlan:
    """A plan with the proof that let it pass: no other can be ordered a step of."""

    plan: IncidentPlan
    content: Digest
    """sha256 of the plan, as the ledger writes it."""
    proof: Proof

    def __post_init__(self) -> None:
        checks = [each.check for each in self.proof.checked]
        why = why_unproved(self.proof, content=self.content, checks=checks)
        if why is None and self.proof.plan != self.plan.plan:
            why = f"its proof is of {self.proof.plan}"
        if why is not None or not checks:
            raise Unproved(f"{self.plan.plan}: {why or 'no check was made of it'}")

    def step(self, action: Action) -> "Order":
        """Return the order for one act of this plan. Raises Unproved for any other."""
        return Order(action=action, behind=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One act that may be asked of the executor."""

    action: Action
    behind: ProvedPlan | PlanId | None = None
    """The plan that it is a step of, or on whose word it follows without being one; None: it is by itself."""

    def __post_init__(self) -> None:
        if isinstance(self.behind, ProvedPlan):
            if self.action not in self.behind.plan.actions:
                raise Unproved(f"{self.action.verb.value} of {self.action.target} is no act of {self.plan}")
        elif self.action.verb in STEPS and not is_rollout(self.action.incident):
            raise Unproved(f"{self.action.verb.value} of {self.action.target} is a step of no plan that was proved")

    @property
    def plan(self) -> PlanId | None:
        """The name of the plan behind it."""
        return self.behind.plan.plan if isinstance(self.behind, ProvedPlan) else self.behind


def why_no_step(action: Action, plan: IncidentPlan | None) -> str | None:
    """Return why an act may not be started under the name of a recorded plan, or without one (None); None: it may."""
    if action.verb in MESSAGES or (plan is not None and action in plan.actions):
        return None
    if action.verb not in STEPS:
        return None
    return f"{action.verb.value} of {action.target} is no act of {'any plan' if plan is None else plan.plan}"


# -- everything that a decision depends on, at one instant --


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator and the catalogue say: constant between restarts."""

    policy: Policy
    topology: Topology
    catalogue: Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything observed that a decision depends on, at one instant."""

    taken_at: datetime
    rules_digest: Digest
    """sha256 of the policy, topology and catalogue that held."""
    ledger_head: int
    evidence_through: int
    """The highest evidence sequence number in `observations`, or where the last decision stopped."""
    observations: tuple[Observation, ...]
    """Evidence that no decision has seen yet."""
    conditions: tuple[Observation, ...]
    """Conditions that hold now, each with the time it began."""
    nodes: tuple[NodeStatus, ...]
    jobs: tuple[JobStatus, ...]
    telemetry: tuple[TelemetryStatus, ...]
    is_telemetry_available: bool
    incidents: tuple[Incident, ...]
    """Every incident that is not final."""
    incident_count: int
    records: tuple[ActionRecord, ...]
    is_paused: bool
    costs: RestartCosts = RestartCosts()
    """How long an interruption takes here, as far as it was measured."""
    owned: Mapping[NodeName, RolloutId] = field(default_factory=dict)
    """Nodes that a rollout has in hand."""
