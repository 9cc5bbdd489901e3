"""The reflex: decide on new evidence within the tick that noticed it, and drain; nothing stronger.

The same snapshot, decision, guardrails, executor and ledger as the run that follows, which records the assets and
does the rest. Runs as a pass of its own, so that a fault is out of service before a run has started.
"""

from contextlib import suppress
from dataclasses import dataclass

from ops_pipelines.domain.decision import decide
from ops_pipelines.domain.finding import REPAIRS, find
from ops_pipelines.flow.carry_out import PlanReport, carry_out_drains
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.observe import EVIDENCE_AT_ONCE, glance
from ops_pipelines.flow.perform import Stage
from ops_pipelines.ports.ledger import LedgerConflict, LedgerState

_TRY_COUNT = 3
"""A run that acts writes a few lines a second; after this many misses the next tick tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What one reflex did."""

    incident_count: int
    """Incidents opened or changed."""
    drains: tuple[PlanReport, ...]

    def __str__(self) -> str:
        drained = [step.action.target for report in self.drains for step in report.steps]
        waiting = [report for report in self.drains if report.stage is not Stage.DONE and not report.steps]
        parts = [f"{self.incident_count} incident(s)"]
        parts += [f"drained {', '.join(drained[:8])}{' and more' if len(drained) > 8 else ''}"] if drained else []
        parts += [f"{waiting[0].plan.incident} waits: {waiting[0].reason}"] if waiting else []
        return "; ".join(parts)


def _calls_for_repair(state: LedgerState, cluster: Cluster) -> bool:
    """Return whether there is undecided evidence that calls for more than a message: the rest waits for a run.

    Every decision keeps its snapshot: a GPU that chatters must not fill the disk with them.
    """
    if state.evidence_head <= state.decided_through:
        return False
    new = cluster.ledger.evidence_after(state.decided_through, limit=EVIDENCE_AT_ONCE)
    return any(find(each.observation, cluster.rules.catalogue).response in REPAIRS for each in new)


def react(cluster: Cluster, *, lease: Lease) -> Reaction | None:
    """Decide on evidence that calls for a repair, and carry out the drains; None if there is none undecided.

    Raises SourceError if the scheduler does not answer: the evidence stays undecided, for the next tick or a run.
    """
    for _ in range(_TRY_COUNT):
        state = cluster.ledger.read_state(cluster.clock.now())
        if not _calls_for_repair(state, cluster):
            return None
        snapshot = glance(cluster)
        decision = decide(snapshot, cluster.rules)
        with suppress(LedgerConflict):  # A run wrote in between: what is left is decided on anew.
            cluster.ledger.record_decision(
                inputs=cluster.ledger.store_snapshot(snapshot),
                decided_through=snapshot.evidence_through,
                expected_head=snapshot.ledger_head,
                incidents=decision.incidents,
                plans=decision.plans,
                now=snapshot.taken_at,
            )
            return Reaction(
                incident_count=len(decision.incidents), drains=carry_out_drains(decision.plans, cluster, lease=lease)
            )
    return None
