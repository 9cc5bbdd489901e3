"""What a rule looks at: one command, what its sender had been reported, what people ordered, what is really so.

Values only; what must never be done is in `rules` and its siblings.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, PlanId, Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus, NodeStatus
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.policy import Policy
from ops_pipelines.core.proof import Proof
from ops_pipelines.core.release import Component
from ops_pipelines_lab.simulator.ground_truth import JobProgress, NodeTruth
from tests.safety.border import Command, Told

KNOWLEDGE_LASTS = timedelta(seconds=30)
"""What was read longer ago is nothing to act on."""
PERSON = "person"
"""The process in which a person works by hand: mode, pause and approval do not bind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the operator allows, kept apart from what the program was given."""

    policy: Policy
    topology: Topology
    approved: dict[PlanId, list[tuple[datetime, datetime]]] = field(default_factory=dict)
    """From when until when each plan had somebody's yes."""
    foreign_drains: set[tuple[NodeName, str | None, datetime | None]] = field(default_factory=set)
    """Drains by other people: node, and the reason and time that the scheduler shows for them."""
    waiting_for_hands: set[IncidentId] = field(default_factory=set)
    """Incidents whose node was handed over for repair and that nobody has called repaired since."""
    called_mended: Counter[IncidentId] = field(default_factory=Counter)
    """How often somebody stated that the node of an incident is repaired."""
    tokens: dict[str, str | None] = field(default_factory=dict)
    """The lease that each process was given; a process that is not here uses the one that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One command and everything that its rules look at."""

    command: Command
    told: Told
    orders: Orders
    record: ActionRecord | None
    """Its before-entry."""
    state: LedgerState
    plan: IncidentPlan | None
    """The plan that the command belongs to."""
    proof: Proof | None
    """What was proved of that plan."""
    lease: str | None
    """The lease that runs by the sender's clock."""
    nodes: Mapping[NodeName, NodeStatus]
    """How the scheduler really sees the nodes."""
    jobs: Mapping[JobId, JobStatus]
    progress: Mapping[JobId, JobProgress]
    truth: Mapping[NodeName, NodeTruth]
    versions: Mapping[NodeName, Mapping[Component, str]]
    """What really runs on each node."""
    accepted: tuple[tuple[Command, ActionRecord | None], ...]
    beside: tuple[Command, ...]
    """Commands of the same batch before this one."""

    @property
    def is_by_hand(self) -> bool:
        return self.command.process == PERSON

    @property
    def told_node(self) -> NodeStatus | None:
        return None if self.command.node is None else self.told.nodes.get(self.command.node)

    @property
    def told_job(self) -> JobStatus | None:
        return None if self.command.job is None else self.told.jobs.get(self.command.job)

    @property
    def attempt(self) -> JobAttempt | None:
        return None if self.record is None else self.record.action.attempt

    @property
    def incident(self) -> Incident | None:
        """The incident that the command is for, as the ledger has it."""
        cause = None if self.record is None else self.record.action.incident
        return next((each for each in self.state.incidents if each.incident == cause), None)

    @property
    def told_busy(self) -> tuple[JobStatus, ...]:
        """Jobs that were stated to be on the node."""
        return tuple(
            job for job in self.told.jobs.values() if self.command.node in job.nodes and job.state in MAY_HAVE_PROCESSES
        )

    @property
    def attempts_alive(self) -> frozenset[JobAttempt]:
        """Attempts that really have processes on the node."""
        truth = None if self.command.node is None else self.truth.get(self.command.node)
        return frozenset() if truth is None else truth.attempts


Rule = Callable[[Scene], str | None]
"""Says what is wrong with a command, None if nothing is by this rule."""
