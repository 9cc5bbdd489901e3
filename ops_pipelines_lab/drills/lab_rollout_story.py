"""What the act of versions leaves for its judge: what was done when, and what can be seen of rollouts and nodes.

It plays nothing and demands nothing: that is `lab_rollout`'s and `lab_rollout_judge`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import Rollout, RolloutNode
from ops_pipelines_lab.drills.lab_node import NodeDisk
from ops_pipelines_lab.drills.lab_stage import LabView

OPERATORS_REASON = "OPS-21 fan tray"


@dataclass(slots=True)
class Story:
    """What was done when."""

    good: Rollout | None = None
    bad: Rollout | None = None
    operators_node: NodeName | None = None
    operators_return_at: datetime | None = None
    waiting_in_pause: frozenset[NodeName] = frozenset()
    paused_at: datetime | None = None
    resumed_at: datetime | None = None
    was_asked: bool = False
    was_killed: bool = False
    operators_reasons: set[str | None] = field(default_factory=set)
    """Everything that stood as the reason of the operator's node while it was theirs."""
    kept_off: set[NodeName] = field(default_factory=set)
    """Nodes that soaked, and that the waiting gang was kept off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The lab as whoever watches versions sees it."""

    view: LabView
    members: Sequence[NodeName]
    """The nodes of the model that the releases are for."""

    @property
    def lab(self) -> Path:
        return self.view.stage.cluster_file.parent

    def rollouts(self) -> tuple[Rollout, ...]:
        """Return the rollouts since the drill began, in order; none while the ledger does not answer."""
        try:
            return self.view.stage.cluster.ledger.rollouts(final_since=self.view.since)
        except LedgerError:
            return ()

    def nodes_of(self, rollout: Rollout) -> tuple[RolloutNode, ...]:
        try:
            return self.view.stage.cluster.ledger.rollout_nodes(rollout.rollout)
        except LedgerError:
            return ()

    def running_versions(self) -> Mapping[NodeName, str]:
        """Return which kernel runs on each node, as its own disk has it."""
        return {node: NodeDisk(self.lab, node).running for node in self.members}
