"""What the rest of a plan needs for itself: nodes, jobs, and budgets that it has yet to draw on.

Plans whose footprints do not meet are carried out side by side. Every budget is counted once more inside the
transaction that begins an act: here is only who goes first, so that a plan does not fail for another's half-done work.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.identity import IncidentId, JobId, NodeName
from ops_pipelines.core.plan import IncidentPlan


class Budget(Enum):
    """What plans draw on together."""

    NODES_OUT = "nodes out of service"
    LOST_WORK = "GPU-hours lost by holds"


_DRAWN_BY: Mapping[Verb, Budget] = {Verb.DRAIN: Budget.NODES_OUT, Verb.HOLD: Budget.LOST_WORK}
"""An act that takes nodes or work away -> the budget; a repair is limited on its own node alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the rest of one plan needs for itself."""

    incident: IncidentId
    nodes: frozenset[NodeName]
    jobs: frozenset[JobId]
    budgets: frozenset[Budget]

    def why_it_meets(self, other: "Footprint") -> str | None:
        """Return what two plans both need, in words; None where nothing keeps them from going on side by side."""
        if self.incident == other.incident:
            return f"both are of {self.incident}"
        shared = [*sorted(self.nodes & other.nodes), *(f"job {each}" for each in sorted(self.jobs & other.jobs))]
        shared += sorted(each.value for each in self.budgets & other.budgets)
        return None if not shared else f"{', '.join(shared)} is also {other.incident}'s"


def footprint_of(
    plan: IncidentPlan, incident_nodes: Collection[NodeName], records: Collection[ActionRecord]
) -> Footprint:
    """Return what the rest of a plan needs; `records` are what was begun, for whichever incident."""
    own = [each for each in records if each.action.incident == plan.incident]
    begun = {each.action.key for each in own}
    nodes = set(incident_nodes)
    for action in plan.actions:
        nodes.update(action.spares)
        nodes.update(() if action.node is None else (action.node,))
    for record in own:
        nodes |= record.attempt_nodes
    return Footprint(
        incident=plan.incident,
        nodes=frozenset(nodes),
        jobs=frozenset(each.attempt.job for each in plan.actions if each.attempt is not None),
        budgets=frozenset(
            _DRAWN_BY[each.verb]
            for each in plan.actions
            if each.verb in _DRAWN_BY and each.key not in begun and not each.has_ended
        ),
    )
