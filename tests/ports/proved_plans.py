"""Plans as the gate leaves them in a ledger: recorded, each with a proof that has passed."""

from datetime import datetime

from ops_pipelines.domain.action import Action
from ops_pipelines.domain.identity import IncidentId, PlanId, digest_of
from ops_pipelines.domain.meaning.finding import Response
from ops_pipelines.domain.plan import IncidentPlan
from ops_pipelines.domain.plan_proof import PROOFS
from ops_pipelines.domain.proof import PROVER_VERSION, CheckedPlan, Proof
from ops_pipelines.ports.ledger import Ledger


def passed(plan: IncidentPlan, ledger: Ledger, *, at: datetime) -> Proof:
    """Return a proof in which nothing contradicts the plan."""
    return Proof(
        plan=plan.plan,
        content=ledger.content_of(plan),
        inputs=digest_of("a snapshot"),
        version=PROVER_VERSION,
        made_at=at,
        checked=tuple(CheckedPlan(check=name, contradictions=()) for name in PROOFS),
    )


def keep_proved(ledger: Ledger, *plans: IncidentPlan, at: datetime) -> None:
    """Record plans with such proofs."""
    ledger.record_decision(
        inputs=digest_of("a snapshot"),
        decided_through=0,
        expected_head=None,
        incidents=(),
        plans=plans,
        now=at,
        proofs=[passed(plan, ledger, at=at) for plan in plans],
    )


def plan_named(name: str, incident: str, *actions: Action) -> IncidentPlan:
    """Return a plan of which a test needs no more than its name."""
    return IncidentPlan(
        plan=PlanId(name),
        incident=IncidentId(incident),
        response=Response.REBOOT_NODE,
        actions=actions,
        reason="a test",
        effects=(),
        rejected_alternatives=(),
    )
