"""What is no history and no evidence: notes to people with what became of each, one row a note, and the heartbeats of
processes, one row a process, overwritten with each tick.

No part of the chain. Each function runs inside a transaction of its caller. What a note says, and when it is tried, is
`people`'s; what a heartbeat means for the program's health is `core.health`'s.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import Connection, Row, case, delete, func, insert, select, update

from ops_pipelines.core.entries import LedgerConflict, LedgerError
from ops_pipelines.core.health import BESIDE, WATCHER, Heartbeat
from ops_pipelines.core.notes import NOT_SENT, Audience, KeptNote, Note, NoteState
from ops_pipelines.core.policy import Mode
from ops_pipelines.resources.documents import decode, decode_all, encode
from ops_pipelines.resources.ledger.evidence import move_cursor, read_cursor
from ops_pipelines.resources.ledger.tables import heartbeats, leases, notes

# -- notes --


_LONGEST_WORDS = 500
"""Characters of a receipt or a problem: more than a person reads in a line."""


def write_notes(
    connection: Connection, given: Collection[Note], *, source: str, after: str | None, cursor: str, now: datetime
) -> int:
    """Keep the notes whose key is new and move the cursor; raise LedgerConflict if it is no longer at `after`."""
    found = read_cursor(connection, source)
    if found != after:
        raise LedgerConflict(
            f"the cursor of {source} is at {found} instead of {after}; somebody else notified in between"
        )
    move_cursor(connection, source, cursor, now=now)
    by_key = {note.key: note for note in reversed(list(given))}  # of two with one key the first counts
    known = set(connection.execute(select(notes.c.key).where(notes.c.key.in_(by_key))).scalars()) if by_key else set()
    number = connection.execute(select(func.max(notes.c.number))).scalar() or 0
    new = [note for note in reversed(by_key.values()) if note.key not in known]
    rows = [
        {
            "key": note.key,
            "number": number + offset,
            "thread": note.thread,
            "audience": note.audience.value,
            "recipient": note.recipient,
            "state": NoteState.WAITING.value,
            "batch": None,
            "attempt_count": 0,
            "next_at": note.ready_at,
            "sent_at": None,
            "receipt": "",
            "problem": "",
            "body": encode(note),
        }
        for offset, note in enumerate(new, start=1)
    ]
    if rows:
        connection.execute(insert(notes), rows)
    return len(rows)


def read_notes_of(connection: Connection, thread: str) -> tuple[KeptNote, ...]:
    """Return every note of one thread, oldest first."""
    statement = select(notes).where(notes.c.thread == thread).order_by(notes.c.number)
    return _kept(connection.execute(statement).all())


def read_waiting(connection: Connection, *, limit: int) -> tuple[KeptNote, ...]:
    """Return the oldest notes that wait."""
    waiting = notes.c.state == NoteState.WAITING.value
    return _kept(connection.execute(select(notes).where(waiting).order_by(notes.c.number).limit(limit)).all())


def read_sent_times(connection: Connection, since: datetime) -> Mapping[tuple[Audience, str], tuple[datetime, ...]]:
    """Return when messages went to each recipient at or after `since`, oldest first; what nobody got is none."""
    statement = (
        select(notes.c.audience, notes.c.recipient, notes.c.batch, func.max(notes.c.sent_at).label("sent"))
        .where(notes.c.sent_at >= since, ~notes.c.receipt.startswith(NOT_SENT, autoescape=True))
        .group_by(notes.c.audience, notes.c.recipient, notes.c.batch)
    )
    times: dict[tuple[Audience, str], list[datetime]] = {}
    for row in connection.execute(statement):
        times.setdefault((Audience(row.audience), row.recipient), []).append(row.sent)
    return {recipient: tuple(sorted(each)) for recipient, each in times.items()}


def claim_batch(connection: Connection, batch: str, keys: Collection[str], *, until: datetime, now: datetime) -> bool:
    """Begin an attempt for exactly these notes; False if one of them waits no more, or is somebody else's for now."""
    if not keys:
        return False
    is_free = notes.c.batch.is_(None) | ((notes.c.batch == batch) & (notes.c.next_at <= now))
    due = (notes.c.key.in_(list(keys))) & (notes.c.state == NoteState.WAITING.value) & is_free
    if connection.execute(select(func.count()).select_from(notes).where(due)).scalar_one() != len(set(keys)):
        return False
    begun = {"batch": batch, "next_at": until, "attempt_count": notes.c.attempt_count + 1}
    connection.execute(update(notes).where(due).values(begun))
    return True


