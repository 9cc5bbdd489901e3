"""The one gate between what was decided and what is done: a plan is proved, and recorded with its proof.

What is recorded is what is carried out: of a plan that the ledger knows already its own words count. Nothing passes
that a check contradicts; that is a fault of ours, so a person is told. The ledger asks for the proof once more in the
transaction that begins something (`resources.ledger.proofs`).
"""

from collections.abc import Collection, Sequence
from threading import Thread

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.plan import IncidentPlan, Order, ProvedPlan, Snapshot
from ops_pipelines.core.proof import Proof, Refusal, wait, why_unproved
from ops_pipelines.domain.decision import Decision
from ops_pipelines.domain.plan_proof import PROOFS, prove_plans, refuse_plans, with_proof
from ops_pipelines.flow.acts.perform import perform
from ops_pipelines.flow.lease import Lease

_PAGE = "proof"
PROOF_SECONDS = 10.0
"""# Assumption: a proof of 2,048 nodes takes hundredths of a second; one that takes so long is stuck."""
_stuck: dict[str, Thread] = {}
"""By cluster, who proved last: while one that was late lives no other is begun."""


def prove_and_record(
    decision: Decision,
    snapshot: Snapshot,
    *,
    inputs: Digest,
    cluster: Cluster,
    expected_head: int | None,
    incidents: Collection[Incident],
    also: Sequence[IncidentPlan] = (),
) -> tuple[IncidentPlan, ...]:
    """Prove the plans of a decision and record it, all in one transaction; return the plans as they are recorded.

    `inputs` is where the snapshot is kept, `incidents` those of the decision that are to be written, `also` further
    plans to be proved. Raises LedgerConflict as `Ledger.record_decision` does.
    """
    ledger = cluster.ledger
    kept = tuple(ledger.plan(plan.plan) or plan for plan in decision.plans)
    to_prove = (*also, *kept)
    ledger.record_decision(
        inputs=inputs,
        decided_through=snapshot.evidence_through,
        expected_head=expected_head,
        incidents=incidents,
        plans=decision.plans,
        now=snapshot.taken_at,
        refusals=decision.refusals,
        proofs=_prove_in_time(to_prove, snapshot, cluster, inputs=inputs),
    )
    return kept


def unproved_in_force(incidents: Sequence[Incident], cluster: Cluster) -> tuple[IncidentPlan, ...]:
    """Return the plans in force that an older version of this program put there, without a proof that counts now."""
    found = []
    for incident in incidents:
        if incident.state is IncidentState.ACTING and incident.plan is not None:
            plan = cluster.ledger.plan(incident.plan)
            if plan is not None and _why_unproved(plan, cluster) is not None:
                found.append(plan)
    return tuple(found)


def why_not_passed(plan: IncidentPlan, cluster: Cluster) -> Refusal | None:
    """Return why a plan must not be put in force: it was not proved, not as it is, or not lately, or contradicted."""
    proof = cluster.ledger.proof(plan.plan)
    why = why_unproved(proof, content=cluster.ledger.content_of(plan), checks=PROOFS)
    if why is not None:
        return wait("proof", why)
    if proof is not None and proof.expires_at <= cluster.clock.now():
        return wait("proof", "its proof has expired; the next pass proves it anew")
    if proof is not None and proof.rules != cluster.rules_digest:
        return wait("proof", "the rules have changed since it was proved; the next pass proves it anew")
    return None


def as_proved(plan: IncidentPlan, cluster: Cluster) -> ProvedPlan | Refusal:
    """Return a plan as its steps may be ordered, or why they may not be."""
    ledger = cluster.ledger
    found = with_proof(plan, ledger.proof(plan.plan), content=ledger.content_of(plan))
    return wait("proof", found) if isinstance(found, str) else found


def tell_of_contradictions(plans: Sequence[IncidentPlan], cluster: Cluster, *, lease: Lease) -> None:
    """Page once about each plan that its own proof contradicts: the planner, or the proof, is wrong."""
    contradicted = [plan for plan in plans if _is_contradicted(plan, cluster)]
    if not contradicted:
        return
    known = {each.action.key for each in cluster.ledger.read_state(cluster.clock.now()).records if each.outcome}
    for plan in contradicted:
        page = Action(
            verb=Verb.PAGE_HUMAN,
            incident=plan.incident,
            text=f"{plan.plan} of {plan.incident} is not begun: {_why_unproved(plan, cluster)}. This is a fault of the "
            "autopilot: do what is needed by hand, and report it.",
            part=f"{_PAGE} {plan.plan}",
        )
        if page.key not in known:
            perform(Order(action=page), cluster, lease=lease)


def _prove_in_time(
    plans: Sequence[IncidentPlan], snapshot: Snapshot, cluster: Cluster, *, inputs: Digest
) -> tuple[Proof, ...]:
    """Return what the second opinion says; one that comes to no end lets nothing pass, and keeps nobody waiting."""
    contents = [cluster.ledger.content_of(plan) for plan in plans]
    found: list[tuple[Proof, ...]] = []
    faults: list[str] = []

    def prove() -> None:
        try:
            found.append(prove_plans(plans, snapshot, cluster.rules, inputs=inputs, contents=contents))
        except Exception as problem:  # whatever it is, it is no proof
            faults.append(repr(problem))

    earlier = _stuck.get(cluster.name)
    if earlier is None or not earlier.is_alive():  # Else each pass would leave one more.
        prover = Thread(target=prove, name="prover", daemon=True)
        prover.start()
        prover.join(PROOF_SECONDS)
        _stuck[cluster.name] = prover
    if found:
        return found[0]
    why = f"the proof failed: {faults[0]}" if faults else f"the proof came to no end within {PROOF_SECONDS:g} s"
    return refuse_plans(plans, snapshot, inputs=inputs, contents=contents, why=why)


def _why_unproved(plan: IncidentPlan, cluster: Cluster) -> str | None:
    return why_unproved(cluster.ledger.proof(plan.plan), content=cluster.ledger.content_of(plan), checks=PROOFS)


def _is_contradicted(plan: IncidentPlan, cluster: Cluster) -> bool:
    proof = cluster.ledger.proof(plan.plan)
    return proof is not None and bool(proof.contradictions)
