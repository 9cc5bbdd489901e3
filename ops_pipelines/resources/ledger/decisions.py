"""Writing decisions, changes of incidents, plans and approvals, and proposals of quotas: what may follow what, and the
lines that record it.

Each function runs inside a transaction of its caller. Actions are `actions`' business. A proposal itself never changes:
it is a document, named by the line that brings it; later lines state how far it is.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from ops_pipelines.core.action import SOFT
from ops_pipelines.core.entries import AUTOPILOT, Approval, EntryKind, LedgerConflict, LedgerError, LinkUsed
from ops_pipelines.core.identity import ActionKey, Digest, IncidentId, PlanId, cause_of
from ops_pipelines.core.incident import TRANSITIONS, Incident, covers
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.core.proof import Proof, QuotaProof, Refusal, why_quota_unproved
from ops_pipelines.core.proposal import (
    PROPOSAL_TABLE,
    ProposalEvent,
    ProposalId,
    ProposalRecord,
    ProposalState,
    QuotaProposal,
    SentChange,
)
from ops_pipelines.quotas.proof import PROOFS
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.actions import refuse_unproved, worth_writing, write_proofs
from ops_pipelines.resources.ledger.chain import ChainWriter, Decision, ProposalChange, ProposalStanding, read_head
from ops_pipelines.resources.ledger.evidence import digest_document, read_document, read_lease, write_document
from ops_pipelines.resources.ledger.rollouts import read_rollout_of_plan
from ops_pipelines.resources.ledger.state import (
    read_decided_through,
    read_incidents_of,
    read_pause,
    read_plan,
    read_plans_of,
    write_incidents,
)
from ops_pipelines.resources.ledger.tables import approvals, entries
from ops_pipelines.resources.ledger.tables import plans as plan_rows
from ops_pipelines.resources.ledger.tables import quota_proposals as rows

_REFUSALS_WITHIN = 1_000
"""Lines that are looked through for the last refusals: further back, the same ones are reported once more."""
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
            f"decided_through would return from {decided_before} to {decided_through}; evidence is decided on once"
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
    """Write an approval of a plan that is known; it counts as a change of the plan's incident. A link gives one.

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


BEGINNINGS = frozenset({ProposalEvent.BEGIN, ProposalEvent.UNDO})
"""After these the scheduler is sent something."""
HALF_WAY = frozenset({ProposalState.APPLYING, ProposalState.UNDOING})
"""Somebody is at it, or died at it."""
_FIRST = frozenset({ProposalState.PROPOSED, ProposalState.REFUSED})
_MAY_BE_IN = HALF_WAY | {ProposalState.APPLIED, ProposalState.HALF_APPLIED, ProposalState.HALF_UNDONE}

