"""Proposals of quotas in the ledger's database: kept, moved on by their table alone, and read.

Each function runs inside a transaction of its caller. A proposal itself never changes: it is a document, named by the
line that brings it; later lines say how far it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from ops_pipelines.core.entries import AUTOPILOT, EntryKind, LedgerConflict, LedgerError
from ops_pipelines.core.identity import Digest, IncidentId
from ops_pipelines.core.proof import QuotaProof, why_quota_unproved
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
from ops_pipelines.resources.ledger.chain import ChainWriter, ProposalChange, ProposalStanding
from ops_pipelines.resources.ledger.evidence import digest_document, read_document, read_lease, write_document
from ops_pipelines.resources.ledger.state import read_pause
from ops_pipelines.resources.ledger.tables import quota_proposals as rows

BEGINNINGS = frozenset({ProposalEvent.BEGIN, ProposalEvent.UNDO})
"""After these the scheduler is told something."""
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
        raise LedgerError(f"a proposal names a team or type that is no text ({exc}); correct it, propose anew") from exc
    if record.state not in _FIRST or record.sent:
        raise LedgerError(f"{name} is {record.state.value}; a new one is proposed or refused, and not begun")
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
        raise LedgerError(f"{proposal}: what is sent is told when it is begun, not with {event.value!r}")
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
                "time: wait for its end, or settle it if whoever began it is gone"
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
    """Return the columns that follow from where a proposal stands."""
    return {"state": standing.state.value, "body": encode(standing)}


def superseded_by(newer: ProposalId, its_standing: ProposalStanding) -> ProposalStanding:
    """Return where a proposal stands whose place another one took."""
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
