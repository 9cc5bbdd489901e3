"""What one pass over a rollout goes with: the rollout as it was found, the ports, and the world as it was read. Values.

Nothing here is read anew in mid-pass, but for the places of nodes that came back to work: who looks again is the next
pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import MAY_HAVE_PROCESSES, JobStatus
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode
from ops_pipelines.domain.lifecycle.fleet import FleetNode
from ops_pipelines.remediate.acts.facts import Lease

_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.BACK, NodeStage.PENDING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One rollout as a pass found it, with what its nodes' ways are made of."""

    rollout: Rollout
    release: Release
    cluster: Cluster
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a pass is told of the world beside the ledger."""

    fleet: Mapping[NodeName, FleetNode]
    calendar: WorkCalendar
    jobs: Sequence[JobStatus]
    visit_seconds: float
    """How long a node is foreseen to be out."""
    may_act: bool = True
    """Whether nodes are begun, and anything is said to the scheduler beside acts."""


def jobs_on(node: NodeName, around: Surroundings) -> tuple[JobStatus, ...]:
    """Return the jobs that may have processes on a node."""
    return tuple(each for each in around.jobs if node in each.nodes and each.state in MAY_HAVE_PROCESSES)


def trouble_of(node: NodeName, around: Surroundings) -> str:
    """Return the open incident about a node; empty: none, or nobody declares the node any more."""
    return around.fleet[node].trouble if node in around.fleet else ""


def with_returned(around: Surroundings, nodes: Mapping[NodeName, RolloutNode]) -> Surroundings:
    """Return the surroundings with the nodes that came back to work in this pass: their places are free again."""
    back = {
        name: replace(known, is_in_service=True, is_in_hand=False)
        for name, known in around.fleet.items()
        if known.is_in_hand and name in nodes and nodes[name].stage in _AT_WORK
    }
    return replace(around, fleet={**around.fleet, **back}) if back else around
