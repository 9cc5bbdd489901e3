"""The reflex: decide on new evidence within the tick that noticed it, and drain; nothing stronger.

The same snapshot, decision, guardrails, executor and ledger as the run that follows, which records the assets and
does the rest. Runs as a pass of its own, so that a fault is out of service before a run has started.

When to decide: a decision covers everything undecided, and costs a reading of the scheduler and a snapshot on disk.
So a fault that calls for a repair, and has not done so in this tick, is decided on at once. What tells something else
for the first time in a tick (a page, a message to an owner), asks for the same repair again, or comes in bulk is
decided on twice a second, and in the tick's last look; a thousand observations wait for nothing. What only repeats
waits for the next tick, whose first look decides on whatever is there. So a storm is on record within a second, nothing
waits longer than a tick, and a GPU that chatters all day costs one snapshot a tick beside those of the runs that its
evidence starts anyway.
"""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Evidence, LedgerConflict
from ops_pipelines.core.finding import REPAIRS, Catalogue, Finding, Response
from ops_pipelines.core.observation import Observation
from ops_pipelines.domain.decision import decide
from ops_pipelines.flow.acts.perform import Stage
from ops_pipelines.flow.evidence.observe import EVIDENCE_AT_ONCE, Reading, begin_reading, glance
from ops_pipelines.flow.lease import Lease
from ops_pipelines.flow.plans.carry_out import carry_out_drains
from ops_pipelines.flow.plans.gate import prove_and_record
from ops_pipelines.flow.plans.plan_progress import PlanReport
from ops_pipelines.observe.rules import find

_TRY_COUNT = 8
"""Runs that act write a few lines a second; after this many misses the next look tries again."""
_SOON = timedelta(seconds=0.4)
"""Between two decisions on what calls for no repair, or for one that this tick decided on before: with four looks a
second, every other one decides."""
_BULK_COUNT = 100
"""Observations that are worth a snapshot by their number alone: it is then mostly made of them."""
_FLOOD_COUNT = 1_000
"""Observations that wait for nothing: by the next half second they would be too many to be decided on in time."""


@dataclass(slots=True, kw_only=True)
class Attention:
    """What one tick has decided on so far, so that it need not be done for each repetition."""

    ends_at: datetime | None = None
    """When the tick ends: what is not decided on before then waits for the next one. None: at once."""
    decided_at: datetime | None = None
    """When the tick last decided; None before it has."""
    responses: dict[Hashable, Response] = field(default_factory=dict)
    """What each kind of observation called for that the tick has decided on."""

    def is_drawn(self, evidence: Sequence[Evidence], catalogue: Catalogue, *, now: datetime) -> bool:
        """Return whether undecided `evidence` is to be decided on now."""
        if not evidence or self.decided_at is None or len(evidence) >= _FLOOD_COUNT:
            return bool(evidence)
        known: set[Response] = set()
        new: set[Response] = set()
        for each in evidence:
            response = self.responses.get(_kind_of(each.observation))
            if response is not None:
                known.add(response)
            else:
                new.add(find(each.observation, catalogue).response)
        if not new.isdisjoint(REPAIRS):
            return True
        if now - self.decided_at < _SOON and self.ends_at is not None and now + _SOON < self.ends_at:
            return False
        return len(evidence) >= _BULK_COUNT or not known.isdisjoint(REPAIRS) or bool(new - {Response.MONITOR})

    def take_note(self, findings: Sequence[Finding], *, now: datetime) -> None:
        """Remember that `findings`, of one observation each, were decided on."""
        self.decided_at = now
        self.responses.update((_kind_of(finding.evidence[0]), finding.response) for finding in findings)


def _kind_of(told: Observation) -> Hashable:
    """Return what observations have in common that mean the same, as a rule."""
    return told.signal, told.code, told.signature, told.node, told.gpu, told.component, told.job


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What one reflex did."""

    incident_count: int
    """Incidents opened or changed."""
    drains: tuple[PlanReport, ...]

    @property
    def is_worth_telling(self) -> bool:
        """Return whether it changed anything: most of a storm only adds to what is known."""
        return self.incident_count > 0 or bool(self.drains)

    def __str__(self) -> str:
        drained = [step.action.target for report in self.drains for step in report.steps]
        waiting = [report for report in self.drains if report.stage is not Stage.DONE and not report.steps]
        parts = [f"{self.incident_count} incident(s)"]
        parts += [f"drained {', '.join(drained[:8])}{' and more' if len(drained) > 8 else ''}"] if drained else []
        parts += [f"{waiting[0].plan.incident} waits: {waiting[0].reason}"] if waiting else []
        return "; ".join(parts)


def react(
    cluster: Cluster, *, lease: Lease, attention: Attention | None = None, reading: Reading | None = None
) -> Reaction | None:
    """Decide on new evidence where it is time to, and carry out the drains; None if nothing was decided.

    `attention` is the tick's, and is brought up to date; without one whatever is undecided is decided on. `reading` was
    begun moments ago, so that its answer need not be waited for; without one the scheduler is asked when it matters.
    Raises SourceError if the scheduler does not answer: the evidence stays undecided, for the next tick or a run.
    """
    attention = Attention() if attention is None else attention
    for _ in range(_TRY_COUNT):
        now = cluster.clock.now()
        _, evidence = cluster.ledger.undecided(limit=EVIDENCE_AT_ONCE)
        if not attention.is_drawn(evidence, cluster.rules.catalogue, now=now):
            return None
        # Asked once: what makes us miss is a line of the ledger, and each act is judged on fresh state anyway.
        reading = reading or begin_reading(cluster)
        snapshot = glance(cluster, evidence, reading)
        decision = decide(snapshot, cluster.rules)
        with suppress(LedgerConflict):  # A run wrote in between: what is left is decided on anew.
            plans = prove_and_record(
                decision,
                snapshot,
                inputs=cluster.ledger.store_snapshot(snapshot),
                cluster=cluster,
                expected_head=snapshot.ledger_head,
                incidents=decision.incidents,
            )
            drains = carry_out_drains(plans, cluster, lease=lease)
            attention.take_note(decision.findings, now=cluster.clock.now())
            return Reaction(incident_count=len(decision.incidents), drains=drains)
    return None
