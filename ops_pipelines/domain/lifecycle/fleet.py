"""What a rollout needs to know of each node: model, versions, place, what runs there and until when.

Facts only: gathered by `flow.lifecycle.fleet_view`, drawn by the simulation; `planner` and `engine` judge on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import JobId, NodeName, Place
from ops_pipelines.core.release import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """One node as it is now."""

    node: NodeName
    model: str
    """As cluster.yaml declares it; empty: it declares none."""
    place: Place
    gpu_count: int
    versions: Mapping[Component, str]
    """What runs, as last seen; a component that is missing here was never seen."""
    is_in_service: bool
    """Takes work: neither drained nor down nor silent."""
    partitions: frozenset[str] = frozenset()
    is_in_hand: bool = False
    """A rollout has begun with it, and has not returned it: it is out, or will be at any moment."""
    why_not: str = ""
    """Why no rollout may touch it now: untouchable, an open incident, somebody else's drain; empty: it may."""
    trouble: str = ""
    """The open incident about it that is not only watched; empty: none."""
    free_at: datetime | None = None
    """When its last job ends at the latest, by time limits; None: nobody knows (a job without one)."""
    is_idle: bool = False
    jobs: tuple[JobId, ...] = ()
    largest_job_gpu_count: int = 0
    """Of the jobs on it, the widest: the gang that waits if the node is taken."""
    teams: frozenset[str] = frozenset()
    """Accounts of the jobs on it."""