_ROW = select(rows).where(rows.c.proposal == bindparam("proposal"))
_NEWEST = select(rows).order_by(rows.c.number.desc()).limit(bindparam("most"))
_COUNT = select(func.max(rows.c.number))
_IN_STATES = (
    select(rows.c.proposal, rows.c.state, rows.c.begun_seq, rows.c.body)
    .where(rows.c.state.in_(bindparam("states", expanding=True)))
    .order_by(rows.c.number)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProposal:
    """The document of a proposal."""

    proposal: QuotaProposal
    """With 0 for each `most` that is infinite, which JSON cannot say."""
    boundless: tuple[int, ...]
    """Which lines these are, counted from 0."""


# -- writing ----------------------------------------------------------------------------------------------------------


def write_proposal(connection: Connection, record: ProposalRecord, *, now: datetime) -> ProposalRecord:
    """Write a new proposal and supersede those before it; return a known one as it is stored.

    One that was superseded itself takes their place again: it is what is proposed last. One that was undone comes back
    by a person's word alone, or the next run would set again what somebody has just taken back.
    """
    try:
        name = record.name
    except UnicodeEncodeError as exc:
        raise LedgerError(
            f"a proposal names a team or type that is no text ({exc}); correct it, propose again"
        ) from exc
    if record.state not in _FIRST or record.sent:
        raise LedgerError(f"{name} is {record.state.value}; a new one is proposed or refused, and not started")
    known = read_proposal(connection, name)
    is_renewed = known is not None and _may_come_back(known, record)
    if known is not None and not is_renewed:
        return known
    document = encode_proposal(record.proposal)
    digest = digest_document(document)
    write_document(connection, digest, document)
    standing = _standing(record)
    waiting = {"states": [ProposalState.PROPOSED.value]}
    earlier = tuple(ProposalId(row.proposal) for row in connection.execute(_IN_STATES, waiting))
    event = ProposalEvent.RENEW if is_renewed else None
    change = ProposalChange(proposal=name, event=event, standing=standing, document=digest, superseded=earlier)
    seq = _append(connection, change, now=now)
    row = {
        "proposal": name,
        "number": (connection.execute(_COUNT).scalar() or 0) + 1,
        "day": record.proposal.day.isoformat(),
        "document": digest,
        "first_seq": seq,
        "begun_seq": None,
        "seq": seq,
        **standing_row(standing),
    }
    if is_renewed:
        _update(connection, name, row)
    else:
        connection.execute(insert(rows), row)
    for older in earlier:
        _update(connection, older, {"seq": seq, **standing_row(superseded_by(name, standing))})
    return record


def _may_come_back(known: ProposalRecord, again: ProposalRecord) -> bool:
    if again.state is not ProposalState.PROPOSED:
        return False
    is_undone = known.state is ProposalState.UNDONE
    return known.state is ProposalState.SUPERSEDED or (is_undone and again.actor != AUTOPILOT)


def write_event(
    connection: Connection,
    proposal: ProposalId,
    event: ProposalEvent,
    *,
    actor: str,
    reason: str,
    lease_token: str | None,
    now: datetime,
    sent: tuple[SentChange, ...],
    proof: QuotaProof | None,
) -> ProposalRecord:
    """Write one event of a proposal; raise LedgerConflict as the port says."""
    row = connection.execute(_ROW, {"proposal": proposal}).one_or_none()
    if row is None:
        raise LedgerError(f"there is no proposal {proposal[:80]}; `ops-pipelines quota history` lists them")
    present = _to_record(connection, row)
    state = PROPOSAL_TABLE.get((present.state, event))
    if state is None:
        raise LedgerConflict(
            f"{proposal} is {present.state.value} by now ({present.actor}: {present.reason}), which does not take "
            f"{event.value!r}; read it again and decide again"
        )
    if sent and event is not ProposalEvent.BEGIN:
        raise LedgerError(f"{proposal}: what is sent is stated when it is started, not with {event.value!r}")
    _refuse_without_right(connection, proposal, event, lease_token=lease_token, now=now)
    if event in BEGINNINGS:
        _refuse_beside_another(connection, present, row.begun_seq)
    if event is ProposalEvent.BEGIN:
        why = why_quota_unproved(proof, content=Digest(row.document), checks=PROOFS, now=now)
        if why is not None:
            raise LedgerConflict(f"{proposal} is not applied: {why}")
    is_first = event is ProposalEvent.BEGIN and present.state is ProposalState.PROPOSED
    changed = replace(
        present, state=state, since=now, actor=actor, reason=reason, sent=sent if is_first else present.sent
    )
    standing = _standing(changed)
    seq = _append(connection, ProposalChange(proposal=proposal, event=event, standing=standing, proof=proof), now=now)
    begun = {"begun_seq": seq} if event is ProposalEvent.BEGIN else {}
    _update(connection, proposal, {"seq": seq, **begun, **standing_row(standing)})
    return changed


def _refuse_without_right(
    connection: Connection, proposal: ProposalId, event: ProposalEvent, *, lease_token: str | None, now: datetime
) -> None:
    if lease_token is None:
        return
    if lease_token != read_lease(connection, now):
        raise LedgerConflict(
            f"{proposal}: the right to act has run out or went to another process; the next run takes the current one"
        )
    pause = read_pause(connection) if event in BEGINNINGS else None
    if pause is not None:
        raise LedgerConflict(
            f"{proposal}: {pause.actor} paused the autopilot ({pause.reason}); `ops-pipelines resume-autopilot` "
            "ends that"
        )


def _refuse_beside_another(connection: Connection, present: ProposalRecord, begun_seq: int | None) -> None:
    """Raise LedgerConflict if another is half-way, or if what may be in of this one was overtaken by a newer one."""
    is_begun = present.state is not ProposalState.PROPOSED
    states = {"states": sorted(state.value for state in _MAY_BE_IN)}
    for row in connection.execute(_IN_STATES, states):
        if row.proposal == present.name:
            continue
        if ProposalState(row.state) in HALF_WAY:
            other = decode(ProposalStanding, row.body)
            raise LedgerConflict(
                f"{row.proposal} is {row.state} since {other.since:%Y-%m-%d %H:%M:%S} UTC by {other.actor}; one at a "
                "time: wait for its end, or settle it if who started it is gone"
            )
        if is_begun and (row.begun_seq or 0) > (begun_seq or 0):
            raise LedgerConflict(
                f"{row.proposal} was applied after {present.name} and is {row.state}; undo that one first, or propose "
                "anew"
            )


def _append(connection: Connection, change: ProposalChange, *, now: datetime) -> int:
    with ChainWriter(connection) as writer:
        return writer.append(
            encode(change),
            kind=EntryKind.QUOTAS,
            actor=change.standing.actor,
            incident=IncidentId(change.proposal),
            now=now,
        )


def _update(connection: Connection, proposal: ProposalId, row: Mapping[str, str | int | None]) -> None:
    connection.execute(update(rows).where(rows.c.proposal == proposal), dict(row))


# -- reading ----------------------------------------------------------------------------------------------------------


def read_proposal(connection: Connection, proposal: ProposalId) -> ProposalRecord | None:
    """Return one proposal as it is now."""
    row = connection.execute(_ROW, {"proposal": proposal}).one_or_none()
    return None if row is None else _to_record(connection, row)


def read_proposals(connection: Connection, *, limit: int) -> tuple[ProposalRecord, ...]:
    """Return the newest, newest first."""
    found: Sequence[Row[tuple[object, ...]]] = connection.execute(_NEWEST, {"most": limit}).all()
    return tuple(_to_record(connection, row) for row in found)


def _to_record(connection: Connection, row: Row[tuple[object, ...]]) -> ProposalRecord:
    proposal = decode_proposal(read_document(connection, Digest(row.document)))
    standing = decode(ProposalStanding, row.body)
    return ProposalRecord(
        proposal=proposal,
        state=standing.state,
        since=standing.since,
        actor=standing.actor,
        reason=standing.reason,
        sent=standing.sent,
    )


# -- rows and documents -----------------------------------------------------------------------------------------------


def standing_row(standing: ProposalStanding) -> dict[str, str | int]:
    """Return the columns that follow from the state of a proposal."""
    return {"state": standing.state.value, "body": encode(standing)}


def superseded_by(newer: ProposalId, its_standing: ProposalStanding) -> ProposalStanding:
    """Return the state of a proposal whose place another one took."""
    return ProposalStanding(
        state=ProposalState.SUPERSEDED,
        since=its_standing.since,
        actor=its_standing.actor,
        reason=f"{newer} took its place",
    )


def _standing(record: ProposalRecord) -> ProposalStanding:
    return ProposalStanding(
        state=record.state, since=record.since, actor=record.actor, reason=record.reason, sent=record.sent
    )


def content_of_proposal(proposal: QuotaProposal) -> Digest:
    """Return the sha256 of a proposal as it is, or would be, stored."""
    return digest_document(encode_proposal(proposal))


def encode_proposal(proposal: QuotaProposal) -> str:
    """Return the document of a proposal."""
    boundless = tuple(number for number, line in enumerate(proposal.lines) if math.isinf(line.most))
    lines = tuple(replace(line, most=0.0) if math.isinf(line.most) else line for line in proposal.lines)
    return encode(KeptProposal(proposal=replace(proposal, lines=lines), boundless=boundless))


def decode_proposal(document: str) -> QuotaProposal:
    """Return the proposal that a document holds."""
    kept = decode(KeptProposal, document)
    if any(not 0 <= number < len(kept.proposal.lines) for number in kept.boundless):
        raise LedgerError("a stored proposal names lines that it does not have; check the ledger")
    lines = list(kept.proposal.lines)
    for number in kept.boundless:
        lines[number] = replace(lines[number], most=math.inf)
    return replace(kept.proposal, lines=tuple(lines))