def write_sent(connection: Connection, batch: str, *, receipt: str, now: datetime) -> None:
    """Write that the notes of a batch were taken; of those that were given up meanwhile, too: they arrived."""
    sent = {"state": NoteState.SENT.value, "sent_at": now, "receipt": receipt[:_LONGEST_WORDS], "problem": ""}
    if connection.execute(update(notes).where(notes.c.batch == batch).values(sent)).rowcount == 0:
        raise LedgerError(f"there is no message {batch}; it was never started in this ledger")


def write_failed(connection: Connection, batch: str, *, problem: str, again_at: datetime | None, now: datetime) -> None:
    """Write that a batch was not taken; without a next time it is given up."""
    waiting = (notes.c.batch == batch) & (notes.c.state == NoteState.WAITING.value)
    state = NoteState.UNDELIVERABLE if again_at is None else NoteState.WAITING
    failed = {"state": state.value, "next_at": again_at or now, "problem": problem[:_LONGEST_WORDS]}
    connection.execute(update(notes).where(waiting).values(failed))


def read_recent(connection: Connection, *, limit: int) -> tuple[KeptNote, ...]:
    """Return the newest notes, those that were not sent first."""
    is_sent = case((notes.c.state == NoteState.SENT.value, 1), else_=0)
    return _kept(connection.execute(select(notes).order_by(is_sent, notes.c.number.desc()).limit(limit)).all())


def count_by_state(connection: Connection) -> Mapping[NoteState, int]:
    """Return how many notes there are in each state."""
    rows = connection.execute(select(notes.c.state, func.count().label("rows")).group_by(notes.c.state))
    found = {row.state: row.rows for row in rows}
    return {state: found.get(state.value, 0) for state in NoteState}


def delete_sent(connection: Connection, before: datetime) -> int:
    """Delete what was sent before then."""
    return connection.execute(delete(notes).where(notes.c.sent_at < before)).rowcount


def _kept(rows: Collection[Row[tuple[object, ...]]]) -> tuple[KeptNote, ...]:
    given = decode_all(Note, [str(row.body) for row in rows])
    return tuple(
        KeptNote(
            note=note,
            state=NoteState(row.state),
            batch=row.batch,
            attempt_count=row.attempt_count,
            next_at=row.next_at,
            sent_at=row.sent_at,
            receipt=row.receipt,
            problem=row.problem,
        )
        for note, row in zip(given, rows, strict=True)
    )


# -- heartbeats --


TEXT_LENGTH = 500
"""Assumption: more than a person reads in a line. An error message may carry a whole answer of a server."""

_FORGOTTEN = timedelta(minutes=10)
"""Processes come and go: who watched beside another one this long ago is no row any more."""


def write_heartbeat(
    connection: Connection,
    *,
    name: str,
    holder: str,
    note: str,
    mode: Mode,
    answers: Mapping[str, str | None],
    now: datetime,
) -> None:
    """Remember a tick; of a process that another one keeps from acting only that it watches, beside the other's."""
    lease_holder = connection.execute(select(leases.c.holder).where(leases.c.expires_at > now)).scalar()
    connection.execute(
        delete(heartbeats).where(heartbeats.c.name.like(f"{WATCHER}{BESIDE}%"), heartbeats.c.at < now - _FORGOTTEN)
    )
    if lease_holder not in (None, holder):
        if name != WATCHER:
            return
        name = f"{name}{BESIDE}{holder}"[:TEXT_LENGTH]
    cut = {source: None if problem is None else problem[:TEXT_LENGTH] for source, problem in answers.items()}
    values = {
        "at": now,
        "holder": holder,
        "note": note[:TEXT_LENGTH],
        "mode": mode.value,
        "answers": encode(cut),
        "is_lease_held": int(lease_holder == holder),
    }
    if connection.execute(update(heartbeats).where(heartbeats.c.name == name).values(values)).rowcount == 0:
        connection.execute(insert(heartbeats), {"name": name, **values})


def read_heartbeats(connection: Connection) -> tuple[Heartbeat, ...]:
    """Return the last tick of every name, by name."""
    rows = connection.execute(select(heartbeats).order_by(heartbeats.c.name))
    return tuple(
        Heartbeat(
            name=row.name,
            at=row.at,
            holder=row.holder,
            note=row.note,
            mode=_mode(row.mode, name=row.name),
            answers=decode(dict[str, str | None], row.answers),
            is_lease_held=bool(row.is_lease_held),
        )
        for row in rows
    )


def _mode(word: str, *, name: str) -> Mode:
    try:
        return Mode(word)
    except ValueError as exc:
        raise LedgerError(
            f"the heartbeat of {name} names a mode {word!r} that this program does not know; "
            "another version wrote it: run that one here too"
        ) from exc
