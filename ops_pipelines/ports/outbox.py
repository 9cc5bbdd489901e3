"""The outbox: what is still to be told to whom, kept until a channel took it or it is given up.

A *note* is one fact for one recipient. Notes become messages when they are delivered: alike ones together, one alone,
or many as a digest; a *batch* names the notes that went into one message. What is told is decided in
`flow.telling.tell`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from ops_pipelines.domain.identity import PlanId
from ops_pipelines.ports.notifier import Audience, Severity

BATCH_PREFIX = "MSG-"
"""Begins the name of every batch, which is the key of its message."""
NOT_SENT = "not sent: "
"""Begins the receipt of a note that was settled before it went out: nobody heard it."""


class Lane(Enum):
    """How a note travels."""

    AT_ONCE = "at_once"
    """As soon as alike ones had time to join it."""
    DIGEST = "digest"
    """With everything else for its recipient, at the time of the digest."""


class NoteState(Enum):
    """What became of a note."""

    WAITING = "waiting"
    SENT = "sent"
    UNDELIVERABLE = "undeliverable"
    """No channel took it within a day. It stays here, is listed, and counts in the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One fact for one recipient, in words. Quotes logs, jobs and users: untrusted text."""

    key: str
    """Names the fact and whom it is told: the same key is kept once, so that nobody hears the same thing twice."""
    audience: Audience
    recipient: str
    thread: str
    """The incident, or the rollout."""
    subject: str
    """The same for every note of a thread and audience."""
    title: str
    body: str
    line: str
    """The fact in one line, for a digest."""
    severity: Severity
    lane: Lane
    likeness: str
    """Notes of one recipient and one likeness that wait together become one message."""
    made_at: datetime
    ready_at: datetime
    """Not delivered before."""
    lines_title: str = ""
    """The title of several alike ones, with `{count}` for how many; empty: that of the first."""
    lost_gpu_hours: float = 0.0
    """What its recipient lost, as far as it is known: a digest adds it up."""
    asks_for: PlanId | None = None
    """The plan that its recipient is asked to approve; None: nothing is asked."""
    is_last: bool = False
    """Whether it ends its thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNote:
    """A note with what became of it."""

    note: Note
    state: NoteState
    batch: str | None
    """The message that it went into, or goes into when it is tried again; None: not tried yet."""
    attempt_count: int
    next_at: datetime
    """When it may be tried; of a note under way, when whoever tries it counts as dead."""
    sent_at: datetime | None
    receipt: str
    """Of the channels that took it; empty until then."""
    problem: str
    """Why the last attempt failed; empty if none did. Names no URL."""


class Outbox(Protocol):
    """Keeps notes. Every method is one transaction; all raise LedgerError."""

    def hand_in(self, notes: Collection[Note], *, source: str, after: str | None, cursor: str, now: datetime) -> int:
        """Keep the notes whose key is new and move the cursor of `source`; return how many were new.

        Notes and cursor move in the same transaction. Raises LedgerConflict, and keeps nothing, if the cursor no longer
        stands at `after`: somebody else told in between.
        """
        ...

    def notes_of(self, thread: str) -> tuple[KeptNote, ...]:
        """Return every note of one incident, oldest first."""
        ...

    def waiting_notes(self, *, limit: int) -> tuple[KeptNote, ...]:
        """Return the oldest notes that wait, in the order in which they were handed in."""
        ...

    def sent_times(self, since: datetime) -> Mapping[tuple[Audience, str], tuple[datetime, ...]]:
        """Return when messages went to each recipient since then, oldest first: one time a message, not a note."""
        ...

    def claim_notes(self, batch: str, keys: Collection[str], *, until: datetime, now: datetime) -> bool:
        """Begin an attempt to deliver these notes as one message; False if one of them is not due for it any more.

        All or none. Until then nobody else tries them; who dies meanwhile has them tried again under the same name.
        """
        ...

    def mark_delivered(self, batch: str, *, receipt: str, now: datetime) -> None:
        """Write that the message was taken."""
        ...

    def mark_undelivered(self, batch: str, *, problem: str, again_at: datetime | None, now: datetime) -> None:
        """Write that no channel took the message; `again_at` None gives it up for good."""
        ...

    def recent_notes(self, *, limit: int) -> tuple[KeptNote, ...]:
        """Return the newest notes, newest first, those that wait or failed before those that were sent."""
        ...

    def count_notes(self) -> Mapping[NoteState, int]:
        """Return how many notes there are in each state; 0 where there are none."""
        ...

    def forget_sent(self, before: datetime) -> int:
        """Delete what was sent before then and return how much; what waits or failed stays."""
        ...
