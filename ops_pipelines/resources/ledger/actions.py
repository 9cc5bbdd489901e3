"""Beginning and finishing actions: key, lease, pause and guard judged together, and the lines that record it.

Each function runs inside a writing transaction of its caller, so no two processes pass a guard on the same state.
Sending the command, and reading its witness, is `remediate.acts.perform`'s business.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select, update

from ops_pipelines.core.action import MESSAGES, ActionRecord, Outcome
from ops_pipelines.core.entries import (
    AUTOPILOT,
    AlreadyBegun,
    Begun,
    EntryKind,
    Guard,
    LedgerConflict,
    LedgerError,
    LedgerState,
    Pause,
)
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.proof import ActProof, Patience, Refusal
from ops_pipelines.resources.documents import decode, encode
from ops_pipelines.resources.ledger.chain import ChainWriter, RefusedAction, Resent
from ops_pipelines.resources.ledger.evidence import read_lease
from ops_pipelines.resources.ledger.proofs import KnownPlans, read_known_plans, refusal_of_unproved
from ops_pipelines.resources.ledger.state import action_row, read_records_of, read_state, refusal_identity
from ops_pipelines.resources.ledger.tables import actions, entries, refusals

_RESENT = (
    select(entries.c.body)
    .where(
        entries.c.kind == EntryKind.ACTION_RESENT.value,
        entries.c.incident == select(actions.c.incident).where(actions.c.key == bindparam("key")).scalar_subquery(),
    )
    .order_by(entries.c.seq)
)
_NEW_ACTIONS = insert(actions)
_CHANGED_ACTION = update(actions).where(actions.c.key == bindparam("its_key"))
_KNOWN_REFUSAL = select(refusals.c.seq).where(refusals.c.identity == bindparam("identity"))


def begin_actions(
    connection: Connection,
    records: Sequence[ActionRecord],
    *,
    guard: Guard,
    lease_token: str | None,
    actor: str,
    now: datetime,
) -> tuple[Begun | AlreadyBegun | Refusal, ...]:
    """Write the before-entries in order, or the refusals that are new; each sees those before it as begun."""
    known = read_records_of(connection, [record.action.key for record in records])
    plans = read_known_plans(connection, records)
    answers: list[Begun | AlreadyBegun | Refusal] = []
    rows: list[dict[str, object]] = []
    state: LedgerState | None = None
    with ChainWriter(connection) as writer:
        for asked in records:
            record = asked
            before = known.get(record.action.key)
            if before is not None:
                answers.append(AlreadyBegun(record=before))
                continue
            if record.sent_at is not None or record.outcome is not None:
                raise LedgerError(
                    f"{_name(record)} is sent or over before it begins; begin it first, then mark and finish it"
                )
            if state is None:
                state = read_state(connection, now)
                lease_refusal = _judge_lease(connection, lease_token, now)
            refusal = lease_refusal or _judge_pause(state.pause, record, actor=actor)
            if refusal is None:
                record, refusal = _proved(plans, record, guard(record, state), now=now)
            if refusal is not None:
                _write_refusal(writer, RefusedAction(action=record.action, refusal=refusal), actor=actor, now=now)
                answers.append(refusal)
                continue
            body = encode(record)
            seq = writer.append(
                body, kind=EntryKind.ACTION_BEGUN, actor=actor, incident=record.action.incident, now=now
            )
            rows.append({**action_row(record), "begun_seq": seq, "sent_seq": None, "finished_seq": None, "body": body})
            known[record.action.key] = record
            state = replace(state, records=(*state.records, record), head_seq=seq)
            answers.append(Begun(record=record))
    if rows:
        connection.execute(_NEW_ACTIONS, rows)
    return tuple(answers)


def begin_action_again(
    connection: Connection,
    record: ActionRecord,
    *,
    after: int,
    guard: Guard,
    lease_token: str | None,
    actor: str,
    now: datetime,
) -> Begun | AlreadyBegun | Refusal:
    """Write that an unsent action is sent once more; a refusal writes nothing: it will be asked again."""
    key = record.action.key
    present = _begun(connection, [key])[key]
    if present != record or present.outcome is not None or len(read_resent_at(connection, key)) != after:
        return AlreadyBegun(record=present)
    state = read_state(connection, now)
    refusal = _judge_lease(connection, lease_token, now) or _judge_pause(state.pause, record, actor=actor)
    again = record
    if refusal is None:
        plans = read_known_plans(connection, [record])
        again, refusal = _proved(plans, record, guard(record, state), now=now)
    if refusal is not None:
        return refusal
    body = encode(Resent(key=key, at=now, proof=again.proof))
    with ChainWriter(connection) as writer:
        writer.append(body, kind=EntryKind.ACTION_RESENT, actor=actor, incident=record.action.incident, now=now)
    return Begun(record=record)


def _proved(
    plans: KnownPlans, record: ActionRecord, found: Refusal | ActProof | None, *, now: datetime
) -> tuple[ActionRecord, Refusal | None]:
    """Return the record with what was proved of it, and why it must not be begun all the same."""
    if isinstance(found, Refusal):
        return record, found
    return replace(record, proof=found), refusal_of_unproved(plans, record, found, now=now)


def read_resent_at(connection: Connection, key: ActionKey) -> tuple[datetime, ...]:
    """Return when an action was sent again, oldest first."""
    bodies = connection.execute(_RESENT, {"key": key}).scalars()
    resent = [decode(Resent, body) for body in bodies]
    return tuple(each.at for each in resent if each.key == key)


def withhold_action(connection: Connection, key: ActionKey, *, sending: int, actor: str, now: datetime) -> None:
    """Write that a command was provably not sent; the same sending once."""
    record = _begun(connection, [key])[key]
    if record.outcome is not None:
        return
    with ChainWriter(connection) as writer:
        _write_refusal(writer, RefusedAction(action=record.action, refusal=_unsent(sending)), actor=actor, now=now)


def read_withheld(connection: Connection, key: ActionKey) -> frozenset[int]:
    """Return which sendings of an action were withheld."""
    record = _begun(connection, [key])[key]
    sendings = range(len(read_resent_at(connection, key)) + 1)
    identities = {
        refusal_identity(RefusedAction(action=record.action, refusal=_unsent(each))): each for each in sendings
    }
    found = connection.execute(select(refusals.c.identity).where(refusals.c.identity.in_(identities))).scalars()
    return frozenset(identities[identity] for identity in found)


def _unsent(sending: int) -> Refusal:
    """Return why a command was not sent although its before-entry stands; each sending has words of its own."""
    which = "" if sending == 0 else f" for the {sending + 1}. time"
    return Refusal(
        guardrail="lease",
        reason=f"the right to act, or what it was judged on, ran out before this was sent{which}: it was not sent",
        patience=Patience.WAIT,
    )


def mark_action_sent(connection: Connection, key: ActionKey, *, actor: str, now: datetime) -> None:
    """Write when the command was accepted; nothing if that is known, or the action over."""
    record = _begun(connection, [key])[key]
    if record.sent_at is not None or record.outcome is not None:
        return
    body = encode(replace(record, sent_at=now))
    with ChainWriter(connection) as writer:
        seq = writer.append(body, kind=EntryKind.ACTION_SENT, actor=actor, incident=record.action.incident, now=now)
    _update_actions(connection, [{"its_key": key, "sent_seq": seq, "body": body}])


def finish_actions(connection: Connection, outcomes: Mapping[ActionKey, Outcome], *, actor: str) -> None:
    """Write the outcomes of actions that were begun; each line carries the whole record."""
    rows = []
    with ChainWriter(connection) as writer:
        for key, record in _begun(connection, outcomes.keys()).items():
            outcome = outcomes[key]
            if record.outcome is not None and record.outcome.kind is outcome.kind:
                continue
            if record.outcome is not None:
                raise LedgerConflict(
                    f"{_name(record)} is already {record.outcome.kind.value} ({record.outcome.witness}); "
                    f"it cannot become {outcome.kind.value}"
                )
            body = encode(replace(record, outcome=outcome))
            seq = writer.append(
                body,
                kind=EntryKind.ACTION_FINISHED,
                actor=actor,
                incident=record.action.incident,
                now=outcome.finished_at,
            )
            rows.append({"its_key": key, "finished_seq": seq, "body": body})
    _update_actions(connection, rows)


def _update_actions(connection: Connection, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        connection.execute(_CHANGED_ACTION, rows)


def _judge_lease(connection: Connection, token: str | None, now: datetime) -> Refusal | None:
    if token is None or token == read_lease(connection, now):
        return None
    return Refusal(
        guardrail="lease",
        reason="the right to act has run out or went to another process; the next run takes the current one",
        patience=Patience.WAIT,
    )


def _judge_pause(pause: Pause | None, record: ActionRecord, *, actor: str) -> Refusal | None:
    if pause is None or record.action.verb in MESSAGES or actor != AUTOPILOT:
        return None  # People are told, and a person may act, while the autopilot is paused.
    return Refusal(
        guardrail="pause",
        reason=f"{pause.actor} paused the autopilot ({pause.reason}); `ops-pipelines resume-autopilot` ends that",
        patience=Patience.WAIT,
    )


def _write_refusal(writer: ChainWriter, refused: RefusedAction, *, actor: str, now: datetime) -> None:
    identity = refusal_identity(refused)
    if writer.connection.execute(_KNOWN_REFUSAL, {"identity": identity}).first() is not None:
        return
    seq = writer.append(
        encode(refused), kind=EntryKind.ACTION_REFUSED, actor=actor, incident=refused.action.incident, now=now
    )
    writer.connection.execute(insert(refusals), {"identity": identity, "seq": seq})


def _begun(connection: Connection, keys: Collection[ActionKey]) -> dict[ActionKey, ActionRecord]:
    records = read_records_of(connection, keys)
    unknown = [key for key in keys if key not in records]
    if unknown:
        raise LedgerError(f"no action {unknown[0]} was begun; what came of it needs its before-entry")
    return {key: records[key] for key in keys}


def _name(record: ActionRecord) -> str:
    return f"{record.action.verb.value} on {record.action.target}"
