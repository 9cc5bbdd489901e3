"""Keeps what was proved of plans, and lets nothing be begun without: asked in the very transaction that would begin it.

Each function runs inside a transaction of its caller.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert

from ops_pipelines.core.action import MESSAGES, ActionRecord
from ops_pipelines.core.entries import AUTOPILOT, EntryKind, LedgerConflict, LedgerError
from ops_pipelines.core.identity import Digest, PlanId, digest_of, is_rollout
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.plan import IncidentPlan, why_no_step
from ops_pipelines.core.proof import (
    LASTS,
    SECOND_OPINION,
    ActProof,
    Proof,
    Refusal,
    wait,
    why_act_unproved,
    why_unproved,
)
from ops_pipelines.remediate.act_proof import ACT_CHECKS
from ops_pipelines.remediate.plan_proof import PROOFS
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.ledger.chain import ChainWriter
from ops_pipelines.resources.ledger.state import read_plans_of, read_proofs_of
from ops_pipelines.resources.ledger.tables import proofs as proof_rows

_NEW_PROOF = insert(proof_rows)
_OUTDATED = delete(proof_rows).where(proof_rows.c.plan == bindparam("its_plan"))


def content_of(plan: IncidentPlan) -> Digest:
    """Return the sha256 of a plan as it is written."""
    return digest_of(encode(plan))


def worth_writing(connection: Connection, proofs: Collection[Proof]) -> tuple[Proof, ...]:
    """Return the proofs that say something new, or are to take the place of one of which half the time is over."""
    known = read_proofs_of(connection, [each.plan for each in proofs])
    return tuple(each for each in proofs if _is_news(each, known.get(each.plan)))


def _is_news(proof: Proof, known: Proof | None) -> bool:
    if known is None:
        return True
    if proof.made_at < known.made_at:
        return False  # Who was slow does not unsay what was found since.
    if _said(proof) != _said(known):
        return True
    return proof.made_at - known.made_at > LASTS / 2


def _said(proof: Proof) -> tuple[object, ...]:
    return proof.content, proof.rules, proof.version, proof.checked


def write_proofs(writer: ChainWriter, proofs: Collection[Proof], *, now: datetime) -> None:
    """Append proofs of plans that are known, each in place of the one before."""
    plans = read_plans_of(writer.connection, [each.plan for each in proofs])
    for proof in proofs:
        if proof.plan not in plans:
            raise LedgerError(f"there is no plan {proof.plan} that could be proved; record the plan with its proof")
        body, incident = encode(proof), plans[proof.plan].incident
        seq = writer.append(body, kind=EntryKind.PROOF, actor=AUTOPILOT, incident=incident, now=now)
        writer.connection.execute(_OUTDATED, {"its_plan": proof.plan})
        writer.connection.execute(_NEW_PROOF, {"plan": proof.plan, "seq": seq, "body": body})


def refuse_unproved(connection: Connection, begun: Iterable[Incident], *, now: datetime) -> None:
    """Raise LedgerConflict if a plan would be put in force without a proof that has passed, and holds yet."""
    for incident in begun:
        if incident.state is not IncidentState.ACTING or incident.plan is None:
            continue
        why = _why_unproved(connection, incident.plan)
        if why is None and read_proofs_of(connection, [incident.plan])[incident.plan].expires_at <= now:
            why = "its proof has expired; the next pass proves it anew"
        if why is not None:
            raise LedgerConflict(f"plan {incident.plan} cannot be put in force: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlans:
    """The plans behind acts that are to be begun together, with what was proved of them: read once."""

    plans: Mapping[PlanId, IncidentPlan]
    proofs: Mapping[PlanId, Proof]


def read_known_plans(connection: Connection, records: Iterable[ActionRecord]) -> KnownPlans:
    """Return the plans behind some acts, in this transaction."""
    names = {each.plan for each in records if each.plan is not None and not is_rollout(each.action.incident)}
    return KnownPlans(plans=read_plans_of(connection, names), proofs=read_proofs_of(connection, names))


def refusal_of_unproved(
    known: KnownPlans, record: ActionRecord, proof: ActProof | None, *, now: datetime
) -> Refusal | None:
    """Return why an act must not be begun: its plan was not proved, does not hold it, or the act itself was not proved.

    People are told whatever was proved. Of a rollout the acts alone are proved: its waves have a yes of their own.
    """
    action = record.action
    if action.verb in MESSAGES:
        return None
    why = None if is_rollout(action.incident) else _why_unplanned(known, record)
    if why is None and proof is not None and proof.contradictions:
        return wait(SECOND_OPINION, "; ".join(proof.contradictions))
    why = why or why_act_unproved(proof, act=action.key, checks=ACT_CHECKS, now=now)
    return None if why is None else wait("proof", why)


def _why_unplanned(known: KnownPlans, record: ActionRecord) -> str | None:
    """Return why the plan behind an act does not carry it. What follows a plan without being of it needs no proof of
    that plan: tests, the way back and marks are proved by themselves."""
    plan = None if record.plan is None else known.plans.get(record.plan)
    if record.plan is not None and plan is None:
        return f"there is no plan {record.plan}"
    if plan is None or record.action not in plan.actions:
        return why_no_step(record.action, plan)
    return why_unproved(known.proofs.get(plan.plan), content=content_of(plan), checks=PROOFS)


def _why_unproved(connection: Connection, plan: PlanId) -> str | None:
    known = read_plans_of(connection, [plan]).get(plan)
    if known is None:
        return f"there is no plan {plan}"
    proof = read_proofs_of(connection, [plan]).get(plan)
    return why_unproved(proof, content=content_of(known), checks=PROOFS)
