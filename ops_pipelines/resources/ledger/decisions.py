"""Writing decisions, changes of incidents, plans and approvals: what may follow what, and the lines that record it.

Each function runs inside a writing transaction of its caller. Actions are `actions`' business.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select

from ops_pipelines.core.action import SOFT
from ops_pipelines.core.entries import AUTOPILOT, Approval, EntryKind, LedgerConflict, LedgerError, LinkUsed
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, PlanId, cause_of
from ops_pipelines.core.incident import TRANSITIONS, Incident, covers
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.proof import Proof, Refusal
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.actions import refuse_unproved, worth_writing, write_proofs
from ops_pipelines.resources.ledger.chain import ChainWriter, Decision, read_head
from ops_pipelines.resources.ledger.rollouts import read_rollout_of_plan
from ops_pipelines.resources.ledger.state import (
    read_decided_through,
    read_incidents_of,
    read_plan,
    read_plans_of,
    write_incidents,
)
from ops_pipelines.resources.ledger.tables import approvals, entries
from ops_pipelines.resources.ledger.tables import plans as plan_rows

_REFUSALS_WITHIN = 1_000
"""Lines that are looked through for the last refusals: further back, the same ones are told once more."""
_DECISIONS_AFTER = (
    select(entries.c.body)
    .where(entries.c.kind == EntryKind.DECISION.value, entries.c.seq > bindparam("after"))
    .order_by(entries.c.seq.desc())
)


def write_decision(
    connection: Connection,
    *,
    inputs: Digest,
    decided_through: int,
    expected_head: int | None,
    incidents: Collection[Incident],
    plans: Collection[IncidentPlan],
    now: datetime,
    refusals: Collection[tuple[IncidentId, Refusal]] | None,
    proofs: Collection[Proof],
) -> int:
    """Write a decision with its changed incidents and new plans; return the head. What is unchanged gets no line."""
    head_seq, _ = read_head(connection)
    if expected_head is not None and head_seq != expected_head:
        raise LedgerConflict(
            f"the decision was made on line {expected_head}, but the ledger is at {head_seq}; "
            "read the state again and decide again"
        )
    decided_before = read_decided_through(connection)
    if expected_head is None:
        decided_through = max(decided_through, decided_before)  # Only plans are added; others may have gone further.
    if decided_through < decided_before:
        raise LedgerError(
            f"decided_through would go back from {decided_before} to {decided_through}; evidence is decided on once"
        )
    present = read_incidents_of(connection, [item.incident for item in incidents])
    changed = [item for item in incidents if _is_change(present.get(item.incident), item)]
    known_plans = read_plans_of(connection, [plan.plan for plan in plans])
    new_plans = [plan for plan in plans if _is_new_plan(known_plans.get(plan.plan), plan)]
    is_refused_anew = refusals is not None and _guardrails_of(refusals) != _guardrails_of(_last_refusals(connection))
    new_proofs = worth_writing(connection, proofs)
    is_news = changed or new_plans or decided_through != decided_before or is_refused_anew
    if not is_news and not new_proofs:
        return head_seq
    with ChainWriter(connection) as writer:
        if is_news:
            decision = Decision(
                inputs=inputs,
                decided_through=decided_through,
                incidents=tuple(item.incident for item in changed),
                plans=tuple(plan.plan for plan in new_plans),
                refusals=None if refusals is None else tuple(refusals),
            )
            writer.append(encode(decision), kind=EntryKind.DECISION, actor=AUTOPILOT, incident=None, now=now)
        write_incidents(writer, changed, known=present, actor=AUTOPILOT, now=now)
        _write_plans(writer, new_plans, now=now)
        write_proofs(writer, new_proofs, now=now)
        refuse_unproved(connection, _put_in_force(changed, present), now=now)
    return writer.head_seq


def _guardrails_of(refusals: Collection[tuple[IncidentId, Refusal]]) -> frozenset[tuple[IncidentId, str]]:
    """Return what makes refusals news: their words tell seconds and counts, which change with every look."""
    return frozenset((incident, refusal.guardrail) for incident, refusal in refusals)


def _last_refusals(connection: Connection) -> Collection[tuple[IncidentId, Refusal]]:
    """Return the refusals of the newest decision that made plans; none where it lies too far back to be looked for."""
    head_seq, _ = read_head(connection)
    for row in connection.execute(_DECISIONS_AFTER, {"after": head_seq - _REFUSALS_WITHIN}):
        refusals = decode(Decision, row.body).refusals
        if refusals is not None:
            return refusals
    return ()


def write_changes(connection: Connection, incidents: Collection[Incident], *, actor: str, now: datetime) -> None:
    """Write incidents as they are now; the same again writes nothing. One that is not known is opened by it."""
    present = read_incidents_of(connection, [item.incident for item in incidents])
    changed = [item for item in incidents if present.get(item.incident) != item]
    for item in changed:
        _refuse_impossible(present.get(item.incident), item)
    refuse_unproved(connection, _put_in_force(changed, present), now=now)
    with ChainWriter(connection) as writer:
        write_incidents(writer, changed, known=present, actor=actor, now=now)


def _refuse_impossible(present: Incident | None, incident: Incident) -> None:
    if present is None and not incident.is_open:
        raise LedgerError(f"there is no incident {incident.incident} that could be {incident.state.value} now")
    if present is not None and present.opened_at != incident.opened_at:
        raise LedgerConflict(f"{incident.incident} is another incident by now; read the state again for the next id")
    if present is not None and not covers(incident, present):
        raise LedgerConflict(f"{incident.incident} has new findings by now; read it again and decide again")
    if present is not None and not _leads_to(present, incident):
        raise LedgerConflict(
            f"incident {incident.incident} is {present.state.value} by now, which does not lead to "
            f"{incident.state.value}; read it again and decide again"
        )


def _put_in_force(changed: Iterable[Incident], present: Mapping[IncidentId, Incident]) -> list[Incident]:
    """Return the incidents that change their state or plan."""
    return [
        each
        for each in changed
        if each.incident not in present
        or (present[each.incident].state, present[each.incident].plan) != (each.state, each.plan)
    ]


def _leads_to(present: Incident, incident: Incident) -> bool:
    if present.state is incident.state:
        return present.is_open
    return any(before is present.state and after is incident.state for (before, _), after in TRANSITIONS.items())


def write_approval(connection: Connection, approval: Approval) -> None:
    """Write a yes to a plan that is known; it counts as a change of the plan's incident. A link gives one yes.

    A plan is of an incident, or of a rollout.
    """
    cause = _cause_of_plan(connection, approval.plan)
    if cause is None:
        raise LedgerError(f"there is no plan {approval.plan}; look at the incident for the plan it has now")
    used = _approval_with(connection, approval.link, cause) if approval.link else None
    if used is not None:
        raise LinkUsed(f"this link gave its one yes already, at {used.given_at:%Y-%m-%d %H:%M:%S} UTC; ask for another")
    body = encode(approval)
    with ChainWriter(connection) as writer:
        seq = writer.append(body, kind=EntryKind.APPROVAL, actor=approval.actor, incident=cause, now=approval.given_at)
    connection.execute(insert(approvals), {"seq": seq, "expires_at": approval.expires_at, "body": body})


def _cause_of_plan(connection: Connection, plan: PlanId) -> IncidentId | None:
    known = read_plan(connection, plan)
    if known is not None:
        return known.incident
    rollout = read_rollout_of_plan(connection, plan)
    return None if rollout is None else cause_of(rollout)


def _approval_with(connection: Connection, link: str, incident: IncidentId) -> Approval | None:
    """Return the approval that a link gave, expired or not: the lines of the chain say it, and are never taken back."""
    lines = approvals.join(entries, entries.c.seq == approvals.c.seq)
    statement = select(entries.c.body).select_from(lines).where(entries.c.incident == incident)
    given = (decode(Approval, body) for body in connection.execute(statement).scalars())
    return next((each for each in given if each.link == link), None)


def _is_change(present: Incident | None, incident: Incident) -> bool:
    if present is None or (present.is_open and present != incident):
        return True
    if present != incident:
        raise LedgerError(
            f"incident {incident.incident} is {present.state.value}, which is final; the same trouble opens another"
        )
    return False


def _is_new_plan(present: IncidentPlan | None, plan: IncidentPlan) -> bool:
    """A plan is made once: the same actions in other words are the same plan, and the first wording stays.

    So does the room that the first one keeps free: it is no part of a plan's name (`remediation`).
    """
    if present is not None and _firm_keys(present) != _firm_keys(plan):
        raise LedgerError(f"there is another plan {plan.plan} already; a plan never changes, a new one gets a new id")
    return present is None


def _firm_keys(plan: IncidentPlan) -> list[ActionKey]:
    return sorted(action.key for action in plan.actions if action.verb not in SOFT)


def _write_plans(writer: ChainWriter, plans: Collection[IncidentPlan], *, now: datetime) -> None:
    rows = []
    for plan in plans:
        body = encode(plan)
        seq = writer.append(body, kind=EntryKind.PLAN, actor=AUTOPILOT, incident=plan.incident, now=now)
        rows.append({"plan": plan.plan, "seq": seq, "body": body})
    if rows:
        writer.connection.execute(insert(plan_rows), rows)
