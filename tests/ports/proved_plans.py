"""Plans and acts as the gate leaves them in a ledger: recorded, each with a proof that has passed."""

from dataclasses import replace
from datetime import datetime

from ops_pipelines.core.action import MESSAGES, Action, ActionRecord
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import Digest, IncidentId, PlanId, digest_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.plan import STEPS, IncidentPlan, Order, ProvedPlan
from ops_pipelines.core.proof import PROVER_VERSION, ActProof, CheckedPlan, Proof, QuotaProof
from ops_pipelines.core.proposal import QuotaProposal
from ops_pipelines.quotas.proof import PROOFS as QUOTA_PROOFS
from ops_pipelines.remediate.act_proof import ACT_CHECKS
from ops_pipelines.remediate.plan_proof import PROOFS

RULES = digest_of("rules")


def passed(plan: IncidentPlan, ledger: Ledger, *, at: datetime, rules: Digest = RULES) -> Proof:
    """Return a proof in which nothing contradicts the plan."""
    return Proof(
        plan=plan.plan,
        content=ledger.content_of(plan),
        inputs=digest_of("a snapshot"),
        rules=rules,
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


def passed_act(action: Action, *, at: datetime) -> ActProof:
    """Return a proof in which nothing contradicts the act."""
    return ActProof(
        act=action.key,
        version=PROVER_VERSION,
        made_at=at,
        seen=digest_of("the facts"),
        checks=tuple(ACT_CHECKS),
        contradictions=(),
    )


def passed_quotas(proposal: QuotaProposal, ledger: Ledger, *, at: datetime) -> QuotaProof:
    """Return a proof in which nothing contradicts the proposal."""
    return QuotaProof(
        content=ledger.content_of(proposal),
        inputs=digest_of("what was agreed"),
        version=PROVER_VERSION,
        made_at=at,
        checks=tuple(QUOTA_PROOFS),
        contradictions=(),
    )


def allow(record: ActionRecord, _: LedgerState) -> ActProof | None:
    """Let an act pass, as a guard with nothing against it does."""
    if record.action.verb in MESSAGES:
        return None
    return record.proof or passed_act(record.action, at=record.begun_at)


def order_of(action: Action, ledger: Ledger, *, at: datetime) -> Order:
    """Return an order for an act, as the one step of a plan that was proved where it takes one."""
    if action.verb not in STEPS:
        return Order(action=action)
    plan = plan_named(f"PLAN-{action.key}", action.incident, action)
    keep_proved(ledger, plan, at=at)
    return ProvedPlan(plan=plan, content=ledger.content_of(plan), proof=passed(plan, ledger, at=at)).step(action)


def as_step(record: ActionRecord, ledger: Ledger) -> ActionRecord:
    """Return a before-entry with a proved plan behind it, where it is of what only a plan may ask for."""
    order = order_of(record.action, ledger, at=record.begun_at) if record.plan is None else None
    return record if order is None else replace(record, plan=order.plan)
