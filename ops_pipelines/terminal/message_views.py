"""What `messages` answers, as values in the shape of its JSON: the notes of the outbox and what became of each.

Field names are the JSON keys. Neither a URL nor an approval link is in the outbox, so none is shown.
"""

from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.notes import KeptNote, NoteState, Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteView:
    """One fact for one recipient. `message` names the message it went into, null before it is tried."""

    key: str
    state: str
    audience: str
    recipient: str
    incident: str
    severity: str
    said: str
    made_at: datetime
    sent_at: datetime | None
    next_at: datetime | None
    message: str | None
    attempt_count: int
    receipt: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesView:
    """The answer of `messages`: what waits or failed first, then what was sent, each the newest first."""

    cluster: str
    taken_at: datetime
    waiting_count: int
    sent_count: int
    undeliverable_count: int
    notes: tuple[NoteView, ...]


def view_messages(outbox: Outbox, *, cluster: str, limit: int, now: datetime) -> MessagesView:
    """Return the newest notes and how many there are in each state; raises LedgerError."""
    counts = outbox.count_notes()
    return MessagesView(
        cluster=cluster,
        taken_at=now,
        waiting_count=counts[NoteState.WAITING],
        sent_count=counts[NoteState.SENT],
        undeliverable_count=counts[NoteState.UNDELIVERABLE],
        notes=tuple(_view(kept) for kept in outbox.recent_notes(limit=limit)),
    )


def _view(kept: KeptNote) -> NoteView:
    note = kept.note
    return NoteView(
        key=note.key,
        state=kept.state.value,
        audience=note.audience.value,
        recipient=note.recipient,
        incident=note.thread,
        severity=note.severity.value,
        said=note.line,
        made_at=note.made_at,
        sent_at=kept.sent_at,
        next_at=kept.next_at if kept.state is NoteState.WAITING else None,
        message=kept.batch,
        attempt_count=kept.attempt_count,
        receipt=kept.receipt,
        problem=kept.problem,
    )
