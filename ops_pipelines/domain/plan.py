"""What is to be done about one incident, with what it touches and what stays healthy: the nouns alone.

Who makes a plan is `repair.remediation`, who counts what it touches `guardrails.blast_radius`, who contradicts
`plan_proof`.
"""

from dataclasses import dataclass

from ops_pipelines.domain.action import Action
from ops_pipelines.domain.identity import IncidentId, PlanId
from ops_pipelines.domain.meaning.finding import Response
from ops_pipelines.domain.steps.timing import JobTiming


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
    """Limits that it would break, in words; empty: it may be begun."""


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
