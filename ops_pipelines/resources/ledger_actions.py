"""Beginning and finishing actions: key, lease, pause and guard judged together, and the lines that record it.

Each function runs inside a writing transaction of its caller, so no two processes pass a guard on the same state.
Sending the command, and reading its witness, is `flow.act`'s business.
"""

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from ops_pipelines.domain.action import MESSAGES, ActionRecord, Outcome
from ops_pipelines.domain.guardrails import Patience, Refusal
from ops_pipelines.domain.identity import ActionKey
from ops_pipelines.ports.ledger import AUTOPILOT, AlreadyBegun, Begun, EntryKind, Guard, LedgerConflict, LedgerError
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.ledger_chain import ChainWriter, RefusedAction
from ops_pipelines.resources.ledger_evidence import read_lease
from ops_pipelines.resources.ledger_state import action_row, read_pause, read_record, read_state, refusal_identity
from ops_pipelines.resources.ledger_tables import actions, refusals


def begin_action(
    connection: Connection,
    record: ActionRecord,
    *,
    guard: Guard,
    lease_token: str | None,
    actor: str,
    now: datetime,
) -> Begun | AlreadyBegun | Refusal:
    """Write the before-entry, or the refusal if it is a new one."""
    before = read_record(connection, record.action.key)
    if before is not None:
        return AlreadyBegun(record=before)
    if record.sent_at is not None or record.outcome is not None:
        raise LedgerError(f"{_name(record)} is sent or over before it begins; begin it first, then mark and finish it")
    refusal = (
        _judge_lease(connection, lease_token, now)
        or _judge_pause(connection, record, actor=actor)
        or guard(read_state(connection, now))
    )
    writer = ChainWriter(connection)
    if refusal is not None:
        _write_refusal(writer, RefusedAction(action=record.action, refusal=refusal), actor=actor, now=now)
        return refusal
    body = encode(record)
    seq = writer.append(body, kind=EntryKind.ACTION_BEGUN, actor=actor, incident=record.action.incident, now=now)
    row = {**action_row(record), "begun_seq": seq, "sent_seq": None, "finished_seq": None, "body": body}
    connection.execute(insert(actions), row)
    return Begun(record=record)


def mark_action_sent(connection: Connection, key: ActionKey, *, actor: str, now: datetime) -> None:
    """Write when the command was accepted; nothing if that is known, or the action over."""
    record = _begun(connection, key)
    if record.sent_at is not None or record.outcome is not None:
        return
    body = encode(replace(record, sent_at=now))
    seq = ChainWriter(connection).append(
        body, kind=EntryKind.ACTION_SENT, actor=actor, incident=record.action.incident, now=now
    )
    connection.execute(update(actions).where(actions.c.key == key).values(sent_seq=seq, body=body))


def finish_action(connection: Connection, key: ActionKey, outcome: Outcome, *, actor: str) -> None:
    """Write the outcome of an action that was begun; the line carries the whole record."""
    record = _begun(connection, key)
    if record.outcome is not None:
        if record.outcome.kind is outcome.kind:
            return
        raise LedgerConflict(
            f"{_name(record)} is already {record.outcome.kind.value} ({record.outcome.witness}); "
            f"it cannot become {outcome.kind.value}"
        )
    body = encode(replace(record, outcome=outcome))
    seq = ChainWriter(connection).append(
        body,
        kind=EntryKind.ACTION_FINISHED,
        actor=actor,
        incident=record.action.incident,
        now=outcome.finished_at,
    )
    connection.execute(update(actions).where(actions.c.key == key).values(finished_seq=seq, body=body))


def _judge_lease(connection: Connection, token: str | None, now: datetime) -> Refusal | None:
    if token is None or token == read_lease(connection, now):
        return None
    return Refusal(
        guardrail="lease",
        reason="the right to act has run out or went to another process; the next run takes the current one",
        patience=Patience.WAIT,
    )


def _judge_pause(connection: Connection, record: ActionRecord, *, actor: str) -> Refusal | None:
    if record.action.verb in MESSAGES or actor != AUTOPILOT:
        return None  # People are told, and a person may act, while the autopilot is paused.
    pause = read_pause(connection)
    if pause is None:
        return None
    return Refusal(
        guardrail="pause",
        reason=f"{pause.actor} paused the autopilot ({pause.reason}); `ops-pipelines resume-autopilot` ends that",
        patience=Patience.WAIT,
    )


def _write_refusal(writer: ChainWriter, refused: RefusedAction, *, actor: str, now: datetime) -> None:
    identity = refusal_identity(refused)
    known = select(refusals.c.seq).where(refusals.c.identity == identity)
    if writer.connection.execute(known).first() is not None:
        return
    seq = writer.append(
        encode(refused), kind=EntryKind.ACTION_REFUSED, actor=actor, incident=refused.action.incident, now=now
    )
    writer.connection.execute(insert(refusals), {"identity": identity, "seq": seq})


def _begun(connection: Connection, key: ActionKey) -> ActionRecord:
    record = read_record(connection, key)
    if record is None:
        raise LedgerError(f"no action {key} was begun; what came of it needs its before-entry")
    return record


def _name(record: ActionRecord) -> str:
    return f"{record.action.verb.value} on {record.action.target}"
