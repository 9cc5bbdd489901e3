"""Everything that a decision depends on, at one instant: what was observed, and the rules that held."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ops_pipelines.domain.action import ActionRecord
from ops_pipelines.domain.identity import Digest, NodeName, RolloutId
from ops_pipelines.domain.incident import Incident
from ops_pipelines.domain.meaning.catalogue import Catalogue
from ops_pipelines.domain.observation import JobStatus, NodeStatus, Observation, TelemetryStatus
from ops_pipelines.domain.policy import Policy
from ops_pipelines.domain.steps.timing import RestartCosts
from ops_pipelines.domain.topology import Topology


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
